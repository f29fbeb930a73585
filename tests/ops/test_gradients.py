"""Gradients of a sample of torch's op database: the part of that sweep in `make test`.

One op in 48, drawn by name, and what training is made of; `make test-gradients` runs all of them.
"""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import torch

from litz.lower.registry import RULES
from tests.ops.exceptions import GRADIENTS
from tests.ops.gradients import DTYPES, check_gradients, has_gradient
from tests.ops.opinfo import every_op, name_of

ALWAYS = {"nn.functional.layer_norm", "nn.functional.cross_entropy", "index_put", "gather"}


def _is_drawn(op: Any) -> bool:
    return name_of(op) in ALWAYS or zlib.crc32(name_of(op).encode()) % 48 == 0


OPS = [op for op in every_op() if has_gradient(op, torch.float32) and _is_drawn(op)]


@pytest.mark.parametrize("op", OPS, ids=name_of)
def test_gradients(op: Any) -> None:
    dtype = DTYPES[zlib.crc32(name_of(op).encode()) // 48 % 2]
    outcome = check_gradients(op, dtype, 1)
    if name_of(op) not in GRADIENTS:
        assert not outcome.failures, outcome.failures[0]


def test_every_exception_says_why() -> None:
    assert set(GRADIENTS) <= {name_of(op) for op in every_op()} and all(GRADIENTS.values())


def test_a_wrong_gradient_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: a rule that is off by a little is found."""

    right = RULES[torch.ops.aten.cos.default]
    wrong = RULES[torch.ops.aten.sin.default]
    monkeypatch.setitem(RULES, torch.ops.aten.cos.default, wrong)
    (sin,) = (op for op in every_op() if name_of(op) == "sin")
    assert check_gradients(sin, torch.float64, 1).failures
    monkeypatch.setitem(RULES, torch.ops.aten.cos.default, right)
    assert not check_gradients(sin, torch.float64, 1).failures
