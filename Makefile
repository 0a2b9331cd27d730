# The same few commands for people and for CI. Every target sets up what it needs: `make demo` and `make test` work on
# a clean clone.

PYTHON ?=
MINUTES ?= 2
PROCESSES ?= 3
# The seed of a storm. By default it is drawn and printed.
SEED ?=
WORLDS ?= 300
START ?= 0
VENV := .venv
BIN := $(VENV)/bin
# scripts/setup.sh makes it at its end, and again when the dependencies change.
STAMP := $(VENV)/.stamp
# Spark's classes, parsed and verified once: with it, targets that start Java dozens of times need three fifths of the CPU time.
CLASSES := $(VENV)/spark-classes.jsa
# The same with the oldest supported Spark.
OLDEST := .venv-spark-4.2
OLDEST_STAMP := $(OLDEST)/.stamp
# That Spark, with what benchmarks need beside it; and Iceberg's Spark.
BENCH := .venv-bench
BENCH_STAMP := $(BENCH)/.stamp
ICEBERG := .venv-iceberg
ICEBERG_STAMP := $(ICEBERG)/.stamp
# Engines that read published tables.
ENGINES := .venv-engines
ENGINES_STAMP := $(ENGINES)/.stamp
# The lowest supported versions of everything but Spark, or another Python with the newest.
MINIMUM := .venv-minimum$(if $(PYTHON),-$(notdir $(PYTHON)))
MINIMUM_STAMP := $(MINIMUM)/.stamp

# Containers often set it. Then hundreds of processes would compile everything that they import, for seconds each.
unexport PYTHONDONTWRITEBYTECODE
# Of tests/effort.py: without make, pytest tries a part of it.
export HYPOTHESIS_PROFILE ?= thorough

.DEFAULT_GOAL := help
.PHONY: help setup check format test test-minimum test-exhaustive test-storm test-kill test-kafka test-cluster test-spark-4.2 test-spark-python test-engines test-page pictures smoke-spark-4.2 test-rivals simulate second-reader scale chaos chaos-maintain demo bench bench-quick bench-core bench-spark bench-maintenance bench-long-run bench-growth conf docs wheel release-check clean distclean

help: ## Show the targets
	@grep -hE '^[a-z0-9.-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'
	@echo '  ARGS="..." is passed on by test, test-minimum, test-exhaustive, test-kill, test-kafka, test-cluster, test-spark-4.2, test-spark-python, test-engines, test-page, smoke-spark-4.2, test-rivals, simulate, second-reader, chaos, chaos-maintain, demo and the benchmarks; PYTHON=... chooses the interpreter of setup and test-minimum.'

setup: $(STAMP) ## Make .venv with everything that the other targets need

$(STAMP): pyproject.toml scripts/setup.sh
	@PYTHON='$(PYTHON)' scripts/setup.sh $(VENV)

$(OLDEST_STAMP): pyproject.toml scripts/setup.sh conf/spark-4.2.txt
	@PYTHON='$(PYTHON)' PIP_CONSTRAINT=conf/spark-4.2.txt scripts/setup.sh $(OLDEST)

$(BENCH_STAMP): pyproject.toml scripts/setup.sh conf/spark-4.2.txt
	@PYTHON='$(PYTHON)' PIP_CONSTRAINT=conf/spark-4.2.txt scripts/setup.sh $(BENCH) spark,dev,bench

$(ICEBERG_STAMP): conf/iceberg.txt
	@$(or $(PYTHON),python3) -m venv --clear $(ICEBERG)
	@$(ICEBERG)/bin/python -m pip install --quiet --disable-pip-version-check --requirement conf/iceberg.txt
	@touch $@

$(ENGINES_STAMP): conf/engines.txt
	@$(or $(PYTHON),python3) -m venv --clear $(ENGINES)
	@$(ENGINES)/bin/python -m pip install --quiet --disable-pip-version-check --requirement conf/engines.txt
	@touch $@

