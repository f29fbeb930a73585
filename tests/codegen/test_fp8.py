"""Floats of eight bits are torch's, number for number: in the interpreter and on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from litz.ir import fp8
from litz.ir.aten import torch_dtype
from litz.ir.dtypes import E4M3, E5M2, F32, U8, DType
from litz.ir.expr import apply, axis, bitcast, cast, const, load
from litz.ir.interpret import convert
from litz.rewrite.simplify import simplify_value
from tests import draws
from tests.codegen import native

KINDS = [E4M3, E5M2]
BYTES = torch.arange(256, dtype=torch.uint8)


def floats(dtype: torch.dtype) -> torch.Tensor:
    """Every f16, random bits, and all halfway points with their neighbours."""
    half = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.float16).float()
    generator = draws.generator(0)
    bits = torch.randint(-(1 << 31), 1 << 31, (1 << 16,), generator=generator)
    known = BYTES.view(dtype).double()
    known = known[known.isfinite()].unique()
    ends = torch.tensor([465.0, 480.0, 481.0, 61439.0, 61440.0, 65536.0, 1e38, torch.inf])
    middle = torch.cat([((known[1:] + known[:-1]) / 2).float(), ends, -ends])
    near = [middle.nextafter(torch.tensor(to)) for to in (torch.inf, -torch.inf)]
    nan = torch.tensor([torch.nan, -torch.nan])
    return torch.cat([half, bits.to(torch.int32).view(torch.float32), middle, *near, nan])


def check(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Bit for bit, of numbers."""
    nan = expected.float().isnan()
    assert found.float().isnan().equal(nan)
    assert found.view(torch.uint8)[~nan].equal(expected.view(torch.uint8)[~nan])


@pytest.mark.parametrize("kind", KINDS)
def test_the_interpreter_rounds_as_torch_does(kind: DType) -> None:
    dtype = torch_dtype(kind)
    x = floats(dtype)
    check(torch.from_numpy(convert(x.numpy(), kind)).to(dtype), x.to(dtype))
    numbers = fp8.from_bits(BYTES.numpy(), kind)
    np.testing.assert_array_equal(numbers, BYTES.view(dtype).float().numpy())
    check(torch.from_numpy(fp8.to_bits(numbers, kind)).view(dtype), BYTES.view(dtype))
    for value in (0.3, -464.0, 465.0, 61440.0, torch.inf):
        wanted = torch.tensor(value).to(dtype).item()
        np.testing.assert_equal(const(value, kind).attr, wanted)


@pytest.mark.parametrize("lanes", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_machine_code_rounds_as_torch_does(kind: DType, lanes: bool) -> None:
    dtype = torch_dtype(kind)
    x = floats(dtype) if lanes else floats(dtype)[-3:]
    source, result = native.buffer("x", F32, len(x)), native.buffer("y", kind, len(x))
    i = axis("i0", len(x))
    kernel = native.pointwise((i,), {result: cast(load(source, (i,)), kind)})
    check(native.run(kernel, {source: x, result: None})[0]["y"], x.to(dtype))


@pytest.mark.parametrize("saturates", [True, False])
def test_what_is_too_large_for_e4m3(saturates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its largest number or NaN: torch 2.11 and 2.13 differ."""
    monkeypatch.setattr(fp8, "saturates", lambda: saturates)
    x = torch.tensor([464.0, 464.1, 470.0, 480.0, 500.0, 1e38, torch.inf]).repeat(5)
    x = torch.cat([x, -x])
    largest = torch.where(x.abs() > 464, 448.0 if saturates else torch.nan, 448.0)
    expected = largest.copysign(x).to(torch.float8_e4m3fn)
    check(torch.from_numpy(convert(x.numpy(), E4M3)).to(torch.float8_e4m3fn), expected)
    source, result = native.buffer("x", F32, len(x)), native.buffer("y", E4M3, len(x))
    i = axis("i0", len(x))
    kernel = native.pointwise((i,), {result: cast(load(source, (i,)), E4M3)})
    check(native.run(kernel, {source: x, result: None})[0]["y"], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_machine_code_widens_every_byte(kind: DType) -> None:
    source, result = native.buffer("x", U8, 256), native.buffer("y", F32, 256)
    i = axis("i0", 256)
    value = cast(bitcast(load(source, (i,)), kind), F32)
    found = native.run(native.pointwise((i,), {result: value}), {source: BYTES, result: None})
    expected = BYTES.view(torch_dtype(kind)).float()
    torch.testing.assert_close(found[0]["y"], expected, rtol=0, atol=0, equal_nan=True)


def test_what_overflows_may_be_no_number() -> None:
    """isnan(cast(x)) is isnan(x) of every type but the one that has no infinity."""
    x = load(native.buffer("x", F32, 4), (axis("i0", 4),))
    asked = {kind: simplify_value(apply("isnan", cast(x, kind))) for kind in KINDS}
    assert asked[E5M2] is apply("isnan", x)
    assert asked[E4M3] is apply("isnan", cast(x, E4M3))
