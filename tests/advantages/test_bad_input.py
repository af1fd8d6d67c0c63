"""Every wrong input ends in one message that names column and row, or the option."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from hgpo import advantages
from hgpo.advantages.registry import get
from hgpo.errors import ConfigError, DataError

GOOD = {
    "task": ["t"] * 3, "trajectory": [1, 1, 2], "state": ["a", "b", "a"], "reward": [0.0, 1.0, 0.0],
    "action": ["x", "y", "z"], "invalid": [False, True, False],
}  # fmt: skip

BAD_COLUMNS = [
    ({"reward": [0.0, math.nan, 0.0]}, ["'reward'", "row 1", "nan"]),
    ({"reward": np.array([0.0, 1.0, np.inf])}, ["'reward'", "row 2", "inf"]),
    ({"reward": ["0", "1", "0"]}, ["'reward'", "row 0", "not a number"]),
    ({"reward": [0.0, None, 0.0]}, ["'reward'", "row 1", "missing"]),
    ({"reward": None}, ["'reward'", "missing"]),
    ({"state": None}, ["'state'", "missing"]),
    ({"state": ["a", 2, "a"]}, ["'state'", "row 1", "mixed types"]),
    ({"state": np.array(["a", "b", 3.5], dtype=object)}, ["'state'", "row 2", "mixed types"]),
    ({"state": ["a", None, "a"]}, ["'state'", "row 1", "missing"]),
    ({"state": pa.array(["a", None, "a"])}, ["'state'", "row 1", "missing"]),
    ({"state": [["a"], ["b"], ["a"]]}, ["'state'", "row 0", "list"]),
    ({"state": [1.0, math.nan, 2.0]}, ["'state'", "row 1", "nan"]),
    ({"state": "abc"}, ["'state'", "one-dimensional"]),
    ({"task": ["t", "t"]}, ["'task'", "2", "3"]),
    ({"trajectory": [1, 1, 2, 2]}, ["'trajectory'", "4 rows"]),
    ({"invalid": [0, 2, 0]}, ["'invalid'", "row 1"]),
    ({"invalid": ["no", "yes", "no"]}, ["'invalid'", "row 0"]),
]


@pytest.mark.parametrize(("change", "named"), BAD_COLUMNS)
def test_bad_columns(change, named):
    with pytest.raises(DataError) as caught:
        advantages.compute("hgpo", GOOD | change)
    assert all(text in caught.value.message for text in named), caught.value.message


NEEDED = [(method, column) for method in advantages.methods() for column in get(method).columns]


@pytest.mark.parametrize(("method", "column"), NEEDED)
def test_columns_that_a_method_needs(method, column):
    with pytest.raises(DataError, match=f"'{column}' is missing") as caught:
        advantages.compute(method, {name: values for name, values in GOOD.items() if name != column})
    assert caught.value.hint == f"give every row the column {column!r}, needed by method {method}"


def test_contexts_of_actions_need_actions():
    with pytest.raises(DataError, match="'action' is missing.*\n.*needed by context states_and_actions"):
        advantages.compute("hgpo", GOOD | {"action": None}, context="states_and_actions")


def test_diagnostics_need_states():
    with pytest.raises(DataError, match="'state' is missing.*\n.*the column 'state', needed by the diagnostics"):
        advantages.diagnose(GOOD | {"state": None})


BAD_OPTIONS = [
    ("hgpo", {"history": -1}, ["history", "-1", ">= 0"]),
    ("hgpo", {"history": 1.5}, ["history", "1.5", "whole number"]),
    ("hgpo", {"history": True}, ["history", "True"]),
    ("hgpo", {"alpha": math.nan}, ["alpha", "nan"]),
    ("hgpo", {"alpha": 100.0, "history": 5000}, ["alpha", "history"]),
    ("hgpo", {"weights": "papers"}, ["weights", "'papers'", "inverse_variance"]),
    ("hgpo", {"base_group": "yes"}, ["base_group", "'yes'"]),
    ("hgpo", {"min_group_size": 1}, ["min_group_size", "1", ">= 2"]),
    ("gigpo", {"gamma": 1.01}, ["gamma", "1.01", "<= 1"]),
    ("gigpo", {"similarity": -0.1}, ["similarity", "-0.1"]),
    ("grpo", {"history": 2}, ["history", "unknown option", "grpo"]),
    ("grpo", {"normalization": "mean_norm"}, ["normalization", "unknown option"]),
    ("gppo", {}, ["gppo"]),
]


@pytest.mark.parametrize(("method", "options", "named"), BAD_OPTIONS)
def test_bad_options(method, options, named):
    for call in (
        lambda: advantages.compute(method, GOOD, **options),
        lambda: advantages.check_options(method, options),
    ):
        with pytest.raises(ConfigError) as caught:
            call()
        assert all(text in str(caught.value) for text in named), str(caught.value)


def test_a_misspelt_option_is_guessed():
    with pytest.raises(ConfigError, match="did you mean 'normalisation'"):
        advantages.compute("grpo", GOOD, normalization="mean_norm")


def test_arrow_columns_in_chunks_are_lists():
    chunked = {name: pa.chunked_array([values[:1], values[1:1], values[1:]]) for name, values in GOOD.items()}
    dictionaries = GOOD | {"state": pa.chunked_array([pa.array(["a"]).dictionary_encode(),
                                                      pa.array(["b", "a"]).dictionary_encode()])}  # fmt: skip
    expected = advantages.compute("hgpo", GOOD, context="states_and_actions").tolist()
    for columns in (chunked, dictionaries):
        assert advantages.compute("hgpo", columns, context="states_and_actions").tolist() == expected
