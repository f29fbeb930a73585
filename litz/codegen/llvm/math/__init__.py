"""Math functions as LLVM IR, inlined into kernels: exp, log, tanh, erf, sin, pow, lgamma, ...

In: the functions wanted, each with its type and width. Out: IR text that defines each once, and the
declarations it needs. Example:

    text, declares = definitions([("exp", "f32", 16)])
    # define internal <16 x float> @litz.exp.f32.v16(<16 x float> %x) alwaysinline nounwind { ...

A body is a Python function from a `Builder` and operands to the result, so one may use another.
`ulp` is the stated largest error in units of the last place, which the tests check; NaN,
infinities, signed zeros and subnormals are right. An f64 function that is not worth an algorithm of
its own calls libm lane by lane. `MATH` has the elementary functions, `SPECIAL` those written in f64
and used for f32 through it, `INTEGER` the functions of integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from litz.codegen.llvm.builder import Builder, Value
from litz.codegen.llvm.math import (
    bessel,
    bf16,
    exponential,
    fp8,
    gamma,
    hyperbolic,
    integer,
    integer_conversion,
    inverse_error,
    logarithm,
    power,
    trigonometric,
)
from litz.codegen.llvm.math import error_function as error
from litz.codegen.llvm.math import inverse_trigonometric as inverse
from litz.codegen.llvm.math.f64_intermediates import through_f64
from litz.codegen.llvm.math.polynomials import FAMILIES, polynomial
from litz.ir.ops import OPS
from litz.target import CpuTarget

Body = Callable[..., Value]


@dataclass(frozen=True)
class MathFunction:
    """`ulp` and `bodies` by dtype name; a body takes a builder and `arity` operands.

    In f64, results smaller than `floor` count as that large: near a zero that is not a float, the
    error is absolute.
    """

    name: str
    arity: int
    ulp: dict[str, float]
    bodies: dict[str, Body]
    floor: float = 0.0


def _both(name: str, body: Body, f32: float, f64: float) -> MathFunction:
    """One algorithm for either type."""
    return MathFunction(name, 1, {"f32": f32, "f64": f64}, {"f32": body, "f64": body})


def _single(name: str, body: Body, f32: float, f64: float, arity: int = 1) -> MathFunction:
    """Our algorithm for f32, libm for f64."""

    def libm(b: Builder, *operands: Value) -> Value:
        return b.each_lane(name, *operands)

    return MathFunction(name, arity, {"f32": f32, "f64": f64}, {"f32": body, "f64": libm})


_ROWS = [
    _both("exp", exponential.exp, 1.0, 1.0),
    _both("exp2", exponential.exp2, 1.0, 1.0),
    _both("expm1", exponential.expm1, 1.75, 2.0),
    _both("sigmoid", exponential.sigmoid, 2.5, 2.5),
    _both("log", logarithm.log, 1.0, 1.0),
    _both("log2", logarithm.log2, 1.25, 1.25),
    _both("log10", logarithm.log10, 1.25, 1.25),
    _both("log1p", logarithm.log1p, 1.75, 1.75),
    _both("sin", trigonometric.sin, 1.75, 1.75),
    _both("cos", trigonometric.cos, 1.75, 1.75),
    _single("tan", trigonometric.tan, 0.75, 1.0),
    _single("asin", inverse.asin, 2.0, 1.0),
    _single("acos", inverse.acos, 1.25, 1.0),
    _single("atan", inverse.atan, 1.5, 1.0),
    _single("atan2", inverse.atan2, 1.75, 1.0, arity=2),
    _both("sinh", hyperbolic.sinh, 2.0, 2.0),
    _both("cosh", hyperbolic.cosh, 2.0, 2.0),
    _both("tanh", hyperbolic.tanh, 1.5, 1.5),
    _single("asinh", hyperbolic.asinh, 0.75, 2.5),
    _single("acosh", hyperbolic.acosh, 0.75, 2.5),
    _single("atanh", hyperbolic.atanh, 0.75, 2.5),
    _both("erf", error.erf, 1.25, 1.25),
    _single("erfc", error.erfc, 0.75, 5.0),
    _single("pow", power.power, 0.75, 1.0, arity=2),
    _single("fmod", power.fmod, 0.0, 0.0, arity=2),
    _single("hypot", power.hypot, 0.75, 1.0, arity=2),
]

MATH: dict[str, MathFunction] = {row.name: row for row in _ROWS}


def _wide(
    name: str, body: Body, f32: float, f64: float, arity: int = 1, floor: float = 0.0
) -> MathFunction:
    """An algorithm of f64, of which f32 is the rounding."""
    bodies = {"f32": through_f64(body), "f64": body}
    return MathFunction(name, arity, {"f32": f32, "f64": f64}, bodies, floor)


_SPECIAL_ROWS = [
    _wide("lgamma", gamma.lgamma, 0.75, 5.0, floor=1.0),
    _wide("digamma", gamma.digamma, 0.75, 40.0, floor=1.0),  # below 0, terms of log |x| cancel
    _wide("zeta", gamma.zeta, 0.75, 500.0, arity=2),  # 1 ULP for each unit of s log q
    _wide("erfcx", error.erfcx, 0.75, 6.0),
    _wide("erfinv", inverse_error.erfinv, 0.75, 6.0),
    _wide("ndtri", inverse_error.ndtri, 0.75, 6.0),
    _wide("i0e", bessel.i0e, 0.75, 4.0),
    _wide("i1e", bessel.i1e, 0.75, 4.0),
    _wide("k0e", bessel.k0e, 0.75, 16.0),
    _wide("k1e", bessel.k1e, 0.75, 6.0),
    _wide("j0", bessel.j0, 0.75, 5.0, floor=1.0),
    _wide("j1", bessel.j1, 0.75, 4.0, floor=1.0),
    _wide("y0", bessel.y0, 0.75, 10.0, floor=1.0),
    _wide("y1", bessel.y1, 0.75, 6.0, floor=1.0),
    _wide("airy_ai", bessel.airy_ai, 0.75, 64.0, floor=1.0),  # 1 ULP for each unit of its angle
]

SPECIAL: dict[str, MathFunction] = {row.name: row for row in _SPECIAL_ROWS}

_INTEGERS = ("i8", "i16", "i32", "i64", "u8")
INTEGER: dict[str, Body] = {"pow": integer.power, "gcd": integer.gcd}

# Every body by the name of its op and its dtype.
BODIES: dict[tuple[str, str], Body] = {
    **{(f.name, d): body for f in (*_ROWS, *_SPECIAL_ROWS) for d, body in f.bodies.items()},
    **{(name, d): partial(polynomial, name) for name in FAMILIES for d in ("f32", "f64")},
    **{(name, d): body for name, body in INTEGER.items() for d in _INTEGERS},
}


# A processor about which nothing is known.
ANY_CPU = CpuTarget("generic", threads=1, vector_bytes=16, l1_bytes=0, l2_bytes=0)

# Roundings to the types that are held as their bits, and truncations to integers.
NARROWINGS: dict[str, Callable[[Builder, Value, CpuTarget], Value]] = {
    bf16.TO_BF16: bf16.to_bf16,
    **{f"to_{name}": partial(fp8.narrowed, name) for name in fp8.FP8_FORMATS},
    **{f"to_i{bits}": partial(integer_conversion.truncate, bits) for bits in (32, 64)},
}


def symbol(name: str, dtype: str, lanes: int) -> str:
    """The name of the function in a module, without the @."""
    return f"litz.{name}.{dtype}.v{lanes}"


def _define(name: str, dtype: str, lanes: int, cpu: CpuTarget = ANY_CPU) -> tuple[str, set[str]]:
    b = Builder(lanes, dtype)
    if name in NARROWINGS:
        operands = [b.parameter("x")]
        result = NARROWINGS[name](b, operands[0], cpu)
    else:
        operands = [b.parameter(p) for p in "xy"[: OPS[name].arity]]
        result = BODIES[name, dtype](b, *operands)
    b.ret(result)
    head = f"define internal {result.type} @{symbol(name, dtype, lanes)}"
    parameters = ", ".join(map(str, operands))
    lines = [f"{head}({parameters}) alwaysinline nounwind {{", "entry:", *b.lines, "}"]
    return "\n".join(lines), b.declares


def definition(name: str, dtype: str, lanes: int) -> str:
    """The text of one function."""
    return _define(name, dtype, lanes)[0]


def definitions(
    wanted: Iterable[tuple[str, str, int]], cpu: CpuTarget = ANY_CPU
) -> tuple[str, set[str]]:
    """The functions wanted, as (name, dtype, lanes), each once, for a processor;
    and the `declare`s they need."""
    texts: list[str] = []
    declares: set[str] = set()
    for key in dict.fromkeys(wanted):
        text, needed = _define(*key, cpu)
        texts.append(text)
        declares |= needed
    return "\n\n".join(texts), declares
