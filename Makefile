# The doors of the repository. `make` alone says what they are.
#
# Installing happens by itself: a door depends on a stamp in .venv named after the contents of
# pyproject.toml and constraints.txt, so that it costs nothing until one of them changes.
#
# `make test-oldest` and `make test-newest` call make again with other values of the first three.

PYTHON ?= python3
VENV := .venv
CONSTRAINTS := constraints.txt
TORCH := torch==2.13.0
BIN := $(VENV)/bin
# pip compiles modules one after the other, which is half of its time. Python compiles what it
# imports, and tests, of which many processes import the same, find all of it compiled on all cores.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check -qq install --no-compile
PYTEST := $(BIN)/python -m pytest
# A process has a file to itself, and takes the next one in the order of tests/conftest.py. There is
# one process more than cores, because tests of many processes wait for most of their time.
PARALLEL := -n $(shell $(PYTHON) -c 'import os; print(os.cpu_count() + 1)') \
	--dist loadfile --no-loadscope-reorder

STATE := $(shell cat pyproject.toml $(CONSTRAINTS) | cksum | cut -d ' ' -f 1)
RUN_STAMP := $(VENV)/.run-$(STATE)
DEV_STAMP := $(VENV)/.dev-$(STATE)

# How long the storm of `make chaos` lasts; `make test` has one that hits every point once.
MINUTES ?= 10

# Quiet libraries, and never a GPU that happens to be there: results are compared bit by bit.
export TF_CPP_MIN_LOG_LEVEL ?= 3

.DEFAULT_GOAL := help
.PHONY: help setup check test fix bench demo docs chaos parity dist clean proto lock vendor \
	test-oldest test-newest test-versions lock-oldest

help: ## Say what can be done here
	@echo 'Usage: make TARGET'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' Makefile
	@echo 'New here? Start with: make demo'

setup: $(DEV_STAMP) ## Create .venv and install everything a developer needs

check: $(DEV_STAMP) ## Style, types, the import order and the declared dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry src
	@# What tests and benchmarks import is installed by the extra dev, so it may be any of them.
	$(BIN)/deptry tests benchmarks --ignore DEP002,DEP004

test: $(DEV_STAMP) ## Run the tests (ARGS="-k recordio" for some; PART=1/3: a third of the long)
	$(PYTEST) $(PARALLEL) -m 'not chaos and not exhaustive' $(if $(PART),--part=$(PART)) $(ARGS)

fix: $(DEV_STAMP) ## Mend style where a tool can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV_STAMP) ## Compare with named peers; results go to benchmarks/results/
	$(BIN)/python -m benchmarks

demo: $(RUN_STAMP) ## Train, evaluate and predict handwritten digits, start to end
	@BIN=$(BIN) examples/demo.sh

chaos: $(DEV_STAMP) ## Kill whatever trains, wherever it is; count each record (MINUTES=10)
	$(PYTEST) -m chaos -s --chaos-minutes=$(MINUTES) $(ARGS)

parity: $(DEV_STAMP) ## Train every feature of docs/trust/compatibility.md in every place
	$(PYTEST) $(PARALLEL) tests/parity $(ARGS)
	@# With ARGS there may be none: pytest says so with 5.
	$(PYTEST) $(PARALLEL) -m exhaustive --ignore=tests/parity $(ARGS) || [ $$? -eq 5 ]

# In environments of their own, which stay. ARGS="tests/data tests/cli" runs some of the tests.
test-oldest: ## Run the tests but the slow ones with the oldest versions that are allowed
	$(MAKE) test-versions VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt

test-newest: ## Run the tests but the slow ones with the newest versions that are allowed
	rm -rf .venv-newest
	$(MAKE) test-versions VENV=.venv-newest CONSTRAINTS=/dev/null TORCH=torch

test-versions: $(DEV_STAMP)
	$(PYTEST) $(PARALLEL) -m 'not chaos and not exhaustive and not slow' $(ARGS)

docs: $(DEV_STAMP) ## Build the documentation site into build/docs/
	$(BIN)/python -m sphinx --fail-on-warning --keep-going -q docs build/docs
	@echo 'Open build/docs/index.html'

dist: $(DEV_STAMP) ## Build the sdist and the wheel into dist/
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist

clean: ## Remove what was built, written or cached, .venv too
	rm -rf $(VENV) .venv-oldest .venv-newest demo build dist benchmarks/.work
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

proto: $(DEV_STAMP) ## Generate the Python code of the .proto files
	$(BIN)/python -m grpc_tools.protoc --proto_path=src --python_out=src --pyi_out=src \
		$$(find src -name '*.proto')

# What the job page draws its charts with. The files lie in the repository, so that an installation
# needs no npm; its licence lies beside them.
UPLOT := 1.6.32

vendor: ## Fetch the chart library of the job page from the npm registry
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && cd "$$folder" \
		&& npm pack --silent uplot@$(UPLOT) && tar -xzf uplot-$(UPLOT).tgz \
		&& cp package/dist/uPlot.iife.min.js $(CURDIR)/src/elasticdl/page/static/uplot.js \
		&& cp package/dist/uPlot.min.css $(CURDIR)/src/elasticdl/page/static/uplot.css \
		&& cp package/LICENSE $(CURDIR)/src/elasticdl/page/static/uplot.LICENSE

lock: $(DEV_STAMP) ## Write constraints.txt from what is installed and was tested
	@grep '^#' constraints.txt > constraints.new
	@$(BIN)/python -m pip list --format=freeze --exclude-editable \
		| grep -vE '^(pip|setuptools|wheel)==' | sed 's/+cpu$$//' | LC_ALL=C sort -f >> constraints.new
	@mv constraints.new constraints.txt

# torch has no other version among its bounds that is tested; the rest is what uv finds.
lock-oldest: ## Write constraints-oldest.txt from the lower bounds in pyproject.toml
	@grep '^#' constraints-oldest.txt > constraints.new
	@uv pip compile --quiet --universal --python-version 3.11 --resolution lowest-direct \
		--all-extras --no-header --no-annotate --no-strip-markers pyproject.toml >> constraints.new
	@mv constraints.new constraints-oldest.txt

# ---------------------------------------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'ElasticDL needs Python 3.11 or newer. Name one: make $(MAKECMDGOALS) PYTHON=python3.12'; \
		exit 1; }
	$(PYTHON) -m venv $(VENV)

# What a user of Keras installs, and the packages that the sample data come from.
$(RUN_STAMP): | $(BIN)/python
	@echo 'Installing ElasticDL into $(VENV) (once; some minutes without a pip cache) ...'
	$(INSTALL) --constraint $(CONSTRAINTS) --editable '.[samples,tensorflow]'
	@rm -f $(VENV)/.run-*
	@touch $@

# tf-keras asks for the whole of TensorFlow beside its CPU build, which are the same modules.
# torch goes first, from the index of its CPU builds: what depends on it would otherwise pull the
# CUDA build and its two gigabytes of libraries. pip's other places are looked into as well, so
# that a machine without that index can bring its own wheel.
$(DEV_STAMP): $(RUN_STAMP)
	$(BIN)/python -c 'import torch' 2>/dev/null || $(INSTALL) --no-deps --retries 1 \
		--timeout 10 --index-url https://download.pytorch.org/whl/cpu $(TORCH)
	$(INSTALL) --no-deps --constraint $(CONSTRAINTS) tf-keras
	$(INSTALL) --constraint $(CONSTRAINTS) --editable '.[dev]'
	@# Some packages have files for other versions of Python.
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null 2>&1 || true
	@rm -f $(VENV)/.dev-*
	@touch $@
