"""Random programs mean the same in Litz as in eager."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from tests.fuzz.compare import check
from tests.fuzz.draw import programs
from tests.fuzz.programs import Program


@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(programs())
def test_litz_agrees_with_eager(program: Program) -> None:
    check(program)
