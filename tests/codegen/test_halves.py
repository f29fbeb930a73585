"""Rounding to bfloat16 is eager's, bit for bit, with the processor's instruction and without."""

from __future__ import annotations

import pytest
import torch

from litz.codegen.llvm import math
from litz.codegen.llvm.math.halves import DENORMAL, FEATURE, TO_BF16
from litz.ir.dtypes import BF16, F32
from litz.ir.expr import axis, cast, load
from tests.codegen import native

# Ties and their neighbours in every binade, with both signs: denormals and infinities among them.
_TAILS = torch.tensor([0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
_HEADS = torch.arange(0, 1 << 16, 3)


def _floats() -> torch.Tensor:
    bits = ((_HEADS << 16)[:, None] + _TAILS).flatten()
    return (bits - ((bits >> 31) << 32)).to(torch.int32).view(torch.float32)


@pytest.mark.parametrize("features", ["as they are", "none"])
def test_every_binade_rounds_as_eager_does(features: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if features == "none":
        monkeypatch.setattr("litz.codegen.llvm.math.halves.FEATURE", "of no processor")
    x = _floats()
    source, result = native.buffer("x", F32, len(x)), native.buffer("y", BF16, len(x))
    i = axis("i0", len(x))
    kernel = native.pointwise((i,), {result: cast(load(source, (i,)), BF16)})
    found = native.run(kernel, {source: x, result: None})[0]["y"]
    expected = x.to(torch.bfloat16)
    assert found.isnan().equal(expected.isnan())
    number = ~expected.isnan()
    assert found.view(torch.int16)[number].equal(expected.view(torch.int16)[number])


def test_one_denormal_among_numbers_is_kept() -> None:
    x = torch.ones(64)
    x[37] = 1e-40
    source, result = native.buffer("x", F32, 64), native.buffer("y", BF16, 64)
    i = axis("i0", 64)
    kernel = native.pointwise((i,), {result: cast(load(source, (i,)), BF16)})
    found = native.run(kernel, {source: x, result: None})[0]["y"]
    assert found.equal(x.to(torch.bfloat16)) and found[37] != 0


def test_the_instruction_is_used_where_there_is_one() -> None:
    quick, _ = math.definitions([(TO_BF16, "f32", 16)], [FEATURE])
    plain, _ = math.definitions([(TO_BF16, "f32", 16)])
    assert "fptrunc" in quick and f"i32 {DENORMAL}" in quick
    assert "fptrunc" not in plain
