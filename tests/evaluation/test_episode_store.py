from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_results import make_config, make_episode, make_evaluation, make_panels, metadata, panel_of
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo.config import Run, load_config
from hgpo.errors import DataError
from hgpo.evaluation.store import KEY, EpisodeStore, load_episodes, load_steps, read_metadata, steps_path
from hgpo.rollout.episode import Episode

RUN = Run("tiny", "alfworld", "hgpo", 2, 0)
SEEDS = (123, 456)


@pytest.fixture
def config(tmp_path):
    loaded = load_config(make_config(tmp_path))
    make_panels(loaded, "alfworld", 12)
    return loaded


def played(config, run=RUN, split="in_domain", seed=123):
    return [make_episode(run, task, split, seed) for task in panel_of(config, run, split).tasks]


def open_store(config, path, **changes):
    return EpisodeStore(path, metadata(config, RUN, "in_domain", 123) | changes)


def evaluate_all(config, runs=(RUN,), seeds=SEEDS, splits=("in_domain",)):
    return [make_evaluation(config, run, split, seed) for run in runs for split in splits for seed in seeds]


def rewrite(path, rows=None, **changes):
    """Replaces rows or metadata of a table behind the store's back."""
    table = pq.read_table(path)
    new = read_metadata(path) | changes
    made = pa.Table.from_pylist(rows if rows is not None else table.to_pylist(), schema=table.schema)
    pq.write_table(made.replace_schema_metadata({KEY: json.dumps(new).encode()}), path)


def test_episodes_and_steps_come_back_as_they_were(config):
    (path,) = evaluate_all(config, seeds=(123,))
    frame = load_episodes([path]).frame.sort_values("task").reset_index(drop=True)
    expected = sorted(played(config), key=lambda episode: episode.task)
    for column, wanted in (
        ("task", [e.task for e in expected]),
        ("won", [e.won for e in expected]),
        ("steps", [len(e.steps) for e in expected]),
        ("invalid_actions", [sum(s.invalid for s in e.steps) for e in expected]),
    ):
        assert frame[column].tolist() == wanted
    assert set(frame["method"]) == {"hgpo"} and set(frame["evaluation_seed"]) == {123}
    steps = load_steps(path)
    assert len(steps) == sum(len(e.steps) for e in expected)
    assert steps["think"].iloc[0] == expected[0].steps[0].think


def test_an_interrupted_evaluation_goes_on_to_the_same_table(config, tmp_path):
    episodes, whole, parted = played(config), tmp_path / "whole.parquet", tmp_path / "parted.parquet"
    store = open_store(config, whole)
    store.append(episodes, wall_s=1.0)
    store.finish()
    first = open_store(config, parted)
    first.append(episodes[7:], wall_s=1.0)
    again = open_store(config, parted)
    assert again.done == {e.task for e in episodes[7:]}
    again.append([e for e in episodes if e.task not in again.done], wall_s=1.0)
    again.finish()
    assert pq.read_table(whole).equals(pq.read_table(parted))
    assert pq.read_table(steps_path(whole)).equals(pq.read_table(steps_path(parted)))
    assert not again.parts.exists()
    assert open_store(config, parted).finished


@settings(max_examples=8, deadline=None)
@given(st.permutations(range(6)), st.integers(1, 6))
def test_the_table_does_not_depend_on_the_order_of_play(tmp_path_factory, order, cut):
    folder = tmp_path_factory.mktemp("store")
    loaded = load_config(make_config(folder))
    make_panels(loaded, "alfworld", 6)
    episodes = played(loaded)
    tables = []
    for name, parts in (("plain", [episodes]), ("mixed", [[episodes[i] for i in order[:cut]], []])):
        store = open_store(loaded, folder / f"{name}.parquet")
        for part in [p for p in parts if p]:
            store.append(part, wall_s=2.0)
        rest = [e for e in episodes if e.task not in store.done]
        if rest:
            store.append(rest, wall_s=2.0)
        store.finish()
        tables.append(pq.read_table(folder / f"{name}.parquet"))
    assert tables[0].equals(tables[1])


def test_nothing_is_left_where_the_table_should_be_before_it_is_complete(config, tmp_path):
    store = open_store(config, tmp_path / "e.parquet")
    store.append(played(config)[:-1], wall_s=1.0)
    with pytest.raises(DataError, match="11 of 12 tasks"):
        store.finish()
    assert not (tmp_path / "e.parquet").exists()


