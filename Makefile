# make demo   the whole pipeline on the embedded default: install, train, evaluate, tables, figures, report
# make test   all tests
# settings: CORES, VENV, PYTHON, TORCH_INDEX (package index of a special torch build, e.g. CPU only)

VENV ?= .venv
CORES ?= $(shell nproc 2>/dev/null || echo 2)
export PYTHON TORCH_INDEX
export PATH := $(abspath $(VENV))/bin:$(PATH)

.PHONY: demo test install install-dev lock schema docs report review-bundle

demo: install
	snakemake --configfile config/demo.yaml --cores $(CORES)
	@hgpo summary --config results/demo/config.yaml

test: install-dev
	python -m pytest

install: $(VENV)/installed-base
install-dev: $(VENV)/installed-dev

# The stamp is newer than what it was installed from.
$(VENV)/installed-%: pyproject.toml requirements/%.txt tools/install.sh
	tools/install.sh $(VENV) $*
	@touch $@

lock:
	python -m pip install --quiet uv
	python tools/lock.py

schema:
	hgpo config schema > workflow/schemas/config.schema.json

docs: install-dev
	python tools/reference.py
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict

# CONFIG names the experiment of these two.
CONFIG ?= results/demo/config.yaml

report: install
	hgpo report --config $(CONFIG) --viewer

review-bundle: install-dev
	tools/review-bundle.sh $(CONFIG)
