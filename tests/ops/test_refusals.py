"""What eager refuses is refused: a sample of the sweep, whose whole is `make test-refusals`."""

from __future__ import annotations

import zlib

import pytest
import torch
import torch.nn.functional as F

from litz.ir.refused import refuses
from tests import draws
from tests.ops import refused
from tests.ops.refusals import BY_NAME, cases_of, check
from tests.ops.refused_values import VALUES

# What users have met.
KNOWN = (
    "index_add -1", "index_add 1 -1", "index_add twice -1", "index_copy -1", "index_copy int32",
    "index_add complex", "index_fill int32", "binary_cross_entropy above",
    "binary_cross_entropy target nan", "bernoulli above", "max_unpool2d 7", "// a number",
    "uniform_ backwards", "an assertion without a word", "a check of a size", "cross_entropy 7",
    "masked_scatter of bytes",
)  # fmt: skip
AMONG = 12  # one value, or one op, in so many
CASES = 2  # of an op
MEASURED = 100  # of so many ops one is measured again


def drawn(name: str, among: int) -> bool:
    """Whether it is this one's turn: others' under another seed."""
    return zlib.crc32(f"{name} {draws.RUN}".encode()) % among == 0


@pytest.mark.parametrize("name", [n for n in VALUES if n in KNOWN or drawn(n, AMONG)])
def test_a_value_that_eager_refuses(name: str) -> None:
    verdict = check(name, cases_of(name))
    assert not verdict.failures, verdict.failures
    assert verdict.same or name not in KNOWN


@pytest.mark.parametrize("name", [n for n in BY_NAME if drawn(n, AMONG)])
def test_a_call_that_eager_refuses(name: str) -> None:
    cases = [case for case in cases_of(name) if case.family != "mixed"]
    some = draws.python_generator(1).sample(cases, min(CASES, len(cases)))
    verdict = check(name, iter(some))
    assert not verdict.failures, verdict.failures


@pytest.mark.parametrize("name", [n for n in BY_NAME if drawn(n, MEASURED)])
def test_eager_takes_no_types_that_the_table_calls_refused(name: str) -> None:
    """On the version of torch that it was measured with. What it lacks shows in the test above."""
    if refused.measured_with() != refused.version():
        pytest.skip(f"the table was measured with torch {refused.measured_with()}")
    _, taken = refused.measure(name)
    assert not [key for key in taken if refuses(key[0], key[1].split("+"))]


def test_probabilities_are_taken_with_and_without_a_gradient() -> None:
    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy(x.sigmoid(), y)

    for shape in ((40,), (3, 33), (0,)):
        x = torch.randn(shape, generator=draws.generator(1), requires_grad=True)
        y = torch.rand(shape, generator=draws.generator(2))
        found = torch.compile(loss, backend="litz")(x, y)
        expected = loss(x, y)
        torch.testing.assert_close(found, expected, equal_nan=True)
        grads = [torch.autograd.grad(value, x)[0] for value in (found, expected)]
        torch.testing.assert_close(*grads, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64])
def test_slices_go_where_eager_takes_them(dtype: torch.dtype) -> None:
    def slices(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        row, number, to_first = x[0, 0], x[0, 0, 0], i[:1] * 0
        return [
            *(x.index_add(1, i, y), x.index_add(1, i, y, alpha=3), x.index_add(1, i.int(), y)),
            *(x[0].index_add(1, i, y[0].mT), row.index_add(0, i, y[0, 0, :2])),
            *(x.index_copy(1, i, y), x[0].index_copy(0, i, y[0])),
            *(
                number.index_add(0, to_first, y[0, 0, 0]),
                number.index_copy(0, to_first, y[0, 0, 0]),
            ),
            *(x.index_fill(1, i - x.shape[1], 2), number.index_fill(0, to_first, 3)),
        ]

    numbers = torch.randint(-4, 5, (2, 5, 5), generator=draws.generator(3)).to(dtype)
    given = numbers, torch.tensor([3, 1]), numbers[:, :2] + 1
    found = torch.compile(slices, backend="litz")(*given)
    for ours, eagers in zip(found, slices(*given), strict=True):
        torch.testing.assert_close(ours, eagers, rtol=0, atol=0)


def test_values_return_to_where_a_pool_took_them() -> None:
    def unpooled(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            F.max_unpool1d(*F.max_pool1d(x[0, :, 0], 2, return_indices=True), 2),
            F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
            F.max_unpool3d(*F.max_pool3d(x.contiguous(), 2, return_indices=True), 2),
        ]

    x = torch.randn(2, 4, 6, 8, generator=draws.generator(4))
    for laid in (x, x.contiguous(memory_format=torch.channels_last)):
        found = torch.compile(unpooled, backend="litz")(laid)
        for ours, eagers in zip(found, unpooled(laid), strict=True):
            torch.testing.assert_close(ours, eagers, rtol=0, atol=0)
            assert ours.stride() == eagers.stride()


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_has_no_tensors_is_refused_by_the_type_it_is_asked_for(dynamic: bool) -> None:
    """A ramp of bools was computed, and a `one_hot` of bools with it, which was wrong."""
    x = torch.tensor([True, False])
    for function in (
        lambda x: torch.arange(x.shape[0], dtype=x.dtype),
        lambda x: torch.eye(x.shape[0], dtype=torch.uint64),
        lambda x: torch.eye(0, 3, dtype=torch.uint16),
        lambda x: F.one_hot(x, 3),
        lambda x: torch.linalg.matrix_power(torch.ones(2, 2, dtype=torch.uint64), 0) + x[0],
    ):
        with pytest.raises(RuntimeError) as eagers:
            function(x)
        torch._dynamo.reset()
        with pytest.raises(eagers.type):
            torch.compile(function, backend="litz", dynamic=dynamic)(x)
    taken = torch.compile(
        lambda: (torch.arange(3, dtype=torch.int8), torch.eye(2, dtype=torch.bool)), backend="litz"
    )()
    assert taken[0].tolist() == [0, 1, 2] and taken[1].tolist() == [[True, False], [False, True]]
