"""One compile serves every size: programs over many sizes, against eager and the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from litz import backend
from litz.capture import decompositions, is_symbolic
from litz.compiler import compile_graph
from litz.config import snapshot
from litz.errors import InternalError, SizeUnknown
from tests import draws
from tests.dynamic.symbolic import Symbolic, marked

# Around the lanes of a vector, primes, and what is larger than a task.
SIZES = [(7, 9), (2, 2), (2, 17), (3, 16), (31, 5), (16, 15), (33, 64), (5, 1031)]


def _rows(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2 + 1, -1)


def _norm(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()


def _columns(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sum(0), x.amax(0), x.argmax(1), x.mean()


def _flattened(x: torch.Tensor) -> torch.Tensor:
    b, s = x.shape
    y = x.reshape(b * s, 1).expand(b * s, 4).relu().view(b, s, 2, 2)
    return y.transpose(1, 2) + torch.arange(s).view(1, 1, s, 1)


def _joined(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x.flip(1), x * 2], 1) * F.pad(x, (1, 2)).sum()


def _crossed(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous() + 1


def _scanned(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(1) + torch.tril(x)


def _looked_up(x: torch.Tensor) -> torch.Tensor:
    i = torch.arange(x.shape[1] - 1, -1, -1)
    return x[:, i] + x.index_select(1, i).gather(1, i.expand(x.shape[0], -1))


def _counted(x: torch.Tensor) -> tuple[Any, ...]:
    b, s = x.shape
    return x * (b * s) / s, x.new_full((s // 2 + 1,), b), b * s + 1


PROGRAMS: list[Callable[..., Any]] = [
    _rows, _norm, _columns, _flattened, _joined, _crossed, _scanned, _looked_up, _counted,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_program_of_two_symbolic_sizes(program: Callable[..., Any]) -> None:
    draws.seed(0)
    symbolic = Symbolic(program)
    for shape in SIZES:
        symbolic.check(torch.randn(shape), rtol=1e-4, atol=1e-4)
    assert symbolic.graphs == 1 and not symbolic.aten_ops


def test_every_length_from_two_to_forty() -> None:
    """Tails of every length, of rows that are reduced and of rows that are not."""
    symbolic = Symbolic(lambda x: (torch.softmax(x, -1), x.exp(), x.sum(0)), dynamic=None)
    for n in range(2, 41):
        symbolic.check(marked(torch.randn(3, n), 1), interpret=False)
    assert symbolic.graphs == 1 and symbolic.frames == 1


def test_products_of_any_number_of_rows() -> None:
    """Each count of rows that ends a block, several chunks, and what follows a product."""
    draws.seed(0)
    layer, norm = torch.nn.Linear(48, 80), torch.nn.LayerNorm(80)
    symbolic = Symbolic(lambda x: norm(F.gelu(layer(x))))
    with torch.no_grad():
        for rows in [5, *range(2, 15), 64, 97, 500]:
            symbolic.check(torch.randn(2, rows, 48), interpret=False)
    assert symbolic.graphs == 1 and not symbolic.aten_ops


def test_products_whose_sum_is_of_any_length() -> None:
    """Weights times values: neither operand is a parameter, and the columns are known."""
    draws.seed(0)

    def program(p: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return p @ v, torch.relu(v.transpose(1, 2) @ v) + 1, p.transpose(1, 2) @ v

    symbolic = Symbolic(program, dynamic=None)
    for n in (65, 2, 3, 16, 17, 129, 700):
        p, v = marked(torch.randn(3, n, n), 1, 2), marked(torch.randn(3, n, 64), 1)
        symbolic.check(p, v, interpret=False, rtol=1e-4, atol=1e-3)
    assert symbolic.graphs == 1 and symbolic.frames == 1 and not symbolic.aten_ops


@pytest.mark.parametrize("kind", ["plain", "causal", "masked", "row"])
def test_attention_of_any_length(kind: str) -> None:
    draws.seed(0)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=kind == "causal")

    symbolic = Symbolic(attend, dynamic=None)
    for n in (9, 2, 7, 8, 15, 16, 17, 33, 64, 65, 71, 72, 73, 130):
        q, k, v = (marked(torch.randn(2, 3, n, 16), 2) for _ in range(3))
        mask = marked(torch.randn(2, 1, n, n), 2, 3) if kind == "masked" else None
        q = torch.randn(2, 3, 1, 16) if kind == "row" else q
        symbolic.check(q, k, v, mask, interpret=False)
    assert symbolic.graphs == 1 and not symbolic.aten_ops


def test_heads_that_share_keys() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        b, heads, s, d = k.shape
        wide = k[:, :, None].expand(b, heads, 2, s, d).reshape(b, heads * 2, s, d)
        return F.scaled_dot_product_attention(q, wide, wide)

    symbolic = Symbolic(attend, dynamic=None)
    for b, n in ((3, 9), (2, 40)):
        q, k = (marked(torch.randn(b, h, n, 16), 0, 2) for h in (4, 2))
        symbolic.check(q, k, interpret=False)
    assert symbolic.graphs == 1 and not symbolic.aten_ops


def test_aten_calls_get_the_sizes_of_the_call() -> None:
    """Windows on the arena, fresh results and operands of ATen, each as large as the call says."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = torch.linalg.qr((x * 2).t() @ x + torch.eye(x.shape[1]))[1]
        return torch.sort(y + 1, 1)[0] * x.shape[0]

    symbolic = Symbolic(program)
    for shape in SIZES[:7]:
        symbolic.check(torch.randn(shape), interpret=False, rtol=1e-3, atol=1e-3)
    assert symbolic.graphs == 1 and {"linalg_qr", "sort"} <= symbolic.aten_ops


