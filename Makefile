# `make help` lists the targets. Each stops at its first failure.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

export PYTHON ?= python3
export VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
# Processes of the tests. In the long ones, each has a broker, a database and a Spark session of its own, about 3 GB. Many
# tests wait, so there are twice as many processes as a small machine has cores.
WORKERS ?= 4
# What tests write lies in memory where there is room for it, since most of their time would be spent in fsync.
# `make test-all` uses the disk, and runs what is marked "nightly" and "by_ci", too; .ci/run the latter.
SCRATCH ?= $(shell scripts/scratch.sh)
SELECT ?= and not nightly and not by_ci
LONG ?= tests integration
# A Python that was started for a test need not compile what another one has compiled.
export PYTHONDONTWRITEBYTECODE :=
# Each process that imports NumPy would start threads of OpenBLAS, and nothing here needs them.
export OPENBLAS_NUM_THREADS := 1
PYTEST = TMPDIR=$(SCRATCH) $(BIN)/python -m pytest -q
# A test's own timeout cannot end it while it hangs in C code. After this many seconds, its process prints what each thread is
# doing and exits; the test's scope is restarted once in a new process.
HUNG ?= 400
ENDED = -o faulthandler_timeout=$(HUNG) -o faulthandler_exit_on_timeout=true --max-worker-restart=1

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Make .venv with the locked packages and this checkout (done by the others when needed)
	@scripts/prerequisites.sh python
	@scripts/setup.sh

.PHONY: check
check: lint ## Lint, types, unit tests: two minutes on two cores, no service needed
	@$(MAKE) --no-print-directory types & types=$$!; $(MAKE) --no-print-directory unit; unit=$$?; wait $$types && exit $$unit

.PHONY: lint
lint: setup
	@echo "== ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

.PHONY: types
types: setup
	@echo "== mypy, basedpyright"
	@$(BIN)/mypy & mypy=$$!; $(BIN)/basedpyright && wait $$mypy

.PHONY: unit
unit: setup
	@echo "== unit tests"
	@$(PYTEST) tests -m "not slow $(SELECT)" --numprocesses 3 $(ARGS)

.PHONY: java
java:
	@scripts/prerequisites.sh java

.PHONY: test
test: java check checked long ## Lint, types, unit tests, a test of each kind on real services: twenty minutes on two cores

.PHONY: checked
checked:  # so that .ci/run need not check again where only a long test has failed
	@mkdir -p .cache && touch .cache/checked

.PHONY: test-all
test-all: ## For nights: `make test` and `make pages` on the disk, with long simulator runs, kill series, more variants; container tests
	@$(MAKE) test pages SCRATCH=$${TMPDIR:-/tmp} SELECT=
	@SELECT= HUNG=3600 scripts/with-docker.sh scripts/container-tests.sh

# The slow unit tests need a processor and the others mostly wait, so they run side by side.
.PHONY: long
long: java setup ## The slow unit tests and the tests on real services; ARGS="-k word" selects, SELECT= adds what others leave out
	@echo "== long tests: $(LONG)"
	@$(PYTEST) $(LONG) -m "(slow or integration) and not containers and not pages $(SELECT)" --numprocesses $(WORKERS) \
	  --dist loadscope --no-loadscope-reorder --durations=40 $(ARGS)

.PHONY: integration
integration: ## The tests on real services alone
	@$(MAKE) long LONG=integration

.PHONY: pages
pages: java setup ## Follow README and other pages as a new user would, with the wheel: about three minutes
	@echo "== pages"
	@$(PYTEST) integration -m "pages $(SELECT)" --numprocesses 2 --dist loadscope --durations=5 $(ARGS)

# The slice that shows that pyspark 3.5 works: exactly_once with its kills, savepoints, explain, metrics, the pipeline test kit.
SPARK35 = integration/test_spark_older.py integration/test_spark_exactly_once.py integration/test_spark_metrics.py \
  integration/test_savepoints.py integration/test_spark_outputs.py integration/test_foreach_batch.py \
  integration/test_dead_letters.py integration/test_spark_stateful.py
# pyspark 3.5 compares versions with distutils, and leaves sockets to the garbage collection.
SPARK35_WARNS = -W "ignore:distutils:DeprecationWarning" -W ignore::ResourceWarning

