# make demo   train on real data with two processes     make check  what a change must pass besides its tests
# make quick  the tests of the pure rooms, in a minute   make test   the tests (slow ones too where CI is set)
# make docs   the documentation, into site/
#
# On a machine with Python >= 3.11 and make, each target first makes .venv and installs what it needs, once.

PYTHON ?= python3
BIN := .venv/bin
# A fast run while working; what a change must pass where CI is set; with NIGHTLY what repeats it at more places, too.
MARKED := $(if $(NIGHTLY),,-m "$(if $(CI),not nightly,not slow and not nightly)")
# A thousand processes of the tests import the same files: compiled once, not by each of them.
export PYTHONDONTWRITEBYTECODE :=
# mkdocs-material advertises its successor at every build.
export NO_MKDOCS_2_WARNING := 1

# The rooms whose tests need values and local files only: no server, no launcher, no worker process of ours.
QUICK := $(wildcard $(addprefix tests/,batching convert filters formats kernels options planning schemas sources typing))
# Each test process begins with files of its own, so that what a file or the run starts (a server, a launcher) starts once.
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal --durations=40

.PHONY: help rooms bench bench-guard bench-quick demo quick test check docs horovod browser lock audit clean

help:
	@sed -n '1,5s/^# \{0,1\}//p' Makefile

demo: .venv/demo
	$(BIN)/python examples/flights/make_data.py
	OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc_per_node=2 examples/flights/train.py
	$(BIN)/python examples/flights/make_table.py
	OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc_per_node=2 examples/flights/train.py --table
	@echo "demo: OK (every row id was seen exactly once over the ranks, each epoch)"

quick: .venv/test
	$(PYTEST) -m "not slow and not nightly" $(QUICK)
	@echo "quick: OK"

# For workflows, which install by themselves.
rooms:
	@echo $(QUICK)

# Where CI is set, the launchers' frameworks too, some 600 MB to download, and Playwright.
test: .venv/test-stores $(if $(CI),.venv/test-launchers .venv/test-browser)
	$(PYTEST) $(MARKED)
	@echo "tests: OK"

check: .venv/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict
	$(BIN)/lint-imports --no-cache
	for picture in rooms plan steps plan_page speed soak scale; do $(BIN)/python scripts/draw_$$picture.py --check || exit 1; done
	$(BIN)/python scripts/write_signatures.py --check
	$(BIN)/python scripts/write_command_line.py --check
	$(BIN)/python scripts/write_faults.py --check
	$(BIN)/python scripts/write_race.py --check
	$(BIN)/mkdocs build --strict --quiet
	@echo "check: OK"

docs: .venv/dev
	$(BIN)/mkdocs build --strict
	@echo "docs: OK (open site/index.html)"

# Under five minutes; `make bench` races all loaders, each in an environment of its own, in some hours.
bench-quick: .venv/demo
	$(BIN)/python benchmarks/peers --quick

bench: .venv/demo
	$(BIN)/python benchmarks/peers --results benchmarks/race.json
	for written in draw_speed write_race; do $(BIN)/python scripts/$$written.py || exit 1; done

# Compare with the commit at which a piece of work began: make bench-guard AGAINST=v0.3
bench-guard: .venv/test
	$(BIN)/python benchmarks/guard.py --against $(AGAINST)

# Build Horovod into .venv, so that its test runs: some minutes, with make and g++.
horovod: .venv/horovod

.venv/horovod: .venv/test-launchers scripts/build_horovod.sh
	bash scripts/build_horovod.sh .venv
	@touch $@

# Install Debian's Chromium for the tests of the plan page, as root, unless there is a browser.
browser:
	@bash scripts/install_browser.sh

# Re-resolve constraints.txt.
lock: .venv/python
	$(BIN)/python scripts/lock.py

# Look the exact versions up among the known vulnerabilities: needs the internet, so a workflow of its own runs it.
audit:
	test -x .venv/audit/bin/pip-audit || $(PYTHON) -m venv .venv/audit
	.venv/audit/bin/python -m pip install -qq --disable-pip-version-check pip-audit
	.venv/audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --progress-spinner off

clean:
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis examples/flights/data
	rm -rf tests/storage/azurite/node_modules

# Without what it asks for: datasets below 4.8, beside our 5, and tensorboard and wandb, which its loaders do not use.
TORCHTITAN := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps torchtitan==0.3.0

# A stamp per extra: the install runs again only when its inputs change.
.venv/demo .venv/test .venv/test-stores .venv/test-launchers .venv/test-browser .venv/dev: .venv/%: .venv/python pyproject.toml constraints.txt
	@echo "installing torch-dataloader-utils[$*] into .venv (a few minutes the first time)"
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[$*]"
	$(if $(filter test-launchers,$*),$(TORCHTITAN))
	@touch $@

# All of them, resolved once: what CI needs.
.venv/all: .venv/python pyproject.toml constraints.txt
	@echo "installing torch-dataloader-utils with all extras into .venv (some minutes the first time)"
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[demo,test-stores,test-launchers,test-browser,dev]"
	$(TORCHTITAN)
	@touch $(addprefix .venv/,demo test test-stores test-launchers test-browser dev) $@

.venv/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, $(PYTHON) is " + sys.version.split()[0] + ": try make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	@touch $@
