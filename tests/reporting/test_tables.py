from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from fake_results import make_config, make_evaluation, make_panels, make_step, make_training, metadata, panel_of

from hgpo.config import Run, load_config
from hgpo.errors import DataError
from hgpo.evaluation.baselines import Trials
from hgpo.evaluation.store import EpisodeStore
from hgpo.reporting.breakdowns import _share_bought, type_tables, webshop_table
from hgpo.reporting.build import make_tables, write_tables
from hgpo.reporting.collect import NotMeasured, load_results
from hgpo.reporting.comparisons import comparisons_table
from hgpo.reporting.paper import paper_table, reported
from hgpo.reporting.results import results_table
from hgpo.reporting.table import Table, latex, markdown, webpage, write
from hgpo.reporting.training import PHASES, ablation_table, cost_table
from hgpo.rollout.episode import Episode
from hgpo.tasks import load_panel


@pytest.fixture(scope="module")
def loaded(made):
    return load_results(made)


def test_every_number_of_the_results_table_is_that_of_the_episodes(loaded):
    data = results_table(loaded).data
    assert len(data) == 3 * 4  # in, out and test; three methods and the warm start
    for row in data.to_dict("records"):
        chosen = loaded.frame
        for key in ("model", "environment", "split", "method", "history"):
            chosen = chosen[chosen[key] == row[key]]
        by_seed = chosen.groupby(["training_seed", "evaluation_seed"])["won"].mean().unstack()
        assert row["success"] == pytest.approx(chosen["won"].mean())
        assert row["sd_evaluation_seeds"] == pytest.approx(by_seed.std(axis=1, ddof=1).mean())
        assert row["score"] == pytest.approx(chosen["score"].mean())
        assert row["steps"] == pytest.approx(chosen["steps"].mean())
        assert row["n_tasks"] == 12 and row["n_evaluation_seeds"] == 3
        assert row["n_training_seeds"] == (1 if row["method"] == "warm_start" else 2)
        assert row["n_episodes"] == len(chosen)
        assert row["low"] <= row["success"] <= row["high"]


def test_the_gain_is_the_difference_to_the_warm_start_on_the_same_tasks(loaded):
    data = results_table(loaded).data.set_index(["environment", "split", "method"])
    for (environment, split, method), row in data.iterrows():
        start = data.loc[(environment, split, "warm_start")]
        if method == "warm_start":
            assert pd.isna(row["gain"])
        else:
            assert row["gain"] == pytest.approx(row["success"] - start["success"])


def test_a_run_that_learnt_nothing_is_said_to(tmp_path):
    config = load_config(
        make_config(tmp_path, matrix={"models": ["tiny"], "environments": ["alfworld"], "methods": ["grpo"],
                                      "history": [2], "training_seeds": [0]})
    )  # fmt: skip
    make_panels(config, "alfworld", 12)
    start, run = Run("tiny", "alfworld", "warm_start", 2, 0), Run("tiny", "alfworld", "grpo", 2, 0)
    for one in (start, run):
        make_training(config, one)
        for split in ("in_domain", "out_of_domain"):
            for seed in (123, 456, 789):
                make_evaluation(config, one, split, seed)
    frame = load_results(config)
    frame.frame.loc[frame.frame["method"] == "grpo", "won"] = frame.frame.loc[
        frame.frame["method"] == "warm_start", "won"
    ].to_numpy()
    notes = " ".join(results_table(frame).notes)
    assert "No gain of grpo K=2 (tiny, alfworld, in_domain) over its warm start is shown: +0.0" in notes
    frame.frame.loc[frame.frame["method"] == "grpo", "won"] = False
    assert "grpo K=2 (tiny, alfworld, in_domain) is below its warm start" in " ".join(results_table(frame).notes)


def test_runs_without_episodes_are_named(results):
    shutil.rmtree(results.folder / "episodes" / "tiny" / "webshop" / "gigpo")
    notes = " ".join(results_table(load_results(results)).notes)
    assert "Not run: tiny/webshop/gigpo/K2/seed0, tiny/webshop/gigpo/K2/seed1." in notes


