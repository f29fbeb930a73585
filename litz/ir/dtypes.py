"""Element types of the loop IR.

In: nothing. Out: the twelve `DType` values and their facts. Example: `BF16.compute is F32`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class DType:
    """One element type. `kind` is f(loat), i(nt), u(nsigned) or b(ool)."""

    name: str
    kind: str
    bytes: int
    numpy: type

    def __repr__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_half(self) -> bool:
        return self.kind == "f" and self.bytes == 2

    @property
    def is_narrow(self) -> bool:
        """Whether it is a float of one or two bytes, which is storage only: arithmetic widens it to
        f32 and rounds at a store."""
        return self.kind == "f" and self.bytes <= 2

    @property
    def is_int(self) -> bool:
        return self.kind in "iu"

    @property
    def compute(self) -> DType:
        """The type of arithmetic on values loaded as this type."""
        return F32 if self.is_narrow else self

    @property
    def accumulator(self) -> DType:
        """The type of the accumulator of a reduction along a GPU's lanes: bools are counted."""
        return I32 if self.kind == "b" else self

    @property
    def bits(self) -> int:
        return 8 * self.bytes


F64 = DType("f64", "f", 8, np.float64)
F32 = DType("f32", "f", 4, np.float32)
F16 = DType("f16", "f", 2, np.float16)
# NumPy has no bfloat16: the interpreter keeps such values in float32, rounded at every store.
BF16 = DType("bf16", "f", 2, np.float32)
# Nor has it fp8 (torch's float8_e4m3fn and float8_e5m2), which is kept in float32 as well.
E4M3 = DType("e4m3", "f", 1, np.float32)
E5M2 = DType("e5m2", "f", 1, np.float32)
I64 = DType("i64", "i", 8, np.int64)
I32 = DType("i32", "i", 4, np.int32)
I16 = DType("i16", "i", 2, np.int16)
I8 = DType("i8", "i", 1, np.int8)
U8 = DType("u8", "u", 1, np.uint8)
BOOL = DType("bool", "b", 1, np.bool_)

_ALL = (F64, F32, F16, BF16, E4M3, E5M2, I64, I32, I16, I8, U8, BOOL)
DTYPES: dict[str, DType] = {d.name: d for d in _ALL}
FP8_DTYPES = (E4M3, E5M2)
