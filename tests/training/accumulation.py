"""One rank that adds up a gradient of 1 and 255 small ones, on the one GPU that it sees, else on the CPU:
`python accumulation.py RANK RANKS PORT STAGE FILE`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

RANK, RANKS, PORT, STAGE, FILE = sys.argv[1:]
os.environ |= {"RANK": RANK, "WORLD_SIZE": RANKS, "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": PORT}
os.environ["OMP_NUM_THREADS"] = "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["DS_ACCELERATOR"] = "cpu"


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(64, dtype=torch.bfloat16, device=DEVICE))

    def forward(self, factor: float) -> torch.Tensor:
        return self.weight * factor


def main() -> None:
    from hgpo.config.machinery import Learner
    from hgpo.training.sharded import Sharded

    torch.distributed.init_process_group("gloo" if DEVICE == "cpu" else "nccl")
    sharded = Sharded(Scale(), Learner(kind="deepspeed", zero_stage=int(STAGE)), 1e-6, 0.0, 1e9)
    sharded.zero_grad()
    for number in range(256):
        sharded.backward(sharded(1 / 512 if number else 1.0).float().sum(), number == 255)
    norm = sharded.step()
    if RANK == "0":
        Path(FILE).write_text(str(norm / 8))
    sharded.close()
    torch.distributed.destroy_process_group()
    os._exit(0)  # threads of the process group that are still there may abort an orderly end


if __name__ == "__main__":
    main()
