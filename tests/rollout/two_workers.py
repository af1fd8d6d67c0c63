"""A vLLM engine of two workers (tensor parallel), in a process of its own: vLLM keeps one state a process.

usage: python two_workers.py FOLDER: of a checkpoint. Prints the largest difference in log-probability to the
transformers engine, of equal greedy tokens, for the checkpoint's weights and for others that were given later.
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
        for number in range(6):
            prompt = tokenizer.encode("goal: open the door at place 2\n" * (1 + number % 3))
            engine.submit(Request(number, prompt, 100 + number, 12, 0.0))
        done = {}
        while len(done) < 6:
            done |= {completion.id: completion for completion in engine.poll()}
        return done

    model, tokenizer = load_policy(folder)
    engine = VllmEngine(folder, Engine(kind="vllm", tensor_parallel=2), "float32", 256, 16, tokenizer.eos_token_id)
    reference = TransformersEngine(model, tokenizer.eos_token_id, tokenizer.pad_token_id)
    largest, seen = 0.0, []
    for version in range(2):
        if version:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.linspace(-0.3, 0.3, parameter.numel()).reshape(parameter.shape))
            with checkpoint_in_memory(pack(named_weights(model)), folder) as weights:
                engine.update_weights(weights, version)
        expected, found = complete(reference), complete(engine)
        for number, completion in found.items():
            assert completion.token_ids == expected[number].token_ids, (version, number)
            assert completion.version == version
            pairs = zip(completion.log_probs, expected[number].log_probs, strict=True)
            largest = max(largest, *(abs(ours - theirs) for ours, theirs in pairs))
        seen.append([completion.token_ids for _, completion in sorted(found.items())])
    assert seen[0] != seen[1], "the new weights changed nothing"
    engine.close()
    print(f"difference {largest:.2e}")


if __name__ == "__main__":
    main(sys.argv[1])
