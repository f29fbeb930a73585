"""The trace of one compile: runs each stage, times it, verifies its result and prints debug output.

In: stage functions and their arguments. Out: their results, `timings` in seconds by stage, and
lines on stderr for `LITZ_DEBUG` 1 stages, 2 kernels, 3 fusion decisions, 4 source, 5 IR, 6 LLVM IR
and assembly. A trace belongs to one compile in one thread, and is handed on as an argument.

    trace = Trace(config.debug, verify=config.verify)
    program = trace(lower, graph, config)           # timings["lower"]
    with trace.span("parse"):                       # timings["build.parse"], inside stage "build"
        module = llvm.parse_assembly(text)
    trace.note(4, "source of k0", lambda: text)     # the text is made only if it is printed
"""

from __future__ import annotations

import difflib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Concatenate, ParamSpec, TextIO, TypeVar

from litz.errors import LitzError, StageFailed, VerifyError
from litz.ir.call_plan import CallPlan
from litz.ir.call_text import call_text
from litz.ir.expr import Expr
from litz.ir.program import (
    Buffer,
    Decision,
    Kernel,
    KernelGraph,
    LoopProgram,
    Phase,
    Plan,
    read,
    written,
)
from litz.ir.scheduled import ScheduledKernel
from litz.ir.text import graph_text, kernel_text, program_text, scheduled_text
from litz.ir.verify import verify, verify_schedule
from litz.ir.verify_call import verify_call
from litz.progress import Progress, bar

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

