"""The NumPy meaning of each op, which is the oracle's, against what eager computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from litz.ir.checks import CHECK_OPS
from litz.ir.dtypes import BOOL, F32, F64
from litz.ir.expr import axis, cast, const, reduce
from litz.ir.ops import OPS, REDUCTIONS
from litz.ir.special import POLYNOMIALS, SPECIAL

FLOATS = np.array(
    [
        -np.inf,
        -1e30,
        -2.5,
        -1.5,
        -1.0,
        -0.5,
        -0.0,
        0.0,
        0.3,
        0.5,
        1.0,
        1.5,
        3.0,
        88.0,
        np.inf,
        np.nan,
    ],
    np.float32,
)
INTEGERS = np.array([-(2**31), -7, -3, -1, 0, 1, 2, 5, 31, 40, 2**31 - 1], np.int32)

UNARY_NAMES = """
    neg abs sign floor ceil trunc round sqrt rsqrt exp exp2 expm1 log log2 log10 log1p
    sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc sigmoid isnan
"""
UNARY = {op: getattr(torch, op) for op in UNARY_NAMES.split()}
BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "pow": torch.pow,
    "min": torch.minimum,
    "max": torch.maximum,
    "atan2": torch.atan2,
    "copysign": torch.copysign,
    **{op: getattr(torch, op) for op in ("eq", "ne", "lt", "le", "gt", "ge")},
}
INTEGER_BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "floordiv": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "truncdiv": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "mod": torch.remainder,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "min": torch.minimum,
    "max": torch.maximum,
}


def agree(op: str, expected: torch.Tensor, *operands: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        found = np.asarray(OPS[op].numpy(*operands))
    assert found.dtype == expected.numpy().dtype
    np.testing.assert_allclose(found, expected.numpy(), rtol=2e-6, atol=1e-37)


@pytest.mark.parametrize("op", UNARY)
def test_functions_of_one_float(op: str) -> None:
    agree(op, UNARY[op](torch.from_numpy(FLOATS)), FLOATS)


@pytest.mark.parametrize("op", BINARY)
def test_functions_of_two_floats(op: str) -> None:
    x, y = (a.ravel() for a in np.meshgrid(FLOATS, FLOATS))
    agree(op, BINARY[op](torch.from_numpy(x), torch.from_numpy(y)), x, y)


@pytest.mark.parametrize("op", INTEGER_BINARY)
def test_functions_of_two_integers(op: str) -> None:
    x, y = (a.ravel() for a in np.meshgrid(INTEGERS, INTEGERS))
    if op in ("floordiv", "truncdiv", "mod"):  # by zero is an error; the least by -1 overflows
        x, y = x[(y != 0) & (y != -1)], y[(y != 0) & (y != -1)]
    agree(op, INTEGER_BINARY[op](torch.from_numpy(x), torch.from_numpy(y)), x, y)


def test_integer_powers_wrap() -> None:
    x, y = (a.ravel() for a in np.meshgrid(INTEGERS, np.arange(6, dtype=np.int32)))
    agree("pow", torch.pow(torch.from_numpy(x), torch.from_numpy(y)), x, y)


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.uint8])
def test_not(dtype: type) -> None:
    x = np.array([0, 1, 1, 0], dtype)
    agree("not", torch.bitwise_not(torch.from_numpy(x)), x)


# Compared with torch in tests/lower/test_special.py and tests/lower/test_random.py.
ELSEWHERE = {*SPECIAL, *POLYNOMIALS, "gcd", "hypot", "random_bits"}


def test_every_op_is_compared() -> None:
    here = {*UNARY, *BINARY, *INTEGER_BINARY, "not"}
    assert set(OPS) - here - ELSEWHERE == {"where", *CHECK_OPS}


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reductions_combine_with_an_op(kind: str) -> None:
    spec = REDUCTIONS[kind]
    assert OPS[spec.combine].arity == 2
    x = (
        np.array([[True, False], [True, True]])
        if kind in ("any", "all")
        else FLOATS[2:12].reshape(5, 2)
    )
    torch_kind = {"max": "amax", "min": "amin", "wide_sum": "sum"}.get(kind, kind)
    expected = getattr(torch, torch_kind)(torch.from_numpy(x), 1, keepdim=True).numpy()
    np.testing.assert_allclose(spec.numpy(x, (1,)), expected, rtol=1e-6)
    row = axis("r0", 2)
    value = cast(const(1, F32), BOOL if kind in ("any", "all") else F32)
    assert (reduce(kind, (row,), value).dtype is F64) == spec.widens == (kind == "wide_sum")
