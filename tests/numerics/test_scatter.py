"""Sums and products through scatter: made wide, rounded once. Eager's error stands beside."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from litz.ir.dtypes import F32
from litz.ir.program import Loop
from litz.lower import scatter
from tests.draws import generator
from tests.dynamic.symbolic import Symbolic
from tests.numerics.table import held, measured, numbers
from tests.stages import compiled, stages

HALF_DTYPES = [torch.bfloat16, torch.float16]
ROWS, WIDTH = 7, 12
# x of ROWS x WIDTH, an index of n rows, a source of n x WIDTH.
Scatter = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _wide(index: torch.Tensor) -> torch.Tensor:
    return index[:, None].expand(-1, WIDTH)


SCATTERS: dict[str, Scatter] = {
    "index_add": lambda x, i, s: x.index_add(0, i, s),
    "index_add of a row": lambda x, i, s: x[:, 0].index_add(0, i, s[:, 0]),
    "index_add, along the last": lambda x, i, s: x.T.index_add(1, i, s.T, alpha=2),
    "scatter_add": lambda x, i, s: x.scatter_add(0, _wide(i), s),
    "sum": lambda x, i, s: x.scatter_reduce(0, _wide(i), s, "sum"),
    "sum without": lambda x, i, s: x.scatter_reduce(0, _wide(i), s, "sum", include_self=False),
    "mean": lambda x, i, s: x.scatter_reduce(0, _wide(i), s, "mean"),
    "mean without": lambda x, i, s: x.scatter_reduce(0, _wide(i), s, "mean", include_self=False),
    "prod": lambda x, i, s: x.scatter_reduce(0, _wide(i), s, "prod"),
    "old sum": lambda x, i, s: x.scatter(0, _wide(i), s, reduce="add"),
    "number": lambda x, i, s: x.scatter(0, _wide(i), 0.1, reduce="add"),
    "product by a number": lambda x, i, s: x.scatter(0, _wide(i), 1.01, reduce="multiply"),
    "index_put": lambda x, i, s: x.index_put((i,), s, accumulate=True),
    "index_put of all": lambda x, i, s: x.view(-1).index_put((i,), s[:, 0], accumulate=True),
    "index_reduce": lambda x, i, s: x.index_reduce(0, i, s, "prod"),
    "put": lambda x, i, s: x.put(i, s[:, 0], accumulate=True),
}


def _exact(name: str, x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """In float64; a number is one of the half type."""
    if name in ("number", "product by a number"):
        number = torch.tensor(0.1 if name == "number" else 1.01, dtype=x.dtype).double()
        factors = number.expand(len(i), WIDTH)
        how = "sum" if name == "number" else "prod"
        return x.double().scatter_reduce(0, _wide(i), factors, how)
    return SCATTERS[name](x.double(), i, s.double())


def _index(n: int = 1500) -> torch.Tensor:
    return torch.randint(ROWS, (n,), generator=generator())


def _drawn(name: str, dtype: torch.dtype, n: int = 1500) -> tuple[torch.Tensor, ...]:
    """Of factors near one, all count."""
    mean, std = (1, 1 / 64) if name in ("prod", "index_reduce") else (0.5, 1)
    source = numbers(n, WIDTH, mean=mean, std=std, dtype=dtype, seed=1)
    return numbers(ROWS, WIDTH, dtype=dtype), _index(n), source


@pytest.mark.filterwarnings("ignore:The reduce argument", "ignore:index_reduce")
@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
@pytest.mark.parametrize("name", SCATTERS)
def test_scatters(name: str, dtype: torch.dtype) -> None:
    given = _drawn(name, dtype)
    (found,) = measured([_exact(name, *given)], [SCATTERS[name](*given)], [ours(name, *given)])
    held([found])
    # One rounding to the type, and what float32 loses on the way: no more than eager does.
    assert found.litz <= max(found.eager, 0.51), found


def ours(name: str, *given: torch.Tensor) -> torch.Tensor:
    run = compiled(SCATTERS[name])
    result: torch.Tensor = run(*given)
    assert not run.aten_ops
    return result


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
def test_a_thousand_ones(dtype: torch.dtype) -> None:
    """Of bfloat16, one more is lost at 256."""
    x, s = torch.zeros(ROWS, WIDTH, dtype=dtype), torch.ones(1000, WIDTH, dtype=dtype)
    index = torch.full((1000,), 3)
    for name in ("index_add", "scatter_add", "sum", "index_put"):
        found = ours(name, x, index, s)
        assert found[3].eq(1000).all() and not found[[0, 1, 2, 4, 5, 6]].any()


@pytest.mark.parametrize("name", ["index_add", "sum", "mean", "prod", "index_put", "number"])
def test_both_targets_scatter_into_float32(name: str) -> None:
    """Kernels of a GPU come from the same loops."""
    for dtype in HALF_DTYPES:
        body = stages(SCATTERS[name], *_drawn(name, dtype)).program.body
        stores = [s for loop in body if isinstance(loop, Loop) for s in loop.stores]
        combining = [s for s in stores if s.mode in ("add", "mul") and s.buffer.dtype.is_float]
        assert combining and all(s.buffer.dtype is F32 for s in combining)


FEW = ["index_add", "scatter_add", "old sum", "number", "product by a number", "index_put"]


@pytest.mark.filterwarnings("ignore:The reduce argument")
@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("name", FEW)
def test_few_points_widen_what_they_meet_alone(
    name: str, filled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into many rows, of which a few are met again and again: the same bits as if all were wide."""
    x = numbers(3000, WIDTH, dtype=torch.bfloat16)
    i, s = _index(200), numbers(200, WIDTH, dtype=torch.bfloat16, seed=1)

    def run(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return SCATTERS[name](torch.full_like(x, 0.5) if filled else x, i, s)

    def puts(few: int) -> int:
        monkeypatch.setattr(scatter, "FEW", few)
        body = stages(run, x, i, s).program.body
        stores = (store for loop in body if isinstance(loop, Loop) for store in loop.stores)
        return sum(store.mode == "put" for store in stores)

    assert (puts(scatter.FEW), puts(1 << 40)) == (2, 0)
    dense = compiled(run)(x, i, s)
    monkeypatch.undo()
    few = compiled(run)
    assert torch.equal(few(x, i, s), dense)
    with pytest.raises(Exception) as eager:
        run(x, i + 2995, s)
    with pytest.raises(eager.type):
        few(x, i + 2995, s)
    assert torch.equal(few(x, i, s), dense)


def test_sizes_that_only_a_call_knows() -> None:
    symbolic = Symbolic(SCATTERS["index_add"])
    for n in (1000, 3, 2000):
        given = _drawn("index_add", torch.bfloat16, n)
        exact, eager = _exact("index_add", *given), SCATTERS["index_add"](*given)
        (found,) = measured([exact], [eager], [symbolic(*given)])
        assert found.litz <= max(found.eager, 0.51), found


@pytest.mark.filterwarnings("ignore:The reduce argument")
@pytest.mark.parametrize("name", ["index_add", "product by a number", "index_put"])
def test_few_points_of_sizes_that_only_a_call_knows(name: str) -> None:
    """Few beside many rows at first, then more of them than rows: the same graph serves both."""
    symbolic = Symbolic(SCATTERS[name])
    for rows, n in ((3000, 200), (40, 500), (5000, 3)):
        x = numbers(rows, WIDTH, dtype=torch.bfloat16)
        given = x, _index(n), numbers(n, WIDTH, dtype=torch.bfloat16, seed=1)
        exact, eager = _exact(name, *given), SCATTERS[name](*given)
        (found,) = measured([exact], [eager], [symbolic(*given)])
        assert found.litz <= max(found.eager, 0.51), (rows, n, found)
    assert symbolic.graphs == 1


READS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "gather": lambda w, i: w.gather(0, _wide(i)),
    "index_select": lambda w, i: w.index_select(0, i),
    "index": lambda w, i: w[i],
    "take": lambda w, i: w.take(i),
    "embedding": lambda w, i: F.embedding(i, w),
    "embedding_bag": lambda w, i: F.embedding_bag(i.view(-1, 10), w, mode="sum"),
    "expand": lambda w, i: w[None].expand(len(i), ROWS, WIDTH) * 1,
    "upsample": lambda w, i: F.interpolate(w[None, None], scale_factor=30),
    "max_pool": lambda w, i: F.max_pool2d(w[None], 5, 1),
}


def _gradient(
    name: str, read: Callable[..., torch.Tensor], w: torch.Tensor, i: torch.Tensor
) -> torch.Tensor:
    w = w.detach().clone().requires_grad_()
    result = read(w, i)
    dtype = (
        w.dtype if w.dtype in HALF_DTYPES else torch.float16 if name == "f16" else torch.bfloat16
    )
    weights = numbers(*result.shape, mean=0.5, seed=3).to(dtype).to(w.dtype)
    return torch.autograd.grad(result, w, weights)[0]


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
@pytest.mark.parametrize("name", READS)
def test_gradients(name: str, dtype: torch.dtype) -> None:
    w, index = numbers(ROWS, WIDTH, dtype=dtype), _index()
    torch._dynamo.reset()
    run = torch.compile(READS[name], backend="litz", options={"on_error": "raise"})
    kind = "f16" if dtype is torch.float16 else "bf16"
    exact = _gradient(kind, READS[name], w.double(), index)
    eager = _gradient(kind, READS[name], w, index)
    (found,) = measured([exact], [eager], [_gradient(kind, run, w, index)])
    held([found])
    assert found.litz <= max(found.eager, 0.51), found