STAGES, KERNELS, DECISIONS, SOURCE, IR, ASSEMBLY = range(1, 7)
_BOLD, _RED, _GREEN, _PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[0m"


def stage(name: str, sentence: str) -> Callable[[F], F]:
    """Name a stage function for traces, errors and reports."""

    def mark(function: F) -> F:
        function.stage_name, function.stage_sentence = name, sentence  # type: ignore[attr-defined]
        return function

    return mark


def _name_of(function: Callable[..., object]) -> str:
    plain = getattr(function, "__name__", type(function).__name__)
    return str(getattr(function, "stage_name", plain))


class Trace:
    """One compile's clock, verifier and printer. Calling it runs a stage."""

    def __init__(self, debug: int = 0, stream: TextIO | None = None, verify: bool = True) -> None:
        self.debug, self.verify = debug, verify
        self.timings: dict[str, float] = {}  # seconds; a stage inside another is "outer.inner"
        self.calls: dict[str, int] = {}
        self._stream = stream
        self._open: list[str] = []
        self._counted = ""  # progress inside `each`, as text

    def __call__(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a stage. An exception that is no `LitzError` becomes a `StageFailed` naming it."""
        name = _name_of(function)
        try:
            with self.span(name):
                result = function(*args, **kwargs)
        except LitzError:
            raise
        except Exception as error:
            raise StageFailed(name, error) from error
        # Printed before it is verified: a program that fails is the one to look at.
        for level, title, text in _views(result):
            if self.shows(level):
                self._print(title, text(), [*self._open, name])
        self._check(name, result, args)
        return result

    def each(
        self,
        function: Callable[Concatenate[T, P], R],
        items: Sequence[T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[R]:
        """Run a stage for each of some items."""
        results = []
        for number, item in enumerate(items, 1):
            self._counted = f", {number} of {len(items)}"
            results.append(self(function, item, *args, **kwargs))
        self._counted = ""
        return results

    def count(self, number: int, total: int) -> None:
        """Note how far the open stage is; a total of zero clears the note."""
        self._counted = f", {bar(number - 1, total)} {number} of {total}" if total else ""

    def watched(self, what: str, progress: bool = True) -> AbstractContextManager[object]:
        """A context that prints progress lines if the compile takes long."""
        return Progress(what, self.where, self._stream) if progress else nullcontext()

    def where(self) -> str:
        """The open stage with its open parts, and how far it is."""
        return ".".join(self._open) + self._counted

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time a part of a stage; parts of the same name add up."""
        self._open.append(name)
        path = ".".join(self._open)
        self.timings.setdefault(path, 0.0)  # here, so that a stage comes before its parts
        start = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - start
            self.timings[path] += took
            self.calls[path] = self.calls.get(path, 0) + 1
            self._open.pop()

    def shows(self, level: int) -> bool:
        """Whether a note of that level is printed: ask before making something costly for it."""
        return self.debug >= level

    def note(self, level: int, title: str, text: str | Callable[[], str] = "") -> None:
        """Print a title and a text below it, from that level on."""
        if self.shows(level):
            self._print(title, text if isinstance(text, str) else text(), self._open)

    def show_pass(self, name: str, before: str, after: str) -> None:
        """Print what a graph pass changed, line by line."""
        if self.shows(IR):
            self._print(f"pass {name}", _difference(before, after), self._open)

    def summary(self) -> dict[str, float]:
        """Milliseconds by stage, and their sum as "total"."""
        total = sum(seconds for path, seconds in self.timings.items() if "." not in path)
        return {path: 1e3 * s for path, s in self.timings.items()} | {"total": 1e3 * total}

    def report(self, what: str = "graph") -> None:
        """Print the stages with their times, at the end of a compile."""
        self.note(STAGES, f"{what} compiled in {self.summary()['total']:.1f} ms", self._stage_rows)

    def _stage_rows(self) -> str:
        rows = []
        for path, seconds in self.timings.items():
            label = "  " * path.count(".") + path.rpartition(".")[2]
            calls = f"{self.calls[path]} times" if self.calls[path] > 1 else ""
            rows.append([label, f"{1e3 * seconds:9.2f} ms", calls])
        return _aligned(rows)

    def _check(self, name: str, result: object, given: tuple[object, ...]) -> None:
        """Verify a result; the time is booked as "verify", not as the stage's."""
        graph = result.graph if isinstance(result, Plan) else result
        checked = LoopProgram | KernelGraph | Kernel | ScheduledKernel | CallPlan
        if not self.verify or not isinstance(graph, checked):
            return
        try:
            with self.span("verify"):
                if isinstance(graph, ScheduledKernel):
                    verify_schedule(next(k for k in given if isinstance(k, Kernel)), graph)
                elif isinstance(graph, CallPlan):
                    verify_call(graph)
                else:
                    verify(graph)
        except VerifyError as error:
            error.add_note(f"It was found after stage {name!r}.")
            raise

    def _print(self, title: str, text: str, path: list[str]) -> None:
        """Write a title that names its stage, then the text, indented below it."""
        stream = self._stream or sys.stderr
        coloured = stream.isatty() and "NO_COLOR" not in os.environ
        head = f"litz {'.'.join(path)}: {title}" if path else f"litz: {title}"
        lines = [_BOLD + head + _PLAIN if coloured else head]
        for line in text.splitlines():
            colour = {"+": _GREEN, "-": _RED}.get(line[:1], "") if coloured else ""
            lines.append(f"    {colour}{line}{_PLAIN if colour else ''}".rstrip())
        stream.write("\n".join(lines) + "\n")
        stream.flush()


def _views(result: object) -> Iterator[tuple[int, str, Callable[[], str]]]:
    """The debug texts of a stage's result: level, title, and a function that makes the text."""
    if isinstance(result, LoopProgram):
        yield IR, "loop program", lambda: program_text(result)
    elif isinstance(result, KernelGraph):
        counted = f"{len(result.kernels)} kernels, {len(result.externs)} ATen calls"
        yield KERNELS, counted, lambda: _aligned([_kernel_row(k) for k in result.kernels])
        yield DECISIONS, "decisions", lambda: _aligned([_row(d) for d in result.decisions])
        yield IR, "kernel graph", lambda: graph_text(result)
    elif isinstance(result, Kernel):
        yield IR, f"kernel {result.name}", lambda: kernel_text(result)
    elif isinstance(result, ScheduledKernel):
        yield SOURCE, f"kernel {result.kernel.name}", lambda: scheduled_text(result)
    elif isinstance(result, CallPlan):
        yield IR, "call", lambda: call_text(result)
    elif isinstance(result, Plan):
        arena, unplanned = _megabytes(result.arena_bytes), _megabytes(result.unplanned_bytes)
        yield KERNELS, f"arena of {arena}, {unplanned} without reuse", lambda: ""


def _row(decision: Decision) -> list[str]:
    return [decision.action, decision.producer, decision.consumer, decision.reason]


def _kernel_row(kernel: Kernel) -> list[str]:
    """Name, outer axes, inner axes of each phase, bytes read and written together."""
    phases = [_phase(p) for p in kernel.phases]
    sizes = [_bytes(buffer) for buffer in [*read(kernel), *written(kernel)]]
    known = [size for size in sizes if size is not None]
    moved = _megabytes(sum(known)) if len(known) == len(sizes) else "dynamic"
    return [kernel.name, _axes(kernel.outer), " | ".join(phases), moved]


def _phase(phase: Phase) -> str:
    text = ("reduce " if phase.is_reduction else "") + _axes(phase.inner)
    return f"{text} reduce {_axes(phase.summed)}" if phase.summed else text


def _axes(axes: tuple[Expr, ...]) -> str:
    return " ".join(f"{a.attr}:{a.extent!r}" for a in axes) or "once"


def _bytes(buffer: Buffer) -> int | None:
    """The storage of a buffer's elements, if its shape is known."""
    if not all(size.is_const for size in buffer.shape):
        return None
    return buffer.dtype.bytes * math.prod(int(size.attr) for size in buffer.shape)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.3f} MB"


def _aligned(rows: list[list[str]]) -> str:
    """Columns of equal width, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _difference(before: str, after: str) -> str:
    """The changed lines with one line around them, or "(unchanged)"."""
    changes = difflib.unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm="")
    return "\n".join(list(changes)[2:]) or "(unchanged)"  # the first two name the files
