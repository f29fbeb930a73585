"""Special functions: gamma, error and Bessel functions, orthogonal polynomials, float bits, gcd.

In: views and numbers. Out: one pointwise loop (two for `frexp`). Most rows are an op of the table
or a product of two; the others have a function of their own. Example: `aten.i0(x)` becomes
`i0e(x) * exp(abs(x))`.
"""

from __future__ import annotations

import math
import sys
from functools import partial

import torch

from litz.ir.aten import dtype_of
from litz.ir.dtypes import BF16, F16, F32, F64, I16, I32, I64, DType
from litz.ir.expr import Expr, apply, bitcast, cast, const
from litz.lower.pointwise import Scalar, arithmetic, map_elements
from litz.lower.registry import FallbackToAten, rule
from litz.lower.values import Lowering, Value, View, element

# -- functions of one number -----------------------------------------------------------------


def _times_exp(op: str, sign: Scalar, x: Expr) -> Expr:
    """A function that the table has in scaled form, unscaled."""
    return apply("mul", apply(op, x), apply("exp", sign(x)))


def _absolute(x: Expr) -> Expr:
    return apply("abs", x)


def _negative(x: Expr) -> Expr:
    return apply("neg", x)


def _angle(x: Expr) -> Expr:
    zero, pi = const(0, x.dtype), const(math.pi, x.dtype)
    result = apply("where", apply("lt", x, zero), pi, zero)
    return apply("where", apply("isnan", x), x, result)


def _spherical_bessel(x: Expr) -> Expr:
    """sin(x) / x: 1 at zero, 0 at infinity."""
    size = apply("abs", x)
    quotient = apply("div", apply("sin", x), x)
    at_infinity = apply("eq", size, const(math.inf, x.dtype))
    result = apply("where", at_infinity, const(0, x.dtype), quotient)
    return apply("where", apply("eq", x, const(0, x.dtype)), const(1, x.dtype), result)


# ATen name -> function. The result is floating: integers are converted to its dtype first.
FUNCTIONS: dict[str, Scalar] = {
    "lgamma": partial(apply, "lgamma"),
    "digamma": partial(apply, "digamma"),
    "erfinv": partial(apply, "erfinv"),
    "special_erfcx": partial(apply, "erfcx"),
    "special_ndtri": partial(apply, "ndtri"),
    "special_i0e": partial(apply, "i0e"),
    "special_i1e": partial(apply, "i1e"),
    "special_scaled_modified_bessel_k0": partial(apply, "k0e"),
    "special_scaled_modified_bessel_k1": partial(apply, "k1e"),
    "i0": partial(_times_exp, "i0e", _absolute),
    "special_i1": partial(_times_exp, "i1e", _absolute),
    "special_modified_bessel_i0": partial(_times_exp, "i0e", _absolute),
    "special_modified_bessel_i1": partial(_times_exp, "i1e", _absolute),
    "special_modified_bessel_k0": partial(_times_exp, "k0e", _negative),
    "special_modified_bessel_k1": partial(_times_exp, "k1e", _negative),
    "special_spherical_bessel_j0": _spherical_bessel,
    "angle": _angle,
}


def _lower_function(function: Scalar, low: Lowering, like: torch.Tensor, x: Value) -> Value:
    return map_elements(low, like, function, [x], dtype_of(like.dtype))


for _name, _function in FUNCTIONS.items():
    rule(_name)(partial(_lower_function, _function))


def _lower_wave(op: str, low: Lowering, like: torch.Tensor, x: Value) -> Value:
    dtype = dtype_of(like.dtype)
    if dtype is F64:
        raise FallbackToAten("eager's error is 1e-6, more than its tolerance: ours would differ")
    return map_elements(low, like, partial(apply, op), [x], dtype)


for _op in ("j0", "j1", "y0", "y1"):
    rule(f"special_bessel_{_op}")(partial(_lower_wave, _op))
rule("special_airy_ai")(partial(_lower_wave, "airy_ai"))


@rule("polygamma")
def _lower_polygamma(low: Lowering, like: torch.Tensor, n: int, x: Value) -> Value:
    known: dict[int, Scalar] = {0: partial(apply, "digamma"), 1: _trigamma}
    function = known.get(n, partial(_polygamma, n))
    return map_elements(low, like, function, [x], dtype_of(like.dtype))


def _trigamma(x: Expr) -> Expr:
    """Reflected below 1/2, as in eager: at its poles it is large, not infinite."""
    two, one, half, pi = (const(v, x.dtype) for v in (2, 1, 0.5, math.pi))
    small = apply("lt", x, half)
    right = apply("zeta", two, apply("where", small, apply("sub", one, x), x))
    sine = apply("sin", apply("mul", pi, x))
    pole = apply("div", const(math.pi**2, x.dtype), apply("mul", sine, sine))
    return apply("where", small, apply("sub", pole, right), right)


