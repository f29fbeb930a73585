"""What a call checks when it is asked to, and what it then says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from litz.errors import InputMismatch, NotFinite
from tests import draws
from tests.stages import compiled

X = torch.tensor([1.0, 2.0, -1.0, 4.0])


def _logarithms(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).softmax(0) + (x.log() * 2).cumsum(0)


def test_the_first_result_that_is_no_number_is_named() -> None:
    run = compiled(_logarithms, nan_asserts=True)
    torch.testing.assert_close(run(X.abs()), _logarithms(X.abs()))
    with pytest.raises(NotFinite, match=r"holds \d+ NaN .*log"):
        run(X)


def test_an_input_is_looked_at_before_anything_runs() -> None:
    run = compiled(lambda x: x * 2, nan_asserts=True)
    with pytest.raises(NotFinite, match="arg0_1 holds 0 NaN and 1 infinities: an input"):
        run(torch.tensor([1.0, float("inf")]))


def test_a_result_of_aten_is_looked_at() -> None:
    run = compiled(lambda x: torch.linalg.inv(x).sum(), nan_asserts=True)
    assert run(torch.eye(3)) == 3
    with pytest.raises(NotFinite, match="inv"):
        run(torch.diag(torch.tensor([1.0, 1e-45, 1.0])))


def test_masks_and_integers_pass() -> None:
    run = compiled(lambda x, m: torch.where(m, x, 0).sum(), nan_asserts=True)
    assert run(X, X > 0) == 7


def _attention(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """A mask in memory, scores that hold its infinities, and a mean of what is seen."""
    rows = torch.arange(x.shape[0])
    mask = torch.where(rows[:, None] >= rows, 0.0, float("-inf"))
    seen = torch.addmm(mask, x, x.t()).softmax(-1)
    return (seen @ seen) / scale


def test_infinities_of_a_constant_are_meant() -> None:
    """As far as they reach: what is computed of finite numbers again may not become infinite."""
    x, one = torch.randn(6, 4), torch.ones(())
    run = compiled(_attention, nan_asserts=True)
    torch.testing.assert_close(run(x, one), _attention(x, one))
    with pytest.raises(NotFinite, match=r"infinities: .*div"):
        run(x, torch.zeros(()))
    with pytest.raises(NotFinite, match=r"[1-9] NaN"):  # 0 times infinity
        compiled(lambda x: (x - float("inf")) * 0, nan_asserts=True)(x)


def test_infinities_that_a_backward_graph_is_given() -> None:
    """Those of a mask were seen in the forward graph; those of a gradient are looked at."""

    def masked(x: torch.Tensor) -> torch.Tensor:
        mask = torch.where(x > 0, 0.0, float("-inf"))
        return torch.linalg.matrix_power(mask + x, 1) * torch.linalg.matrix_power(x, 1)

    torch._dynamo.reset()
    options = {"nan_asserts": True, "on_error": "raise"}
    run = torch.compile(masked, backend="litz", options=options)
    found, expected = (torch.randn(4, 4, generator=draws.generator(0)) for _ in "ab")
    for x, call in ((found, run), (expected, masked)):
        call(x.requires_grad_()).backward(torch.ones(4, 4))
    torch.testing.assert_close(found.grad, expected.grad)
    with pytest.raises(NotFinite, match="tangents_1 holds 0 NaN and 16 infinities"):
        run(found).backward(torch.full((4, 4), float("inf")))


def test_an_infinite_constant_is_meant() -> None:
    def hide(x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor([0.0, float("-inf"), 1.0, 2.0])

    torch.testing.assert_close(compiled(hide, nan_asserts=True)(X), hide(X))


def test_without_the_flag_nothing_is_looked_at() -> None:
    assert compiled(_logarithms)(X).isnan().any()


def test_an_address_between_elements_is_refused() -> None:
    raw = np.zeros(4 * 8 + 1, np.uint8)
    crooked = torch.from_numpy(raw[1:].view(np.float32))
    assert crooked.data_ptr() % 4
    run = compiled(lambda x: x + 1, alignment_asserts=True)
    assert run(torch.zeros(8)).eq(1).all()
    with pytest.raises(InputMismatch, match="multiple of 4"):
        run(crooked)
