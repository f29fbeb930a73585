"""Pointwise ops against eager: every type and promotion, and the numbers definitions differ on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lower.agreement import (
    DTYPES,
    FLOATS,
    INTEGERS,
    Function,
    agree,
    numbers,
    special,
    takes,
)
from tests.stages import compiled


def methods(names: str) -> dict[str, Function]:
    return {name: getattr(torch, name) for name in names.split()}


ONE: dict[str, Function] = {
    **methods(
        "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh "
        "atanh erf erfc sigmoid sqrt rsqrt neg abs sign sgn relu floor ceil trunc round square "
        "reciprocal positive logical_not isnan isinf isfinite isposinf isneginf signbit "
        "bitwise_not frac deg2rad rad2deg sinc logit"
    ),
    "clone": torch.clone,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "elu": F.elu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "relu6": F.relu6,
    "logsigmoid": F.logsigmoid,
    "threshold": lambda x: F.threshold(x, 0.1, 2),
    "zero": lambda x: x * 0 + 1,
    **{f"pow {p}": lambda x, p=p: x**p for p in (0, 1, 2, 3, 5, 0.5, -0.5, -1, -2, 1.7)},
    **{f"base {b}": lambda x, b=b: b**x for b in (2, 0.5)},
}
# Eager's gelu of floats is oneDNN's: of infinity it is NaN, and far out it has few right digits.
ODD_IN_EAGER = {dtype: {"gelu"} for dtype in (torch.float32, torch.bfloat16, torch.float16)}
# Its powers of float16 go another way than all others: the root of -infinity is infinity.
ROOTS = {"pow 0.5", "pow -0.5"}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_of_one_number(dtype: torch.dtype) -> None:
    x = special(dtype)
    odd, own = ODD_IN_EAGER.get(dtype, set()), ROOTS if dtype is torch.float16 else set()
    table = {name: f for name, f in ONE.items() if takes(f, x)}
    assert len(table) >= 38
    agree({name: f for name, f in table.items() if name not in odd | own}, x, wide=True)
    if odd:
        agree({name: ONE[name] for name in odd}, x[x.abs() < 3], wide=True)
    if own:
        agree({name: ONE[name] for name in own}, x)


TWO: dict[str, Function] = {
    **methods(
        "add sub mul maximum minimum fmax fmin atan2 copysign hypot eq ne lt le gt ge logical_and "
        "logical_or logical_xor bitwise_and bitwise_or bitwise_xor rsub heaviside xlogy logaddexp "
        "true_divide fmod remainder"
    ),
    "add alpha": lambda x, y: torch.add(x, y, alpha=2),
    "sub alpha": lambda x, y: torch.sub(x, y, alpha=3),
    "where": lambda x, y: torch.where(x > y, x, y),
    "clamp": lambda x, y: torch.clamp(x, torch.minimum(x, y), y),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=2),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y.abs() + 1),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_to_num(dtype: torch.dtype) -> None:
    agree({"limits": torch.nan_to_num, "given": lambda x: x.nan_to_num(1, 2, 3)}, special(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_of_two_numbers(dtype: torch.dtype) -> None:
    # Eager multiplies and adds in one step where a scale is given, and its fmod of a quotient that
    # overflows is NaN: the largest numbers are left out.
    ends = special(dtype, largest=False)
    x, y = ends[:, None], ends[None]
    nonzero = torch.where(y == 0, torch.ones_like(y), y)
    table = {name: f for name, f in TWO.items() if takes(f, x, nonzero)}
    assert len(table) >= 18
    agree(table, x, nonzero, wide=True)


DIVISIONS: dict[str, Function] = {
    "/": lambda x, y: x / y,
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
    "fmod": torch.fmod,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "scalar //": lambda x, y: x // 3,
    "scalar %": lambda x, y: x % 3,
    "negative scalar //": lambda x, y: x // -3,
    "negative scalar %": lambda x, y: x % -3,
    "scalar fmod": lambda x, y: torch.fmod(x, -3),
    "scalar trunc": lambda x, y: torch.div(x, 2, rounding_mode="trunc"),
    "1 / y": lambda x, y: 1 / y,
    "7 // y": lambda x, y: 7 // y,
    "7 % y": lambda x, y: 7 % y,
}


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_division_and_its_signs(dtype: torch.dtype) -> None:
    ends = special(dtype, largest=False)
    if not dtype.is_floating_point:
        ends = ends[ends != 0]
    # Where quotients are cut off an ulp decides, and each step is rounded as eager rounds it.
    cut = {
        name: function for name, function in DIVISIONS.items() if name in ("//", "trunc", "floor")
    }
    agree(cut, ends[:, None], ends[None])
    others = {name: function for name, function in DIVISIONS.items() if name not in cut}
    agree(others, ends[:, None], ends[None], wide=True)


@pytest.mark.parametrize("dtype", INTEGERS[:-1], ids=str)
def test_the_least_integer_divided_by_minus_one_wraps(dtype: torch.dtype) -> None:
    """Eager dies of it: the processor traps."""
    x = torch.full((21,), torch.iinfo(dtype).min, dtype=dtype)
    minus_one = torch.full_like(x, -1)
    for name in ("//", "trunc", "%", "fmod"):
        expected = torch.zeros_like(x) if name in ("%", "fmod") else x
        assert torch.equal(compiled(DIVISIONS[name])(x, minus_one), expected)


@pytest.mark.parametrize("op", ["//", "%", "fmod", "trunc", "floor"])
@pytest.mark.parametrize("length", [1, 7, 40])
def test_integer_division_by_zero_raises(op: str, length: int) -> None:
    x, y = numbers(torch.int64, length), torch.ones(length, dtype=torch.int64)
    run = compiled(DIVISIONS[op])
    torch.testing.assert_close(run(x, y), x if op in ("//", "trunc", "floor") else x * 0)
    y[-1] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run(x, y)
    y[-1] = 1
    run(x, y)  # the flag does not stay up


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts_past_the_width(dtype: torch.dtype) -> None:
    x = special(dtype)[:, None]
    amount = torch.tensor([0, 1, 3, 6, 7], dtype=dtype)[None]
    agree({"left": torch.bitwise_left_shift, "right": torch.bitwise_right_shift}, x, amount)
    wide = torch.tensor([8, 16, 31, 63, 100], dtype=dtype)[None]
    agree({"left": torch.bitwise_left_shift, "right": torch.bitwise_right_shift}, x, wide)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_powers_wrap(dtype: torch.dtype) -> None:
    base = torch.tensor([0, 1, 2, 3, 5, 7, 10], dtype=dtype)
    if dtype is not torch.uint8:
        base = torch.cat([base, -base])
    exponent = torch.tensor([0, 1, 2, 3, 31, 63, 64, 65, 100, 127], dtype=dtype)
    agree(torch.pow, base[:, None], exponent[None])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_promotion(dtype: torch.dtype) -> None:
    """Tensor with tensor, with a 0-d tensor, and with numbers of Python, of every type."""
    x = numbers(dtype, 3, 5)
    others = [numbers(other, 5, seed=k) for k, other in enumerate(DTYPES)]
    zero_d = [other[2] for other in others]

    def table(x: torch.Tensor, *rest: torch.Tensor) -> list[torch.Tensor]:
        results = [x + other for other in rest] + [x < other for other in rest]
        results += [torch.where(x > 0, x, other) for other in rest]
        results += [torch.true_divide(x, other) for other in rest]
        return [*results, x + 1, x * 2.5, x + True, 2 - x * 1, x / 2, x == 1, x > 0.5, x * -1]

    agree(table, x, *others, *zero_d)


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_casts(source: torch.dtype) -> None:
    """Floats truncate, anything but zero is true, wide integers keep their low bits."""
    if source.is_floating_point:
        values = [0.0, -0.0, 0.4, 0.6, 1.5, 2.5, 3.99, 100.7, 127.0, 1e-7]
        x = torch.tensor(values, dtype=source)
        below = -x[:8]
        signed = [d for d in DTYPES if d is not torch.uint8]
        agree({str(d): lambda x, d=d: x.to(d) for d in signed}, below)
    else:
        x = special(source)
    agree({str(d): lambda x, d=d: x.to(d) for d in DTYPES}, x)


BEYOND: dict[str, Function] = {
    "loaded": lambda x, m: x,
    "infinite": lambda x, m: x.masked_fill(m, torch.inf),
    "least": lambda x, m: x.masked_fill(m, -torch.inf),
    "no number": lambda x, m: torch.where(m, torch.nan, x),
    "large": lambda x, m: x.masked_fill(m, 60_000.0) * x.masked_fill(m, 60_000.0),
    "padded": lambda x, m: F.pad(x, (2, 2), value=torch.inf),
    "over zero": lambda x, m: x / 0,
    "all infinite": lambda x, m: torch.full_like(x, torch.inf),
    "whole": lambda x, m: (m.long() * (2**40 + 3) - 7).to(x.dtype),
}


@pytest.mark.parametrize("length", [5, 40])
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_casts_of_what_no_integer_holds(source: torch.dtype, length: int) -> None:
    """What eager's C++ makes of it, which LLVM would leave undefined."""
    ends = [1.5, -2.5, torch.inf, -torch.inf, torch.nan, 2.0**31 + 7, -3e9, 1e30, 300.0, -(2.0**31)]
    x = torch.tensor(ends * 4, dtype=source)[:length]
    agree(
        {
            f"{name} to {d}": lambda x, m, d=d, f=f: f(x, m).to(d)
            for name, f in BEYOND.items()
            for d in INTEGERS
        },
        *(x, torch.arange(length) % 3 == 0),
    )


