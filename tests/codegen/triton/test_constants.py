"""No bit of a constant is lost in the text of a GPU's kernels: interpreted, and compiled for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.codegen.constants import CASES
from tests.codegen.triton.apart import Outcomes, outcomes
from tests.codegen.triton.test_kernels import kernels_of, ptx_of


@pytest.fixture(scope="module")
def outcome() -> Outcomes:
    return outcomes("tests.codegen.triton.constant_cases")


@pytest.mark.parametrize("name", CASES)
def test_every_bit_is_eagers(name: str, outcome: Any) -> None:
    assert name in outcome, f"the process ended in {list(outcome)[-1]!r}, or the case after it"
    assert not outcome[name][0], outcome[name][0]


F32, F64 = torch.float32, torch.float64


@pytest.mark.parametrize(
    ("function", "dtype", "bits"),
    [
        (lambda x: x / -0.0, F32, "0f80000000"),
        (lambda x: x / -torch.zeros_like(x), F32, "0f80000000"),
        (lambda x: x / -0.0, F64, "0d8000000000000000"),
        (lambda x: torch.where(x > 0, -0.0, x), F32, "0f80000000"),
        (lambda x: x - 1e-40, F32, "0f800116C2"),
        (lambda x: x + 1e-40, F32, "0f000116C2"),
        (lambda x: x < 0.1, F64, "0d3FB999999999999A"),
        (lambda x: torch.where(x > 1, 0.1, x), F64, "0d3FB999999999999A"),
        (lambda x: x + 0.1, F64, "0d3FB999999999999A"),
        (lambda x: x * 5e-324, F64, "0d0000000000000001"),
        (lambda x: -x, F32, ", -2147483648;"),
        (lambda x: -x, F64, ", -9223372036854775808;"),
        (lambda x: x + (2**53 + 1), torch.int64, "9007199254740993"),
        (lambda x: torch.maximum(x, torch.full_like(x, -(2**63) + 1)), torch.int64,
         "-9223372036854775807"),
        (lambda x: x.clamp(max=200), torch.uint8, f", {200 << 16 | 200};"),
        # Halves that are only chosen stay halves; bytes go through 64 bits, as eager's on a GPU do.
        (lambda x: torch.where(x > 0, 2.0**-126, x), torch.bfloat16, "0x0080"),
        (lambda x: torch.where(x > 0, 1.5e-7, x), torch.bfloat16, "0x3421"),
        (lambda x: torch.where(x > 0, -0.0, x), torch.float16, "0x8000"),
        (lambda x: x.to(torch.uint8), F32, "cvt.rzi.s64.f32"),
    ],
)  # fmt: skip
def test_the_compiler_reads_what_was_written(function: Any, dtype: torch.dtype, bits: str) -> None:
    """Not the interpreter: the text goes through Triton to instructions for a GPU."""
    (kernel,) = kernels_of(function, torch.ones(64, dtype=dtype))
    assert bits in ptx_of(kernel), ptx_of(kernel)
