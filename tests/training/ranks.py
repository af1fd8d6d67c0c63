"""One rank of a DeepSpeed learner and critic in a process of its own, on the one GPU that it sees, else on the CPU.

usage: python ranks.py RANK RANKS PORT STAGE DTYPE FOLDER OFFLOAD
STAGE: of ZeRO; -1: the plain learner and critic, each rank with everything.
OFFLOAD: 1 keeps the optimizer in host memory, and with stage 3 the weights.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch

RANK, RANKS, PORT, STAGE, DTYPE, FOLDER, OFFLOAD = sys.argv[1:]
os.environ |= {"RANK": RANK, "WORLD_SIZE": RANKS, "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": PORT}
os.environ["OMP_NUM_THREADS"] = "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["DS_ACCELERATOR"] = "cpu"


def main() -> None:
    from hgpo.config import Training
    from hgpo.config.machinery import Critic as CriticSettings
    from hgpo.config.machinery import Learner as Settings
    from hgpo.errors import CheckpointError
    from hgpo.rollout.policy import load_policy
    from hgpo.training.batches import Row
    from hgpo.training.critic import Critic
    from hgpo.training.learner import Learner, Sample

    folder, stage = Path(FOLDER), int(STAGE)
    torch.set_num_threads(1)
    _, tokenizer = load_policy(folder / "start", DTYPE)
    training = Training(token_budget=60, learning_rate=1e-3, mini_batch_steps=5, max_gradient_norm=0.5)

    offload = OFFLOAD == "1"
    sharding = {"offload_optimizer": offload, "offload_weights": offload and stage == 3}
    machinery = Settings(kind="deepspeed", zero_stage=stage, **sharding) if stage >= 0 else Settings()

    def make() -> Learner:
        policy, _ = load_policy(folder / "start", DTYPE, DEVICE)
        reference, _ = load_policy(folder / "start", DTYPE, DEVICE)
        if stage < 0:
            return Learner(policy, training, 0, Settings(), reference, tokenizer)
        return DeepSpeedLearner(policy, training, 0, machinery, reference, tokenizer)

    def make_critic() -> Critic:
        policy, _ = load_policy(folder / "start", DTYPE, DEVICE)
        arguments = (policy, CriticSettings(learning_rate=1e-2, epochs=2), 60, 0.5, 0, machinery)
        if stage < 0:
            return Critic(*arguments)
        from hgpo.training.on_ranks import DeepSpeedCritic

        return DeepSpeedCritic(*arguments)

    if stage >= 0:
        from hgpo.training.on_ranks import DeepSpeedLearner
    if int(RANKS) > 1:
        torch.distributed.init_process_group("gloo" if DEVICE == "cpu" else "nccl")
    random = np.random.default_rng(0)
    rows = [
        Row(random.integers(0, 300, 5 + 3 * (n % 4)).tolist(), random.integers(0, 300, 1 + n % 3).tolist())
        for n in range(9)
    ]

    def iterate(learner: Learner, iteration: int) -> dict[str, float]:
        old, reference = gathered(learner, rows), [np.full(len(row.response_ids), -5.7, np.float32) for row in rows]
        samples = [
            Sample(row, float(n % 3 - 1), o, r) for n, (row, o, r) in enumerate(zip(rows, old, reference, strict=True))
        ]
        return learner.update(samples, 0, iteration)

    def judge(critic: Critic, iteration: int) -> dict[str, float]:
        returns = np.array([0.1 * sum(row.prompt_ids) % 3 for row in rows])
        values = joined(critic, critic.share_of_values(rows))
        old = np.array([values[index] for index in range(len(rows))])
        return {"values": float(np.abs(old).mean())} | critic.update(rows, returns, old, 5, 0, iteration)

    learner = make()
    lines = [iterate(learner, 0), iterate(learner, 1)]
    name = f"{STAGE}-{DTYPE}-{RANKS}-{OFFLOAD}"
    state = folder / f"state-{name}"
    (folder / f"policy-{name}").mkdir(exist_ok=True)
    state.mkdir(exist_ok=True)
    learner.write_policy(folder / f"policy-{name}")
    learner.write_state(state)
    lines.append(iterate(learner, 2))
    learner.close()
    again = make()
    again.read_state(state)
    lines.append(iterate(again, 2))
    refused = ""
    if stage >= 0:
        other, _ = load_policy(folder / "start", DTYPE, DEVICE)
        machinery = Settings(kind="deepspeed", zero_stage=1 if stage > 1 else 2)
        again = DeepSpeedLearner(other, training, 0, machinery, other, tokenizer)
        machinery = Settings(kind="deepspeed", zero_stage=stage, **sharding)
        try:
            again.read_state(state)
        except CheckpointError as error:
            refused = str(error)
        again.close()
    critic = make_critic()
    judged = [judge(critic, 0), judge(critic, 1)]
    critic.write_state(state)
    judged.append(judge(critic, 2))
    critic = make_critic()
    critic.read_state(state)
    judged.append(judge(critic, 2))
    if RANK == "0":
        results = {"learner": lines, "critic": judged, "refused": refused}
        (folder / f"result-{name}.json").write_text(json.dumps(results))
    if int(RANKS) > 1:
        torch.distributed.destroy_process_group()
        os._exit(0)  # threads of the process group that are still there may abort an orderly end


def gathered(learner, rows) -> list[np.ndarray]:
    """The log-probabilities of all rows, brought together from the ranks."""
    all_of_them = joined(learner, learner.share_of_log_probs(rows))
    return [all_of_them[index] for index in range(len(rows))]


def joined(part_of_several, share: dict) -> dict:
    parts = [share]
    if part_of_several.ranks > 1:
        parts = [None] * part_of_several.ranks
        torch.distributed.all_gather_object(parts, share)
    return {index: values for part in parts for index, values in part.items()}


if __name__ == "__main__":
    main()
