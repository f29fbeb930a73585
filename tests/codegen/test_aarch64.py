"""The CPU target for AArch64: every kind of kernel compiles, and what it computes is right."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litz.build.openmp import OPENMP_QUERIES, START
from litz.ir.dtypes import I8, DType
from litz.target import aarch64, host
from tests import draws
from tests.codegen.aarch64 import MISSING, PACKAGES, for_aarch64, undefined
from tests.stages import compiled, copied
from tests.test_stages import FUNCTIONS
from tests.texts import PROGRAMS

Case = tuple[Callable[..., Any], tuple[Any, ...]]
FEATURES = {"plain": (), "with dots": ("+bf16", "+dotprod", "+fullfp16")}
emulated = pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)}: install {PACKAGES}")

_DRAW = draws.generator(3)
X, W = (torch.randn(shape, generator=_DRAW) for shape in ((37, 64), (64, 48)))
Q = torch.randn(3, 4, 33, 16, generator=_DRAW)  # of attention
IMAGE, TAPS = (torch.randn(shape, generator=_DRAW) for shape in ((2, 16, 9, 9), (16, 1, 3, 3)))
KERNELS = torch.randn(24, 16, 3, 3, generator=_DRAW)
BYTES = torch.randint(-128, 128, (37, 64), dtype=torch.int8, generator=_DRAW)
MORE_BYTES = torch.randint(-128, 128, (64, 48), dtype=torch.int8, generator=_DRAW)
PLACES = torch.randint(0, 9, (40,), generator=_DRAW)
LARGE = torch.randn(130, 515, generator=_DRAW)
WIDE = torch.tensor([1e30, -1e30, float("nan"), float("inf"), 2.5, -2.5, 3e9, 1e-40])


class Weight(nn.Module):
    """A function of x and of what is packed once."""

    def __init__(self, function: Callable[..., Tensor], weight: Tensor) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight)


def _floats(kind: torch.dtype) -> Case:
    return lambda x: ((x.float() * 1.5).to(kind), x.float().sum(1)), (X.to(kind),)


# What the functions of `tests/test_stages.py` leave out.
MORE: dict[str, Case] = {
    "product": (lambda x, w: F.relu(x @ w) + 1, (X, W)),
    "product of halves": (Weight(torch.matmul, W.bfloat16()), (X.bfloat16(),)),
    "product of float16": (lambda x, w: x @ w, (X.half(), W.half())),
    "product of bytes": (Weight(torch._int_mm, MORE_BYTES), (BYTES,)),
    "batched product": (lambda q: q @ q.transpose(-1, -2), (Q,)),
    "attention op": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (Q,)),
    "one query": (lambda q: F.scaled_dot_product_attention(q[:, :, :1], q, q), (Q,)),
    "windows": (lambda x, w: F.conv2d(x, w, padding=1, groups=16).relu(), (IMAGE, TAPS)),
    "convolution": (lambda x, w: F.conv2d(x, w), (IMAGE, KERNELS)),
    "pool": (lambda x: F.max_pool2d(x, 2) + F.avg_pool2d(x, 2), (IMAGE,)),
    "scatter add": (
        lambda x, i: torch.zeros(9, 64).index_add_(0, i[:37], x).cumsum(1), (X, PLACES)),
    "cummax": (lambda x: x.cummax(1)[0] + x.logcumsumexp(0), (X,)),
    "float16": (lambda x: F.gelu(x * 2).half() + x.half(), (X,)),
    "bfloat16": (lambda x: (x * 2 + 0.3, F.layer_norm(x, (64,))), (X.bfloat16(),)),
    "e4m3": _floats(torch.float8_e4m3fn),
    "e5m2": _floats(torch.float8_e5m2),
    "float64": (lambda x: x.double().tanh().sum(1) + x.double().lgamma().amax(1), (X.abs(),)),
    "special": (lambda x: torch.special.zeta(x + 1.5, x) + torch.erfinv(x / 9), (X[:1].abs(),)),
    "functions": (
        lambda x: x.sin() + x.exp() * torch.atan2(x, x + 1) + torch.fmod(x, 0.7) + x.sigmoid(),
        (X,)),
    "long rows": (lambda x: (F.softmax(x, 1), x.var(1), x.sum(), x.sum(0)), (LARGE,)),
    "integers": (lambda n: (n // 3, n % 7, n >> 1, n.sum()), (BYTES.long(),)),
    "bounds": (lambda x, i: x[i[:20]] * 2, (X, PLACES)),
    "transposed": (lambda x: (x.t().contiguous() + 1, x.flip(0)), (LARGE,)),
}  # fmt: skip


def _random(x: Tensor) -> Tensor:
    return F.dropout(x, 0.4) + torch.rand_like(x)


def _supplied(name: str) -> bool:
    """Whether a kernel may call it: threads, or what every C library has."""
    return name in (START, *OPENMP_QUERIES) or (
        not name.startswith("_") and hasattr(ctypes.CDLL(None), name)
    )


def _run(case: Case) -> list[Tensor]:
    """Results of the program as the context compiles it, and its inputs afterwards."""
    draws.seed(5)
    function, inputs = case
    given = [copied(i) for i in inputs]
    if isinstance(function, nn.Module):
        torch._dynamo.reset()
        with torch.no_grad():
            run = torch.compile(function, backend="litz", options={"on_error": "raise"})
            found = run(*given)
    else:
        found = compiled(function)(*given)
    return [*(found if isinstance(found, (tuple, list)) else [found]), *given]


CASES = {**{f"stage {name}": case for name, case in FUNCTIONS.items()}, **MORE}


# Kernels that are other ones on a processor with more features.
NARROW = tuple(name for name in CASES if "16" in name or "of " in name)


@pytest.mark.parametrize("name", CASES)
def test_an_object_of_every_kind(name: str) -> None:
    with for_aarch64(FEATURES["with dots" if name in NARROW else "plain"]) as made:
        _run(CASES[name])
    assert made
    for graph in made:
        assert all(map(_supplied, undefined(graph.code))), undefined(graph.code)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in FUNCTIONS])
def test_an_object_of_every_model(name: str) -> None:
    """Models, forward and backward, an optimizer, and sizes that change."""
    torch._dynamo.reset()
    draws.seed(0)
    with for_aarch64() as made:
        PROGRAMS[name]()
    assert made
    for graph in made:
        assert all(map(_supplied, undefined(graph.code))), undefined(graph.code)


def _same(found: list[Tensor], expected: list[Tensor], rounding: float) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is other.dtype
        torch.testing.assert_close(
            one.double(), other.double(), rtol=rounding, atol=rounding, equal_nan=True
        )


# An ulp of the type that results are rounded to, or of a sum in another order.
ROUNDING = {
    "bf16": 2e-2, "bfloat16": 2e-2, "product of halves": 2e-2, "product of float16": 2e-3,
    "float16": 4e-3, "e4m3": 0.13, "e5m2": 0.25, "attention": 1e-4,
}  # fmt: skip


# Of the functions of `tests/test_stages.py` a few; they are told apart by other tests.
SAMPLE = [
    *MORE, *(f"stage {name}" for name in ("attention", "bf16", "cat_many", "gather", "update")),
]  # fmt: skip


@emulated
@pytest.mark.parametrize(
    "name, features",
    [(n, f) for n in SAMPLE for f in FEATURES if f == "plain" or n in NARROW],
)
def test_emulated_code_computes_what_the_interpreter_and_this_machine_do(
    name: str, features: str
) -> None:
    rounding = ROUNDING.get(name.removeprefix("stage "), 2e-5)
    with for_aarch64(FEATURES[features], emulated=True) as made:
        found = _run(CASES[name])
    with for_aarch64(FEATURES[features]):
        interpreted = _run(CASES[name])
    assert all(g.kernels or not g.plan.graph.kernels for g in made)
    _same(found, interpreted, rounding)
    _same(found, _run(CASES[name]), rounding)


@emulated
def test_random_numbers_are_the_same_bits() -> None:
    with for_aarch64(emulated=True) as made:
        found = _run((_random, (X,)))
    assert made[0].kernels
    assert all(a.equal(b) for a, b in zip(found, _run((_random, (X,))), strict=True))


@emulated
def test_one_code_serves_sizes_that_change() -> None:
    torch._dynamo.reset()

    def function(x: Tensor) -> Tensor:
        return F.softmax(x, 1) @ x.t() + x.sum(1)

    with for_aarch64(emulated=True) as made, torch.no_grad():
        run = torch.compile(function, backend="litz", options={"on_error": "raise"}, dynamic=True)
        for rows, columns in ((5, 40), (9, 31), (7, 64)):
            x = torch.randn(rows, columns)
            torch.testing.assert_close(run(x), function(x), rtol=2e-5, atol=2e-5)
    assert len(made) == 1 and len(made[0].kernels) >= 3


@emulated
def test_floats_that_no_integer_holds_become_the_nearest() -> None:
    """As eager's C++ casts do on that processor, where this machine's give the least integer."""
    with for_aarch64(emulated=True):
        found, _ = _run((lambda x: x.int(), (WIDE,)))
    most = 2**31 - 1
    assert found.tolist() == [most, -most - 1, 0, most, 2, -2, most, 0]


@emulated
@pytest.mark.parametrize("features", FEATURES)
def test_bfloat16_is_rounded_as_eager_rounds_it(features: str) -> None:
    bits = torch.arange(-(1 << 31), (1 << 31) - 1, 4099 * 31).to(torch.int32)
    x = torch.cat([bits.view(torch.float32), WIDE, torch.tensor([1e-40, 5e-39, -1e-45])])
    with for_aarch64(FEATURES[features], emulated=True):
        found, _ = _run((lambda x: x.bfloat16(), (x,)))
    expected = x.bfloat16()
    number = ~expected.isnan()
    assert found.isnan().equal(expected.isnan())
    assert found.view(torch.int16)[number].equal(expected.view(torch.int16)[number])


@emulated
def test_an_index_out_of_range_is_noted() -> None:
    with for_aarch64(emulated=True), pytest.raises(IndexError):
        _run((lambda x, i: x[i] * 2, (X, torch.tensor([3, 99]))))


def test_products_of_bytes_and_halves_use_its_instructions() -> None:
    with for_aarch64(FEATURES["with dots"]) as made:
        _run(MORE["product of bytes"])
        _run(MORE["product of halves"])
    assert "@llvm.aarch64.neon.sdot.v4i32.v16i8" in made[0].source.text
    assert "@llvm.aarch64.neon.bfdot.v4f32.v8bf16" in made[1].source.text
    with for_aarch64() as made:
        _run(MORE["product of halves"])
    assert "llvm.aarch64" not in made[0].source.text


def test_the_table_of_instruction_sets() -> None:
    def groups(features: tuple[str, ...], dtype: DType = I8) -> int:
        return aarch64(features).dot_group(dtype.name, dtype.name)

    assert (groups(()), groups(("+dotprod",))) == (1, 4)
    assert aarch64().registers == 32 and aarch64().vector_bytes == 16
    assert host().isa.name in ("x86_64", "aarch64")
