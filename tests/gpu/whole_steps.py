"""vLLM with CUDA graphs reads prompts beside responses under way, in a process of its own.

usage: python whole_steps.py [HEAD_SIZE] [GRAPHS]. Prints, for the response where it is largest, the mean difference in
log-probability to the learner's of the same tokens. GRAPHS: `hgpo` (as the engine has them), or, to see what these
prompts show, vLLM's mode `full` as it is, or `unsplit`, FULL with attention that is not split.

Few requests are under way, so that attention would be split, and with a head size of up to 64 FlashAttention 3 takes a
step that was captured with single tokens for one without a causal mask: for both there are prompts here.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

LENGTHS = (500, 1500, 40, 560, 90, 480, 25, 1900, 540, 120, 50)
TOKENS, CONTEXT, AT_ONCE = 24, 2048, 64


def main(head: int, graphs: str) -> None:
    import numpy as np
    import torch

    from hgpo.config.experiment import EmbeddedModel
    from hgpo.config.machinery import Engine
    from hgpo.rollout.engines import Request
    from hgpo.rollout.policy import load_policy, save_policy
    from hgpo.rollout.vllm_engine import VllmEngine, graph_sizes
    from hgpo.training.batches import Row, make_batch
    from hgpo.training.embedded import build_model, train_tokenizer
    from hgpo.training.loss import response_log_probs

    arguments: dict[str, Any] = {}
    if graphs != "hgpo":
        VllmEngine._check_further = staticmethod(lambda *_: None)  # type: ignore[method-assign]
        arguments["compilation_config"] = {
            "cudagraph_mode": "FULL",
            "cudagraph_capture_sizes": graph_sizes(AT_ONCE, CONTEXT),
        }
    if graphs == "unsplit":
        arguments["attention_config"] = {"flash_attn_max_num_splits_for_cuda_graph": 1}
    on_gpu = torch.cuda.is_available()
    dtype, device = ("bfloat16", "cuda") if on_gpu else ("float32", "cpu")
    shape = {"hidden_size": 6 * head, "layers": 4, "heads": 6, "key_value_heads": 1, "intermediate_size": 6 * head}
    settings = EmbeddedModel(**shape, vocabulary=320, context=CONTEXT, initializer_range=0.02)
    tokenizer = train_tokenizer(["goal: open the door at place 2\n", "<action>go right</action>"] * 8, 320)
    draw = np.random.default_rng(0)
    prompts = [draw.integers(10, len(tokenizer), length).tolist() for length in LENGTHS]
    with tempfile.TemporaryDirectory() as folder:
        save_policy(build_model(settings, tokenizer, 0).eval(), tokenizer, f"{folder}/start")
        model, tokenizer = load_policy(f"{folder}/start", dtype, device=device)
        small = {"gpu_memory": 0.05, "cache_gb": 1, "sleep": False, "arguments": arguments}
        engine = VllmEngine(
            f"{folder}/start", Engine(kind="vllm", **small), dtype, CONTEXT, AT_ONCE, tokenizer.eos_token_id
        )
    done = []
    for number, prompt in enumerate(prompts):
        engine.submit(Request(number, prompt, number, TOKENS, 1.0))
        for _ in range(TOKENS // 2):
            done += engine.poll()
    while len(done) < len(prompts):
        done += engine.poll()
    gaps = {}
    for completion in done:
        batch = make_batch([Row(prompts[completion.id], completion.token_ids)], 0, model.device)
        with torch.no_grad():
            said = response_log_probs(model, batch, 1.0, "no")[0].cpu().numpy()
        gaps[len(prompts[completion.id])] = float(np.abs(said - completion.log_probs).mean())
    engine.close()
    print("tokens of the prompt: gap", *(f"{length}: {gap:.4f}" for length, gap in sorted(gaps.items())))
    print(f"largest {max(gaps.values()):.4f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 128, sys.argv[2] if sys.argv[2:] else "hgpo")
