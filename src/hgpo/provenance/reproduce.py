"""The tables of a pinned experiment derived again, from its episodes or from its checkpoints; nothing is trained."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from hgpo.config import SCRIPTED, Config, plan_baselines
from hgpo.config.experiment import parse_config
from hgpo.errors import HgpoError
from hgpo.files import write_text
from hgpo.provenance.pins import contents, lay, pull

FROM_EPISODES = ("tables",)
FROM_CHECKPOINTS = ("evaluate", "tables")
COST = "cost"  # the table of wall-clock times: it never comes out the same twice


@dataclass
class Reproduction:
    """What came out: where it lies, how many tables are as pinned, and which files are not."""

    results: Path
    equal: int = 0
    differences: list[str] = field(default_factory=list)


def reproduce(name: str, folder: Path, evaluate: bool, cores: int, offline: bool = False) -> Reproduction:
    """Fetches the experiment and lets Snakemake make its tables with the allowed rules only."""
    pinned = pull(name, folder, offline)
    again = copy_of(pinned, ["checkpoints"] if evaluate else ["checkpoints", "episodes"])
    command = [sys.executable, "-m", "snakemake", "tables", "--configfile", str(again.folder / "config.yaml")]
    rules = [*FROM_CHECKPOINTS, *_scripted(again)] if evaluate else FROM_EPISODES
    command += ["--cores", str(cores), "--allowed-rules", *rules]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode != 0:
        last = "\n  ".join((result.stderr + result.stdout).strip().splitlines()[-20:])
        raise HgpoError(f"the tables of {name} could not be made again:\n  {last}", "see the log named above")
    found = Reproduction(again.folder)
    for table in sorted((pinned.folder / "tables").glob("*.csv")):
        other = again.folder / "tables" / table.name
        if table.stem == COST and evaluate:
            continue
        if other.exists() and other.read_bytes() == table.read_bytes():
            found.equal += 1
        else:
            found.differences.append(f"{other} from {table}")
    return found


def _scripted(config: Config) -> list[str]:
    """The rules of the baselines that play by rule, and what they wait for (`workflow/rules/evaluate.smk`)."""
    runs = [run for run in plan_baselines(config) if run.method in SCRIPTED]
    own = [f"evaluate_{run.method}_{run.model}_{run.environment}" for run in runs]
    return ["check_environment", *own] if own else []


def copy_of(pinned: Config, parts: list[str]) -> Config:
    """The experiment under the name NAME-again, with `parts` of the pinned one and nothing of an earlier time."""
    here = {"containers": {"enabled": False}, "dvc": {"enabled": False}}  # it runs where it was called
    body = pinned.model_dump(mode="json") | here | {"name": f"{pinned.name}-again"}
    again = parse_config(body, f"{pinned.name}-again")
    shutil.rmtree(again.folder, ignore_errors=True)
    write_text(again.folder / "config.yaml", yaml.safe_dump(body, sort_keys=False, allow_unicode=True))
    for part in parts:
        for source, place in contents(pinned, part):
            lay(source, again.folder / place)
    return again
