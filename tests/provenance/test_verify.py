from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from fake_results import make_checkpoint, make_evaluation, make_rollouts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hgpo.cli import main
from hgpo.cli.results import compare, summed_up
from hgpo.cli.results import verify as verify_command
from hgpo.config import Run, load_config, plan_runs
from hgpo.envs.preparation import prepare as prepare_environment
from hgpo.errors import DataError
from hgpo.files import SUMS, sha256_json, write_json, write_sums
from hgpo.provenance.manifest import HASHED, read_manifest, write_manifest
from hgpo.provenance.verify import verify
from hgpo.reporting.build import kept_tables, write_tables
from hgpo.reporting.collect import load_results, warm_start_runs
from hgpo.reporting.side_by_side import side_by_side
from hgpo.reporting.viewer.data import ViewerData
from hgpo.reporting.viewer.site import write_site
from hgpo.reporting.viewer.sources import find_sources
from hgpo.training.plan import settings_of


def test_untouched_results_verify(recorded):
    found = verify(recorded)
    assert found.differences == []
    assert found.checked["tables"] == 8 and found.checked["files"] > 70
    assert any("checkpoint" in line for line in found.absent)  # the made-up runs have no weights


def test_no_manifest_says_that_a_run_was_trained_with_other_settings(copied):
    run = plan_runs(copied)[0]
    finished = run.folder(copied) / "finished.json"
    write_json(finished, json.loads(finished.read_text()) | {"identity": settings_of(copied, run)})
    write_manifest(copied)
    training = copied.training.model_copy(update={"learning_rate": 0.5})
    with pytest.raises(DataError, match="was trained with other settings: training.learning_rate: was .*, now 0.5"):
        write_manifest(copied.model_copy(update={"training": training}))
    neutral = copied.training.model_copy(update={"token_budget": 7})
    write_manifest(copied.model_copy(update={"training": neutral}))


def test_every_table_row_leads_to_files_that_are_there(recorded):
    manifest = read_manifest(recorded.folder)
    rows = {(row["table"], row["row"]) for row in manifest["rows"]}
    assert {table for table, _ in rows} == {"results", "comparisons", "types_alfworld", "types_webshop", "webshop"} | {
        "paper",
        "cost",
        "ablation",
    }
    results = load_results(recorded)
    for row in manifest["rows"]:
        assert row["made_from"]
        for source in row["made_from"]:
            assert (source.get("episodes") or source["metrics"]) in manifest["files"]
            if "episodes" in source and "/warm_start/" not in source["episodes"]:
                run = Run(**results.episodes.files[recorded.folder / source["episodes"]]["run"])
                assert source["checkpoint"] == results.finished[run]["checkpoint_hash"]
                assert source["training_config"] and source["start"] and source["panel"]


def test_the_first_row_is_made_from_exactly_its_cells_episodes(recorded):
    row = read_manifest(recorded.folder)["rows"][1]
    assert row["table"] == "results" and row["methods"] == ["hgpo", "warm_start"]
    files = [source["episodes"] for source in row["made_from"]]
    cell = f"episodes/{row['model']}/{row['environment']}"
    assert len(files) == 2 * 2 + 2  # two training seeds and the warm start, two evaluation seeds each
    assert all(f.startswith((f"{cell}/hgpo/K2/", f"{cell}/warm_start/K2/")) and row["split"] in f for f in files)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_byte_anywhere_is_found(recorded, data):
    names = [*sorted(read_manifest(recorded.folder)["files"]), "manifest.json", "ro-crate-metadata.json"]
    path = recorded.folder / data.draw(st.sampled_from(names))
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    path.write_bytes(content[:place] + bytes([content[place] ^ data.draw(st.integers(1, 255))]) + content[place + 1 :])
    try:
        differences = verify(recorded).differences
    except DataError as error:
        assert "manifest.json" in error.message
    else:
        assert any(path.name in line for line in differences), differences
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("pattern", "old", "new"),
    [
        ("ro-crate-metadata.json", b"{", b"\xfb"),
        ("tables/tables.json", b"{", b"\xfb"),
        ("tables/tables.json", b"written", b"w_itten"),
        ("runs/**/metrics.jsonl", b"{", b"\xfb"),
        ("runs/**/finished.json", b"checkpoint_hash", b"checkpoint_has_"),
        ("start/**/checkpoint.json", b"hash", b"has_"),
    ],
)
def test_a_damaged_record_is_a_difference_and_no_error(recorded, pattern, old, new):
    path = sorted(recorded.folder.glob(pattern))[0]
    content = path.read_bytes()
    path.write_bytes(content.replace(old, new, 1))
    try:
        assert any(path.name in line for line in verify(recorded).differences)
    finally:
        path.write_bytes(content)


