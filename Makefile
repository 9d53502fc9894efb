# `make demo` and `make test` need only Python, make and a C compiler. They install the rest.

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
SEED ?= $(shell date +%s)

RUN = $(VENV)/bin/python
# One pip call creates or updates the environment. A stamp file repeats it if the requirements change.
INSTALL = $(PYTHON) -m venv $(VENV) && \
	$(RUN) -m pip install -qq --disable-pip-version-check $(addprefix -c ,$(CONSTRAINTS))
FULL = $(RUN) -m pytest -n auto --dist worksteal --hypothesis-profile=random --hypothesis-seed=$(SEED)
GRID = tests/kernels/test_gpu_kernels.py::test_layer_in_every_combination
INSTALLS = tests/package/test_installs.py
KERNEL_TESTS = tests/kernels tests/ops tests/bench/test_gauge.py
USER_STAMP = $(VENV)/.installed
DEV_STAMP = $(VENV)/.installed-dev

# The parts of a full run. Each draws new random examples. A command shows its seed, and SEED=N repeats a run.
FULL_PARTS = test-full-main test-full-grid test-full-installs test-oldest test-triton36

.PHONY: help demo dev test test-full $(FULL_PARTS) lint format bench docs clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' Makefile

demo: $(USER_STAMP)  ## install, train on the built-in data set, print the test metrics
	$(RUN) -m lightcake_fast.train --dataset family

dev: $(DEV_STAMP)  ## install with the requirements of tests, lint and benchmarks

test: $(DEV_STAMP)  ## install, run the tests
	$(RUN) -m pytest -n auto --dist worksteal -m "not full" $(TESTS)

test-full: $(FULL_PARTS)  ## all parts of a full run, one after another

test-full-main: $(DEV_STAMP)  ## all tests, with long fuzzing and kill tests, without the next two parts
	$(FULL) --deselect $(GRID) --ignore $(INSTALLS)

test-full-grid: $(DEV_STAMP)  ## each combination of options of the Triton kernels in the interpreter
	$(FULL) $(GRID)

test-full-installs: $(DEV_STAMP)  ## each install line of the documents in a clean environment
	$(FULL) $(INSTALLS)

test-oldest:  ## the tests with the oldest versions that pyproject.toml allows, in a separate environment
	$(MAKE) test VENV=.venv-oldest CONSTRAINTS=.ci/oldest.txt

test-triton36:  ## the tests of kernels, operators and gauge with triton 3.6, which GPU images have
	$(MAKE) test VENV=.venv-triton36 CONSTRAINTS=.ci/triton36.txt TESTS="$(KERNEL_TESTS)"

lint: $(DEV_STAMP)  ## ruff check, ruff format --check, mypy --strict, layers of imports, plain English
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports --no-logo --no-cache
	$(RUN) .ci/prose.py --check

format: $(DEV_STAMP)  ## apply the fixes and the format of ruff
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

bench: $(DEV_STAMP)  ## the benchmark suite (10 to 15 minutes on two cores)
	$(RUN) -m pytest bench/ --benchmark-only

docs: $(DEV_STAMP)  ## the site with the API reference, in build/site
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

clean:  ## remove caches and build outputs, but not the environment and runs/
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks
	find bench kernels lightcake_fast reference tests -name __pycache__ -prune -exec rm -rf {} +

$(USER_STAMP): pyproject.toml $(CONSTRAINTS)
	@echo "installing lightcake_fast into $(VENV) (minutes when torch must be fetched)"
	@$(INSTALL) -e .
	@touch $@

$(DEV_STAMP): pyproject.toml $(CONSTRAINTS)
	@echo "installing lightcake_fast with its dev extra into $(VENV) (minutes when torch must be fetched)"
	@$(INSTALL) -e '.[dev]'
	@touch $(USER_STAMP) $@