.PHONY: spark35
spark35: export VENV := .venv-spark35
spark35: BIN := .venv-spark35/bin
spark35: java ## The tests of exactly_once, savepoints, explain and metrics on pyspark 3.5, in a virtual environment of its own
	@scripts/prerequisites.sh python
	@scripts/spark35.sh
	@echo "== pyspark 3.5"
	@$(PYTEST) $(SPARK35) $(SPARK35_WARNS) -k "not format" -m "not nightly" --numprocesses 2 --dist loadscope --no-loadscope-reorder --durations=10 $(ARGS)

.PHONY: matrix
matrix: java setup ## A slice of the tests on each version of pyspark and Python, two minutes each (writes docs/support.md); ARGS="--only 4.1.4-3.12"
	@PYTHONPATH=src TMPDIR=$(SCRATCH) $(BIN)/python -m integration.matrix $(ARGS)

.PHONY: containers
containers: java setup ## The tests that need a Docker engine
	@echo "== container tests"
	@$(PYTEST) integration -m "containers $(SELECT)" --numprocesses 2 --dist loadscope --durations=5 $(ENDED) $(ARGS)

.PHONY: docs
docs: setup ## Build the documentation's site into .run/site, with warnings as errors: ten seconds
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=src $(BIN)/mkdocs build --strict $(ARGS)

.PHONY: layout
layout: setup ## Show which package imports which, and how far the layout is from its goals
	@PYTHONPATH=src $(BIN)/python -m tests.layout

.PHONY: demo
demo: java setup ## Kafka to Spark to Kafka and PostgreSQL, killed at random: about five minutes, more on a busy machine
	@$(BIN)/onceward demo $(ARGS)

.PHONY: services-up
services-up: java setup ## Start a Kafka broker and a PostgreSQL server in the background
	@$(BIN)/onceward dev up $(ARGS)

.PHONY: services-down
services-down: setup ## Stop them
	@$(BIN)/onceward dev down $(ARGS)

.PHONY: simulate-engine
simulate-engine: setup ## Run the embedded engine's simulator at length; ARGS are its own
	@PYTHONPATH=src $(BIN)/python -m tests.engine_simulator $(ARGS)

.PHONY: endure-engine
endure-engine: java setup ## Kill the embedded engine at random until Ctrl-C, on a real Kafka and PostgreSQL
	@ONCEWARD_ENGINE_KILLS=$(or $(KILLS),1000000) $(BIN)/python -m pytest integration/test_engine_end_to_end.py -q -s -m nightly --timeout 0 $(ARGS)

.PHONY: crash-matrix
crash-matrix: java setup ## Kill drivers at every durable step, an hour for 2,000 kills (writes docs/crash-matrix.md)
	@PYTHONPATH=src TMPDIR=$(SCRATCH) $(BIN)/python -m integration.crash_matrix $(ARGS)

.PHONY: simulate
simulate: setup ## Run the protocol's simulator at length; ARGS are its own
	@$(BIN)/python -m tests.simulator $(ARGS)

.PHONY: mutants
mutants: setup ## Put errors into a copy of the code, one by one: a fast test must catch each (writes tests/mutants/README.md)
	@PYTHONPATH=src $(BIN)/python -m tests.mutants $(ARGS)

.PHONY: scoreboard
scoreboard: java setup ## What everybody's sinks lose and duplicate under faults: hours (writes docs/scoreboard.md); ARGS="--only NAME"
	@PYTHONPATH=src $(BIN)/python -m benchmarks.scoreboard $(ARGS)

.PHONY: soak
soak: java setup ## A Spark pipeline under continuous faults for hours (writes docs/soak.md); ARGS="--hours 8"
	@PYTHONPATH=src $(BIN)/python -m benchmarks.soak $(ARGS)

.PHONY: lock
lock: ## Resolve the dependencies anew into requirements.lock, with hashes (needs uv)
	@command -v uv >/dev/null || { echo "error: uv is needed: pip install uv" >&2; exit 1; }
	uv pip compile pyproject.toml --quiet --group dev --all-extras --universal --python-version 3.11 \
	  --generate-hashes --no-header --output-file requirements.lock

.PHONY: bounds
bounds: ## Test the lowest versions that pyproject.toml allows, or VERSIONS=highest, in an environment of their own
	@scripts/bounds.sh $(ARGS)

.PHONY: clean
clean: ## Stop the services and delete their state and all caches of this folder
	@if [[ -x $(BIN)/onceward && -d .run ]]; then $(BIN)/onceward dev down --delete; fi
	@rm -rf .run .cache .mypy_cache .ruff_cache .pytest_cache build dist spark-warehouse
