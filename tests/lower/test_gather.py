"""Reads through indices against eager: gather, embedding, index_select, x[...]; bad indices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.errors import OutOfRange
from tests.lower.agreement import DTYPES, Function, agree, numbers
from tests.stages import compiled

READS: dict[str, Function] = {
    "rows": lambda x, i, j: x[i],
    "columns": lambda x, i, j: x[:, i],
    "last": lambda x, i, j: x[..., i],
    "two adjacent": lambda x, i, j: x[i, j],
    "two apart": lambda x, i, j: x[i, :, j],
    "middle two": lambda x, i, j: x[:, i, j],
    "three": lambda x, i, j: x[i, j, i],
    "broadcast": lambda x, i, j: x[i[:, None], j],
    "with a number": lambda x, i, j: x[1, i],
    "with a slice": lambda x, i, j: x[1:, i, ::2],
    "with none": lambda x, i, j: x[i, None],
    "of rank two": lambda x, i, j: x[i.view(2, 2)],
    "negative": lambda x, i, j: x[-i - 1, -j - 1],
    "small integers": lambda x, i, j: x[i.int()],
    "computed": lambda x, i, j: x[(i * 3 + j) % 4],
    "of a view": lambda x, i, j: x.transpose(0, 2)[i],
    "of a value": lambda x, i, j: (x * 2 + 1)[i],
    "of an expanded": lambda x, i, j: x[:1].expand(4, 5, 6)[:, i],
    "index_select": lambda x, i, j: x.index_select(1, i),
    "index_select 0-d": lambda x, i, j: x.index_select(1, i[0]),
    "embedding": lambda x, i, j: F.embedding(i.view(2, 2), x[0]),
    "embedding padded": lambda x, i, j: F.embedding(i, x[0], padding_idx=0),
    "gather": lambda x, i, j: x.gather(0, i.view(4, 1, 1).expand(4, 2, 3)),
    "gather last": lambda x, i, j: x.gather(2, i.view(1, 1, 4).expand(2, 5, 4)),
    "take_along_dim": lambda x, i, j: x.take_along_dim(x.argsort(1), 1),
    "take": lambda x, i, j: x.take(i * 7),
    "fused behind": lambda x, i, j: x[i].sum(1) + x[j].amax(1),
    "guarded": lambda x, i, j: torch.cat([x[i], x[j + 1 - 1]], 1),
    "of an index": lambda x, i, j: x[i[j]],
    "made here": lambda x, i, j: x[torch.tensor([0, 3, -1])],
    "counted": lambda x, i, j: x[torch.arange(4), torch.arange(4) + 1],
}
FIRST, SECOND = torch.tensor([0, 2, 1, 2]), torch.tensor([3, 0, 3, 1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reads(dtype: torch.dtype) -> None:
    table = dict(READS)
    if dtype is torch.bool:
        del table["of a value"], table["fused behind"]
    agree(table, numbers(dtype, 4, 5, 6), FIRST, SECOND, aten=["sort"], wide=True)


BAD: dict[str, Function] = {
    "rows": lambda x, i: x[i],
    "columns": lambda x, i: x[:, i],
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "embedding": lambda x, i: F.embedding(i, x),
    "of a value": lambda x, i: (x.sin() + 1)[i] * 2,
    "of constants": lambda x, i: torch.zeros(9, 9)[i] + x[0, 0],
    "of a broadcast": lambda x, i: (x[:1] * torch.ones(9, 1))[i],
    "in a sum": lambda x, i: x[i].sum(),
    "in a part": lambda x, i: torch.cat([x[i], x]),
    "in a mask": lambda x, i: torch.where(x[:, 0] > 100, x[i, 0], x[:, 0]) if len(i) == 9 else x[i],
}


@pytest.mark.parametrize("length", [1, 9, 33])
@pytest.mark.parametrize("case", BAD)
def test_an_index_outside_raises(case: str, length: int) -> None:
    """And leaves the process and the next call as they were."""
    x, good = numbers(torch.float32, 9, 9), torch.arange(length) % 9
    run = compiled(BAD[case])
    torch.testing.assert_close(run(x, good), BAD[case](x, good))
    for bad in (9, 10**12, -10, -(2**63)):
        wrong = good.clone()
        wrong[-1] = bad
        refused = eager_refuses(BAD[case], x, wrong)
        with pytest.raises(OutOfRange, match=f"^index {bad} is ") as found:
            run(x, wrong)
        assert isinstance(found.value, refused)
        assert "with size 9 in aten." in str(found.value)
    torch.testing.assert_close(run(x, good), BAD[case](x, good))


@pytest.mark.parametrize("case", ["index_select", "gather", "embedding"])
def test_negative_indices_are_outside_where_eager_says_so(case: str) -> None:
    run, x, wrong = compiled(BAD[case]), numbers(torch.float32, 9, 9), torch.tensor([1, -1])
    with pytest.raises(eager_refuses(BAD[case], x, wrong), match=r"^index -1 is out of") as found:
        run(x, wrong)
    assert "Allowed are 0 to 8." in str(found.value)


ONE_ROW = {
    "index": lambda x, i: x[i],
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "index_select": lambda x, i: x.index_select(0, i),
    "along one": lambda x, i: x.t().index_select(1, i),
    "embedding": lambda x, i: F.embedding(i, x),
    "a number": lambda x, i: x[0, 0].gather(0, i),
    "one of a number": lambda x, i: x[0, 0].index_select(0, i[:1]),
    "index_put": lambda x, i: x.index_put((i,), torch.tensor(1.0)),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
    "into a number": lambda x, i: x[0, 0].scatter_add(0, i, torch.ones(len(i))),
    "expanded": lambda x, i: x.expand(1, 9)[i],
}


@pytest.mark.parametrize("case", ONE_ROW)
def test_a_dimension_of_one_is_checked_too(case: str) -> None:
    """What is read there does not depend on the index, which may be wrong all the same."""
    run, x = compiled(ONE_ROW[case]), numbers(torch.float32, 1, 9)
    good = torch.zeros(3, dtype=torch.int64)
    torch.testing.assert_close(run(x, good), ONE_ROW[case](x, good))
    wrong = torch.tensor([1, 0, 0])
    refused = eager_refuses(ONE_ROW[case], x, wrong)
    with pytest.raises(refused, match=r"^index 1 is out of") as found:
        run(x, wrong)
    assert "with size 1 in aten." in str(found.value)


def eager_refuses(function: Any, *inputs: torch.Tensor) -> type[Exception]:
    """The class of what eager raises."""
    with pytest.raises(Exception) as found:
        function(*inputs)
    return found.type


def test_what_a_sum_leaves_out_is_checked_too() -> None:
    """A branch around points that change nothing must not hide eager's error."""

    def some(x: torch.Tensor, i: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        here = (torch.arange(9) < 5)[:, None]
        return torch.where(here, x[i] + (i // d)[:, None], 0.0).sum(0)

    run, x, i = compiled(some), numbers(torch.float32, 9, 200), torch.arange(9)
    torch.testing.assert_close(run(x, i, i + 1), some(x, i, i + 1))
    with pytest.raises(IndexError):
        run(x, i.clone().index_fill_(0, torch.tensor(8), 9), i + 1)
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        run(x, i, i - 8)


def test_an_index_is_not_checked_where_it_is_not_read() -> None:
    """In the other half of a join the index tensor is not read, so nothing is out of range."""

    def joined(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.index_select(0, i + 3), x])

    agree(joined, numbers(torch.float32, 3), torch.tensor([-3, -2, -1]))
