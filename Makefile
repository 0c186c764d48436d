# `make run` sets everything up and runs the main job. The tests have three levels; each sets up what it needs:
#   make test          five minutes on two cores; needs Python and pip alone
#   make test-full     twelve minutes more: an S3 server, Spark, a real broker (Java, Maven), slow tests, all pages
#   make test-nightly  before a release: soak, thousands of seeds and examples, a million messages, every Python
# HACKING.md says what belongs where; the marks in pyproject.toml say which level a test is in.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FULL_STAMP := $(VENV)/.installed-full

# Jobs at a time, and worker processes of pytest in one of them. Those of `make test` wait for disks and processes for a third of
# their time: one more than there are processors keeps these busy.
JOBS ?= 4
WORKERS ?= auto
ROOM_WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PYTEST = $(BIN)/python -m pytest -q -o cache_dir=.run/cache/$@ --durations=5
LEVEL_JOBS = $(MAKE) --no-print-directory --keep-going --output-sync=target

# In exactly one of these and of the parts of `make test-full` and `make test-nightly` is each test; those that bear `scales`, and
# those of Hypothesis, are in each level, with more seeds and examples. A number of examples that is `fixed` is met once by day.
IN_TEST := not slow and not data and not s3 and not spark and not rocketmq and not nightly and not soak
SCALING := not s3 and not spark and not rocketmq and not nightly and not soak and (slow or data or scales or hypothesis and not fixed)
# Those that wait for servers and processes use three quarters of two processors together. The slow tests compute: they have less
# priority, and fill what is left.
FULL_PARTS := test-spark test-broker test-s3 test-slow
NIGHTLY_PARTS := test-soak test-soak-store test-seeds test-long test-broker test-old-broker test-million test-wheels test-cpu

# Hundreds of commands start here: none compiles its modules again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: coverage mutants promtool chromium run run-s3 test test-full test-nightly check check-full test-rooms test-wheel $(FULL_PARTS) $(NIGHTLY_PARTS) soak soak-store \
	simulate kill-s3 rebuild-million bench bench-java bench-store bench-s3 bench-offline plot format clean plugin-jar

# As pip does: a mirror's certificate may be known to this machine alone.
export UV_SYSTEM_CERTS := true

# uv takes a third of pip's time, but pip alone knows a mirror that pip is told of.
define install
$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt $(1) \
	|| $(BIN)/python -m pip install --quiet --constraint constraints.txt $(1)
endef

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade --constraint constraints.txt "pip>=25.1" uv
	$(call install,--editable . --group base)
	touch $@

