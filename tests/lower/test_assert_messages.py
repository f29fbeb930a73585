"""A failed `torch._check` says what the program said, where, and what the number was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from litz.errors import ScalarAssertion
from litz.lower.assert_messages import TORCH_ASSERT_PREFIXES
from tests.dynamic.unbacked import captured

Program = Callable[[torch.Tensor], Any]


@pytest.fixture(autouse=True)
def _captured() -> Iterator[None]:
    with captured():
        yield


def _less(x: torch.Tensor) -> Any:
    n = x.sum().int().item()
    torch._check(n < 3, lambda: "the sum is large")
    return x * n


def _equal(x: torch.Tensor) -> Any:
    n = x.sum().int().item()
    torch._check(n == 2, lambda: "the sum is not two")
    return x * n


def _of_a_mask(x: torch.Tensor) -> Any:
    y = x[x > 0]
    torch._check(y.shape[0] < 3, lambda: "too many positive ones")
    return y * 2


def _second(x: torch.Tensor) -> Any:
    n = x.sum().int().item()
    torch._check(n > 0, lambda: "the sum is not positive")
    torch._check(n < 3, lambda: "the sum is large")
    return x * n


def _all(x: torch.Tensor) -> Any:
    torch._check_tensor_all(x < 2, lambda: "an element is large")
    return x + 1


GOOD = torch.tensor([1.0, 1.0, 0.0, 0.0])
# The message, the condition that fails, what was found, and values that give it.
CHECKS: list[tuple[Program, str, str, str, torch.Tensor]] = [
    (_less, "the sum is large", "u0 <= 2", "u0 is 4", torch.ones(4)),
    (_equal, "the sum is not two", "u0 == 2", "u0 is 4", torch.ones(4)),
    (_of_a_mask, "too many positive ones", "u0 <= 2", "u0 is 4", torch.ones(4)),
    (_second, "the sum is large", "u0 <= 2", "u0 is 4", torch.ones(4)),
    (_second, "the sum is not positive", "u0 >= 1", "u0 is -4", -torch.ones(4)),
    (_all, "an element is large", "", "u0 is 0", 3 * torch.ones(4)),
]
# Dynamo of torch 2.11 keeps the condition of a check and drops its words; with words, it captures
# no check of a tensor.
KEEPS_WORDS = torch.__version__ >= "2.13"


@pytest.mark.parametrize("program, message, condition, found, bad",
                         [c for c in CHECKS if KEEPS_WORDS or c[2]])  # fmt: skip
def test_a_failed_check_has_the_programs_words(
    program: Program, message: str, condition: str, found: str, bad: torch.Tensor
) -> None:
    run = torch.compile(program, backend="litz", fullgraph=True)
    torch.testing.assert_close(run(GOOD), program(GOOD))
    with pytest.raises(RuntimeError, match=message):
        program(bad)
    with pytest.raises(ScalarAssertion) as raised:
        run(bad)
    text = str(raised.value)
    said = text.partition(f" ({found}): ")[0]
    assert said == message if KEEPS_WORDS else condition in said
    assert f"({found}): " in text and "test_assert_messages.py:" in text
    torch.testing.assert_close(run(GOOD), program(GOOD))


def test_a_conclusion_of_torchs_keeps_its_own_words() -> None:
    def narrowed(x: torch.Tensor) -> Any:
        return x.narrow(0, 0, x.sum().int().item()) * 2

    run = torch.compile(narrowed, backend="litz", fullgraph=True)
    with pytest.raises(ScalarAssertion) as raised:
        run(3 * GOOD)
    assert str(raised.value).startswith(TORCH_ASSERT_PREFIXES) and "(u0 is 6)" in str(raised.value)