def test_a_run_that_was_evaluated_before_its_end_is_said_to_be(results):
    run = Run("tiny", "webshop", "gigpo", 2, 1)
    assert not load_results(results).unfinished
    (run.folder(results) / "finished.json").unlink()
    metrics = run.folder(results) / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:4]))
    loaded = load_results(results)
    assert loaded.unfinished == {run: 4}
    for table in (results_table(loaded), comparisons_table(loaded)):
        [note] = [note for note in table.notes if "has not finished" in note]
        assert note.startswith(str(run)) and "4 of 6 iterations" in note


def test_a_missing_training_seed_is_named(results):
    shutil.rmtree(results.folder / "episodes" / "tiny" / "webshop" / "gigpo" / "K2" / "seed1")
    assert "tiny webshop gigpo K=2: only 1 of 2 training seeds." in results_table(load_results(results)).notes


def test_a_missing_evaluation_seed_is_refused(results):
    Run("tiny", "webshop", "gigpo", 2, 1).episodes(results, "test", 456).unlink()
    with pytest.raises(DataError, match="gigpo K2 test training seed 1: evaluation seed 456 is missing"):
        load_results(results)


def test_no_episodes_are_refused(results):
    shutil.rmtree(results.folder / "episodes")
    with pytest.raises(DataError, match="no evaluation episodes"):
        load_results(results)


def test_a_file_at_another_runs_place_is_refused(results):
    one, other = (Run("tiny", "webshop", m, 2, 1).episodes(results, "test", 123) for m in ("hgpo", "gigpo"))
    shutil.copy(other, one)
    with pytest.raises(DataError, match="twice|does not belong there"):
        load_results(results)


def test_another_checkpoint_than_the_finished_one_is_refused(results):
    finished = Run("tiny", "webshop", "hgpo", 2, 1).folder(results) / "finished.json"
    finished.write_text(json.dumps(json.loads(finished.read_text()) | {"checkpoint_hash": "c" * 64}))
    with pytest.raises(DataError, match="another checkpoint"):
        load_results(results)


def test_another_starting_checkpoint_is_refused(results):
    start = Run("tiny", "webshop", "hgpo", 2, 1).start_folder(results) / "checkpoint.json"
    start.write_text(json.dumps({"hash": "c" * 64}))
    with pytest.raises(DataError, match="another checkpoint"):
        load_results(results)


def test_a_changed_panel_is_refused(results):
    make_panels(results, "alfworld", 13)
    with pytest.raises(DataError, match="another panel"):
        load_results(results)


def test_broken_metrics_are_refused_with_their_line(results):
    path = Run("tiny", "webshop", "hgpo", 2, 1).folder(results) / "metrics.jsonl"
    lines = path.read_text().splitlines()
    lines[3] = lines[3][:20]
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"metrics.jsonl, line 4"):
        load_results(results)


def test_files_of_other_methods_are_left_out_and_counted(results):
    folder = results.folder / "episodes" / "tiny" / "webshop"
    shutil.copytree(folder / "gigpo", folder / "former")
    table = results_table(load_results(results))
    assert "former" not in set(table.data["method"])
    assert any("6 episodes files that the configuration does not name" in note for note in table.notes)


def test_hgpo_is_compared_with_every_other_method(loaded):
    data = comparisons_table(loaded).data
    assert set(zip(data["first"], data["second"], strict=True)) == {("hgpo", "gigpo"), ("hgpo", "hgpo_flat")}
    assert (data["p_holm"] >= data["p"]).all() and len(data) == 6
    wide = loaded.frame.pivot_table(index=["environment", "split"], columns="method", values="won")
    for row in data.to_dict("records"):
        cell = wide.loc[(row["environment"], row["split"])]
        assert row["difference"] == pytest.approx(cell["hgpo"] - cell[row["second"]])


def test_types_add_up_to_the_whole(loaded):
    for table in type_tables(loaded):
        data = table.data
        parts = data[data["type"] != "all"].assign(total=lambda d: d["success"] * d["n_tasks"])
        keys = ["model", "split", "method", "history"]
        whole = data[data["type"] == "all"].set_index(keys)
        mean = parts.groupby(keys)["total"].sum() / parts.groupby(keys)["n_tasks"].sum()
        pd.testing.assert_series_equal(mean.sort_index(), whole["success"].sort_index(), check_names=False)
    assert {"Pick", "Look", "Clean", "Heat", "Cool", "Pick2", "all"} <= set(type_tables(loaded)[0].display.columns)


