"""Pointwise ops: arithmetic, comparison, logic, rounding, functions of one number, where, casts.

In: views and numbers. Out: one loop that computes each element of the result from the operands'
elements at its position. Half types are computed in f32; integers wrap in their own type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from litz.ir.aten import TO_TORCH, dtype_of
from litz.ir.dtypes import BOOL, F16, F32, DType
from litz.ir.expr import Expr, apply, cast, const
from litz.ir.index import ONE
from litz.lower.registry import FallbackToAten, rule
from litz.lower.runtime_checks import checked_divisor
from litz.lower.values import Lowering, Value, View, element, to_storage
from litz.target import eager_on

Scalar = Callable[..., Expr]


def map_elements(
    low: Lowering, like: torch.Tensor, function: Scalar, operands: list[Value], dtype: DType,
    rounds: bool = False,
) -> View:  # fmt: skip
    """result[p] = function(operand[p]...), operands converted to `dtype` first. With `rounds`,
    scalars are rounded to half types first: bfloat16(0.1) == 0.1 is then true. On a CPU a scalar
    that is the first of two operands always is: eager's kernels treat only the second specially."""
    kinds = [v.dtype.kind for v in operands if isinstance(v, View)] + [dtype.kind]
    if "x" in kinds or dtype_of(like.dtype).kind == "x":
        raise FallbackToAten("a type that is not generated")
    # Ops of a decomposition use scalars unrounded, as the decomposed op's own kernel would.
    may_round = dtype.is_half and low.is_user_op

    first = len(operands) == 2 and low.target.eager.rounds_scalars

    def operand(k: int, place: tuple[Expr, ...]) -> Expr:
        value = operands[k]
        found = element(value, place, dtype)
        asked = rounds or (first and not k) or _reads_as_operand(low, value)
        return _as_half(found, dtype) if may_round and asked and is_number(value) else found

    return low.pointwise(like, lambda p: function(*(operand(k, p) for k in range(len(operands)))))


def is_number(value: Value) -> bool:
    """Whether an operand is one number, or a tensor without dimensions."""
    return not isinstance(value, View) or not value.shape


def _as_half(value: Expr, dtype: DType) -> Expr:
    if value.is_const:
        return const(const(value.attr, dtype).attr, value.dtype)
    return cast(cast(value, dtype), value.dtype)


def _reads_as_operand(low: Lowering, value: Value) -> bool:
    """Whether eager converts a zero-dimensional tensor to the dtype of the other operand."""
    there = isinstance(value, View) and not value.buffer.on_host
    return there and low.target.eager.casts_scalar_tensors


def promoted(*operands: Value) -> DType:
    """The dtype in which eager combines operands: torch's own promotion over stand-ins."""
    stand_ins: list[Any] = []
    for v in operands:
        if isinstance(v, View):
            torch_dtype = TO_TORCH[v.dtype.name]
            shape = () if not v.shape else (1,) * len(v.shape)
            stand_ins.append(torch.empty(shape, dtype=torch_dtype, device="meta"))
        elif isinstance(v, Expr):  # a symbolic number promotes as any number of its kind
            stand_ins.append(0.0 if v.dtype.is_float else 0)
        else:
            stand_ins.append(v)
    while len(stand_ins) > 1:
        result = torch.result_type(stand_ins[0], stand_ins[1])
        stand_ins = [torch.empty((1,), dtype=result, device="meta"), *stand_ins[2:]]
    first = stand_ins[0]
    return dtype_of(first.dtype if isinstance(first, torch.Tensor) else torch.int64)


# -- functions of one number -----------------------------------------------------------------

# ATen name -> op. The result is floating: integers are converted to the result's dtype first.
_SAME_NAME = """
    exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh
    asinh acosh atanh erf erfc sigmoid sqrt rsqrt
"""
FLOAT_FUNCTIONS = {name: name for name in _SAME_NAME.split()} | {
    "special_erf": "erf",
    "special_erfc": "erfc",
    "special_expm1": "expm1",
}