def _polygamma(n: int, x: Expr) -> Expr:
    """(-1)^(n + 1) n! zeta(n + 1, x)."""
    factor = math.exp(math.lgamma(n + 1)) if n > 170 else float(math.factorial(n))
    scale = const(factor if n % 2 else -factor, x.dtype)
    return apply("mul", scale, apply("zeta", const(n + 1, x.dtype), x))


@rule("round.decimals")
def _lower_round(low: Lowering, like: torch.Tensor, x: Value, *, decimals: int = 0) -> Value:
    dtype = dtype_of(like.dtype)
    if not dtype.is_float:
        raise FallbackToAten("decimals of an integer")
    there, back = ("div", "mul") if decimals < 0 else ("mul", "div")
    number = 10.0 ** abs(decimals) if abs(decimals) <= sys.float_info.max_10_exp else math.inf

    def function(value: Expr) -> Expr:
        power = const(number, value.dtype)
        return apply(back, apply("round", apply(there, value, power)), power)

    return map_elements(low, like, function, [x], dtype)


# -- functions of two ------------------------------------------------------------------------


def _ignoring_nan(op: str, x: Expr, y: Expr) -> Expr:
    """The extreme of the two, ignoring NaN; of zeros with two signs the first."""
    if not x.dtype.is_float:
        return arithmetic(op, x, y)
    left = apply("where", apply("isnan", x), y, x)
    right = apply("where", apply("isnan", y), x, y)
    return apply(op, right, left)


def _least_common_multiple(x: Expr, y: Expr) -> Expr:
    """|x / gcd y|, and zero for two zeros. Small integers wrap only at the end, as in C."""
    dtype, wide = x.dtype, x.dtype if x.dtype.bytes >= 4 else I32
    common, zero, one = apply("gcd", x, y), const(0, dtype), const(1, dtype)
    divisor = apply("where", apply("eq", common, zero), one, common)
    quotient = apply("truncdiv", cast(x, wide), cast(divisor, wide))
    return cast(apply("abs", apply("mul", quotient, cast(y, wide))), dtype)


def _lower_extreme(op: str, low: Lowering, like: torch.Tensor, x: Value, y: Value) -> Value:
    """Of zeros with two signs eager takes the first, but with bfloat16 the second."""
    both = [y, x] if like.dtype is torch.bfloat16 else [x, y]
    return map_elements(low, like, partial(_ignoring_nan, op), both, dtype_of(like.dtype))


rule("fmin")(partial(_lower_extreme, "min"))
rule("fmax")(partial(_lower_extreme, "max"))

PAIRS: dict[str, Scalar] = {
    "hypot": partial(apply, "hypot"),
    "special_zeta": partial(apply, "zeta"),
    "gcd": partial(apply, "gcd"),
    "lcm": _least_common_multiple,
}


def _lower_pair(function: Scalar, low: Lowering, like: torch.Tensor, x: Value, y: Value) -> Value:
    return map_elements(low, like, function, [x, y], dtype_of(like.dtype))


for _name, _function in PAIRS.items():
    rule(_name)(partial(_lower_pair, _function))

# -- orthogonal polynomials ------------------------------------------------------------------

# The highest degree of Hermite polynomials that eager computes.
_HERMITE_LIMIT = {F32: 128.0, F64: 512.0}
POLYNOMIALS = {
    **{f"special_chebyshev_polynomial_{kind}": f"chebyshev_{kind}" for kind in "tuvw"},
    "special_hermite_polynomial_h": "hermite_h",
    "special_hermite_polynomial_he": "hermite_he",
    "special_laguerre_polynomial_l": "laguerre_l",
    "special_legendre_polynomial_p": "legendre_p",
}


def _polynomial(op: str, x: Expr, n: Expr) -> Expr:
    value = apply(op, x, n)
    if not op.startswith("hermite"):
        return value
    beyond = apply("ge", n, const(_HERMITE_LIMIT[x.dtype] + 1, x.dtype))
    return apply("where", beyond, const(math.nan, x.dtype), value)


def _shifted(op: str, x: Expr, n: Expr) -> Expr:
    """The shifted Chebyshev polynomial on (0, 1): the plain one at 2 x - 1."""
    return apply(op, apply("sub", apply("add", x, x), const(1, x.dtype)), n)


for _name, _op in POLYNOMIALS.items():
    rule(_name)(partial(_lower_pair, partial(_polynomial, _op)))
for _kind in "tuvw":
    _function = partial(_shifted, f"chebyshev_{_kind}")
    rule(f"special_shifted_chebyshev_polynomial_{_kind}")(partial(_lower_pair, _function))

# -- the bits of floats ----------------------------------------------------------------------

# The integer type that holds the bits of each float type, and its number of fraction bits.
_WORDS: dict[DType, tuple[DType, int]] = {
    F64: (I64, 52),
    F32: (I32, 23),
    F16: (I16, 10),
    BF16: (I16, 7),
}


@rule("nextafter")
def _lower_nextafter(low: Lowering, like: torch.Tensor, x: View, y: View) -> Value:
    dtype = dtype_of(like.dtype)
    if dtype not in _WORDS:
        raise FallbackToAten("a type that eager refuses")
    return map_elements(low, like, partial(_nextafter, dtype), [x, y], dtype, rounds=True)