@pytest.mark.parametrize("source", [torch.float32, torch.float64], ids=str)
def test_rounding_to_halves(source: torch.dtype) -> None:
    """Ties to even, overflow to infinity, denormals kept, NaN kept."""
    ends = [1 + 2**-9, 1 + 3 * 2**-9, 65504.0, 65520.0, 3.4e38, 6e-8, 3e-8, 1e-39, 9e-41]
    x = torch.cat([torch.tensor([*ends, torch.inf, -torch.inf, torch.nan], dtype=source)] * 2)
    x[12:] *= -1
    run = agree(lambda x: (x.to(torch.bfloat16), x.to(torch.float16)), x)
    for ours, eager in zip(run(x), (x.to(torch.bfloat16), x.to(torch.float16)), strict=True):
        number = ~eager.isnan()
        assert torch.equal(ours.view(torch.int16)[number], eager.view(torch.int16)[number])


SIGNED_ZEROS: dict[str, Function] = {
    "neg": lambda x: -x,
    "mul": lambda x: x * -1,
    "div": lambda x: x / -2,
    "abs": torch.abs,
    "trunc": torch.trunc,
    "ceil": torch.ceil,
    "round": torch.round,
    "add": lambda x: x + 0.0,
    "sub": lambda x: x - 0.0,
    "from zero": lambda x: 0.0 - x,
    "copysign": lambda x: torch.copysign(torch.zeros_like(x), x),
    "sqrt": torch.sqrt,
    "fmod": lambda x: torch.fmod(x, 1.0),
    "where": lambda x: torch.where(x >= 0, x, -x),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_zeros_keep_their_sign(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0, 0.4, -0.4, 2.0, -2.0], dtype=dtype)
    signs = {n: lambda x, f=f: torch.signbit(f(x)) & ~f(x).isnan() for n, f in SIGNED_ZEROS.items()}
    agree(signs, x)
    agree(SIGNED_ZEROS, x)


