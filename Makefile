# make demo | test | test-seeds | test-repeat | test-ops | test-gradients | test-refusals | test-zoo
# | test-gpu | lint | clean. Each sets up what it needs in .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

# Workers side by side, each with all threads; then what must have the machine to itself (the marker
# `alone`). Threads that wait sleep: those of one worker would take the cores from another.
WORKERS ?= 2
SUITE = OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal \
	-m "not alone" && $(BIN)/python -m pytest -m alone

.PHONY: demo test test-seeds test-repeat test-ops test-gradients test-refusals test-zoo test-gpu lint \
	clean

demo: $(READY)
	@$(BIN)/python -m litz.demo

test: lint
	@$(SUITE)

# Every test with other numbers than usual.
SEEDS ?= 1 2 3
test-seeds: $(READY)
	@for seed in $(SEEDS); do \
	  echo "LITZ_TEST_SEED=$$seed" && export LITZ_TEST_SEED=$$seed && $(SUITE) || exit 1; \
	done

# Each test that draws numbers (as far as `make test` has seen), by itself, with a hundred seeds;
# goes on where it was stopped. Takes hours: make test-repeat TIMES=10 is a sample.
TIMES ?= 100
test-repeat: $(READY)
	@$(BIN)/python -m tests.repeat --times $(TIMES) --workers $(WORKERS)

# Every op in every dtype and way; goes on where it was stopped. Writes the op table and its page.
test-ops: $(READY)
	@$(BIN)/python -m tests.ops.sweep --table --ways all
	@$(BIN)/python tests/test_docs.py ops.md

# Gradients of every op in float32 and float64, against eager's.
test-gradients: $(READY)
	@$(BIN)/python -m tests.ops.gradients

# What eager refuses, compiled: error inputs, types and values; goes on where it was stopped.
test-refusals: $(READY)
	@$(BIN)/python -m tests.ops.refusals

# Every architecture of the zoo, inference and training, against float64; goes on where it stopped.
test-zoo: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.zoo --jobs $(WORKERS)

# On a machine with a GPU, with the Python that has torch for it: make test-gpu GPU_PYTHON=python3
GPU_PYTHON ?= $(BIN)/python
test-gpu:
	@PYTHONPATH=. $(GPU_PYTHON) -m tests_gpu.run

lint: $(READY)
	@$(BIN)/ruff check litz tests tests_gpu
	@$(BIN)/ruff format --check --quiet litz tests tests_gpu
	@$(BIN)/mypy

# torch goes first and alone: what follows must find it in place and never replace its build.
$(READY): pyproject.toml constraints.txt
	@echo "setting up .venv (once; torch is large)"
	@$(PYTHON) -m venv .venv
	@$(PIP) torch
	@$(PIP) -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
