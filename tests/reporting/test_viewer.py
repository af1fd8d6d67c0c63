from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from fake_results import make_evaluation, make_rollouts

from hgpo import advantages
from hgpo.cli.results import view
from hgpo.config import Run
from hgpo.errors import DataError
from hgpo.evaluation.store import steps_path
from hgpo.reporting.viewer.data import STEPS_IN_BLOCK, ViewerData
from hgpo.reporting.viewer.groups import columns_of, group_columns, options_of
from hgpo.reporting.viewer.site import ASSETS, make_server, write_site
from hgpo.reporting.viewer.sources import find_sources, steps_of

RUN = Run("tiny", "alfworld", "hgpo", 2, 0)


@pytest.fixture(scope="module")
def config(module_results):
    make_rollouts(module_results, RUN, 5)
    make_rollouts(module_results, Run("tiny", "alfworld", "gigpo", 2, 0), 5)
    return module_results


@pytest.fixture(scope="module")
def data(config):
    return ViewerData(config, find_sources(config), "made up")


def body(script):
    """What a data script hands to the page: (name, body)."""
    assert script.startswith("hgpoData(") and script.endswith(");\n")
    return json.loads("[" + script.removeprefix("hgpoData(").removesuffix(");\n") + "]")


def test_the_index_lists_every_episode_of_every_table(config, data):
    index = body(data.script("index"))[1]
    files = list(config.folder.glob("episodes/**/seed*[0-9].parquet"))
    evaluated = sum(pq.read_metadata(f).num_rows for f in files)
    assert len(index["episodes"]["won"]) == evaluated + 2 * 8
    assert len(index["sources"]) == len(files) + 2
    assert {len(column) for column in index["episodes"].values()} == {evaluated + 16}
    first = index["sources"].index(["evaluation", "tiny", "alfworld", "gigpo", 2, 0, "in_domain, seed 123"])
    shown = [w for s, w in zip(index["episodes"]["source"], index["episodes"]["won"], strict=True) if s == first]
    table = pd.read_parquet(Run("tiny", "alfworld", "gigpo", 2, 0).episodes(config, "in_domain", 123))
    assert sum(shown) == table["won"].sum()


def test_blocks_hold_every_step_once_and_whole_tasks(config, data):
    index = body(data.script("index"))[1]["episodes"]
    for number, source in enumerate(data.sources[:4]):
        seen = {}
        for name in (n for n in data.names() if n.startswith(f"{number}-")):
            for episode in body(data.script(name))[1]["episodes"]:
                seen[episode["row"]] = len(episode["steps"])
        mine = [i for i, s in enumerate(index["source"]) if s == number]
        assert [seen[i - mine[0]] for i in mine] == [index["steps"][i] for i in mine]
        assert sum(seen.values()) == len(steps_of(source))
        by_task = {}
        for i in mine:
            by_task.setdefault(index["task"][i], set()).add(index["block"][i])
        assert all(len(blocks) == 1 for blocks in by_task.values())


def test_every_trial_at_a_task_is_there(config):
    run = Run("tiny", "alfworld", "reflexion", 2, 0)
    path = make_evaluation(config, run, "in_domain", 123)
    data = ViewerData(config, find_sources(config, run), "trials")
    steps = pd.read_parquet(steps_path(path))
    index, (rollout, seen) = body(data.script("index"))[1]["episodes"], ({}, {})
    for name in (n for n in data.names() if n != "index"):
        for episode in body(data.script(name))[1]["episodes"]:
            rollout[episode["row"]], seen[episode["row"]] = episode["rollout"], episode
    assert sorted(seen) == list(range(12)) and max(rollout.values()) == 2 and min(rollout.values()) == 0
    for row, task in enumerate(sorted(steps["task"].unique())):
        of_task = steps[steps["task"] == task]
        lengths = of_task.groupby("trajectory").size()
        assert seen[row]["trials"] == [lengths[f"{task}#{n}"] for n in range(rollout[row] + 1)]
        assert len(seen[row]["steps"]) == index["steps"][row] == len(of_task)
    path.unlink()
    steps_path(path).unlink()


def test_long_tables_are_cut_into_blocks(config):
    run = Run("tiny", "alfworld", "hgpo", 2, 1)
    make_rollouts(config, run, 9, tasks=20, rollouts=8, steps=20)
    data = ViewerData(config, find_sources(config, run)[:1], "long")
    blocks = [n for n in data.names() if n != "index"]
    assert len(blocks) >= 20 * 8 * 20 // (STEPS_IN_BLOCK + 160)
    sizes = [sum(len(e["steps"]) for e in body(data.script(n))[1]["episodes"]) for n in blocks]
    assert sum(sizes) == 3200 and max(sizes) < STEPS_IN_BLOCK + 160
    data.sources[0].path.unlink()


def test_levels_and_weights_give_hgpos_advantage(config):
    source = next(s for s in find_sources(config) if s.run == RUN and s.kind == "training")
    steps = steps_of(source)
    found = group_columns(config, RUN, steps)
    options = options_of(config, RUN, "hgpo")
    assert options["history"] == 2
    weights = [1, 2, 3]
    for levels, advantage in zip(found["levels"], found["hgpo"], strict=True):
        assert [w for level, w in zip(levels, weights, strict=True) if level and level[2] != w] == []
        total = sum(level[1] * level[2] for level in levels if level)
        assert total / sum(weights) == pytest.approx(advantage, abs=1e-9)
    for name in ("gigpo", "grpo"):
        expected = advantages.compute(name, columns_of(steps), **options_of(config, RUN, name))
        np.testing.assert_array_equal(found[name], expected)


