"""Rounding to bfloat16: by the processor's instruction if it is right, else by integer arithmetic.

In: floats. Out: the bits of the nearest bfloat16, ties to even; NaN stays NaN. The instruction of
AVX-512 flushes denormals to zero, and eager does not. So its result is used unless some lane holds
a denormal, which hardly ever happens: three instructions for a vector instead of nine. The
instruction of AArch64 keeps denormals.
"""

from __future__ import annotations

from litz.codegen.llvm.builder import Builder, Type, Value
from litz.target import CpuTarget

TO_BF16 = "to_bf16"
DENORMAL = 0x20  # the class of vfpclassps
WIDTHS = (4, 8, 16)


def to_bf16(b: Builder, x: Value, cpu: CpuTarget) -> Value:
    """The body of the rounding function."""
    isa = cpu.isa
    if isa.bf16_feature not in cpu.features or x.type.lanes not in WIDTHS:
        return _by_integers(b, x)
    if not isa.bf16_denormals:
        return _by_instruction(b, x)
    b.branch_if(b.any_lane(_denormal(b, x, isa.bf16_denormals)), "slow", "fast", rarely=True)
    b.label("fast")
    quick = _by_instruction(b, x)
    b.branch("done")
    b.label("slow")
    exact = _by_integers(b, x)
    b.branch("done")
    b.label("done")
    return b.phi([(quick, "fast"), (exact, "slow")])


def _by_instruction(b: Builder, x: Value) -> Value:
    return b.convert("bitcast", b.convert("fptrunc", x, "bfloat"), "i16")


def _denormal(b: Builder, x: Value, test: str) -> Value:
    symbol = f"{test}.{x.type.lanes * 32}"
    b.declares.add(f"declare {x.type.of('i1')} @{symbol}({x.type}, i32 immarg)")
    return b.call(symbol, x.type.of("i1"), x, Value(str(DENORMAL), Type("i32", 1)))


def _by_integers(b: Builder, x: Value) -> Value:
    """Add half of the last place, less one bit if the last place is even."""
    bits = b.bits(x)
    odd = b.bit_and(b.lshr(bits, 16), 1)
    rounded = b.lshr(b.add(bits, b.add(odd, 0x7FFF)), 16)
    quiet = b.bit_or(b.lshr(bits, 16), 0x40)
    return b.convert("trunc", b.select(b.compare("uno", x, x), quiet, rounded), "i16")
