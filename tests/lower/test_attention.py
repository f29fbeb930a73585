"""Attention: one kernel however it is spelt, as exact as eager, right where nothing is seen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import litz
from litz.ir.parse import parse_graph, parse_program
from litz.ir.text import graph_text, program_text
from tests import draws
from tests.stages import Compiled, compiled, stages

sdpa = F.scaled_dot_product_attention


def _heads(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Three operands as a model has them: heads behind rows in memory."""
    draws.seed(seed)
    batch, heads, rows, width = shape
    return [torch.randn(batch, rows, heads, width, dtype=dtype).transpose(1, 2) for _ in range(3)]


def _wide(inputs: tuple[Tensor, ...]) -> list[Tensor]:
    return [x.double() if x.is_floating_point() else x for x in inputs]


def _agrees(
    function: Callable[..., Tensor], *inputs: Tensor, kernels: int = 1, **options: Any
) -> Compiled:
    """One kernel, whose error against float64 is no larger than eager's; NaN where it has NaN."""
    run = compiled(function, **options)
    found, expected, exact = run(*inputs), function(*inputs), function(*_wide(inputs))
    assert found.stride() == expected.stride() and found.dtype == expected.dtype
    assert torch.equal(found.isnan(), expected.isnan())
    scale = exact.nan_to_num().abs().max().item() or 1.0
    mine, theirs = ((t - exact).nan_to_num().abs().max().item() for t in (found, expected))
    step = torch.finfo(found.dtype).eps
    assert mine <= 2 * theirs + 2 * step * scale, (mine, theirs, scale)
    assert _streams(run, kernels), [str(r) for r in run.reports]
    return run


def _streams(run: Compiled, kernels: int = 1) -> bool:
    return not run.aten_ops and _kernels(run) == kernels


def _kernels(run: Compiled) -> int:
    return sum(s.choice.attention is not None for r in run.reports for s in r.scheduled)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("rows", "width"), [(2, 3), (16, 16), (17, 33), (50, 80), (65, 20), (130, 64), (200, 7)]
)
def test_sizes(rows: int, width: int, causal: bool) -> None:
    """Whole vectors, tiles, groups and blocks, and parts of them."""
    _agrees(lambda q, k, v: sdpa(q, k, v, is_causal=causal), *_heads(2, 3, rows, width))


@pytest.mark.parametrize("lanes", [128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_narrow_vectors(lanes: int, causal: bool) -> None:
    inputs = _heads(1, 2, 37, 18)
    _agrees(lambda q, k, v: sdpa(q, k, v, is_causal=causal), *inputs, cpp__simdlen=lanes)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_types(dtype: torch.dtype) -> None:
    _agrees(sdpa, *_heads(2, 2, 40, 24, dtype=dtype))


@pytest.mark.parametrize(("rows", "columns"), [(5, 70), (70, 5), (33, 129)])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_differ(rows: int, columns: int, causal: bool) -> None:
    q, k, v = _heads(2, 2, 129, 16)
    inputs = q[:, :, :rows], k[:, :, :columns], v[:, :, :columns]
    _agrees(lambda q, k, v: sdpa(q, k, v, is_causal=causal, scale=0.3), *inputs)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("columns", "width"), [(2, 16), (40, 5), (300, 80)])
def test_few_rows(rows: int, columns: int, width: int) -> None:
    """Columns in lanes, whole vectors and blocks and parts of them; the mask lies along them."""
    q, k, v = _heads(2, 3, 300, width)
    inputs = q[:, :, :rows], k[:, :, :columns], v[:, :, :columns]
    mask = torch.randn(2, 1, rows, columns)
    mask[0, 0, 0] = -math.inf
    _agrees(lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), *inputs, mask)


@pytest.mark.parametrize("shared", [1, 2, 4])
def test_grouped_heads(shared: int) -> None:
    q, k, v = _heads(2, 4, 20, 16)
    _agrees(lambda q, k, v: sdpa(q, k, v, enable_gqa=True), q, k[:, :shared], v[:, :shared])


