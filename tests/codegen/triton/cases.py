"""What the GPU's kernels are tested with: functions by name, and how each is compiled.

In: `TRITON_INTERPRET=1 python -m tests.codegen.triton.cases`. Out: a line of JSON a case: its name,
what was wrong with it, if anything was, and its kernels. Every case goes through all stages to the
interpreter, and what it gives is held against the loop IR's own. In `blocks` rows are taken a few
points at a time, as they are on a GPU if they are long; in `order` points that meet take turns; in
`other tiles` every kernel has tilings that timing might choose.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from litz.errors import DriverError, IndexOutOfRange, InputMismatch
from litz.ir import fp8
from litz.ir.dtypes import DTYPES
from litz.schedule import tile
from litz.target import NOT_ON_CUDA
from tests import draws
from tests.codegen import test_op_tables
from tests.codegen.triton import alignment, faults, lone_constants, parts, sizes, small_types
from tests.codegen.triton.apart import told
from tests.stages import as_array
from tests.test_stages import FUNCTIONS, B, I, N, T, W, X

Case = tuple[Callable[..., Any], tuple[Any, ...]]
D, H = X.double(), X.half()
L = torch.tensor([[0, 5, 5, 2], [3, 3, 1, 0]])
U = (X.abs() * 20).to(torch.uint8)
P = torch.rand(6, 20, generator=draws.generator(1))
CUBE = torch.randn(3, 4, 5, generator=draws.generator(2))
SCALAR = torch.tensor(2.5)
WIDE = torch.randn(6, 300, generator=draws.generator(4))
IMAGES = torch.randn(2, 8, 15, 15, generator=draws.generator(5))
ROWS_OF_128 = torch.randn(5, 128, generator=draws.generator(6))
INFINITE = torch.full((6, 20), -math.inf)
INFINITE[1:, ::3] = X[1:, ::3]
INFINITE[2, 7], INFINITE[3, 4], INFINITE[4, :9], INFINITE[5, 11] = (
    math.inf, math.nan, -math.inf, -3e38
)  # fmt: skip
W8 = torch.randint(-128, 128, (70, 128), generator=draws.generator(9), dtype=torch.int8)
S8 = torch.rand(70, generator=draws.generator(10)).bfloat16()
FP8_DTYPES = torch.arange(37 * 7).to(torch.uint8).view(37, 7).view(torch.float8_e4m3fn)
SQUARE = torch.randn(128, 128, generator=draws.generator(7)) / 8


def _updated(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


def _updated_beside_windows(x: torch.Tensor) -> torch.Tensor:
    joined = torch.cat([x.abs(), x * 2], 1)
    x.add_(1)
    return joined


def _random(x: torch.Tensor) -> torch.Tensor:
    draws.seed(3)
    return torch.rand_like(x) + torch.randint_like(x, 0, 9) + torch.randn_like(x) * 0


LONG = torch.randn(17, 37, generator=draws.generator(8)).bfloat16()
OPS: dict[str, Case] = {
    "odd_rows": (
        lambda b: [b.softmax(1), b.float().log_softmax(1), b.float().sum(1), b.amax(1)], (LONG,)
    ),
    "odd_places": (lambda b, w: [b.argmax(1), F.layer_norm(b, (37,), w[0]), b.half()],
                   (LONG, LONG)),
    # Eight times a half is exact: eager cuts what it has rounded, Litz what it has not.
    "odd_bytes": (lambda b: [(b > 0).any(1), ((b * 8).to(torch.int8)).sum(1), b[3:4].amax(1)],
                  (LONG,)),
    "odd_eighths": (
        lambda e: [e.float().softmax(1), (e.float() / e.float().amax(1, True)).to(e.dtype)],
        (LONG.to(torch.float8_e4m3fn),),
    ),
    "odd_views": (lambda b: b[:, 3:].softmax(1) + b[1, 3:] + b[:, 3:].flip(1), (LONG,)),
    "moments": (lambda x: torch.var_mean(x + 9, 0), (torch.randn(16384, 128),)),
    "unary": (
        lambda x: [
            f(x)
            for f in (torch.exp, torch.sin, torch.cos, torch.tanh, torch.sigmoid, torch.erf)
        ] + [x.abs(), -x, x.floor(), x.ceil(), x.trunc(), x.round(), x.sign(), x.square()],
        (X,),
    ),
    "updated_beside_windows": (_updated_beside_windows, (torch.arange(4096.0).view(64, 64),)),
    "joined_beside_a_transpose": (
        lambda c: (torch.cat([c[1:-3], c[2:-2]], 1), c[2:-2].transpose(1, 2).contiguous()),
        (torch.arange(96.0 * 4 * 8).view(96, 4, 8),),
    ),
    "two_lengths": (lambda x, y: torch.cat([x.exp(), y.tanh()], 1), (X, WIDE)),
    "positive": (lambda p: [p.log(), p.log2(), p.log10(), p.log1p(), p.sqrt(), p.rsqrt()], (P,)),
    "inverse": (lambda p: [p.asin(), p.acos(), p.atan(), p.asinh(), p.atanh(), p.erfinv()], (P,)),
    "hyperbolic": (lambda x: [x.sinh(), x.cosh(), x.expm1(), x.exp2(), x.tan(), x.erfc()], (X,)),
    "special": (lambda p: [p.lgamma(), torch.special.ndtri(p), torch.special.erfcx(p)], (P,)),
    "bessel": (lambda p: [torch.special.bessel_j0(p), torch.special.bessel_y1(p)], (P,)),
    "aten_alone": (lambda p: torch.special.digamma(p), (P,)),
    "left_to_aten": (lambda p: torch.special.digamma(p) + p, (P,)),
    "binary": (
        lambda x, t: [x + t, x / t, x.atan2(t), torch.hypot(x, t), x.copysign(t), x.fmod(t)],
        (X, T),
    ),
    "remainder": (lambda x, t: [x % t, torch.floor_divide(x, t), x.maximum(t)], (X, T)),
    "power": (lambda p, t: [p**t, p**3, p**0.5, p**-1], (P, T)),
    "integer": (lambda n: [n // 3, n % 5, n * n, -n, n.abs(), n & 6, n | 9, n ^ 3, ~n], (N,)),
    "negative": (lambda n: [n // -3, n % -5, n << 2, n >> 1, n**3, n.clamp(-3, 7)], (N,)),
    "power_of_one_base": (lambda n, b: b ** (n % 7), (N, torch.tensor(3))),
    "truncated": (lambda n: torch.div(n, 4, rounding_mode="trunc"), (N,)),
    "bytes": (lambda u: [u + u, u * 3, u // 7, u % 7, u > 100, u >> 1, u.max(1)[0]], (U,)),
    "double": (lambda d: [d.exp() / 3, d * 0.1 + 0.3, d.softmax(1), d.sum(0), d.cumsum(0)], (D,)),
    "half": (lambda h: [h.exp(), h * 2 + 1, h.sum(1), h.softmax(-1)], (H,)),
    "casts": (
        lambda x, n, u: [x.int(), x.bool(), n.float(), n.byte(), u.double(), x.bfloat16()],
        (X, N, U),
    ),
    "half_casts": (lambda b, h: [b.float(), h.float(), b.half(), h.bfloat16(), b.bool()], (B, H)),
    "fp8": (
        lambda x, e, f, u: [
            x.to(e.dtype), x.to(f.dtype), e.float(), f.float(), e.bfloat16() + 1, f.to(e.dtype),
            (x * 3).to(e.dtype).float().sum(1), torch.cat([e.t(), e.t()], 1), e.bool(),
            e[:18].int(), u.to(f.dtype), torch.full((37,), 1.5, dtype=e.dtype), F.pad(e, (1, 2)),
        ],
        (FP8_DTYPES.float() * 1.7, FP8_DTYPES, FP8_DTYPES.to(torch.float8_e5m2), U),
    ),
    "compare": (lambda x, t: [x < t, x >= t, x == t, x != x, torch.isnan(x)], (X, T)),
    "nan": (lambda x: [x.log().amax(1), x.log().amin(0), x.log().argmax(1), x.log().max()], (X,)),
    "reduce": (lambda x: [x.sum(1), x.mean(0), x.amax(1), x.amin(0), x.prod(1), x.sum()], (X,)),
    "logic": (lambda x: [(x > 0).any(1), (x > 0).all(0), (x > -9).all(), (x > 9).any()], (X,)),
    "places": (lambda x: [x.argmax(), x.argmin(0), x.max(1)[1], x.round().argmax(1)], (X,)),
    "count": (lambda x, n: [(x > 0).sum(), n.sum(0), n.amax(1), n.argmin(1)], (X, N)),
    "dims": (lambda c: [c.sum((0, 2)), c.amax((0, 1)), c.mean((1, 2)), c.permute(2, 0, 1).sum(1)],
             (CUBE,)),
    "columns": (lambda w: [w.sum(0), w.softmax(0), w.cumsum(0), w.argmax(0), w.var(0)], (W,)),
    "kept_and_summed": (lambda x: ((x + 1).exp(), F.layer_norm((x + 1).exp(), (20,))), (X,)),
    "kept_and_added": (
        lambda x, h: [(x + 1).exp(), (x + 1).exp().sum().log(), h.sum(), h.amax(0)], (WIDE, H)
    ),
    "constant_row": (lambda x: torch.ones_like(x).sum(1) + torch.arange(6).float(), (X,)),
    "arange": (lambda x: [torch.arange(20) * 3 + x, torch.arange(6).sum()], (X,)),
    "arange_wraps": (lambda x: [torch.arange(40) * 2**58 // n for n in (2**50, 3, -7)], (X,)),
    "norms": (lambda x, w: [F.layer_norm(x, (20,), w[0]), F.normalize(x, dim=1), x.std(1)], (X, W)),
    "infinite_rows": (lambda x: [x.softmax(1), x.logsumexp(1), x.log_softmax(1)], (INFINITE,)),
    "log_softmax": (lambda x: [x.log_softmax(1), x.logsumexp(1), F.softmin(x, 0)], (X,)),
    "flip": (lambda x: x.softmax(1).flip(1), (X,)),
    "scratch_of_scratch": (lambda x: F.normalize(x.view(60, 2), dim=1).square().sum(1), (X,)),
    "scans": (lambda x: [x.cumsum(1), x.cumprod(0), x.cummax(1)[0], x.cummin(0)[1]], (X,)),
    "logcumsumexp": (lambda x: x.logcumsumexp(1), (X,)),
    "scan_then_flip": (lambda x: x.cumsum(1).flip(1) + x.cumsum(1), (X,)),
    "scan_places": (lambda x: x.round().cummax(1)[1], (X,)),
    "transposes": (lambda c: [c.permute(2, 1, 0).contiguous() * 2, c.mT.contiguous()], (CUBE,)),
    "crossing": (lambda c, x: c.permute(2, 0, 1) + torch.zeros(5, 3, 4), (CUBE, X)),
    "indices": (lambda x, i: [x[i], x[:, i], x.index_select(0, i), x.gather(1, i[None])], (X, I)),
    "take_along": (lambda x, n: [x[n], F.embedding(n, x), x[n, n]], (X, L)),
    "put": (lambda x, i: x.index_copy(0, i, x[:4] * 2), (X, I)),
    "scatter_add": (lambda x, n: torch.zeros(6, 20).scatter_add(0, n, x[:2, :4]), (X, L)),
    "scatter_amax": (lambda x, n: x.scatter_reduce(0, n, x[:2, :4] * 3, "amax"), (X, L)),
    "scatter_half": (lambda h, n: h.scatter_reduce(0, n, h[:2, :4], "prod"), (H, L)),
    "scatter_half_sum": (lambda h, n: h.scatter_add(0, n, h[:2, :4]), (H, L)),
    "scatter_few": (
        lambda h, i: [h.new_zeros(99, 20).index_put((i,), h[:4], accumulate=True),
                      h.repeat(20, 1).index_add(0, i, h[:4])], (H, I),
    ),
    "scatter_mean": (lambda x, n: x.scatter_reduce(0, n, x[:2, :4], "mean"), (X, L)),
    "scatter_beside_sum": (
        lambda x, n: [x[0].scatter_reduce(0, n[0], x[0, :4], "amin"), x[0].sum(), x[0, :4].amax()],
        (X, L),
    ),
    "embedding_grad": (
        lambda x, n: torch.zeros(7, 20).index_put((n,), x[: n.numel()].view(*n.shape, 20), True),
        (torch.cat([X, X]), L),
    ),
    "masked": (lambda x: x.masked_fill(x > 0, 3.0) + x.tril() + torch.where(x > 1, x, 0.0), (X,)),
    "pads": (lambda c: [F.pad(c, (1, 1), "reflect"), F.pad(c, (2, 0, 0, 1))], (CUBE,)),
    "pool": (lambda c: [F.max_pool2d(c, 2), F.avg_pool2d(c, 2, 1)], (CUBE,)),
    "windows": (lambda i: F.max_pool2d((i + 1).relu(), 3, 2, 1), (IMAGES,)),
    "one_row": (lambda x, g, u: F.silu(F.linear(x, g)) * F.linear(x, u) + u[:, 0],
                (ROWS_OF_128[:1], SQUARE, SQUARE.flip(0))),
    "few_rows": (lambda x, w: F.gelu(F.linear(x, w, w[0])),
                 (ROWS_OF_128.bfloat16(), SQUARE.bfloat16())),
    "one_row_of_bytes": (
        lambda x, w, b, s: [
            x @ (w.to(x.dtype) * s[:, None]).t(),
            x @ (torch.stack([b & 15, b >> 4], -1).view(70, 128).to(x.dtype) - 8).t(),
            torch.ops.aten._weight_int8pack_mm(x, w, s),
        ],
        (ROWS_OF_128[:1].bfloat16(), W8, W8[:, :64].contiguous().view(torch.uint8), S8),
    ),
    "few_rows_of_columns": (lambda x, w: x @ w[:, :70], (ROWS_OF_128.half(), SQUARE.half())),
    "batches_of_rows": (lambda x: x.view(5, 4, 32) @ x.view(5, 32, 4).repeat(1, 1, 8) + 1,
                        (ROWS_OF_128.bfloat16(),)),
    "scalar": (lambda x, s: x * s + s, (X, SCALAR)),
    "update": (_updated, (X,)),
    "random": (_random, (X,)),
    "dropout": (lambda x: F.dropout(x, 0.0) + x, (X,)),
    "empty": (lambda x: x[:0].sum(0) + x[0], (X,)),
    "one": (lambda x: x[:1, :1].exp().sum(), (X,)),
    "outputs": (lambda x: (x, x + 1, x.t(), x.sum(0)), (X,)),
}  # fmt: skip

WHOLE = {**FUNCTIONS, **OPS, **small_types.CASES}


def _interpreter() -> Any:
    """The interpreter, which only a process of its own has."""
    from tests.codegen.triton import interpreted

    return interpreted


def _graph(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Any, Any]:
    there = _interpreter()
    return there.graph_of(there.tiled(function, *inputs))  # type: ignore[no-any-return]


def _misaligned() -> None:
    """An input that begins anywhere is brought to where kernels expect it, and back."""
    graph, _ = _graph(_updated, X)
    given = torch.zeros(121)[1:].view(6, 20)
    given.copy_(X)
    assert given.data_ptr() % 16
    (result,) = graph([given])
    assert result.equal((X + 1) * 2) and given.equal(X + 1)
    graph, _ = _graph(lambda x: x + 1, X[:1].expand(6, 20))
    repeated = given.as_strided((6, 20), (0, 1), 1)
    assert graph([repeated])[0].equal(repeated + 1)


def _shown() -> None:
    """A result that shows such an input begins where the input does, read or written: with unknown
    sizes torch takes its place from the result."""
    for function in (lambda x: (x.expand(2, *x.shape), x * 2), lambda x: (x.t(), x.add_(1))):
        given = torch.arange(121.0)[1:].view(6, 20)
        expected = function(given.clone())
        with _interpreter().interpreting():
            found = torch.compile(function, backend="litz", dynamic=True)(given)
        assert all(map(torch.equal, found, expected))
        assert found[0].storage_offset() == 1
        assert found[0].untyped_storage()._cdata == given.untyped_storage()._cdata


def _out_of_range() -> None:
    """What a kernel noted is raised by the next call; the one after that is as good as new."""
    graph, _ = _graph(lambda x, i: x[i], X, I)
    graph([X, I + 9])
    try:
        graph([X, I])
    except IndexOutOfRange:
        assert graph([X, I])[0].equal(X[I])
        return
    raise AssertionError("nothing was raised")


def _refused() -> None:
    """A launch that the driver refuses is an error that names the call."""
    graph, device = _graph(lambda x: x.exp() @ x.t() + x.sum(), X)
    device._run = lambda *args: 1 / 0
    try:
        graph([X])
    except DriverError as error:
        assert "cuLaunchKernel in segment_0 failed with CUDA error 1" in str(error)
        assert device.launches == 1  # nothing is launched after it
        return
    raise AssertionError("nothing was raised")


def _new_thread() -> None:
    """A thread that has no context yet gets one, and the launch is made again."""
    for function in (lambda x: x.exp(), lambda x: _run_of_kernels(x)):
        graph, device = _graph(function, X)
        for _ in range(4):
            device.entered = False
            wide = function(X.double())
            found, eager = ((y - wide).abs().max() for y in (graph([X])[0], function(X)))
            assert found <= 2 * eager + torch.finfo(X.dtype).eps * wide.abs().max()
            assert device.entered


def _run_of_kernels(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = x - x.sum(0).sum(0)
    return x


def _misaligned_call() -> None:
    """What a call of ATen's gives may begin anywhere; with `alignment_asserts` that is an error."""
    if not hasattr(torch.ops.litz_cases, "crooked"):
        torch.library.define("litz_cases::crooked", "(Tensor x) -> Tensor")
        moved = lambda x: torch.zeros(x.numel() + 1)[1:].view(x.shape).copy_(x)  # noqa: E731
        torch.library.impl("litz_cases::crooked", "cpu", moved)
        torch.library.register_fake("litz_cases::crooked", torch.empty_like)
    there = _interpreter()
    made = there.tiled(lambda x: torch.ops.litz_cases.crooked(x) + 1, X)
    graph, _ = there.graph_of(made, alignment_asserts=True)
    try:
        graph([X])
    except InputMismatch as error:
        assert "multiple of 16" in str(error)
        return
    raise AssertionError("nothing was raised")