def test_every_table_of_outcomes_says_how_many_seeds_of_which_kind(loaded):
    for table in [*type_tables(loaded), webshop_table(loaded), paper_table(loaded)]:
        shown = table.display[table.display["method"] == "hgpo"]
        ours = shown[shown["model"] == "tiny"]
        n = loaded.frame[loaded.frame["method"] == "hgpo"]
        assert set(ours["evaluation seeds"].astype(str)) == {str(n["evaluation_seed"].nunique())}
        assert set(ours["training seeds"]) == {str(n["training_seed"].nunique())}


def test_webshop_counts_purchases_from_the_actions(loaded):
    data = webshop_table(loaded).data
    assert (data["purchases"] >= data["success"]).all() and (data["score"] >= data["success"]).all()
    assert (data["purchases"] > 0).all()


def test_a_purchase_counts_once_a_task_and_only_where_it_was_possible(tmp_path):
    matrix = {"models": ["tiny"], "environments": ["webshop"], "methods": ["hgpo"], "history": [2]}
    config = load_config(make_config(tmp_path, matrix=matrix))
    make_panels(config, "webshop", 3)
    run = Run("tiny", "webshop", "reflexion", 2, 0)
    stored = metadata(config, run, "test", 123)

    def episode(task, rollout: int, action: str, offered: str) -> Episode:
        step = replace(make_step("fridge 1", 0), action=action, admissible=(offered,))
        return Episode(task.id, task.type, rollout, task.goal, [step])

    buy, search = "click[buy now]", "search[<your query>]"
    plan = [
        [(buy, buy), (buy, buy), ("Click[Buy Now] ", buy)],  # bought in every trial, the last included: one purchase
        [(buy, buy), (search, search)],  # bought before its last trial
        [(buy, search)],  # said so where nothing could be bought
    ]
    store = EpisodeStore(run.episodes(config, "test", 123), stored)
    for task, trials in zip(panel_of(config, run, "test").tasks, plan, strict=True):
        made = [episode(task, number, *trial) for number, trial in enumerate(trials)]
        store.append([Trials(**vars(made[-1]), trials=made)], wall_s=0.5)
    store.finish()
    assert _share_bought(store.path, 3) == 1 / 3


def test_the_papers_numbers_stand_beside_ours(loaded):
    table = paper_table(loaded)
    rows = table.display.set_index(["model", "method", "K"])
    assert rows.loc[("1.5B", "hgpo", "4"), "ALFWorld in: paper"] == "94.8"
    assert rows.loc[("1.5B", "hgpo", "4"), "ALFWorld in: ours"] == "not run"
    assert rows.loc[("7B", "gigpo", "4"), "WebShop score: paper"] == "–"
    assert rows.loc[("tiny", "hgpo", "2"), "ALFWorld in: paper"] == "–"
    assert rows.loc[("tiny", "hgpo", "2"), "ALFWorld in: ours"] != "not run"
    assert len(reported()["results"]) + 4 == len(rows)


def test_a_model_of_the_paper_gets_the_difference(tmp_path):
    config = load_config(
        make_config(
            tmp_path,
            models={"small": {"source": "Qwen/Qwen2.5-1.5B-Instruct", "revision": "a" * 40}},
            matrix={"models": ["small"], "environments": ["alfworld"], "methods": ["hgpo"], "history": [4]},
            evaluation={"seeds": [1]},
        )
    )
    make_panels(config, "alfworld", 12)
    run = Run("small", "alfworld", "hgpo", 4, 0)
    make_training(config, run)
    for split in ("in_domain", "out_of_domain"):
        make_evaluation(config, run, split, 1)
    results = load_results(config)
    row = paper_table(results).data.set_index(["model", "method", "history"]).loc[("small", "hgpo", 4.0)]
    ours = 100 * results.frame[results.frame["split"] == "in_domain"]["won"].mean()
    assert row["alfworld/in_domain/ours"] == pytest.approx(ours)
    assert row["alfworld/in_domain/difference"] == pytest.approx(ours - 94.85)