def test_strides() -> None:
    """Keys and values are read where they lie; rows of queries may be columns."""
    q, k, v = (torch.randn(2, 3, 24, 40).transpose(2, 3) for _ in range(3))
    _agrees(sdpa, q, k, v)
    wide = torch.randn(2, 30, 3 * 4 * 16)  # one product made all three
    _agrees(lambda x: sdpa(*(t.view(2, 30, 4, 16).transpose(1, 2) for t in x.chunk(3, -1))), wide)


MASKS = {
    "a row, expanded": lambda m: m[:1].expand(2, 3, 40, 40),
    "by batch": lambda m: torch.stack([m, -m])[:, None],
    "turned": lambda m: m.t(),
}


@pytest.mark.parametrize("shape", MASKS)
@pytest.mark.parametrize("kind", ["float", "bool"])
def test_masks(shape: str, kind: str) -> None:
    mask = MASKS[shape](torch.randn(40, 40))
    mask = mask > -0.5 if kind == "bool" else mask
    _agrees(lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), *_heads(2, 3, 40, 16), mask)


def test_rows_that_see_nothing() -> None:
    """Zeros from the op, NaN from the ops it stands for, as in eager."""
    mask = torch.zeros(40, 40)
    mask[3] = mask[39] = -math.inf
    inputs = _heads(1, 2, 40, 16)
    op = _agrees(lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), *inputs, mask)
    assert op(*inputs, mask)[0, 0, 3].abs().max() == 0
    run = _agrees(lambda q, k, v, m: torch.softmax(q @ k.mT + m, -1) @ v, *inputs, mask)
    assert run(*inputs, mask)[0, 1, 39].isnan().all()


