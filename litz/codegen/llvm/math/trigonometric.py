"""sin, cos (either float type) and tan (f32): |x| = q pi/2 + r, polynomials in r, chosen by q.

In: a builder and its operand. Out: the result, right for arguments of any size. Where |x| is
moderate, pi/2 is subtracted in three parts. If some lane is not moderate, a branch that is rarely
taken computes it again with as many digits of 2/pi as it needs. Example: `sin(b, x)`.
"""

from __future__ import annotations

import math

from litz.codegen.llvm.builder import Builder, Value
from litz.codegen.llvm.math.coefficients import CONSTANTS, POLYNOMIALS, TWO_OVER_PI_WORDS
from litz.codegen.llvm.math.f64_intermediates import narrow, widen
from litz.codegen.llvm.math.formats import FORMATS

# Up to here q is exact, and subtracting pi/2 in three parts leaves r with all its bits.
_MODERATE = {"f32": 2.0**17, "f64": 2.0**30}


def _subtract_quadrants(b: Builder, a: Value, dtype: str) -> tuple[Value, Value]:
    """r, and a word whose low bits are q, for moderate a >= 0."""
    magic = FORMATS[dtype].magic
    shifted = b.fma(a, CONSTANTS["two_over_pi", dtype][0], magic)
    q = b.sub(shifted, magic)
    for part in CONSTANTS["half_pi", dtype]:
        a = b.fma(q, -part, a)
    return a, b.bits(shifted)


def _subtract_huge_quadrants(b: Builder, a: Value) -> tuple[Value, Value]:
    """r and q, both 64 bits wide, for an f32 a >= 2^17, after Payne and Hanek.

    a is an integer of 24 bits times 2^k. Digits of 2/pi that are worth a multiple of four after
    that shift do not affect q mod 4, and the 96 digits after them determine r. So this multiplies
    modulo 2^96 and keeps the upper 64 bits, of which q is the upper two.
    """
    word = b.bits(a)
    mantissa = b.bit_or(b.bit_and(word, 0x7FFFFF), 0x800000)
    start = b.sub(b.lshr(word, 23), 120)
    first, shift = b.lshr(start, 5), b.bit_and(start, 31)
    window = [b.constant(w, word.type) for w in TWO_OVER_PI_WORDS[:4]]
    for k in range(1, len(TWO_OVER_PI_WORDS) - 3):
        reached = b.compare("sge", first, k)
        window = [b.select(reached, TWO_OVER_PI_WORDS[k + j], w) for j, w in enumerate(window)]
    digits = [b.intrinsic("fshl", window[j], window[j + 1], shift) for j in range(3)]
    factor = b.convert("zext", mantissa, "i64")
    high, middle, low = (b.mul(factor, b.convert("zext", d, "i64")) for d in digits)
    product = b.add(b.add(b.shl(high, 32), middle), b.lshr(low, 32))
    q = b.lshr(b.add(product, 1 << 61), 62)
    fraction = b.convert("sitofp", b.sub(product, b.shl(q, 62)), "double")
    r = b.mul(fraction, math.pi / 2 * 2.0**-62)
    return b.select(b.compare("oeq", a, math.inf), math.nan, r), q


def _reduce(b: Builder, a: Value, dtype: str) -> tuple[Value, Value]:
    """r, as `dtype`, and a word whose low two bits are q, for any f32 a >= 0."""
    near = _subtract_quadrants(b, a if dtype == "f32" else widen(b, a), dtype)
    huge = b.compare("ogt", a, _MODERATE["f32"])
    entry, rare, done = b.block, b.fresh("huge"), b.fresh("reduced")
    b.branch_if(b.any_lane(huge), rare, done, rarely=True)
    b.label(rare)
    far = _subtract_huge_quadrants(b, a)
    if dtype == "f32":
        far = narrow(b, far[0]), b.convert("trunc", far[1], "i32")
    mixed = [b.select(huge, f, n) for f, n in zip(far, near, strict=True)]
    b.branch(done)
    b.label(done)
    r, q = (b.phi([(n, entry), (m, rare)]) for n, m in zip(near, mixed, strict=True))
    return r, q


def _sine_and_cosine(b: Builder, r: Value) -> tuple[Value, Value]:
    z = b.mul(r, r)
    sine = b.fma(b.mul(r, z), b.horner(z, POLYNOMIALS["sin", b.dtype]), r)
    cosine = b.horner(z, (1.0, -0.5, *POLYNOMIALS["cos", b.dtype]))
    return sine, cosine


def _pick(b: Builder, r: Value, q: Value, sign: Value) -> Value:
    """sin(q pi/2 + r), its sign flipped by the top bit of `sign`."""
    form = FORMATS[b.dtype]
    sine, cosine = _sine_and_cosine(b, r)
    even = b.compare("eq", b.bit_and(q, 1), 0)
    chosen = b.select(even, sine, cosine)
    flip = b.shl(q, form.mantissa + (7 if b.dtype == "f32" else 10))
    flip = b.bit_and(b.bit_xor(flip, sign), form.sign_bit)
    return b.floats(b.bit_xor(b.bits(chosen), flip))


def _circular(b: Builder, x: Value, name: str) -> Value:
    """sin, or cos as the sine one quadrant later. The sign of x is applied last: sin(-0) = -0."""
    a = b.abs(x)
    r, q = _reduce(b, a, "f32") if b.dtype == "f32" else _subtract_quadrants(b, a, "f64")
    sign = b.bits(x)
    if name == "cos":
        q, sign = b.add(q, 1), b.constant(0, sign.type)
    result = _pick(b, r, q, sign)
    return result if b.dtype == "f32" else _redo_huge(b, x, a, result, name)


def _redo_huge(b: Builder, x: Value, a: Value, result: Value, name: str) -> Value:
    """In f64, libm computes huge arguments; an infinity gives NaN either way."""
    huge = b.compare("ogt", a, _MODERATE["f64"])
    entry, rare, done = b.block, b.fresh("huge"), b.fresh("done")
    b.branch_if(b.any_lane(huge), rare, done, rarely=True)
    b.label(rare)
    mixed = b.select(huge, b.each_lane(name, x), result)
    b.branch(done)
    b.label(done)
    return b.phi([(result, entry), (mixed, rare)])


def sin(b: Builder, x: Value) -> Value:
    return _circular(b, x, "sin")


def cos(b: Builder, x: Value) -> Value:
    return _circular(b, x, "cos")


def tan(b: Builder, x: Value) -> Value:
    """tan r, or -1 / tan r in odd quadrants: of f32, with r in f64, as poles magnify its error."""
    r, q = _reduce(b, b.abs(x), "f64")
    z = b.mul(r, r)
    tangent = b.fma(b.mul(r, z), b.horner(z, POLYNOMIALS["tan", "f32"]), r)
    even = b.compare("eq", b.bit_and(q, 1), 0)
    result = narrow(b, b.select(even, tangent, b.div(-1.0, tangent)))
    sign = b.bit_and(b.bits(x), FORMATS["f32"].sign_bit)
    return b.floats(b.bit_xor(b.bits(result), sign))
