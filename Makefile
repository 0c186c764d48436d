# Two commands: `make run` sets everything up and runs the main job, `make test` sets everything up and passes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The parts of the tests: three run at a time on two cores, for the soak and the brokers often wait, and the next begins where
# one ends. What runs alone at the end is short so.
# Each test is in exactly one of the first seven; the last tries the wheel.
PARTS := test-soak test-broker test-spark test-slow test-tieredstore test-fast test-s3 test-wheel
JOBS ?= 3
TIEREDSTORE := tests/test_tieredstore
PYTEST = $(BIN)/python -m pytest -q -o cache_dir=.run/cache/$@ --durations=5

# Hundreds of commands and three Pythons start here: none compiles its modules again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run run-s3 test check $(PARTS) soak soak-store simulate kill-s3 rebuild-million bench bench-java bench-store bench-s3 bench-offline plot format clean

# uv takes a third of pip's time, but pip alone knows a mirror that pip is told of.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade --constraint constraints.txt "pip>=25.1" uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable . --group dev \
		|| $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	touch $@

run: $(STAMP)
	$(BIN)/python -m tests.support.make_run "$(STORE)" "$(TIER)" "$(CONF)"

# The same on S3: a SeaweedFS on loopback, started and ended by this.
run-s3: $(STAMP)
	$(BIN)/python -m tests.support.make_run "$(STORE)" s3:// "$(CONF)"

test: $(STAMP)
	@echo "$(JOBS) at a time, each shown when it ends: check $(PARTS)"
	@$(MAKE) --no-print-directory --jobs=$(JOBS) --keep-going --output-sync=target check $(PARTS) \
		|| { echo "not all passed: see the lines with *** above"; exit 1; }
	@echo "all passed: check $(PARTS)"

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright

# Real time: 180 s of writing where CI is true, 30 s elsewhere; and 16 s of a message store.
test-soak: $(STAMP)
	$(PYTEST) -m "soak" tests/soak

test-broker: $(STAMP)
	$(PYTEST) -m "rocketmq and not soak" tests/test_interop

# One Java machine with one session for all tests.
test-spark: $(STAMP)
	$(PYTEST) -m "spark and not soak and not rocketmq" tests/test_spark

test-slow: $(STAMP)
	$(PYTEST) -m "slow and not soak and not rocketmq and not spark and not s3"

test-tieredstore: $(STAMP)
	$(PYTEST) -m "not slow and not soak and not rocketmq and not spark and not s3" $(TIEREDSTORE)

test-fast: $(STAMP)
	$(PYTEST) -m "not slow and not soak and not rocketmq and not spark and not s3" --ignore=$(TIEREDSTORE)

# The S3 server takes an eighth of a core while nobody asks it anything: all that use it come one after another.
test-s3: $(STAMP)
	$(PYTEST) -m "s3 and not soak and not rocketmq and not spark"

# What a wheel can break: modules, files, the command, the dependencies, what the README shows, golden bytes through it all.
IN_WHEEL := tests/test_tieredstore/test_installed.py tests/test_tieredstore/cli/test_commands.py \
	tests/test_tieredstore/config/test_effective.py tests/test_tieredstore/config/test_conf_files.py \
	tests/test_tieredstore/following/test_golden.py tests/test_tieredstore/metrics tests/test_provider/test_stores.py \
	tests/test_golden/test_old_tier.py tests/test_architecture/test_readme.py

# The wheel, installed into empty environments of several Pythons and tested where the checkout cannot be imported.
test-wheel: $(STAMP)
	rm -rf .run/wheel && mkdir -p .run/wheel/elsewhere
	$(BIN)/python -m build --wheel --installer uv --outdir .run/wheel . >.run/wheel/build.log 2>&1 || { cat .run/wheel/build.log; exit 1; }
	cp -r tests conf docs pyproject.toml README.md .run/wheel/elsewhere/
	$(BIN)/python -m tests.support.wheel_runs .run/wheel/*.whl .run/wheel/elsewhere $(IN_WHEEL)

# An hour of a broker, a follower that is killed, and readers over faults; SOAK_SECONDS=60 for less.
soak: $(STAMP)
	SOAK_SECONDS=$${SOAK_SECONDS:-3600} $(BIN)/python -m pytest -s -m soak tests/soak/test_soak.py

# An hour of a message store with a tier: 64 queues, producers, 20 groups, retention; SOAK_SECONDS=60 for less.
soak-store: $(STAMP)
	SOAK_SECONDS=$${SOAK_SECONDS:-3600} $(BIN)/python -m pytest -s -m soak tests/soak/test_store_soak.py

# Owners, merges and deletions over a faulty object store, from seeds: SEEDS of them, from FIRST on, which a failure names.
simulate: $(STAMP)
	SEEDS=$${SEEDS:-2000} $(BIN)/python -m pytest -q tests/test_faults/test_object_simulation.py

# The S3 server is killed amid requests, and started again: KILLS times.
kill-s3: $(STAMP)
	KILLS=$${KILLS:-20} $(BIN)/python -m pytest -q tests/test_faults/test_s3_killed.py

# A random tier of MESSAGES comes back byte for byte, in a directory and in an object store, by processes and by Spark; needs Java.
rebuild-million: $(STAMP)
	RANDOM_MESSAGES=$${MESSAGES:-1000000} $(BIN)/python -m pytest -q --durations=40 $(TIEREDSTORE)/offline/test_random_tier.py \
		$(TIEREDSTORE)/offline/test_random_objects.py tests/test_spark/test_random_tier.py

# This machine, beside its raw limits: a minute or two.
bench: $(STAMP)
	$(BIN)/tieredstore bench

# Ours beside RocketMQ's own tiered store, six cases on an otherwise idle machine; needs Java and Maven.
bench-java: $(STAMP)
	mkdir -p tests/bench/results
	$(BIN)/python -m tests.bench.compare --store-results tests/bench/results $(BENCH)

# Our message store beside RocketMQ's: put, put and tier, queries, restart.
bench-store: $(STAMP)
	mkdir -p tests/bench/results
	$(BIN)/python -m tests.bench.store --store-results tests/bench/results $(BENCH)

# A tier on S3 beside its client alone, on a SeaweedFS of its own.
bench-s3: $(STAMP)
	mkdir -p tests/bench/results
	$(BIN)/python -m tests.bench.object_store --store-results tests/bench/results $(BENCH)

# Offline scans and rebuilds beside raw reads, on the local engine and on Spark, and of a tier on S3: ten minutes; needs Java.
bench-offline: $(STAMP)
	mkdir -p tests/bench/results
	$(BIN)/python -m tests.bench.scan_speed --store-results tests/bench/results $(BENCH)
	$(BIN)/python -m tests.bench.object_jobs --store-results tests/bench/results $(BENCH)

# The kept comparisons, the cost of many queues and the speed of offline jobs as pictures: .run/figures.png, .run/scale.png,
# .run/packed-scale.png and .run/offline.png.
plot: $(STAMP)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --group bench
	mkdir -p .run
	$(BIN)/python tests/bench/plot.py tests/bench/results .run/figures.png
	$(BIN)/python tests/bench/plot_scale.py tests/bench/results/scale.json .run/scale.png
	$(BIN)/python tests/bench/plot_packed_scale.py tests/bench/results/packed-scale.json .run/packed-scale.png
	$(BIN)/python tests/bench/plot_offline.py tests/bench/results/offline-scan.json tests/bench/results/offline-objects.json .run/offline.png

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .run build dist
