# Every target sets itself up in .venv the first time; after that nothing here needs the network.
#
#   PYTHON=...        the interpreter to build .venv with (3.11, 3.12 or 3.13)
#   TORCH_INDEX=...   the package index to take torch from, e.g. PyTorch's CPU index on Linux, where the default
#                     build brings several GB of CUDA libraries
#   WORKERS=...       test processes
#   TESTS=...         which tests `make test` runs, by their marks; CI: TESTS="not long"
#   COVERAGE=yes      makes `make test` list the lines of the package that no test runs; compiled kernels are not seen
#   ELSEWHERE=...     what `make elsewhere` tests; all quick tests where it is empty
#   KILLS=...         how often `make torture` kills

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	"$$p" -c '$(SUPPORTED)' 2>/dev/null && { echo "$$p"; break; }; done)
TORCH_INDEX ?=
WORKERS ?= 2
TESTS ?= not slow and not long
COVERAGE ?=
ELSEWHERE ?=
KILLS ?= 30
BENCHMARKS ?= $(sort $(wildcard benchmarks/[a-z]*.py))

VENV := .venv
BIN := $(VENV)/bin
# Most modules are never imported; the others are compiled when they are, and so kept.
INSTALL := --disable-pip-version-check install --quiet --no-compile
PIP := $(BIN)/python -m pip $(INSTALL) --constraint constraints.txt
READY := $(VENV)/.ready

# Lava is pinned to Python 3.10 and to an old torch, of which its simulator needs neither (docs/export.md).
LAVA_PYTHON ?= $(shell for p in python3.10 python3.11 python3.12; do \
	"$$p" -c '' 2>/dev/null && { echo "$$p"; break; }; done)
LAVA := .lava-env
NENGO := .nengo-env
PEERS := .peers-env
LAVA_PIP := $(LAVA)/bin/python -m pip $(INSTALL)

export MPLBACKEND ?= Agg
export NO_MKDOCS_2_WARNING := 1

.PHONY: help setup demo test test-all elsewhere torture check lint types bench docs tables sessions wheel lava-env nengo-env peers-env clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## create .venv with the pinned versions (every other target does this by itself)

# torch comes first and alone: resolved together with the rest, a newer build could replace the pinned one.
$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { \
		echo "neurolsc needs Python 3.11, 3.12 or 3.13, and none is on the PATH. Name one: make PYTHON=/path/to/python" >&2; \
		exit 1; }
	@"$(PYTHON)" -c '$(SUPPORTED)' || { \
		echo "neurolsc needs Python 3.11, 3.12 or 3.13, but $(PYTHON) is $$("$(PYTHON)" --version 2>&1)." >&2; \
		exit 1; }
	@echo "Setting up $(VENV) with $$("$(PYTHON)" --version); the first time this takes a minute or two."
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@$(PIP) $(if $(TORCH_INDEX),--index-url "$(TORCH_INDEX)") torch
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation --editable '.[dev,docs]'
	@$(PIP) --no-deps norse spikingjelly neurobench # nothing here imports the torchvision and torchaudio that they would bring
	@touch $@

demo: $(READY) ## the package at work on an embedded sample
	$(BIN)/neurolsc demo

# One thread a process, so that the workers do not compete for cores. A worker that is done takes tests from the other.
test: $(READY) ## the quick tests, in five minutes
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist worksteal -m "$(TESTS)" \
		$(if $(COVERAGE),--cov=neurolsc --cov-report=term-missing:skip-covered)

test-all: $(READY) ## all tests: every example, session and figure of the papers too
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist worksteal

# Plain kernels, two threads, no instructions of this processor's own, and every product summed in another order.
elsewhere: $(READY) ## the quick tests as on another machine (ELSEWHERE=tests/neurons for some of them)
	PYTHONPATH=. ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive \
		$(BIN)/pytest -n $(WORKERS) --dist worksteal -p tests.elsewhere -m "$(TESTS)" $(ELSEWHERE)

# One thread, so that a process can be copied in the middle.
torture: $(READY) ## kill trainings and runs, KILLS times each, and see that nothing is lost or left
	OMP_NUM_THREADS=1 KILLS=$(KILLS) $(BIN)/python -m pytest -q -m slow tests/test_kills.py

check: lint types test docs ## what a change must pass: format, lint, types, tests, docs

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/pyright --project pyproject.toml

bench: $(READY) ## the measurements in benchmarks/ (BENCHMARKS=benchmarks/one.py for one)
	@test -n "$(BENCHMARKS)" || echo "There are no scripts in benchmarks/."
	@for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python "$$script"; done

docs: $(READY) ## the site, into site/; a warning is an error
	$(BIN)/mkdocs build --strict --site-dir site

tables: $(READY) ## the tables in README, docs and benchmarks/README.md, from benchmarks/results
	$(BIN)/python -m docs.tables

sessions: $(READY) ## what the sessions in README and docs and the examples print and draw, run anew
	$(BIN)/python -m docs.sessions

# The wheel is built from the sdist, which so is known to be whole.
wheel: $(READY) ## sdist and wheel, into dist/, as an index would take them
	@rm -rf dist
	$(BIN)/python -m hatchling build --target sdist --directory dist
	$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz
	$(BIN)/python -m twine check --strict dist/*

lava-env: $(LAVA)/.ready ## Lava's simulator in .lava-env (425 MB), against which exports are verified

$(LAVA)/.ready: lava-requirements.txt
	@test -n "$(LAVA_PYTHON)" || { \
		echo "Lava needs Python 3.10, 3.11 or 3.12, and none is on the PATH. Name one: make lava-env LAVA_PYTHON=/path/to/python" >&2; \
		exit 1; }
	@test -x $(LAVA)/bin/python || "$(LAVA_PYTHON)" -m venv $(LAVA)
	@$(LAVA_PIP) --requirement lava-requirements.txt
	@$(LAVA_PIP) --no-deps --ignore-requires-python lava-nc==0.10.0 lava-dl==0.6.0
	@touch $@

nengo-env: $(NENGO)/.ready ## nengo-loihi's emulator in .nengo-env (280 MB), which steps exported files, too

$(NENGO)/.ready: nengo-requirements.txt
	@test -n "$(LAVA_PYTHON)" || { \
		echo "nengo-loihi needs Python 3.10, 3.11 or 3.12, and none is on the PATH. Name one: make nengo-env LAVA_PYTHON=/path/to/python" >&2; \
		exit 1; }
	@test -x $(NENGO)/bin/python || "$(LAVA_PYTHON)" -m venv $(NENGO)
	@$(NENGO)/bin/python -m pip $(INSTALL) --requirement nengo-requirements.txt
	@touch $@

peers-env: $(PEERS)/.ready ## jax and spyx in .peers-env (790 MB), next to which benchmarks/layers.py and rate_cells.py run ours

$(PEERS)/.ready: peers-requirements.txt
	@test -n "$(PYTHON)" || { echo "jax needs Python 3.11, 3.12 or 3.13, and none is on the PATH: make peers-env PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(PEERS)/bin/python || "$(PYTHON)" -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip $(INSTALL) --requirement peers-requirements.txt
	@touch $@

clean: ## remove what was built; .venv, .lava-env, .nengo-env, .peers-env and runs/ stay
	rm -rf site dist build .cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
