# Every target does its own set-up: tools/bootstrap (system packages, uv) and tools/sync (.venv).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export PATH := $(CURDIR)/.cache/tools/bin:$(PATH)
BIN := .venv/bin
SOURCES := packages tools tests benchmarks examples conftest.py
SCRIPTS := tools/lock tools/sync tools/devcluster tools/images tools/simnode
TYPED := $(wildcard packages/*/src) $(wildcard examples/*/src) $(wildcard examples/*/*.py) $(wildcard tools/*.py) tools/cluster $(wildcard benchmarks/*.py)

.PHONY: help ready demo demo-full engines test check bench bench-env format

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1	\2/' | expand -t 18

ready: ## make this machine and .venv ready
	@tools/bootstrap
	@tools/sync

demo: ready ## train an agent end to end at small counts; ends in runs/demo/report.html
	$(BIN)/orchard run recipes/demo/small.yaml

demo-full: ready ## the same at full counts
	$(BIN)/orchard run recipes/demo/full.yaml

engines: ready ## build what the real engines of tests need, where they can run (root on Debian)
	@if [ "$$(id -u)" = 0 ] && [ -e /etc/debian_version ]; then \
	    tools/bootstrap cluster && tools/devcluster build && tools/images build; \
	else echo "no root on Debian here: tests of Kubernetes and Docker will be skipped"; fi

test: engines ## run every test, on real engines that are brought up and taken down
	@trap 'tools/devcluster down --unused' EXIT; set -x; $(BIN)/pytest -n 2 --dist loadfile $(PYTEST_ARGS)

check: ready ## format, lint, types, import direction, pins, tree
	$(BIN)/ruff format --check $(SOURCES) $(SCRIPTS)
	$(BIN)/ruff check $(SOURCES) $(SCRIPTS)
	$(BIN)/mypy $(TYPED)
	$(BIN)/python tools/check_imports.py
	$(BIN)/python tools/check_tree.py
	tools/lock --check

bench: ready ## measure what README's table shows; writes runs/bench/*.json
	@mkdir -p runs/bench
	@for script in $(filter-out benchmarks/bench_cluster.py,$(wildcard benchmarks/bench_*.py)); do \
	    name=$$(basename $$script .py); \
	    echo "== $$name"; \
	    $(BIN)/python $$script --out runs/bench/$${name#bench_}.json; \
	done

bench-env: engines ## the same for sandboxes on Docker and Kubernetes, beside the engines' own exec (needs root)
	@mkdir -p runs/bench
	$(BIN)/python benchmarks/bench_cluster.py --out runs/bench/cluster.json

format: ready ## rewrite the sources in the house style
	$(BIN)/ruff format $(SOURCES) $(SCRIPTS)
	$(BIN)/ruff check --fix $(SOURCES) $(SCRIPTS)
