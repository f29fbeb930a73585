"""The trace: what it times, what it prints at which level, and what it makes of errors."""

from __future__ import annotations

import io

import pytest

from litz.errors import InternalError, StageFailed, UnknownMode, VerifyError
from litz.ir.dtypes import F32
from litz.ir.expr import axis, const, integer, load
from litz.ir.program import (
    Buffer,
    Decision,
    Kernel,
    KernelGraph,
    Loop,
    LoopProgram,
    Output,
    Phase,
    Plan,
    Store,
    ViewArg,
)
from litz.trace import Trace, stage

I0 = axis("i0", 8)
A, B = (Buffer(name, F32, (integer(8),), (integer(1),)) for name in "ab")
COPY = Store(B, (I0,), load(A, (I0,)))
RESULT = (Output(ViewArg(B, B.shape, B.strides, integer(0))),)
KERNEL = Kernel("k0", (I0,), (Phase((), False, (COPY,)),), ())
DECISIONS = (Decision("refused", "a", "b", "different sizes"),)
GRAPH = KernelGraph((A,), (), (KERNEL,), RESULT, DECISIONS)
PROGRAM = LoopProgram((A,), (), (Loop((I0,), (), (COPY,)),), RESULT)


@stage("fuse", "Loops become kernels.")
def make_graph(program: LoopProgram, *, scale: int = 1) -> KernelGraph:
    assert program is PROGRAM
    assert scale == 2
    return GRAPH


def traced(debug: int, coloured: bool = False) -> tuple[Trace, io.StringIO]:
    stream = io.StringIO()
    stream.isatty = lambda: coloured  # type: ignore[method-assign]
    return Trace(debug, stream), stream


def test_a_stage_is_run_with_its_arguments_and_timed_under_its_name() -> None:
    trace, stream = traced(0)
    assert trace(make_graph, PROGRAM, scale=2) is GRAPH
    assert trace(len, "abc") == 3
    assert list(trace.timings) == ["fuse", "verify", "len"]
    assert all(seconds > 0 for seconds in trace.timings.values())
    assert stream.getvalue() == ""


def test_spans_nest_and_add_up() -> None:
    trace, _ = traced(0)

    @stage("build", "Source becomes code.")
    def build() -> None:
        for _ in range(3):
            with trace.span("parse"):
                pass

    trace(build)
    assert list(trace.timings) == ["build", "build.parse"]
    assert trace.calls == {"build": 1, "build.parse": 3}
    summary = trace.summary()
    assert summary["build"] >= summary["build.parse"] > 0
    assert summary["total"] == summary["build"]  # a part is not counted twice


def test_a_span_ends_when_it_raises() -> None:
    trace, _ = traced(0)
    with pytest.raises(KeyError), trace.span("outer"), trace.span("inner"):
        raise KeyError
    with trace.span("next"):
        pass
    assert list(trace.timings) == ["outer", "outer.inner", "next"]


def test_a_foreign_exception_is_internal_and_names_the_stage() -> None:
    @stage("fuse", "Fails.")
    def broken() -> None:
        raise KeyError("b3")

    trace, _ = traced(0)
    with pytest.raises(StageFailed, match="stage 'fuse' raised KeyError: 'b3'") as caught:
        trace(broken)
    assert isinstance(caught.value, InternalError)
    assert isinstance(caught.value.__cause__, KeyError)


def test_our_own_errors_pass_through() -> None:
    def ask() -> None:
        raise UnknownMode("fast", ["default"])

    trace, _ = traced(0)
    with pytest.raises(UnknownMode):
        trace(ask)


def test_a_result_that_breaks_a_law_is_found_unless_told_not_to_look() -> None:
    stray = Store(B, (axis("i9", 8),), const(0.0, F32))  # its axis is bound nowhere
    broken = LoopProgram((A,), (), (Loop((I0,), (), (stray,)),), RESULT)

    def lower() -> LoopProgram:
        return broken

    trace, _ = traced(0)
    with pytest.raises(VerifyError) as caught:
        trace(lower)
    assert caught.value.__notes__ == ["It was found after stage 'lower'."]
    assert Trace(verify=False)(lower) is broken


def test_each_level_adds_its_own() -> None:
    def printed(debug: int) -> str:
        trace, stream = traced(debug)
        trace(make_graph, PROGRAM, scale=2)
        trace.report("forward")
        return stream.getvalue()

    assert printed(0) == ""
    assert printed(1).startswith("litz: forward compiled in ")
    assert "    fuse  " in printed(1)
    assert "k0" not in printed(1)
    kernels = "litz fuse: 1 kernels, 0 ATen calls\n    k0  i0:8  once  0.000 MB\n"
    assert printed(2).startswith(kernels)
    assert "different sizes" not in printed(2)
    decisions = "litz fuse: decisions\n    refused  a  b  different sizes\n"
    assert printed(3).startswith(kernels + decisions)
    assert "kernel graph" not in printed(4)
    assert "litz fuse: kernel graph\n    graph:\n" in printed(5)


def test_a_program_a_kernel_and_a_plan_are_shown() -> None:
    trace, stream = traced(5)
    trace(lambda: PROGRAM)
    trace(lambda: KERNEL)
    trace(lambda: Plan(GRAPH, {}, 2_000_000, unplanned_bytes=5_500_000))
    text = stream.getvalue()
    assert "loop program\n    program:" in text
    assert "kernel k0\n" in text
    assert "arena of 2.000 MB, 5.500 MB without reuse\n" in text
    assert trace.calls["verify"] == 3


def test_report_shows_parts_below_their_stage_and_counts() -> None:
    trace, stream = traced(1)
    for _ in range(2):
        with trace.span("build"), trace.span("parse"):
            pass
    trace.report()
    title, build, parse = stream.getvalue().splitlines()
    assert title.startswith("litz: graph compiled in ")
    assert build.startswith("    build") and build.endswith("ms  2 times")
    assert parse.startswith("      parse")


def test_a_note_below_the_level_is_never_made() -> None:
    trace, stream = traced(3)
    trace.note(4, "source", lambda: pytest.fail("made for nothing"))
    assert (trace.shows(3), trace.shows(4)) == (True, False)
    with trace.span("build"):
        trace.note(3, "source", lambda: "line one\n  line two")
    assert stream.getvalue() == "litz build: source\n    line one\n      line two\n"


def test_a_pass_shows_its_difference() -> None:
    trace, stream = traced(5)
    trace.show_pass("drop_casts", "a\nb\nc\nd", "a\nb\nx\nd")
    trace.show_pass("fold", "a", "a")
    changed, unchanged = stream.getvalue().split("litz: pass fold\n")
    assert changed.splitlines()[2:] == ["     b", "    -c", "    +x", "     d"]
    assert unchanged == "    (unchanged)\n"
    quiet, silence = traced(4)
    quiet.show_pass("fold", "a", "b")
    assert silence.getvalue() == ""


def test_colour_is_for_terminals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def printed(coloured: bool) -> str:
        trace, stream = traced(5, coloured)
        trace.show_pass("fold", "a", "b")
        return stream.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32m+b\x1b[0m" in printed(True)
    assert "\x1b" not in printed(False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in printed(True)


def test_stderr_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    Trace(1).note(1, "hello")
    assert capsys.readouterr().err == "litz: hello\n"
