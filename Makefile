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
# The same with another Spark, by default the oldest supported one.
SPARK ?= 4.0
OTHER := .venv-spark-$(SPARK)
OTHER_STAMP := $(OTHER)/.stamp
# Delta's Spark.
DELTA := .venv-spark-4.2
DELTA_STAMP := $(DELTA)/.stamp
# That Spark, with what benchmarks need beside it; and Iceberg's Spark.
BENCH := .venv-bench
BENCH_STAMP := $(BENCH)/.stamp
ICEBERG := .venv-iceberg
ICEBERG_STAMP := $(ICEBERG)/.stamp
# Engines that read published tables.
ENGINES := .venv-engines
ENGINES_STAMP := $(ENGINES)/.stamp
# Airflow and Dagster with this checkout; and linters of conf/deploy.
SCHEDULERS := .venv-schedulers
SCHEDULERS_STAMP := $(SCHEDULERS)/.stamp
LINTERS := .venv-linters
LINTERS_STAMP := $(LINTERS)/.stamp
# The lowest supported versions of everything but Spark, or another Python with the newest.
MINIMUM := .venv-minimum$(if $(PYTHON),-$(notdir $(PYTHON)))
MINIMUM_STAMP := $(MINIMUM)/.stamp

# Containers often set it. Then hundreds of processes would compile everything that they import, for seconds each.
unexport PYTHONDONTWRITEBYTECODE
# Of tests/effort.py: without make, pytest tries a part of it.
export HYPOTHESIS_PROFILE ?= thorough

.DEFAULT_GOAL := help
.PHONY: help setup check check-deploy format test test-minimum test-exhaustive test-storm test-kill test-kafka test-cluster test-spark test-spark-python test-engines test-schedulers test-page pictures smoke-spark test-rivals simulate second-reader scale chaos chaos-maintain demo bench bench-quick bench-core bench-spark bench-maintenance bench-long-run bench-growth conf docs wheel release-check clean distclean

help: ## Show the targets
	@grep -hE '^[a-z0-9.-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'
	@echo '  ARGS="..." is passed on by test, test-minimum, test-exhaustive, test-kill, test-kafka, test-cluster, test-spark, test-spark-python, test-engines, test-schedulers, test-page, smoke-spark, test-rivals, simulate, second-reader, chaos, chaos-maintain, demo and the benchmarks; PYTHON=... chooses the interpreter of setup and test-minimum.'

setup: $(STAMP) ## Make .venv with everything that the other targets need

$(STAMP): pyproject.toml scripts/setup.sh
	@PYTHON='$(PYTHON)' scripts/setup.sh $(VENV)

.venv-spark-%/.stamp: pyproject.toml scripts/setup.sh conf/spark-%.txt
	@PYTHON='$(PYTHON)' PIP_CONSTRAINT=conf/spark-$*.txt scripts/setup.sh .venv-spark-$*

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

$(SCHEDULERS_STAMP): pyproject.toml conf/schedulers.txt
	@$(or $(PYTHON),python3) -m venv --clear $(SCHEDULERS)
	@$(SCHEDULERS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement conf/schedulers.txt --editable .
	@touch $@

$(LINTERS_STAMP): conf/linters.txt
	@$(or $(PYTHON),python3) -m venv --clear $(LINTERS)
	@$(LINTERS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement conf/linters.txt
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

check-deploy: $(LINTERS_STAMP) ## Lint the Dockerfile, the compose file and the manifests of conf/deploy
	$(LINTERS)/bin/hadolint conf/deploy/Dockerfile
	$(LINTERS)/bin/check-jsonschema --builtin-schema vendor.compose-spec conf/deploy/compose.yml
	$(LINTERS)/bin/kubernetes-validate --strict conf/deploy/kubernetes.yml

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

smoke-spark: $(OTHER_STAMP) ## Run each road once with the oldest supported Spark, or with SPARK=4.1, and the Python data source, as CI does
	$(OTHER)/bin/python -m pytest -m smoke tests/spark --spark-format=python $(ARGS)

test-spark: $(OTHER_STAMP) ## Run the tests of Spark with the oldest supported Spark, or with SPARK=4.1, 4.2 or 4.3, in a separate environment
	$(OTHER)/bin/python -m pytest -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder tests/spark $(ARGS)

test-spark-python: $(CLASSES) ## Run the tests of Spark with the Python data source alone; `make test` runs them after install()
	$(BIN)/python -m pytest -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder tests/spark --spark-format=python $(ARGS)

test-engines: $(BENCH_STAMP) $(ICEBERG_STAMP) $(ENGINES_STAMP) ## Read published tables with delta-rs, Polars, pyiceberg, DuckDB, Delta on Spark and Iceberg on Spark, and let these try to change them
	$(BENCH)/bin/python -m pytest -m engines $(ARGS)

test-schedulers: $(STAMP) $(SCHEDULERS_STAMP) ## Run the examples for Airflow and Dagster in conf/deploy, without a server of either
	$(BIN)/python -m pytest -m schedulers tests/schedulers $(ARGS)

test-page: $(STAMP) ## Look at the pages of txlog inspect in a headless Chromium: wide and narrow, light and dark; needs chromium and chromedriver
	$(BIN)/python -m pytest -m page tests/page $(ARGS)

pictures: $(STAMP) ## Make the pictures of docs/inspect.md again; needs chromium and chromedriver
	$(BIN)/python -m tests.page.pictures

test-rivals: $(DELTA_STAMP) ## Kill the sinks of Delta and of Spark's files as test-kill does txlog's, delete their checkpoints, poll three tables
	$(DELTA)/bin/python -m tests.kill.torn_views
	@for sink in txlog delta parquet; do $(DELTA)/bin/python -m tests.kill.lost_checkpoint $$sink || exit 1; done
	$(DELTA)/bin/python -m tests.kill --sink delta --sink parquet $(ARGS)

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
	rm -rf $(VENV) .venv-spark-* $(BENCH) $(ICEBERG) $(ENGINES) $(SCHEDULERS) $(LINTERS) .venv-minimum*