CLAMPS: dict[str, Function] = {
    "both": lambda x: x.clamp(-1, 1),
    "low": lambda x: x.clamp(min=-1),
    "high": lambda x: x.clamp(max=1),
    "crossed": lambda x: x.clamp(2, 1),
    "by tensor": lambda x: x.clamp(min=x.flip(0)),
    "between tensors": lambda x: torch.clamp(x, x.flip(0), x.roll(1, 0)),
}


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_clamp_keeps_nan(dtype: torch.dtype) -> None:
    agree(CLAMPS, special(dtype))


LIMITED = {"maximum": torch._foreach_maximum, "minimum": torch._foreach_minimum}
LIMITS: dict[str, Any] = {
    "float": 0.5,
    "integer": 2,
    "nan": torch.nan,
    "one for each": [0.5, 2],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool], ids=str)
def test_lists_are_limited_by_numbers(dtype: torch.dtype) -> None:
    """Over one tensor, maximum and minimum take no numbers."""
    table: dict[str, Function] = {
        f"{name} {kind}": lambda x, y, op=op, limit=limit: op([x, y], limit)
        for name, op in LIMITED.items()
        for kind, limit in LIMITS.items()
    }
    for name, op in LIMITED.items():
        table[f"{name} tensor"] = lambda x, y, op=op: op([x, y], torch.tensor(0.5))
    agree(table, special(dtype), numbers(dtype, 3, 4).t())


