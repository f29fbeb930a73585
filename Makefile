# make demo | test | test-ops | test-gradients | test-refusals | test-gpu | lint | clean. Each sets up what it needs in .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-ops test-gradients test-refusals test-gpu lint clean

demo: $(READY)
	@$(BIN)/python -m litz.demo

test: lint
	@$(BIN)/python -m pytest

# Every op in every dtype; goes on where it was stopped. Writes the op table and its page.
test-ops: $(READY)
	@$(BIN)/python -m tests.ops.sweep --table
	@$(BIN)/python tests/test_docs.py ops.md

# Gradients of every op in float32 and float64, against eager's.
test-gradients: $(READY)
	@$(BIN)/python -m tests.ops.gradients

# What eager refuses, compiled: error inputs, types and values; goes on where it was stopped.
test-refusals: $(READY)
	@$(BIN)/python -m tests.ops.refusals

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