@pytest.mark.parametrize(
    "options",
    [
        {"history": 3, "weights": "upstream"},
        {"history": 2, "weights": "inverse_variance"},
        {"history": 2, "alpha": 0.0, "normalisation": "mean_norm", "context": "states_and_actions"},
    ],
)
def test_levels_and_weights_give_every_variants_advantage(config, monkeypatch, options):
    from hgpo.reporting.viewer import groups

    monkeypatch.setattr(groups, "options_of", lambda _c, _r, name: options if name == "hgpo" else {})
    source = next(s for s in find_sources(config) if s.run == RUN and s.kind == "training")
    found = group_columns(config, RUN, steps_of(source))
    alpha = options.get("alpha", 1.0)
    for levels, advantage in zip(found["levels"], found["hgpo"], strict=True):
        present = [level for level in levels if level]
        total, weight = sum(a * w for _, a, w in present), sum(w for *_, w in present)
        if "weights" not in options:
            weight = sum((k + 1) ** alpha for k in range(options["history"] + 1))
        assert (total / weight if weight else 0.0) == pytest.approx(advantage, rel=1e-5, abs=1e-5)


def test_members_of_a_group_share_their_context(config):
    source = next(s for s in find_sources(config) if s.run == RUN and s.kind == "training")
    steps = steps_of(source)
    levels = group_columns(config, RUN, steps)["levels"]
    states = steps.groupby("trajectory")["state"].apply(list)
    for k in range(3):
        contexts, groups = {}, {}
        for row, level in zip(steps.to_dict("records"), levels, strict=True):
            if row["step"] < k:
                assert level[k] is None
                continue
            context = (row["task"], *states[row["trajectory"]][row["step"] - k : row["step"] + 1])
            contexts.setdefault(context, []).append(level[k] and level[k][0])
            if level[k]:
                groups.setdefault(level[k][0], set()).add(context)
        assert all(len(found) == 1 for found in groups.values())
        for found in contexts.values():
            assert len(set(found)) == 1 and (found[0] is None) == (len(found) == 1)


@pytest.mark.parametrize("name", ["", "0", "0-99", "-1-0", "99999-0", "../index", "0-0/../1-0", "indexx", "²-0"])
def test_unknown_names_are_refused(data, name):
    with pytest.raises(KeyError):
        data.script(name)


def test_scripts_cannot_end_their_element(config, data):
    path = config.folder / "runs" / str(RUN) / "rollouts" / "iteration-000005.parquet"
    table = pq.read_table(path)
    hostile = "</script><script>alert(1)</script><!--\u2028"
    changed = table.set_column(
        table.column_names.index("observation"), "observation", [[hostile] * table.num_rows]
    ).replace_schema_metadata(None)
    kept = path.read_bytes()
    pq.write_table(changed, path)
    try:
        number = next(i for i, s in enumerate(data.sources) if s.path == path)
        script = ViewerData(config, data.sources, "x").script(f"{number}-0")
    finally:
        path.write_bytes(kept)
    assert "<" not in script and script.isascii()
    assert hostile in body(script)[1]["texts"]


def test_the_server_serves_the_page_and_nothing_else(data):
    server = make_server(data)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    root = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        for path in ("/", "/viewer.js", "/vendor/preact.umd.js", "/data/index.js", "/data/0-0.js"):
            with urllib.request.urlopen(root + path, timeout=30) as answer:
                assert answer.status == 200 and answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        for path in (
            "/../pyproject.toml",
            "/data/../viewer.js",
            "/%2e%2e/x",
            "/data/index.json",
            "/vendor/",
            "/data/9-9.js",
        ):
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(root + path, timeout=30)
            assert error.value.code == 404
    finally:
        server.shutdown()
        server.server_close()


def test_the_page_needs_nothing_from_elsewhere(data, tmp_path):
    write_site(data, tmp_path / "site")
    for name in ASSETS:
        text = (tmp_path / "site" / name).read_text(encoding="utf-8")
        if not name.endswith("LICENSES.txt"):
            assert "https://" not in text.replace("http://www.w3.org", "") and "//cdn" not in text
    written = {p.stem for p in (tmp_path / "site" / "data").glob("*.js")}
    assert written == set(data.names())


def test_view_writes_a_page_for_a_run_a_folder_and_a_configuration(config, tmp_path):
    runner = CliRunner()
    places = {"run": RUN.folder(config), "folder": config.folder, "config": config.folder.parent.parent / "config.yaml"}
    (config.folder / "config.yaml").write_text(places["config"].read_text())
    sizes = {}
    for name, place in places.items():
        done = runner.invoke(view, [str(place), "--static", str(tmp_path / name)], catch_exceptions=False)
        assert done.exit_code == 0 and done.output.strip().endswith("index.html")
        index = body((tmp_path / name / "data" / "index.js").read_text())[1]
        sizes[name] = len(index["sources"])
    assert sizes["folder"] == sizes["config"] > sizes["run"] == 1 + 2 * 3  # its rollouts, two splits, three seeds
    again = runner.invoke(view, [str(RUN.folder(config)), "--static", str(tmp_path / "run")], catch_exceptions=False)
    assert again.exit_code == 0


def test_view_does_not_replace_a_folder_of_something_else(config, tmp_path):
    (tmp_path / "precious").write_text("mine")
    done = CliRunner().invoke(view, [str(RUN.folder(config)), "--static", str(tmp_path)])
    assert isinstance(done.exception, DataError) and (tmp_path / "precious").exists()


def test_nothing_to_view_is_said(config):
    with pytest.raises(DataError, match="nothing to view"):
        find_sources(config, Run("tiny", "alfworld", "ppo", 2, 0))
