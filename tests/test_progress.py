"""A compile that takes long says where it is; one that does not is silent."""

from __future__ import annotations

import io
import time

import pytest

from litz.progress import Progress
from litz.trace import Trace, stage


class Clock:
    """Time as the test wants it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def watched(terminal: bool) -> tuple[Progress, Clock, io.StringIO]:
    stream, clock = io.StringIO(), Clock()
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    return Progress("forward graph", lambda: "fuse", stream, clock), clock, stream


def test_a_log_gets_a_line_each_time_the_time_has_doubled() -> None:
    progress, clock, stream = watched(terminal=False)
    waits = []
    for now in (102.0, 104.0, 108.0, 116.0):
        clock.now = now
        waits.append(progress.show())
    assert waits == [2.0, 4.0, 8.0, 16.0]
    clock.now = 120.5
    progress.finish()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "litz: compiling the forward graph for 2 s: fuse"
    assert lines[-1] == "litz: the forward graph took 20.5 s"
    assert len(lines) == 5


def test_a_terminal_gets_one_line_that_goes_away() -> None:
    progress, clock, stream = watched(terminal=True)
    clock.now = 103.0
    assert progress.show() == 1.0
    clock.now = 104.0
    progress.show()
    progress.finish()
    text = stream.getvalue()
    assert "\n" not in text and text.count("\r") == 3
    assert text.endswith("\r\x1b[K")


def test_a_short_compile_is_silent() -> None:
    progress, _, stream = watched(terminal=False)
    with progress:
        pass
    assert stream.getvalue() == ""


@stage("work", "takes a while")
def work(item: int, stream: io.StringIO) -> int:
    """Go on once the watching thread has written a line about this item."""
    deadline = time.monotonic() + 20
    while f"work, {item} of 2" not in stream.getvalue() and time.monotonic() < deadline:
        time.sleep(0.001)
    return item


def test_a_thread_of_its_own_says_how_far_a_stage_is() -> None:
    stream = io.StringIO()
    trace = Trace(stream=stream)
    with Progress("graph", trace.where, stream, first=0.001):
        assert trace.each(work, [1, 2], stream) == [1, 2]
    assert "work, 1 of 2" in stream.getvalue() and "work, 2 of 2" in stream.getvalue()
    assert stream.getvalue().splitlines()[-1].startswith("litz: the graph took")


def test_the_thread_ends_with_a_compile_that_fails() -> None:
    progress, _, _ = watched(terminal=False)
    with pytest.raises(ValueError), progress:
        raise ValueError
    assert not progress._thread.is_alive()


def test_a_stream_that_is_gone_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    progress, _, stream = watched(terminal=False)
    stream.close()
    progress.show()
    progress.finish()
    monkeypatch.setattr("sys.stderr", None)
    silent = Progress("graph", lambda: "fuse")
    silent.show()
    silent.finish()


def test_the_flag_turns_it_off() -> None:
    trace = Trace()
    assert isinstance(trace.watched("graph"), Progress)
    assert not isinstance(trace.watched("graph", progress=False), Progress)
