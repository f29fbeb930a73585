"""CUDA graphs: a replay gives what a call gives; an output that is alive is never overwritten."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from litz.runtime.cudagraphs import MOST_RECORDINGS, WARM_UPS, Replayed


class Tape:
    """Records as CUDA does: a replay runs the call again, over the same inputs, into the same
    outputs."""

    def __init__(self) -> None:
        self.recorded = self.replays = 0

    def record(self, call: Any, args: list[Any]) -> Any:
        self.recorded += 1
        inputs = [t.as_strided(t.shape, t.stride()) for t in args]
        before = [t.clone() for t in inputs]
        outputs = call(list(inputs))
        for t, old in zip(inputs, before, strict=True):
            t.copy_(old)  # recording runs nothing

        def replay() -> None:
            self.replays += 1
            for out, new in zip(outputs, call(list(inputs)), strict=True):
                out.copy_(new)

        return replay, outputs


def _replayed(function: Any, updated: tuple[int, ...] = ()) -> tuple[Any, Tape]:
    def call(args: list[Any]) -> list[Any]:
        given = list(args)
        args.clear()
        return function(*given)

    tape = Tape()
    return Replayed(call, tape, updated, lambda: None), tape


def test_a_replay_takes_inputs_in_place_or_copied() -> None:
    graph, tape = _replayed(lambda w, x: [x @ w])
    weight, kept = torch.eye(4) * 3, []
    for k in range(6):
        x = torch.full((2, 4), float(k))
        kept.append(x)  # so that the next one lies elsewhere
        (y,) = graph.call([weight, x])
        assert y.equal(x * 3)
        del y
    assert graph.moving == {1} and tape.recorded == 1 and tape.replays == 6 - WARM_UPS
    assert set(graph.recordings[0].places) == {1}
    weight.mul_(2)  # a parameter that changes in place is seen
    assert graph.call([weight, kept[1]])[0].equal(kept[1] * 6)


def test_an_input_that_begins_to_move_is_copied_from_then_on() -> None:
    graph, tape = _replayed(lambda x: [x + 1])
    x = torch.zeros(3)
    for _ in range(4):
        graph.call([x])
    assert graph.moving == set() and tape.recorded == 1
    moved = torch.full((3,), 5.0)
    assert graph.call([moved])[0].equal(moved + 1) and graph.moving == {0}
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
    graph, _ = _replayed(lambda x: [x.add_(1) * 2], updated=(0,))
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

    graph = Replayed(lambda args: [args[0] + 1], Tape(), (), check)
    for _ in range(WARM_UPS):
        graph.call([torch.zeros(3)])
    with pytest.raises(IndexError):
        graph.call([torch.zeros(3)])


def test_a_number_of_the_cpu_is_brought_over_for_each_replay() -> None:
    tape = Tape()
    graph = Replayed(lambda args: [args[0] * args[1]], tape, (), lambda: None, (1,), "cpu")
    x, number = torch.ones(3), torch.tensor(0.0)
    for k in range(6):
        number.fill_(k)  # where it lies, it stays
        assert (graph.call([x, number])[0] == k).all()
    assert set(graph.recordings[0].places) == {1} and tape.recorded == 1
