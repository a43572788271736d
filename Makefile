# Everything runs from .venv, which is made on the first use and again when pyproject.toml changes.

.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	if "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then command -v "$$p"; break; fi; done)
EXAMPLES ?= 3000
# What these test does no I/O and never imports LiteLLM.
PURE := tests/compaction tests/formats tests/pure tests/documents/test_names.py
# Each of the gateways that are started would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo serve test test-fast mutations clients check format laws bench peers clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sort | sed -E 's/:.*##[[:space:]]*/|/' | \
	while IFS='|' read -r name text; do printf '  make %-10s %s\n' "$$name" "$$text"; done

demo: $(READY)  ## watch a long session through the real gateway and a scripted model, offline (about a minute)
	@exec $(BIN)/python -m demo $(ARGS)

serve: $(READY)  ## run the gateway on 127.0.0.1:4000 with litellm_config.yaml (ARGS="--port 4100" for options)
	@exec $(BIN)/openmem serve $(ARGS)

test: check  ## format, lint, types, import contracts, all tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

test-fast: $(READY)  ## the pure tests, in seconds
	$(BIN)/python -m pytest -p tests.no_litellm -n 2 --dist worksteal $(PURE) $(ARGS)

mutations: $(READY)  ## prove that the tests catch mistakes (ARGS=splice: only those)
	@exec $(BIN)/python -m tests.mutations $(ARGS)

clients: $(READY)  ## run the agents that people use through the gateway, by npm (ARGS=codex: only that)
	$(BIN)/python -m clients $(ARGS)

check: $(READY)  ## what `make test` runs before the tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)  ## format the code and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

laws: $(READY)  ## the property tests, longer (EXAMPLES=3000 each)
	OPENMEM_LAWS_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -n 2 --dist worksteal -m laws $(ARGS)

bench: $(READY)  ## measure speed, disk, memory, load, estimates and recall (ARGS="peers --quick": only that, smaller)
	@$(BIN)/python -c 'import cliffcompaction' 2>/dev/null || $(BIN)/python -m pip install --quiet --editable '.[bench]'
	@exec $(BIN)/python -m bench $(ARGS)

peers: $(READY)  ## install what the benchmark measures against, each in an environment of its own in .peers
	@$(BIN)/python -m bench.environments $(ARGS)

setup: $(READY)  ## only set up .venv

clean:  ## remove .venv and everything else that make put into this folder
	rm -rf $(VENV) .clients .demo .peers .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Some systems ship Python without ensurepip: then the pip beside it fills the new environment.
$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "openmem: Python 3.11 or newer is needed: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON); the first time takes a few minutes" >&2
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || $(PYTHON) -m venv --without-pip $(VENV)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m pip --python $(BIN)/python install --quiet pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'  # five times faster than pip 23
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@
