"""Rounding to bfloat16 is eager's, bit for bit, with the processor's instruction and without; and
what is merely copied keeps every bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from litz.codegen.llvm import math
from litz.codegen.llvm.math.bf16 import DENORMAL, TO_BF16
from litz.ir.dtypes import BF16, F32
from litz.ir.expr import axis, cast, load
from litz.target import host
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
        monkeypatch.setattr("litz.codegen.llvm.math.bf16.WIDTHS", ())
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
    cpu = replace(host(), triple="x86_64-linux-gnu", features=("+avx512bf16",))
    quick, _ = math.definitions([(TO_BF16, "f32", 16)], cpu)
    plain, _ = math.definitions([(TO_BF16, "f32", 16)])
    assert "fptrunc" in quick and f"i32 {DENORMAL}" in quick
    assert "fptrunc" not in plain


COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cat": lambda x: torch.cat([x, x[:3], x[7:]]),
    "cat of many": lambda x: torch.cat([x.view(256, 256)] * 12, 1),
    "cat, and read again": lambda x: torch.cat([x, x[:3]])[1:].clone(),
    "stack": lambda x: torch.stack([x, x.flip(0)]),
    "pad": lambda x: torch.nn.functional.pad(x, (3, 5), value=0.3),
    "where": lambda x: torch.where(x.view(torch.int16) > 7, x, x.flip(0)),
    "masked_fill": lambda x: x.masked_fill(x.view(torch.int16) % 3 == 0, 1.5),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:100], 0, 50, 150),
    "select_scatter": lambda x: torch.select_scatter(x.view(256, 256), x[:256], 0, 3),
    "tril": lambda x: x.view(256, 256).tril(),
    "roll": lambda x: x.roll(3),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", COPIES)
def test_copies_keep_the_bits_of_every_half(kind: str, dtype: torch.dtype) -> None:
    """Of numbers that are none, too: they may be integers that were looked at as halves."""
    x = torch.arange(1 << 16).to(torch.int16).view(dtype)

    def copied(x: torch.Tensor) -> torch.Tensor:
        return COPIES[kind](x).view(torch.int16)

    compiled = torch.compile(copied, backend="litz", options={"on_error": "raise"})
    assert compiled(x).equal(copied(x))


@pytest.mark.parametrize("kind", ["cat", "stack", "where"])
@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.float8_e4m3fn], ids=str)
def test_copies_keep_the_bits_of_every_eighth(kind: str, dtype: torch.dtype) -> None:
    x = torch.arange(1 << 8).to(torch.uint8).view(dtype)

    def copied(x: torch.Tensor) -> torch.Tensor:
        flipped = x.view(torch.uint8).flip(0).view(dtype)
        ways = {
            "cat": lambda: torch.cat([x, x[:3], flipped]),
            "stack": lambda: torch.stack([x, flipped]),
            "where": lambda: torch.where(x.view(torch.uint8) > 9, x, flipped),
        }
        return ways[kind]().view(torch.uint8)

    compiled = torch.compile(copied, backend="litz", options={"on_error": "raise"})
    assert compiled(x).equal(copied(x))