@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_not_finite(where: str, value: float) -> None:
    inputs = _heads(1, 1, 80, 16)
    inputs["qkv".index(where)][0, 0, 70, 3] = value
    _agrees(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, *inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("low", [-80.0, -88.0, -100.0, -700.0, -720.0, -1e4, -1e38, -math.inf])
def test_weights_that_vanish(low: float, dtype: torch.dtype) -> None:
    """A value of 1e30 shows whether its weight is zero, or as small as it is in eager."""
    scores = torch.zeros(1, 1, 20, 20, dtype=dtype)
    scores[..., 7] = low
    q, k, v = (torch.zeros(1, 1, 20, 4, dtype=dtype) for _ in range(3))
    v[0, 0, 7], v[0, 0, 3] = 1e30, 1.0
    run = compiled(lambda q, k, v, m: torch.softmax(q @ k.mT + m, -1) @ v)
    found, expected = run(q, k, v, scores), torch.softmax(scores, -1) @ v
    assert torch.allclose(found, expected, rtol=1e-5), (found[0, 0, 0], expected[0, 0, 0])


def test_large_scores() -> None:
    """Tops move from block to block; what underflows is zero."""
    q, k, v = _heads(1, 2, 200, 16)
    _agrees(lambda q, k, v: sdpa(q, k, v, scale=8.0), q, k * torch.arange(200)[:, None] / 50, v)


def _t5(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    distance = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
    bias = table[distance.clamp(-7, 7) + 7].permute(2, 0, 1)[None]
    return torch.softmax(q @ k.mT + bias, -1) @ v


def _alibi(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    slopes = 2.0 ** -torch.arange(1, q.shape[1] + 1)
    distance = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
    return torch.softmax(q @ k.mT / 4 + slopes[:, None, None] * distance, -1) @ v


def _bloom(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
    scores = torch.baddbmm(bias, q, k.mT, beta=1.0, alpha=0.25)
    return torch.bmm(torch.softmax(scores, -1), v)


def _causal(fill: float) -> Callable[..., Tensor]:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        return torch.softmax((q @ k.mT * 0.25).masked_fill(hidden, fill), -1) @ v

    return run


SPELT: dict[str, tuple[Callable[..., Tensor], tuple[int, ...]]] = {
    "plain": (lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, ()),
    "divided": (lambda q, k, v: (q @ k.mT / math.sqrt(16)).softmax(-1) @ v, ()),
    "added mask": (lambda q, k, v, m: (q @ k.mT * 0.25 + m).softmax(-1) @ v, (40, 40)),
    "softcap": (lambda q, k, v: (5 * torch.tanh(q @ k.mT / 5)).softmax(-1) @ v, ()),
    "dropout of nothing": (lambda q, k, v: F.dropout((q @ k.mT).softmax(-1), 0.0) @ v, ()),
    "where": (lambda q, k, v, m: torch.where(m > 0, q @ k.mT, -1e9).softmax(-1) @ v, (40, 40)),
    "causal": (_causal(-math.inf), ()),
    "causal, finite": (_causal(torch.finfo(torch.float32).min), ()),
    "alibi": (_alibi, ()),
    "relative bias": (_t5, (15, 3)),
    "product with bias": (_bloom, (6, 1, 40)),
    "one head": (lambda q, k, v: torch.softmax(q[0, 0] @ k[0, 0].t(), -1) @ v[0, 0], ()),
    "rows first": (
        lambda q, k, v: ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(2, 40, 48),
        (),
    ),
    "two layers": (
        lambda q, k, v: sdpa(sdpa(q[0], k[0], v[0]), k[1], v[1]),  # without batch: taken apart
        (),
    ),
    "einsum": (
        lambda q, k, v: torch.einsum(
            "bhij,bhjd->bihd", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v
        ),
        (),
    ),
}


@pytest.mark.parametrize("name", SPELT)
def test_spelt_by_hand(name: str) -> None:
    function, extra = SPELT[name]
    more = [torch.randn(extra)] if extra else []
    _agrees(function, *_heads(2, 3, 40, 16), *more, kernels=1 + (name == "two layers"))


PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "the first": lambda p: p[..., :10],
    "all but the last": lambda p: p[..., :-1],
    "from the middle": lambda p: p.narrow(-1, 3, 9),
    "every other": lambda p: p[..., ::2],
    "a window": lambda p: p.unfold(-1, 12, 4)[..., 0, :],
    "the diagonal twice": lambda p: p.diagonal(dim1=-2, dim2=-1)[..., None, :].expand_as(p),
}


@pytest.mark.parametrize("heads", [(), (2,), (2, 3)])
@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_the_weights(name: str, heads: tuple[int, ...]) -> None:
    """Their softmax adds up whole rows."""
    q, k, v = (torch.randn(*heads, 16, 8) for _ in range(3))

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = PARTS[name]((q @ k.mT).softmax(-1))
        return weights @ v[..., : weights.shape[-1], :]

    found = torch.compile(function, backend="litz", options={"on_error": "raise"})(q, k, v)
    torch.testing.assert_close(found, function(q, k, v))


def test_weights_that_are_read() -> None:
    """What the caller gets as well is computed as it is spelt."""

    def both(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = torch.softmax(q @ k.mT, -1)
        return weights @ v, weights

    run, inputs = compiled(both), _heads(1, 2, 20, 16)
    for found, expected in zip(run(*inputs), both(*inputs), strict=True):
        assert torch.allclose(found, expected, atol=1e-6)
    assert _kernels(run) == 0


@pytest.mark.parametrize("causal", [False, True])
def test_interpreted(causal: bool) -> None:
    """The loop and the kernel mean what eager computes, and print as text that rebuilds them."""
    inputs = _heads(2, 2, 7, 5)
    made = stages(lambda q, k, v: sdpa(q, k, v, is_causal=causal), *inputs)
    expected = sdpa(*inputs, is_causal=causal).numpy()
    for found in (made.lowered(), made.fused()):
        assert np.allclose(found[0], expected, atol=1e-6)
    loops, kernels = (
        parse_program(program_text(made.program)),
        parse_graph(graph_text(made.kernels)),
    )
    assert [s.stores for s in loops.body] == [s.stores for s in made.program.body]
    assert [k.stores for k in kernels.kernels] == [k.stores for k in made.kernels.kernels]


def test_causal_columns_are_skipped() -> None:
    (scheduled,) = stages(_causal(-math.inf), *_heads(1, 2, 64, 16)).scheduled
    assert scheduled.choice.attention is not None and scheduled.choice.attention.high == 0
    (scheduled,) = stages(_causal(-1e9), *_heads(1, 2, 64, 16)).scheduled
    assert scheduled.choice.attention is not None and scheduled.choice.attention.high is None


@pytest.mark.parametrize("spelling", [sdpa, lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v])
def test_one_column(spelling: Callable[..., Tensor]) -> None:
    q, k, v = _heads(2, 3, 20, 16)
    run, inputs = compiled(spelling), (q, k[:, :, :1], v[:, :, :1])
    assert torch.allclose(run(*inputs), spelling(*inputs))
    assert "its sums are over one element" in str(run.reports[0])


def test_explained() -> None:
    q, k, v = _heads(1, 2, 32, 16)
    assert "attention runs as one flash-attention kernel" in str(litz.explain(sdpa, q, k, v))
    with litz.config.patch({"max_autotune_gemm_backends": "ATEN"}):
        torch._dynamo.reset()
        notes = str(litz.explain(sdpa, q, k, v))
    assert "attention is left to ATen: max_autotune_gemm_backends names ATEN alone" in notes


@pytest.mark.parametrize("rows", [1, 33, 100])
def test_log_sums(rows: int) -> None:
    """What a backward pass asks for comes from the same kernel."""
    q, k, v = _heads(2, 3, 100, 16)
    mask = torch.randn(rows, 100)
    mask[0] = -math.inf
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def function(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Any:
        return op(q, k, v, attn_mask=mask)

    inputs = (q[:, :, :rows], k, v, mask)
    run = compiled(function)
    for found, expected in zip(run(*inputs), function(*inputs), strict=True):
        assert torch.allclose(found, expected, atol=2e-6)
    assert _streams(run) and len(run.reports[0].kernels) == 1
    made = stages(function, *inputs)
    for results in (made.lowered(), made.fused()):
        assert np.allclose(results[1], function(*inputs)[1].numpy(), atol=2e-6)


def test_training() -> None:
    """Gradients are eager's, from the sums that the kernel stores."""
    inputs = [x.detach().requires_grad_() for x in _heads(1, 2, 33, 16)]

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(q, k, v, is_causal=True)

    torch._dynamo.reset()
    run = torch.compile(function, backend="litz", options={"on_error": "raise"})
    mine = torch.autograd.grad(run(*inputs).square().sum(), inputs)
    theirs = torch.autograd.grad(function(*inputs).square().sum(), inputs)
    for found, expected in zip(mine, theirs, strict=True):
        assert torch.allclose(found, expected, atol=1e-5)


WRAPPING = {
    "bytes": lambda i, j: i.to(torch.int8) >= j.to(torch.int8),
    "unsigned": lambda i, j: (i.to(torch.uint8) - j.to(torch.uint8)) >= 0,
    "offset": lambda i, j: i.to(torch.int32) + (2**31 - 100) >= j.to(torch.int32),
    "truths": lambda i, j: i.bool() >= j.bool(),
    "short": lambda i, j: i.to(torch.int16) >= j.to(torch.int16),
}


@pytest.mark.parametrize("name", WRAPPING)
def test_positions_in_types_that_wrap(name: str) -> None:
    """Columns were skipped as if a position in eight bits were that position."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, columns = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
        seen = WRAPPING[name](rows, columns)
        return torch.softmax((q @ k.mT).masked_fill(~seen, -math.inf), -1) @ v

    _agrees(function, *_heads(1, 2, 300, 16))


@pytest.mark.parametrize("hidden", [-math.inf, -1e9])
@pytest.mark.parametrize("rows", [2, 40])
def test_masks_that_hide_every_score(rows: int, hidden: float) -> None:
    """Simplified, there was no dot product left, and the kernel had no schedule."""
    q, k, v = _heads(1, 2, 50, 16)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        later = torch.arange(50) > torch.arange(rows)[:, None] - 100
        return torch.softmax((q @ k.mT).masked_fill(later, hidden), -1) @ v

    _agrees(function, q[:, :, :rows], k, v)


@pytest.mark.parametrize("scale", [0.0, -0.5, 0.5])
def test_scales_of_causal_masks(scale: float) -> None:
    """Eager's kernel multiplies the -inf of the mask by the scale, too."""
    inputs = _heads(1, 2, 40, 16)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(q, k, v, is_causal=True, scale=scale)

    run = compiled(function)
    assert torch.allclose(run(*inputs), function(*inputs), atol=2e-6, equal_nan=True)
    assert bool(run.aten_ops) == (scale <= 0)


# -- flex_attention --------------------------------------------------------------------------

SLOPES = torch.tensor([0.5, 0.25, 0.125])
SCORES = {
    "none": None,
    "alibi": lambda s, b, h, i, j: s + SLOPES[h] * (j - i),
    "softcap": lambda s, b, h, i, j: 5 * torch.tanh(s / 5),
    "by batch": lambda s, b, h, i, j: torch.where(b == 1, s * 2, s),
}
VISIBLE = {
    "all": None,
    "causal": lambda b, h, i, j: i >= j,
    "window": lambda b, h, i, j: (i >= j) & (i - j < 8),
    "documents": lambda b, h, i, j: (i // 16) == (j // 16),
    "nothing for some": lambda b, h, i, j: (i >= j) & (i > 5),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("score", "visible"),
    [("none", "all"), ("alibi", "causal"), ("softcap", "window"), ("by batch", "documents"),
     ("none", "nothing for some")],
)  # fmt: skip
def test_flex(score: str, visible: str) -> None:
    inputs = _heads(2, 3, 50, 16)
    chosen = VISIBLE[visible]
    mask = chosen and create_block_mask(chosen, None, None, 50, 50, device="cpu")

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=SCORES[score], block_mask=mask)

    torch._dynamo.reset()
    with torch.no_grad():
        run = torch.compile(function, backend="litz", options={"on_error": "raise"})
        assert torch.allclose(run(*inputs), function(*inputs), atol=2e-6)
        torch._dynamo.reset()
        notes = litz.explain(function, *inputs)
    assert not notes.aten_ops and notes.kernels == 1, str(notes)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seen", [
    lambda i, j: (i * 100_003 * 100_003 + j) % 7 < 3, lambda i, j: i + (2**31 - 10) >= j,
    lambda i, j: (i * 2654435761 + j) % 5 != 2, lambda i, j: i.to(torch.int8) - j >= 0,
])  # fmt: skip
def test_flex_counts_in_64_bits(seen: Callable[..., Tensor]) -> None:
    """As eager does; torch traces the functions over positions in 32 bits."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return torch.where(seen(i, j), s, -math.inf)

        return flex_attention(q, k, v, score_mod=score)

    inputs = _heads(1, 2, 150, 16)
    torch._dynamo.reset()
    run = torch.compile(function, backend="litz", options={"on_error": "raise"})
    with torch.no_grad():
        assert torch.allclose(run(*inputs), function(*inputs), atol=2e-6)


@pytest.mark.filterwarnings("ignore")
def test_flex_functions_capture_symbolic_numbers() -> None:
    """They come behind the score and its position, and are no tensors, as those are."""

    def function(q: Tensor, k: Tensor, v: Tensor, mask: Any, factor: int) -> Any:
        return flex_attention(q, k, v, lambda s, b, h, i, j: s * factor, block_mask=mask)

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() < width

    torch._dynamo.reset()
    run = torch.compile(function, backend="litz", dynamic=True, options={"on_error": "raise"})
    for width, factor in ((8, 2), (5, 3)):
        inputs = _heads(1, 2, 48 + width, 16)
        mask = create_block_mask(visible, None, None, 48 + width, 48 + width, device="cpu")
        with torch.no_grad():
            ours, eager = (f(*inputs, mask, factor) for f in (run, function))
        assert torch.allclose(ours, eager, atol=2e-6)


@pytest.mark.parametrize("along", [-1, -2, -3], ids=["width", "rows", "heads"])
@pytest.mark.parametrize("expanded", list(itertools.product((False, True), repeat=3))[1:])
@pytest.mark.parametrize("causal", [False, True])
def test_expanded_operands(expanded: tuple[bool, ...], along: int, causal: bool) -> None:
    """Their index in memory does not name the axis that they are expanded along: a kernel that was
    attention when it was lowered was none when it was scheduled."""
    draws.seed(3)
    shape = [2, 3, 17, 8]
    cut = [1 if k - 4 == along else n for k, n in enumerate(shape)]
    inputs = [torch.randn(cut if e else shape).expand(shape) for e in expanded]

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(q, k, v, is_causal=causal)

    exact = function(*_wide(tuple(inputs)))
    error = (compiled(function)(*inputs).double() - exact).abs().max()
    assert error <= 2 * (function(*inputs).double() - exact).abs().max() + 1e-7
