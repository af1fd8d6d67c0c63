"""Pictures for the README from a finished experiment: a training step with its groups in the viewer, and a figure.

usage: python tools/screenshot.py [RESULTS] [--figure NAME] [--out FOLDER]
RESULTS: a results folder with kept training rollouts [results/demo]. NAME: one of its figures [training_curves].
Writes FOLDER/viewer.png and FOLDER/NAME.png [docs/images]. Needs Chromium, and `make install-dev`.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from browser import missing, open_browser, show
from PIL import Image
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from hgpo.cli.results import results_config
from hgpo.config import Config
from hgpo.errors import DataError, HgpoError
from hgpo.files import atomic_path
from hgpo.reporting.viewer.data import ViewerData
from hgpo.reporting.viewer.groups import group_columns
from hgpo.reporting.viewer.site import write_site
from hgpo.reporting.viewer.sources import TRAINING, Source, episodes_of, find_sources, steps_of

WIDTH, HEIGHT = 1360, 1080  # CSS pixels
LARGEST = 300_000  # bytes of a picture
MEMBERS = 6  # about as many rows of a group's members are in sight


def telling_step(config: Config, sources: list[Source]) -> tuple[int, int]:
    """(episode, step) whose groups show most: many levels, unequal sizes, a difference also in the deepest group.

    The episode is numbered as in the viewer. Raises DataError if no training rollouts were kept.
    """
    best: tuple[Any, ...] = ()
    first = 0
    for source in sources:
        episodes = episodes_of(source)
        if source.kind == TRAINING:
            numbers = dict(zip(episodes["trajectory"], episodes.index + first, strict=True))
            steps = steps_of(source)
            steps = steps.assign(**group_columns(config, source.run, steps))
            sizes = Counter((k, level[0]) for levels in steps["levels"] for k, level in enumerate(levels) if level)
            for row in steps.to_dict("records"):
                groups = [(sizes[k, level[0]], level[1]) for k, level in enumerate(row["levels"]) if level]
                if groups:
                    deepest, advantage = groups[-1]
                    sizes_differ = len({size for size, _ in groups})
                    worth = (len(groups), advantage != 0, source.run.method == "hgpo", sizes_differ, bool(row["won"]))
                    where = (int(numbers[row["trajectory"]]), int(row["step"]))
                    best = max(best, (*worth, -abs(deepest - MEMBERS), *where))
        first += len(episodes)
    if not best:
        raise DataError("no training rollouts were kept", "train with training.episodes_every above 0")
    return best[-2], best[-1]


def picture_of_viewer(config: Config) -> Image.Image:
    """The viewer at the step that shows most, as a picture."""
    sources = find_sources(config)
    episode, step = telling_step(config, sources)
    with tempfile.TemporaryDirectory() as folder, open_browser() as driver:
        page = write_site(ViewerData(config, sources, config.name), Path(folder) / "viewer")
        show(driver, WIDTH, HEIGHT, scale=1.5)
        driver.get(f"{page.as_uri()}#episode={episode}&step={step}")
        WebDriverWait(driver, 60).until(lambda b: b.find_elements(By.CSS_SELECTOR, ".members"))
        place = "const g = document.querySelector('.groups').getBoundingClientRect();"
        driver.execute_script(place + "document.querySelector('main').scrollTop += Math.max(0, g.bottom - innerHeight)")
        return Image.open(io.BytesIO(driver.get_screenshot_as_png()))


def write_picture(picture: Image.Image, path: Path) -> None:
    """Writes a PNG of at most 256 colours, smaller than LARGEST bytes: the picture is scaled down until it is."""
    body = io.BytesIO()
    while True:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(body, "PNG", optimize=True)
        if body.tell() < LARGEST:
            break
        picture = picture.resize((picture.width * 4 // 5, picture.height * 4 // 5), Image.Resampling.LANCZOS)
        body = io.BytesIO()
    with atomic_path(path) as temporary:
        temporary.write_bytes(body.getvalue())
    print(f"{path}: {picture.width} × {picture.height}, {body.tell() // 1000} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, default=Path("results/demo"))
    parser.add_argument("--figure", default="training_curves")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    figure = options.results / "figures" / f"{options.figure}.png"
    try:
        if reason := missing():
            raise HgpoError(reason)
        if not figure.exists():
            raise DataError(f"there is no {figure}", "finish the experiment, or name another with --figure")
        write_picture(picture_of_viewer(results_config(options.results)), options.out / "viewer.png")
        write_picture(Image.open(figure), options.out / figure.name)
    except HgpoError as error:
        sys.exit(f"screenshot: {error}")


if __name__ == "__main__":
    main()
