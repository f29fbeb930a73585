"""One graph for several modules: each has its own packed weights, for as long as it lives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from litz.runtime import prepacked as held_module
from litz.runtime.prepacked import PrepackCache

X = torch.randn(20, 64)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[PrepackCache]]:
    """What is held by graphs that are compiled from here on."""
    found: list[PrepackCache] = []

    class Noted(PrepackCache):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            found.append(self)

    monkeypatch.setattr("litz.runtime.graph.PrepackCache", Noted)
    torch._dynamo.reset()
    with torch.no_grad():
        yield found


def _apply() -> Callable[[nn.Module, torch.Tensor], torch.Tensor]:
    def apply(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return module(x).relu()

    return torch.compile(apply, backend="litz", options={"on_error": "raise"})


def _check(run: Any, layers: list[nn.Linear]) -> None:
    for layer in layers:
        torch.testing.assert_close(run(layer, X), layer(X).relu())


def test_modules_in_turn_are_packed_once_each(made: list[PrepackCache]) -> None:
    run, layers = _apply(), [nn.Linear(64, 48) for _ in range(3)]
    for _ in range(3):
        _check(run, layers)
    (prepacked,) = made
    assert prepacked.made == 3 and prepacked.bytes == 3 * 64 * 48 * 4
    layers[1].weight.mul_(2)
    _check(run, layers)
    assert prepacked.made == 4


def test_a_dead_module_takes_its_packed_weights_along(made: list[PrepackCache]) -> None:
    run, layers = _apply(), [nn.Linear(64, 48) for _ in range(3)]
    _check(run, layers)
    (prepacked,) = made
    layers.pop()  # the one that the idle workspace is bound to
    assert len(prepacked.sets) == 2 and prepacked.bytes == 2 * 64 * 48 * 4
    _check(run, layers)
    assert prepacked.made == 3
    layers.append(nn.Linear(64, 48))  # most likely where the dead one was
    _check(run, layers)
    assert prepacked.made == 4 and len(prepacked.sets) == 3


def test_the_oldest_set_makes_room(
    made: list[PrepackCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_module, "MAX_CACHED_SETS", 2)
    run, layers = _apply(), [nn.Linear(64, 48) for _ in range(3)]
    _check(run, layers)
    (prepacked,) = made
    assert len(prepacked.sets) == 2
    _check(run, layers[1:])
    assert prepacked.made == 3
    _check(run, layers[:1])
    assert prepacked.made == 4 and len(prepacked.sets) == 2


def test_many_sets_have_room(made: list[PrepackCache], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_module, "MAX_CACHED_SETS", 8)
    run, layers = _apply(), [nn.Linear(64, 48) for _ in range(7)]
    _check(run, layers)
    _check(run, layers)
    assert made[0].made == len(made[0].sets) == 7


@pytest.mark.parametrize("name", ["linear", "convolution"])
def test_threads_with_modules_of_their_own(made: list[PrepackCache], name: str) -> None:
    if name == "linear":
        layers: list[nn.Module] = [nn.Linear(512, 512) for _ in range(2)]
        x = torch.randn(64, 512)
    else:  # whose weights ATen packs
        layers = [nn.Conv2d(64, 64, 3, padding=1) for _ in range(2)]
        x = torch.randn(1, 64, 14, 14)
    run = _apply()
    expected = [layer(x).relu() for layer in layers]
    found: list[float] = [run(layer, x).sub(e).abs().max().item() for layer, e in
                          zip(layers, expected, strict=True)]  # fmt: skip

    def work(k: int) -> None:
        with torch.no_grad():
            for _ in range(150):
                found.append((run(layers[k], x) - expected[k]).abs().max().item())

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 302 and max(found) < 1e-3
    assert all(prepacked.made == 2 for prepacked in made)
