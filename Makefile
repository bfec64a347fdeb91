# Every target makes the environment it needs in .venv; run `make` for the list.
# Another interpreter: make PYTHON=python3.12 venv. More options for pytest: make test ARGS="-k relu".

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
INSTALLED := $(VENV)/.installed
INSTALLED_DOCS := $(VENV)/.installed-docs
INSTALLED_ALL := $(VENV)/.installed-all
OLDEST := .venv-oldest
INSTALLED_OLDEST := $(OLDEST)/.installed
# Two workers with one thread each: on small tensors, threads that compete cost more than they give.
# Each has a half of the files, so that what the tests of a file share is made once.
PARALLEL := -n 2 --dist worksteal
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PARALLEL)
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-all test-oldest lint format docs bench clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

venv: $(INSTALLED)  ## make .venv with everything for developing

demo: $(INSTALLED)  ## run the demonstration: a trained network, with uncertainty
	$(BIN)/python -m howsure demo $(ARGS)

test: $(INSTALLED)  ## run the tests, without the slow ones
	$(PYTEST) -m "not slow" $(ARGS)

test-all: $(INSTALLED_ALL)  ## run all tests, also those that need Ray and OpenCV
	$(PYTEST) $(ARGS)

test-oldest: $(INSTALLED_OLDEST)  ## run the tests with torch 2.6.0, in .venv-oldest (several GB)
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest $(PARALLEL) -m "not slow" $(ARGS)

lint: $(INSTALLED)  ## check style, format, types and imports; changes nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright
	$(BIN)/lint-imports

format: $(INSTALLED)  ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(INSTALLED_DOCS)  ## build the documentation in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(INSTALLED)  ## run the benchmarks
	@test -f benchmarks/run.py || { echo "There are no benchmarks yet: benchmarks/run.py is missing." >&2; exit 1; }
	$(BIN)/python benchmarks/run.py $(ARGS)

clean:  ## remove the environment, caches and everything built
	rm -rf $(VENV) $(OLDEST) build dist site out .coverage htmlcov .hypothesis .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps live in .venv, so they go when it goes. A .venv whose pip does not run (left half-made,
# or its Python has gone) is made anew.
$(INSTALLED): pyproject.toml lab/pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "\`$(PYTHON)\` was not found; name a Python 3.10 or newer: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "howsure needs Python 3.10 or newer and \`$(PYTHON)\` is $$($(PYTHON) -V 2>&1); name another: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "Installing into $(VENV); the first time takes a few minutes."
	$(PIP) -e '.[dev]' -e ./lab
	@touch $@

# Ray has no wheels for some systems; its tests are then skipped, and --strict-skips tells it.
$(INSTALLED_ALL): $(INSTALLED)
	$(PIP) -e './lab[experiments]'
	$(PIP) -e '.[ray]' || echo "Ray cannot be installed here; its tests are skipped." >&2
	@touch $@

$(INSTALLED_DOCS): $(INSTALLED)
	$(PIP) -e '.[docs]'
	@touch $@

# The oldest torch of pyproject.toml; what it pins itself, and other torches, are not constrained.
$(INSTALLED_OLDEST): pyproject.toml lab/pyproject.toml constraints.txt
	@$(OLDEST)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(OLDEST)
	@echo "Installing torch 2.6.0 into $(OLDEST): several GB, once."
	grep -vE '^(torch|sympy)==' constraints.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check \
		-c $(OLDEST)/constraints.txt torch==2.6.0 -e '.[dev]' -e ./lab
	@touch $@
