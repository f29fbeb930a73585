"""Sizes and numbers that only data tells: one compile for all values, zero and one among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from litz.backend import litz
from litz.errors import ScalarAssertion
from litz.report import Explanation
from tests.dynamic import unbacked
from tests.dynamic.symbolic import Symbolic
from tests.dynamic.unbacked import COUNTS, PROGRAMS, ROWS, VALUES, captured, check

# What the interpreter of the loop IR runs as well, kernel by kernel.
INTERPRETED = [
    *("places", "chosen", "selected", "repeated", "distinct", "twice", "truth", "floats"),
    *("filled", "wide", "halved", "sliced", "window", "in_turn", "appended"),
]


@pytest.fixture(autouse=True)
def _captured() -> Iterator[None]:
    with captured():
        yield


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_compile_serves_every_call(name: str) -> None:
    check(PROGRAMS[name])


@pytest.mark.parametrize("name", INTERPRETED)
def test_kernels_mean_what_the_loop_ir_says(name: str) -> None:
    program = PROGRAMS[name]
    symbolic = Symbolic(program.function, dynamic=None)
    for call in program.calls:
        symbolic.check(*call)
    assert symbolic.graphs == 1 and symbolic.frames == 1 and "item" not in symbolic.aten_ops


def test_rows_of_a_product_and_of_a_norm_are_generated() -> None:
    notes, _ = check(PROGRAMS["experts"])
    assert {op.split(".")[1] for op in notes.aten_ops} == {"nonzero"}


def _distinct_places(x: torch.Tensor) -> Any:
    values, places = torch.unique(x, return_inverse=True)
    return values * 2, places + 1


def test_indices_whose_type_torch_foretells_wrongly_are_eagers() -> None:
    """torch before 2.13 says that the places of `unique` have the type of its values."""
    notes = Explanation()
    compiled = torch.compile(_distinct_places, backend=_backend(notes))
    for x in VALUES:
        torch.testing.assert_close(compiled(x), _distinct_places(x))
    assert not notes.fallbacks or "another type of its indices" in notes.fallbacks[0].reason
    assert bool(notes.graphs) != bool(notes.fallbacks)


def _backend(notes: Explanation, **options: Any) -> Callable[..., Any]:
    return lambda module, inputs: litz(module, inputs, options=options, explanation=notes)


def test_a_size_that_breaks_the_programs_word_is_named_with_its_line() -> None:
    symbolic = Symbolic(unbacked.sliced, dynamic=None)
    symbolic.check(ROWS, torch.tensor(3))
    for wrong, told in ((-1, "u0 >= 0"), (9, "u0 <= 8")):
        with pytest.raises(ScalarAssertion, match=f"{told}.*unbacked.py"):
            symbolic(ROWS, torch.tensor(wrong))
    assert issubclass(ScalarAssertion, RuntimeError)  # as eager's and torch's own is
    symbolic.check(ROWS, torch.tensor(8))
    without = Symbolic(unbacked.filled, dynamic=None, scalar_asserts=False)
    without.check(torch.tensor(5), interpret=False)
    steps = [step for graph in without.notes.graphs for step in graph.externs]
    assert not any(step.checks for step in steps)
    assert any(step.checks for graph in symbolic.notes.graphs for step in graph.externs)


# Programs that torch compiles for one size, or for equal ones; what else is said of sizes.
ONE_SIZE: list[tuple[Callable[..., Any], Any, Any]] = [
    (lambda x: x[x > 0] + torch.ones(5), (VALUES[0],), (VALUES[2],)),
    (lambda x: x[x > 0].reshape(5), (VALUES[0],), (VALUES[1],)),
    (lambda x: x[x > 0] + x[x > 0.5], (VALUES[2],), (VALUES[0],)),
    (lambda x: x[x > 0].view(2, -1) * 2, (VALUES[2],), (VALUES[0],)),
    (lambda n: torch.ones((n + 0).item()) + torch.ones(3), COUNTS[:1], COUNTS[4:5]),
    (lambda n: torch.ones((n + 0).item()) + torch.ones((n * n).item()), COUNTS[2:3], COUNTS[:1]),
]


@pytest.mark.parametrize(("program", "right", "wrong"), ONE_SIZE)
def test_what_torch_takes_for_granted_is_checked(
    program: Callable[..., Any], right: Any, wrong: Any
) -> None:
    """torch writes 5 for u0 wherever it stands, in its own assertions too."""
    compiled = torch.compile(program, backend=_backend(Explanation(), on_error="raise"))
    torch.testing.assert_close(compiled(*right), program(*right))
    with pytest.raises(RuntimeError):
        program(*wrong)
    with pytest.raises(ScalarAssertion):
        compiled(*wrong)
    torch.testing.assert_close(compiled(*right), program(*right))


def test_without_assertions_a_result_of_another_shape_is_seen() -> None:
    backend = _backend(Explanation(), on_error="raise", scalar_asserts=False)
    compiled = torch.compile(lambda x: x[x > 0] + torch.ones(5), backend=backend)
    assert compiled(VALUES[0]).shape == (5,)
    with pytest.raises(ScalarAssertion, match=r"shape \(8,\), where torch predicted .* \(5,\)"):
        compiled(VALUES[2])


def test_a_custom_op_that_foretells_another_type_is_an_error() -> None:
    @torch.library.custom_op("litz_tests::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        return x.long()

    counted.register_fake(torch.empty_like)
    compiled = torch.compile(lambda x: counted(x) + 1, backend=_backend(Explanation()))
    with pytest.raises(ScalarAssertion, match=r"gave torch.int64 .*predicted torch.float32"):
        compiled(VALUES[0])


def test_an_extreme_of_nothing_and_an_index_into_nothing_raise_as_eager_does() -> None:
    for program in (lambda x: x[x > 0].max(), lambda x: x[x > 0][x.long()]):
        symbolic = Symbolic(program, dynamic=None)
        symbolic.check(VALUES[2] * 0.5, interpret=False)
        with pytest.raises((RuntimeError, IndexError)):
            symbolic.function(VALUES[3])
        with pytest.raises((RuntimeError, IndexError)):
            symbolic(VALUES[3])
        assert symbolic.graphs == 1
