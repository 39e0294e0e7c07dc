# `make` alone prints what there is. Everything happens in .venv; nothing is installed outside this folder.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help venv demo test test-host check format dist deb bench bench-daemon bench-month bench-soak bench-verdicts clean

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_LOG := tests/data/real/leak-to-hang-and-restart.log

# Which interpreter builds .venv, e.g. `make PYTHON=/usr/bin/python3.12 venv`; empty means the first that fits.
PYTHON ?=
CANDIDATES := python3.14 python3.13 python3.12 python3.11 python3
# A name on the PATH may be a shim that does not start, and Debian ships Python without ensurepip: so each one is tried.
FITS := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

help: ## print this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

venv: $(STAMP) ## set up .venv with kvlogd and what its developers need
	@:

# A .venv that works is kept when pyproject.toml changes, unless another interpreter is asked for.
$(STAMP): pyproject.toml
	@if [ -z "$(PYTHON)" ] && $(BIN)/python -m pip --version >/dev/null 2>&1; then exit 0; fi; \
	python=; \
	for name in $(or $(PYTHON),$(CANDIDATES)); do \
	  if "$$name" -c '$(FITS)' 2>/dev/null; then python=$$name; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "kvlogd needs Python 3.11 or newer with venv (on Debian and Ubuntu: apt install python3-venv);" \
	    "tried $(or $(PYTHON),$(CANDIDATES))" >&2; \
	  exit 1; \
	fi; \
	echo "setting up $(VENV) with $$("$$python" --version) ..." >&2; \
	"$$python" -m venv --clear $(VENV)
	@echo "installing kvlogd and its development tools into $(VENV) ..." >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $(STAMP)

demo: venv ## replay the log of a real vLLM that leaks, and show the finding
	@echo '$$ kvlogd replay --year 2026 --timezone UTC $(DEMO_LOG)'; \
	$(BIN)/kvlogd replay --year 2026 --timezone UTC $(DEMO_LOG); status=$$?; \
	if [ $$status -ne 1 ]; then \
	  echo "demo: exit status $$status, where 1 (something was found) was expected" >&2; exit 1; \
	fi

test: venv ## run the tests
	@$(BIN)/python -m pytest -n auto

test-host: venv ## test the package and the unit under a real systemd (root on Debian or Ubuntu; else it says why not)
	@tests/rig/test-host $(BIN)/python

check: venv ## run all that a change must pass: format, lint, types, tests (the docs and the import map are tests)
	@echo "ruff format"; $(BIN)/ruff format --check --quiet . || { echo "check: run 'make format'" >&2; exit 1; }
	@echo "ruff check"; $(BIN)/ruff check --quiet .
	@echo "mypy"; $(BIN)/mypy
	@echo "pytest"; $(BIN)/python -m pytest -n auto

format: venv ## format the code and mend what ruff can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

dist: venv ## build the wheel and the sdist into dist/
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	@ls -1 dist

deb: dist ## build a Debian package with a private venv: for hosts without a package index
	@systemd/deb/build $(BIN)/python dist/kvlogd-*.whl

bench: venv ## measure replay on a log of 1 GB against grep (needs about 2 GB of temporary space)
	@$(BIN)/python bench/replay.py

bench-daemon: venv ## measure the daemon at rest and under a loud log (12 minutes)
	@$(BIN)/python bench/daemon.py

bench-month: venv ## measure what 30 days of 16 engines take in the store, and what a rule tick costs on each of them
	@$(BIN)/python bench/month.py

bench-soak: venv ## watch the daemon for 70 minutes under 200 logs with 2,000 lines/s and 8 stand-in GPUs
	@$(BIN)/python bench/soak.py

bench-verdicts: venv ## measure how right the verdicts are, on 350 simulated logs, and write docs/rightness.md
	@$(BIN)/python bench/verdicts.py --jobs $$(nproc) --write

clean: ## remove .venv and every cache
	@rm -rf $(VENV) dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