def test_a_changed_byte_is_found_in_every_kind_of_file(copied):
    make_rollouts(copied, Run("tiny", "alfworld", "hgpo", 2, 0), 5)
    (copied.folder / "checks").mkdir(exist_ok=True)
    (copied.folder / "checks" / "alfworld.json").write_text("{}")
    (copied.folder / "analysis").mkdir(exist_ok=True)
    (copied.folder / "analysis" / "context_bias.csv").write_text("run,bias\n")
    (copied.folder / "container.json").write_text('{"enabled": false}')
    (copied.folder / "config.yaml").write_bytes(Path("config.yaml").read_bytes())
    write_tables(copied)
    write_manifest(copied)
    assert verify(copied).differences == []
    chosen = [min(copied.folder.glob(pattern), key=str) for pattern in HASHED]
    chosen += [next(copied.folder.glob("episodes/**/*.steps.parquet")), *copied.folder.glob("tables/results.*")]
    for path in set(chosen):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0x20
        path.write_bytes(bytes(content))
    differences = verify(copied).differences
    for path in chosen:
        name = path.relative_to(copied.folder).as_posix()
        assert any(line.startswith(f"{name} was changed") for line in differences), name


def test_a_missing_and_a_surplus_file_are_found(copied):
    (copied.folder / "figures" / "training_curves.svg").unlink()
    (copied.folder / "tables" / "more.csv").write_text("1")
    differences = verify(copied).differences
    assert "figures/training_curves.svg is missing" in differences
    assert "tables/more.csv was not there when the manifest was written" in differences


def test_a_table_that_its_episodes_do_not_give_is_found_though_its_hash_is_right(copied):
    path = copied.folder / "tables" / "results.md"
    path.write_text(path.read_text().replace("| hgpo", "| HGPO", 1))
    write_manifest(copied)
    (difference,) = verify(copied).differences
    assert difference.startswith("tables/results.md is not what the episodes give, first in line ")


def test_another_configuration_is_named_by_key(copied):
    path = Path("config.yaml")
    path.write_text(path.read_text().replace("iterations: 6", "iterations: 7"))
    assert verify(load_config(path)).differences == ["configuration: training.iterations: 6 there, 7 here"]


def change(path, *keys, value):
    """Sets one value of a YAML file."""
    body = yaml.safe_load(path.read_text())
    section = body
    for key in keys[:-1]:
        section = section.setdefault(key, {})
    section[keys[-1]] = value
    path.write_text(yaml.safe_dump(body))


@pytest.mark.parametrize(
    ("keys", "value", "decides"),
    [
        (("dvc", "enabled"), True, False),
        (("tracking", "tensorboard"), False, False),
        (("containers", "enabled"), True, False),
        (("models", "tiny", "gpus"), 1, False),
        (("models", "tiny", "engine"), {"timeout_s": 1.0}, False),
        (("models", "tiny", "learner"), {"gradient_checkpointing": True}, False),
        (("models", "tiny", "engine"), {"kind": "vllm"}, True),
        (("models", "tiny", "engine"), {"arguments": {"quantization": "fp8"}}, True),
        (("training", "token_budget"), 2, False),
        (("training", "environment_workers"), 2, False),
        (("environments", "alfworld", "training"), {"checkpoint_every": 3}, False),
        (("evaluation", "batch_size"), 3, False),
        (("models", "tiny", "source"), "elsewhere", True),
        (("evaluation", "temperature"), 0.5, True),
        (("environments", "alfworld", "training"), {"clip": 0.3}, True),
        (("data", "panel_seed"), 5, True),
    ],
)
def test_only_settings_that_decide_results_have_to_be_as_they_were(copied, keys, value, decides):
    shutil.copy("config.yaml", copied.folder / "config.yaml")
    write_manifest(copied)
    for path in (Path("config.yaml"), copied.folder / "config.yaml"):  # the workflow writes the second when it starts
        change(path, *keys, value=value)
    found = verify(load_config("config.yaml"))
    name = ".".join(keys)
    said = [line for line in found.differences if line.startswith(f"configuration: {name}")]
    rewritten = [line for line in found.differences if line.startswith(f"config.yaml was changed: {name}")]
    assert (len(said), len(rewritten)) == ((1, 1) if decides else (0, 0))
    assert decides or found.differences == []
    assert any(line.startswith(name) for line in found.aside) is not decides


