"""Checks the columns of a batch of steps and lays them out for the estimators.

Strings (and every other key) become dense integers once, here. The estimators see the steps trajectory by
trajectory, in time, whatever the order of the rows was.
"""

from __future__ import annotations

import numbers
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np

from hgpo.errors import DataError

KEY_COLUMNS = ("task", "trajectory", "state", "action", "agent")
NUMBER_COLUMNS = ("reward", "value")
COLUMNS = (*KEY_COLUMNS, *NUMBER_COLUMNS, "invalid")


class Steps:
    """A batch of n steps, ordered by trajectory and, within one, by time.

    A trajectory is one pair (task, trajectory); the order of its rows is time. All arrays have shape (n,):

    order: int64, the row of each step in the columns given.
    task, trajectory, state, action, agent: int64, dense codes from 0.
    time: int64, index of the step in its trajectory. left: int64, number of steps after it.
    reward, value: float64. invalid: bool.

    Raises DataError naming column and row for anything missing, of mixed types or not finite.
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = columns
        self._check_lengths()
        tasks, _ = self._keys("task")
        names, n_names = self._keys("trajectory")
        trajectories, self.n_trajectories = dense(tasks * n_names + names)
        self.order = np.argsort(trajectories, kind="stable")
        self.trajectory = trajectories[self.order]
        lengths = np.bincount(self.trajectory, minlength=self.n_trajectories)
        ends = np.cumsum(lengths)
        self.first = ends - lengths  # position of the first step of each trajectory
        self.time = np.arange(self.n) - self.first[self.trajectory]
        self.left = lengths[self.trajectory] - 1 - self.time
        self.task = tasks[self.order]
        self.n_tasks = int(tasks.max(initial=-1)) + 1

    def __len__(self) -> int:
        return self.n

    def has(self, name: str) -> bool:
        return self._columns.get(name) is not None

    def require(self, name: str, user: str) -> None:
        """Raises DataError if column `name`, which `user` needs, is missing."""
        if not self.has(name):
            raise DataError(self._missing(name), f"give every row the column {name!r}, needed by {user}")

    def rows(self, values: np.ndarray) -> np.ndarray:
        """`values` of the steps, shape (n,), in the order of the rows given."""
        out = np.empty_like(values)
        out[self.order] = values
        return out

    @cached_property
    def state(self) -> np.ndarray:
        return self._keys("state")[0][self.order]

    @cached_property
    def action(self) -> np.ndarray:
        return self._keys("action")[0][self.order]

    @cached_property
    def agent(self) -> np.ndarray:
        return self._keys("agent")[0][self.order]

    @cached_property
    def reward(self) -> np.ndarray:
        return self._numbers("reward")[self.order]

    @cached_property
    def value(self) -> np.ndarray:
        return self._numbers("value")[self.order]

    @cached_property
    def invalid(self) -> np.ndarray:
        if not self.has("invalid"):
            return np.zeros(self.n, dtype=bool)
        return self._flags("invalid")[self.order]

    def texts(self, name: str) -> np.ndarray:
        """The values of key column `name` as they were given, shape (n,), object."""
        values = np.empty(self.n, dtype=object)
        values[:] = _plain(self._column(name))
        return values[self.order]

    def _column(self, name: str) -> Any:
        if not self.has(name):
            raise DataError(self._missing(name), "every row is one step with task, trajectory and reward")
        return self._columns[name]

    def _missing(self, name: str) -> str:
        return f"column {name!r} is missing; the columns are {', '.join(map(str, self._columns)) or 'none'}"

    def _check_lengths(self) -> None:
        lengths = {}
        for name in COLUMNS:
            if not self.has(name):
                continue
            column = self._columns[name]
            if isinstance(column, str | bytes) or not hasattr(column, "__len__") or getattr(column, "ndim", 1) != 1:
                raise DataError(f"column {name!r}: expected one value a step in a list or a one-dimensional array")
            lengths[name] = len(column)
        for name in ("task", "trajectory", "reward"):
            self._column(name)
        self.n = lengths["task"]
        for name, length in lengths.items():
            if length != self.n:
                raise DataError(f"column {name!r} has {length} rows, column 'task' has {self.n}")

    def _keys(self, name: str) -> tuple[np.ndarray, int]:
        return intern(self._column(name), name)

    def _numbers(self, name: str) -> np.ndarray:
        column = self._column(name)
        if not (isinstance(column, np.ndarray) and column.dtype.kind in "iufb"):
            column = _plain(column)
            _check_types(column, name, allowed=("number", "flag"))
        values = np.asarray(column, dtype=np.float64)
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            raise _wrong(name, row, f"{values[row]} is not a finite number")
        return values + 0.0  # -0.0 becomes 0.0, so that no sign of a zero depends on what it is added to

    def _flags(self, name: str) -> np.ndarray:
        column = self._column(name)
        if isinstance(column, np.ndarray) and column.dtype == bool:
            return column
        values = self._numbers(name)
        wrong = (values != 0) & (values != 1)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise _wrong(name, row, f"{values[row]:g} is neither true nor false")
        return values == 1


def intern(column: Any, name: str) -> tuple[np.ndarray, int]:
    """Dense integer codes of the values of a key column, and how many there are.

    Equal values get equal codes, numbered by first appearance; no result may depend on the numbering.
    Numeric arrays, Arrow arrays and sequences of hashable values of one type are accepted.
    """
    if hasattr(column, "dictionary_encode"):
        return _intern_arrow(column, name)
    if isinstance(column, np.ndarray) and column.dtype.kind in "iub":
        unique, codes = np.unique(column, return_inverse=True)
        return codes.astype(np.int64, copy=False), len(unique)
    values = _plain(column)
    index: defaultdict[Any, int] = defaultdict(count().__next__)
    try:
        codes = np.fromiter(map(index.__getitem__, values), dtype=np.int64, count=len(values))
    except TypeError:
        row = next(row for row, value in enumerate(values) if not _hashable(value))
        raise _wrong(name, row, f"a {type(values[row]).__name__} cannot be compared", "give states as text") from None
    if set(map(type, index)) != {str}:  # text equals nothing but text; other values can be equal across types
        _check_types(values, name)
    return codes, len(index)


def dense(keys: np.ndarray) -> tuple[np.ndarray, int]:
    """Codes 0, 1, ... of integer keys >= 0 in ascending order of the keys, shape (n,), and how many there are.

    Keys from a range not much larger than n are looked up in a table; others are sorted, together with their position
    in the low bits where 63 bits are enough for both.
    """
    n = len(keys)
    if not n:
        return np.empty(0, dtype=np.int64), 0
    largest, bits = int(keys.max()), n.bit_length()
    if largest <= 16 * n:
        table = np.zeros(largest + 1, dtype=bool)
        table[keys] = True
        rank = np.cumsum(table, dtype=np.int32 if largest < 2**31 - 1 else np.int64)
        return rank[keys].astype(np.int64) - 1, int(rank[-1])
    if largest.bit_length() + bits > 63:
        unique, codes = np.unique(keys, return_inverse=True)
        return codes.astype(np.int64, copy=False), len(unique)
    packed = keys.astype(np.int64) << bits
    packed |= np.arange(n)
    packed.sort()
    positions = packed & ((1 << bits) - 1)
    packed >>= bits
    rank = np.zeros(n, dtype=np.int64)
    np.cumsum(packed[1:] != packed[:-1], out=rank[1:])
    codes = np.empty(n, dtype=np.int64)
    codes[positions] = rank
    return codes, int(rank[-1]) + 1


def _intern_arrow(column: Any, name: str) -> tuple[np.ndarray, int]:
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise _wrong(name, row, "the value is missing")
    encoded = column.dictionary_encode()
    chunks = encoded.unify_dictionaries().chunks if hasattr(encoded, "chunks") else [encoded]
    if not len(column):
        return np.empty(0, dtype=np.int64), 0
    codes = np.concatenate([chunk.indices.to_numpy(zero_copy_only=False) for chunk in chunks])
    return codes.astype(np.int64), len(chunks[0].dictionary)


def _plain(column: Any) -> Sequence[Any]:
    """The column as a list or tuple of Python values."""
    if isinstance(column, list | tuple):
        return column
    for convert in ("to_pylist", "tolist"):
        if hasattr(column, convert):
            return getattr(column, convert)()
    return list(column)


def _check_types(values: Sequence[Any], name: str, allowed: tuple[str, ...] = ()) -> None:
    """All values of one kind, none missing; with `allowed`, of one of these kinds (which may mix)."""
    kinds = {kind: _kind(kind) for kind in set(map(type, values))}
    if allowed:
        if set(kinds.values()) <= set(allowed):
            return
        row = next(row for row, value in enumerate(values) if kinds[type(value)] not in allowed)
        raise _wrong(name, row, _missing(values[row]) or f"{values[row]!r} is not a number")
    if "nothing" in kinds.values():
        raise _wrong(name, values.index(None), "the value is missing")
    if len(set(kinds.values())) > 1:
        expected = kinds[type(values[0])]
        row = next(row for row, value in enumerate(values) if kinds[type(value)] != expected)
        raise _wrong(name, row, f"mixed types: {values[row]!r} is a {kinds[type(values[row])]}, row 0 a {expected}")
    if float in kinds and any(value != value for value in values):
        row = next(row for row, value in enumerate(values) if value != value)
        raise _wrong(name, row, "nan is equal to nothing")


def _kind(kind: type) -> str:
    if issubclass(kind, str):
        return "text"
    if issubclass(kind, bool | np.bool_):
        return "flag"
    if issubclass(kind, numbers.Real):
        return "number"
    return "nothing" if kind is type(None) else kind.__name__


def _missing(value: Any) -> str:
    return "the value is missing" if value is None else ""


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _wrong(column: str, row: int, problem: str, hint: str | None = None) -> DataError:
    return DataError(f"column {column!r}, row {row} (counted from 0): {problem}", hint)
