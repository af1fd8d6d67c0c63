"""A vLLM engine of two workers (tensor parallel), in a process of its own: vLLM keeps one state a process.

usage: python two_workers.py FOLDER: of a checkpoint. Prints the largest difference in log-probability to the
transformers engine, of equal greedy tokens, for the checkpoint's weights and for others that were given later.

Where torch sees two GPUs, all works there, in bfloat16. Rounding may then make another token the likeliest: what is
printed is the largest difference between vLLM's log-probability of a token and the model's own, or, if that is larger,
between the model's for that token and for the one that it holds for the likeliest.
"""

from __future__ import annotations

import os
import sys

CORES = sorted(os.sched_getaffinity(0))
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"{CORES[0]}|{CORES[-1]}"


def main(folder: str) -> None:
    import torch

    from hgpo.config.machinery import Engine
    from hgpo.rollout.engines import Request
    from hgpo.rollout.policy import load_policy, named_weights
    from hgpo.rollout.ray_engine import checkpoint_in_memory, pack
    from hgpo.rollout.transformers_engine import TransformersEngine
    from hgpo.rollout.vllm_engine import VllmEngine

    def complete(engine):
        for number, prompt in enumerate(prompts):
            engine.submit(Request(number, prompt, 100 + number, 12, 0.0))
        done = {}
        while len(done) < len(prompts):
            done |= {completion.id: completion for completion in engine.poll()}
        return done

    def difference(completion):
        """To what the model says of the same tokens."""
        ids = torch.tensor([prompts[completion.id] + completion.token_ids], device=model.device)
        with torch.no_grad():
            says = model(ids).logits[0, len(prompts[completion.id]) - 1 : -1].float().log_softmax(-1)
        said = says.gather(-1, ids[0, len(prompts[completion.id]) :, None])[:, 0]
        theirs = torch.tensor(completion.log_probs, device=model.device)
        return float(torch.maximum((said - theirs).abs(), says.amax(-1) - said).max())

    on_gpus = torch.cuda.device_count() > 1
    dtype, device, shift = ("bfloat16", "cuda", 0.03) if on_gpus else ("float32", "cpu", 0.3)
    small = {"eager": True, "gpu_memory": 0.05, "cache_gb": 1} if on_gpus else {}
    model, tokenizer = load_policy(folder, dtype, device=device)
    prompts = [tokenizer.encode("goal: open the door at place 2\n" * (1 + number % 3)) for number in range(6)]
    settings = Engine(kind="vllm", tensor_parallel=2, **small)
    engine = VllmEngine(folder, settings, dtype, 256, 16, tokenizer.eos_token_id)
    reference = TransformersEngine(model, tokenizer.eos_token_id, tokenizer.pad_token_id)
    largest, seen = 0.0, []
    for version in range(2):
        if version:
            with torch.no_grad():
                for parameter in model.parameters():
                    change = torch.linspace(-shift, shift, parameter.numel(), device=device)
                    parameter.add_(change.reshape(parameter.shape))
            with checkpoint_in_memory(pack(named_weights(model)), folder) as weights:
                engine.update_weights(weights, version)
        expected, found = complete(reference), complete(engine)
        for number, completion in found.items():
            assert completion.version == version
            if on_gpus:
                largest = max(largest, difference(completion))
                continue
            assert completion.token_ids == expected[number].token_ids, (version, number)
            pairs = zip(completion.log_probs, expected[number].log_probs, strict=True)
            largest = max(largest, *(abs(ours - theirs) for ours, theirs in pairs))
        seen.append([completion.token_ids for _, completion in sorted(found.items())])
    assert seen[0] != seen[1], "the new weights changed nothing"
    engine.close()
    print(f"difference {largest:.2e}")


if __name__ == "__main__":
    main(sys.argv[1])
