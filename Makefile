# SPDX-License-Identifier: Apache-2.0
# Every target makes what it needs, from a fresh clone on: `make run`, `make test`.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

# The locked requirements were made with CPython 3.11, so it is preferred; make PYTHON=... selects another.
PYTHON ?= $(or $(shell for p in python3.11 python3.12 python3.13 python3; do \
    $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done),python3.11)
VENV := .venv
VENV_RELAY := .venv-relay
VENV_SITE := .venv-site
# The package that finds and loads the TVM with Relay.
TOOLCHAIN := python/tvm-relay-toolchain
# The package that runs CUDA kernels without a GPU, for the tests.
EMULATOR := python/cuda-emulator
# The package with random graphs and references, for the tests and the scripts.
TESTING := python/stitch-testing
# Python compiles modules when they are first imported. Pip would compile all, which takes more than half of its time.
PIP_INSTALL := -m pip --disable-pip-version-check install --quiet --no-compile
# Workers of the test run.
JOBS ?= 2
# Another ONNX file for `make run` (default: a BERT encoder that scripts/run_demo.py builds).
MODEL ?=
# Shapes of its inputs with symbolic dimensions: SHAPE="input=1,128 other=1,128".
SHAPE ?=

.PHONY: help run test mutate lint format site venv venv-relay clean

help:
	@echo "make run         compile a transformer encoder with stitching, check it and time it (MODEL=file.onnx takes another)"
	@echo "make test        run the test suites, with both TVMs"
	@echo "make mutate      put one bug at a time into a copy, and see whether the tests notice (docs/mutation-testing.md)"
	@echo "make lint        ruff and mypy"
	@echo "make format      let ruff rewrite the sources"
	@echo "make site        the documentation as a site, its links checked (build/site)"
	@echo "make venv        the environment of run, test, lint and format ($(VENV))"
	@echo "make venv-relay  the environment of test with a Relay-era TVM ($(VENV_RELAY))"
	@echo "make clean       remove build outputs and caches, keep the environments"

run: venv
	$(VENV)/bin/python scripts/run_demo.py $(if $(MODEL),--model "$(MODEL)") $(addprefix --shape ,$(SHAPE))

# Both suites run, one for each TVM. A failure of either fails the target. Hundreds of tests start Python: it keeps what
# it compiled. Pip uses one core, so the packages of both environments are installed at the same time.
test: export PYTHONDONTWRITEBYTECODE :=
test:
	@$(MAKE) --no-print-directory -j2 GOAL=test $(VENV)/.packages $(VENV_RELAY)/.packages
	@$(MAKE) --no-print-directory venv venv-relay
	@status=0; \
	echo "tests, with Relax ($(VENV))"; \
	$(VENV)/bin/python -m pytest -n $(JOBS) -q tests --ignore=tests/relay || status=$$?; \
	echo "tests/relay, with Relay ($(VENV_RELAY))"; \
	$(VENV_RELAY)/bin/python -m pytest -n $(JOBS) -q tests/relay || status=$$?; \
	exit $$status

mutate: venv venv-relay
	$(VENV)/bin/python scripts/mutate.py --jobs $(JOBS)

lint: venv
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: venv
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# Strict: a broken link or name is an error.
site: $(VENV_SITE)/.installed
	NO_MKDOCS_2_WARNING=1 $(VENV_SITE)/bin/mkdocs build --strict
	@echo "build/site/index.html"

# An existing environment is updated; only a missing one is created.
define create_venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	    || { echo "error: '$(PYTHON)' does not run as Python 3.11 or newer; say which does: make PYTHON=/path/to/python3.11 $(or $(GOAL),$(MAKECMDGOALS))" >&2; exit 1; }
	$(PYTHON) -m venv $(1)
endef

$(VENV)/bin/pip:
	$(call create_venv,$(VENV))

$(VENV_RELAY)/bin/pip:
	$(call create_venv,$(VENV_RELAY))

$(VENV_SITE)/bin/pip:
	$(call create_venv,$(VENV_SITE))

$(VENV_SITE)/.installed: requirements/site.txt | $(VENV_SITE)/bin/pip
	@echo "installing requirements/site.txt into $(VENV_SITE)"
	$(VENV_SITE)/bin/python $(PIP_INSTALL) -r requirements/site.txt
	@touch $@

venv: $(VENV)/.installed

$(VENV)/.packages: requirements/dev.txt | $(VENV)/bin/pip
	@echo "installing requirements/dev.txt into $(VENV)"
	$(VENV)/bin/python $(PIP_INSTALL) -r requirements/dev.txt
	@touch $@

$(VENV)/.installed: $(VENV)/.packages pyproject.toml $(EMULATOR)/pyproject.toml $(TESTING)/pyproject.toml
	$(VENV)/bin/python $(PIP_INSTALL) --no-build-isolation --no-deps --editable . --editable $(EMULATOR) --editable $(TESTING)
	$(VENV)/bin/python -c 'import tvm'
	@touch $@

venv-relay: $(VENV_RELAY)/.installed

# bitblas contains the Relay-era TVM. Its own requirements are left out (that TVM's are in requirements/relay.txt).
# About 200 MB of downloads.
$(VENV_RELAY)/.packages: requirements/relay.txt requirements/relay-nodeps.txt | $(VENV_RELAY)/bin/pip
	@echo "installing requirements/relay.txt and relay-nodeps.txt into $(VENV_RELAY)"
	$(VENV_RELAY)/bin/python $(PIP_INSTALL) --require-hashes -r requirements/relay.txt
	$(VENV_RELAY)/bin/python $(PIP_INSTALL) --require-hashes --no-deps -r requirements/relay-nodeps.txt
	@touch $@

# The last command imports the Relay-era TVM, or says what is missing.
$(VENV_RELAY)/.installed: $(VENV_RELAY)/.packages pyproject.toml $(EMULATOR)/pyproject.toml $(TESTING)/pyproject.toml \
    $(wildcard $(TOOLCHAIN)/*.toml $(TOOLCHAIN)/*.py $(TOOLCHAIN)/*.pth)
	$(VENV_RELAY)/bin/python $(PIP_INSTALL) --no-build-isolation --no-deps --editable $(TOOLCHAIN) --editable . --editable $(EMULATOR) --editable $(TESTING)
	$(VENV_RELAY)/bin/python -m tvm_relay_toolchain
	@touch $@

clean:
	rm -rf build dist *.egg-info $(TOOLCHAIN)/build $(TOOLCHAIN)/src/*.egg-info $(foreach p,$(EMULATOR) $(TESTING),$(p)/build $(p)/src/*.egg-info) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path './.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
