"""The estimators by name, and the check of their options.

An estimator is one module of this package with one function under `@estimator`. The modules are imported in
sorted order on first use, so adding a file adds the estimator: to `compute`, to the command line and to the tests.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import math
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from hgpo.advantages.columns import Steps
from hgpo.errors import ConfigError

Function = Callable[[Steps, Any], np.ndarray]


@dataclass(frozen=True)
class Estimator:
    """`function(steps, options)` returns a finite advantage per step, shape (n,), float64, in the layout of `steps`."""

    name: str
    options: type
    function: Function
    columns: tuple[str, ...]  # needed beyond task, trajectory and reward
    compares: str  # "task": only steps of one task are compared; "batch": statistics run over all tasks


_ESTIMATORS: dict[str, Estimator] = {}
KINDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text"}


def estimator(
    name: str, options: type, columns: tuple[str, ...] = (), compares: str = "task"
) -> Callable[[Function], Function]:
    """Declares the decorated function to be the estimator `name` with the options dataclass `options`.

    Raises ConfigError if another function has that name, or if an option was not declared with `option(...)`.
    """

    def declare(function: Function) -> Function:
        _check_declaration(name, options, function)
        _ESTIMATORS[name] = Estimator(name, options, function, columns, compares)
        return function

    return declare


def _check_declaration(name: str, options: type, function: Function) -> None:
    here = f"{function.__module__}.{function.__qualname__}"
    if name in _ESTIMATORS:
        other = _ESTIMATORS[name].function
        there = f"{other.__module__}.{other.__qualname__}"
        if there != here:  # the same again is a module loaded anew
            raise ConfigError(f"there are two estimators {name!r}: {there} and {here}", "give one of them another name")
    if "__dataclass_fields__" not in vars(options):
        raise ConfigError(
            f"estimator {name!r}: {options.__name__} is not a dataclass",
            "put @dataclass(frozen=True, kw_only=True) on it",
        )
    for field in dataclasses.fields(options):
        if "choices" not in field.metadata or type(field.default) not in KINDS:
            raise ConfigError(
                f"estimator {name!r}: {options.__name__}.{field.name} does not say what it allows",
                f"declare it with option(...) and a default that is {', '.join(KINDS.values())}",
            )


@cache
def _discover() -> None:
    package = importlib.import_module("hgpo.advantages")
    for module in sorted(info.name for info in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"hgpo.advantages.{module}")


def methods() -> list[str]:
    """Names of all estimators, sorted."""
    _discover()
    return sorted(_ESTIMATORS)


def get(method: str) -> Estimator:
    """The estimator called `method`; ConfigError if there is none."""
    if method not in methods():
        raise ConfigError(f"method: there is no estimator {method!r}", hint=f"choose one of {', '.join(methods())}")
    return _ESTIMATORS[method]


def options_of(method: str) -> type:
    """The options dataclass of `method`; each field has a default and metadata `help`, `choices`, bounds."""
    return get(method).options


def option_names(method: str) -> list[str]:
    """Names of the options of `method`, in the order of its dataclass."""
    return [field.name for field in dataclasses.fields(get(method).options)]


def check_options(method: str, options: dict[str, Any]) -> Any:
    """The options dataclass of `method` filled from `options`.

    Raises ConfigError naming the option, its value and what is allowed: unknown name, wrong type, value out of range.
    """
    fields = {field.name: field for field in dataclasses.fields(get(method).options)}
    for name in options:
        if name not in fields:
            close = difflib.get_close_matches(name, fields, 1)
            raise ConfigError(
                f"{name}: unknown option of method {method!r}",
                hint=(f"did you mean {close[0]!r}? " if close else "") + f"its options are {', '.join(fields)}",
            )
    return get(method).options(**{name: _checked(fields[name], value) for name, value in options.items()})


def _checked(field: dataclasses.Field, value: Any) -> Any:
    """`value` as the type of the option's default, within the bounds of its metadata."""
    name, kind, limits = field.name, type(field.default), field.metadata
    if isinstance(value, np.generic):
        value = value.item()
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ConfigError(f"{name}: {value!r} is not {_allowed(field)}")
    choices, low, high = limits["choices"], limits["minimum"], limits["maximum"]
    outside = (
        (choices and value not in choices)
        or (isinstance(value, float) and not math.isfinite(value))
        or (low is not None and value < low)
        or (high is not None and value > high)
    )
    if outside:
        raise ConfigError(f"{name}: {value!r} is not {_allowed(field)}")
    return value


def _allowed(field: dataclasses.Field) -> str:
    if choices := field.metadata["choices"]:
        return "one of " + ", ".join(map(repr, choices))
    kind = KINDS[type(field.default)]
    low, high = field.metadata["minimum"], field.metadata["maximum"]
    bounds = [f">= {low}"] * (low is not None) + [f"<= {high}"] * (high is not None)
    return kind + (" " + " and ".join(bounds) if bounds else "")