def test_a_configuration_file_that_is_none_any_more_is_found(copied):
    shutil.copy("config.yaml", copied.folder / "config.yaml")
    write_manifest(copied)
    (copied.folder / "config.yaml").write_text("nothing: 1")
    (difference,) = verify(copied).differences
    assert difference.startswith("config.yaml was changed: ") and "nothing" in difference


def test_changed_weights_are_found(copied):
    run = Run("tiny", "webshop", "hgpo", 2, 1)
    folder = run.folder(copied) / "final"
    make_checkpoint(copied, run)
    write_tables(copied)
    write_manifest(copied)
    assert verify(copied).differences == [] and verify(copied).checked["checkpoints"] == 1
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    (difference,) = verify(copied).differences
    assert difference.startswith(f"the checkpoint {folder} was changed")


def test_a_table_whose_data_are_not_here_is_named(copied):
    listing = copied.folder / "tables" / "tables.json"
    body = json.loads(listing.read_text())
    body["written"]["leakage"] = []
    listing.write_text(json.dumps(body))
    write_manifest(copied)
    found = verify(copied)
    assert found.differences == [] and "what the table leakage is made from" in found.absent


def test_a_table_of_which_some_data_are_not_here_is_not_checked(copied):
    for environment in copied.matrix.environments:
        shutil.rmtree(copied.data_folder(environment))
        prepare_environment(copied, environment)
    for path in (copied.folder / "episodes").rglob("*.parquet"):
        path.unlink()
    for run in [*plan_runs(copied), *warm_start_runs(copied)]:
        for split in copied.environment(run.environment).evaluation_splits:
            for seed in copied.evaluation.seeds:
                make_evaluation(copied, run, split, seed)
    write_tables(copied)
    write_manifest(copied)
    whole = verify(copied)
    assert whole.differences == [] and whole.checked["tables"] == 9
    before = {path: path.read_bytes() for path in (copied.folder / "tables").iterdir()}
    shutil.rmtree(copied.data_folder("webshop"))
    found = verify(copied)
    assert found.differences == [] and found.checked["tables"] == 8
    assert kept_tables(copied) == {"leakage": [f"leakage.{ending}" for ending in ("md", "csv", "tex", "html")]}
    write_tables(copied)
    assert {path: path.read_bytes() for path in (copied.folder / "tables").iterdir()} == before
    with pytest.raises(DataError, match=r"names the panels of webshop/test; the data of webshop are not here"):
        write_manifest(copied)
    assert verify(copied).differences == []
    assert [line for line in found.absent if "leakage" in line] == [
        f"the table leakage, which is made from the data: {copied.data_folder('webshop')}"
    ]
    table = copied.folder / "tables" / "leakage.csv"
    table.write_bytes(table.read_bytes() + b"1")
    assert any(line.startswith("tables/leakage.csv was changed") for line in verify(copied).differences)


def test_a_report_that_was_there_is_missed(copied):
    report = copied.folder / "report.html"
    assert {"report.html", "viewer"} <= set(verify(copied).absent)
    report.write_text("<html>")
    write_sums(f"{report}.sha256", [report])
    write_manifest(copied)
    assert verify(copied).differences == [] and "report.html" not in verify(copied).absent
    report.unlink()
    Path(f"{report}.sha256").unlink()
    assert verify(copied).differences == ["report.html is missing; it was there when the manifest was written"]


