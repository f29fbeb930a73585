"""Sizes that data tells, with the kernels of a GPU: interpreted, and compiled for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from litz.build.triton import compile_kernels
from litz.ir.source import DeviceKernel
from tests.codegen.triton.apart import Outcomes, outcomes
from tests.codegen.triton.unbacked_cases import CASES

pytest.importorskip("triton")
# Kernels that are given a float, a number of 64 bits, sizes of rows, what follows from two sizes.
COMPILED = ("two_floats", "integers_and_number", "softmaxes, long", "in_turn", "selected")


@pytest.fixture(scope="module")
def outcome() -> Outcomes:
    return outcomes("tests.codegen.triton.unbacked_cases")


@pytest.mark.parametrize("name", CASES)
def test_every_call_gives_what_eager_gives(name: str, outcome: Any) -> None:
    assert name in outcome, f"the process ended in {list(outcome)[-1]!r}, or the case after it"
    assert not outcome[name][0], outcome[name][0]


def test_kernels_that_are_given_numbers_become_cubins(
    outcome: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found = [DeviceKernel(**k) for name in COMPILED for k in outcome[name][1]]
    assert {kind for kernel in found for kind in kernel.sizes} == {"fp64", "i64", "i32"}
    for kernel in found:
        made = compile_kernels((kernel,), 90, threads=1)
        assert made[kernel.name].code.startswith(b"\x7fELF")
