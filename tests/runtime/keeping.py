"""An op that keeps what it is given, and programs that give it intermediates of many kinds.

In: a program as eager and compiled. Out: an error if what was kept of earlier calls is not what it
was when it was given. Example: `check(function, fast, [x, y])`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

KEPT: list[torch.Tensor] = []


@torch.library.custom_op("litz_keeping::keep", mutates_args=())
def keep(x: torch.Tensor) -> torch.Tensor:
    """The sum of its columns; and the operand itself is remembered."""
    KEPT.append(x)
    return x.sum(0)


@keep.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[1:])


torch.library.define("litz_keeping::passed", "(Tensor x) -> Tensor")
torch.library.impl("litz_keeping::passed", "cpu", lambda x: x)
torch.library.register_fake("litz_keeping::passed", torch.empty_like)
passed: Any = torch.ops.litz_keeping.passed


def _read_again(x: torch.Tensor) -> torch.Tensor:
    """A kernel that could write its result in place of the operand."""
    y = x.sort(0).values + 1
    return keep(y) + (y * 2).exp().sort(0).values


def _of_a_product(x: torch.Tensor) -> torch.Tensor:
    """A library's result, whose memory a kernel could take over."""
    y = x @ x.t()
    return keep(y) + (y * 2).exp().sum(0)


def _chosen(x: torch.Tensor) -> torch.Tensor:
    def one(y: torch.Tensor) -> torch.Tensor:
        return keep(y * 2) + 1

    def other(y: torch.Tensor) -> torch.Tensor:
        return keep(y * 3) + 2

    return torch.cond(x.sum() > 0, one, other, (x + 1,))


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a kernel's result": lambda x: keep(x + 1) * 2,
    "two of them": lambda x: keep(x + 1) + keep(x + 2).sort().values,
    "read again": _read_again,
    "a product": _of_a_product,
    "views": lambda x: keep((x + 1)[1:]) + keep((x * 2).t()[:, :3]).sum(),
    "a call's result": lambda x: keep(x.sort(0).values) + 1,
    "a row": lambda x: keep((x.softmax(-1) @ x)[:1]) + keep(x.cumsum(0)),
    "inside a branch": _chosen,
}


def check(
    function: Callable[..., Any], fast: Callable[..., Any], inputs: list[torch.Tensor]
) -> None:
    """What both keep over some calls: values and strides."""
    found = []
    for call in (function, fast):
        KEPT.clear()
        for x in inputs:
            call(x)
        found.append([(t.clone(), t.stride()) for t in KEPT])
    KEPT.clear()
    eager, ours = found
    assert len(eager) == len(ours) >= len(inputs)
    for (theirs, their_strides), (mine, my_strides) in zip(eager, ours, strict=True):
        torch.testing.assert_close(mine, theirs)
        assert my_strides == their_strides
