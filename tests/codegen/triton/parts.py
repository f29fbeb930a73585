"""Graphs in parts, as the interpreter runs them: what is recorded, and that it gives the same.

In: nothing. Out: an error if a graph that is cut around calls does not give what eager gives, call
after call, while outputs are alive or not. `CASES` are part of the cases beside this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from litz.runtime.cudagraphs import WARM_UPS
from tests import draws

CALLS = WARM_UPS + 4


def _define_unsafe() -> None:
    """A call that must not be recorded: it counts how often it runs."""
    if hasattr(torch.ops.litz_parts, "unsafe"):
        return
    tags = (torch.Tag.cudagraph_unsafe,)
    torch.library.define("litz_parts::unsafe", "(Tensor x) -> Tensor", tags=tags)
    torch.library.impl("litz_parts::unsafe", "cpu", _unsafe)
    torch.library.register_fake("litz_parts::unsafe", torch.empty_like)


RUNS = [0]
# The last results of the call, of eager and of ours in turns: alive, so that the next one of
# either lies elsewhere, surely.
RESULTS: list[torch.Tensor] = []


def _unsafe(x: torch.Tensor) -> torch.Tensor:
    RUNS[0] += 1
    RESULTS[2:] = []
    RESULTS.insert(0, x.flip(0))
    return RESULTS[0]


def _long(x: torch.Tensor) -> torch.Tensor:
    """Kernels that cannot fuse, and a product among them."""
    for _ in range(2):
        x = x - x.sum(0).sum(0) * 1e-3
    return x @ x.t() @ x


def _cut(x: torch.Tensor, w: torch.Tensor) -> Any:
    """An intermediate is used on both sides of the call, and the call's result behind it."""
    before = _long(x * w).sort(0).values  # a call that brings its own memory
    middle = torch.ops.litz_parts.unsafe(before)
    return _long(middle + before), before.softmax(1), x.t()


def _updates(x: torch.Tensor, w: torch.Tensor) -> Any:
    """An input is updated on both sides of the call."""
    x.add_(_long(w))
    middle = torch.ops.litz_parts.unsafe(x)
    x.mul_(0.5)
    return _long(middle * x)


def _shows_inputs(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Nothing is in the way, but an output is an input."""
    return x, w.t(), _long(x + w)


def check(there: Any, function: Callable[..., Any], parts: int, shown: int, holding: bool) -> None:
    """`shown` parts give outputs: while those live, each call needs a recording of its own."""
    _define_unsafe()
    x = torch.randn(6, 8, generator=draws.generator(1))
    w = torch.randn(6, 8, generator=draws.generator(2))
    graph, device = there.graph_of(there.tiled(function, x, w), **{"triton.cudagraphs": True})
    assert graph.recording.recorded == parts, graph.recording
    kept: list[Any] = []
    RUNS[0] = 0
    before = x
    for k in range(CALLS):
        mine, theirs = x * (k + 1), x * (k + 1)  # w is a parameter: it stays
        assert mine.data_ptr() != before.data_ptr()  # alive: an input that moves, surely
        before = mine
        wanted = function(theirs, w)
        RUNS[0] -= "unsafe" in function.__code__.co_names
        found = graph([mine, w])
        kept.append((mine, theirs, found, wanted))
        if not holding:
            _compare(*kept.pop())
            del found
    for pair in kept:
        _compare(*pair)
    assert RUNS[0] == (CALLS if parts == 2 else 0)
    recordings = parts + shown * (CALLS - WARM_UPS - 1) * holding
    assert device.tape.recorded == recordings, device.tape.recorded
    assert device.tape.replays == parts * (CALLS - WARM_UPS)


def _compare(mine: Any, theirs: Any, found: list[Any], wanted: Any) -> None:
    results = wanted if isinstance(wanted, tuple) else (wanted,)
    for a, b in zip((mine, *found), (theirs, *results), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


# What is run, how many parts are recorded, how many of them give outputs, and whether those live.
CASES: dict[str, tuple[Callable[..., Any], int, int, bool]] = {
    "a graph in parts": (_cut, 2, 1, False),
    "a graph in parts whose outputs live": (_cut, 2, 1, True),
    "a graph in parts that updates an input": (_updates, 2, 1, False),
    "a recorded graph that shows its inputs": (_shows_inputs, 1, 1, True),
}
