"""Tensors that begin at odd places, or whose rows do, on a GPU: by the interpreter.

In: nothing. Out: an error if a call wrote to what is not its own, read past what is, or handed a
kernel a pointer that is not aligned as Triton was told. `CASES` are part of the cases beside this
file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from litz.schedule import tile
from tests import draws

ROWS, COLUMNS = 15, 37
HALF_DTYPES = torch.randn(ROWS, COLUMNS, generator=draws.generator(0)).bfloat16()
FLOATS = torch.randn(ROWS, COLUMNS, generator=draws.generator(1))
BYTES = torch.randint(-9, 9, (ROWS, COLUMNS), generator=draws.generator(2), dtype=torch.int8)


def _updates(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.add_(1)
    b.mul_(2)
    return a.sum() + b.sum()


def _side_by_side(there: Any) -> None:
    """Columns of one tensor that are updated apart. Those that begin at an odd place are updated
    elsewhere and brought back, without what lies between them: that is the other's."""
    for cut, dynamic in ((3, False), (3, True), (4, False)):
        mine = torch.arange(40.0).view(5, 8)
        theirs = mine.clone()
        given, expected = ((t[:, :cut], t[:, cut:]) for t in (mine, theirs))
        torch._dynamo.reset()
        with there.interpreting():
            fast = torch.compile(_updates, backend="litz", dynamic=dynamic)
            torch.testing.assert_close(fast(*given), _updates(*expected))
        assert torch.equal(mine, theirs), cut


def _crooked_result(there: Any) -> None:
    """What a call of ATen's gives may be a piece of something larger, and be updated in place."""
    if not hasattr(torch.ops.litz_cases, "piece"):
        torch.library.define("litz_cases::piece", "(Tensor x) -> Tensor")
        moved = lambda x: torch.zeros(x.numel() + 1)[1:].view(x.shape).copy_(x)  # noqa: E731
        torch.library.impl("litz_cases::piece", "cpu", moved)
        torch.library.register_fake("litz_cases::piece", torch.empty_like)
    x = FLOATS[:12, :12].contiguous()

    def function(x: torch.Tensor) -> Any:
        y = torch.ops.litz_cases.piece(x)
        return (y.exp() @ y).relu(), torch.ops.litz_cases.piece(y + 1), y

    made = there.tiled(function, x)
    graph, device = there.graph_of(made)
    for _ in range(2):
        found = there.ran(graph, device, [x])[:3]
        torch.testing.assert_close(found, list(function(x)))


def _wide_beside_narrow(there: Any) -> None:
    """Rows of narrow elements are read in whole steps of 16 bytes, up to the end of the last; of
    wider ones beside them, as many elements are more bytes: they end with the row."""
    before, tile.REDUCED_TILE = tile.REDUCED_TILE, 16
    try:
        for narrow, wide in ((HALF_DTYPES, FLOATS), (BYTES, FLOATS), (BYTES, HALF_DTYPES)):
            _compared(there, lambda a, b: (a.float() + b.float()).softmax(1), narrow, wide)
            _compared(there, lambda a, b: (a.float() * b.float()).sum(1), narrow, wide)
    finally:
        tile.REDUCED_TILE = before


def _compared(there: Any, function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    made = there.tiled(function, *inputs, target=replace(there.TARGET, longest_row=4))
    graph, device = there.graph_of(made)
    assert any("r_shift" in kernel.text for kernel in device.source.kernels), "no row was shifted"
    found = there.ran(graph, device, list(inputs))[0]
    torch.testing.assert_close(found, function(*inputs))


CASES: dict[str, Callable[[Any], None]] = {
    "columns side by side, updated apart": _side_by_side,
    "a result of a call that begins anywhere": _crooked_result,
    "wide elements beside narrow ones in odd rows": _wide_beside_narrow,
}