$(MINIMUM_STAMP): pyproject.toml conf/minimum.txt
	@$(or $(PYTHON),python3.11) -m venv --clear $(MINIMUM)
	@PIP_CONSTRAINT=conf/minimum.txt $(MINIMUM)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

$(CLASSES): $(STAMP)
	@$(BIN)/python -m tests.jvm || { echo 'Java cannot share its classes here; the tests take longer.'; touch $@; }

check: $(STAMP) ## Lint, formatting, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Apply the fixes and the format of ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: $(CLASSES) ## Run all tests, in three processes
	$(BIN)/python -m pytest -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder $(ARGS)

# Old versions use what newer versions of their own dependencies deprecate.
test-minimum: $(MINIMUM_STAMP) ## Run the tests of core, protocol, storage, client, commands and metrics with the lowest supported versions, or with PYTHON=... and the newest
	$(MINIMUM)/bin/python -m pytest -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder -W ignore::DeprecationWarning tests/core tests/protocol tests/storage tests/client tests/cli tests/metrics $(ARGS)

test-storm: $(CLASSES) ## Run the tests that take many minutes: SIGKILL before every write, also over the S3 protocol, and longer storms
	$(BIN)/python -m pytest -m storm -s $(ARGS)

test-exhaustive: $(CLASSES) $(BENCH_STAMP) $(ENGINES_STAMP) ## Run each harness over every line, life and schedule; `make test` runs a sample of each
	$(BIN)/python -m pytest -m exhaustive -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder $(ARGS)

test-kafka: $(CLASSES) ## Ingest from a real Kafka and kill the job in the middle; broker and Spark's connector come from Maven
	$(BIN)/python -m pytest -m kafka $(ARGS)

test-cluster: $(CLASSES) ## Run the tests on a standalone cluster, over Spark Connect and in Declarative Pipelines
	$(BIN)/python -m pytest -m cluster $(ARGS)

smoke-spark-4.2: $(OLDEST_STAMP) ## Run each road once with the oldest supported Spark and the Python data source, as CI does
	$(OLDEST)/bin/python -m pytest -m smoke tests/spark --spark-format=python $(ARGS)

test-spark-4.2: $(OLDEST_STAMP) ## Run the tests of Spark with the oldest supported Spark, in a separate environment
	$(OLDEST)/bin/python -m pytest tests/spark $(ARGS)

test-spark-python: $(CLASSES) ## Run the tests of Spark with the Python data source alone; `make test` runs them after install()
	$(BIN)/python -m pytest -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder tests/spark --spark-format=python $(ARGS)

test-engines: $(BENCH_STAMP) $(ICEBERG_STAMP) $(ENGINES_STAMP) ## Read published tables with delta-rs, Polars, pyiceberg, DuckDB, Delta on Spark and Iceberg on Spark, and let these try to change them
	$(BENCH)/bin/python -m pytest -m engines $(ARGS)

test-page: $(STAMP) ## Look at the pages of txlog inspect in a headless Chromium: wide and narrow, light and dark; needs chromium and chromedriver
	$(BIN)/python -m pytest -m page tests/page $(ARGS)

pictures: $(STAMP) ## Make the pictures of docs/inspect.md again; needs chromium and chromedriver
	$(BIN)/python -m tests.page.pictures

test-rivals: $(OLDEST_STAMP) ## Kill the sinks of Delta and of Spark's files as test-kill does txlog's, delete their checkpoints, poll three tables
	$(OLDEST)/bin/python -m tests.kill.torn_views
	@for sink in txlog delta parquet; do $(OLDEST)/bin/python -m tests.kill.lost_checkpoint $$sink || exit 1; done
	$(OLDEST)/bin/python -m tests.kill --sink delta --sink parquet $(ARGS)

