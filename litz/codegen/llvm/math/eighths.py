"""Floats of eight bits as their bits: widened to float, and rounded from it, by integers.

In: bits, or floats. Out: floats, or the bits of the nearest such number, ties to even. As torch has
it: of e5m2, what is too large becomes infinite, of e4m3 NaN or the largest number; NaN stays NaN.
Of e5m2 the bits are the upper half of an f16's; those of e4m3, moved by seven, are an f16 that is
256 times too small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from litz.codegen.llvm.builder import Builder, Value
from litz.ir import eighths
from litz.target import CpuTarget

BIAS, FRACTION = 127, 23  # of f32


@dataclass(frozen=True)
class Format:
    """`most` is the last number that rounds to one of the type, or to infinity."""

    bias: int
    fraction: int
    most: float


FORMATS = {"e4m3": Format(7, 3, 464.0), "e5m2": Format(15, 2, 61440.0)}
LARGEST, INFINITE, NAN = 0x7E, 0x7C, 0x7F


def widened(b: Builder, x: Value, name: str) -> Value:
    """The floats that bytes are."""
    if name == "e5m2":
        half = b.shl(b.convert("zext", x, "i16"), 8)
        return b.convert("fpext", b.convert("bitcast", half, "half"), "float")
    # The sign goes to both of the highest bits, and has to leave the second.
    half = b.bit_and(b.shl(b.convert("sext", x, "i16"), 7), 0xBFFF)
    small = b.convert("fpext", b.convert("bitcast", half, "half"), "float")
    nan = b.compare("eq", b.bit_and(x, NAN), NAN)
    return b.select(nan, b.constant(math.nan, small.type), b.mul(small, 256.0))


def narrowed(name: str, b: Builder, x: Value, _: CpuTarget) -> Value:
    """The body of the function that rounds."""
    form = FORMATS[name]
    bits = b.bits(x)
    size = b.bit_and(bits, 0x7FFFFFFF)
    magnitude = b.floats(size)
    normal = _normal(b, size, form)
    small = b.compare("olt", magnitude, 2.0 ** (1 - form.bias))
    found = b.select(small, _denormal(b, magnitude, form), normal)
    larger = INFINITE if name == "e5m2" else LARGEST if eighths.saturates() else NAN
    large = b.compare("ogt", magnitude, form.most)
    found = b.select(large, b.constant(larger, found.type), found)
    found = b.select(b.compare("uno", x, x), b.constant(NAN, found.type), found)
    sign = b.bit_and(b.lshr(bits, 24), 0x80)
    return b.convert("trunc", b.bit_or(found, sign), "i8")


def _normal(b: Builder, size: Value, form: Format) -> Value:
    """Half of the last place is added, less one if the last place is even. A fraction that
    overflows makes the exponent larger, as it should."""
    shift = FRACTION - form.fraction
    odd = b.bit_and(b.lshr(size, shift), 1)
    moved = b.add(size, ((form.bias - BIAS) << FRACTION) + (1 << (shift - 1)) - 1)
    return b.lshr(b.add(moved, odd), shift)


def _denormal(b: Builder, magnitude: Value, form: Format) -> Value:
    """Beside a number whose last place is the least denormal, an addition rounds to that."""
    anchor = 2.0 ** (1 - form.bias - form.fraction + FRACTION)
    sum_bits = b.bits(b.add(magnitude, anchor))
    return b.sub(sum_bits, b.bits(b.constant(anchor, magnitude.type)))
