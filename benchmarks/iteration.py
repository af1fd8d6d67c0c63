"""Times training iterations on real ALFWorld games with a model of a given size and random weights.

    python benchmarks/iteration.py --data DATA --architecture 1.5b --gpus 2 --out result.json

DATA is a folder that `hgpo prepare-data --environment alfworld` wrote. Random weights hardly ever say the end token, so
every response has `--response-tokens` tokens and every episode `--max-steps` steps: the most that a protocol can cost.
What a trained policy costs is measured, too, with `--ends FOLDER`: responses of unequal lengths, and episodes that end
after as many steps as those which `hgpo evaluate` wrote there, drawn at random; a lost one at `--max-steps`.
With `--gpus` above 1 or `--ray`, learner ranks (DeepSpeed) and engine replicas share the GPUs as Ray actors. `--cpu`
places them in CPU processes instead: to try a command, with `--architecture tiny`.

Parts, each through the code that training runs; one that fails is recorded and the others go on:
  engine      128 x (1000 + 128) tokens through the engine, beside the bare library on the same requests (one GPU)
  steady      the engine alone, with as many requests open all the time as `--shape` says: each that is completed is
              followed by another, as in a rollout whose environments take no time
  learner     log-probabilities and updates of mini-batches of 256 x 1128 tokens, beside bare forward and backward
              passes of 16 x 1128 tokens; updates of 256 rows of unequal lengths, one after the other (one GPU)
  iteration   whole iterations, after one of `--warm-up-steps` steps: rollout, advantages, old and reference
              log-probabilities, update, weight sync; with `--ends` one more
  rollout     rollouts of `--lockstep-steps` steps, `--turns` times, after one of one step, which loads the games
  lockstep    the same rollouts of `--lockstep-steps` steps by turns: asynchronous as training has them, and with every
              turn waiting for the slowest environment and completion; with responses of one length (`equal`), of
              lengths as training shows (`unequal`, see SPREAD), and these in episodes of up to `--max-steps` steps
              that end as `--ends` has it (`ends`)
  thread      the same rollouts with the engine in its own thread and in the caller's, three times each (one GPU)
  sync        the time of a weight update in each way that this placement has (`engine.sync`)
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import torch

from hgpo.config import Config, Run
from hgpo.config.experiment import parse_config
from hgpo.envs import environment_factory, open_environment
from hgpo.envs.panels import verified_panel
from hgpo.envs.pool import Pool
from hgpo.evaluation.store import read_episodes
from hgpo.rollout.engine_thread import EngineThread
from hgpo.rollout.engines import Completion, Request
from hgpo.rollout.policy import save_policy
from hgpo.tasks import Task
from hgpo.training import loop
from hgpo.training.batches import Row
from hgpo.training.checkpoint import Progress
from hgpo.training.embedded import train_tokenizer
from hgpo.training.journal import Journal
from hgpo.training.learner import Sample
from hgpo.training.loop import Trainer, jobs_of
from hgpo.training.machines import Machines, open_machines
from hgpo.training.metrics import Clock
from hgpo.training.plan import Plan, make_plan
from hgpo.training.probe import check_gap
from hgpo.training.scores import Scores
from hgpo.training.signals import StopSignal
from hgpo.training.warm_start import make_start
from hgpo.versions import hardware, package_versions

# hidden size, intermediate size, layers, heads, key-value heads, vocabulary, tied: of Qwen2.5 and SmolLM2
ARCHITECTURES = {
    "tiny": (64, 128, 2, 2, 1, 2000, True),
    "135m": (576, 1536, 30, 9, 3, 49152, True),
    "0.5b": (896, 4864, 24, 14, 2, 151936, True),
    "1.5b": (1536, 8960, 28, 12, 2, 151936, True),
    "7b": (3584, 18944, 28, 28, 4, 152064, False),
}
# Unequal lengths are log-normal with this standard deviation of the logarithm around the mean of `--response-tokens`,
# cut at four times that. With 128: half of them below 109, one in a hundred above 400, 0.3 % cut at 512, the protocol's
# limit. A published log of GiGPO with Qwen2.5-1.5B-Instruct on WebShop, 16 x 8 episodes an iteration, has means of 108
# to 138, shortest ones of 4 to 66, and 0 to 0.8 % cut at 512 (floatingstarZ/verl-agent on GitHub, log of 31 May 2026).
SPREAD = 0.56
LIMIT = 4
CASES = ("equal", "unequal", "ends")
PARTS = ("engine", "steady", "learner", "iteration", "rollout", "lockstep", "thread", "sync")
RUN = Run("model", "alfworld", "hgpo", 2, 0)


class Lengths:
    """An engine that makes responses of given lengths: all of `tokens`, or each drawn by its request's seed."""

    def __init__(self, engine: Any, tokens: int, uneven: bool) -> None:
        self.inner, self.static, self._tokens = engine, engine.static, tokens
        self._uneven = NormalDist(math.log(tokens) - SPREAD**2 / 2, SPREAD) if uneven else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def submit(self, request: Request) -> None:
        tokens = self._tokens
        if self._uneven:
            drawn = math.exp(self._uneven.inv_cdf((request.seed % 2**20 + 0.5) / 2**20))
            tokens = min(max(round(drawn), 1), LIMIT * tokens)
        self.inner.submit(replace(request, max_tokens=tokens))


