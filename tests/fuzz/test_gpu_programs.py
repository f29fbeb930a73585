"""Random programs with the kernels of a GPU, interpreted."""

from __future__ import annotations

import pytest

from tests.codegen.triton.apart import Outcomes, outcomes
from tests.fuzz.gpu_cases import PROGRAMS

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def outcome() -> Outcomes:
    return outcomes("tests.fuzz.gpu_cases")


@pytest.mark.parametrize("seed", PROGRAMS)
def test_a_gpus_kernels_give_what_eager_gives(seed: str, outcome: Outcomes) -> None:
    assert seed in outcome, f"the process ended in {list(outcome)[-1]}, or the program after it"
    assert not outcome[seed][0], outcome[seed][0]
