"""Products of integers, and of weights that stay narrow: int8 exact, the rest as exact as eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import litz
from litz.ir.dtypes import I32, U8
from litz.ir.expr import apply, cast, const, integer, load
from litz.ir.program import Buffer
from litz.lower.weight_only_quant import integer_range
from litz.report import Explanation
from litz.target import host
from tests import draws

F32, BF16 = torch.float32, torch.bfloat16
in_fours = pytest.mark.skipif(host().dot_group("i8", "i8") == 1, reason="no such instruction")


class _Weights(nn.Module):
    """A function of x and buffers."""

    def __init__(self, function: Callable[..., Tensor], *buffers: Tensor) -> None:
        super().__init__()
        self.function = function
        for k, tensor in enumerate(buffers):
            self.register_buffer(f"b{k}", tensor)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.buffers())


def _run(module: nn.Module, x: Tensor, **options: object) -> tuple[Tensor, Explanation]:
    torch._dynamo.reset()
    settings = {"on_error": "raise", **options}
    with torch.no_grad():
        with litz.config.patch(settings):
            notes = litz.explain(module, x)
        torch._dynamo.reset()
        return torch.compile(module, backend="litz", options=settings)(x), notes


def _held_bytes(notes: Explanation) -> int:
    (graph,) = notes.graphs
    sizes = [[n.number for n in b.shape] + [b.dtype.bytes] for b in graph.plan.graph.prepacked]
    return sum(int(torch.tensor(size).prod()) for size in sizes)


def _bytes(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


# -- integers ----------------------------------------------------------------------------------


@in_fours
@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(17, 64, 64), (20, 70, 130), (33, 1029, 24)]
)
def test_integers_are_exact(rows: int, depth: int, columns: int) -> None:
    """Whole groups of four and parts of them; the least int8 in both operands."""
    draws.seed(0)
    weight, x = _bytes(columns, depth), _bytes(rows, depth)
    weight[:, :9], x[0] = -128, -128
    module = _Weights(lambda x, w: torch._int_mm(x, w.t()), weight)
    found, notes = _run(module, x, debug_index_asserts=True)
    assert not notes.aten_ops and torch.equal(found, module(x))


@in_fours
def test_what_widens_the_sums_is_fused() -> None:
    draws.seed(0)
    scale = torch.rand(64)
    module = _Weights(
        lambda x, w, s: (torch._int_mm(x, w.t()).float() * s + 1).relu(), _bytes(64, 48), scale
    )
    x = _bytes(20, 48)
    found, notes = _run(module, x)
    assert len(notes.graphs[0].kernels) == 2 and notes.graphs[0].plan.arena_bytes == 0
    torch.testing.assert_close(found, module(x), rtol=0, atol=0)


def test_integers_that_are_no_parameter_stay_with_aten() -> None:
    module = _Weights(lambda x: torch._int_mm(x, x.t()))
    x = _bytes(32, 48)
    found, notes = _run(module, x)
    assert notes.aten_ops and torch.equal(found, module(x))


# -- weights that stay narrow ------------------------------------------------------------------

K, N = 96, 80


def _int8(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return x @ (w.to(s.dtype) * s[:, None]).t()


def _int8_in_groups(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    grouped = w.to(s.dtype).view(N, K // 32, 32) * s.repeat(K // 32, 1).t()[:, :, None]
    return x @ grouped.reshape(N, K).t()


def _int8_of_aten(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    if x.dtype is torch.float64:
        return _int8(x, w, s)
    return torch.ops.aten._weight_int8pack_mm(x, w, s)


def _int4(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    """Bytes [N, K / 2], the even k in the low half; a scale for each 32."""
    b = w[:, : K // 2]
    q = torch.stack([b & 15, b >> 4], -1).reshape(N, K // 32, 32)
    return x @ ((q.to(s.dtype) - 8) * s[:, None, None]).reshape(N, K).t()


def _one_bit_more(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    """Five bits do not fit half a byte."""
    return x @ ((w & 31).to(s.dtype) * s[:, None]).t()


NARROW = {
    # a function, the type of its weight, the bytes kept for each number
    "int8": (_int8, torch.int8, 1.0),
    "int8 in groups": (_int8_in_groups, torch.int8, 1.2),
    "int8 of ATen": (_int8_of_aten, torch.int8, 1.0),
    "int4": (_int4, torch.uint8, 0.65),
    "five bits": (_one_bit_more, torch.uint8, 1.0),
}


@pytest.mark.parametrize(("dtype", "rows"), [(F32, 13), (BF16, 1)])
@pytest.mark.parametrize("name", NARROW)
def test_a_weight_stays_narrow(name: str, dtype: torch.dtype, rows: int) -> None:
    """Nothing wider than the weight is kept (panels are filled up to 128 columns of 80)."""
    draws.seed(0)
    function, kind, share = NARROW[name]
    scales = torch.rand(N, dtype=dtype) * 0.02
    module = _Weights(function, _bytes(N, K).view(kind), scales)
    x = torch.randn(rows, K, dtype=dtype)
    found, notes = _run(module, x, debug_index_asserts=True)
    assert not notes.aten_ops
    assert _held_bytes(notes) <= share * K * 128 + 4 * N, notes.graphs[0].plan.graph.prepacked
    expected, exact = module(x), module.double()(x.double())
    mine, theirs = ((t.double() - exact).abs().max() for t in (found, expected))
    # The roundings of a sum are relative to the products in it, not to what is left of them.
    weight = module(torch.eye(K, dtype=torch.float64))
    size = (x.double().abs() @ weight.abs()).max()
    assert mine <= 2 * theirs + 2e-7 * size, (mine, theirs, size)


def test_four_bits_as_aten_packs_them() -> None:
    draws.seed(0)
    numbers = torch.randint(0, 16, (128, 64), dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers, 1)
    scales = torch.rand(2, 128, 2)
    module = _Weights(
        lambda x, w, s: torch.ops.aten._weight_int4pack_mm_for_cpu(x, w, 32, s), packed, scales
    )
    x = torch.randn(7, 64)
    found, notes = _run(module, x)
    by_k = scales.double().repeat_interleave(32, 0)
    weight = (numbers.t().double() - 8) * by_k[..., 0] + by_k[..., 1]
    torch.testing.assert_close(found.double(), x.double() @ weight, rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(found, module(x), rtol=1e-5, atol=1e-4)  # sums of size 100
    if host().vector_bytes == 64:
        assert not notes.aten_ops and _held_bytes(notes) <= 128 * 64 * 0.5 + 2 * 2 * 128 * 4


def test_integer_ranges() -> None:
    byte = load(Buffer("w", U8, (integer(8),), (integer(1),)), (integer(0),))
    low, high = apply("and", byte, const(15, U8)), apply("shr", byte, const(6, U8))
    assert integer_range(byte) == (0, 255)
    assert integer_range(low) == (0, 15) and integer_range(high) == (0, 3)
    assert integer_range(apply("where", apply("lt", low, high), low, high)) == (0, 15)
    assert integer_range(apply("sub", cast(low, I32), const(8, I32))) == (-8, 7)
    assert integer_range(apply("sub", low, const(8, U8))) is None  # wraps
    assert integer_range(apply("mul", low, high)) is None
