"""fp8, held as its bits: widened to f32, and rounded from it, by integer arithmetic.

In: bits, or floats. Out: floats, or the bits of the nearest fp8 number, ties to even. As in torch,
an overflow becomes infinite in e5m2, and NaN or the largest number in e4m3; NaN stays NaN. The bits
of e5m2 are the upper half of an f16. Those of e4m3, shifted by seven, are an f16 that is 256 times
too small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from litz.codegen.llvm.builder import Builder, Value
from litz.ir import fp8
from litz.target import CpuTarget

BIAS, FRACTION = 127, 23  # of f32


@dataclass(frozen=True)
class Fp8Format:
    """`most` is the largest number that `_normal` rounds right; larger ones overflow."""

    bias: int
    fraction: int
    most: float


FP8_FORMATS = {"e4m3": Fp8Format(7, 3, 464.0), "e5m2": Fp8Format(15, 2, 61440.0)}
LARGEST, INFINITE, NAN = 0x7E, 0x7C, 0x7F


def widened(b: Builder, x: Value, name: str) -> Value:
    """The floats with these bits."""
    if name == "e5m2":
        half = b.shl(b.convert("zext", x, "i16"), 8)
        return b.convert("fpext", b.convert("bitcast", half, "half"), "float")
    # The sign extension also sets the second highest bit, which is cleared here.
    half = b.bit_and(b.shl(b.convert("sext", x, "i16"), 7), 0xBFFF)
    small = b.convert("fpext", b.convert("bitcast", half, "half"), "float")
    nan = b.compare("eq", b.bit_and(x, NAN), NAN)
    return b.select(nan, b.constant(math.nan, small.type), b.mul(small, 256.0))


def narrowed(name: str, b: Builder, x: Value, _: CpuTarget) -> Value:
    """The body of the rounding function."""
    form = FP8_FORMATS[name]
    bits = b.bits(x)
    size = b.bit_and(bits, 0x7FFFFFFF)
    magnitude = b.floats(size)
    normal = _normal(b, size, form)
    small = b.compare("olt", magnitude, 2.0 ** (1 - form.bias))
    found = b.select(small, _denormal(b, magnitude, form), normal)
    larger = INFINITE if name == "e5m2" else LARGEST if fp8.saturates() else NAN
    large = b.compare("ogt", magnitude, form.most)
    found = b.select(large, b.constant(larger, found.type), found)
    found = b.select(b.compare("uno", x, x), b.constant(NAN, found.type), found)
    sign = b.bit_and(b.lshr(bits, 24), 0x80)
    return b.convert("trunc", b.bit_or(found, sign), "i8")


def _normal(b: Builder, size: Value, form: Fp8Format) -> Value:
    """Add half of the last place, less one bit if the last place is even. A fraction that
    overflows increments the exponent, as it should."""
    shift = FRACTION - form.fraction
    odd = b.bit_and(b.lshr(size, shift), 1)
    moved = b.add(size, ((form.bias - BIAS) << FRACTION) + (1 << (shift - 1)) - 1)
    return b.lshr(b.add(moved, odd), shift)


def _denormal(b: Builder, magnitude: Value, form: Fp8Format) -> Value:
    """Adding a number whose last place is the least denormal rounds to multiples of that."""
    anchor = 2.0 ** (1 - form.bias - form.fraction + FRACTION)
    sum_bits = b.bits(b.add(magnitude, anchor))
    return b.sub(sum_bits, b.bits(b.constant(anchor, magnitude.type)))