def _too_large() -> Any:
    """With a torch that makes NaN of what is too large for e4m3, where hardware makes it 448."""
    x = torch.tensor([1.0, 464.0, 464.5, -480.0, -464.0, 1e9, math.inf, -math.inf])
    before, fp8.saturates = fp8.saturates, lambda: False  # type: ignore[assignment]
    try:
        graph, device = _graph(lambda x: x.to(torch.float8_e4m3fn), x)
    finally:
        fp8.saturates = before
    (found,) = graph([x])
    assert found.float().isnan().equal(x.abs() > 464)
    return device.source.kernels


def _wrong_shape() -> None:
    graph, _ = _graph(lambda x: x + 1, X)
    try:
        graph([X.t()])
    except InputMismatch:
        return
    raise AssertionError("nothing was raised")


def _in_parts(*case: Any) -> Callable[[], None]:
    return lambda: parts.check(_interpreter(), *case)


def _there(case: Any) -> Callable[[], Any]:
    return lambda: case(_interpreter())


# Each runs by itself; what it gives, if anything, are kernels.
BEHAVIOURS: dict[str, Callable[[], Any]] = {
    "a misaligned input": _misaligned,
    "a misaligned input that a result shows": _shown,
    "an index out of range": _out_of_range,
    "a launch that is refused": _refused,
    "a thread without a context": _new_thread,
    "a misaligned result of a call": _misaligned_call,
    "an input of another shape": _wrong_shape,
    "numbers too large for e4m3": _too_large,
    **{name: _in_parts(*case) for name, case in parts.CASES.items()},
    **{
        name: _there(case)
        for name, case in {**faults.CASES, **sizes.CASES, **alignment.CASES}.items()
    },
    **{name: _there(case) for name, case in lone_constants.CASES.items()},
}
ROWS = [
    "softmax", "layer_norm", "columns", "full_sum", "argmax", "var", "cumsum",
    "reduce", "logic", "places", "count", "dims", "norms", "log_softmax", "flip", "scans",
    "logcumsumexp", "scan_then_flip", "scan_places", "nan", "bf16", "double", "constant_row",
    "where", "half", "kept_and_summed", "pad", "group_norm", "infinite_rows", *small_types.CASES,
]  # fmt: skip
# Rows at every distance from an aligned place: of one and two bytes, in a wider buffer, read twice.
ODD = ["odd_rows", "odd_places", "odd_bytes", "odd_eighths", "odd_views"]
MEETING = ["scatter", "scatter_add", "scatter_amax", "put", "embedding_grad", "scatter_half"]
TILED = ["softmax", "columns", "reduce", "transposes", "scans", "unary", "places"]
SHARED = [
    "full_sum", "argmax", "reduce", "logic", "places", "count", "dims", "nan", "bytes", "one_row",
    "kept_and_added", *small_types.SHARED,
]  # fmt: skip
POINTED = [
    "unary", "half", "casts", "integer", "double", "softmax", "columns", "reduce", "logic", "dims",
    "constant_row", "norms", "flip", "scans", "transposes", "crossing", "indices", "take_along",
    "scatter_add", "embedding_grad", "pads", "windows", "one_row", "two_lengths", "kept_and_added",
    "update", "outputs",
]  # fmt: skip
TYPES = [str(dtype) for dtype in test_op_tables.NUMBERS]
NAMES = [
    *BEHAVIOURS, *(f"every op of {d}" for d in TYPES), *(f"every cast of {d}" for d in DTYPES),
    *WHOLE, *(f"{name} in blocks" for name in ROWS), *(f"{name} in order" for name in MEETING),
    *(f"{name} in pointers" for name in POINTED),
    *(f"{name} in shares" for name in SHARED),
    *(f"{name} in other tiles" for name in TILED), *(f"{name} in steps" for name in ODD),
]  # fmt: skip
# A half that stays inside a kernel is not rounded; where it is differs from stage to stage.
LOOSE = {
    "bf16": 2e-2,
    **dict.fromkeys(ODD, 2e-2),
    "half": 4e-3,
    "scatter_half": 4e-3,
    "few_rows": 2e-2,
    "batches_of_rows": 2e-2,
}

# Sizes that cut the rows of the cases in pieces.
SMALL = {"REDUCED_TILE": 4, "COLUMNS": 16, "STORED_COLUMNS": 16, "COLUMN_ROWS": 2}
USUAL = {size: getattr(tile, size) for size in SMALL}


def check_table(name: str) -> None:
    """All ops over all pairs of the numbers on which definitions differ, and all casts."""
    table, dtype = test_op_tables, DTYPES[name.rpartition(" ")[2]]
    takes = table.takes
    table.run = _interpreter().run_kernel
    table.takes = lambda op, dtype: op not in NOT_ON_CUDA and takes(op, dtype)
    try:
        if name.startswith("every cast"):
            table.test_every_cast(dtype, 512)
        else:
            table.test_every_op_means_what_numpy_says(dtype, 512)
    finally:
        table.takes = takes


def check(name: str) -> list[dict[str, Any]]:
    """Run a case and compare it; its kernels, as they go to the builder."""
    if name in BEHAVIOURS:
        return [asdict(kernel) for kernel in BEHAVIOURS[name]() or ()]
    if name.startswith("every "):
        check_table(name)
        return []
    plain, _, how = name.partition(" in ")
    function, inputs = WHOLE[plain]
    small, shares = how in ("blocks", "shares", "steps"), how == "shares"
    for size, few in SMALL.items():
        setattr(tile, size, few if small else USUAL[size])
    tile.REDUCED_TILE = 16 if how == "steps" else tile.REDUCED_TILE
    tile.COOPERATIVE_POINTS = 8 if shares else 8192
    options = {"triton.atomics": False} if how == "order" else {}
    options |= {"triton.use_block_ptr": True} if how == "pointers" else {}
    there = _interpreter()
    longest = 4 if small else 16384
    target = replace(there.TARGET, longest_row=longest, cooperative_reductions=shares)
    made = there.tiled(lambda *args: function(*args), *inputs, target=target, **options)
    if small:
        rows = [(a, k) for k in made.scheduled for p in k.kernel.phases for a in p.inner]
        assert any(a.extent.number > k.choice.row for a, k in rows), "no row was cut"
    if shares:
        assert any(k.choice.rsplit > 1 for k in made.scheduled), "no row was shared"
    kernels = [
        compared(each, plain) for each in (_retiled(made) if how == "other tiles" else [made])
    ]
    if how == "steps":
        assert any("r_shift" in kernel.text for kernel in kernels[0]), "no row was shifted"
    return [asdict(kernel) for some in kernels for kernel in some]


