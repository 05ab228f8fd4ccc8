# Everything a checkout needs. `make demo` and `make test` do all the set-up themselves.
SHELL  := bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest
# A worker of pytest a core, at most four: each may start processes of its own. PARALLEL= runs the tests one by one.
PARALLEL ?= -n auto --maxprocesses 4
TORCH_XLA := .venv-torch-xla
TOOLS  := build/tools
DOCS_ENV := build/docs-env
# Environments of other versions of torch and JAX. CI has the oldest and the newest torch; `make versions` all.
VERSIONS := .venv-versions
ENDS := $(VERSIONS)/torch-2.11/.ready $(VERSIONS)/torch-2.15/.ready $(VERSIONS)/jax-0.11/.ready
OTHERS := $(VERSIONS)/torch-2.12/.ready $(VERSIONS)/torch-2.14/.ready

.PHONY: help demo test check lint docs goldens long all presets grammar torch-xla ends lock sbom advisories pages playground later-pythons hooks changelog packages docs-site clean
.DEFAULT_GOAL := help
# Every process would compile planc anew.
unexport PYTHONDONTWRITEBYTECODE

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(READY) ## the main job: check, lower, train on two stacks, compare (about 5 minutes)
	@bash docs/demo.sh

test: $(READY) ## all that starts no process, and a launch of each mechanism (10 minutes on 2 cores)
	@$(PYTEST) $(PARALLEL) -m "not long and not slow and not gpu"

check: lint ## between edits: linters, types, tests that start no processes
	@$(PYTEST) $(PARALLEL) -m "not launch and not slow and not gpu"

lint: $(READY) ## ruff and mypy
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --no-error-summary

docs: $(READY) ## rewrite the generated pages and every command's output shown in them
	@$(BIN)/python docs/generate.py

goldens: $(READY) ## rewrite the goldens; read the diff before you commit it
	@PLANC_UPDATE_GOLDENS=1 $(PYTEST) -m "not launch and not slow and not gpu" -k golden

# Seldom.

long: $(READY) ## the other launches that CI runs
	@$(PYTEST) $(PARALLEL) --durations=40 -m "long and not slow and not gpu"

all: lint ## every test, the slow ones too
	@$(PYTEST) $(PARALLEL)

presets: $(READY) ## embed every preset's plan anew
	@for preset in plans/presets/*.toml; do \
	  $(BIN)/planc embed "plans/presets/$$(sed -n 's/^source = "\(.*\.plan\)"$$/\1/p' "$$preset")" "$$preset"; done

grammar: $(READY) ## write the parser's tables anew, after a change of the grammar
	@$(BIN)/python -m planc.syntax.tables

torch-xla: $(TORCH_XLA)/.ready ## the environment of the torch_xla runtime, beside the other (6.5 GB; 2 minutes)

ends: $(ENDS) ## the oldest and the newest torch in environments of their own, and the wheels of JAX 0.11 (5.5 GB; 2 minutes)

lock: $(TOOLS)/.ready ## write the sums of every pinned package's files (.ci/locks), after a change of the pins
	@$(PYTHON) .ci/lock.py $(TOOLS)/bin/uv

sbom: $(TOOLS)/.ready ## list the pinned packages with their sums as CycloneDX JSON, in build/sbom/
	@mkdir -p build/sbom
	@for list in main torch-xla; do \
	  $(TOOLS)/bin/cyclonedx-py requirements .ci/locks/$$list.txt --of JSON --validate -o build/sbom/$$list.json; done

advisories: $(TOOLS)/.ready ## look the pinned packages up in the index of advisories; fails where it cannot be reached
	@for list in main torch-xla; do \
	  $(TOOLS)/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off -r .ci/locks/$$list.txt; done

pages: $(READY) ## open reports in a headless browser: no error, no request, sums; pictures of them in build/pages (needs chromium)
	@$(PYTEST) -m slow tests/report

playground: $(READY) ## the page that runs planc in the browser, in build/playground/html; tried in a headless one (needs npm, chromium)
	@$(BIN)/python docs/playground/build.py build/playground
	@$(PYTEST) -m slow tests/report/test_playground.py

later-pythons: $(READY) ## types as Python 3.12, 3.13 and 3.14 have them, and no syntax that warns (3 minutes; planc is run on 3.11)
	@for version in 3.12 3.13 3.14; do $(BIN)/mypy --no-error-summary --python-version $$version planc; done
	@PYTHONPYCACHEPREFIX=build/pycache $(BIN)/python -W error -m compileall -q -f planc backends

hooks: $(READY) $(TOOLS)/.ready ## the hooks by pre-commit itself, and the action with a real environment (2 minutes, fetches packages)
	@PATH="$(CURDIR)/$(TOOLS)/bin:$$PATH" $(PYTEST) -m slow tests/cli/test_action.py

changelog: $(TOOLS)/.ready ## gather the files of changes/ below the heading of a release (VERSION=0.3.0)
	@$(TOOLS)/bin/towncrier build --yes --version $(VERSION)

packages: $(READY) ## build the sdist and the wheel, and use the wheel in an empty environment, in build/packages
	@$(BIN)/python .ci/packages.py build/packages

docs-site: $(READY) $(DOCS_ENV)/.ready ## the documentation as a site with a gallery of reports, in build/docs-site/html; links followed
	@PYTHONPATH=$(CURDIR) $(DOCS_ENV)/bin/python docs/site/build.py build/docs-site

clean: ## remove the environments and everything that can be made again
	@rm -rf $(VENV) $(TORCH_XLA) $(VERSIONS) runs build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Campaigns: mutants, fuzz, random plans, kills, audits, measurements.
include tests/lab/Makefile

# The environment is rebuilt when the pins change, and kept when it already has what they say.
$(READY): pyproject.toml .ci/pins/main.txt .ci/locks/main.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "planc needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python .ci/pins.py > /dev/null || { \
	  echo "installing the pinned packages into $(VENV) (torch and jax are large; once)"; \
	  $(BIN)/python -m pip install --disable-pip-version-check --no-deps --require-hashes -r .ci/locks/main.txt \
	    | sed -un 's/^Collecting /  /p; s/^Installing collected.*/installing/p'; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -c .ci/pins/main.txt \
	    -e '.[cuda,xla,tpu,dev]'; }
	@$(BIN)/python .ci/pins.py
	@touch $@

