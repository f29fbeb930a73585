"""View ops against eager: as results (which share memory), and as operands of a loop."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from tests.lower.agreement import Function, agree, numbers

VIEWS: dict[str, Function] = {
    "view": lambda x: x.view(6, 20),
    "view -1": lambda x: x.view(-1, 5),
    "view ones": lambda x: x.view(1, 4, 1, 30, 1),
    "reshape": lambda x: x.reshape(8, 15),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(-1, 0),
    "mT": lambda x: x.mT,
    "movedim": lambda x: x.movedim(0, -1),
    "swapaxes": lambda x: x.swapaxes(1, 2),
    "t": lambda x: x[0].t(),
    "expand": lambda x: x[:, :1].expand(4, 7, 5),
    "expand new": lambda x: x.expand(2, 4, 6, 5),
    "expand_as": lambda x: x[:1, :1].expand_as(x),
    "slice": lambda x: x[1:3, 2:, :-1],
    "slice step": lambda x: x[::2, 1::3, ::2],
    "slice past the end": lambda x: x[1:99, -3:99],
    "slice of nothing": lambda x: x[3:1],
    "select": lambda x: x[1],
    "select last": lambda x: x[:, -1],
    "select two": lambda x: x[1, :, -2],
    "narrow": lambda x: x.narrow(1, 2, 3),
    "split": lambda x: x.split(4, 1),
    "split sizes": lambda x: x.split([1, 2, 3], 1),
    "chunk": lambda x: x.chunk(3, 1),
    "tensor_split": lambda x: x.tensor_split(4, 1),
    "unbind": lambda x: x.unbind(1),
    "squeeze": lambda x: x[:, :1].squeeze(),
    "squeeze dim": lambda x: x[:, :1].squeeze(1),
    "squeeze nothing": lambda x: x.squeeze(0),
    "squeeze dims": lambda x: x[:1, :1].squeeze((0, 1)),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "unsqueeze middle": lambda x: x.unsqueeze(1),
    "none and ellipsis": lambda x: x[None, ..., None, 0],
    "diagonal": lambda x: x.diagonal(0, 1, 2),
    "diagonal above": lambda x: x.diagonal(1, 0, 1),
    "diagonal below": lambda x: x.diagonal(-2, 2, 0),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "unfold overlapping": lambda x: x.unfold(2, 2, 1),
    "as_strided": lambda x: x.as_strided((3, 4), (7, 2), 5),
    "as_strided overlapping": lambda x: x.as_strided((5, 6), (1, 2)),
    "detach": lambda x: x.detach(),
    "alias": lambda x: torch.ops.aten.alias(x),
    "chained": lambda x: x.transpose(0, 2)[1:4].unfold(1, 2, 2)[..., 0].permute(2, 0, 1),
    "reshape of a transpose": lambda x: x.mT[1:].mT[:, :4].squeeze(0),
}
COPIES: dict[str, Function] = {
    "reshape transposed": lambda x: x.transpose(0, 1).reshape(4, 30),
    "flatten permuted": lambda x: x.permute(2, 0, 1).flatten(),
    "contiguous": lambda x: x.mT.contiguous(),
    "flip": lambda x: x.flip(0, 2),
    "fliplr": lambda x: x.fliplr(),
    "rot90": lambda x: x.rot90(1, (1, 2)),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "repeat new": lambda x: x.repeat(2, 1, 1, 2),
    "tile": lambda x: x.tile(2, 2),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 1),
    "roll": lambda x: x.roll(2, 1),
    "roll two": lambda x: x.roll((1, -2), (0, 2)),
    "roll flat": lambda x: x.roll(7),
    "tril": lambda x: x.tril(1),
    "triu": lambda x: x.triu(-1),
    "diag": lambda x: x[0, 0].diag(),
    "diag_embed": lambda x: x[0].diag_embed(),
    "stack": lambda x: torch.stack([x, x + x], 1),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[0, :, 0], indexing="ij"),
    "clone": lambda x: x.mT.clone(),
    "clone row-major": lambda x: x.mT.clone(memory_format=torch.contiguous_format),
}
ROW_MAJOR = numbers(torch.float32, 4, 6, 5)


def test_a_view_of_an_input_shares_its_memory() -> None:
    agree(VIEWS, ROW_MAJOR)


def test_a_view_of_a_result_shares_its_memory() -> None:
    """All views of one result lie in it, with eager's strides and offset."""

    def views(x: torch.Tensor) -> list[torch.Tensor]:
        y = x + 1
        found = [t for f in VIEWS.values() for t in _listed(f(y))]
        return [y, *found]

    agree(views, ROW_MAJOR)


