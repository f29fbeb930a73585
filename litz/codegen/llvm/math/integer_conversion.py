"""Floats truncated to integers; one that does not fit gives the result of the CPU's instruction.

In: floats. Out: integers of 32 or 64 bits. To LLVM a float that does not fit is poison. So it would
take `where(m, inf, x)` for x, since the infinity has no integer; and an integer that went through a
double for that integer, though it does not fit the smaller type it becomes. Here the result is
defined as in eager's C++: the least integer on x86; elsewhere the nearest one, zero for NaN.
"""

from __future__ import annotations

from litz.codegen.llvm.builder import Builder, Value
from litz.target import CpuTarget


def truncate(bits: int, b: Builder, x: Value, cpu: CpuTarget) -> Value:
    """The body of the conversion function."""
    type = x.type.of(f"i{bits}")
    if cpu.isa.saturates:
        return b.extern(f"llvm.fptosi.sat.{type.mangled}.{x.type.mangled}", type, x)
    # The least integer fits, but it is also the result of a number that does not. NaN is not less.
    fits = b.compare("olt", b.abs(x), 2.0 ** (bits - 1))
    return b.select(fits, b.convert("fptosi", x, type.element), -(1 << (bits - 1)))
