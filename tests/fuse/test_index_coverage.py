"""Checks run at every place that eager's do, also where a kernel reads only some of the values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from litz.fuse.index_coverage import walked
from litz.ir.dtypes import F32
from litz.ir.expr import Expr, apply, axis, integer, load, size
from litz.ir.index import ONE, ZERO
from litz.ir.program import Buffer
from tests.stages import compiled

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# The third index is out of range, and nobody reads what it finds.
SKIPPED: dict[str, tuple[type[Exception], Function]] = {
    "index": (IndexError, lambda x, i: x[i][:2] + 1),
    "one row": (IndexError, lambda x, i: x[i][0] * 2),
    "every other": (IndexError, lambda x, i: (x[i] * 2)[1::2] + 1),
    "index_select": (IndexError, lambda x, i: torch.index_select(x, 0, i)[:2] + 1),
    "embedding": (IndexError, lambda x, i: F.embedding(i, x)[:1] * 2),
    "gather": (RuntimeError, lambda x, i: torch.gather(x[:, 0], 0, i)[:2] + 1),
    "a chain": (IndexError, lambda x, i: ((x[i] * 2).t().exp()[:, :2] + 1).sum()),
    "flipped": (IndexError, lambda x, i: x[i].flip(0)[2:] + 1),
    "padded": (IndexError, lambda x, i: F.pad(x[i], (0, 0, 0, -2))),
    "reshaped": (IndexError, lambda x, i: x[i].reshape(2, 2, 3)[0] + 1),
    "two parts": (IndexError, lambda x, i: x[i][:1] + x[i][1:2]),
    "a product": (IndexError, lambda x, i: x[i][:2] @ x[:3]),
    "a divisor": (RuntimeError, lambda x, i: (i // (i - 7))[:2] + 1),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_an_index_whose_element_nobody_reads_is_refused(name: str) -> None:
    kind, function = SKIPPED[name]
    x, bad, good = torch.randn(5, 3), torch.tensor([0, 1, 7, 2]), torch.tensor([0, 1, 4, 2])
    with pytest.raises(kind):
        function(x, bad)
    fast = compiled(function)
    torch.testing.assert_close(fast(x, good), function(x, good))
    with pytest.raises(kind):
        fast(x, bad)


# Every index is read, if not every column: one kernel does all.
READ: dict[str, Function] = {
    "plainly": lambda x, i: x[i] * 2,
    "some columns": lambda x, i: x[i][:, :2] * 2,
    "transposed": lambda x, i: x[i].t() * 2,
    "flipped": lambda x, i: x[i].flip(0) * 2,
    "flat": lambda x, i: x[i].reshape(-1) * 2,
    "joined": lambda x, i: torch.cat([x[i], x * 2]),
    "padded": lambda x, i: F.pad(x[i], (1, 1, 2, 0)) * 2,
    "summed": lambda x, i: x[i].sum(0),
    "spread": lambda x, i: x[i][:, None] + x[None],
}


@pytest.mark.parametrize("name", READ)
def test_what_is_read_whole_is_still_one_kernel(name: str) -> None:
    fast, x, i = compiled(READ[name]), torch.randn(5, 3), torch.tensor([0, 1, 4, 2])
    torch.testing.assert_close(fast(x, i), READ[name](x, i))
    assert len(fast.reports[0].kernels) == 1
    with pytest.raises(IndexError):
        fast(x, i + 3)


def _at(*indices: Expr, shape: tuple[Expr, ...], guard: Expr | None = None) -> Expr:
    return load(Buffer("t", F32, shape, shape, "cpu"), indices, guard)


def test_digits_of_a_flat_index_walk_all_of_a_value() -> None:
    s, four = size("s0", 2), integer(4)
    place = (axis("i0", s), axis("i1", four))
    flat = axis("i0", apply("mul", s, four))
    digits = _at(apply("floordiv", flat, four), apply("mod", flat, four), shape=(s, four))
    assert walked(place, digits, frozenset([flat])) == frozenset(place)
    assert not walked(place, digits, frozenset())
    short = axis("i0", s)
    some = _at(apply("floordiv", short, four), apply("mod", short, four), shape=(s, four))
    assert not walked(place, some, frozenset([short]))


def test_a_part_of_an_axis_does_not_walk_it() -> None:
    s = size("s0", 2)
    place = (axis("i0", apply("add", s, ONE)), axis("i1", integer(3)))
    rows, columns = axis("i0", s), axis("i1", integer(3))
    shape = (place[0].extent, integer(3))
    both = frozenset([rows, columns])
    assert walked(place, _at(rows, columns, shape=shape), both) == {place[1]}
    assert walked(place, _at(ZERO, columns, shape=shape), both) == {place[1]}
    assert not walked(place, _at(rows, rows, shape=shape), both)