def test_an_input_is_updated_in_place() -> None:
    def update(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y.sum(1, keepdim=True))
        return x * 2

    symbolic = Symbolic(update)
    for n in (5, 2, 40, 17):
        symbolic.check(torch.randn(n, 3), torch.randn(n, 6), interpret=False)
    assert symbolic.graphs == 1


def test_threads_call_with_sizes_of_their_own() -> None:
    symbolic = Symbolic(lambda x: torch.softmax(x @ x.t(), -1).cumsum(0) @ x)
    symbolic(torch.randn(5, 7))

    def once(n: int) -> bool:
        x = torch.randn(n, 7)
        return torch.allclose(symbolic(x), symbolic.function(x), rtol=1e-4, atol=1e-4)

    # While it calls, Dynamo of torch 2.11 sets these for all threads, and may put back what another
    # thread has set: from then on every size of every program would be symbolic.
    flags = ("assume_static_by_default", "automatic_dynamic_shapes")
    before = {name: getattr(torch._dynamo.config, name) for name in flags}
    with torch._dynamo.config.patch(before), ThreadPoolExecutor(4) as pool:
        assert all(pool.map(once, [3, 90, 17, 4, 64, 5, 33, 8] * 5))
    assert symbolic.graphs == 1


def test_sizes_zero_and_one_are_graphs_of_their_own() -> None:
    """As torch has it: both are compiled for themselves, all others together."""
    symbolic = Symbolic(lambda x: torch.softmax(x, 0) + 1)
    for n in (5, 1, 0, 7, 1, 0, 30):
        symbolic.check(torch.randn(n), interpret=False)
    assert symbolic.frames == 3


def test_automatic_after_the_first_change() -> None:
    symbolic = Symbolic(lambda x: x.sum(1) * 2, dynamic=None)
    for n in (4, 5, 6, 7, 30):
        symbolic.check(torch.randn(3, n), interpret=False)
    assert symbolic.frames == 2  # the first size, then all of them
    assert Symbolic(lambda x: x + 1, dynamic=False).notes.graphs == []


def test_debug_index_asserts_hold_symbolic_accesses_against_their_buffers() -> None:
    symbolic = Symbolic(_joined, debug_index_asserts=True)
    for shape in SIZES[:4]:
        symbolic.check(torch.randn(shape), interpret=False, rtol=1e-4, atol=1e-4)


def test_symbolic_floats_and_sizes_that_are_no_polynomials() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[-1]
        wide = F.interpolate(x, scale_factor=1.5, mode="bilinear")
        return wide, x / n**0.5 + 1.0 / n, x[..., n // 2 :], x.chunk(2, -1)[0] * max(n - 3, 2)

    symbolic = Symbolic(program)
    for n in (6, 8, 13, 31):
        symbolic.check(torch.randn(1, 2, n, n), interpret=False)
    assert symbolic.graphs == 1 and not symbolic.aten_ops


def test_remainders_of_floats() -> None:
    """In a kernel, in a size, and as a result."""

    def program(x: torch.Tensor) -> tuple[Any, ...]:
        rest = x.shape[0] % 2.5
        return x * rest, x.new_zeros(int(rest * 4) + 3), rest + 1

    symbolic = Symbolic(program)
    for n in (12, 13, 19):
        symbolic.check(torch.randn(n), interpret=False)
    assert symbolic.graphs == 1 and not symbolic.aten_ops


def test_a_graph_that_needs_its_sizes_is_compiled_for_each_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(module: Any, *given: Any) -> Any:
        if is_symbolic(module):
            raise SizeUnknown("s0", "a test says so")
        return compile_graph(module, *given)

    monkeypatch.setattr(backend, "compile_graph", refuses)
    symbolic = Symbolic(lambda x: x.sum(1) + 1)
    for n in (5, 8, 5, 9):
        symbolic.check(torch.randn(2, n), interpret=False)
    (why,) = symbolic.notes.by_size
    assert "a test says so" in why.reason and len(symbolic.notes.graphs) == 3
    assert "compiled for each size" in str(symbolic.notes)


def test_an_error_of_ours_is_no_reason_to_compile_for_each_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any) -> Any:
        raise InternalError("broken")

    monkeypatch.setattr(backend, "compile_graph", fails)
    with pytest.raises(Exception, match="broken"):
        Symbolic(lambda x: x + 1)(torch.randn(5))