class LockStep:
    """An engine that is given every turn's prompts at once, and completes all of them before it gives anything back.

    Being static, it is asked only after all environments have answered.
    """

    static = True

    def __init__(self, engine: Any) -> None:
        self.inner = engine
        self._requests: list[Request] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def submit(self, request: Request) -> None:
        self._requests.append(request)

    def poll(self) -> list[Completion]:
        requests, self._requests = self._requests, []
        for request in requests:
            self.inner.submit(request)
        done: list[Completion] = []
        while len(done) < len(requests):
            done += self.inner.poll()
        return done

    def clear(self) -> None:
        self.inner.clear()
        self._requests = []


class Ending:
    """Environments whose episodes end after a number of steps drawn from `steps` by the episode's number alone."""

    def __init__(self, pool: Any, steps: np.ndarray) -> None:
        self.inner = pool
        self._ends = np.random.default_rng(0).choice(steps, 4096)
        self._taken: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def submit(self, episode: int, request: Task | str) -> None:
        self._taken[episode] = 0 if isinstance(request, Task) else self._taken[episode] + 1
        self.inner.submit(episode, request)

    def ready(self, timeout: float | None) -> list[tuple[int, Any]]:
        answers = self.inner.ready(timeout=timeout)
        return [(n, replace(a, done=True) if self._taken[n] >= self._ends[n] else a) for n, a in answers]


def steps_of(folder: Path, most: int) -> np.ndarray:
    """Steps of the episodes under a folder of evaluations; `most` where lost."""
    files = sorted(f for f in folder.rglob("*.parquet") if not f.name.endswith(".steps.parquet"))
    if not files:
        raise SystemExit(f"{folder}: no episodes; name a folder in which `hgpo evaluate` wrote some")
    episodes = pd.concat([read_episodes(file)[0] for file in files])
    return np.where(episodes.won, np.minimum(episodes.steps, most), most)


class Phases(Clock):
    """A clock that says when a phase has ended: what was reached is seen even if the iteration does not end."""

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        with super().__call__(phase):
            yield
        print(f"  {phase}: {time.perf_counter() - begin:.1f} s", flush=True)