def test_a_checkpoint_that_was_not_evaluated_is_compared_with_its_record(copied):
    run = Run("tiny", "webshop", "hgpo", 2, 1)
    make_checkpoint(copied, run)
    shutil.rmtree(copied.folder / "episodes" / str(run))
    write_tables(copied)
    write_manifest(copied)
    assert verify(copied).checked["checkpoints"] == 1
    (run.folder(copied) / "final" / "model.safetensors").write_bytes(b"others")
    (difference,) = verify(copied).differences
    assert "its record says" in difference and str(run) in difference


@pytest.mark.parametrize("body", [{}, {"format": 2}, {"format": 2, "files": []}, {"format": "2"}])
def test_a_file_that_is_no_manifest_is_refused(copied, body):
    write_json(copied.folder / "manifest.json", body | {"hash": sha256_json(body)})
    with pytest.raises(DataError, match=r"manifest\.json (is no manifest|has format)"):
        verify(copied)


def test_a_manifest_with_something_else_than_hashes_is_refused(copied):
    path = copied.folder / "manifest.json"
    body = json.loads(path.read_text()) | {"panels": {"alfworld/in_domain": 1}}
    del body["hash"]
    write_json(path, body | {"hash": sha256_json(body)})
    with pytest.raises(DataError, match="it lacks panels"):
        verify(copied)


def test_the_exit_code_of_the_program_says_that_something_differs(copied, monkeypatch):
    monkeypatch.setattr("hgpo.cli.results.load_config", lambda path: copied)
    main(["verify", "--config", "config.yaml"])
    table = copied.folder / "tables" / "results.csv"
    table.write_bytes(table.read_bytes() + b" ")
    with pytest.raises(SystemExit) as left:
        main(["verify", "--config", "config.yaml"])
    assert left.value.code == 1


def test_without_a_manifest(copied):
    (copied.folder / "manifest.json").unlink()
    with pytest.raises(DataError, match="hgpo manifest"):
        verify(copied)


def test_a_manifest_needs_the_tables(copied):
    (copied.folder / "tables" / "results.tex").unlink()
    with pytest.raises(DataError, match="results.tex has not been written"):
        write_manifest(copied)


def test_the_crate_lists_every_file_with_its_hash(recorded):
    crate = json.loads((recorded.folder / "ro-crate-metadata.json").read_text())
    entities = {entity["@id"]: entity for entity in crate["@graph"]}
    files = read_manifest(recorded.folder)["files"]
    assert {part["@id"] for part in entities["./"]["hasPart"]} == set(files)
    for name, digest in files.items():
        assert entities[name]["sha256"] == digest
        assert int(entities[name]["contentSize"]) == (recorded.folder / name).stat().st_size
    assert entities["ro-crate-metadata.json"]["about"] == {"@id": "./"}
    root = entities["./"]
    assert (
        date.fromisoformat(root["datePublished"]) <= datetime.now(UTC).date() and root["name"] and root["description"]
    )
    assert entities[root["license"]["@id"]]["description"] and entities[root["mentions"]["@id"]]["result"]
    references = {r["@id"] for e in crate["@graph"] for v in e.values() if isinstance(v, list) for r in v}
    assert references <= set(entities)


def test_a_manifest_of_another_format_is_refused(copied):
    path = copied.folder / "manifest.json"
    body = json.loads(path.read_text()) | {"format": 1}
    del body["hash"]
    path.write_text(json.dumps(body | {"hash": sha256_json(body)}))
    with pytest.raises(DataError, match="manifest.json has format 1, not 2"):
        read_manifest(copied.folder)


def test_what_is_absent_many_times_is_one_line():
    many = [f"the checkpoint runs/{number}" for number in range(5)]
    assert list(summed_up([*many, "the data x", "the data y"])) == [
        "the checkpoint runs/0, and 4 more of the kind",
        "the data x",
        "the data y",
    ]


def test_verify_says_what_differs_and_fails(copied):
    runner = CliRunner()
    well = runner.invoke(verify_command, ["--config", "config.yaml"])
    assert well.exit_code == 0 and "every table is what the episodes give" in well.output
    (copied.folder / "figures" / "training_curves.svg").write_text("<svg></svg>")
    wrong = runner.invoke(verify_command, ["--config", "config.yaml"])
    assert wrong.exit_code == 1 and "figures/training_curves.svg was changed" in wrong.output