def _lower_float_function(op: str, low: Lowering, like: torch.Tensor, x: Value, **_: Any) -> Value:
    return map_elements(low, like, partial(apply, op), [x], dtype_of(like.dtype))


for _name, _op in FLOAT_FUNCTIONS.items():
    rule(_name)(partial(_lower_float_function, _op))


def _round_kept(op: str, x: Expr) -> Expr:
    return apply(op, x) if x.dtype.is_float else x


def _sign(x: Expr) -> Expr:
    if x.dtype.is_float:
        return apply("sign", x)
    if x.dtype is BOOL:
        return x
    zero, one = const(0, x.dtype), const(1, x.dtype)
    negative = const(-1, x.dtype) if x.dtype.kind == "i" else zero
    return apply("where", apply("gt", x, zero), one, _negative_or_zero(x, zero, negative))


def _negative_or_zero(x: Expr, zero: Expr, negative: Expr) -> Expr:
    return apply("where", apply("lt", x, zero), negative, zero)


def _absolute(x: Expr) -> Expr:
    return x if x.dtype.kind in "ub" else apply("abs", x)


# ATen name -> function. The dtype stays; the store rounds the result.
SAME_TYPE_FUNCTIONS: dict[str, Scalar] = {
    "neg": lambda x: apply("neg", x),
    "abs": _absolute,
    "sign": _sign,
    "sgn": _sign,
    "relu": lambda x: apply("max", x, const(0, x.dtype)),  # max propagates NaN
    "floor": partial(_round_kept, "floor"),
    "ceil": partial(_round_kept, "ceil"),
    "trunc": partial(_round_kept, "trunc"),
    "round.default": partial(_round_kept, "round"),
    "bitwise_not": lambda x: apply("not", x),
    "reciprocal": lambda x: apply("div", const(1, x.dtype), x),
    "square": lambda x: apply("mul", x, x),
    "clone": lambda x: x,
    "alias_copy": lambda x: x,
    "lift_fresh_copy": lambda x: x,
    "positive": lambda x: x,
}


def _lower_same_type(
    function: Scalar, low: Lowering, like: torch.Tensor, x: Value, **_: Any
) -> Value:
    return map_elements(low, like, function, [x], dtype_of(like.dtype))


for _name, _function in SAME_TYPE_FUNCTIONS.items():
    rule(_name)(partial(_lower_same_type, _function))


def truth(x: Expr) -> Expr:
    """x != 0; NaN is true."""
    return x if x.dtype is BOOL else apply("ne", x, const(0, x.dtype))


def _is_infinite(x: Expr) -> Expr:
    if not x.dtype.is_float:
        return const(False, BOOL)
    return apply("eq", apply("abs", x), const(math.inf, x.dtype))


def _is_nan(x: Expr) -> Expr:
    return apply("isnan", x) if x.dtype.is_float else const(False, BOOL)


def _sign_bit(x: Expr) -> Expr:
    if not x.dtype.is_float:
        return apply("lt", x, const(0, x.dtype)) if x.dtype.kind == "i" else const(False, BOOL)
    # copysign sees the sign of -0.0 and of NaN, which a comparison does not.
    return apply("lt", apply("copysign", const(1, x.dtype), x), const(0, x.dtype))


BOOL_FUNCTIONS: dict[str, Scalar] = {
    "logical_not": lambda x: apply("not", truth(x)),
    "isnan": _is_nan,
    "isinf": _is_infinite,
    "isfinite": lambda x: apply("not", apply("or", _is_nan(x), _is_infinite(x))),
    "isposinf": lambda x: (
        apply("eq", x, const(math.inf, x.dtype)) if x.dtype.is_float else const(False, BOOL)
    ),
    "isneginf": lambda x: (
        apply("eq", x, const(-math.inf, x.dtype)) if x.dtype.is_float else const(False, BOOL)
    ),
    "signbit": _sign_bit,
}


