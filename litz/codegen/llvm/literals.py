"""Types and constants as LLVM IR text.

In: Python numbers and the dtype names of the loop IR. Out: text.
Example: `float_literal(0.1, "f32")` is `0x3FB99999A0000000`: LLVM writes a float as the double of
the same value, so the number is rounded to the type first.
"""

from __future__ import annotations

import math
import struct

import numpy as np

ELEMENT: dict[str, str] = {
    "f64": "double",
    "f32": "float",
    "f16": "half",
    "bf16": "bfloat",
    "e4m3": "i8",
    "e5m2": "i8",
    "i64": "i64",
    "i32": "i32",
    "i16": "i16",
    "i8": "i8",
    "u8": "i8",
    "bool": "i1",
}
"""The LLVM element type of each dtype; signs live in the instructions, not in the types."""


def float_literal(value: float, dtype: str) -> str:
    """`value` rounded to f32 or f64, as the sixteen hex digits of a double."""
    if dtype == "f32":
        with np.errstate(over="ignore"):
            value = float(np.float32(value))
    return f"0x{struct.pack('>d', value).hex().upper()}"


def int_literal(value: int, bits: int) -> str:
    """`value` wrapped into `bits` and printed signed, as LLVM itself prints it."""
    wrapped = value & ((1 << bits) - 1)
    return str(wrapped - (1 << bits) if wrapped >> (bits - 1) and bits > 1 else wrapped)


def splat(literal: str, element: str, lanes: int) -> str:
    """A constant with `literal` in each lane: `splat (float 0x...)`; for one lane, itself."""
    return literal if lanes == 1 else f"splat ({element} {literal})"


def is_number(text: str) -> bool:
    """Whether an operand is a float literal, in one lane or in all, and no NaN."""
    digits = text.rstrip(")").rpartition("0x")[2]
    if text.startswith("%") or len(digits) != 16:
        return False
    return not math.isnan(struct.unpack(">d", bytes.fromhex(digits))[0])