def test_results_compared_with_themselves_differ_by_nothing(recorded):
    results = load_results(recorded)
    data = side_by_side(results, results).data
    assert len(data) == 12 and (data["difference"] == 0).all() and (data["p"] == 1).all()


def test_results_are_compared_cell_by_cell(copied):
    one = load_results(copied)
    shutil.rmtree(copied.folder / "episodes" / "tiny" / "alfworld" / "gigpo")
    other = load_results(copied)
    other.frame.loc[other.frame["method"] == "hgpo", "won"] = True
    table = side_by_side(one, other)
    hgpo = table.data[table.data["method"] == "hgpo"]
    assert (hgpo["success_b"] == 1).all()
    assert hgpo["difference"].tolist() == pytest.approx((1 - hgpo["success_a"]).tolist())
    assert "Only in A: tiny alfworld in_domain gigpo K=2." in table.notes


def test_compare_takes_folders_wherever_they_lie(root, copied, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.move(copied.folder, moved)
    done = CliRunner().invoke(compare, [str(root / "results" / "fake"), str(moved), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "| tiny" in done.output and "here: B)" in done.output
    assert (tmp_path / "out" / "comparison.csv").exists()


def test_results_without_a_common_cell_are_refused(copied):
    one, other = load_results(copied), load_results(copied)
    other.frame["model"] = "another"
    with pytest.raises(DataError, match="no cell in common"):
        side_by_side(one, other)


def test_changed_pages_are_found(copied):
    report, viewer = copied.folder / "report.html", copied.folder / "viewer"
    report.write_text("<html>1 % success</html>")
    (viewer / "data").mkdir(parents=True)
    (viewer / "data" / "0-0.js").write_text("show([])")
    assert f"{copied.folder}: there are no hashes of the 1 files in report.html.sha256" in verify(copied).absent
    write_sums(f"{report}.sha256", [report])
    write_sums(viewer / SUMS, [viewer / "data" / "0-0.js"])
    found = verify(copied)
    assert found.differences == [] and found.checked["pages"] == 2
    report.write_text("<html>9 % success</html>")
    (viewer / "more.js").write_text("")
    (viewer / "data" / "0-0.js").unlink()
    differences = verify(copied).differences
    assert "report.html was changed: its hash is not the one in report.html.sha256" in differences
    assert {"viewer/data/0-0.js is missing; it is named in SHA256SUMS", "viewer/more.js is not in SHA256SUMS"} <= set(
        differences
    )


def test_the_pages_that_are_written_carry_their_hashes(copied):
    page = write_site(ViewerData(copied, find_sources(copied), "x"), copied.folder / "viewer")
    assert verify(copied).differences == []
    page.write_bytes(page.read_bytes().replace(b"<", b"(", 1))
    assert verify(copied).differences == ["viewer/index.html was changed: its hash is not the one in SHA256SUMS"]
    assert subprocess.run(["sha256sum", "--check", "--quiet", SUMS], cwd=page.parent, capture_output=True).returncode


def test_a_changed_byte_of_the_data_is_found(copied):
    folder = copied.data_folder("webshop")
    shutil.rmtree(folder)
    prepare_environment(copied, "webshop")
    found = verify(copied)
    assert found.checked["tasks' data"] > 0 and not any("do not verify" in line for line in found.differences)
    changed = next(path for path in sorted(folder.rglob("*.json*")) if "catalogue" in path.parts)
    content = bytearray(changed.read_bytes())
    content[len(content) // 2] ^= 1
    changed.write_bytes(bytes(content))
    assert any(str(folder) in line for line in verify(copied).differences)


def test_a_surplus_file_whose_name_is_not_utf8_is_named(copied):
    page = write_site(ViewerData(copied, find_sources(copied), "x"), copied.folder / "viewer")
    (page.parent / os.fsdecode(b"more \xe9")).write_text("")
    command = [sys.executable, "-m", "hgpo", "verify", "--config", "config.yaml"]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}  # as in most locales
    said = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert said.returncode == 1 and "Traceback" not in said.stderr
    assert r"viewer/more \udce9 is not in SHA256SUMS" in said.stdout
