"""The code of an estimator, as a hash: runs before and after an edit of its formula are not one run."""

from __future__ import annotations

import ast
import inspect
import sys
from contextlib import suppress
from types import ModuleType

from hgpo.advantages import registry
from hgpo.files import sha256_json

PACKAGE = "hgpo.advantages."
NO_FORMULA = {PACKAGE + name for name in ("registry", "options", "columns")}


def estimator_source(name: str) -> str:
    """Hash over the code of the estimator's module and of those of its package that it computes with.

    Comments, docstrings and layout do not count: to reword them starts no training anew.
    """
    sources: dict[str, str] = {}
    _collect(sys.modules[registry.get(name).function.__module__], sources)
    return sha256_json(sources)[:16]


def _collect(module: ModuleType, sources: dict[str, str]) -> None:
    sources[module.__name__] = ""
    with suppress(OSError, TypeError):  # made without a file
        sources[module.__name__] = code_of(inspect.getsource(module))
    for value in vars(module).values():
        used = value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
        if used.startswith(PACKAGE) and used not in NO_FORMULA and used not in sources:
            _collect(sys.modules[used], sources)


def code_of(source: str) -> str:
    """The source without comments and docstrings, in one layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
