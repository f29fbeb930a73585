"""One value, one rounding: halves that are read twice, compared or computed again are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.ir.expr import walk
from tests.stages import compiled, stages

HALF_DTYPES = (torch.bfloat16, torch.float16)


def _every(dtype: torch.dtype) -> torch.Tensor:
    """All numbers of a half type, infinities and NaNs among them."""
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)


def _roundings(function: Callable[..., Any], *inputs: torch.Tensor) -> list[str]:
    """The conversions to bf16 that are left in the kernels, in order."""
    kernels = stages(function, *inputs).kernels.kernels
    nodes = [n for k in kernels for n in walk(*(s.value for s in k.stores))]
    return [n.op for n in nodes if n.op in ("cast", "narrow") and n.dtype.name == "bf16"]


def test_a_value_with_one_reader_is_not_rounded_inside() -> None:
    x = torch.randn(64).bfloat16()
    assert _roundings(lambda x: (x * 0.3).exp(), x) == ["narrow"]


def test_a_value_that_is_returned_is_what_its_reader_sees() -> None:
    x = torch.randn(64).bfloat16()
    assert _roundings(lambda x: ((y := x * 0.3), y.exp()), x).count("cast") == 1


def test_a_copy_of_a_value_is_rounded_as_the_value() -> None:
    """The pieces of a cat, and what is widened, are copies."""
    x = torch.randn(64).bfloat16()
    assert "cast" in _roundings(lambda x: torch.cat([x * 0.3, x]) > 0.5, x)
    assert "cast" in _roundings(lambda x: (x * 0.3).float().floor(), x)


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_are_eagers_for_every_number(dtype: torch.dtype, name: str) -> None:
    """0.1 is no half: eager compares with the nearest one, also if it comes as a tensor."""
    compare, x = getattr(torch, name), _every(dtype)

    def function(x: torch.Tensor) -> Any:
        return (
            compare(x, 0.1),
            compare(x * 0.3, 0.1),
            compare(x, torch.tensor(0.1)),
            compare(x * 0.7, x * 0.3),
        )

    assert all(map(torch.equal, compiled(function)(x), function(x)))


JUMPING: dict[str, Callable[[torch.Tensor], Any]] = {
    "floor": lambda x: (x * 0.3).floor(),
    "round": lambda x: (x * 0.3).round(),
    "frac": lambda x: (x * 0.3).frac(),
    "sign": lambda x: (x * 1e-3).sign(),
    "to int": lambda x: (x * 0.3).nan_to_num(0, 0, 0).clamp(-1e4, 1e4).int(),
    "where": lambda x: torch.where(x * 0.3 > 0.1, x, -x),
    "hardshrink": lambda x: F.hardshrink(x, 0.1),
    "threshold": lambda x: F.threshold(x * 0.3, 0.125, 0.75),
    "argmax": lambda x: (x * 0.3).view(256, 256).argmax(1),
    "cummax": lambda x: (x * 0.3).view(256, 256).cummax(1)[1],
    "bucketize": lambda x: torch.bucketize(x * 0.3, torch.tensor([-1, 0.1, 0.5, 2.0]).to(x.dtype)),
    "isclose": lambda x: torch.isclose(x * 0.3, torch.full_like(x, 0.1)),
}


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
@pytest.mark.parametrize("name", JUMPING)
def test_ops_that_jump_are_eagers_for_every_number(dtype: torch.dtype, name: str) -> None:
    function, x = JUMPING[name], _every(dtype)
    torch.testing.assert_close(compiled(function)(x), function(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
@pytest.mark.parametrize("most", [1, 2, 4, 64])
def test_a_row_of_equal_values_has_no_spread(dtype: torch.dtype, most: int) -> None:
    """Where the mean is of rounded values and the difference of unrounded ones, it is infinite."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 1.7
        return (y - y.mean(1, keepdim=True)) / y.std(1, keepdim=True)

    x = torch.linspace(0.3, 9.0, 32).to(dtype)[:, None].expand(32, 64).contiguous()
    assert function(x).isnan().all()
    assert compiled(function, max_fusion_size=most)(x).isnan().all()


COMPARING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "amax": lambda x: (x * 0.3).amax(1),
    "amin": lambda x: (x * 0.3 + 0.125).amin(1),
    "largest norm": lambda x: torch.linalg.vector_norm(x * 0.3, float("inf"), dim=1),
    "scatter": lambda x: torch.zeros_like(x).scatter_reduce(
        1, torch.arange(x.shape[1]).remainder(5).expand_as(x), x * 0.3, "amax"
    ),
    "median": lambda x: (x * 0.3).median(1)[0],
    "layer norm": lambda x: F.layer_norm(x * 0.3, (x.shape[1],)).amax(1),
}
# What is compared is rounded, a product below it that nobody else reads is not: where eager rounds
# twice, another two elements may be equal. Eager with the one rounding that is promised.
ROUNDED_ONCE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "amin": lambda x: (x.float() * 0.3 + 0.125).to(x.dtype).amin(1),
}


@pytest.mark.parametrize("dtype", [*HALF_DTYPES, torch.float32], ids=str)
@pytest.mark.parametrize("name", COMPARING)
def test_gradients_that_compare_find_what_they_look_for(dtype: torch.dtype, name: str) -> None:
    """The backward looks for the elements that are the extreme, which the forward saved."""
    function = COMPARING[name]
    run = torch.compile(function, backend="litz", options={"on_error": "raise"})
    torch._dynamo.reset()
    x = torch.randn(64, 33).to(dtype).requires_grad_()
    (expected,) = torch.autograd.grad(ROUNDED_ONCE.get(name, function)(x).sum(), x)
    (found,) = torch.autograd.grad(run(x).sum(), x)
    if name != "layer norm":  # sums, of which the last bit is another
        assert torch.equal(found, expected)
    wide = x.detach().double().requires_grad_()
    (exact,) = torch.autograd.grad(function(wide).sum(), wide)
    own = (expected.double() - exact).abs().max()
    eps = torch.finfo(dtype).eps
    assert (found.double() - exact).abs().max() <= 2 * own + eps * exact.abs().max()


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_value_computed_again_is_made_of_what_it_was_made_of(
    dtype: torch.dtype, dynamic: bool
) -> None:
    """A group of one number is its own mean: the backward finds no distance between them, unless
    the product below the number was rounded in one of the two graphs alone."""

    def function(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.group_norm(x * a + b, 1)

    x = torch.linspace(-2, 2, 257).to(dtype)[:, None].requires_grad_()
    a, b = torch.tensor(0.6614, requires_grad=True), torch.tensor(0.2669, requires_grad=True)
    run = torch.compile(function, backend="litz", dynamic=dynamic)
    weights = torch.linspace(0.5, 1, 257)[:, None].to(dtype)
    (gradient,) = torch.autograd.grad(run(x, a, b), x, weights)
    assert torch.equal(gradient, torch.zeros_like(x))
