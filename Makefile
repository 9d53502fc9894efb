# `make demo` and `make test` need only Python, make and a C compiler. They install the rest.

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
SEED ?= $(shell date +%s)

RUN = $(VENV)/bin/python
# One pip call creates or updates the environment. A stamp file repeats it if the requirements change.
INSTALL = $(PYTHON) -m venv $(VENV) && \
	$(RUN) -m pip install -qq --disable-pip-version-check $(addprefix -c ,$(CONSTRAINTS))
USER_STAMP = $(VENV)/.installed
DEV_STAMP = $(VENV)/.installed-dev

.PHONY: help demo dev test test-full test-oldest lint format bench docs clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(USER_STAMP)  ## install, train on the built-in data set, print the test metrics
	$(RUN) -m lightcake_fast.train --dataset family

dev: $(DEV_STAMP)  ## install with the requirements of tests, lint and benchmarks

test: $(DEV_STAMP)  ## install, run the tests
	$(RUN) -m pytest -n auto --dist worksteal -m "not full"

# Each full run draws new random examples. Its command line shows the seed, and SEED=N repeats a run.
test-full: $(DEV_STAMP)  ## the tests with full grids, long fuzzing and kill tests, then test-oldest
	$(RUN) -m pytest -n auto --dist worksteal --hypothesis-profile=random --hypothesis-seed=$(SEED)
	$(MAKE) test-oldest

test-oldest:  ## the tests with the oldest versions that pyproject.toml allows, in a separate environment
	$(MAKE) test VENV=.venv-oldest CONSTRAINTS=.ci/oldest.txt

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
