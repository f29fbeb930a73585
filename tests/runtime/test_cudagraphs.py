"""CUDA graphs: a replay gives what a call gives; an output that is alive is never overwritten."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from litz.errors import CaptureFailed
from litz.runtime.cudagraphs import MOST_RECORDINGS, WARM_UPS, CudaGraphRunner, one_replay_at_a_time
from tests.runtime.tape import Tape


def _replayed(function: Any, mutated_inputs: tuple[int, ...] = ()) -> tuple[Any, Tape]:
    def call(args: list[Any]) -> list[Any]:
        given = list(args)
        args.clear()
        return function(*given)

    tape = Tape()
    return CudaGraphRunner(call, tape, mutated_inputs, lambda: None), tape


def test_a_replay_takes_inputs_in_place_or_copied() -> None:
    graph, tape = _replayed(lambda w, x: [x @ w])
    weight, kept = torch.eye(4) * 3, []
    for k in range(6):
        x = torch.full((2, 4), float(k))
        kept.append(x)  # so that the next one lies elsewhere
        (y,) = graph.call([weight, x])
        assert y.equal(x * 3)
        del y
    assert graph.non_static == {1} and tape.recorded == 1 and tape.replays == 6 - WARM_UPS
    assert set(graph.recordings[0].input_copies) == {1}
    weight.mul_(2)  # a parameter that changes in place is seen
    assert graph.call([weight, kept[1]])[0].equal(kept[1] * 6)


def test_an_input_that_begins_to_move_is_copied_from_then_on() -> None:
    graph, tape = _replayed(lambda x: [x + 1])
    x = torch.zeros(3)
    for _ in range(4):
        graph.call([x])
    assert graph.non_static == set() and tape.recorded == 1
    moved = torch.full((3,), 5.0)
    assert graph.call([moved])[0].equal(moved + 1) and graph.non_static == {0}
    assert graph.call([x])[0].equal(x + 1) and tape.recorded == 2


def test_a_living_output_is_never_overwritten() -> None:
    graph, tape = _replayed(lambda x: [x * 2, x + 1])
    kept = []
    for k in range(5 + WARM_UPS):
        x = torch.full((3,), float(k))
        outputs = graph.call([x])
        kept.append((k, outputs[0][1:], outputs[1] if k % 2 else None))
        del outputs
    for k, view, second in kept:
        assert (view == 2 * k).all() and (second is None or (second == k + 1).all())
    assert tape.recorded == 5
    kept.clear()
    graph.call([torch.zeros(3)])
    assert tape.recorded == 5  # all are free again


def test_past_the_most_recordings_calls_run_as_they_are() -> None:
    graph, tape = _replayed(lambda x: [x * 2])
    kept = [graph.call([torch.full((3,), float(k))]) for k in range(MOST_RECORDINGS + WARM_UPS + 3)]
    assert all((y == 2 * k).all() for k, (y,) in enumerate(kept))
    assert tape.recorded == MOST_RECORDINGS


@pytest.mark.parametrize("moves", [False, True], ids=["in place", "copied"])
def test_an_updated_input_is_updated_once_a_call(moves: bool) -> None:
    graph, _ = _replayed(lambda x: [x.add_(1) * 2], mutated_inputs=(0,))
    x, kept = torch.zeros(3), []
    for k in range(6):
        if moves:
            kept.append(x)
            x = x.clone()
        (y,) = graph.call([x])
        assert (x == k + 1).all() and (y == 2 * (k + 1)).all()


def test_what_a_kernel_noted_is_raised_by_the_next_replay() -> None:
    def check() -> None:
        raise IndexError("an index is out of range")

    graph = CudaGraphRunner(lambda args: [args[0] + 1], Tape(), (), check)
    for _ in range(WARM_UPS):
        graph.call([torch.zeros(3)])
    with pytest.raises(IndexError):
        graph.call([torch.zeros(3)])


def test_a_number_of_the_cpu_is_brought_over_for_each_replay() -> None:
    tape = Tape()
    graph = CudaGraphRunner(lambda args: [args[0] * args[1]], tape, (), lambda: None, (1,), "cpu")
    x, number = torch.ones(3), torch.tensor(0.0)
    for k in range(6):
        number.fill_(k)  # where it lies, it stays
        assert (graph.call([x, number])[0] == k).all()
    assert set(graph.recordings[0].input_copies) == {1} and tape.recorded == 1


def test_an_expanded_input_is_copied_once() -> None:
    graph, tape = _replayed(lambda x: [x + 1])
    kept = []
    for k in range(5):
        x = torch.arange(4.0) + k
        kept.append(x)
        wide = x.expand(3, 4)
        assert graph.call([wide])[0].equal(wide + 1)
    assert tape.recorded == 1 and graph.non_static == {0}


def test_what_an_earlier_part_gives_is_used_where_it_lies() -> None:
    """A recording follows the one whose output it was recorded with; none is copied."""
    first, one = _replayed(lambda x: [x * 2])
    tape = Tape()
    second = CudaGraphRunner(
        lambda args: [args[0] + 1], tape, (), lambda: None, (), None, (0,), (first,)
    )
    kept, inputs = [], []
    for k in range(4 + WARM_UPS):
        inputs.append(torch.full((3,), float(k)))
        (middle,) = first.call([inputs[-1]])
        kept.append((k, middle, second.call([middle])[0]))
        del middle
    assert all((m == 2 * k).all() and (y == 2 * k + 1).all() for k, m, y in kept)
    assert one.recorded == 4 and tape.recorded == 4
    assert all(not r.input_copies for r in second.recordings)
    kept.clear()
    (result,) = second.call(first.call([torch.full((3,), 9.0)]))
    assert (result == 19).all() and one.recorded == tape.recorded == 4
    (loose,) = second.call([torch.zeros(3)])  # of no recording: it runs as it is
    assert (loose == 1).all() and tape.recorded == 4


def test_calls_at_the_same_time_or_on_other_streams_run_as_they_are() -> None:
    stream, seen = [1], []

    def replay(args: list[Any]) -> list[Any]:
        seen.append("replay")
        if args:
            run([])  # another thread, while this one is inside
        return []

    def plain(args: list[Any]) -> list[Any]:
        seen.append("plain")
        return []

    recording: list[bool] = []
    run = one_replay_at_a_time(replay, plain, lambda: stream[0], lambda: bool(recording))
    recording.append(True)  # the user's, on a stream that comes later
    run([])
    assert seen.pop() == "plain"
    recording.clear()
    run([])
    run([1])
    recording.append(True)
    run([])
    assert seen.pop() == "plain"
    recording.clear()
    stream[0] = 2
    run([])
    stream[0] = 1
    run([])
    assert seen == ["replay", "replay", "plain", "plain", "replay"]


def test_threads_never_share_a_recording() -> None:
    class Slow(Tape):
        def record(self, call: Any, args: list[Any]) -> Any:
            replay, outputs = super().record(call, args)
            return lambda: (replay(), time.sleep(2e-4)), outputs

    def plain(args: list[Any]) -> list[Any]:
        return [args[0] * 2]

    replay, wrong = CudaGraphRunner(plain, Slow(), (), lambda: None), []
    run = one_replay_at_a_time(replay.call, plain, lambda: 0, lambda: False)

    def work(first: int) -> None:
        for k in range(first, first + 150):
            (y,) = run([torch.full((1000,), float(k))])
            if not y.eq(2 * k).all():
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(1000 * t,)) for t in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and replay.recordings


def test_a_recording_that_fails_says_what_to_do() -> None:
    class Broken:
        def record(self, call: Any, args: list[Any]) -> Any:
            raise RuntimeError("operation not permitted when stream is capturing")

    graph = CudaGraphRunner(lambda args: [args[0] + 1], Broken(), (), lambda: None)
    for _ in range(WARM_UPS):
        graph.call([torch.zeros(3)])
    with pytest.raises(CaptureFailed, match=r"not permitted.*cudagraph_unsafe"):
        graph.call([torch.zeros(3)])
