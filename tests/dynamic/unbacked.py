"""Programs whose sizes and numbers only data tells, with calls that change them.

In: nothing. Out: `PROGRAMS`: each a function and what it is called with, one after the other, as
tensors on the CPU. Zero, one, few and all are among the counts. The CPU's tests, Triton's
interpreter and a real GPU (`python -m tests_gpu.run unbacked`) run the same ones. `captured()` is
what torch needs to be told, so that each is one graph. Example: `x[x > 0].sum()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from litz.backend import litz
from litz.report import Explanation
from tests import draws

Calls = tuple[tuple[Any, ...], ...]


@contextmanager
def captured() -> Iterator[None]:
    """Data-dependent ops stay in the graph."""
    flags = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    with torch._dynamo.config.patch(**flags):
        yield


@dataclass(frozen=True)
class Program:
    """A function, what it is called with in turn, whether its first argument is trained, and
    whether its last one, a number, stays on the CPU."""

    name: str
    function: Callable[..., Any]
    calls: Calls
    trains: bool = False
    on_cpu: bool = False


# By how many of them are positive: some, one, all, none, others.
VALUES = (
    torch.linspace(-1, 2, 8), torch.eye(8)[2], torch.ones(8), -torch.ones(8), torch.arange(8.0) - 6,
)  # fmt: skip
COUNTS = tuple(torch.tensor(n) for n in (3, 0, 1, 40, 2))
LONG = tuple(
    torch.randn(3000, generator=draws.generator(k)) + shift
    for k, shift in enumerate((0.0, 9.0, -9.0, 2.0))
)
ROWS = torch.linspace(-2, 2, 24).view(8, 3)
OF_VALUES: Calls = tuple((x,) for x in VALUES)
OF_LONG: Calls = tuple((x,) for x in LONG)
WITH_COUNTS: Calls = tuple((ROWS, n) for n in COUNTS)
OF_COUNTS: Calls = tuple((n,) for n in COUNTS)


def _item(n: torch.Tensor) -> Any:
    """torch guards on the number itself where the tensor is an argument as it stands."""
    return (n + 0).item()


# -- numbers ---------------------------------------------------------------------------------


def times_number(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return x * _item(n)


def full_like_number(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, _item(n))


def clamp_to_number(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return torch.clamp(x, 0, _item(n))


def integers_and_number(x: torch.Tensor, n: torch.Tensor) -> Any:
    """All 64 bits of a number count, also where the rows are short."""
    u = _item(n)
    return x + u, x * u, torch.where(x > 1, u, x), x == u, (x - u) // 3


def arithmetic(x: torch.Tensor, n: torch.Tensor) -> Any:
    u = _item(n)
    return x * (u * 2 + 1), x + u / 7, x * (u % 3), x + u // 2


def truth(x: torch.Tensor) -> torch.Tensor:
    return x * (x.sum() > 0).item() + 1


def floats(x: torch.Tensor) -> Any:
    total = x.sum().item()
    full = torch.full((3,), total, device=x.device)
    return full, x * total, x + total / 2, x / total


def two_floats(x: torch.Tensor, y: torch.Tensor) -> Any:
    """Infinities, NaN and zeros with a sign are numbers, too."""
    a, b = y[0].item(), y[1].item()
    return x * a + b, x / a, torch.where(x > b, a, x)


def number_in_place(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    x.add_(_item(n))
    return x * 2


# -- sizes -----------------------------------------------------------------------------------


def chosen_doubled(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0] * 2


def chosen_sum(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].sum()


def chosen(x: torch.Tensor) -> Any:
    some = x[x > 0]
    return some.exp().sum(), torch.cat([some, x]), torch.softmax(some, 0), some[None].mean(0)


def softmaxes(x: torch.Tensor) -> Any:
    some = x[x > 0]
    return F.log_softmax(some, 0), torch.softmax(some[None].expand(3, -1), 1), some.var(0)


def places(x: torch.Tensor) -> Any:
    found = (x > 0).nonzero()
    return found + 1, found.sum(0), found.shape[0] * 3


def selected(x: torch.Tensor) -> Any:
    some = torch.masked_select(x * 2, x > 0)
    return some.cumsum(0), some[:, None] * some, F.pad(some, (1, 2))


def repeated(x: torch.Tensor) -> torch.Tensor:
    return torch.repeat_interleave(x[:, None] + 1, (x > 0).long() * 3, dim=0) * 2


def distinct(x: torch.Tensor) -> torch.Tensor:
    return torch.unique(x.round()) * 2


def appended(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x.new_ones(_item(n), 3)])


def twice(x: torch.Tensor) -> Any:
    one, other = x.nonzero(), (x > 0.5).nonzero()
    return torch.cat([one, other]), x.new_ones(one.shape[0] + other.shape[0], other.shape[0]) * 2


def in_turn(x: torch.Tensor) -> Any:
    """A size of what a size told: kernels and calls between them."""
    y = x[x > 0] * 2
    z = y[y > 1] + 1
    return z.exp(), y.shape[0] + z.shape[0], torch.outer(z, y).sum(0), (x * 2).sum()


def run_of_kernels(x: torch.Tensor) -> torch.Tensor:
    """Kernels that cannot fuse: a run of launches, which a GPU may record."""
    y = x[x > 0][None] * torch.ones(4, 1, device=x.device)
    for _ in range(3):
        y = y - y.sum(0) * 0.25
    return y


def filled(n: torch.Tensor) -> Any:
    u = _item(n)
    there = {"device": n.device}
    full = torch.full((u,), 2.0, **there) + torch.arange(u, **there)
    return full, torch.ones(u, u, **there).triu().sum(1), u * u


def wide(n: torch.Tensor) -> Any:
    u = _item(n)
    ones = torch.ones(8, 1, device=n.device)
    return (
        ones.expand(8, u).sum(1),
        ones.new_ones(8, u) * 2,
        torch.arange(8.0, device=n.device) + u / 7,
    )


def halved(n: torch.Tensor) -> Any:
    u = _item(n)
    torch._check(u >= 0)
    y = torch.arange(4 * u, device=n.device).view(4, u)
    return torch.ones(u // 2 + 1, device=n.device) * (u % 3), y.t().contiguous(), y.sum(1)


def sliced(x: torch.Tensor, n: torch.Tensor) -> Any:
    u = _item(n)
    torch._check(u >= 0)
    torch._check(u <= x.shape[0])
    y = x * 2
    return y[:u] + 1, y[u:].sin(), y.sort(0)[0][:u].clone()


def window(x: torch.Tensor, n: torch.Tensor) -> Any:
    """Of a number that may be negative, torch knows neither end."""
    u = _item(n)
    return (x * 2)[u:].sin(), x[:u].sum()


def largest(x: torch.Tensor, n: torch.Tensor) -> Any:
    u = _item(n)
    torch._check(u >= 0)
    torch._check(u <= x.shape[0])
    values, where = torch.topk(x[:, 0], u)
    return values * 2, where + 1, x[where].sum(0)


def unwritten(n: torch.Tensor) -> Any:
    u = _item(n)
    return torch.empty(u, 3, device=n.device).shape[0], torch.zeros(u, 3, device=n.device)


def experts(x: torch.Tensor, choice: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """An expert gets as many rows as chose it, also none."""
    out = x.new_zeros(x.shape[0], w.shape[2])
    for k in range(2):
        rows = (choice == k).nonzero().squeeze(1)
        out = out.index_add(0, rows, F.gelu(F.layer_norm(x[rows], (x.shape[1],)) @ w[k]))
    return out.cumsum(1)


# -- training --------------------------------------------------------------------------------


def masked_loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return w[x > 0].exp() * 2


def softmax_loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    some = w.masked_select(x > 0)
    return torch.softmax(some * 2, 0) * some


def taken_loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    rows = x.nonzero().squeeze(1)
    return (w[rows] * x[rows]).tanh() * (x.sum() > 0).item()


def repeated_loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.repeat_interleave(w, (x > 0).long() * 2, dim=0).sin()


def scaled_loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (w * x.sum().item()).sin() + (w * (x > 0).sum().item()).cos()


def product_loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    rows = torch.outer(x[x > 0], torch.arange(8.0, device=x.device))
    return (rows @ w[:, None]).relu() + w.sum()


WEIGHTS = torch.linspace(-1, 1, 8)
LOSSES = (masked_loss, softmax_loss, taken_loss, repeated_loss, scaled_loss, product_loss)
NUMBERS = (times_number, full_like_number, clamp_to_number, arithmetic, number_in_place, appended)
CHOSEN = (
    truth, floats, chosen_doubled, chosen_sum, chosen, softmaxes, places, selected, repeated,
    distinct, twice, in_turn, run_of_kernels,
)  # fmt: skip
INTEGERS = torch.arange(-6, 10).view(2, 8)
BEYOND = (3, 0, 1, -7, 2**31, -(2**31) - 1, 2**53 + 1, -(2**62) - 3)
SPECIAL = ((2.5, -0.0), (float("inf"), 1.0), (float("nan"), 0.0), (-0.0, float("-inf")),
           (1e-310, 5e-324), (0.1, 1 / 3))  # fmt: skip


def _experts() -> Iterator[tuple[Any, ...]]:
    draw = draws.generator(1)
    w = torch.randn(2, 16, 32, generator=draw)
    for choice in ([0, 1] * 6, [0] * 12, [1] * 11 + [0]):
        yield torch.randn(12, 16, generator=draw), torch.tensor(choice), w


def _programs() -> Iterator[Program]:
    for function in NUMBERS:
        yield Program(function.__name__, function, WITH_COUNTS)
    for function in (times_number, appended):
        name = f"{function.__name__}, number on the CPU"
        yield Program(name, function, WITH_COUNTS, on_cpu=True)
    for function in CHOSEN:
        yield Program(function.__name__, function, OF_VALUES)
    for function in (chosen, softmaxes, selected_sums, run_of_kernels, in_turn_sums):
        yield Program(f"{function.__name__}, long", function, OF_LONG)
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int32):
        calls = tuple((x.to(dtype),) for x in VALUES)
        yield Program(f"chosen_doubled, {str(dtype)[6:]}", chosen_doubled, calls)
    beyond = tuple((INTEGERS, torch.tensor(n)) for n in BEYOND)
    yield Program("integers_and_number", integers_and_number, beyond)
    special = tuple((ROWS.double(), torch.tensor(pair, dtype=torch.float64)) for pair in SPECIAL)
    yield Program("two_floats", two_floats, special)
    yield Program("two_floats, float32", two_floats, tuple((ROWS, y) for _, y in special[:4]))
    for function in (filled, wide, halved, unwritten):
        yield Program(function.__name__, function, OF_COUNTS)
    inside = WITH_COUNTS[:3]
    yield Program("sliced", sliced, inside)
    yield Program("window", window, (*inside, (ROWS, torch.tensor(-3))))
    yield Program("largest", largest, inside)
    yield Program("experts", experts, tuple(_experts()))
    for function in LOSSES:
        calls = tuple((WEIGHTS, x) for x in VALUES)
        yield Program(function.__name__, function, calls, trains=True)


def selected_sums(x: torch.Tensor) -> Any:
    """Long rows that come in blocks: running sums, products with what is behind them."""
    some = torch.masked_select(x, x > 0)
    return some.cumsum(0), (some * 2).sum(), some.view(1, -1).argsort(1) + 1


def in_turn_sums(x: torch.Tensor) -> Any:
    y = x[x > 0]
    z = y[y > 1]
    share = (z.sum() - y.sum()) / x.abs().sum()  # the difference alone is all rounding
    return z.sum(), y.mean(), share.exp(), z.flip(0)


PROGRAMS: dict[str, Program] = {p.name: p for p in _programs()}


# -- checks ----------------------------------------------------------------------------------


def results(program: Program, run: Callable[..., Any], call: Any, device: str = "cpu") -> Any:
    """What a call gives: its results, its arguments as they are then, and the gradient."""
    *most, last = call
    given = [t.clone().to(device) for t in most]
    given.append(last.clone().to("cpu" if program.on_cpu else device))
    if program.trains:
        given[0].requires_grad_()
    found = run(*given)
    if program.trains:
        found.sum().backward()
    return found, [t.detach() for t in given], given[0].grad


def check(
    program: Program, device: str = "cpu", options: dict[str, Any] | None = None, **close: float
) -> tuple[Explanation, int]:
    """Every call against eager, through one compile and no fallback. Gives what was compiled, and
    how many calls were refused: those that torch itself refuses, since it takes more for granted
    than eager does."""
    torch._dynamo.reset()
    notes, refused = Explanation(), 0

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        given = {"on_error": "raise", **(options or {})}
        return litz(module, inputs, options=given, explanation=notes)

    with captured():
        compiled = torch.compile(program.function, backend=backend, fullgraph=True)
        for k, call in enumerate(program.calls):
            wanted = results(program, program.function, call, device)
            try:
                found = results(program, compiled, call, device)
            except RuntimeError:
                if not _torch_refuses(program, call, device):
                    raise
                refused += 1
                continue
            assert_same(found, wanted, f"{program.name}, call {k}", **close)
    assert not notes.by_size and not notes.fallbacks, (notes.by_size, notes.fallbacks)
    assert len(notes.graphs) == 1 + program.trains, len(notes.graphs)
    return notes, refused


def _torch_refuses(program: Program, call: Any, device: str) -> bool:
    """Whether the call fails without us, too."""
    traced = torch.compile(lambda *args: program.function(*args), backend="aot_eager")
    try:
        results(program, traced, call, device)
    except RuntimeError:
        return True
    return False


def assert_same(found: Any, wanted: Any, where: str, **close: float) -> None:
    """Types, shapes, devices and values; floats may be `close`."""
    ours, eager = (pytree.tree_leaves(tree) for tree in (found, wanted))
    assert len(ours) == len(eager), where
    for k, (a, b) in enumerate(zip(ours, eager, strict=True)):
        text = f"{where}, result {k}"
        if isinstance(b, torch.Tensor):
            near = {"equal_nan": True, **(close if b.is_floating_point() else {})}
            message = lambda m, text=text: f"{text}: {m}"  # noqa: E731
            torch.testing.assert_close(a, b, msg=message, **near)
        else:
            assert a == b, f"{text}: {a}, eager gives {b}"