def _lower_bool_function(
    function: Scalar, low: Lowering, like: torch.Tensor, x: View, **_: Any
) -> Value:
    return map_elements(low, like, function, [x], x.dtype)


for _name, _function in BOOL_FUNCTIONS.items():
    rule(_name)(partial(_lower_bool_function, _function))


# -- functions of two ------------------------------------------------------------------------


def arithmetic(op: str, x: Expr, y: Expr) -> Expr:
    """An op of the table; on bools, eager's add is `or` and its mul is `and`."""
    if x.dtype is BOOL:
        op = {"add": "or", "mul": "and", "max": "or", "min": "and"}.get(op, op)
    return apply(op, x, y)


BINARY_OPS = {
    "mul": "mul",
    "maximum": "max",
    "minimum": "min",
    "atan2": "atan2",
    "copysign": "copysign",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
    "bitwise_left_shift": "shl",
    "bitwise_right_shift": "shr",
    "__lshift__": "shl",
    "__rshift__": "shr",
    "__and__": "and",
    "__or__": "or",
    "__xor__": "xor",
}


def _lower_binary(op: str, low: Lowering, like: torch.Tensor, x: Value, y: Value) -> Value:
    return map_elements(low, like, partial(arithmetic, op), [x, y], dtype_of(like.dtype))


for _name, _op in BINARY_OPS.items():
    rule(_name)(partial(_lower_binary, _op))


def _lower_sum(
    op: str, low: Lowering, like: torch.Tensor, x: Value, y: Value, alpha: Any = 1
) -> Value:
    def function(a: Expr, b: Expr) -> Expr:
        scaled = b if alpha == 1 else arithmetic("mul", b, const(alpha, b.dtype))
        return arithmetic(op, a, scaled)

    # A scalar that a half type cannot represent: eager's CPU kernels round it, its GPU kernels
    # compute with a float32.
    rounds = low.target.eager.rounds_scalars
    return map_elements(low, like, function, [x, y], dtype_of(like.dtype), rounds)


rule("add")(partial(_lower_sum, "add"))
rule("sub")(partial(_lower_sum, "sub"))

