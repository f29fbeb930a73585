"""Philox 4x32-10 as LLVM IR: random bits from a seed and a counter.

In: seeds and counters, i64 in lanes. Out: 64 random bits a lane. 32-bit words are kept in 64-bit
lanes, so that a round's product of two words is one multiplication.
"""

from __future__ import annotations

from litz.codegen.llvm.builder import Builder, Value
from litz.ir.dtypes import DType
from litz.ir.philox import MULTIPLIERS, ROUNDS, WEYL

LOW = 0xFFFFFFFF


def random_bits(b: Builder, dtype: DType, seed: Value, counter: Value) -> Value:
    """Ten rounds, as `litz.ir.philox` defines them."""
    k0, k1 = b.bit_and(seed, LOW), b.lshr(seed, 32)
    c0, c1 = b.bit_and(counter, LOW), b.lshr(counter, 32)
    c2 = c3 = b.constant(0, seed.type)
    for _ in range(ROUNDS):
        p0, p1 = b.mul(c0, MULTIPLIERS[0]), b.mul(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = (
            b.bit_xor(b.bit_xor(b.lshr(p1, 32), c1), k0),
            b.bit_and(p1, LOW),
            b.bit_xor(b.bit_xor(b.lshr(p0, 32), c3), k1),
            b.bit_and(p0, LOW),
        )
        k0, k1 = b.bit_and(b.add(k0, WEYL[0]), LOW), b.bit_and(b.add(k1, WEYL[1]), LOW)
    return b.bit_or(c0, b.shl(c1, 32))
