# Every target makes its own virtual environment first: only Python and make are needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Touched when the environment fits pyproject.toml.
READY := $(VENV)/.ready
LOCK := $(BIN)/uv pip compile --quiet --upgrade --generate-hashes --no-annotate --no-emit-index-url \
  --python-version 3.13 --python-platform linux --custom-compile-command 'make lock'
OF_ALL := pyproject.toml --extra binary
# Tests start Python hundreds of times: compiled modules are kept.
unexport PYTHONDONTWRITEBYTECODE
# The tests of a file share a database, and the plans of a connection.
PYTEST := $(BIN)/pytest -n logical --maxprocesses 8 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help release setup demo check lint mypy pyright generated docs test test-thorough test-all test-slow walk mutants sync lock snapshot reference pictures bench bench-smoke clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv with everything that the other targets need (1.4 GB, minutes)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: hwqueue needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version 2>&1);" \
	    "name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: setup ## Watch a small GPU cluster pull its work; under a minute after setup
	$(BIN)/hwqueue demo

check: setup ## Lint, types, import directions, generated files, the site of the docs
	$(MAKE) --no-print-directory -j mypy pyright lint generated docs

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

mypy: setup
	$(BIN)/mypy

pyright: setup
	$(BIN)/pyright --project tests/typing

generated: setup
	$(BIN)/python tools/async_to_sync.py --check
	$(BIN)/python tools/sql_reference.py --check
	$(BIN)/python tools/openapi.py --check
	$(BIN)/python tools/metrics_reference.py --check
	$(BIN)/python tools/options_reference.py --check
	$(BIN)/python tools/features_reference.py --check

docs: setup ## Build the site of the documentation in docs/_build/html
	$(BIN)/sphinx-build -q -W --keep-going -n -d docs/_build/doctrees docs docs/_build/html

test: setup ## Run the tests, in 3 minutes (HWQUEUE_TEST_DSN: on a server of your own)
	$(PYTEST) -m 'not slow and not thorough'

test-thorough: setup ## Run those that take longer: races, plans, upgrades, processes, browsers
	$(PYTEST) -m 'thorough and not slow' $(if $(VARIANTS),--variants $(VARIANTS)) $(TESTS)

test-all: test test-thorough ## Run both

test-slow: setup ## Run what takes hours: long storms, wheels, pools, peers, whole walks
	$(PYTEST) -m slow

walk: setup ## Walk over all states of small worlds, every call from each
	$(BIN)/pytest -q -s -m 'slow or not slow' tests/walk

mutants: setup ## Plant known bugs one by one: the tests must catch each (25 minutes)
	$(BIN)/python -m tests.mutants

sync: setup ## Generate the sync client and the sync half of contexts from the async ones
	$(BIN)/python tools/async_to_sync.py

reference: setup ## Generate docs/reference: sql.md, cli.md, options.md, features.md and others
	$(BIN)/python tools/sql_reference.py
	$(BIN)/python tools/openapi.py
	$(BIN)/python tools/metrics_reference.py
	$(BIN)/python tools/options_reference.py
	$(BIN)/python tools/features_reference.py
	$(BIN)/typer hwqueue.cli.main utils docs --name hwqueue --output docs/reference/cli.md

lock: setup ## Write docker/*.lock: what the images install, by version and hash (needs PyPI)
	$(BIN)/pip install --quiet --disable-pip-version-check 'uv>=0.9'
	$(LOCK) $(OF_ALL) --extra serve --extra webhooks --output-file docker/server.lock
	$(LOCK) $(OF_ALL) --extra cli --constraint docker/server.lock --output-file docker/worker.lock
	$(LOCK) $(OF_ALL) --extra cli --extra schema --constraint docker/server.lock --output-file docker/migrate.lock
	$(LOCK) $(OF_ALL) --extra planner --constraint docker/server.lock --output-file docker/planner.lock
	$(LOCK) docker/build.in --output-file docker/build.lock

release: setup ## Build, check and try what an index would get; stops before the upload (needs PyPI)
	$(BIN)/python tools/release.py

snapshot: setup ## Write sql/schema.snapshot.sql and sql/schema.manifest.json from a fresh install
	$(BIN)/python -m tests.migrations.snapshot

pictures: setup ## Take the pictures in docs/images again (needs Chromium)
	$(BIN)/python -m tests.dashboard.screenshots

bench: setup ## Measure; see benchmarks/README.md
	$(BIN)/python -m benchmarks

bench-smoke: setup ## Hold what calls cost against benchmarks/limits.toml; under a minute
	$(BIN)/python -m benchmarks smoke

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
