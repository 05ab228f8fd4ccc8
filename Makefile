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

.PHONY: accelerator help demo test long check all lint mutants fuzz random faults nth-call memory cut kills presets topologies grammar goldens hooks later-pythons docs docs-site lock sbom advisories pages playground packages audit audit-modules audit-stages audit-tpu parity refusals shares by-hand crosscheck torch-xla versions other-torches ends calibrated clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(READY) ## the main job: check, lower, train on two stacks, compare (about 5 minutes)
	@bash docs/demo.sh

test: $(READY) ## all that starts no process, and a launch of each mechanism (10 minutes on 2 cores)
	@$(PYTEST) $(PARALLEL) -m "not long and not slow and not gpu"

long: $(READY) ## the other launches that CI runs
	@$(PYTEST) $(PARALLEL) -m "long and not slow and not gpu"

check: lint ## between edits: linters, types, tests that start no processes
	@$(PYTEST) $(PARALLEL) -m "not launch and not slow and not gpu"

all: lint ## every test, the slow ones too
	@$(PYTEST) $(PARALLEL)

lint: $(READY) ## ruff and mypy
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --no-error-summary

mutants: $(READY) ## plant faults one by one: each must turn its named test red
	@$(BIN)/python tests/mutants/run.py

fuzz: $(READY) ## run inputs of eight kinds through planc, on from where it was (hours; FUZZ="--seconds 600" for less)
	@$(BIN)/python tests/fuzz/run.py $(FUZZ)

random: $(READY) ## draw 2,000 more valid plans, check and lower each (RANDOM_PLANS="--train --count 60" trains 60; goes on after a stop)
	@$(BIN)/python tests/random_plans/run.py $(RANDOM_PLANS)

faults: $(READY) ## kill, stop and damage runs on both stacks, over 100 times (FAULTS="--seed 7" repeats; 40 minutes)
	@$(BIN)/python tests/faults/run.py --page docs/measured/faults.md $(FAULTS)

nth-call: $(READY) ## make every write, rename, fsync ... of a run fail in turn, on both stacks; goes on where it was (2 hours)
	@for stack in xla cuda; do $(BIN)/python tests/faults/long.py nth --stack $$stack --state build/faults.jsonl; done
	@$(BIN)/python tests/faults/long.py summary --state build/faults.jsonl

memory: $(READY) ## refuse memory at 1,000 lines of planc drawn by a seed, both stacks; goes on where it was (3 hours)
	@for stack in xla cuda; do \
	  $(BIN)/python tests/faults/long.py memory --count 500 --stack $$stack --state build/faults.jsonl; done
	@$(BIN)/python tests/faults/long.py summary --state build/faults.jsonl

cut: $(READY) ## cut a connection at 500 calls of sockets drawn by a seed, ranks' own and gloo's; goes on where it was (1 hour)
	@$(BIN)/python tests/faults/long.py sockets --count 500 --stack cuda --state build/faults.jsonl
	@$(BIN)/python tests/faults/long.py summary --state build/faults.jsonl

kills: $(READY) ## kill 500 runs at moments uniform over their time, both stacks; goes on where it was (90 minutes)
	@for stack in xla cuda; do $(BIN)/python tests/faults/long.py kills --stack $$stack --state build/faults.jsonl; done
	@$(BIN)/python tests/faults/long.py summary --state build/faults.jsonl

topologies: $(READY) ## closed forms beside the routed graph of every machine, 8 to 4,096 devices (15 minutes)
	@$(BIN)/python -m tests.graph.closed_form

