"""The command line: one sub-command per step of the pipeline, each imported only when it is called."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from typing import Any

import click

from hgpo import __version__
from hgpo.errors import HgpoError
from hgpo.stderr import without_reader

# name of the sub-command -> "module:attribute" of its click command, and the line `hgpo --help` shows
COMMANDS: dict[str, tuple[str, str]] = {
    "config": ("hgpo.cli.config:config", "Check a configuration, print its schema or its runs."),
    "prepare-data": ("hgpo.cli.data:prepare_data", "Generate, fetch or link the data of an environment; write panels."),
    "fetch-model": ("hgpo.cli.model:fetch_model", "Fetch a model at its pinned revision and check its hashes."),
    "check-environment": ("hgpo.cli.data:check_environment", "Verify panels; the expert must win, idling must lose."),
    "panel": ("hgpo.cli.panel:panel", "Show, verify and compare task panels."),
    "env": ("hgpo.cli.env:env", "Check, time, compile and play an environment."),
    "warm-start": ("hgpo.cli.train:warm_start", "Fine-tune a base model on expert episodes of training tasks."),
    "train": ("hgpo.cli.train:train", "Train one model with one method on one environment."),
    "evaluate": ("hgpo.cli.evaluate:evaluate", "Evaluate a checkpoint: every task of a panel once per seed."),
    "advantages": ("hgpo.cli.advantages:advantages", "Compute advantages for a file of rollout steps."),
    "container": ("hgpo.cli.container:container", "Build or verify the container image."),
    "tables": ("hgpo.cli.report:tables", "Write the results tables from evaluation episodes."),
    "figures": ("hgpo.cli.report:figures", "Draw the figures from metrics and episodes."),
    "report": ("hgpo.cli.workflow:report", "Write the report of a finished experiment as one HTML file."),
    "manifest": ("hgpo.cli.results:manifest", "Record what every file and every table row was made from."),
    "verify": ("hgpo.cli.results:verify", "Check all files and recompute all tables against the manifest."),
    "compare": ("hgpo.cli.results:compare", "Compare two results side by side with tests."),
    "view": ("hgpo.cli.results:view", "Look into episodes, and into the groups of training steps, in the browser."),
    "summary": ("hgpo.cli.report:summary", "Print the results table and where everything lies."),
    "pin": ("hgpo.cli.pin:pin", "Keep data, checkpoints and episodes with DVC, and fetch them again."),
    "reproduce": ("hgpo.cli.pin:reproduce", "Derive the tables of a pinned experiment again; never trains."),
    "doctor": ("hgpo.cli.doctor:doctor", "Say what this machine has for each use, what is missing, how to get it."),
}


UNUSABLE = (PermissionError, NotADirectoryError, IsADirectoryError, FileNotFoundError)


class LazyGroup(click.Group):
    """A group whose sub-commands are imported on use, so that `hgpo --help` is instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, attribute = COMMANDS[name][0].split(":")
        return getattr(importlib.import_module(module), attribute)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="hgpo")
def cli() -> None:
    """Train and evaluate LLM agents over long horizons, from task panel to results table."""


def main(arguments: list[str] | None = None) -> Any:
    """Entry point of the `hgpo` command: expected errors become one message and an exit code, not a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may hold any bytes
    try:
        code = cli.main(args=arguments, prog_name="hgpo", standalone_mode=False)
        if type(code) is int and code:  # click returns the code of an Exit instead of raising it
            sys.exit(code)
    except click.ClickException as error:
        with without_reader():
            error.show()
        sys.exit(error.exit_code)
    except HgpoError as error:
        _say(f"hgpo: {error}", fg="red")
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _say("hgpo: interrupted; run the same command again to go on")
        sys.exit(130)
    except Exception as error:
        if (
            isinstance(error, OSError)
            and error.filename
            and (isinstance(error, UNUSABLE) or error.errno == errno.EROFS)
        ):
            _say(f"hgpo: {error.filename} cannot be used: {error.strerror}", fg="red")
            _say(f"  mend: {_mend(error)}")
            sys.exit(1)
        if isinstance(error, ModuleNotFoundError) and not (error.name or "hgpo").startswith("hgpo"):
            _say(f"hgpo: the package {error.name} is not installed", fg="red")
            _say("  mend: `hgpo doctor` (or `python -m hgpo doctor`) says how to get what is missing")
            sys.exit(1)
        if not disk_is_full(error):
            raise
        place = f" at {error.filename}" if isinstance(error, OSError) and error.filename else ""
        _say(f"hgpo: the disk or the quota is full{place}: {error}", fg="red")
        _say("  mend: free space, or set `results` and `data.directory` to a larger disk; what was")
        _say("  finished is kept, run the same command again to go on")
        sys.exit(1)


def _say(text: str, **style: Any) -> None:
    with without_reader():
        click.secho(text, err=True, **style)


def _mend(error: OSError) -> str:
    """What to do about a path that cannot be used."""
    if not isinstance(error, IsADirectoryError):
        return "check this path and its rights; what was finished is kept"
    inside = os.path.join(error.filename, "config.yaml")
    return "name a file" + (f", e.g. {inside}" if os.path.exists(inside) else " in this directory")


def disk_is_full(error: BaseException | None) -> bool:
    """Whether an error, or one that it came from, says that there is no space; libraries wrap it in their own."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT)):
            return True
        error = error.__cause__ or error.__context__
    return False