@pytest.mark.parametrize("dtype", [torch.float32, *INTEGERS], ids=str)
def test_factors_are_cut_off_for_integers(dtype: torch.dtype) -> None:
    x, y, z = (numbers(dtype, 5, seed=seed) for seed in range(3))
    listed = torch._foreach_addcmul
    table: dict[str, Function] = {
        "alone": lambda x, y, z: torch.addcmul(x, y, z, value=2.7),
        "one factor": lambda x, y, z: listed([x, y], [y, z], [z, x], 2.0),
        "one for each": lambda x, y, z: listed([x, y], [y, z], [z, x], [1.5, 0.5]),
    }
    agree(table, x, y, z)


def test_powers_of_a_number_are_row_major() -> None:
    """However the exponents lie: eager allocates these without a look at their strides."""
    table: dict[str, Function] = {
        "alone": lambda x: torch.pow(2.0, x),
        "of one": lambda x: torch.pow(1.0, x),
        "list": lambda x: torch._foreach_pow(2.0, [x, x.contiguous()]),
        "power": lambda x: torch.pow(x, 2.0),
    }
    agree(table, numbers(torch.float32, 3, 4).t())
    agree(table, numbers(torch.int64, 2, 3, 4, 5).to(memory_format=torch.channels_last))


SHAPES = [
    ((5,), (4, 5)),
    ((4, 1), (1, 5)),
    ((), (3,)),
    ((1,), (2, 1, 3)),
    ((2, 1, 4), (3, 1)),
    ((1, 1), ()),
    ((7, 1, 3, 1), (2, 1, 17)),
]


@pytest.mark.parametrize("left, right", SHAPES, ids=str)
def test_broadcasting(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    x, y, c = (numbers(d, *s) for d, s in
               [(torch.float32, left), (torch.float32, right), (torch.bool, left)])  # fmt: skip
    table: dict[str, Any] = {
        "add": lambda x, y, c: x + y,
        "compare": lambda x, y, c: x < y,
        "where": lambda x, y, c: torch.where(c, x, y),
        "number": lambda x, y, c: torch.where(c, 1.0, y),
    }
    agree(table, x, y, c)


def test_a_long_chain_is_one_kernel_of_linear_size() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        y = x
        for k in range(30):
            y = y * x + k if k % 2 else (y + x) * 0.5
        return y

    run = agree(chain, torch.linspace(-0.5, 0.5, 37))
    (report,) = run.reports
    assert len(report.kernels) == 1
    assert len(report.source.text) < 40_000