presets: $(READY) ## embed every preset's plan anew
	@for preset in plans/presets/*.toml; do \
	  $(BIN)/planc embed "plans/presets/$$(sed -n 's/^source = "\(.*\.plan\)"$$/\1/p' "$$preset")" "$$preset"; done

grammar: $(READY) ## write the parser's tables anew, after a change of the grammar
	@$(BIN)/python -m planc.syntax.tables

goldens: $(READY) ## rewrite the goldens; read the diff before you commit it
	@PLANC_UPDATE_GOLDENS=1 $(PYTEST) -m "not launch and not slow and not gpu" -k golden

audit: $(READY) ## trace every audited layout on fake process groups, and write docs/measured/audit-cuda.md (about 5 minutes)
	@$(BIN)/python tests/audit/run.py

audit-modules: $(READY) ## trace classes of transformers on 64 fake devices, and write docs/measured/audit-modules.md (about 5 minutes)
	@$(BIN)/python tests/audit/run_modules.py

audit-stages: $(READY) ## trace thirty layouts, pipelines most of all, and write docs/measured/audit-stages.md (about 20 minutes; kept by content)
	@$(BIN)/python tests/audit/run_stages.py

audit-tpu: $(READY) ## compile the TPU plans with libtpu, no TPU, and write docs/measured/audit-tpu.md (an hour; kept by content)
	@$(BIN)/python tests/audit/run_tpu.py

parity: $(READY) ## train every layout of both stacks beside one process, and write docs/measured/parity.md (30 minutes)
	@mkdir -p build && rm -f build/parity.jsonl
	@PLANC_PARITY=build/parity.jsonl $(PYTEST) -m launch tests/cuda/test_parity.py tests/cuda/test_moe.py \
	  tests/cuda/test_family.py tests/xla/test_parity.py tests/xla/test_moe.py
	@$(BIN)/python tests/parity.py build/parity.jsonl --whole

refusals: $(READY) ## check and lower the combinations that users write for both targets, and write docs/measured/refusals.md
	@$(BIN)/python tests/refusals/run.py

shares: $(READY) ## the share of plans (field, presets, 100 random ones) that cuda takes and xla refuses, by reason
	@$(BIN)/python tests/refusals/shares.py

crosscheck: $(READY) $(TORCH_XLA)/.ready ## three runtimes, 100 steps in fp32 and bf16, and write docs/measured/crosscheck.md (10 minutes)
	@$(BIN)/python -m tests.torch_xla.three

accelerator: ## experiments on this machine's GPUs, or small ones on its CPU, in slices of 9 minutes (docs/guide/accelerator.md)
	@python=$$(test -x $(BIN)/python && echo $(BIN)/python || echo $(PYTHON)); $$python .ci/accelerator.py $(ACCELERATOR)

by-hand: $(READY) ## time emitted programs beside those written by hand, and write both pages (10 minutes)
	@$(BIN)/python tests/cuda/by_hand/bench.py
	@$(BIN)/python tests/xla/by_hand/bench.py

torch-xla: $(TORCH_XLA)/.ready ## the environment of the torch_xla runtime, beside the other (6.5 GB; 2 minutes)

versions: $(READY) $(ENDS) $(OTHERS) ## every version of torch and JAX that programs are written for (7.5 GB; 25 minutes)
	@$(PYTEST) -m versions

other-torches: $(READY) $(ENDS) $(OTHERS) ## train every layout on every other torch beside one process; goes on where it was (3 hours)
	@$(BIN)/python tests/cuda/other_torches.py $(TORCHES)

ends: $(ENDS) ## the oldest and the newest torch in environments of their own, and the wheels of JAX 0.11 (5.5 GB; 2 minutes)

calibrated: $(READY) ## measure this machine for both stacks, then eight layouts beside their predictions (10 minutes)
	@mkdir -p build
	@for target in cuda xla; do \
	  $(BIN)/planc calibrate --target $$target -o build/cpu_$$target.plan; \
	  $(BIN)/planc bench calibrated --hardware build/cpu_$$target.plan --target $$target; \
	done

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

packages: $(READY) ## build the sdist and the wheel, and use the wheel in an empty environment, in build/packages
	@$(BIN)/python .ci/packages.py build/packages

docs-site: $(READY) $(DOCS_ENV)/.ready ## the documentation as a site with a gallery of reports, in build/docs-site/html; links followed
	@PYTHONPATH=$(CURDIR) $(DOCS_ENV)/bin/python docs/site/build.py build/docs-site

docs: $(READY) ## rewrite the generated pages and every command's output shown in them
	@$(BIN)/python docs/generate.py

clean: ## remove the environments and everything that can be made again
	@rm -rf $(VENV) $(TORCH_XLA) $(VERSIONS) runs build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

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