# Sphinx and what it needs, and planc's own dependencies: an environment of its own, whose file of pins is the whole list.
$(DOCS_ENV)/.ready: .ci/pins/docs.txt $(READY)
	@$(BIN)/python -m venv --without-pip $(DOCS_ENV)
	@$(BIN)/python -m pip --python $(DOCS_ENV)/bin/python install --quiet --disable-pip-version-check --no-deps -r $<
	@touch $@

$(TOOLS)/.ready: .ci/tools.txt
	@$(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check -r .ci/tools.txt
	@touch $@

# A torch of its own version, so an environment of its own. Its file of pins is the whole list: nothing is resolved.
$(TORCH_XLA)/.ready: .ci/locks/torch-xla.txt
	@test -x $(TORCH_XLA)/bin/python || { echo "creating $(TORCH_XLA)"; $(PYTHON) -m venv $(TORCH_XLA); }
	@echo "installing the pinned packages into $(TORCH_XLA) (3 GB to fetch; once)"
	@$(TORCH_XLA)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-cache-dir --no-compile \
	  --require-hashes -r .ci/locks/torch-xla.txt
	@$(TORCH_XLA)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(TORCH_XLA)/bin/python -c 'import torch_xla, planc'
	@touch $@

# A torch of its own, and CUDA's libraries, before the packages of the first environment.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-cache-dir --upgrade

$(VERSIONS)/cuda/.ready: .ci/pins/cuda-libraries.txt $(READY)
	@echo "installing CUDA's libraries for the environments of $(VERSIONS) (1.6 GB to fetch; once)"
	@$(PIP) --target $(@D) -r .ci/pins/cuda-libraries.txt
	@touch $@

$(VERSIONS)/torch-%/.ready: .ci/pins/torch-%.txt $(VERSIONS)/cuda/.ready
	@test -x $(@D)/bin/python || { echo "creating $(@D)"; $(PYTHON) -m venv --without-pip $(@D); }
	@site=$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	  $(PIP) --target $$site -r $< && ln -sfn $(CURDIR)/$(VERSIONS)/cuda/nvidia $$site/nvidia && \
	  $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$site/packages.pth
	@$(@D)/bin/python -c 'import torch, planc'
	@touch $@

$(VERSIONS)/jax-%/.ready: .ci/pins/jax-%.txt $(READY)
	@$(PIP) --no-compile --ignore-requires-python --target $(@D) --python-version 3.12 --only-binary=:all: -r $<
	@touch $@
