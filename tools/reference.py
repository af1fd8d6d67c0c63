"""Writes the parts of the documentation that follow from the code: docs/cli.md, and every key in docs/configuration.md.

usage: python tools/reference.py
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from hgpo.cli import cli
from hgpo.config import Config
from hgpo.config.base import Settings

ROOT = Path(__file__).resolve().parent.parent
MARK = "<!-- What follows is made by tools/reference.py from src/hgpo/config; `make docs` renews it. -->"
ENTRY = re.compile(r"^([a-z]\w*(?:, [a-z]\w*)*): ")


def main() -> None:
    (ROOT / "docs/cli.md").write_text(cli_page(), encoding="utf-8")
    page = ROOT / "docs/configuration.md"
    page.write_text(configuration_page(page.read_text(encoding="utf-8")), encoding="utf-8")


# The command line


def cli_page() -> str:
    """The page of all commands and options, from click."""
    head = "# Commands\n\nMade by `tools/reference.py` from the commands; `hgpo COMMAND --help` says the same.\n"
    return head + "".join(_command(path, command) for path, command in _commands(("hgpo",), cli))


def _commands(path: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (inner := command.get_command(context, name)) is not None:
                yield from _commands((*path, name), inner)


def _command(path: tuple[str, ...], command: click.Command) -> str:
    name = " ".join(path)
    context = click.Context(command, info_name=name, max_content_width=110)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    text = f"\n{'#' * min(len(path) + 1, 3)} {name}\n\n```text\n{usage}\n```\n\n{_help(command.help or '')}"
    parameters = [p for p in command.get_params(context) if isinstance(p, click.Option)]
    options = [record for p in parameters if (record := p.get_help_record(context))]
    rows = [
        f"| `{flag.replace('|', '/')}` | {_cell(meaning)} |" for flag, meaning in options if not flag.endswith("--help")
    ]
    return text + ("\n| option | |\n|---|---|\n" + "\n".join(rows) + "\n" if rows else "")


def _help(text: str) -> str:
    """The help text of a command as Markdown: what click keeps as it is (after `\\b`) becomes a code block."""
    parts = []
    for part in inspect.cleandoc(text).split("\n\n"):
        parts.append(f"```text\n{part[1:].strip()}\n```" if part.startswith("\b") else " ".join(part.split()))
    return "\n\n".join(parts) + "\n"


# The configuration


def configuration_page(page: str) -> str:
    """The page with its generated part, below `MARK`, made anew."""
    sections = "".join(_section(model, places) for model, places in _sections().items())
    return f"{page.partition(MARK)[0].rstrip()}\n\n{MARK}\n\n## Every key\n\n{sections.strip()}\n"


def _sections() -> dict[type[Settings], list[str]]:
    """Each class of settings with the places where it stands, in the order of the configuration."""
    found: dict[type[Settings], list[str]] = {}

    def visit(model: type[Settings], place: str) -> None:
        found.setdefault(model, []).append(place)
        for name, field in model.model_fields.items():
            for inner in _settings_in(field.annotation):
                several = getattr(field.annotation, "__origin__", None) is dict
                visit(inner, f"{place}.{name}".lstrip(".") + (".<name>" if several else ""))

    visit(Config, "")
    return found


def _settings_in(annotation: Any) -> list[type[Settings]]:
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _settings_in(argument)]


def _section(model: type[Settings], places: list[str]) -> str:
    meanings = _meanings(model)
    missing = [name for name in model.model_fields if name not in meanings]
    if missing:
        raise SystemExit(f"{model.__name__}: its docstring does not say what {', '.join(missing)} mean")
    title = ", ".join(f"`{place}`" for place in places) if places != [""] else "Top level"
    lines = [f"### {title}", "", _introduction(model), "", "| key | meaning | allowed | default |", "|---|---|---|---|"]
    allowed = model.model_json_schema()["properties"]
    for name, field in model.model_fields.items():
        lines.append(f"| `{name}` | {_cell(meanings[name])} | {_cell(_allowed(allowed[name]))} | {_default(field)} |")
    return "\n".join(lines) + "\n\n"


def _documented(model: type[Settings]) -> list[str]:
    """The docstrings of the class and of the settings it extends, the class's own first."""
    own = [m for m in model.__mro__ if issubclass(m, Settings) and m is not Settings]
    return [inspect.cleandoc(m.__doc__ or "") for m in own]


def _introduction(model: type[Settings]) -> str:
    return " ".join(_documented(model)[0].split("\n\n")[0].split())


def _meanings(model: type[Settings]) -> dict[str, str]:
    """Key -> meaning, from docstring entries `key, key: meaning`, whose further lines are indented."""
    found: dict[str, str] = {}
    for text in _documented(model):
        keys: list[str] = []
        for line in text.splitlines():
            if entry := ENTRY.match(line):
                keys = entry[1].split(", ")
                found |= {key: line[entry.end() :] for key in keys if key not in found}
            elif line.startswith("    "):
                found |= {key: f"{found[key]} {line.strip()}" for key in keys}
            else:
                keys = []
    return found


def _allowed(schema: dict[str, Any]) -> str:
    """What a JSON schema accepts, in words."""
    if "anyOf" in schema:
        return " or ".join(_allowed(option) for option in schema["anyOf"])
    if "$ref" in schema:
        return "a section"
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        inner = schema.get("items") or (schema.get("prefixItems") or [{}])[0]
        return f"list of: {_allowed(inner)}"
    if schema.get("type") == "object":
        inner = next(iter(schema.get("patternProperties", {}).values()), schema.get("additionalProperties"))
        return f"names, each with: {_allowed(inner)}" if isinstance(inner, dict) else "keys and values"
    words = {"integer": "whole number", "number": "number", "boolean": "`true`, `false`", "null": "`null`"}
    kind = words.get(schema.get("type", ""), "text")
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {schema[key]:g}" for key, sign in signs.items() if key in schema]
    return f"{kind} {', '.join(bounds)}".strip()


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is PydanticUndefined or isinstance(value, BaseModel):
        return "see there"
    if value is None:
        return ""
    text = json.dumps(value) if not isinstance(value, str) else value
    return f"`{text}`"


def _cell(text: str) -> str:
    """The text on one line of a table: a bar would end the cell, `<name>` outside of code would be read as HTML."""
    parts = " ".join(text.split()).replace("|", "/").split("`")
    return "`".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts))


if __name__ == "__main__":
    main()