def test_cost_is_the_mean_of_the_metrics(loaded):
    data = cost_table(loaded).data.set_index(["environment", "method"])
    runs = [m for run, m in loaded.metrics.items() if (run.environment, run.method) == ("alfworld", "hgpo")]
    row = data.loc[("alfworld", "hgpo")]
    assert row["n_training_seeds"] == len(runs) == 2
    for phase in PHASES:
        assert row[phase] == pytest.approx(sum(m[f"time/{phase}"].mean() for m in runs) / 2)
    assert row["advantages_share"] == pytest.approx(row["advantages"] / row["total"])


def test_the_sweep_shows_the_options_that_differ(loaded):
    data = ablation_table(loaded).data
    assert set(data["method"]) == {"hgpo", "hgpo_flat"}
    assert dict(zip(data["method"], data["alpha"], strict=True)) == {"hgpo": 1.0, "hgpo_flat": 0.0}
    assert "gamma" not in data and "normalisation" not in data


def test_without_variants_there_is_no_sweep(tmp_path):
    config = load_config(
        make_config(
            tmp_path,
            matrix={"models": ["tiny"], "environments": ["alfworld"], "methods": ["hgpo"], "history": [2]},
            evaluation={"seeds": [1]},
        )
    )
    make_panels(config, "alfworld", 6)
    for split in ("in_domain", "out_of_domain"):
        make_evaluation(config, Run("tiny", "alfworld", "hgpo", 2, 0), split, 1)
    results = load_results(config)
    for make in (ablation_table, comparisons_table, cost_table, webshop_table):
        with pytest.raises(NotMeasured):
            make(results)
    paths = {path.name for path in write_tables(config)}
    assert {"results.md", "results.csv", "results.tex", "results.html"} <= paths and "cost.md" not in paths
    listing = json.loads((config.folder / "tables" / "tables.json").read_text())
    assert set(listing["missing"]) == {"ablation", "comparisons", "cost", "webshop", "leakage"}


def test_tables_are_the_same_bytes_every_time(results):
    first = {path: path.read_bytes() for path in write_tables(results)}
    assert first == {path: path.read_bytes() for path in write_tables(results)}


def test_a_table_that_can_no_longer_be_made_is_removed(results):
    write_tables(results)
    mine = results.folder / "tables" / "notes.md"
    mine.write_text("mine")
    assert (results.folder / "tables" / "webshop.md").exists()
    shutil.rmtree(results.folder / "episodes" / "tiny" / "webshop")
    write_tables(results)
    assert not (results.folder / "tables" / "webshop.md").exists() and mine.exists()


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))


AWKWARD = Table(
    "awkward",
    "50 % & more_or_less",
    "a < b, {x}, α ≥ 1 — ~ ^ # $ \\",
    pd.DataFrame({"a_b": ["<b>x</b>", "1 ± 2"], "p%": ["−", "–"]}),
    pd.DataFrame({"a": [1.0, 2.0]}),
    ["<script>alert(1)</script>"],
)


def test_html_escapes_and_needs_no_network():
    page = webpage(AWKWARD)
    tags = Tags()
    tags.feed(page)
    names = {tag for tag, _ in tags.seen}
    assert "script" not in names and "b" not in names
    assert not [attrs for _, attrs in tags.seen if "src" in attrs or "href" in attrs]


def test_latex_is_a_booktabs_table_without_bare_specials():
    text = latex(AWKWARD)
    for part in (
        r"\toprule",
        r"\midrule",
        r"\bottomrule",
        r"\caption{",
        r"\label{tab:awkward}",
        r"\begin{tabular}{ll}",
    ):
        assert part in text
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    body = text[text.index(r"\midrule") :].replace(r"\_", "").replace(r"\%", "").replace(r"\&", "")
    assert not re.search(r"[_%#^~]", body)
    assert "±" not in text and r"$\pm$" in text


def test_latex_has_a_table_for_each_environment_with_every_cell(loaded):
    table = results_table(loaded)
    text = latex(table)
    assert text.count(r"\begin{table}") == text.count(r"\toprule") == table.display["environment"].nunique() == 2
    assert r"\label{tab:results-alfworld}" in text and r"\label{tab:results-webshop}" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\") and "shortstack" not in line]
    assert len(body) == len(table.display)
    for line, success in zip(body, table.display["success %"], strict=True):
        assert success.replace("±", r"$\pm$") in line
    captions = [line for line in text.splitlines() if line.startswith(r"\caption")]
    assert "environment webshop, split test, K 2, tasks 12, evaluation seeds 3" in captions[1]
    assert all(note[:40].replace("_", r"\_") in captions[0] for note in table.notes)


