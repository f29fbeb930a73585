"""Sizes that data tells on a GPU, as the interpreter runs them: `tests/dynamic/unbacked.py` there.

In: nothing. Out: the kernels, or an error if a call gives anything but what eager gives, touches
memory beside its tensors, is compiled twice or runs as eager. Each program also runs with recording
asked for, which is refused for the part that works on such a size. Example:
`TRITON_INTERPRET=1 python -m tests.codegen.triton.unbacked_cases chosen`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from litz.backend import litz
from litz.errors import ScalarAssertion
from tests import draws
from tests.codegen.triton.apart import told
from tests.dynamic.unbacked import PROGRAMS, Program, check

RECORDED = {"triton.cudagraphs": True}


def _unfused(x: torch.Tensor) -> torch.Tensor:
    """Kernels that cannot be one."""
    for _ in range(2):
        x = x - x.sum(0).sum(0) * 1e-3
    return x


def _cut(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Recorded before the size is known, and behind what uses it; products are calls between."""
    before = _unfused(x)
    some = before[before > 0]
    twice = some[None] * 2
    behind = _unfused(_unfused(before @ w) @ w) @ w
    count = some.shape[0]
    return twice.sum(0) - some, behind, count * 2 + count // 2, some.sum() + behind.sum(), twice


def _two(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Two sizes, told in different parts; the first is needed behind the second."""
    before = _unfused(x)
    n = (before > 0).sum().item()
    middle = _unfused(_unfused(before @ w) @ w) @ w
    m = (middle > 0).sum().item()
    return _unfused(middle @ w) + n, x.new_ones(n, m) * 2, x.new_empty(n).shape[0], x.new_ones(m)


DRAW = draws.generator(0)
SQUARE = torch.randn(8, 8, generator=DRAW) / 8
# As many calls as a recording needs to be made and replayed, no two of the same counts.
INPUTS = tuple((torch.randn(6, 8, generator=DRAW) + shift / 2, SQUARE) for shift in range(-4, 4))
IN_PARTS = {
    "in parts": Program("in parts", _cut, INPUTS),
    "in parts, two sizes": Program("in parts, two sizes", _two, INPUTS),
}


def parts(there: Any, program: Program) -> list[Any]:
    """Parts before and behind the size are recorded and replayed; the reasons name it."""
    with there.interpreting() as made:
        check(program, options=RECORDED, rtol=1e-4, atol=1e-4)
    (graph,) = made
    assert graph.recording.recorded >= 2, graph.recording
    assert graph.device.tape.replays >= 2 * 4
    reasons = " ".join(graph.recording.reasons)
    assert "unbacked u0 in its steps" in reasons, reasons
    return list(graph.device.source.kernels)


def whole(there: Any, program: Program, options: dict[str, Any] | None = None) -> list[Any]:
    """A program at all its calls."""
    with there.interpreting() as made:
        check(program, options=options)
    return [kernel for graph in made for kernel in graph.device.source.kernels]


def refused(there: Any) -> list[Any]:
    """What torch takes for granted is checked on a GPU, too, call after call."""
    call = Program("one size", lambda x: x[x > 0] + torch.ones(5), ((torch.linspace(-1, 2, 8),),))
    with there.interpreting():
        check(call)
        try:
            backend = partial(litz, options={"on_error": "raise"})
            compiled = torch.compile(_sliced, backend=backend)
            with torch._dynamo.config.patch(capture_scalar_outputs=True):
                for n in (3, 9, 3):
                    compiled(torch.ones(8), torch.tensor(n))
        except ScalarAssertion as error:
            assert "u0 <= 8" in str(error) and n == 9, error
            return []
    raise AssertionError("nothing was refused")


def _sliced(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    u = (n + 0).item()
    torch._check(u >= 0)
    torch._check(u <= x.shape[0])
    return (x * 2)[:u] + 1


CASES: dict[str, Callable[[Any], list[Any]]] = {
    **{name: lambda there, p=p: whole(there, p) for name, p in PROGRAMS.items()},
    **{
        f"{name}, recorded": lambda there, p=PROGRAMS[name]: whole(there, p, RECORDED)
        for name in ("chosen", "in_turn", "run_of_kernels", "experts", "softmax_loss", "window")
    },
    **{name: lambda there, p=p: parts(there, p) for name, p in IN_PARTS.items()},
    "what is taken for granted": refused,
}


def run(name: str) -> list[dict[str, Any]]:
    """One case; its kernels as they go to the builder."""
    there = importlib.import_module("tests.codegen.triton.interpreted")
    return [asdict(kernel) for kernel in CASES[name](there)]


if __name__ == "__main__":
    told(sys.argv[1:], CASES, run)