def _retiled(made: Any) -> Iterator[Any]:
    """The same kernels in tilings that are one or two steps away."""
    spaces = [tile.candidates(k, wide=True) for k in made.scheduled]
    assert any(len(space) > 1 for space in spaces)
    for turn in (1, 2, 3):
        chosen = [space[len(space) * turn // 4] for space in spaces]
        yield replace(
            made,
            scheduled=[replace(k, choice=t) for k, t in zip(made.scheduled, chosen, strict=True)],
        )


def compared(made: Any, plain: str) -> tuple[Any, ...]:
    """Run what the stages made and hold it against the interpreter of the loop IR: as it was before
    and after fusion."""
    there = _interpreter()
    graph, device = there.graph_of(made)
    draws.seed(0)
    found = [as_array(t) for t in there.ran(graph, device, made.inputs)]
    assert device.launches == len(made.plan.graph.kernels)
    exact = LOOSE.get(plain, 1e-5)
    # Where halves are rounded differs from stage to stage.
    rounds = any(t.is_floating_point() and t.itemsize < 4 for t in made.inputs)
    for stage in (made.fused,) if rounds else (made.fused, made.lowered):
        draws.seed(0)
        for k, (a, b) in enumerate(zip(found, stage(), strict=True)):
            np.testing.assert_allclose(a, b, rtol=exact, atol=exact, err_msg=f"result {k}")
    if any(k.choice.rsplit > 1 for k in made.scheduled):  # counters are as they were
        again = [as_array(t) for t in there.ran(graph, device, made.inputs)]
        assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(found, again, strict=True))
    return tuple(device.source.kernels)


if __name__ == "__main__":
    told(sys.argv[1:], NAMES, check)