class Report:
    """What was measured, printed as it comes and written to a file after every part."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._path: Path | None = options.out
        self.result: dict[str, Any] = {"options": {k: str(v) for k, v in vars(options).items()}, "machine": machine()}

    def add(self, part: str, numbers: dict[str, Any]) -> None:
        self.result[part] = numbers
        print(f"\n{part}")
        for key, value in numbers.items():
            print(f"  {key:40s} {value:,.3f}" if isinstance(value, int | float) else f"  {key:40s} {value}", flush=True)
        if self._path:
            self._path.write_text(json.dumps(self.result, indent=2) + "\n")

    def measure(self, part: str, work: Callable[[], dict[str, Any]]) -> None:
        """Adds what `work` measures, or the error that it ends with."""
        try:
            self.add(part, work())
        except Exception as error:
            traceback.print_exc()
            self.add(part, {"error": f"{type(error).__name__}: {error}"})


def main() -> None:
    options = read_options()
    report = Report(options)
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        begin = time.perf_counter()
        plan = make_plan(prepare(options, Path(scratch)), RUN)
        prepared = time.perf_counter()
        with open_machines(plan, None, 0) as machines:
            opened = time.perf_counter()
            report.add("start", {"weights_s": prepared - begin, "engine_and_learner_s": opened - prepared})
            if "engine" in options.parts:
                report.measure("engine", lambda: time_engine(machines, options))
            if "steady" in options.parts:
                report.measure("steady", lambda: time_steady(machines, options))
            if "learner" in options.parts:
                report.measure("learner", lambda: time_learner(machines, options))
            time_training(plan, machines, options, report)
    print("\n" + json.dumps(report.result))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--architecture", choices=ARCHITECTURES, default="1.5b")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="CPU processes in the place of GPUs")
    parser.add_argument("--engine", choices=["transformers", "vllm"], default="vllm")
    parser.add_argument("--parts", nargs="+", default=None, choices=PARTS, help="default: all that the placement has")
    parser.add_argument("--learner", choices=["torch", "deepspeed"], help="default: deepspeed on several GPUs")
    parser.add_argument("--zero-stage", type=int, default=2)
    parser.add_argument("--offload", action="store_true", help="optimizer state in host memory")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--compile", action="store_true", help="learner.compile")
    parser.add_argument("--sync", choices=["reload", "ipc", "nccl"], default="reload", help="engine.sync, several GPUs")
    parser.add_argument("--separate", action="store_true", help="half of the GPUs for engines, half for learner ranks")
    parser.add_argument("--mps", action="store_true", help="placement.mps")
    parser.add_argument("--old-log-probs", choices=["recompute", "engine", "corrected"], default="recompute")
    parser.add_argument("--ray", action="store_true", help="Ray actors also on one GPU, each a process of its own")
    parser.add_argument("--replicas", type=int, help="engines in all; default: one on each GPU")
    parser.add_argument("--cache-gb", type=int, help="engine.cache_gb: needed for several engines on a GPU")
    parser.add_argument("--engine-arguments", type=json.loads, default={}, help="engine.arguments, as JSON")
    parser.add_argument("--gpu-memory", type=float, default=0.4)
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--max-steps", type=int, default=50)
    parser.add_argument("--warm-up-steps", type=int, default=2)
    parser.add_argument("--lockstep-steps", type=int, default=10)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["equal", "unequal"], help="of the part lockstep")
    parser.add_argument("--turns", type=int, default=2, help="of asynchronous and lock-step rollouts")
    parser.add_argument("--prompt-tokens", type=int, default=2048)
    parser.add_argument("--response-tokens", type=int, default=128)
    parser.add_argument("--uneven", action="store_true", help="responses of the iterations, too, of unequal lengths")
    parser.add_argument("--ends", type=Path, help="folder of evaluated episodes, after whose steps episodes end")
    parser.add_argument("--ends-iterations", type=int, default=1, help="iterations with ends")
    parser.add_argument("--same-tasks", action="store_true", help="iterations all play the first one's tasks")
    parser.add_argument("--late", type=int, nargs="*", default=[], help="iterations whose games are not loaded ahead")
    parser.add_argument(
        "--overlap", type=int, nargs="*", default=[], help="iterations with placement.overlap; 0: the warm-up"
    )
    parser.add_argument(
        "--recompute", type=int, nargs="*", default=[], help="iterations with recomputed old log-probabilities"
    )
    parser.add_argument("--shape", type=int, nargs=3, default=[128, 1000, 128], help="requests, prompt, response")
    parser.add_argument("--iterations", type=int, default=1)
    parser.add_argument("--token-budget", type=int, default=9024, help="tokens of a micro-batch; 9,024 fit 80 GB")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--goal", type=float, default=95.0, help="seconds that an iteration should take at most")
    parser.add_argument("--scratch", type=Path, help="folder for the model's weights")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if "ends" in options.cases and not options.ends:
        parser.error("--cases ends needs --ends FOLDER")
    options.ends_iterations *= bool(options.ends)
    options.ray |= options.gpus > 1 or (options.replicas or 1) > 1
    if options.overlap and not options.ray:
        parser.error("--overlap needs --ray or several GPUs")
    if options.mps and not options.ray:
        parser.error("--mps needs --ray or several GPUs")
    if options.parts is None:
        options.parts = ["iteration", "lockstep", "sync"] if options.ray else list(PARTS)
    if options.cpu:
        torch.set_num_threads(1)
    return options


def prepare(options: argparse.Namespace, scratch: Path) -> Config:
    """Writes a checkpoint with random weights and makes it the start of a run."""
    hidden, inner, layers, heads, kv_heads, vocabulary, tied = ARCHITECTURES[options.architecture]
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = train_tokenizer(game_texts(options.data), 1500)
    shape = Qwen2Config(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    on_gpu = options.gpus > 0 and not options.cpu
    dtype = "bfloat16" if on_gpu else "float32"
    torch.manual_seed(0)
    with torch.device("cuda" if on_gpu else "cpu"):
        torch.set_default_dtype(getattr(torch, dtype))
        model = Qwen2ForCausalLM(shape)
        torch.set_default_dtype(torch.float32)
    save_policy(model, tokenizer, scratch / "base")
    del model
    if on_gpu:
        torch.cuda.empty_cache()
    ranks = options.gpus // 2 if options.separate else max(1, options.gpus)
    replicas = options.replicas or ranks
    placement = {"kind": "ray", "learner_ranks": ranks, "colocated": not options.separate, "mps": options.mps}
    config = parse_config(
        {
            "name": "benchmark",
            "results": str(scratch / "results"),
            "data": {"directory": str(options.data.parent)},
            "models": {
                "model": {
                    "source": str(scratch / "base"),
                    "dtype": dtype,
                    "gpus": options.gpus if on_gpu else 0,
                    "engine": {
                        "kind": options.engine,
                        "replicas": replicas,
                        "cache_gb": options.cache_gb,
                        "gpu_memory": options.gpu_memory,
                        "sync": options.sync,
                        "arguments": options.engine_arguments,
                    },
                    "learner": {
                        "kind": options.learner or ("deepspeed" if options.gpus > 1 else "torch"),
                        "zero_stage": options.zero_stage,
                        "offload_optimizer": options.offload and options.gpus > 1,
                        "gradient_checkpointing": options.gradient_checkpointing,
                        "compile": options.compile,
                    },
                    "placement": placement if options.ray else {},
                }
            },
            "matrix": {"models": ["model"], "environments": ["alfworld"], "methods": ["hgpo"], "history": [2]},
            "environments": {
                "alfworld": {
                    "max_steps": options.max_steps,
                    "evaluation_splits": {},
                    "agent": {
                        "template": "alfworld-v1",
                        "chat": False,
                        "max_prompt_tokens": options.prompt_tokens,
                        "max_response_tokens": LIMIT * options.response_tokens,  # room for unequal lengths
                    },
                }
            },
            "warm_start": {"demonstrations": 0},
            "training": {
                "iterations": options.iterations + options.ends_iterations + 2,  # the last one would save a checkpoint
                "tasks_per_iteration": options.tasks,
                "rollouts_per_task": options.rollouts,
                "token_budget": options.token_budget,
                "old_log_probs": options.old_log_probs,
                "validate_every": 0,
                "validation_tasks": 0,
                "checkpoint_every": 0,
                "environment_workers": options.workers,
            },
            "tracking": {"tensorboard": False},
        }
    )
    make_start(config, RUN.model, RUN.environment, RUN.history, RUN.start_folder(config))
    return config


def game_texts(data: Path, games: int = 8) -> list[str]:
    """Texts of some games, for a tokenizer."""
    environment = open_environment("alfworld", data)
    texts = []
    for task in verified_panel(data, "alfworld", "train").tasks[:games]:
        first = environment.reset(task)
        texts += [first.text, first.goal, *first.admissible]
        texts += [environment.step(action).text for action in first.admissible[:5]]
    environment.close()
    return texts


def time_engine(machines: Machines, options: argparse.Namespace) -> dict[str, float]:
    count, prompt, response = options.shape
    random = np.random.default_rng(0)

    def requests(first: int) -> list[Request]:
        ids = random.integers(10, 1000, (count, prompt)).tolist()
        return [Request(first + n, ids[n], first + n, response, 1.0) for n in range(count)]

    def ours(wanted: list[Request]) -> None:
        for request in wanted:
            machines.engine.submit(request)
        done = 0
        while done < len(wanted):
            done += len(machines.engine.poll())

    def bare(wanted: list[Request], **sampling: int) -> None:
        from vllm import SamplingParams

        library = machines.engine.inner._engine  # the same engine without anything of ours around it
        for request in wanted:
            parameters = SamplingParams(max_tokens=response, ignore_eos=True, **sampling)
            parameters.detokenize = False
            library.add_request(str(request.id), {"prompt_token_ids": request.prompt_ids}, parameters)
        while library.has_unfinished_requests():
            library.step()

    ours(requests(0))
    result = {"ours_s": timed(lambda: ours(requests(1000)))}
    if options.engine == "vllm":
        bare(requests(2000))
        result["bare_s"] = timed(lambda: bare(requests(3000)))
        result["bare_with_log_probs_s"] = timed(lambda: bare(requests(4000), logprobs=0))
        result["bare_with_log_probs_and_seeds_s"] = timed(lambda: bare(requests(5000), logprobs=0, seed=1))
        result["ours_again_s"] = timed(lambda: ours(requests(6000)))
        result["share_of_bare"] = 2 * result["bare_s"] / (result["ours_s"] + result["ours_again_s"])
    return result


def time_steady(machines: Machines, options: argparse.Namespace, rounds: int = 6) -> dict[str, float]:
    """Tokens per second once the first requests, of unequal lengths, are completed, and until the last is submitted."""
    count, prompt, response = options.shape
    random = np.random.default_rng(2)
    lengths = random.integers(1, response, count, endpoint=True).tolist() + [response] * (rounds * count)
    waiting = [
        Request(n, random.integers(10, 1000, prompt).tolist(), n, length, 1.0) for n, length in enumerate(lengths)
    ][::-1]
    for _ in range(count):
        machines.engine.submit(waiting.pop())
    tokens, done, begin = 0, 0, 0.0
    while waiting:
        for completion in machines.engine.poll():
            done += 1
            if done > count:
                tokens += len(completion.token_ids)
            elif done == count:
                begin = time.perf_counter()
            if waiting:
                machines.engine.submit(waiting.pop())
    seconds = time.perf_counter() - begin
    machines.engine.clear()
    return {
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "ms_per_token_of_each": 1000 * count * seconds / tokens,
    }


def time_learner(machines: Machines, options: argparse.Namespace) -> dict[str, float]:
    machines.engine.sleep()
    _, prompt, response = options.shape
    count, repeats = 16, 16
    random = np.random.default_rng(1)
    rows = [
        Row(random.integers(10, 1000, prompt).tolist(), random.integers(10, 1000, response).tolist())
        for _ in range(count * repeats)
    ]
    learner = machines.learner
    model, device = learner.model, learner.device
    ids = torch.tensor([row.prompt_ids + row.response_ids for row in rows[:count]], device=device)
    tokens = ids.numel() * repeats

    @torch.no_grad()
    def bare_forward() -> None:
        for _ in range(repeats):
            model.lm_head(model.model(input_ids=ids, use_cache=False).last_hidden_state[:, prompt - 1 : -1])

    def bare_both() -> None:
        model.train()
        for _ in range(repeats):
            hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, prompt - 1 : -1]
            logits = model.lm_head(hidden).float()
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, prompt:].flatten()).backward()
        model.zero_grad()
        model.eval()

    guess = np.full(response, -10.0, np.float32)
    samples = [Sample(row, 1.0, guess, guess) for row in rows]
    result = {}
    for name, work in {
        "bare_forward": bare_forward,
        "ours_log_probs": lambda: learner.log_probs(rows),
        "bare_forward_backward": bare_both,
        "ours_update": lambda: learner.update(samples, 0, 0),
    }.items():
        work()
        result[f"{name}_tokens_per_s"] = tokens / timed(work)
    result["log_probs_share_of_bare"] = result["ours_log_probs_tokens_per_s"] / result["bare_forward_tokens_per_s"]
    both = result["bare_forward_backward_tokens_per_s"]
    result["update_share_of_bare"] = result["ours_update_tokens_per_s"] / both
    for number in range(4):  # mini-batches of unequal rows, none as long as in one before
        lengths = random.normal(prompt, prompt / 7, len(rows)).clip(prompt / 2, 2 * prompt).astype(int)
        uneven = [Row(random.integers(10, 1000, length).tolist(), rows[0].response_ids) for length in lengths]
        seconds = timed(lambda r=uneven: learner.update([Sample(row, 1.0, guess, guess) for row in r], 0, 0))
        result[f"ours_update_unequal_{number}_tokens_per_s"] = sum(map(len, uneven)) / seconds
    machines.engine.update_weights(learner, machines.engine.version)
    return result


def time_training(plan: Plan, machines: Machines, options: argparse.Namespace, report: Report) -> None:
    """Iterations and rollouts; the same environment workers serve all of them."""
    if not {"iteration", "rollout", "lockstep", "thread", "sync"} & set(options.parts):
        return
    factory = environment_factory(RUN.environment, plan.config.data_folder(RUN.environment))
    with Pool(factory, workers=options.workers, group_size=options.rollouts) as pool:
        loop.Clock = Phases  # type: ignore[misc]
        trainer = Trainer(plan, machines, pool, Progress(), StopSignal(), Journal(plan.folder / "train.log"))
        if "iteration" in options.parts:
            expect = pool.expect
            again = [job.task for job in jobs_of(plan, 1)]
            ahead = (lambda tasks: expect(again)) if options.same_tasks else expect
            planned = [("warm-up", options.warm_up_steps, options.uneven, None)]
            planned += [
                (f"iteration {n + 1}", options.max_steps, options.uneven, None) for n in range(options.iterations)
            ]
            planned += [
                (f"iteration {n + 1}, ends", options.max_steps, True, options.ends)
                for n in range(options.iterations, options.iterations + options.ends_iterations)
            ]
            for number, (name, steps, uneven, ends) in enumerate(planned):
                late = number + 1 in options.late  # an iteration's games are loaded while the learner of the last works
                pool.expect = list if late else ahead  # type: ignore[method-assign,assignment]
                with_steps(trainer, steps, uneven, options, ends)
                overlap = number in options.overlap
                old = "recompute" if number in options.recompute else options.old_log_probs
                with_scores(trainer, overlap, old)
                name += ", overlap" * overlap + ", recompute" * (old != options.old_log_probs)
                drawn = min(number, 1) if options.same_tasks else number
                report.measure(name, lambda n=drawn: time_iteration(trainer, n, options))
        if "rollout" in options.parts:
            report.measure("rollouts", lambda: time_rollouts(trainer, options))
        if "lockstep" in options.parts:
            for case in options.cases:
                report.measure(f"rollout, {case}", lambda c=case: time_lockstep(trainer, c, options))
        if "thread" in options.parts and isinstance(machines.engine, EngineThread):
            report.measure("threads", lambda: time_threads(trainer, options))
        if "sync" in options.parts:
            ways = {options.sync, "reload"} if hasattr(machines.engine, "sync") else {"in place"}
            for way in sorted(ways):
                report.measure(f"sync, {way}", lambda w=way: time_sync(trainer, w))


def with_steps(
    trainer: Trainer, steps: int, uneven: bool, options: argparse.Namespace, ends: Path | None = None
) -> None:
    """Lets the trainer's episodes end after so many steps, or before as those in a folder do, with responses of equal
    or unequal lengths."""
    trainer.collector.pool = Ending(trainer.pool, steps_of(ends, steps)) if ends else trainer.pool  # type: ignore[assignment]
    trainer.collector.protocol = trainer.plan.protocol.model_copy(update={"max_steps": steps})
    trainer.collector.engine = Lengths(trainer.machines.engine, options.response_tokens, uneven)


def with_scores(trainer: Trainer, overlap: bool, old_log_probs: str) -> None:
    """Lets the trainer compute scores beside the rollout or after it, and take old log-probabilities from there."""
    plan = trainer.plan
    model = plan.model.model_copy(update={"placement": plan.model.placement.model_copy(update={"overlap": overlap})})
    training = plan.training.model_copy(update={"old_log_probs": old_log_probs})
    trainer.plan = replace(plan, model=model, training=training)


def time_iteration(trainer: Trainer, number: int, options: argparse.Namespace) -> dict[str, Any]:
    line = trainer.iterate(number)
    written = json.loads((trainer.plan.folder / "metrics.jsonl").read_text().splitlines()[-1])
    kept = ("time/", "memory/", "engine/", "tokens_per_s", "padding_share", "log_prob_gap", "sync_gap", "steps")
    kept += ("prompt_tokens", "response_tokens", "episodes", "loss/", "gradient_norm")
    numbers: dict[str, Any] = {k: v for k, v in written.items() if k.startswith(kept)}
    steps = line["episodes"] * line["steps"]
    tokens = steps * (line["prompt_tokens"] + line["response_tokens"])
    numbers["rollout/response_tokens_per_s"] = steps * line["response_tokens"] / numbers["time/rollout"]
    numbers["rollout/steps_per_s"] = steps / numbers["time/rollout"]
    for phase in ("old_log_probs", "reference_log_probs", "update"):
        if numbers.get(f"time/{phase}", 0) > 0.01:
            numbers[f"learner/{phase}_tokens_per_s"] = tokens / numbers[f"time/{phase}"]
    total = numbers["time/total"]
    numbers["goal"] = f"iteration of {total:.1f} s <= {options.goal:g} s: {'yes' if total <= options.goal else 'no'}"
    return numbers


def time_rollouts(trainer: Trainer, options: argparse.Namespace) -> dict[str, Any]:
    with_steps(trainer, 1, options.uneven, options)
    play(trainer)
    with_steps(trainer, options.lockstep_steps, options.uneven, options, options.ends)
    numbers: dict[str, Any] = {}
    for number in range(options.turns):
        numbers |= play_anew(trainer, f"rollout_{number}")
        numbers[f"rollout_{number}_completions"] = trainer.collector.statistics.completions
    return numbers


def time_lockstep(trainer: Trainer, case: str, options: argparse.Namespace) -> dict[str, Any]:
    """The same episodes by turns, each time without prompts cached before, after one step, which loads the games."""
    collector = trainer.collector
    uneven = case != "equal"
    with_steps(trainer, 1, uneven, options)
    play(trainer)
    ends = options.ends if case == "ends" else None
    with_steps(trainer, options.max_steps if ends else options.lockstep_steps, uneven, options, ends)
    engine = collector.engine
    numbers: dict[str, Any] = {}
    seconds = {"lockstep": 0.0, "asynchronous": 0.0}
    for number in range(options.turns):
        ways = [("lockstep", LockStep(engine)), ("asynchronous", engine)]
        for name, used in ways[:: -1 if number % 2 else 1]:
            collector.engine = used
            numbers |= play_anew(trainer, f"{name}_{number}")
            seconds[name] += numbers[f"{name}_{number}_s"]
    numbers["ratio"] = seconds["lockstep"] / seconds["asynchronous"]
    return numbers


def play_anew(trainer: Trainer, name: str) -> dict[str, float]:
    """Seconds and busy share of a rollout without prompts cached before."""
    engine = trainer.machines.engine
    engine.sleep()
    engine.update_weights(trainer.machines.learner, engine.version)  # forgets cached prompts
    return {f"{name}_s": timed(lambda: play(trainer)), f"{name}_busy_share": busy_share(trainer)}


def play(trainer: Trainer) -> None:
    trainer._collect(90, Scores({}), Clock())


def time_threads(trainer: Trainer, options: argparse.Namespace) -> dict[str, Any]:
    """The same episodes by turns, after one that loads the games."""
    engine = trainer.machines.engine
    numbers: dict[str, Any] = {}
    for number in range(-1, 3):
        for name, used in (("own_thread", engine), ("callers_thread", engine.inner)):
            with_steps(trainer, options.lockstep_steps, False, options)
            trainer.collector.engine = Lengths(used, options.response_tokens, False)
            seconds = timed(lambda: play(trainer))
            if number >= 0:
                numbers |= {f"{name}_{number}_s": seconds, f"{name}_{number}_busy_share": busy_share(trainer)}
    return numbers


def busy_share(trainer: Trainer) -> float:
    statistics = trainer.collector.statistics
    return statistics.engine_s / statistics.total_s


def time_sync(trainer: Trainer, way: str) -> dict[str, Any]:
    """Sleep, weight update and probe, twice each."""
    machines: Any = trainer.machines
    numbers: dict[str, Any] = {}
    if way != "in place":
        machines.engine.sync = way
    rows = [Row(list(range(10, 90)), [11])]
    for number in range(2):
        machines.engine.sleep()
        version = machines.engine.version + 1
        numbers[f"update_{number}_s"] = timed(lambda v=version: machines.engine.update_weights(machines.learner, v))
        gap = check_gap(machines, trainer.plan.model.engine, 1.0, rows, version)
        numbers[f"gap_{number}"] = gap.get("sync_gap", 0.0)
    return numbers


def timed(work: Callable[[], Any]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def machine() -> dict[str, Any]:
    cards = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    packages = package_versions() | {"torch": torch.__version__}
    return {"cards": cards, "processor": hardware()["processor"], "packages": packages}


if __name__ == "__main__":
    main()
