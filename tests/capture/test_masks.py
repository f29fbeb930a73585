"""Masks of attention that a program makes from constants: dropped, named causal, or laid out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from litz.capture import simplify_masks
from litz.capture.masks import ATTENTION

Q = torch.randn(2, 3, 6, 8)


def _positions() -> tuple[torch.Tensor, torch.Tensor]:
    row = torch.arange(6)
    return row[None, None, :, None], row[None, None, None, :]


def everything(q: torch.Tensor) -> torch.Tensor:
    rows, _ = _positions()
    return F.scaled_dot_product_attention(q, q, q, (rows >= 0).expand(2, 1, 6, 6))


def nothing_added(q: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, q, q, attn_mask=torch.zeros(6, 6))


def causal(q: torch.Tensor) -> torch.Tensor:
    rows, columns = _positions()
    packed = (torch.diff(torch.arange(6)[None], prepend=torch.tensor([[-1]])) != 1).cumsum(-1)
    mask = (columns <= rows) & (packed[0][rows] == packed[0][columns])
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask.expand(2, -1, 6, 6))


def causal_by_methods(q: torch.Tensor) -> torch.Tensor:
    rows, columns = _positions()
    mask = columns.__le__(rows).__and__(rows.__getitem__(0).__eq__(rows[0]))
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def written_by_an_operator(q: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask.__iand__(torch.arange(6) < 4)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def causal_shifted(q: torch.Tensor) -> torch.Tensor:
    columns = torch.arange(6) - 1
    columns += 1
    return F.scaled_dot_product_attention(q, q, q, attn_mask=columns <= torch.arange(6)[:, None])


def shifted_twice(q: torch.Tensor) -> torch.Tensor:
    columns = torch.arange(6)
    shown = columns
    columns += 1
    shown += 1
    mask = columns <= torch.arange(6)[:, None] + 2
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def shifted_below_a_view(q: torch.Tensor) -> torch.Tensor:
    columns = torch.arange(6)
    row = columns[None]
    columns += 1
    return F.scaled_dot_product_attention(q, q, q, attn_mask=row <= torch.arange(6)[:, None] + 1)


def shifted_afterwards(q: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(6, 6)
    result = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    mask -= 1
    return result + mask.sum()


def causal_added(q: torch.Tensor) -> torch.Tensor:
    mask = torch.full((6, 6), float("-inf")).triu(1)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def barely_hidden(q: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, q, q, attn_mask=torch.full((6, 6), -9.0).triu(1))


def window(q: torch.Tensor) -> torch.Tensor:
    rows, columns = _positions()
    mask = (columns <= rows) & (columns > rows - 3)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def written_to(q: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[2:, 1] = False
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def _attend(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def _all() -> torch.Tensor:
    return torch.ones(6, 6, dtype=torch.bool)


def written_through_narrow(q: torch.Tensor) -> torch.Tensor:
    mask = _all()
    mask.narrow(1, 2, 4).fill_(False)
    return _attend(q, mask)


def written_through_diagonal(q: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(6, 6)
    mask.diagonal().fill_(3.0)
    return _attend(q, mask)


def written_through_select(q: torch.Tensor) -> torch.Tensor:
    mask = _all()
    mask.select(1, 0).fill_(False)
    return _attend(q, mask)


def written_through_chunk(q: torch.Tensor) -> torch.Tensor:
    mask = _all()
    mask.chunk(2, 1)[1].zero_()
    return _attend(q, mask)


def written_through_a_property(q: torch.Tensor) -> torch.Tensor:
    mask = _all()
    mask.T[1:3] = False
    return _attend(q, mask)


def written_by_an_overload(q: torch.Tensor) -> torch.Tensor:
    mask = _all()
    torch.ops.aten.fill_.Scalar(mask[:, 4:], False)
    return _attend(q, mask)


def viewed_by_an_overload(q: torch.Tensor) -> torch.Tensor:
    mask = _all()
    torch.ops.aten.slice.Tensor(mask, 1, 2, 6).fill_(False)
    return _attend(q, mask)


def written_by_out(q: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(6, 6)
    torch.add(torch.ones(6, 6), 1, out=mask)
    return _attend(q, mask)


def written_by_an_embedding(q: torch.Tensor) -> torch.Tensor:
    table = torch.full((6, 6), 2.0)
    F.embedding(torch.arange(2), table, max_norm=1.0)
    return _attend(q, table - 2.0)


@torch.library.custom_op("litz_test_masks::hide", mutates_args=("mask",))
def hide(mask: torch.Tensor) -> None:
    mask[:, 3:] = False


@torch.library.custom_op("litz_test_masks::where", mutates_args=("mask",))
def where(mask: torch.Tensor) -> None:
    mask[:, 3:] = False


def written_by_a_custom_op(q: torch.Tensor) -> torch.Tensor:
    mask = _all()
    hide(mask)
    return _attend(q, mask)


def written_by_a_namesake(q: torch.Tensor) -> torch.Tensor:
    mask = _all()
    torch.ops.litz_test_masks.where(mask)
    return _attend(q, mask)


def read_by_others(q: torch.Tensor) -> torch.Tensor:
    row = torch.arange(6)
    table = F.embedding(row, q[0, 0]) + torch.ops.aten.cos.default(row)[:, None]
    q = q + table * row[:, None]
    return _attend(q, row <= row[:, None])


def not_square(q: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(4, 6, dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q[:, :, :4], q, q, attn_mask=mask)


KEPT = "kept"
CASES = {
    everything: False, nothing_added: False, causal: True, causal_added: True,
    causal_shifted: True, shifted_twice: True, shifted_below_a_view: KEPT,
    causal_by_methods: True, written_by_an_operator: KEPT,
    shifted_afterwards: KEPT, barely_hidden: KEPT, window: KEPT, written_to: KEPT, not_square: KEPT,
    written_through_narrow: KEPT, written_through_diagonal: KEPT, written_through_select: KEPT,
    written_through_chunk: KEPT, written_through_a_property: KEPT, written_by_an_overload: KEPT,
    viewed_by_an_overload: KEPT, written_by_out: KEPT, written_by_an_embedding: KEPT,
    written_by_a_custom_op: KEPT, written_by_a_namesake: KEPT, read_by_others: True,
}  # fmt: skip


def _attention(module: torch.fx.GraphModule) -> dict[str, Any]:
    (node,) = (n for n in module.graph.nodes if n.target is ATTENTION)
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    return dict(zip(names, node.args, strict=False)) | node.kwargs


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_mask(function: Any) -> None:
    expected, seen = CASES[function], []

    def backend(module: torch.fx.GraphModule, _: Any) -> Any:
        simplify_masks(module)
        seen.append(_attention(module))
        return module.forward

    torch._dynamo.reset()
    result = torch.compile(function, backend=backend)(Q)
    torch.testing.assert_close(result, function(Q))
    (given,) = seen
    if expected is KEPT:
        assert given["attn_mask"] is not None
    else:
        assert given["attn_mask"] is None
        assert given["is_causal"] is expected


def test_expanded_mask_is_laid_out() -> None:
    """ATen's kernels on a GPU read masks along rows; what cannot be known here is copied so."""
    graph = torch.fx.Graph()
    with FakeTensorMode():
        shown = torch.empty(2, 1, 6, 1, device="meta", dtype=torch.bool).expand(2, 1, 6, 6)
    q, mask = graph.placeholder("q"), graph.placeholder("mask")
    mask.meta["example_value"] = shown
    graph.output(graph.call_function(ATTENTION, (q, q, q), {"attn_mask": mask}))
    module = torch.fx.GraphModule({}, graph)
    assert simplify_masks(module) == 1
    assert _attention(module)["attn_mask"].target == "contiguous"
    given = torch.rand(2, 1, 6, 1) > 0.2
    args = Q, given.expand(2, 1, 6, 6)
    torch.testing.assert_close(module(*args), ATTENTION(*(Q,) * 3, attn_mask=args[1]))


def test_flag_leaves_masks() -> None:
    folded = {"joint_graph_constant_folding": False}
    torch._dynamo.reset()
    result = torch.compile(causal, backend="litz", options=folded)(Q)
    torch.testing.assert_close(result, causal(Q))
