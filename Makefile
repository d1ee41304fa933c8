# Every target does its own set-up: tools/bootstrap (system packages, uv) and tools/sync (.venv).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export PATH := $(CURDIR)/.cache/tools/bin:$(PATH)
BIN := .venv/bin
SOURCES := packages tools tests benchmarks examples
TYPED := $(wildcard packages/*/src) $(wildcard examples/*/src) $(wildcard examples/*/*.py) $(wildcard tools/*.py) $(wildcard benchmarks/*.py)

.PHONY: help ready demo demo-full test check bench format

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1	\2/' | expand -t 18

ready: ## make this machine and .venv ready
	@tools/bootstrap
	@tools/sync

demo: ready ## train an agent end to end at small counts; ends in runs/demo/report.html
	$(BIN)/orchard run recipes/demo/small.yaml

demo-full: ready ## the same at full counts
	$(BIN)/orchard run recipes/demo/full.yaml

test: ready ## run every test
	$(BIN)/pytest -n 2 --dist loadfile $(PYTEST_ARGS)

check: ready ## format, lint, types, import direction, pins, tree
	$(BIN)/ruff format --check $(SOURCES) tools/lock tools/sync
	$(BIN)/ruff check $(SOURCES) tools/lock tools/sync
	$(BIN)/mypy $(TYPED)
	$(BIN)/python tools/check_imports.py
	$(BIN)/python tools/check_tree.py
	tools/lock --check

bench: ready ## measure what README's table shows; writes runs/bench/*.json
	@mkdir -p runs/bench
	@for script in benchmarks/bench_*.py; do \
	    name=$$(basename $$script .py); \
	    echo "== $$name"; \
	    $(BIN)/python $$script --out runs/bench/$${name#bench_}.json; \
	done

format: ready ## rewrite the sources in the house style
	$(BIN)/ruff format $(SOURCES) tools/lock tools/sync
	$(BIN)/ruff check --fix $(SOURCES) tools/lock tools/sync
