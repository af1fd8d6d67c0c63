"""vLLM with CUDA graphs reads long prompts beside responses under way, in a process of its own.

usage: python whole_steps.py [--untold]. Prints, for the response where it is largest, the mean difference in
log-probability to the learner's of the same tokens. Most prompts make steps of 457 to 576 tokens: vLLM captures these
as 64 queries of 8 or 9 tokens, which FlashAttention 3 computes in smaller tiles than a prompt. With `--untold` its
attention is captured as it is, without being told how long a query may be: to see that these prompts show it.
"""

from __future__ import annotations

import sys
import tempfile
from types import ModuleType

LENGTHS = (500, 1500, 560, 90, 480, 1900, 540, 120)
TOKENS, CONTEXT = 24, 2048


def main(untold: bool) -> None:
    import numpy as np
    import torch

    from hgpo.config.experiment import EmbeddedModel
    from hgpo.config.machinery import Engine
    from hgpo.rollout.engines import Request
    from hgpo.rollout.policy import load_policy, save_policy
    from hgpo.rollout.vllm_engine import VllmEngine
    from hgpo.training.batches import Row, make_batch
    from hgpo.training.embedded import build_model, train_tokenizer
    from hgpo.training.loss import response_log_probs

    if untold:
        sys.modules["hgpo.rollout.hopper_attention"] = ModuleType("nothing")
    on_gpu = torch.cuda.is_available()
    dtype, device = ("bfloat16", "cuda") if on_gpu else ("float32", "cpu")
    shape = {"hidden_size": 768, "layers": 4, "heads": 6, "key_value_heads": 1, "intermediate_size": 768}
    settings = EmbeddedModel(**shape, vocabulary=320, context=CONTEXT, initializer_range=0.02)
    tokenizer = train_tokenizer(["goal: open the door at place 2\n", "<action>go right</action>"] * 8, 320)
    draw = np.random.default_rng(0)
    prompts = [draw.integers(10, len(tokenizer), length).tolist() for length in LENGTHS]
    with tempfile.TemporaryDirectory() as folder:
        save_policy(build_model(settings, tokenizer, 0).eval(), tokenizer, f"{folder}/start")
        model, tokenizer = load_policy(f"{folder}/start", dtype, device=device)
        small = {"gpu_memory": 0.05, "cache_gb": 1, "sleep": False}
        engine = VllmEngine(f"{folder}/start", Engine(kind="vllm", **small), dtype, CONTEXT, 64, tokenizer.eos_token_id)
    done = []
    for number, prompt in enumerate(prompts):
        engine.submit(Request(number, prompt, number, TOKENS, 1.0))
        for _ in range(TOKENS // 2):
            done += engine.poll()
    while len(done) < len(prompts):
        done += engine.poll()
    gaps = []
    for completion in done:
        batch = make_batch([Row(prompts[completion.id], completion.token_ids)], 0, model.device)
        with torch.no_grad():
            said = response_log_probs(model, batch, 1.0, "no")[0].cpu().numpy()
        gaps.append(float(np.abs(said - completion.log_probs).mean()))
    engine.close()
    print("gaps", *(f"{gap:.4f}" for gap in gaps))
    print(f"largest {max(gaps):.4f}")


if __name__ == "__main__":
    main("--untold" in sys.argv)
