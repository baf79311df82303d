# `make` lists the targets. On a fresh Debian or Ubuntu machine `make demo` needs Python 3.11 to 3.13 and make.
# PYTHON=/path/to/python3.12 chooses the interpreter; ARGS=... is handed to pytest and to the bench.

.DEFAULT_GOAL := help
SHELL := /bin/bash
export PYTHON
ROLLBOOK := .venv/bin/rollbook
# Groups in the order of collection: the desktops begin first.
PYTEST := .venv/bin/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder --durations=25

.PHONY: help setup python demo up down test test-all lint format bench bench-ledger rehearsal histories clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install everything: packages, .venv, evaluator, Docker engine, desktop image
	@scripts/bootstrap.sh all

python:
	@scripts/bootstrap.sh python

demo: setup ## set up, start the stack, run the demo tasks on real desktops
	@$(ROLLBOOK) demo

up: setup ## start the local stack
	@$(ROLLBOOK) up

down: ## stop the local stack and remove its desktops
	@if [ -x $(ROLLBOOK) ]; then $(ROLLBOOK) down; else echo "nothing is installed, nothing runs"; fi

test: setup ## the tests that a change must not break, two at a time (servers are started by fixtures)
	@$(PYTEST) -m "not slow" $(ARGS)

test-all: setup ## all tests, the slow ones too: races, migrations, the state machine, crashes, rehearsal, fidelity
	@$(PYTEST) $(ARGS)

lint: python ## ruff, mypy, the imports between packages and the wording check
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports
	@.venv/bin/python scripts/check_wording.py

format: python ## format the code
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .

bench: setup ## measure steps, histories, desktops and the ledger, on servers of its own
	@.venv/bin/python -m bench $(ARGS)

bench-ledger: python ## measure the ledger alone: 100,000 rollouts, and its views at a million
	@.venv/bin/python -m bench ledger million --played 100000 $(ARGS)

rehearsal: python ## run the whole test_nogdrive set without desktops while the servers are killed in turn
	@.venv/bin/python -m tests.rehearsal $(ARGS)

histories: setup ## record the histories that the replay test replays, on real desktops
	@.venv/bin/python -m tests.record_histories

clean: down ## remove what setup and the tools made in this directory (not the ledger: that is in the state directory)
	rm -rf .venv .venv-osworld build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
