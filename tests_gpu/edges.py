"""Far places, equal extremes, odd addresses and recordings of the user's: part `edges`.

In: `Results`. Out: what the checks note in it: what a reading of the GPU's code found, where only a
GPU shows it. Everything is held against eager on the same GPU, or against a number that is known.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from tests.stages import compiled
from tests_gpu.checks import DEVICE, RAISE, agree, same
from tests_gpu.run import Results

NAN = float("nan")


def edges(results: Results) -> None:
    """Places beyond 32 bits in loops, ties, addresses at odd places, recordings of the user's."""
    results.check("columns over 2**31", _far_columns)
    results.check("a row over 2**31", _far_row)
    results.check("places of running extremes", _running_places)
    results.check("columns updated apart", _columns_apart)
    results.check("a result at an odd place", _odd_result)
    results.check("shared rows on two streams", _shared_rows)
    results.check("a number in the user's graph", _number_in_a_graph)
    results.check("random in the user's graph", _random_in_a_graph)
    results.check("two threads record at once", _threads_record)
    results.check("floats that no integer holds", _casts)


def _far_columns() -> None:
    """A loop's number times the distance of two rows needs 64 bits."""
    x = torch.zeros(1 << 16, 40000, device=DEVICE, dtype=torch.int8)
    x[-1], x[60000, ::7], x[40000, ::3] = 5, 9, -3
    run = compiled(lambda x: (x.amax(0), x.argmax(0), x - x.amin(0)))
    most, place, less = run(x)
    same([most, place], [x.amax(0), x.argmax(0)])
    least = x.amin(0)
    for rows in (slice(0, 64), slice(39990, 40010), slice(59990, 60010), slice(65500, 65536)):
        same(less[rows], x[rows] - least)


def _far_row() -> None:
    """Elements that lie nowhere: eager would need 24 GiB for them."""
    count = 3 << 30
    run = compiled(lambda x: (torch.arange(count, device=DEVICE) + x).argmax())
    assert int(run(torch.zeros((), device=DEVICE, dtype=torch.int64))) == count - 1


def _running_places() -> None:
    """Of equals the last counts, whatever lanes they lie in."""
    for shape, dim in (((8, 40000), 1), ((40000, 64), 0), ((8, 3000), 1)):
        x = torch.randint(-9, 9, shape, device=DEVICE).float()
        x[:, 5] = x[:, 5].abs() + 1
        some = torch.where(torch.rand(shape, device=DEVICE) > 0.9999, NAN, x)
        for given in (x, some, x.to(torch.int32)):
            agree(lambda x, d=dim: (*x.cummax(d), *x.cummin(d)), given)
            agree(lambda x, d=dim: (x.argmax(d), x.argmin(d)), given)


def _updates(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.add_(1)
    b.mul_(2)
    return a + b


def _columns_apart() -> None:
    """Inputs between whose rows the other's lie, at aligned places and at others."""
    for cut in (3, 4):
        mine = torch.arange(8000.0, device=DEVICE).view(1000, 8)
        theirs = mine.clone()
        fast = torch.compile(_updates, backend="litz", options=RAISE)
        for _ in range(3):
            parts = [(t[:, :cut], t[:, cut : 2 * cut]) for t in (mine, theirs)]
            same(fast(*parts[0]), _updates(*parts[1]))
            same(mine, theirs)


def _odd_result() -> None:
    if not hasattr(torch.ops.litz_checks, "piece"):
        torch.library.define("litz_checks::piece", "(Tensor x) -> Tensor")
        cut = lambda x: x.new_empty(x.numel() + 1)[1:].view(x.shape).copy_(x)  # noqa: E731
        torch.library.impl("litz_checks::piece", "cuda", cut)
        torch.library.register_fake("litz_checks::piece", torch.empty_like)
    x = torch.randn(512, 512, device=DEVICE)
    agree(lambda x: torch.ops.litz_checks.piece(x).exp() + 1, x)


def _shared_rows() -> None:
    """Each stream has counters of its own."""
    inputs = [torch.randn(1 << 24, device=DEVICE) for _ in range(2)]
    wanted = [int(x.argmax()) for x in inputs]
    run = compiled(lambda x: x.argmax())
    run(inputs[0])
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    found: list[list[torch.Tensor]] = [[], []]
    for _ in range(50):
        for k, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                found[k].append(run(inputs[k]))
    torch.cuda.synchronize()
    assert all({int(t) for t in found[k]} == {wanted[k]} for k in range(2))


# -- recordings of the user's ------------------------------------------------------------------


def _recorded(call: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A call in a CUDA graph, after a few on the same stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(4):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = call()
    return graph, result


def _number_in_a_graph() -> None:
    """It is what it was when the graph was recorded, as in eager's."""
    x, number = torch.ones(1000, device=DEVICE), torch.tensor(2.5)
    run = torch.compile(lambda x, s: x * s + s, backend="litz", options=RAISE)
    graph, result = _recorded(lambda: run(x, number))
    number.fill_(7)
    for _ in range(2):
        x.add_(1)
        graph.replay()
        same(result, x * 2.5 + 2.5)


def _random_in_a_graph() -> None:
    """Numbers go on from replay to replay, with recordings of ours or without."""
    x = torch.zeros(4096, device=DEVICE)
    for more in ({}, {"triton.cudagraphs": True}):
        torch._dynamo.reset()
        options = {**RAISE, **more}
        run = torch.compile(lambda x: torch.rand_like(x) + x, backend="litz", options=options)
        graph, result = _recorded(lambda run=run: run(x))
        sums = set()
        for _ in range(4):
            graph.replay()
            sums.add(float(result.sum()))
        assert len(sums) == 4, (more, sums)


def _threads_record() -> None:
    """Graphs of two threads are recorded one after the other."""
    x = torch.randn(64, 64, device=DEVICE)
    made = [compiled(lambda x, k=k: (x @ x).softmax(0) @ x + k, triton__cudagraphs=True)
            for k in range(4)]  # fmt: skip
    for run in made:
        run(x)
    wrong: list[str] = []

    def work(k: int) -> None:
        wanted = (x @ x).softmax(0) @ x + k
        for _ in range(20):
            try:
                torch.testing.assert_close(made[k].graphs[0]([x])[0], wanted, rtol=2e-3, atol=2e-3)
            except Exception as error:
                wrong.append(f"{k}: {error}")
                return

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


def _casts() -> None:
    """Eager takes bytes through 64 bits, and other small integers through 32."""
    far = [300.0, 4e4, -4e4, 7e4, 3e9, 1e10, -1e10, 2.0**32, float("inf"), -float("inf"), NAN]
    x = torch.tensor(far, device=DEVICE)
    for source in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for to in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
            given = x.to(source)
            same(compiled(lambda x, to=to: x.to(to))(given), given.to(to))
