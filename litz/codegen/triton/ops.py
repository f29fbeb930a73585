"""Each op of the table as Triton text.

In: the name of an op, the IR type of its operands and their texts. Out: a Python expression.
`OP_TEMPLATES` covers every row of `litz.ir.ops.OPS` except those that `litz.target.NOT_ON_CUDA`
leaves to ATen. Names that are neither Triton's nor libdevice's are in `prelude`. Example:
`apply_template("max", F32, "a", "b")` is `tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from litz.ir import fp8
from litz.ir.dtypes import BOOL, E4M3, E5M2, F32, F64, FP8_DTYPES, U8, DType

TYPES: dict[str, str] = {
    "f64": "tl.float64",
    "f32": "tl.float32",
    "f16": "tl.float16",
    "bf16": "tl.bfloat16",
    "e4m3": "tl.float8e4nv",
    "e5m2": "tl.float8e5",
    "i64": "tl.int64",
    "i32": "tl.int32",
    "i16": "tl.int16",
    "i8": "tl.int8",
    "u8": "tl.uint8",
    "bool": "tl.int1",
}
# The type of a pointer to each, in a signature.
POINTERS: dict[str, str] = {
    "f64": "*fp64",
    "f32": "*fp32",
    "f16": "*fp16",
    "bf16": "*bf16",
    "e4m3": "*fp8e4nv",
    "e5m2": "*fp8e5",
    "i64": "*i64",
    "i32": "*i32",
    "i16": "*i16",
    "i8": "*i8",
    "u8": "*u8",
    "bool": "*i1",
}


@dataclass(frozen=True)
class OpTemplate:
    """A text with a hole for each operand, {type} and {bits}; others for kinds that differ."""

    floats: str
    ints: str = ""
    f64: str = ""
    bools: str = ""
    bytes: str = ""

    def of(self, dtype: DType) -> str:
        if dtype is U8 and self.bytes:
            return self.bytes
        if dtype is BOOL and self.bools:
            return self.bools
        if not dtype.is_float and self.ints:
            return self.ints
        return self.f64 if dtype is F64 and self.f64 else self.floats

    @property
    def is_operator(self) -> bool:
        """Whether a bare number beside another operand takes on that operand's type."""
        return bool(re.fullmatch(r"\{0\} \S+ \{1\}", self.floats)) or self.floats.startswith(
            "tl.where"
        )


def _libdevice(name: str, arity: int = 1) -> OpTemplate:
    return OpTemplate(f"libdevice.{name}({', '.join(f'{{{k}}}' for k in range(arity))})")


def _extreme(name: str, operator: str) -> OpTemplate:
    """Floats propagate NaN, as eager's do."""
    plain = f"tl.{name}({{0}}, {{1}})"
    careful = f"{plain[:-1]}, propagate_nan=tl.PropagateNan.ALL)"
    return OpTemplate(careful, ints=plain, bools=f"{{0}} {operator} {{1}}")


OP_TEMPLATES: dict[str, OpTemplate] = {
    "add": OpTemplate("{0} + {1}"),
    "sub": OpTemplate("{0} - {1}"),
    "mul": OpTemplate("{0} * {1}"),
    # Triton's own division and square root of f32 are off by a bit or two.
    "div": OpTemplate("tl.div_rn({0}, {1})", f64="{0} / {1}"),
    "sqrt": OpTemplate("tl.sqrt_rn({0})", f64="tl.sqrt({0})"),
    "floordiv": OpTemplate("floor_div({0}, {1})"),
    "truncdiv": OpTemplate("trunc_div({0}, {1})"),
    "mod": OpTemplate("floor_mod({0}, {1})"),
    "remainder": OpTemplate("float_remainder({0}, {1})"),
    "pow": OpTemplate("libdevice.pow({0}, {1})", ints="int_power({0}, {1})"),
    "min": _extreme("minimum", "&"),
    "max": _extreme("maximum", "|"),
    "and": OpTemplate("{0} & {1}"),
    "or": OpTemplate("{0} | {1}"),
    "xor": OpTemplate("{0} ^ {1}"),
    "shl": OpTemplate("shift_left({0}, {1}, {bits})"),
    "shr": OpTemplate("shift_right({0}, {1}, {bits})"),
    # Triton's own negation is 0 - x, which gives 0.0 for 0.0.
    "neg": OpTemplate("{0} * -1.0", ints="-{0}"),
    "abs": OpTemplate("tl.abs({0})"),
    "not": OpTemplate("~{0}", bytes="{0} ^ 255"),
    "sign": OpTemplate("({0} > 0).to({type}) - ({0} < 0).to({type})"),
    "floor": OpTemplate("tl.floor({0})"),
    "ceil": OpTemplate("tl.ceil({0})"),
    "trunc": _libdevice("trunc"),
    "round": _libdevice("rint"),
    # libdevice's is off by two bits: it is not the quotient that the value rules take it for.
    "rsqrt": OpTemplate("tl.div_rn(1.0, tl.sqrt_rn({0}))", f64="1.0 / tl.sqrt({0})"),
    "sigmoid": OpTemplate("sigmoid({0})"),
    "ndtri": _libdevice("normcdfinv"),
    **{
        name: _libdevice(name)
        for name in (
            *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan"),
            *("asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf"),
            *("erfc", "lgamma", "erfcx", "erfinv", "j0", "j1", "y0", "y1"),
        )
    },
    **{name: _libdevice(name, 2) for name in ("fmod", "atan2", "hypot", "copysign")},
    "eq": OpTemplate("{0} == {1}"),
    "ne": OpTemplate("{0} != {1}"),
    "lt": OpTemplate("{0} < {1}"),
    "le": OpTemplate("{0} <= {1}"),
    "gt": OpTemplate("{0} > {1}"),
    "ge": OpTemplate("{0} >= {1}"),
    "isnan": OpTemplate("{0} != {0}"),
    "where": OpTemplate("tl.where({0}, {1}, {2})"),
    "random_bits": OpTemplate("philox({0}, {1})"),
    # The emitter supplies the mask and the error flag.
    "check_index": OpTemplate("check_index({0}, {1}, {2}, error, {3})"),
    "check": OpTemplate("check({0}, {1}, {2}, {3}, {4}, error, {5})"),
    "check_divisor": OpTemplate("{0}"),  # as in eager, a division by zero goes on
}


def apply_template(op: str, dtype: DType, *args: str) -> str:
    """The text of an op over operands of a type."""
    text = OP_TEMPLATES[op].of(dtype)
    return text.format(*args, type=TYPES[dtype.name], bits=dtype.bits)


def zero(dtype: DType) -> str:
    """The value of masked lanes in a load: Triton converts no integer to fp8."""
    return "0.0" if dtype in FP8_DTYPES else "0"


def converted(text: str, source: DType, to: DType) -> str:
    """A cast as in C and in eager: floats truncate to integers, bools are != 0."""
    if source is to:
        return text
    if source is not F32 and (source.is_narrow or to.is_narrow):  # narrow floats go through f32
        return converted(f"{text}.to(tl.float32)", F32, to)
    if to is BOOL:
        return f"{text} != 0"
    if to is E5M2 or (to is E4M3 and not fp8.saturates()):
        return f"to_{to.name}({text})"
    if source.is_float and to.is_int and to.bits < 32:
        # Small integers go through i32, as in C; eager's kernels take u8 through i64.
        return f"{text}.to({'tl.int64' if to is U8 else 'tl.int32'}).to({TYPES[to.name]})"
    return f"{text}.to({TYPES[to.name]})"
