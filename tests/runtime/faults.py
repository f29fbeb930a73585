"""Calls that are made to fail: at each line of their text, and with bad inputs.

In: a compiled graph, and inputs. Out: an error if a call that failed changed anything for the next
one. Each line of the entry's text, and of what fits a workspace to it, raises once, as Ctrl-C or a
failed allocation would, while kernels have noted an error or have not. Then a good call must give
what it gave, workspaces and arenas must be there once each, and the results of earlier calls must
be what they were. Example: `fail_everywhere(graph, good, bad)`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import torch

from litz.runtime import memory

Inputs = Callable[[], list[Any]]
WORKSPACE = {memory.Workspace.borrow.__code__, memory.Workspace.reserve.__code__,
             memory.Workspace._enter.__code__, memory.Workspace._fresh.__code__}  # fmt: skip


class Injected(Exception):
    """What a line raises that was made to fail."""


def lines_of(graph: Any, inputs: Inputs) -> list[tuple[CodeType, int]]:
    """The lines that a call runs, each once, in order."""
    seen: dict[tuple[CodeType, int], None] = {}
    _call(graph, inputs(), lambda code, line: seen.setdefault((code, line)))
    return list(seen)


def _call(graph: Any, inputs: list[Any], at: Callable[[CodeType, int], object]) -> list[Any]:
    """One call, with a look at each of its lines before it runs."""

    def look(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code.co_filename != "<litz wrapper>" and code not in WORKSPACE:
            return None
        if event == "line":
            at(code, frame.f_lineno)
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        return graph(inputs)
    finally:
        sys.settrace(before)


def _failing(where: tuple[CodeType, int], error: type[BaseException]) -> Callable[..., None]:
    """Raise at a line, the first time that it is reached."""
    left = [where]

    def at(code: CodeType, line: int) -> None:
        if left == [(code, line)]:
            left.clear()
            raise error("made to fail")

    return at


def fail_everywhere(graph: Any, good: Inputs, bad: Inputs | None, late: bool = False) -> int:
    """Let a call fail at each of its lines; gives how often. `bad` inputs make kernels note an
    error before that. If the next call tells of such errors, as on a GPU (`late`), it has to when a
    call fails behind its end."""
    wanted = [_copied(t) for t in graph(good())]
    kept: list[tuple[list[Any], list[Any]]] = []
    failures = 0
    for inputs in filter(None, (good, bad)):
        lines = lines_of(graph, good)
        for where in lines[:-1] if late and inputs is bad else lines:
            for error in (Injected, KeyboardInterrupt):
                try:
                    _call(graph, inputs(), _failing(where, error))
                except (Injected, KeyboardInterrupt, IndexError):
                    failures += 1
                else:
                    raise AssertionError(f"no error at {where}")
                found = graph(good())
                _same(found, wanted, where)
                kept = [*kept[-2:], (found, [_copied(t) for t in found])]
                for earlier, copies in kept:  # no later call has touched them
                    _same(earlier, copies, where)
                _nothing_twice(graph)
    return failures


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _same(found: list[Any], wanted: list[Any], where: object) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, where


def _nothing_twice(graph: Any) -> None:
    """What two calls could take at once is not the same; a good call brings its own back."""
    free = getattr(graph, "free", None)  # of a GPU, each part has its own
    for idle in (free or [], [a for a in memory.IDLE_ARENAS if a.numel()]):
        assert len({id(one) for one in idle}) == len(idle)
    assert free is None or free


def every_step(graph: Any) -> Iterator[str]:
    """The names of what a call's text calls: ops, runs of kernels, allocations."""
    for name, value in graph.call.__globals__.items():
        if callable(value) and name in graph.call.__code__.co_names:
            yield name
