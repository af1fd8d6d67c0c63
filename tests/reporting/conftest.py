import shutil
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "tools")]


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A made-up results folder; tests that change it take a copy of their own (`results`)."""
    from fake_results import make_results

    matrix = {"models": ["tiny"], "environments": ["alfworld", "webshop"], "methods": ["hgpo", "gigpo", "hgpo_flat"]}
    folder = tmp_path_factory.mktemp("made")
    matrix |= {"history": [2], "training_seeds": [0, 1]}
    return make_results(folder, 12, 2, matrix=matrix, training={"iterations": 6})


@pytest.fixture
def results(made, tmp_path):
    """The configuration of a copy of the made-up results folder."""
    return copy_of(made, tmp_path / "copy")


@pytest.fixture(scope="module")
def module_results(made, tmp_path_factory):
    """As `results`, one copy for all tests of a module."""
    return copy_of(made, tmp_path_factory.mktemp("module") / "copy")


def copy_of(made, folder):
    from hgpo.config import load_config

    root = Path(made.results).parent
    shutil.copytree(root, folder)
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace(str(root), str(folder)))
    return load_config(path)
