"""The checks of CUDA graphs: part `graphs` of `tests_gpu.run`.

In: `Results`. Out: what they note in it. A graph is recorded as a whole or in parts; either way it
gives what eager gives, call after call, and no living output is overwritten.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import litz
from litz.errors import CudaGraphsRefused, IndexOutOfRange
from litz.runtime.cudagraphs import WARM_UPS
from tests.stages import compiled
from tests_gpu.checks import DEVICE, RAISE, same
from tests_gpu.run import Results

CALLS = WARM_UPS + 6


def _replaying(function: Callable[..., Any]) -> Callable[..., Any]:
    options = {**RAISE, "triton.cudagraphs": True}
    return torch.compile(function, backend="litz", options=options)  # type: ignore


def graphs(results: Results) -> None:
    """CUDA graphs: what is recorded gives what a call gives, and no living output changes."""
    results.check("graph outputs stay", _outputs_stay)
    results.check("graph inputs move", _inputs_move)
    results.check("graph updates inputs", _inputs_updated)
    results.check("graph random advances", _random_advances)
    results.check("graph split with a reason", _skipped)
    results.check("graph split around the CPU", _around_the_cpu)
    results.check("graph split, outputs stay", _split_outputs_stay)
    results.check("graph split updates inputs", _split_updates)
    results.check("graph split, random advances", _split_random)
    results.check("graph split, training", _split_training)
    results.check("graph shows its inputs", _shows_inputs)
    results.check("graph required", _required)
    results.check("graph on other streams", _other_streams)
    results.check("graph in threads", _threads)
    results.check("number of the CPU", _number_of_the_cpu)
    results.check("index out of range", _index_error)


def _outputs_stay() -> None:
    fast = _replaying(lambda x: (x.softmax(-1), x.sum(0)[:4]))
    kept = []
    for k in range(12):
        x = torch.randn(64, 100, device=DEVICE)
        kept.append((x, fast(x)))
        if k % 3 == 0:
            torch.empty(1 << 20, device=DEVICE).fill_(k)
    for x, (y, z) in kept:
        same([y, z], [x.softmax(-1), x.sum(0)[:4]])


def _inputs_move() -> None:
    w = torch.randn(100, 100, device=DEVICE)
    fast = _replaying(lambda x, w: F.gelu(x @ w) + 1)
    held = []
    for _ in range(8):
        x = torch.randn(64, 100, device=DEVICE)
        held.append(x)
        torch.testing.assert_close(fast(x, w), F.gelu(x @ w) + 1, rtol=1e-3, atol=1e-3)


def _inputs_updated() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    fast = _replaying(step)
    x = torch.zeros(1000, device=DEVICE)
    for k in range(8):
        y = fast(x)
        assert (x == k + 1).all() and (y == 2 * (k + 1)).all(), k
        if k == 5:
            x = x.clone()


def _random_advances() -> None:
    fast = _replaying(lambda x: torch.rand_like(x) + 0 * x)
    x = torch.zeros(4096, device=DEVICE)
    drawn = [fast(x).clone() for _ in range(8)]
    assert len({float(d.sum()) for d in drawn}) == 8
    assert all(0.4 < float(d.mean()) < 0.6 for d in drawn)
    torch.manual_seed(5)
    first = fast(x).clone()
    torch.manual_seed(5)
    assert torch.equal(first, fast(x))


def _skipped() -> str:
    """A call that is marked as unsafe splits the graph; the reason names it."""
    _define_unsafe()

    def function(x: torch.Tensor) -> torch.Tensor:
        x = torch.ops.litz_checks.unsafe((x + 1).softmax(0)) * 2
        for _ in range(4):  # a run of kernels that cannot fuse
            x = x - x.sum(0).sum(0)
        return x

    x = torch.randn(900, 700, device=DEVICE)
    with litz.config.patch({"triton.cudagraphs": True}):
        seen = litz.explain(function, x)
    reasons = [d.reason for g in seen.graphs for d in g.decisions if "cudagraphs" in d.producer]
    assert reasons and "litz_checks.unsafe" in reasons[0], reasons
    assert "recorded" in reasons[0] and "graphs.py" in reasons[0], reasons
    fast = _replaying(function)
    for _ in range(6):
        same(fast(x), function(x))
    return reasons[0]


def _number_of_the_cpu() -> None:
    fast, x = _replaying(lambda x, s: x * s), torch.ones(9, device=DEVICE)
    for k in range(6):
        assert (fast(x, torch.tensor(float(k))) == k).all(), k


def _index_error() -> None:
    run = compiled(lambda x, i: x[i] + 1)
    x, good = torch.randn(10, device=DEVICE), torch.tensor([1, 2], device=DEVICE)
    run(x, good)
    run(x, good + 20)
    torch.cuda.synchronize()
    try:
        run(x, good)
    except IndexOutOfRange:
        same(run(x, good), x[good] + 1)
        return
    raise AssertionError("the index was not noticed")


def _define_unsafe() -> None:
    if hasattr(torch.ops.litz_checks, "unsafe"):
        return
    torch.library.define(
        "litz_checks::unsafe", "(Tensor x) -> Tensor", tags=(torch.Tag.cudagraph_unsafe,)
    )
    torch.library.impl("litz_checks::unsafe", "cuda", lambda x: x.flip(0))
    torch.library.register_fake("litz_checks::unsafe", torch.empty_like)


# -- graphs in parts -------------------------------------------------------------------------


def _long(x: torch.Tensor) -> torch.Tensor:
    """Kernels that cannot fuse, and products among them."""
    for _ in range(2):
        x = x - x.sum(0).sum(0) * 1e-3
    return (x @ x.t() @ x) / 64


def _recorded(function: Callable[..., Any], parts: int, *example: Any) -> Any:
    """A function that is recorded in so many parts."""
    run = compiled(function, triton__cudagraphs=True)
    run(*[e.clone() for e in example])
    (graph,) = run.graphs
    assert graph.recording.recorded == parts, graph.recording
    return run


def _close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)


def _around_the_cpu() -> None:
    """A number goes to the CPU and comes back into kernels; a tensor goes there and back."""

    def function(x: torch.Tensor) -> Any:
        y = _long(x)
        number = y.abs().mean().cpu() + 1
        there = y.cpu().sort(0).values.to(DEVICE)
        return _long(y * number + there), number

    x = torch.randn(32, 32, device=DEVICE)
    run = _recorded(function, 2, x)
    for k in range(CALLS):
        given = x * (1 + k / 8)
        found, wanted = run(given), function(given)
        assert found[1].device.type == "cpu"
        _close(found, wanted)


def _split_outputs_stay() -> None:
    _define_unsafe()

    def function(x: torch.Tensor) -> Any:
        y = _long(x).sort(0).values
        z = torch.ops.litz_checks.unsafe(y)
        return y, _long(z + y)

    x = torch.randn(32, 32, device=DEVICE)
    run = _recorded(function, 2, x)
    kept = []
    for k in range(CALLS):
        given = x * (1 + k / 8)
        kept.append((run(given), function(given)))
        torch.empty(1 << 18, device=DEVICE).fill_(k)
    for found, wanted in kept:
        _close(found, wanted)


def _split_updates() -> None:
    """A cache that is written to on both sides of the call, where it lies or somewhere new."""
    _define_unsafe()

    def function(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[:16] = _long(x)[:16]
        y = torch.ops.litz_checks.unsafe(cache)
        cache.mul_(0.5)
        return _long(y + cache)

    x = torch.randn(32, 32, device=DEVICE)
    run = _recorded(function, 2, x, x)
    mine, theirs = torch.ones(32, 32, device=DEVICE), torch.ones(32, 32, device=DEVICE)
    for k in range(CALLS + 3):
        if k == CALLS - 1:
            mine = mine.clone()  # somewhere new
        found, wanted = run(mine, x * (k + 1)), function(theirs, x * (k + 1))
        _close([found, mine], [wanted, theirs])


def _split_random() -> None:
    _define_unsafe()

    def function(x: torch.Tensor) -> Any:
        first = torch.rand_like(x) + _long(x) * 0
        second = torch.rand_like(x) + _long(torch.ops.litz_checks.unsafe(x)) * 0
        return first, second

    x = torch.zeros(64, 64, device=DEVICE)
    run = _recorded(function, 2, x)
    sums = {float(t.sum()) for _ in range(CALLS) for t in run(x)}
    assert len(sums) == 2 * CALLS, "numbers came again"
    torch.manual_seed(5)
    one = [t.clone() for t in run(x)]
    torch.manual_seed(5)
    assert all(torch.equal(a, b) for a, b in zip(one, run(x), strict=True))


def _split_training() -> str:
    """Forward and backward with work on the CPU in the middle of both."""
    torch.manual_seed(0)
    layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4)).to(DEVICE)

    def model(x: torch.Tensor) -> torch.Tensor:
        for k, layer in enumerate(layers):
            x = F.gelu(F.layer_norm(layer(x), (64,))) + x
            if k == 1:
                x = x.cpu().cumsum(0).to(DEVICE) / 32
        return x

    def trained(run: Callable[..., Any]) -> list[float]:
        found = []
        x = torch.linspace(-1, 1, 32 * 64, device=DEVICE).view(32, 64)
        for _ in range(CALLS):
            loss = run(x).square().mean()
            loss.backward()
            grads = [p.grad for p in layers.parameters()]
            found += [float(loss.detach()), float(torch.stack([g.norm() for g in grads]).norm())]
            for p in layers.parameters():
                p.grad = None
        return found

    torch._dynamo.reset()
    ours, eager = trained(_replaying(model)), trained(model)
    for a, b in zip(ours, eager, strict=True):
        assert abs(a - b) <= 2e-3 * abs(b), (ours, eager)
    return f"loss {eager[0]:.5f}, ours {ours[-2]:.5f} after {CALLS} calls"


def _shows_inputs() -> None:
    run = _recorded(lambda x: (x, x.t(), _long(x)), 1, torch.randn(32, 32, device=DEVICE))
    for k in range(CALLS):
        x = torch.randn(32, 32, device=DEVICE) * k
        found = run(x)
        _close(found, (x, x.t(), _long(x)))
        assert found[1].data_ptr() == x.data_ptr()


def _required() -> str:
    _define_unsafe()
    options = {"triton.require_cudagraphs": True}
    run = torch.compile(
        lambda x: torch.ops.litz_checks.unsafe(x + 1), backend="litz", options=options
    )  # Dynamo knows the user's line
    try:
        run(torch.zeros(8, device=DEVICE))
    except Exception as error:
        refused = getattr(error, "inner_exception", error)  # as Dynamo wraps it
        assert isinstance(refused, CudaGraphsRefused), repr(refused)
        assert "litz_checks.unsafe" in str(refused) and "graphs.py" in str(refused), refused
        return str(refused)
    raise AssertionError("nothing was raised")


def _other_streams() -> None:
    """A call on another stream does not touch what a replay works in."""
    x = torch.randn(64, 64, device=DEVICE)
    run = _recorded(lambda x: _long(x) + 1, 1, x)
    wanted = _long(x) + 1
    for _ in range(CALLS):
        run(x)
    side, kept = torch.cuda.Stream(), []
    for _ in range(CALLS):
        with torch.cuda.stream(side):
            kept.append(run(x))
        kept.append(run(x))
    torch.cuda.synchronize()
    for found in kept:
        _close(found, wanted)


def _threads() -> None:
    inputs = [torch.randn(64, 64, device=DEVICE) for _ in range(4)]
    run = _recorded(lambda x: _long(x) + 1, 1, inputs[0])
    wanted = [_long(x) + 1 for x in inputs]
    wrong: list[str] = []

    def work(x: torch.Tensor, right: torch.Tensor) -> None:
        for _ in range(50):
            try:
                _close(run.graphs[0]([x])[0], right)
            except Exception as error:
                wrong.append(str(error))
                return

    pairs = zip(inputs, wanted, strict=True)
    threads = [threading.Thread(target=work, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
