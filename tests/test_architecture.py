"""Packages import in one direction only: the line data flows along, from panel to table."""

from __future__ import annotations

import ast
from pathlib import Path

import hgpo

ORDER = [
    "errors",
    "files",
    "stderr",
    "progress",
    "streams",
    "versions",
    "advantages",
    "agent",
    "config",
    "tasks",
    "envs",
    "rollout",
    "training",
    "evaluation",
    "reporting",
    "provenance",
    "cli",
]
ROOT = Path(hgpo.__file__).parent


def imported(file: Path) -> set[str]:
    """The parts of hgpo that a module imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{file}: relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    parts = {name.split(".")[1] for name in names if name.startswith("hgpo.")}
    return {part for part in parts if not part.startswith("__")}


def test_every_part_has_its_place_in_the_order():
    parts = {p.stem for p in ROOT.iterdir() if (p.is_dir() and (p / "__init__.py").exists()) or p.suffix == ".py"}
    assert parts - {"__init__", "__main__"} == set(ORDER)


def test_no_part_imports_from_a_later_one():
    wrong = []
    for file in sorted(ROOT.rglob("*.py")):
        own = file.relative_to(ROOT).parts[0].removesuffix(".py")
        if own in ORDER:
            for part in sorted(imported(file)):
                if ORDER.index(part) > ORDER.index(own):
                    wrong.append(f"{file.relative_to(ROOT)} imports hgpo.{part}")
    assert not wrong, "\n".join(wrong)