COMPARISONS = {name: name for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def _lower_comparison(op: str, low: Lowering, like: torch.Tensor, x: Value, y: Value) -> Value:
    common = promoted(x, y)
    return map_elements(low, like, partial(apply, op), [x, y], common, rounds=True)


for _name, _op in COMPARISONS.items():
    rule(_name)(partial(_lower_comparison, _op))


def _lower_logical(op: str, low: Lowering, like: torch.Tensor, x: Value, y: Value) -> Value:
    def function(a: Expr, b: Expr) -> Expr:
        return apply(op, truth(a), truth(b))

    return map_elements(low, like, function, [x, y], promoted(x, y))


for _name, _op in {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}.items():
    rule(_name)(partial(_lower_logical, _op))


# -- division --------------------------------------------------------------------------------


@rule("div.Tensor", "div.Scalar", "true_divide")
def _divide(low: Lowering, like: torch.Tensor, x: Value, y: Value) -> Value:
    return map_elements(low, like, partial(apply, "div"), [x, y], dtype_of(like.dtype))


@rule("div.Tensor_mode", "div.Scalar_mode")
def _divide_by_mode(
    low: Lowering, like: torch.Tensor, x: Value, y: Value, rounding_mode: str | None = None
) -> Value:
    functions: dict[str | None, Scalar] = {
        None: partial(apply, "div"),
        "floor": partial(_floor_divide, low, _rounding(low, like, y)),
        "trunc": partial(_truncate_divide, low, _rounding(low, like, y)),
    }
    return map_elements(low, like, functions[rounding_mode], [x, y], dtype_of(like.dtype))


@rule("floor_divide")
def _lower_floor_divide(low: Lowering, like: torch.Tensor, x: Value, y: Value) -> Value:
    return _divide_by_mode(low, like, x, y, "floor")


def _rounding(low: Lowering, like: torch.Tensor, divisor: Value) -> Callable[[Expr], Expr]:
    """The rounding after each step of a quotient that becomes an integer, where one ulp matters.
    Eager's CPU kernels divide halves by a scalar in float32, and by a tensor in the half type
    itself, which rounds at every step."""
    dtype = dtype_of(like.dtype)
    one = not isinstance(divisor, View) or all(n is ONE for n in divisor.shape)
    rounds = low.target.eager.rounds_scalars and low.is_user_op
    if one or not dtype.is_half or not rounds:
        return lambda value: value
    return partial(_as_half, dtype=dtype)


def _truncate_divide(low: Lowering, rounded: Callable[[Expr], Expr], x: Expr, y: Expr) -> Expr:
    if not x.dtype.is_float:
        return apply("truncdiv", x, checked_divisor(low, y))
    return apply("trunc", rounded(apply("div", x, y)))


def _floor_divide(low: Lowering, rounded: Callable[[Expr], Expr], x: Expr, y: Expr) -> Expr:
    """Python's floor division: exact where floor(x / y) would round up; x / 0 is inf or NaN."""
    if not x.dtype.is_float:
        return apply("floordiv", x, checked_divisor(low, y))
    zero, one, half = (const(v, x.dtype) for v in (0, 1, 0.5))
    remainder = apply("fmod", x, y)  # exact in any type
    quotient = rounded(apply("div", rounded(apply("sub", x, remainder)), y))
    crossed = apply(
        "and",
        apply("ne", remainder, zero),
        apply("ne", apply("lt", y, zero), apply("lt", remainder, zero)),
    )
    quotient = apply("where", crossed, rounded(apply("sub", quotient, one)), quotient)
    floor = apply("floor", quotient)
    up = apply("gt", apply("sub", quotient, floor), half)
    floor = apply("where", up, apply("add", floor, one), floor)
    signed_zero = apply("copysign", zero, apply("div", x, y))
    result = apply("where", apply("ne", quotient, zero), floor, signed_zero)
    return apply("where", apply("eq", y, zero), apply("div", x, y), result)


@rule("remainder")
def _lower_remainder(low: Lowering, like: torch.Tensor, x: Value, y: Value) -> Value:
    def function(a: Expr, b: Expr) -> Expr:
        if a.dtype.is_float:
            return apply("remainder", a, b)
        return apply("mod", a, checked_divisor(low, b))

    return map_elements(low, like, function, [x, y], dtype_of(like.dtype), rounds=True)


@rule("fmod")
def _lower_fmod(low: Lowering, like: torch.Tensor, x: Value, y: Value) -> Value:
    def function(a: Expr, b: Expr) -> Expr:
        if a.dtype.is_float:
            return apply("fmod", a, b)
        b = checked_divisor(low, b)
        return apply("sub", a, apply("mul", apply("truncdiv", a, b), b))

    return map_elements(low, like, function, [x, y], dtype_of(like.dtype), rounds=True)


# -- powers, choice, limits, casts -----------------------------------------------------------

# Exponents that eager computes without pow.
POWERS: dict[float, Scalar] = {
    2.0: lambda x: apply("mul", x, x),
    3.0: lambda x: apply("mul", apply("mul", x, x), x),
    0.5: lambda x: apply("sqrt", x),
    -0.5: lambda x: apply("rsqrt", x),
    -1.0: lambda x: apply("div", const(1, x.dtype), x),
    -2.0: lambda x: apply("div", const(1, x.dtype), apply("mul", x, x)),
    1.0: lambda x: x,
}


def _power_of_half(root: Scalar, x: Expr) -> Expr:
    """For float16 on a CPU, eager's roots follow C's pow: -0 gives 0, and -inf gives inf."""
    infinite = apply("eq", x, const(-math.inf, x.dtype))
    return root(apply("add", apply("where", infinite, apply("neg", x), x), const(0.0, x.dtype)))


@rule("pow")
def _lower_power(low: Lowering, like: torch.Tensor, x: Value, y: Value) -> Value:
    dtype = dtype_of(like.dtype)
    if isinstance(y, int) and y < 0 and not dtype.is_float:
        raise FallbackToAten("eager refuses a negative power of integers")
    if not isinstance(y, View) and dtype.is_float:
        exponent = float(y)  # type: ignore[arg-type]
        special = POWERS.get(exponent)
        is_root = dtype is F16 and abs(exponent) == 0.5
        if special is not None and is_root and eager_on(like.device).pow_in_half:
            special = partial(_power_of_half, special)
        if special is not None:
            return map_elements(low, like, special, [x], dtype)
    return map_elements(low, like, partial(apply, "pow"), [x, y], dtype)


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _lower_where(low: Lowering, like: torch.Tensor, condition: View, x: Value, y: Value) -> Value:
    dtype = dtype_of(like.dtype)
    if dtype.kind == "x":
        raise FallbackToAten("a type that is not generated")

    def value(p: tuple[Expr, ...]) -> Expr:
        chosen = truth(element(condition, p, condition.dtype))
        return apply("where", chosen, element(x, p, dtype), element(y, p, dtype))

    return low.pointwise(like, value)


@rule("clamp", "clamp_min", "clamp_max", "hardtanh")
def _lower_clamp(
    low: Lowering, like: torch.Tensor, x: Value, min: Value = None, max: Value = None
) -> Value:
    limits = [("max", min), ("min", max)]
    given = [(op, limit) for op, limit in limits if limit is not None]
    if len(given) == 2 and like.dtype is torch.bool:
        raise FallbackToAten("eager refuses truths between two limits")

    def function(value: Expr, *bounds: Expr) -> Expr:
        for (op, _), bound in zip(given, bounds, strict=True):
            value = arithmetic(op, value, bound)
        return value

    return map_elements(low, like, function, [x, *(v for _, v in given)], dtype_of(like.dtype))


@rule("clamp_max.default", "clamp_max.Tensor")
def _lower_clamp_max(low: Lowering, like: torch.Tensor, x: Value, limit: Value) -> Value:
    return _lower_clamp(low, like, x, None, limit)


@rule("_to_copy", "to")
def _lower_copy(low: Lowering, like: torch.Tensor, x: View, **options: Any) -> Value:
    return _lower_cast(low, like, x, like.dtype)


@rule("copy.default")
def _lower_functional_copy(
    low: Lowering, like: torch.Tensor, x: View, source: View, *_: Any
) -> Value:
    """The value of x after `x.copy_(source)`: the source, in the layout of x."""
    return _lower_cast(low, like, source, like.dtype)


@rule("convert_element_type", namespace="prims")
def _lower_cast(low: Lowering, like: torch.Tensor, x: View, _: torch.dtype) -> Value:
    """A cast in the user's program keeps its rounding even inside a kernel. A cast at the end of a
    decomposition in f32, as gelu's of halves, rounds only where the result is stored."""
    dtype = dtype_of(like.dtype)
    if dtype.kind == "x" or x.dtype.kind == "x" or str(like.device) != x.buffer.device:
        raise FallbackToAten("a type or a device that is not generated")
    asked = low.is_user_op

    def value(p: tuple[Expr, ...]) -> Expr:
        wide = element(x, p, x.dtype)
        if x.dtype is dtype or (wide.dtype is F32 and dtype is F32):
            return wide
        return cast(wide, dtype) if asked else to_storage(wide, dtype)

    return low.pointwise(like, value)


@rule("fma", namespace="prims")
def _lower_fma(low: Lowering, like: torch.Tensor, x: Value, y: Value, z: Value) -> Value:
    """x * y + z; ATen's own kernels round twice as well."""
    dtype = dtype_of(like.dtype)
    if dtype.kind == "x":
        raise FallbackToAten("a type that is not generated")

    def value(p: tuple[Expr, ...]) -> Expr:
        a, b, c = (element(v, p, dtype) for v in (x, y, z))
        return apply("add", apply("mul", a, b), c)

    return low.pointwise(like, value)
