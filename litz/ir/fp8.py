"""fp8 floats in NumPy: rounding to them, and their bits.

In: arrays of float32. Out: arrays of float32 that hold fp8 numbers, or their bits. Rounding is
torch's: to nearest, ties to even. A number too large for e5m2 becomes infinite. One too large for
e4m3, which has no infinity, becomes NaN or the largest number: versions of torch differ, so
`saturates` tries it. Example: `rounded(np.float32([464, 465]), E4M3)` is 448 and, with torch 2.11,
NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from litz.ir.dtypes import E4M3, E5M2, DType

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Format:
    """Bits of the fraction, the exponent of the least normal number, the largest number, and the
    value (`behind`) that larger numbers become."""

    fraction: int
    least: int
    most: float
    behind: float


FORMATS: dict[DType, Format] = {
    E4M3: Format(3, -6, 448.0, math.nan),
    E5M2: Format(2, -14, 57344.0, math.inf),
}


@cache
def saturates() -> bool:
    """Whether torch rounds a number too large for e4m3 to the largest one."""
    with unset_fake_temporarily():
        return bool(
            torch.tensor(480.0, dtype=torch.float32, device="cpu").to(torch.float8_e4m3fn).float()
            == 448.0
        )


def rounded(values: Array | float, dtype: DType) -> Array:
    """The nearest numbers of the type."""
    form = FORMATS[dtype]
    with np.errstate(all="ignore"):
        wide = np.asarray(values, np.float64)
        exponent = np.maximum(np.frexp(wide)[1] - 1, form.least)
        step = np.ldexp(1.0, exponent - form.fraction)
        near = np.rint(wide / step) * step
        most = form.most if dtype is E4M3 and saturates() else form.behind
        beyond = np.copysign(most, wide)
        return np.where(np.abs(near) > form.most, beyond, near).astype(np.float32)


def from_bits(bits: Array, dtype: DType) -> Array:
    """The numbers with these bits."""
    form = FORMATS[dtype]
    bits = bits.view(np.uint8).astype(np.int32)
    exponent, fraction = (bits & 127) >> form.fraction, bits & ((1 << form.fraction) - 1)
    whole = np.where(exponent > 0, fraction + (1 << form.fraction), fraction)
    power = np.maximum(exponent, 1) - 1 + form.least - form.fraction
    magnitude = np.ldexp(whole.astype(np.float32), power)
    beyond = np.where(fraction == 0, form.behind, math.nan)
    magnitude = np.where(magnitude > form.most, beyond, magnitude)
    return np.where(bits & 128, -magnitude, magnitude).astype(np.float32)


def to_bits(values: Array, dtype: DType) -> Array:
    """The bits of numbers of the type, as bytes."""
    known = from_bits(np.arange(128, dtype=np.uint8), dtype)
    found = np.searchsorted(known[~np.isnan(known)], np.abs(values))
    found = np.where(np.isnan(values), 127, found)
    return (found | np.where(np.signbit(values), 128, 0)).astype(np.uint8)
