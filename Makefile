# make demo    sets everything up and shows the main job          make test    sets everything up and runs the tests
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help setup lock browser demo test test-slow test-flower test-engines test-install docs lint coverage mutants golden bench bench-robustness clean

help:
	@echo "make demo | setup | lock | test | test-slow | test-flower | test-engines | test-install | docs | lint | coverage | mutants | golden | bench | bench-robustness | clean"

setup: $(READY)

# Every file by its hash (tests/install/lock.py says why torch is apart); hatchling is among them, so that the build
# fetches nothing. The last line of torch's does nothing here: a build with CUDA names packages that are in no lock.
PIP := $(BIN)/pip --disable-pip-version-check -q
$(READY): pyproject.toml lock.txt lock-torch.txt
	$(PYTHON) -m venv .venv
	$(PIP) install --no-deps --require-hashes -r lock.txt
	$(PIP) download --no-deps -d .venv/torch torch==2.13.0
	$(PIP) install --no-deps --require-hashes --no-index -f .venv/torch -r lock-torch.txt
	$(PIP) install -c constraints.txt torch==2.13.0
	$(PIP) install --no-deps --no-build-isolation -e .
	$(PIP) check
	@rm -r .venv/torch && touch $@

# After a change of constraints.txt
lock:
	$(PYTHON) tests/install/lock.py

# The report is tested in a real browser: Debian's Chromium. Where it cannot be had those tests say so and are skipped.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	|| { echo "installing Chromium for the browser tests"; \
	     { [ "$$(id -u)" = 0 ] && apt-get -qq update && apt-get -qq install -y chromium; } >/dev/null 2>&1 \
	     || echo "no Chromium here: the browser tests will be skipped"; }

demo: $(READY)
	$(BIN)/fedhyper demo

# -n 2: one process a core of the smallest machine we support; more cores make it faster with -n auto
test: $(READY) browser lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not flower and not engines and not install"

# With what make test has of the promises, so that the table at its end is whole (docs/reliability.md)
test-slow: $(READY) browser
	$(BIN)/python -m pytest -m "(slow or promise) and not flower and not engines and not install"

test-flower: $(READY)
	$(BIN)/python -m pytest -m flower

# Real runs of NVFlare and pfl, on loopback, and of the trackers, offline, each in an environment of its own: pfl
# pins absl-py and attrs lower than the rest needs. Installed as a user would, and not as a link: NVFlare copies what lies
# outside site-packages into every job. -o filterwarnings: other people's warnings.
ENGINES := .engines
ENGINE_TEST := scikit-learn safetensors pytest pytest-timeout

$(ENGINES)/nvflare/.ready:
	$(PYTHON) -m venv $(ENGINES)/nvflare
	$(ENGINES)/nvflare/bin/pip install -q --disable-pip-version-check torch==2.13.0 'nvflare==2.9.*' $(ENGINE_TEST)
	@touch $@

$(ENGINES)/pfl/.ready:
	$(PYTHON) -m venv $(ENGINES)/pfl
	$(ENGINES)/pfl/bin/pip install -q --disable-pip-version-check torch==2.13.0 'pfl==0.6.*' $(ENGINE_TEST)
	@touch $@

$(ENGINES)/trackers/.ready: pyproject.toml
	$(PYTHON) -m venv $(ENGINES)/trackers
	$(ENGINES)/trackers/bin/pip install -q --disable-pip-version-check torch==2.13.0 '.[sim,wandb,mlflow,trackio]' $(ENGINE_TEST)
	@touch $@

test-engines: $(ENGINES)/nvflare/.ready $(ENGINES)/pfl/.ready $(ENGINES)/trackers/.ready
	for engine in nvflare pfl trackers; do \
	  $(ENGINES)/$$engine/bin/pip install -q --disable-pip-version-check --no-deps --force-reinstall . && \
	  $(ENGINES)/$$engine/bin/python -m pytest tests/engines/test_$$engine.py -m engines -o filterwarnings=default \
	  || exit 1; done

# The site, from the package registry alone; a warning is an error, so a link that leads nowhere ends it. -E: all of it,
# for a page that was read before does not warn again.
$(ENGINES)/docs/.ready: pyproject.toml
	$(PYTHON) -m venv $(ENGINES)/docs
	$(ENGINES)/docs/bin/pip install -q --disable-pip-version-check '.[docs]'
	@touch $@

docs: $(ENGINES)/docs/.ready
	$(ENGINES)/docs/bin/sphinx-build -q -E -W --keep-going -b html docs build/site
	@echo "build/site/index.html"

# Every extra in an environment of its own, from the package index, with and without constraints.txt; a table at the end.
# FEDHYPER_TORCHES=DIR keeps the torches of the interpreters for the next time.
test-install: $(READY)
	$(BIN)/python -m pytest -m install -n 0 tests/install

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Of the fast tests, the processes they start included. Not part of make test: it costs a quarter of its time.
coverage: $(READY) browser
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 2 --dist worksteal -m "not slow and not flower and not engines and not install"
	$(BIN)/coverage combine -q
	$(BIN)/coverage report --skip-covered

# Every mutant of layer 1, about an hour; make test-slow judges a sample
mutants: $(READY)
	$(BIN)/python tests/mutants.py -j 2

# The weights of every method against tests/golden/hashes.json
golden: $(READY)
	$(BIN)/python tests/golden/take.py build/golden.json
	$(BIN)/python tests/golden/compare.py tests/golden/hashes.json build/golden.json

bench: $(READY)
	$(BIN)/python benchmarks/client_step.py
	$(BIN)/python benchmarks/simulator.py

# make bench-robustness ARGS=--list, ARGS=--smoke, ARGS="skew cohort --tasks digits"
bench-robustness: $(READY)
	$(BIN)/python -m benchmarks.robustness --pages docs/results $(ARGS)

clean:
	rm -rf .venv .engines build dist runs .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