# The alerts are tested with it. CI installs it, for the package brings a service; elsewhere a test without it says so.
promtool:
	@command -v promtool >/dev/null || { [ -n "$$CI" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get update --quiet=2 && apt-get install --quiet=2 --yes --no-install-recommends prometheus >/dev/null; } \
		|| echo "promtool is not installed here: the alerts are not tested"

# A real browser, for the console's pages; likewise.
chromium:
	@command -v chromium >/dev/null || { [ -n "$$CI" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get update --quiet=2 && apt-get install --quiet=2 --yes --no-install-recommends chromium >/dev/null; } \
		|| echo "chromium is not installed here: the console is not tested in a browser"

$(FULL_STAMP): $(STAMP)
	$(call install,--group full)
	touch $@

run: $(STAMP)
	$(BIN)/python -m tests.support.make_run "$(STORE)" "$(TIER)" "$(CONF)"

# The same on S3: a SeaweedFS on loopback, started and ended by this.
run-s3: $(FULL_STAMP)
	$(BIN)/python -m tests.support.make_run "$(STORE)" s3:// "$(CONF)"

# The last line is that of the tests in all rooms, which take longest.
test: $(STAMP)
	@$(LEVEL_JOBS) --jobs=2 test-rooms check test-wheel

test-full: $(FULL_STAMP) promtool chromium
	@echo "$(JOBS) at a time, each shown when it ends: $(FULL_PARTS) check-full"
	@$(LEVEL_JOBS) --jobs=$(JOBS) $(FULL_PARTS) check-full

# Hours. A test over one second of CPU in `make test` fails it, too.
test-nightly: $(FULL_STAMP)
	@$(LEVEL_JOBS) --jobs=3 $(NIGHTLY_PARTS)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright --project pyrightbase.json
	$(BIN)/python -m tests.support.sizes

# The types where Spark, Iceberg and pandas are used: what `check` leaves out.
check-full: $(FULL_STAMP)
	$(BIN)/pyright $$($(BIN)/python -c 'import json; print(*json.load(open("pyrightbase.json"))["ignore"])')

# `+`: shown while it runs, for make holds nothing back of what may be another make.
test-rooms: $(STAMP)
	+@$(PYTEST) -n $(ROOM_WORKERS) --dist worksteal -m "$(IN_TEST)" --left-out

test-broker: export HYPOTHESIS_PROFILE := full
test-broker: $(FULL_STAMP)
	$(PYTEST) -m "rocketmq and not nightly and not soak" tests/test_interop

# The same with the broker of an older line, and the plug-in in the oldest one that takes it.
test-old-broker: $(FULL_STAMP)
	ROCKETMQ_VERSION=5.3.3 $(MAKE) --no-print-directory test-broker
	ROCKETMQ_VERSION=5.1.4 $(PYTEST) tests/test_interop/test_java_plugin.py tests/test_interop/test_serve_beside_broker.py

# One Java machine with one session for all tests.
test-spark: export HYPOTHESIS_PROFILE := full
test-spark: $(FULL_STAMP)
	$(PYTEST) -m "spark and not rocketmq and not nightly and not soak" tests/test_spark

test-slow: export HYPOTHESIS_PROFILE := full
test-slow: $(FULL_STAMP)
	nice -n 5 $(PYTEST) -n $(WORKERS) --dist worksteal -m "$(SCALING)"

test-s3: export HYPOTHESIS_PROFILE := full
test-s3: $(FULL_STAMP)
	$(PYTEST) -m "s3 and not spark and not rocketmq and not nightly and not soak"

# Real time: SOAK_SECONDS of writing, and 16 s of a message store.
test-soak: $(FULL_STAMP)
	$(PYTEST) -m soak tests/soak/test_soak.py

test-soak-store: $(FULL_STAMP)
	$(PYTEST) -m soak tests/soak/test_store_soak.py

# All that scales, with thousands of seeds and examples: some two hours on two cores. After SEEDS_SECONDS it ends, and fails, behind
# the tests that run then. Failures are printed at once, for a night may end before its summary.
SEEDS_SECONDS ?= 10800
test-seeds: export HYPOTHESIS_PROFILE := nightly
test-seeds: $(FULL_STAMP)
	$(PYTEST) -n $(WORKERS) --dist worksteal --timeout 0 --session-timeout $(SEEDS_SECONDS) --at-once -m "(scales or hypothesis) and not soak"

# Minutes each, and nothing that scales.
test-long: export HYPOTHESIS_PROFILE := nightly
test-long: $(FULL_STAMP)
	$(PYTEST) --timeout 0 -m "nightly and not scales and not hypothesis and not soak"

# What a wheel can break: modules, files, the command, the dependencies, what the README shows, golden bytes through it all.
IN_WHEEL := tests/test_tieredstore/test_installed.py tests/test_tieredstore/cli/test_commands.py \
	tests/test_tieredstore/config/test_effective.py tests/test_tieredstore/config/test_conf_files.py \
	tests/test_tieredstore/following/test_golden.py tests/test_tieredstore/metrics tests/test_provider/test_stores.py \
	tests/test_golden/test_old_tier.py tests/test_architecture/test_readme.py

# The plug-in for Java brokers, as package data; needs Java and Maven. `make test` does without, so it is called before a release's wheel is built.
PLUGIN_JAR := tieredstore/java_plugin/tieredstore-rocketmq-plugin.jar
plugin-jar:
	mvn -q -B -f rocketmq-plugin/pom.xml -DbuildDirectory=../.run/$@ package
	mkdir -p $(dir $(PLUGIN_JAR))
	cp .run/$@/$(notdir $(PLUGIN_JAR)) $(PLUGIN_JAR)

# The wheel, installed beside what is installed already and tested where the checkout cannot be imported.
test-wheel: $(STAMP)
	$(call wheel,--no-isolation)
	$(BIN)/python -m tests.support.wheel_runs --here .run/$@/*.whl .run/$@/elsewhere

# The same in empty environments of several Pythons.
test-wheels: $(FULL_STAMP)
	$(call wheel,--installer uv)
	$(BIN)/python -m tests.support.wheel_runs .run/$@/*.whl .run/$@/elsewhere $(IN_WHEEL)

# `make test` again, where a test over one second of CPU fails.
test-cpu: $(FULL_STAMP)
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "$(IN_TEST)" --fail-over-cpu

# Lines and branches of our packages that the tests of `make test` run, and those of test-slow besides; what commands do in
# processes of their own is not counted. A table of the modules that lack some, and pages in .run/coverage.
coverage: $(FULL_STAMP)
	$(BIN)/coverage erase
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "$(IN_TEST)" --cov --cov-report=term:skip-covered
	HYPOTHESIS_PROFILE=full $(PYTEST) -n $(WORKERS) --dist worksteal -m "$(SCALING)" --cov --cov-append \
		--cov-report=term:skip-covered --cov-report=html:.run/coverage

# Each changed rule of the protocol, each left-out sync: how many the tests notice. One that lives fails.
mutants: export HYPOTHESIS_PROFILE := full
mutants: $(STAMP)
	$(PYTEST) -n $(WORKERS) --dist worksteal -k "kills or mistake or caught" tests/test_faults/test_mutants.py \
		tests/test_faults/test_power_failures.py tests/test_tieredstore/hot/test_power.py

define wheel
rm -rf .run/$@ && mkdir -p .run/$@/elsewhere
$(BIN)/python -m build --wheel $(1) --outdir .run/$@ . >.run/$@/build.log 2>&1 || { cat .run/$@/build.log; exit 1; }
cp -r tests conf docs pyproject.toml README.md .run/$@/elsewhere/
endef

# An hour of a broker, a follower that is killed, and readers over faults; SOAK_SECONDS=60 for less.
soak: $(STAMP)
	SOAK_SECONDS=$${SOAK_SECONDS:-3600} $(BIN)/python -m pytest -s -m soak tests/soak/test_soak.py

# An hour of a message store with a tier: 64 queues, producers, 20 groups, retention; SOAK_SECONDS=60 for less.
soak-store: $(STAMP)
	SOAK_SECONDS=$${SOAK_SECONDS:-3600} $(BIN)/python -m pytest -s -m soak tests/soak/test_store_soak.py

# Owners, merges and deletions over a faulty object store, and over files, from seeds: SEEDS of them, from FIRST on, which a failure names.
simulate: $(STAMP)
	SEEDS=$${SEEDS:-2000} $(BIN)/python -m pytest -q tests/test_faults/test_object_simulation.py

# The S3 server is killed amid requests, and started again: KILLS times.
kill-s3: $(FULL_STAMP)
	KILLS=$${KILLS:-20} $(BIN)/python -m pytest -q tests/test_faults/test_s3_killed.py

test-million: rebuild-million

# A random tier of MESSAGES comes back byte for byte, in a directory and in an object store, by processes and by Spark; needs Java.
rebuild-million: $(FULL_STAMP)
	RANDOM_MESSAGES=$${MESSAGES:-1000000} $(BIN)/python -m pytest -q --durations=40 \
		tests/test_tieredstore/offline/test_random_tier.py tests/test_tieredstore/offline/test_random_objects.py \
		tests/test_spark/test_random_tier.py

# This machine, beside its raw limits: a minute or two.
bench: $(STAMP)
	$(BIN)/tieredstore bench

# Ours beside RocketMQ's own tiered store, six cases on an otherwise idle machine; needs Java and Maven.
bench-java: $(FULL_STAMP)
	mkdir -p tests/bench/results
	$(BIN)/python -m tests.bench.compare --store-results tests/bench/results $(BENCH)

# Our message store beside RocketMQ's: put, put and tier, queries, restart.
bench-store: $(FULL_STAMP)
	mkdir -p tests/bench/results
	$(BIN)/python -m tests.bench.store --store-results tests/bench/results $(BENCH)

# A tier on S3 beside its client alone, on a SeaweedFS of its own.
bench-s3: $(FULL_STAMP)
	mkdir -p tests/bench/results
	$(BIN)/python -m tests.bench.object_store --store-results tests/bench/results $(BENCH)

# Offline scans and rebuilds beside raw reads, on the local engine and on Spark, and of a tier on S3: ten minutes; needs Java.
bench-offline: $(FULL_STAMP)
	mkdir -p tests/bench/results
	$(BIN)/python -m tests.bench.scan_speed --store-results tests/bench/results $(BENCH)
	$(BIN)/python -m tests.bench.object_jobs --store-results tests/bench/results $(BENCH)

# The kept comparisons, the cost of many queues and the speed of offline jobs as pictures: docs/figures.png, .run/scale.png,
# .run/packed-scale.png and .run/offline.png.
plot: $(FULL_STAMP)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --group bench
	mkdir -p .run
	$(BIN)/python tests/bench/plot.py tests/bench/results docs/figures.png
	$(BIN)/python tests/bench/plot_scale.py tests/bench/results/scale.json .run/scale.png
	$(BIN)/python tests/bench/plot_packed_scale.py tests/bench/results/packed-scale.json .run/packed-scale.png
	$(BIN)/python tests/bench/plot_offline.py tests/bench/results/offline-scan.json tests/bench/results/offline-objects.json .run/offline.png

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .run build dist
