"""`hgpo report --viewer`: captions and all tables and figures in one file; nothing is asked of a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from hgpo.cli.workflow import report
from hgpo.reporting.build import write_figures, write_tables
from hgpo.reporting.expected import expected_figures, expected_tables

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def reported(module_results):
    """(configuration, pages) of a copy of the made-up results with its report and viewer."""
    config = module_results
    folder = Path(config.results).parent
    path = folder / "config.yaml"
    for name in ("Snakefile", "workflow"):
        (folder / name).symlink_to(ROOT / name)
    write_tables(config)
    write_figures(config)
    for name in expected_tables(config):  # the made-up data have no games: the one table made from them is lacking
        for ending in ("md", "csv", "tex", "html"):
            (config.folder / "tables" / f"{name}.{ending}").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = CliRunner().invoke(report, ["--config", str(path), "--viewer"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    pages = [Path(line.split(": ", 1)[1]) for line in done.output.splitlines()]
    assert pages == [config.folder / "report.html", config.folder / "viewer" / "index.html"]
    return config, pages


def test_every_table_and_figure_has_its_caption(reported):
    config, (page, _) = reported
    text = page.read_text(encoding="utf-8")
    for name in [*expected_tables(config), *expected_figures(config)]:
        caption = ROOT / "workflow" / "report" / f"{'types' if name.startswith('types_') else name}.rst"
        assert caption.read_text(encoding="utf-8").strip()[:30] in text, name
        assert f"{name}.html" in text or f"{name}.svg" in text


def test_report_and_viewer_open_without_a_network(reported):
    pytest.importorskip("selenium", reason="selenium is not installed (make install-dev)")
    from browser import missing, open_browser, requested
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    if reason := missing():
        pytest.skip(reason)
    with open_browser() as driver:
        for page, word in zip(reported[1], ("Figures", "episodes"), strict=True):
            driver.get(page.as_uri())
            found = f"//*[contains(text(), '{word}')]"
            WebDriverWait(driver, 60).until(lambda b, found=found: b.find_elements(By.XPATH, found))
            addresses = requested(driver)
            assert page.as_uri() in addresses
            assert [a for a in addresses if not a.startswith(("file:", "data:", "blob:"))] == []
            assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []
