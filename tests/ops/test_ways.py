"""Ways to take an op: what each does to its samples, and a sample of ops in one way each."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import SampleInput

from tests.codegen.triton.apart import Outcomes, outcomes
from tests.ops.exceptions import excepted
from tests.ops.opinfo import check, every_op, name_of, supported_dtypes
from tests.ops.way_cases import CASES
from tests.ops.ways import PLAIN, WAYS, chosen, drawn, grown, placed, tensors

SAMPLES = 2
AMONG = 14  # one op in so many
DRAWN = {name_of(op): drawn(name_of(op), "cpu", AMONG) for op in every_op()}
OPS = [op for op in every_op() if DRAWN[name_of(op)] is not None and supported_dtypes(op)]


@pytest.mark.parametrize("op", OPS, ids=lambda op: f"{name_of(op)}, {DRAWN[name_of(op)].name}")
def test_op_in_a_way(op: Any) -> None:
    way, choices = DRAWN[name_of(op)], supported_dtypes(op)
    assert way is not None
    dtype = choices[zlib.crc32(name_of(op).encode()) // 3 % len(choices)]
    outcome = check(op, dtype, SAMPLES, way=way)
    if excepted(outcome.op, str(dtype).removeprefix("torch.")) is None:
        assert not outcome.failures, outcome.failures[0]


@pytest.fixture(scope="module")
def outcome() -> Outcomes:
    return outcomes("tests.ops.way_cases")


@pytest.mark.parametrize("name", CASES)
def test_op_in_a_way_with_the_kernels_of_a_gpu(name: str, outcome: Any) -> None:
    assert name in outcome, f"the process ended in {list(outcome)[-1]!r}, or the case after it"
    assert not outcome[name][0], outcome[name][0]


def test_every_way_is_drawn() -> None:
    names = {way.name for way in DRAWN.values() if way}
    assert len(names) >= len(WAYS) - 3


X = torch.arange(12.0).view(3, 4)


def test_operands_lie_as_the_way_says() -> None:
    expected = {
        "transposed": ((1, 3), 0), "offset": ((4, 1), 1), "expanded": ((0, 1), 0),
        "negated": ((4, 1), 0), "plain": ((4, 1), 0),
    }  # fmt: skip
    for name, (strides, offset) in expected.items():
        found = placed(WAYS[name], {"x": X})["x"]
        assert (found.stride(), found.storage_offset()) == (strides, offset), name
        assert found.is_neg() == (name == "negated")
        wanted = X[:1].expand(3, 4) if name == "expanded" else X
        assert torch.equal(found, wanted)
    image = torch.arange(24.0).view(1, 2, 3, 4)
    laid = placed(WAYS["channels_last"], image)
    assert laid.stride() == (24, 1, 8, 2) and torch.equal(laid, image)


def test_operands_grow_together_as_far_as_eager_follows() -> None:
    def product(sample: Any) -> torch.Tensor:
        return sample.input @ sample.args[0]

    sample = SampleInput(X, args=(X.t(),))
    (long,) = WAYS["long"].calls(lambda s: s.input + s.args[0], SampleInput(X, args=(X,)))
    assert long.input.shape == long.args[0].shape == (3, 4 * 275) and 275 % 2
    calls = WAYS["sizes"].calls(product, sample)
    assert [c.input.shape[0] for c in calls] == [3 * 29, 3 * 3, 3 * 29]  # the first one alone
    assert not WAYS["sizes"].calls(lambda s: s.input + 1, SampleInput(torch.tensor(1.0)))
    assert not WAYS["channels_last"].calls(product, sample)
    assert PLAIN.calls(product, sample) == [sample]
    assert [t.shape for t in tensors(grown(sample, "last", 2))] == [(3, 8), (4, 6)]


def test_ways_are_chosen_by_name() -> None:
    assert chosen("all", "cpu") == list(WAYS.values())
    assert {w.name for w in chosen("all", "cpu")} - {w.name for w in chosen("all", "cuda")} == {
        "threads",
        "narrow",
        "wide",
    }
    assert [w.name for w in chosen("offset,sizes")] == ["offset", "sizes"]
    with pytest.raises(SystemExit, match="there is no way narrow on cuda: plain, dynamic, sizes"):
        chosen("narrow", "cuda")