def test_latex_tells_once_what_is_the_same_everywhere_and_leaves_out_what_is_empty():
    cells = pd.DataFrame({"model": ["m", "m"], "K": [2, 4], "success %": ["1", "1"], "score %": ["–", "–"]})
    text = latex(Table("t", "T", "c", cells, cells))
    assert "All rows: model m." in text and r"{lll}" not in text and "score" not in text
    assert r"\begin{tabular}{ll}" in text and "2 & 1" in text and "4 & 1" in text  # results stay, equal or not


@pytest.mark.skipif(not shutil.which("pdflatex") and not shutil.which("tectonic"), reason="no LaTeX on this machine")
def test_latex_compiles_and_fits_the_page(loaded, tmp_path):
    wide = pd.DataFrame({f"[column] {i}": ["[0.1, 0.2] and more", "1"] for i in range(12)})
    tables = [*make_tables(loaded)[0], AWKWARD, Table("wide", "Wide", "c", wide, wide)]
    packages = r"\documentclass{article}\usepackage{booktabs,graphicx}"
    body = r"\clearpage ".join(latex(table) for table in tables)
    (tmp_path / "t.tex").write_text(packages + r"\begin{document}" + body + r"\end{document}")
    program = shutil.which("pdflatex") or shutil.which("tectonic")
    mode = ["-interaction=nonstopmode", "-halt-on-error"] if program.endswith("pdflatex") else []
    done = subprocess.run([program, *mode, "t.tex"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout + done.stderr


def test_markdown_has_one_row_a_line():
    lines = [line for line in markdown(AWKWARD).splitlines() if line.startswith("|")]
    assert len(lines) == 4 and len({line.count("|") for line in lines}) == 1


def test_csv_holds_full_precision(tmp_path):
    data = pd.DataFrame({"x": [1 / 3, float("nan")]})
    write(Table("t", "T", "c", pd.DataFrame({"x": ["0.3", "–"]}), data), tmp_path)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "t.csv"), data)


def test_leakage_counts_repeated_and_trained_on_tasks(results, monkeypatch):
    from hgpo.reporting import leakage

    for environment in ("alfworld", "webshop"):
        (results.data_folder(environment) / "prepared.json").write_text("{}")
    panels = results.data_folder("alfworld") / "panels"
    games = {split: load_panel(panels / f"{split}.json").tasks for split in ("train", "valid_seen", "valid_unseen")}
    monkeypatch.setattr(leakage, "alfworld_games", lambda _: games)
    monkeypatch.setattr(leakage, "webshop_goals", lambda _: lambda seed: shuffled(1200, seed))
    monkeypatch.setattr(leakage, "_ceiling", lambda _, tasks: {"ceiling": 0.9, "winnable": len(tasks) - 1})
    data = leakage.leakage_table(load_results(results)).data.set_index(["environment", "split", "protocol"])
    upstream = data.loc[("alfworld", "in_domain", "upstream")]
    assert upstream["episodes"] == 128 and upstream["tasks"] == 12 and upstream["most"] > 5
    assert upstream["distinct"] + upstream["never"] == 12
    for place in (("alfworld", "in_domain"), ("alfworld", "out_of_domain"), ("webshop", "test")):
        canonical = data.loc[(*place, "canonical")]
        assert canonical[["episodes", "distinct", "never", "most", "also_trained_on"]].tolist() == [12, 12, 0, 1, 0]
    assert data.loc[("webshop", "test", "canonical"), "winnable"] == 11
    assert data["ceiling"].notna().sum() == 1
    trained = set(shuffled(1200, 0)[500:])
    expected = sum(goal in trained for goal in shuffled(1200, 1000)[:500])
    assert data.loc[("webshop", "test", "upstream"), "also_trained_on"] == expected > 200


def shuffled(count, seed):
    return np.random.default_rng(seed).permutation(count).tolist()
