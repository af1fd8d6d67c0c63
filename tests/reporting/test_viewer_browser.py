"""The viewer in a real Chromium: filters, navigation, groups, hostile text, a large run."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_results import make_evaluation, make_rollouts

from hgpo.config import Run
from hgpo.reporting.viewer.data import ViewerData
from hgpo.reporting.viewer.site import make_server, write_site
from hgpo.reporting.viewer.sources import find_sources

pytest.importorskip("selenium", reason="selenium is not installed (make install-dev)")
from browser import missing, open_browser, show  # noqa: E402
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")
RUN = Run("tiny", "alfworld", "hgpo", 2, 0)
TRIED = Run("tiny", "alfworld", "reflexion", 2, 0)
HOSTILE = [
    "</script><script>document.title = 'owned'</script>",
    "<img src=x onerror=\"document.title = 'owned'\">",
    "${document.title = 'owned'}",
    "&lt;b&gt; \u202e reversed \x07 \ud83d\ude00 汉字".encode("utf-16", "surrogatepass").decode("utf-16"),
    "javascript:document.title='owned'",
    "x" * 20_000,
]


FILTER = """
const select = document.querySelector("select[name=won]");
select.value = "won";
select.dispatchEvent(new Event("change", { bubbles: true }));
"""


@pytest.fixture(scope="module")
def data(module_results):
    path = make_rollouts(module_results, RUN, 7, tasks=3, rollouts=4, steps=6)
    table = pq.read_table(path).to_pylist()
    for number, row in enumerate(table):
        for column, shift in (("observation", 0), ("think", 1), ("completion", 2), ("goal", 3)):
            row[column] = HOSTILE[(number // 6 + shift) % len(HOSTILE)]
        row["admissible"] = HOSTILE[:5]
    pq.write_table(pa.Table.from_pylist(table), path)
    make_evaluation(module_results, TRIED, "in_domain", 123)
    return ViewerData(module_results, find_sources(module_results), "made <b>up</b>")


@pytest.fixture(scope="module")
def browser():
    with open_browser() as driver:
        yield driver


@pytest.fixture(scope="module", params=["served", "files"])
def page(request, browser, data, tmp_path_factory):
    if request.param == "files":
        yield write_site(data, tmp_path_factory.mktemp("site") / "page").as_uri()
        return
    server = make_server(data)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


def open_page(browser, page, place="", dark=False, width=1400):
    show(browser, width, 1000, dark)
    browser.get("about:blank")
    browser.get(page + place)
    return wait(browser, lambda b: b.find_elements(By.CSS_SELECTOR, ".row"))


def wait(browser, condition):
    """Waits for `condition`; an element that is drawn anew in between counts as not there yet."""
    drawn_anew = [NoSuchElementException, StaleElementReferenceException]
    return WebDriverWait(browser, 30, poll_frequency=0.05, ignored_exceptions=drawn_anew).until(condition)


def text(browser, selector):
    return browser.find_element(By.CSS_SELECTOR, selector).text


def one(browser, selector):
    return wait(browser, lambda b: b.find_elements(By.CSS_SELECTOR, selector))[0]


def index_of(data):
    return data._index()


def row_of(data, kind="training"):
    """Number of the first episode of the rollouts of RUN, or of the first evaluation."""
    index = index_of(data)
    sources = [i for i, s in enumerate(data.sources) if s.kind == kind and (kind != "training" or s.run == RUN)]
    wanted = next(i for i in sources if kind != "training" or data.sources[i].place == "iteration 7")
    return index["episodes"]["source"].index(wanted)


def clean(browser):
    """No error in the console; the hostile texts did nothing."""
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert "owned" not in browser.title


def test_filters(browser, page, data):
    index = index_of(data)
    episodes, sources = index["episodes"], index["sources"]
    open_page(browser, page)
    total = len(episodes["won"])
    assert text(browser, "aside .count").startswith(f"{total} of {total} episodes, {sum(episodes['won'])} won")
    Select(one(browser, "select[name=method]")).select_by_value("gigpo")
    Select(one(browser, "select[name=won]")).select_by_value("won")
    Select(one(browser, "select[name=type]")).select_by_value("look_at_obj_in_light")
    kind = index["types"].index("look_at_obj_in_light")
    rows = list(zip(episodes["source"], episodes["won"], episodes["type"], episodes["task"], strict=True))
    expected = [t for s, won, k, t in rows if sources[s][3] == "gigpo" and won and k == kind]
    wait(browser, lambda b: text(b, "aside .count").startswith(f"{len(expected)} of {total} episodes"))
    one(browser, "input[name=words]").send_keys("task-0007 SEEN")
    words = [t for t in expected if "task-0007" in index["tasks"][t] and "seen" in index["tasks"][t]]
    wait(browser, lambda b: text(b, "aside .count").startswith(f"{len(words)} of {total} episodes"))
    assert words
    one(browser, "input[name=words]").send_keys(" nothing of the kind")
    wait(browser, lambda b: text(b, "aside .count") == f"0 of {total} episodes")
    assert not browser.find_elements(By.CSS_SELECTOR, ".row")
    clean(browser)


def test_navigation(browser, page, data):
    open_page(browser, page)
    one(browser, ".row").click()
    one(browser, ".card")
    assert "step 0" in text(browser, ".card nav") and "#episode=0&step=0" in browser.current_url
    browser.find_element(By.XPATH, "//button[contains(., 'next')]").click()
    wait(browser, lambda b: "step 1" in text(b, ".card nav"))
    browser.find_element(By.TAG_NAME, "body").send_keys("j")
    wait(browser, lambda b: "step 2" in text(b, ".card nav"))
    browser.find_element(By.TAG_NAME, "body").send_keys("k")
    wait(browser, lambda b: "step 1" in text(b, ".card nav"))
    browser.find_elements(By.CSS_SELECTOR, ".timeline button")[-1].click()
    wait(browser, lambda b: not b.find_element(By.XPATH, "//button[contains(., 'next')]").is_enabled())
    browser.back()
    wait(browser, lambda b: "step 1" in text(b, ".card nav"))
    one(browser, ".list").send_keys(Keys.ARROW_DOWN)
    wait(browser, lambda b: "#episode=1&" in b.current_url)
    wait(browser, lambda b: len(b.find_elements(By.CSS_SELECTOR, ".row.chosen")) == 1)
    clean(browser)


def test_all_trials_at_a_task_are_shown(browser, page, data):
    episodes = index_of(data)["episodes"]
    source = next(number for number, one in enumerate(data.sources) if one.run == TRIED)
    row = next(i for i, s in enumerate(episodes["source"]) if s == source and episodes["rollout"][i] == 2)
    first = episodes["source"].index(source)
    block = data._block_of(source, episodes["block"][row], "block")
    lengths = next(e["trials"] for e in block["episodes"] if e["row"] == row - first)
    open_page(browser, page, f"#episode={row}&step=0")
    one(browser, ".card")
    headings = [h.text for h in browser.find_elements(By.CSS_SELECTOR, ".timeline h3")]
    assert headings == [f"trial {n} of 3" for n in (1, 2, 3)]
    assert len(browser.find_elements(By.CSS_SELECTOR, ".timeline button")) == sum(lengths)
    assert "3 trials" in text(browser, "header") and "3 trials" in text(browser, ".row.chosen")
    assert text(browser, ".told") == "- note 0: open <b>the fridge</b>\n- note 1: open <b>the fridge</b>"
    for at, (trial, step) in {0: (1, 0), lengths[0]: (2, 0), sum(lengths) - 1: (3, lengths[2] - 1)}.items():
        browser.find_elements(By.CSS_SELECTOR, ".timeline button")[at].click()
        shown = f"trial {trial}, step {step} of {lengths[trial - 1] - 1}"
        wait(browser, lambda b, shown=shown: shown in text(b, ".card nav"))
    browser.find_element(By.TAG_NAME, "body").send_keys("k")
    wait(browser, lambda b: f"step {lengths[2] - 2} of" in text(b, ".card nav"))
    clean(browser)


@pytest.mark.parametrize("place", ["#episode=999999999&step=2", "#episode=-1", "#episode=0&step=9999", "#nonsense=%%%"])
def test_a_wrong_place_does_no_harm(browser, page, place):
    open_page(browser, page, place)
    wait(browser, lambda b: b.find_elements(By.CSS_SELECTOR, "main .empty, main .card"))
    clean(browser)


def test_a_step_shows_what_the_table_holds(browser, page, data):
    row = row_of(data, "evaluation")
    open_page(browser, page, f"#episode={row}&step=1")
    one(browser, ".card")
    source = data.sources[index_of(data)["episodes"]["source"][row]]
    number = row - index_of(data)["episodes"]["source"].index(data.sources.index(source))
    episode = data._episodes[data.sources.index(source)].iloc[number]
    steps = pq.read_table(source.path.with_suffix(".steps.parquet")).to_pandas()
    record = steps[(steps["task"] == episode["task"]) & (steps["step"] == 1)].iloc[0]
    assert text(browser, ".observation") == record["observation"]
    assert text(browser, ".think") == record["think"] and text(browser, ".said") == record["action"]
    browser.find_element(By.XPATH, "//summary[contains(., 'admissible')]").click()
    chips = [chip.text for chip in browser.find_elements(By.CSS_SELECTOR, ".chips li")]
    assert chips == list(record["admissible"])
    assert text(browser, ".chips .taken") == record["action"]
    assert not browser.find_elements(By.CSS_SELECTOR, ".groups")
    clean(browser)


def test_groups(browser, page, data):
    row = row_of(data)
    open_page(browser, page, f"#episode={row}&step=0")
    one(browser, ".groups")
    levels = browser.find_elements(By.CSS_SELECTOR, ".groups table:first-of-type tbody tr")
    assert len(levels) == 3 and "no history that long" in levels[1].text
    members = browser.find_elements(By.CSS_SELECTOR, ".members tbody tr")
    assert len(members) == int(levels[0].find_elements(By.TAG_NAME, "td")[1].text) >= 4  # all start in the same state
    block = data._block_of(index_of(data)["episodes"]["source"][row], index_of(data)["episodes"]["block"][row], "block")
    step = block["episodes"][0]["steps"][0]
    shown = [cell.text.replace("−", "-") for cell in browser.find_elements(By.CSS_SELECTOR, ".results tbody td")]
    assert shown == [f"{step[name]:.3f}".replace("-0.000", "0.000") for name in ("hgpo", "gigpo", "grpo", "used")]
    other = next(m for m in members if not m.find_element(By.TAG_NAME, "a").text.startswith("0,"))
    rollout, at = other.find_element(By.TAG_NAME, "a").text.split(", ")
    other.find_element(By.TAG_NAME, "a").click()
    wait(browser, lambda b: f"#episode={row + int(rollout)}&step={at}" in b.current_url)
    wait(browser, lambda b: f"step {at}" in text(b, ".card nav"))
    clean(browser)


def test_every_level_can_be_opened(browser, page, data):
    row = row_of(data)
    block = data._block_of(index_of(data)["episodes"]["source"][row], 0, "block")
    episode, at = next(
        (e, i) for e in block["episodes"] for i, s in enumerate(e["steps"]) if all(level for level in s["levels"])
    )
    first = index_of(data)["episodes"]["source"].index(index_of(data)["episodes"]["source"][row])
    open_page(browser, page, f"#episode={first + episode['row']}&step={at}")
    one(browser, ".groups")
    sizes = []
    for k in range(3):
        browser.find_elements(By.CSS_SELECTOR, ".groups tbody button")[k].click()
        wait(browser, lambda b, k=k: f"level {k}: who is in it" in text(b, ".groups"))
        sizes.append(len(browser.find_elements(By.CSS_SELECTOR, ".members tbody tr")))
        code = episode["steps"][at]["levels"][k][0]
        expected = [s for e in block["episodes"] for s in e["steps"] if s["levels"][k] and s["levels"][k][0] == code]
        assert sizes[-1] == len(expected)
        assert len(browser.find_elements(By.CSS_SELECTOR, ".members tr.chosen")) == 1
    assert sizes == sorted(sizes, reverse=True)  # groups are nested
    clean(browser)


def test_hostile_text_is_text(browser, page, data):
    row = row_of(data)
    seen = set()
    for offset in range(12):
        open_page(browser, page, f"#episode={row + offset}&step=1")
        one(browser, ".card")
        for summary in browser.find_elements(By.CSS_SELECTOR, "summary"):
            summary.click()
        script = "return [...document.querySelectorAll('.card .text, .card li')].map(e => e.textContent)"
        seen |= set(browser.execute_script(script))
        assert browser.execute_script("return document.querySelectorAll('#app script, #app img, #app b').length") == 0
        width = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
        assert width[0] <= width[1]  # the long word is broken, not the page
        clean(browser)
    assert {h.replace("\r", "") for h in HOSTILE} <= seen
    assert text(browser, "h1") == "made <b>up</b>"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1400, 420])
def test_light_and_dark_wide_and_narrow(browser, page, data, dark, width, tmp_path):
    open_page(browser, page, dark=dark, width=width)
    colours = browser.execute_script("const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]")
    text_light, ground_light = (sum(map(int, c.strip("rgba()").split(",")[:3])) / 3 for c in colours)
    assert (text_light > 180 and ground_light < 60) if dark else (text_light < 60 and ground_light > 180)
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    main = browser.find_element(By.TAG_NAME, "main")
    assert main.is_displayed() == (width == 1400)
    one(browser, ".row").click()
    one(browser, ".card")
    assert main.is_displayed() and browser.find_element(By.TAG_NAME, "aside").is_displayed() == (width == 1400)
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    if folder := os.environ.get("HGPO_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.save_screenshot(f"{folder}/viewer-{'dark' if dark else 'light'}-{width}.png")
    if width == 420:
        one(browser, ".back").click()
        wait(browser, lambda b: b.find_element(By.TAG_NAME, "aside").is_displayed())
    clean(browser)


def test_a_large_run_is_shown_in_pieces(browser, module_results, tmp_path):
    run = Run("tiny", "alfworld", "hgpo_flat", 2, 0)
    for iteration in range(10):
        make_rollouts(module_results, run, iteration, tasks=40, rollouts=8, steps=32)
    try:
        sources = find_sources(module_results, run)
        big = ViewerData(module_results, sources, "large")
        assert sum(frame["steps"].sum() for frame in big._episodes) > 100_000
        server = make_server(big)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        open_page(browser, url)
        assert text(browser, "aside .count").startswith("32")
        browser.execute_script(FILTER)
        wait(browser, lambda b: not text(b, "aside .count").startswith("32"))
        assert len(browser.find_elements(By.CSS_SELECTOR, ".row")) < 60
        browser.execute_script("const l = document.querySelector('.list'); l.scrollTop = l.scrollHeight")
        wait(browser, lambda b: "seed" in b.find_elements(By.CSS_SELECTOR, ".row")[-1].text)
        wait(browser, lambda b: b.find_elements(By.CSS_SELECTOR, ".row")[-1].click() or True)
        one(browser, ".card")
        clean(browser)
        server.shutdown()
        server.server_close()
    finally:
        shutil.rmtree(run.folder(module_results) / "rollouts")


def test_the_readmes_pictures(data, module_results, tmp_path, monkeypatch):
    screenshot = pytest.importorskip("screenshot")
    episode, step = screenshot.telling_step(module_results, data.sources)
    index = index_of(data)["episodes"]
    source = index["source"][episode]
    block = data._block_of(source, index["block"][episode], "block")
    row = episode - index["source"].index(source)
    shown = next(e for e in block["episodes"] if e["row"] == row)["steps"][step]
    assert all(shown["levels"]) and len(shown["levels"]) == 3 and shown["levels"][2][1] != 0
    figures = module_results.folder / "figures"
    figures.mkdir(exist_ok=True)
    PIL.Image.effect_noise((900, 900), 80).save(figures / "noise.png")
    (module_results.folder / "config.yaml").write_text((module_results.folder.parents[1] / "config.yaml").read_text())
    arguments = [str(module_results.folder), "--figure", "noise", "--out", str(tmp_path / "images")]
    monkeypatch.setattr("sys.argv", ["screenshot.py", *arguments])
    screenshot.main()
    for name in ("viewer.png", "noise.png"):
        path = tmp_path / "images" / name
        assert path.stat().st_size < 300_000 and min(PIL.Image.open(path).size) > 300
    shutil.rmtree(figures)
    monkeypatch.setattr("sys.argv", ["screenshot.py", *arguments])
    with pytest.raises(SystemExit, match="there is no .*noise.png"):
        screenshot.main()
