"""In-place updates against eager: inputs end as eager leaves them, results alias what they did."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.lower.agreement import Function, agree, numbers


def steps(*texts: str, give: str = "x") -> Function:
    """A function of x and y from statements."""
    body = "\n    ".join([*texts, f"return {give}"])
    space: dict[str, Any] = {"torch": torch}
    exec(f"def function(x, y):\n    {body}\n", space)
    return space["function"]  # type: ignore[no-any-return]


UPDATES: dict[str, Function] = {
    "add": steps("x.add_(1)"),
    "other type": steps("x.add_(y.double())"),
    "by itself": steps("x.mul_(x)"),
    "by its transpose": steps("x.add_(x.t().clone())"),
    "by its flip": steps("x.copy_(x.flip(0))"),
    "by its roll": steps("x.copy_(x.roll(1, 0) + x)"),
    "swap": steps("t = x.clone()", "x.copy_(y)", "y.copy_(t)"),
    "two that read each other": steps("t = x + y", "x.copy_(y * 2)", "y.copy_(t - x)"),
    "read before": steps("s = x.sum()", "x.add_(1)", give="s, x * 2"),
    "read between": steps("x.add_(1)", "a = x * 2", "x.mul_(3)", "b = x * 2", give="a, b"),
    "read after by a sum": steps("x.mul_(2)", "t = x.softmax(1)", "x.zero_()", give="t"),
    "row": steps("x[1].add_(1)"),
    "column": steps("x[:, 1].mul_(2)", give="x.sum(0)"),
    "every other": steps("x[::2, 1::2].fill_(7)"),
    "diagonal": steps("x.diagonal().zero_()"),
    "through a transpose": steps("x.t()[1].add_(y[0])"),
    "through a reshape": steps("x.view(-1)[3:9].neg_()"),
    "overlapping reads": steps("x[1:].copy_(x[:-1].clone())"),
    "assignment": steps("x[0] = 5", "x[:, 2] = y[:, 1]"),
    "of a result": steps("t = x + 1", "t[1:].mul_(2)", "t.add_(y)", give="t, t[0]"),
    "of a view of a result": steps("t = x * 2", "u = t.t()", "u[0].add_(1)", give="t, u"),
    "view taken before": steps("v = x[1:]", "x.add_(1)", give="v, v * 2"),
    "view changed, base read": steps("v = x.view(-1)", "v.mul_(2)", give="x + 1"),
    "both returned": steps("x.add_(1)", "y.sub_(x)", give="x, y, x + y"),
    "bool": steps("m = x > 0", "m.logical_not_()", "m &= y > 0", give="m"),
    "masked": steps("x.masked_fill_(x > 0, 0)", "x[y > 1] = 3"),
    "where": steps("x.copy_(torch.where(y > 0, x, y))"),
    "clamp": steps("x.clamp_(-1, 1).relu_()"),
    "type kept": steps("n = x.long()", "n.add_(2).floor_divide_(2)", give="n"),
    "unchanged": steps("x.mul_(1)", "y.add_(0)", give="x, y"),
    "several": steps(*(f"x[{k}].add_({k})" for k in range(4)), give="x.sum(1)"),
    "out=": steps("t = torch.empty_like(x)", "torch.mul(x, y, out=t)", give="t"),
}


@pytest.mark.parametrize("case", UPDATES)
def test_updates(case: str) -> None:
    agree(UPDATES[case], numbers(torch.float32, 4, 4), numbers(torch.float32, 4, 4, seed=1))


LAYOUTS: dict[str, Function] = {
    "transposed": lambda: numbers(torch.float32, 4, 4).t(),
    "window": lambda: numbers(torch.float32, 6, 9)[1:5, 1::2],
    "half": lambda: numbers(torch.bfloat16, 4, 4),
    "integer": lambda: numbers(torch.int64, 4, 4),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", ["add", "by its flip", "swap", "every other", "view taken before"])
def test_updates_of_other_layouts(case: str, layout: str) -> None:
    """What lies between the elements of a window stays as it was."""
    y = numbers(torch.float32, 4, 4, seed=1).to(LAYOUTS[layout]().dtype)
    agree(UPDATES[case], LAYOUTS[layout](), y, wide=False)


def test_what_surrounds_an_updated_window_is_left_alone() -> None:
    base = numbers(torch.float32, 6, 9)
    expected = base.clone()
    expected[1:5, 1::2] *= 2
    agree(lambda x: x.mul_(2), base[1:5, 1::2])(base[1:5, 1::2])
    assert torch.equal(base, expected)


def test_two_inputs_in_one_storage() -> None:
    """An update of one is seen in the other."""
    base = numbers(torch.float32, 20)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    eager = base.clone()
    want = function(eager[:12], eager[4:16])
    ours = base.clone()
    got = _compiled(function)(ours[:12], ours[4:16])
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(ours, eager)


def _compiled(function: Function) -> Function:
    torch._dynamo.reset()
    return torch.compile(function, backend="litz", fullgraph=True, options={"on_error": "raise"})