@pytest.mark.parametrize("old_torch", [False, True])
def test_a_rule_that_asks_for_a_size_is_left_to_aten_and_says_so(
    old_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if old_torch:  # before 2.13 it has no word for "no guards now", nor this one
        for name in ("error_on_new_guards", "optimization_hint"):
            monkeypatch.delattr(ShapeEnv, name, raising=False)
    symbolic = Symbolic(lambda x: F.pad(x * 2, (1, 1), mode="reflect") + 1)
    for n in (14, 20):
        symbolic.check(torch.randn(2, 3, n), interpret=False)
    assert symbolic.graphs == 1 and len(symbolic.aten_ops) == 1
    reasons = [d.reason for d in symbolic.notes.graphs[0].decisions]
    assert any("left to ATen: the value of the size" in reason for reason in reasons)


# -- sizes that a guard settles --------------------------------------------------------------------


def _halves(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Of three rows, or of two: one in two of them, from the second on, is one row."""
    half = x[1::2]
    return [half / y, y / half, half.expand(y.shape), half.squeeze(0) + y]


def _diagonals(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Gave what lies behind the diagonal."""
    corner = x[:, :2, None].expand(-1, -1, 4).diagonal(1, 1, 0)[..., ::2]
    return [corner / y[:, 0], y[:, 0] - corner]


@pytest.mark.parametrize("program", [_halves, _diagonals], ids=lambda p: p.__name__)
def test_a_size_that_a_guard_says_is_one_broadcasts(program: Callable[..., Any]) -> None:
    """Torch leaves (s0 - 1) // 2 as it is, though only graphs where it is one get here."""
    torch._dynamo.reset()
    options = {"on_error": "raise", "debug_poison_memory": True}
    run = torch.compile(program, backend="litz", dynamic=True, options=options)
    for rows, columns in ((3, 5), (3, 17), (2, 5), (3, 33)):
        x = torch.randn(rows, columns, generator=draws.generator(rows))
        y = torch.randn(7, columns, generator=draws.generator(columns))
        for found, expected in zip(run(x, y), program(x, y), strict=True):
            torch.testing.assert_close(found, expected)


def test_a_graph_of_each_size_keeps_what_only_acts() -> None:
    """A square root of a size is no product of sizes, so each size is a graph of its own."""
    noted: list[int] = []

    @torch.library.custom_op("litz_by_size::note", mutates_args=())
    def note(x: torch.Tensor, size: int) -> None:
        noted.append(size)

    note.register_fake(lambda x, size: None)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        torch._assert_async(x.sum() > 0, "a positive sum")
        note(x, x.shape[0])
        return x[: int(x.shape[0] ** 0.5)].sum(), x * 2

    run = torch.compile(function, backend="litz", dynamic=True, options={"on_error": "raise"})
    for size in (9, 16, 16):
        run(torch.ones(size))
    assert noted == [9, 16, 16]
    with pytest.raises(RuntimeError, match="a positive sum"):
        run(-torch.ones(9))


@pytest.mark.parametrize("grown", [lambda x: torch.cat([x, x[:1]]), lambda x: torch.cat([x, x])])
def test_a_size_that_is_only_shown_as_a_sum_or_a_multiple_is_solved(grown: Any) -> None:
    """A graph that is given `s0 + 1` or `2 * s0` rows, and nothing that shows s0 itself."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    base = mode.from_tensor(torch.randn(5, 4))
    with mode:
        given = grown(base)
    assert base.shape[0].node.expr not in [n.node.expr for n in given.shape]  # type: ignore

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.softmax(0) * 2 + x.shape[0]]

    module = make_fx(program, tracing_mode="real", decomposition_table=decompositions())(given)
    graph, _ = compile_graph(module, "inference", snapshot({}))
    for rows in (3, 5, 8):
        x = grown(torch.randn(rows, 4))
        (mine,) = graph([x])
        torch.testing.assert_close(mine, program(x)[0])