def _nextafter(dtype: DType, x: Expr, y: Expr) -> Expr:
    """The bits of x, one up or down; zero steps to the smallest number with the sign of y."""
    word, fraction = _WORDS[dtype]
    bits, other = (bitcast(cast(v, dtype), word) for v in (x, y))
    one, sign = const(1, word), const(1 << (word.bits - 1), word)
    zero = const(0, x.dtype)
    grows = apply("eq", apply("gt", y, x), apply("gt", x, zero))
    moved = apply("add", bits, apply("where", grows, one, const(-1, word)))
    least = apply("or", one, apply("and", other, sign))
    result = apply("where", apply("eq", x, zero), least, moved)
    result = apply("where", apply("eq", x, y), other, result)
    # All ones above the fraction and one more bit: the default quiet NaN.
    quiet = const(((1 << (word.bits - fraction)) - 1) << (fraction - 1), word)
    unordered = apply("or", apply("isnan", x), apply("isnan", y))
    return bitcast(apply("where", unordered, quiet, result), dtype)


def _parts(x: Expr) -> tuple[Expr, Expr]:
    """x = m 2^e with 1/2 <= |m| < 1, e as an integer of the width of x; zeros, infinities and NaN
    are their own m."""
    word, fraction = _WORDS[x.dtype]
    bias = (1 << (word.bits - fraction - 2)) - 2
    field = const(((1 << (word.bits - fraction - 1)) - 1) << fraction, word)
    least = const(2.0 ** -(bias - 1), x.dtype)
    tiny = apply("lt", apply("abs", x), least)
    normal = apply("where", tiny, apply("mul", x, const(2.0 ** (fraction + 1), x.dtype)), x)
    bits = bitcast(normal, word)
    raised = apply("where", tiny, const(bias + fraction + 1, word), const(bias, word))
    exponent = apply("shr", apply("and", bits, field), const(fraction, word))
    exponent = apply("sub", exponent, raised)
    half = const(bias << fraction, word)
    mantissa = bitcast(apply("or", apply("and", bits, apply("not", field)), half), x.dtype)
    # Zero and infinity equal twice themselves.
    own = apply("or", apply("eq", apply("add", x, x), x), apply("isnan", x))
    plain = apply("not", own)
    return (
        apply("where", plain, mantissa, x),
        apply("where", plain, exponent, const(0, word)),
    )


@rule("frexp")
def _lower_frexp(low: Lowering, like: list[torch.Tensor], x: View) -> list[Value]:
    dtype = dtype_of(like[0].dtype)
    return [
        map_elements(low, like[0], lambda v: _parts(v)[0], [x], dtype),
        map_elements(low, like[1], lambda v: _parts(v)[1], [x], dtype),
    ]


def _power_of_two(exponent: Expr, dtype: DType) -> Expr:
    """2^e for the exponent e of a normal number."""
    word, fraction = _WORDS[dtype]
    bias = const((1 << (word.bits - fraction - 2)) - 1, word)
    return bitcast(apply("shl", apply("add", exponent, bias), const(fraction, word)), dtype)


def _ldexp(x: Expr, exponent: Expr) -> Expr:
    """x 2^e, rounded once: multiplied by two powers with half the exponent of the result each."""
    word, fraction = _WORDS[x.dtype]
    limit = (1 << (word.bits - fraction - 1)) - 4  # beyond any result; half of it is normal
    mantissa, own = _parts(x)
    bounded = apply("min", apply("max", exponent, const(-4 * limit, I32)), const(4 * limit, I32))
    total = apply("add", own, cast(bounded, word))
    total = apply("min", apply("max", total, const(-limit, word)), const(limit, word))
    half = apply("shr", total, const(1, word))
    first = apply("mul", mantissa, _power_of_two(half, x.dtype))
    return apply("mul", first, _power_of_two(apply("sub", total, half), x.dtype))


@rule("ldexp")
def _lower_ldexp(low: Lowering, like: torch.Tensor, x: View, y: View) -> Value:
    """x 2^y for a float and an integer; else eager multiplies by a power, which may overflow."""
    dtype = dtype_of(like.dtype)
    if dtype.kind == "x":
        raise FallbackToAten("a type that is not generated")
    exact = x.dtype.is_float and y.dtype.is_int

    def value(p: tuple[Expr, ...]) -> Expr:
        if exact:
            return _ldexp(element(x, p, dtype), cast(element(y, p, y.dtype), I32))
        exponent = element(y, p, _power_type(x, y))
        power = apply("pow", const(2.0, exponent.dtype), exponent)
        return apply("mul", element(x, p, dtype), cast(power, dtype.compute))

    return low.pointwise(like, value)


def _power_type(x: View, y: View) -> DType:
    """The dtype of 2^y: y's own if it is floating and has dimensions."""
    own = x.dtype if x.dtype.is_float else F32
    if not y.dtype.is_float:
        return own
    return y.dtype if y.shape or y.dtype.bytes >= own.bytes else own
