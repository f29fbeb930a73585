"""Random programs of fixed seeds mean the same in eager, in Litz and in the interpreter.

`python -m litz fuzz` goes on from here. Every second program is compiled with bounds checks.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

from litz.fuzz import generate
from litz.fuzz.hunt import judge

PROGRAMS, A_TEST = 24, 6
BOUNDS = {"debug_index_asserts": True}


@pytest.mark.parametrize("first", range(0, PROGRAMS, A_TEST))
def test_litz_agrees_with_eager(first: int) -> None:
    for seed in range(first, first + A_TEST):
        with warnings.catch_warnings(action="ignore"):  # of torch, about odd steps
            program = generate(seed)
            if seed % 2:
                program = replace(program, options={**program.options, **BOUNDS})
            failure = judge(program)
        assert failure is None or failure.is_excluded, (
            f"seed {seed}: {failure}\n\n{program.script()}"
        )