def _listed(result: torch.Tensor | tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("table", [VIEWS, COPIES], ids=["views", "copies"])
def test_an_operand_is_read_through_its_view(
    table: dict[str, Function], dtype: torch.dtype
) -> None:
    operand = {
        name: lambda x, f=f: [torch.maximum(t, t[..., :1]) for t in _listed(f(x)) if t.dim()]
        for name, f in table.items()
    }
    agree(operand, numbers(dtype, 4, 6, 5))


@pytest.mark.parametrize(
    "place",
    [
        lambda: numbers(torch.float32, 5, 6, 4).permute(2, 1, 0),
        lambda: numbers(torch.float32, 9, 7, 11)[1:9:2, 1:, 1::2],
        lambda: numbers(torch.float32, 1, 6, 1).expand(4, 6, 5),
        lambda: numbers(torch.float32, 50).as_strided((4, 6, 5), (5, 3, 2), 4),
    ],
    ids=["permuted", "sliced", "expanded", "overlapping"],
)
def test_layouts_of_the_input(place: Function) -> None:
    dense = {n: f for n, f in {**VIEWS, **COPIES}.items() if "view" not in n and "strided" not in n}
    operand = {n: lambda x, f=f: [t * 2 for t in _listed(f(x))] for n, f in dense.items()}
    operand |= {"sum": lambda x: x.sum(1), "softmax": lambda x: x.softmax(0)}
    agree(operand, place())


def test_channels_last_goes_in_and_out() -> None:
    x = numbers(torch.float32, 2, 3, 4, 5).to(memory_format=torch.channels_last)
    run = agree({"one": lambda x: x.relu() * 2, "two": lambda x: x + x.mean((2, 3), True)}, x)
    assert run(x)[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (0,), (3, 0, 2), (0, 0)], ids=str)
def test_few_elements(shape: tuple[int, ...]) -> None:
    table: dict[str, Function] = {
        "pointwise": lambda x: (x * 2).exp(),
        "view": lambda x: x.reshape(-1) + 1,
        "new": lambda x: x[None] + 1,
        "sum": lambda x: x.sum(),
        "prod": lambda x: x.prod(),
        "any": lambda x: (x > 0).any(),
        "mean": lambda x: x.mean(),
        "stack": lambda x: torch.stack([x, x]),
        "flip": lambda x: x.flip(list(range(x.dim()))),
        "softmax": lambda x: x.softmax(0) if x.dim() else x,
        "where": lambda x: torch.where(x > 0, x, 0),
    }
    agree(table, numbers(torch.float32, *shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_a_window_outside_of_what_is_given_is_eagers(dtype: torch.dtype) -> None:
    """An input that is part of a larger tensor: no copy of it would hold all of the window."""

    def run(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((8,), (1,), 5) + 1

    x = torch.arange(20).to(dtype)
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed, match="its window reaches outside"):
        torch.compile(run, backend="litz", options={"on_error": "raise"})(x[3:7])
    torch._dynamo.reset()
    fast = torch.compile(run, backend="litz")
    assert torch.equal(fast(x[3:7]), run(x[3:7]))
    torch._dynamo.reset()
    inside = torch.compile(run, backend="litz", options={"on_error": "raise"})
    assert torch.equal(inside(x[3:14]), run(x[3:14]))


@pytest.mark.parametrize("start", [None, 1, 2, 5])
def test_a_scattered_window_counts_from_eagers_memory(start: int | None) -> None:
    """Also of an input, or of what is made of it, that begins inside of a larger tensor."""

    def run(x: torch.Tensor, new: torch.Tensor) -> list[torch.Tensor]:
        window = ((2,), (2,), start)
        made = (x * 2)[1:]
        return [torch.as_strided_scatter(x, new, *window),
                torch.as_strided_scatter(made, new, *window)]  # fmt: skip

    base, new = numbers(torch.float32, 12), numbers(torch.float32, 2, seed=1)
    agree(run, base[1:11], new)
