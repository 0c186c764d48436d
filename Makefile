# Two commands: `make run` sets everything up and runs the main job, `make test` sets everything up and passes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: run test check wheel-test soak bench format clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	touch $@

run: $(STAMP)
	$(BIN)/python tests/support/make_run.py "$(STORE)" "$(TIER)"

test: check
	$(BIN)/python -m pytest --durations=15
	$(MAKE) --no-print-directory wheel-test

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright

# The wheel, installed into an empty environment and tested where the checkout cannot be imported.
wheel-test: $(STAMP)
	rm -rf .run/wheel && mkdir -p .run/wheel/elsewhere
	$(BIN)/python -m build --wheel --installer pip --outdir .run/wheel . >.run/wheel/build.log 2>&1 || { cat .run/wheel/build.log; exit 1; }
	$(PYTHON) -m venv .run/wheel/venv
	.run/wheel/venv/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.run/wheel/venv/bin/python -m pip install --quiet --constraint constraints.txt --group test .run/wheel/*.whl
	cp -r tests conf pyproject.toml README.md .run/wheel/elsewhere/
	cd .run/wheel/elsewhere && ../venv/bin/python -m pytest -q -m "not rocketmq and not slow and not checkout"

# An hour of a broker, a follower that is killed, and readers over faults; SOAK_SECONDS=60 for less.
soak: $(STAMP)
	SOAK_SECONDS=$${SOAK_SECONDS:-3600} $(BIN)/python -m pytest -s -m soak tests/soak

bench: $(STAMP)
	$(BIN)/tieredstore bench --store-results tests/bench/results

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .run build dist
