"""What an op of a library sees of its operands' layout is what its tag promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.passes.constrain_operand_strides import constrain_operand_strides
from tests import draws
from tests.stages import stages

SEEN: list[tuple[torch.Size, tuple[int, ...]]] = []
TAGS = ("exact_strides", "fixed_stride_order", "contiguous_strides", "flexible_layout", "none")


def _define(name: str) -> Any:
    """An op that notes where its operand lies, and gives the sum of it."""
    tag = {"none": None, "flexible_layout": "flexible_layout"}.get(name, f"needs_{name}")
    tags = () if tag is None else (getattr(torch.Tag, tag),)
    torch.library.define(f"litz_layouts::{name}", "(Tensor x) -> Tensor", tags=tags)
    torch.library.impl(f"litz_layouts::{name}", "cpu", _noted)
    torch.library.register_fake(f"litz_layouts::{name}", lambda x: x.new_empty(()))
    torch.library.register_autograd(
        f"litz_layouts::{name}",
        lambda context, grad: grad.expand(context.shape).clone(),
        setup_context=_remember,
    )
    return getattr(torch.ops.litz_layouts, name)


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.shape = inputs[0].shape


def _noted(x: torch.Tensor) -> torch.Tensor:
    SEEN.append((x.shape, x.stride()))
    return x.sum()


OPS = {name: _define(name) for name in TAGS}
IMAGE = torch.randn(2, 8, 6, 6, generator=draws.generator(0))
LAST = IMAGE.contiguous(memory_format=torch.channels_last)
ROWS = torch.randn(4, 6, 8, generator=draws.generator(1))
WEIGHT = torch.nn.Parameter(torch.randn(16, 8, 3, 3, generator=draws.generator(2)))
TO_ONE = torch.nn.Parameter(torch.randn(1, 8, 3, 3, generator=draws.generator(3)))
Function = Callable[[torch.Tensor], torch.Tensor]

FUNCTIONS: dict[str, tuple[Function, torch.Tensor]] = {
    "a convolution": (lambda x: F.conv2d(x, WEIGHT), IMAGE),
    "what follows one": (lambda x: F.max_pool2d(F.conv2d(x, WEIGHT).relu() + 1, 2), IMAGE),
    "one channel": (lambda x: F.conv2d(x, TO_ONE).relu(), IMAGE),
    "one pixel": (lambda x: F.adaptive_avg_pool2d(F.conv2d(x, WEIGHT), 1), IMAGE),
    "channels last": (lambda x: F.conv2d(x, WEIGHT) * 2, LAST),
    "one of channels last": (lambda x: (x * 2)[:, :1], LAST),
    "a transpose": (lambda x: x.transpose(1, 2) + 1, ROWS),
    "a view of one": (lambda x: (x + 1).permute(2, 0, 1)[::2], ROWS),
    "a sum": (lambda x: x.permute(2, 0, 1).sum(1, keepdim=True), ROWS),
    "a product": (lambda x: x.transpose(1, 2) @ x, ROWS),
    "an expanded row": (lambda x: x[:1].expand(3, 6, 8), ROWS),
    "a roll": (lambda x: x.roll(1, 1), LAST),
    "a norm": (lambda x: F.group_norm(x, 2), LAST),
    "a join": (lambda x: torch.cat([x, x * 2], 1), LAST),
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    SEEN.clear()
    yield


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_strides_are_eagers_or_row_major(name: str, tag: str, grad: bool) -> None:
    function, given = FUNCTIONS[name]

    def run(x: torch.Tensor) -> torch.Tensor:
        return OPS[tag](function(x))

    fast = torch.compile(run, backend="litz", options={"on_error": "raise"})
    found = []
    with torch.set_grad_enabled(grad):
        for call in (run, fast):
            SEEN.clear()
            x = given.clone().requires_grad_(grad)
            result = call(x)
            if grad:
                result.backward()
            found.append((result.detach(), list(SEEN)))
    (theirs, eager), (ours, seen) = found
    if tag == "contiguous_strides":
        eager = [(shape, torch.empty(shape).stride()) for shape, _ in eager]
    assert seen == eager
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


def test_an_effect_that_wants_rows() -> None:
    """The operand of an op that is registered as an effect, and so wrapped in another one."""
    torch.library.define(
        "litz_layouts::told", "(Tensor x) -> ()", tags=torch.Tag.needs_contiguous_strides
    )
    torch.library.impl("litz_layouts::told", "cpu", lambda x: SEEN.append((x.shape, x.stride())))
    torch.library.register_fake("litz_layouts::told", lambda x: None)
    torch.library._register_effectful_op(
        "litz_layouts::told", torch._library.effects.EffectType.ORDERED
    )

    def run(x: torch.Tensor) -> torch.Tensor:
        torch.ops.litz_layouts.told(x.t() + 1)
        return x * 2

    torch.compile(run, backend="litz", options={"on_error": "raise"})(torch.randn(4, 6))
    (seen,) = SEEN
    assert seen == ((6, 4), (4, 1))


def test_nothing_is_copied_where_it_lies_well() -> None:
    made = stages(lambda x: OPS["contiguous_strides"](x + 1) + OPS["none"](x.t()), ROWS[0])
    assert constrain_operand_strides(made.graph) == 0
    assert not [n for n in made.graph.nodes if "clone" in str(n.target)]


def test_another_pass_that_moved_an_operand_is_put_right() -> None:
    """Whatever it did to strides: here one moves a value to another order."""
    graph = stages(lambda x: OPS["none"](x.exp()), LAST).graph
    (call,) = [n for n in graph.nodes if "litz_layouts" in str(n.target)]
    (operand,) = call.all_input_nodes
    value = operand.meta["val"]
    operand.meta["val"] = value.contiguous()
    assert constrain_operand_strides(graph) == 1
    (moved,) = call.all_input_nodes
    assert moved is not operand and moved.meta["val"].stride() == value.stride()
