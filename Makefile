# The same few commands for people and for CI. Every target sets up what it needs: `make demo` and `make test` work on
# a clean clone.

PYTHON ?=
MINUTES ?= 2
WORLDS ?= 300
START ?= 0
VENV := .venv
BIN := $(VENV)/bin
# Made by scripts/setup.sh at its end; made again when the dependencies change.
STAMP := $(VENV)/.stamp

.DEFAULT_GOAL := help
.PHONY: help setup check format test test-storm test-kill simulate chaos demo bench-core bench-stream conf wheel clean distclean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'
	@echo '  ARGS="..." is handed on by test, test-kill, simulate, chaos, demo and the benchmarks; PYTHON=... chooses the interpreter of setup.'

setup: $(STAMP) ## Make .venv with all that the other targets need

$(STAMP): pyproject.toml scripts/setup.sh
	@PYTHON='$(PYTHON)' scripts/setup.sh $(VENV)

check: $(STAMP) ## Lint, formatting, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: $(STAMP) ## Run all tests
	$(BIN)/python -m pytest $(ARGS)

test-storm: $(STAMP) ## Run the tests that take many minutes: SIGKILL at every write over S3's protocol, longer storms
	$(BIN)/python -m pytest -m storm -s $(ARGS)

test-kill: $(STAMP) ## Kill streaming queries at every point of a micro-batch, three times each; a table of what was lost
	$(BIN)/python -m tests.kill $(ARGS)

simulate: $(STAMP) ## Explore every scenario of the protocol whole, plant every mutant, then run WORLDS=300 random worlds
	$(BIN)/python -m txlog.testing.explore $(ARGS)
	$(BIN)/python -m txlog.testing.simulate --seeds $(WORLDS) --start $(START)

demo: $(STAMP) ## Run the main job on 336,776 real flights
	$(BIN)/txlog demo $(ARGS)

chaos: $(STAMP) ## Kill and stop real processes for MINUTES=2, then prove that nothing was lost, doubled or torn
	$(BIN)/python -m txlog.testing.chaos --minutes $(MINUTES) $(ARGS)

bench-core: $(STAMP) ## Milliseconds and storage requests of an append and of a transaction
	$(BIN)/python -m benchmarks.core $(ARGS)

bench-stream: $(STAMP) ## Milliseconds of a micro-batch through the streaming sink, beside noop and Parquet
	$(BIN)/python -m benchmarks.stream_sink $(ARGS)

conf: $(STAMP) ## Write conf/txlog.toml from the table of settings
	$(BIN)/python conf/generate.py

wheel: $(STAMP) ## Build sdist and wheel into dist/
	$(BIN)/python -m build --no-isolation

clean: ## Remove what builds, tests and tools left
	rm -rf build dist reports spark-warehouse metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## ... and .venv
	rm -rf $(VENV)