def test_an_episode_is_kept_once(config, tmp_path):
    store, episodes = open_store(config, tmp_path / "e.parquet"), played(config)
    store.append(episodes[:3], wall_s=1.0)
    with pytest.raises(DataError, match="already there"):
        store.append(episodes[2:4], wall_s=1.0)
    assert len(store.done) == 3


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"checkpoint_hash": "f" * 64}, "checkpoint_hash: "),
        ({"panel_hash": "e" * 64}, "panel_hash: .* there, eeeeeeeeeeee here"),
        ({"sampling": {"temperature": 1.0, "max_tokens": 64}}, "sampling.temperature: 0.4 there, 1.0 here"),
        ({"prompt": {"template": "other"}}, "prompt.template: alfworld-v1 there, other here"),
    ],
)
def test_another_evaluation_is_not_resumed(config, tmp_path, finished, change, said):
    path = tmp_path / "e.parquet"
    store = open_store(config, path)
    store.append(played(config), wall_s=1.0)
    if finished:
        store.finish()
    with pytest.raises(DataError, match=said):
        open_store(config, path, **change)


def test_other_packages_or_commit_do_not_stop_a_resume(config, tmp_path):
    open_store(config, tmp_path / "e.parquet").append(played(config)[:2], wall_s=1.0)
    assert len(open_store(config, tmp_path / "e.parquet", commit="1" * 40).done) == 2


def test_a_broken_part_is_named(config, tmp_path):
    store = open_store(config, tmp_path / "e.parquet")
    store.append(played(config)[:2], wall_s=1.0)
    part = next(store.parts.glob("0*.json"))
    part.write_text(part.read_text()[:-20])
    with pytest.raises(DataError, match=part.name):
        open_store(config, tmp_path / "e.parquet")


def test_no_table_at_all():
    with pytest.raises(DataError, match="no evaluation episodes"):
        load_episodes([])


def test_a_missing_table(tmp_path):
    with pytest.raises(DataError, match="no episodes at"):
        load_episodes([tmp_path / "seed1.parquet"])