test-kill: $(CLASSES) ## Kill streaming queries at every point of a micro-batch and count lost rows: the sink three times, natively once
	$(BIN)/python -m tests.kill --sink txlog $(ARGS)
	$(BIN)/python -m tests.kill --sink txlog-native --rounds 1 $(ARGS)

simulate: $(STAMP) ## Explore every scenario of the protocol, plant every mutant, then run WORLDS=300 random worlds; one process per core
	$(BIN)/python -m lab.explore $(ARGS)
	$(BIN)/python -m lab.simulate --seeds $(WORLDS) --start $(START)

second-reader: $(STAMP) ## Compare the client with a reader that was written from PROTOCOL.md alone, on WORLDS=300 random stores
	$(BIN)/python -m tests.second_reader --worlds $(WORLDS) --start $(START) $(ARGS)

scale: $(STAMP) ## Simulate up to 1,000 writers on a store with 60 ms a request, in virtual time: docs/scale.md
	$(BIN)/python -m lab.scale $(ARGS)

chaos-maintain: $(STAMP) $(ENGINES_STAMP) ## Run chaos for MINUTES=10 with two txlog maintain --daemon, which are also killed; other engines poll published tables
	$(BIN)/python -m lab.chaos --maintain --engines $(ENGINES)/bin/python --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

demo: $(STAMP) ## Run the main job on 336,776 real flights
	$(BIN)/python -m lab.demo $(ARGS)

chaos: $(STAMP) ## Kill and stop real processes for MINUTES=2 (SEED=n repeats a storm), then prove that no row was lost, doubled or torn
	$(BIN)/python -m lab.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

bench: $(BENCH_STAMP) $(ICEBERG_STAMP) ## Measure txlog beside Kafka, Delta, Iceberg, delta-rs and Parquet: a table with a line for each goal; ARGS='P3 P8' chooses rows
	$(BENCH)/bin/python -m benchmarks $(ARGS)

bench-quick: $(BENCH_STAMP) $(ICEBERG_STAMP) ## The same with a tenth of the work, in 25 minutes
	$(BENCH)/bin/python -m benchmarks --quick $(ARGS)

bench-core: ## Rows P1, P3 and P16: appends and transactions of one process
	@$(MAKE) --no-print-directory bench ARGS='P1 P3 P16 $(ARGS)'

bench-spark: ## Rows P7 to P13: txlog on Spark beside Delta, Iceberg and Parquet
	@$(MAKE) --no-print-directory bench ARGS='P7 P8 P9 P10 P11 P12 P13 $(ARGS)'

bench-maintenance: ## Row P14: merge of many small commits
	@$(MAKE) --no-print-directory bench ARGS='P14 $(ARGS)'

bench-long-run: $(STAMP) ## Rows long-run and longest-run: 10,000 and 100,000 transactions with maintenance; fails if the store grows
	$(BIN)/python -m benchmarks long-run longest-run --check $(ARGS)

bench-growth: $(STAMP) ## Row growth: cost of groups, ids, segments, partitions, months of running and of what others wrote, at n and at 4 n; fails if it grows too fast
	$(BIN)/python -m benchmarks growth --check $(ARGS)

conf: $(STAMP) ## Write conf/txlog.toml and the options in docs/kafka.md from the tables in the code
	$(BIN)/python conf/generate.py

docs: $(STAMP) ## Build the documentation as a site in build/site; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file conf/mkdocs.yml

wheel: $(STAMP) ## Build sdist and wheel into dist/
	$(BIN)/python -m build --no-isolation

release-check: $(STAMP) ## Build wheel and sdist, install each into an empty environment and run the README's first program; ARGS=--final before the tag
	$(BIN)/python scripts/release_check.py $(ARGS)

clean: ## Remove what builds, tests and tools have left
	rm -rf build dist reports spark-warehouse metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path './.venv*' -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## ... and .venv
	rm -rf $(VENV) $(OLDEST) $(BENCH) $(ICEBERG) $(ENGINES) .venv-minimum*
