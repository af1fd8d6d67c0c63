from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo.errors import ConfigError, DataError
from hgpo.tasks import Panel, Task, build_panel, draw_tasks, load_panel, merge_panels, panel_path, save_panel


def tasks(count, prefix="task"):
    return [
        Task(f"{prefix}-{i:03d}", f"type {i % 3}", hashlib.sha256(f"{prefix}{i}".encode()).hexdigest(), f"goal {i}")
        for i in range(count)
    ]


@given(st.permutations(tasks(12)), st.integers(0, 2**31))
def test_a_panel_does_not_depend_on_the_order_in_which_tasks_are_listed(listed, seed):
    assert build_panel("e", "train", listed, seed) == build_panel("e", "train", tasks(12), seed)


def test_a_panel_holds_each_task_once_in_an_order_of_its_seed():
    one, other = (build_panel("e", "train", tasks(50), seed) for seed in (0, 1))
    assert sorted(one.tasks, key=lambda t: t.id) == tasks(50) and one.tasks != other.tasks
    assert one.hash != other.hash
    assert build_panel("e", "train", tasks(50), 0, limit=7).tasks == one.tasks[:7]
    with pytest.raises(DataError, match="'task-003' occurs twice"):
        build_panel("e", "train", [*tasks(5), tasks(5)[3]], 0)


def test_a_panel_hash_covers_order_content_and_origin():
    panel = build_panel("e", "train", tasks(5), 0)
    swapped = Panel("e", "train", 0, (panel.tasks[1], panel.tasks[0], *panel.tasks[2:]))
    renamed = Panel("e", "test", 0, panel.tasks)
    changed = Panel("e", "train", 0, (Task(panel.tasks[0].id, "t", "f" * 64), *panel.tasks[1:]))
    assert len({panel.hash, swapped.hash, renamed.hash, changed.hash}) == 4


def test_a_panel_file_is_read_back_and_guards_itself(tmp_path):
    panel = build_panel("e", "train", tasks(5), 0)
    path = panel_path(tmp_path, "train")
    save_panel(panel, path)
    assert load_panel(path) == panel
    body = json.loads(path.read_text())
    body["tasks"].reverse()
    path.write_text(json.dumps(body))
    with pytest.raises(DataError, match="was changed after it was written"):
        load_panel(path)
    path.write_text(path.read_text()[:50])
    with pytest.raises(DataError, match="cannot be read"):
        load_panel(path)
    path.unlink()
    with pytest.raises(DataError, match="prepare-data"):
        load_panel(path)


def test_merged_panels_hold_all_tasks_of_their_parts():
    parts = [build_panel("e", name, tasks(9, name), 4) for name in ("train", "eval")]
    merged = merge_panels("all", parts)
    assert set(merged.tasks) == {task for part in parts for task in part.tasks}
    assert merged == merge_panels("all", parts[::-1]) and merged.seed == 4


PANEL = build_panel("e", "train", tasks(10), 0)


@given(st.integers(0, 100), st.integers(0, 40), st.integers(1, 10))
def test_a_draw_depends_on_seed_and_iteration_alone(seed, iteration, count):
    drawn = draw_tasks(PANEL, seed, iteration, count)
    assert len(drawn) == count
    assert drawn == draw_tasks(PANEL, seed, iteration, count)


@given(st.integers(0, 100), st.integers(1, 10), st.integers(0, 12), st.integers(1, 8))
def test_a_resumed_run_draws_what_an_unbroken_one_draws(seed, count, resume_at, more):
    unbroken = [draw_tasks(PANEL, seed, i, count) for i in range(resume_at + more)]
    assert [draw_tasks(PANEL, seed, i, count) for i in range(resume_at, resume_at + more)] == unbroken[resume_at:]


@given(st.integers(0, 100), st.integers(1, 10))
def test_every_task_comes_once_before_any_comes_again(seed, count):
    drawn = [task.id for i in range(40) for task in draw_tasks(PANEL, seed, i, count)]
    for start in range(0, len(drawn) - 9, 10):
        assert len(set(drawn[start : start + 10])) == 10


@given(st.integers(0, 100), st.integers(0, 60), st.integers(1, 10))
def test_no_task_comes_twice_in_an_iteration(seed, iteration, count):
    """Their episodes would be taken for one trajectory, with the same random numbers."""
    assert len({task.id for task in draw_tasks(PANEL, seed, iteration, count)}) == count


def test_more_tasks_than_there_are_cannot_be_drawn():
    with pytest.raises(ConfigError, match="needs 11 tasks, but the panel e/train has 10"):
        draw_tasks(PANEL, 0, 0, 11)


@given(st.sampled_from([1, 2, 5]), st.integers(0, 20), st.permutations(tasks(10)))
def test_any_number_of_workers_shares_the_same_draw(workers, iteration, listed):
    """Workers that each take every W-th task of the draw, from folders listed in any order."""
    panel = build_panel("e", "train", listed, 0)
    shares = [draw_tasks(panel, 3, iteration, 8)[worker::workers] for worker in range(workers)]
    assert sorted(t.id for share in shares for t in share) == sorted(t.id for t in draw_tasks(PANEL, 3, iteration, 8))


def test_seeds_and_iterations_draw_differently():
    draws = {tuple(draw_tasks(PANEL, seed, 0, 10)) for seed in range(20)}
    epochs = {tuple(draw_tasks(PANEL, 0, iteration, 10)) for iteration in range(20)}
    assert len(draws) == len(epochs) == 20


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from test_panels import tasks
from hgpo.tasks import build_panel, draw_tasks
panel = build_panel("e", "train", set(tasks(30)), 5)
print(panel.hash, *(task.id for task in draw_tasks(panel, 7, 3, 12)))
"""


def test_panels_and_draws_do_not_depend_on_the_hash_seed():
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(Path(__file__).parent)],
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1 and "task-" in outputs.pop()


def test_draws_stay_what_they_were():
    """A change here changes every experiment: results of older versions no longer compare."""
    drawn = draw_tasks(PANEL, 0, 0, 4)
    assert PANEL.hash.startswith(HASH)
    assert [task.id for task in drawn] == DRAWN


HASH = "34295a9773bcb2c3"
DRAWN = ["task-001", "task-005", "task-007", "task-008"]
