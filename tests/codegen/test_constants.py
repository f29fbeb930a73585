"""No bit of a constant is lost on the way through text, and no rewrite changes one: on the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.codegen.constants import CASES, same_bits
from tests.stages import compiled


@pytest.mark.parametrize("name", CASES)
def test_every_bit_is_eagers(name: str) -> None:
    case = CASES[name]
    run = compiled(case.program, **case.options)
    case.compare(run(case.given()))


def test_a_lost_sign_is_seen() -> None:
    zeros = torch.tensor([0.0, -0.0, float("nan"), 1.0])
    other = torch.tensor([-0.0, -0.0, -float("nan"), 1.0])
    assert same_bits(zeros, other).tolist() == [False, True, True, True]
