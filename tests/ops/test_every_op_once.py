"""Every op of torch's database once, in one dtype each: the part of the sweep in `make test`.

What is compiled and what is left to ATen must be what the op table says.

The name of an op picks its dtype among those it supports, so that all ten are covered evenly and
nobody chooses. `make test-ops` runs every op in every dtype.
"""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import torch

from litz.optable import load
from tests.ops.exceptions import EXCEPTIONS, excepted
from tests.ops.opinfo import check, every_op, name_of, supported_dtypes
from tests.ops.refused import version

SAMPLES = 2  # as in the sweep, so that both see the same


def _dtype(op: Any) -> torch.dtype:
    choices = supported_dtypes(op)
    return choices[zlib.crc32(name_of(op).encode()) % len(choices)]


OPS = [op for op in every_op() if supported_dtypes(op)]


@pytest.mark.parametrize("op", OPS, ids=name_of)
def test_op(op: Any) -> None:
    dtype = _dtype(op)
    short = str(dtype).removeprefix("torch.")
    outcome = check(op, dtype, SAMPLES)
    if excepted(outcome.op, short) is None:
        assert not outcome.failures, outcome.failures[0]
        found = "unsupported" if outcome.status == "unsupported" else outcome.how
        if load().torch == version():  # others take some ops apart otherwise
            assert found == load().how(outcome.op, short), "the op table says otherwise"


def test_every_exception_names_an_op_and_says_why() -> None:
    names = {name_of(op) for op in every_op()}
    assert {op for op, _ in EXCEPTIONS} <= names
    assert all(EXCEPTIONS.values())


def test_all_ten_dtypes_are_drawn() -> None:
    assert len({_dtype(op) for op in OPS}) == 10
