"""Powers and greatest common divisors of integers.

In: a builder of an integer type, and two operands. Out: the result; powers wrap. Example:
`gcd(b, x, y)`.
"""

from __future__ import annotations

from litz.codegen.llvm.builder import Builder, Value


def _is_signed(b: Builder) -> bool:
    return not b.dtype.startswith("u")


def power(b: Builder, x: Value, y: Value) -> Value:
    """Square and multiply. With a negative exponent only 1 and -1 give a nonzero result."""
    one = b.constant(1, x.type)
    result, square = one, x
    for bit in range(x.type.bits - _is_signed(b)):  # odd bases need every bit of the exponent
        odd = b.compare("ne", b.bit_and(y, 1 << bit), 0)
        result = b.mul(result, b.select(odd, square, one))
        square = b.mul(square, square)
    if not _is_signed(b):
        return result
    odd = b.compare("ne", b.bit_and(y, 1), 0)
    minus = b.select(odd, x, one)
    tiny = b.select(b.compare("eq", x, -1), minus, b.constant(0, x.type))
    tiny = b.select(b.compare("eq", x, 1), one, tiny)
    return b.select(b.compare("slt", y, 0), tiny, result)


def gcd(b: Builder, x: Value, y: Value) -> Value:
    """Euclid's algorithm: (x, y) becomes (y mod x, x) until x is zero in every lane."""
    if _is_signed(b):
        x, y = (b.select(b.compare("slt", a, 0), b.sub(0, a), a) for a in (x, y))
    entry, loop, done = b.block, b.fresh("loop"), b.fresh("done")
    left, right = (Value(f"%{b.fresh('next')}", x.type) for _ in range(2))
    b.branch(loop)

    b.label(loop)
    divisor = b.phi([(x, entry), (left, loop)])
    value = b.phi([(y, entry), (right, loop)])
    ended = b.compare("eq", divisor, 0)
    # The remainder by -1 is that by 1, but the least integer divided by -1 traps.
    trivial = b.bit_or(ended, b.compare("eq", divisor, -1)) if _is_signed(b) else ended
    safe = b.select(trivial, b.constant(1, x.type), divisor)
    opcode = "srem" if _is_signed(b) else "urem"
    rest = b.emit(f"{opcode} {value}, {safe.text}", x.type)
    b.assign(left, b.select(ended, divisor, rest))
    b.assign(right, b.select(ended, value, divisor))
    b.branch_if(b.any_lane(b.compare("ne", left, 0)), loop, done)

    b.label(done)
    return right