@pytest.mark.parametrize(
    "content", [lambda c: c[:-100], lambda c: c[: len(c) // 2], lambda _: b"not a table", lambda _: b""]
)
def test_a_corrupt_table(config, content):
    (path,) = evaluate_all(config, seeds=(123,))
    path.write_bytes(content(path.read_bytes()))
    with pytest.raises(DataError, match=f"{path.name} is not a readable Parquet file"):
        load_episodes([path])


OUTCOME = ["task", "task_type", "rollout", "won", "score", "failed", "steps", "reward", "invalid_actions", "wall_s"]


def test_a_changed_byte_never_changes_an_outcome(config):
    (path,) = evaluate_all(config, seeds=(123,))
    content, whole = path.read_bytes(), load_episodes([path]).frame
    refused = 0
    for place in range(0, len(content), len(content) // 100):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        try:
            frame = load_episodes([path]).frame
        except DataError as error:
            assert path.name in error.message
            refused += 1
        else:  # a byte that no table depends on, or one of the file's place; `hgpo verify` and `load_results` find it
            pd.testing.assert_frame_equal(frame[OUTCOME], whole[OUTCOME])
    assert refused > 50


def test_a_table_that_does_not_name_its_run(config):
    (path,) = evaluate_all(config, seeds=(123,))
    run = {key: value for key, value in vars(RUN).items() if key != "history"}
    rewrite(path, run=run)
    with pytest.raises(DataError, match="metadata lack run.history"):
        load_episodes([path])


def test_a_table_of_something_else(config, tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="does not say what was evaluated"):
        load_episodes([tmp_path / "x.parquet"])


def test_duplicated_episodes(config):
    (path,) = evaluate_all(config, seeds=(123,))
    rows = pq.read_table(path).to_pylist()
    rewrite(path, [*rows[:-1], rows[0]])
    with pytest.raises(DataError, match="1 duplicated episodes"):
        load_episodes([path])


def test_episodes_are_missing(config):
    (path,) = evaluate_all(config, seeds=(123,))
    rewrite(path, pq.read_table(path).to_pylist()[1:])
    with pytest.raises(DataError, match="11 episodes for a panel of 12 tasks"):
        load_episodes([path])


@pytest.mark.parametrize(
    ("change", "said"),
    [({"sampling": {"temperature": 1.0, "max_tokens": 64}}, "sampling"), ({"prompt": {"template": "other"}}, "prompt")],
)
def test_methods_that_were_asked_in_different_ways_are_not_compared(config, change, said):
    paths = evaluate_all(config)
    others = [make_evaluation(config, Run("tiny", "alfworld", "grpo", 2, 0), "in_domain", seed) for seed in SEEDS]
    assert len(load_episodes([*paths, *others]).files) == 4
    for path in others:
        rewrite(path, **change)
    with pytest.raises(DataError, match=f"different evaluations of alfworld are mixed: {said} is"):
        load_episodes([*paths, *others])


def test_models_may_differ_in_precision(config):
    paths = evaluate_all(config)
    for path in paths:
        sampling = json.loads(pq.read_schema(path).metadata[KEY])["sampling"]
        rewrite(path, sampling=sampling | {"dtype": "bfloat16"})
    others = [make_evaluation(config, Run("tiny", "alfworld", "grpo", 2, 0), "in_domain", seed) for seed in SEEDS]
    assert len(load_episodes([*paths, *others]).files) == 4


def test_a_missing_seed(config):
    paths = evaluate_all(config)
    with pytest.raises(DataError, match="evaluation seed 456 is missing"):
        load_episodes(paths[:1], evaluation_seeds=SEEDS)
    other = make_evaluation(config, Run("tiny", "alfworld", "grpo", 2, 0), "in_domain", 123)
    with pytest.raises(DataError, match="grpo K2 in_domain training seed 0: evaluation seed 456 is missing"):
        load_episodes([*paths, other])


def test_an_unknown_seed(config):
    with pytest.raises(DataError, match="unknown seed 456"):
        load_episodes(evaluate_all(config), evaluation_seeds=[123])


def test_the_same_seed_twice(config, tmp_path):
    (path,) = evaluate_all(config, seeds=(123,))
    shutil.copy(path, tmp_path / "seed999.parquet")
    with pytest.raises(DataError, match="evaluation seed 123 occurs twice"):
        load_episodes([path, tmp_path / "seed999.parquet"])


def test_another_panel(config):
    paths = evaluate_all(config)
    with pytest.raises(DataError, match="played on another panel"):
        load_episodes(paths, panels={"alfworld/in_domain": panel_of(config, RUN, "out_of_domain")})
    rewrite(paths[1], panel_hash="a" * 64)
    with pytest.raises(DataError, match="mixed: panel_hash is aaaaaaaaaaaa"):
        load_episodes(paths)


def test_tasks_that_the_panel_does_not_hold(config):
    (path,) = evaluate_all(config, seeds=(123,))
    rows = pq.read_table(path).to_pylist()
    rows[0]["task"] = "valid_seen/stranger"
    rewrite(path, rows)
    with pytest.raises(DataError, match="not those of the panel"):
        load_episodes([path], panels={"alfworld/in_domain": panel_of(config, RUN, "in_domain")})


def test_another_checkpoint_in_the_same_run(config):
    paths = evaluate_all(config)
    rewrite(paths[1], checkpoint_hash="b" * 64)
    with pytest.raises(DataError, match="mixed: checkpoint_hash is bbbbbbbbbbbb"):
        load_episodes(paths)


def test_training_seeds_evaluated_unevenly(config):
    runs = [RUN, Run("tiny", "alfworld", "hgpo", 2, 1)]
    paths = evaluate_all(config, runs)
    paths += evaluate_all(config, runs[:1], splits=("out_of_domain",))
    with pytest.raises(DataError, match="training seed 1 was not evaluated on out_of_domain"):
        load_episodes(paths)


def test_steps_of_another_evaluation(config):
    one, other = evaluate_all(config)
    shutil.copy(steps_path(other), steps_path(one))
    with pytest.raises(DataError, match="evaluation_seed: 456 there, 123 here"):
        load_steps(one)


def test_hostile_text_survives(config, tmp_path):
    episodes = played(config)
    text = "<script>alert(1)</script>\x00\u202e\ud83d\ude00 ’ 汉字 \n"
    episodes[0].steps[0].completion = text.encode("utf-16", "surrogatepass").decode("utf-16")
    store = open_store(config, tmp_path / "e.parquet")
    store.append(episodes, wall_s=0.1)
    store.finish()
    assert episodes[0].steps[0].completion in set(load_steps(tmp_path / "e.parquet")["completion"])


def test_an_episode_without_steps(config, tmp_path):
    episodes = played(config)
    episodes[0] = Episode(episodes[0].task, episodes[0].task_type, 0, "goal", failed="worker died")
    store = open_store(config, tmp_path / "e.parquet")
    store.append(episodes, wall_s=0.1)
    store.finish()
    frame = load_episodes([tmp_path / "e.parquet"]).frame.set_index("task")
    assert frame.loc[episodes[0].task, "failed"] == "worker died"


def test_metadata_must_say_what_it_is(tmp_path: Path):
    with pytest.raises(DataError, match="need run, split"):
        EpisodeStore(tmp_path / "e.parquet", {"panel": "x", "panel_hash": "y"})
