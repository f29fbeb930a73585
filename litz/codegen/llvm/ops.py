"""Each op of the table as LLVM IR.

In: a `Builder`, the IR type of the operands, and the operands. Out: one LLVM value.
`OP_EMITTERS` covers every row of `litz.ir.ops.OPS`; functions named in `INLINE_MATH` are inline
definitions from `litz.codegen.llvm.math`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from litz.codegen.llvm import math
from litz.codegen.llvm.builder import Builder, Type, Value
from litz.codegen.llvm.literals import ELEMENT, is_number
from litz.codegen.llvm.math import fp8
from litz.codegen.llvm.random import random_bits
from litz.ir.checks import CHECK_OPS
from litz.ir.dtypes import BF16, BOOL, F16, F32, F64, FP8_DTYPES, U8, DType

OpEmitter = Callable[..., Value]

# Ops that are calls of an inline math function of the same name.
INLINE_MATH = frozenset(name for name, _ in math.BODIES)


def _arithmetic(float_op: str, int_op: str, b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    return b.emit(f"{float_op if dtype.is_float else int_op} {x}, {y.text}", x.type)


def _extreme(kind: str, b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    """Floats propagate NaN, as eager's do."""
    if dtype.is_float:
        return _float_extreme("ogt" if kind == "max" else "olt", b, x, y)
    if dtype is BOOL:
        return b.bit_or(x, y) if kind == "max" else b.bit_and(x, y)
    return b.intrinsic(f"{'u' if dtype.kind == 'u' else 's'}{kind}", x, y)


def _float_extreme(beats: str, b: Builder, x: Value, y: Value) -> Value:
    """A comparison and a select, which are one x86 instruction. That returns its second operand if
    either is NaN, so a constant that is not NaN goes first; of any other first operand, its NaN is
    put back. Of zeros of two signs the second is taken, as eager's vectors do; `llvm.maximum` would
    take further instructions to order them."""
    first, second = (y, x) if is_number(y.text) else (x, y)
    chosen = b.select(b.compare(beats, first, second), first, second)
    if is_number(first.text):
        return chosen
    return b.select(b.compare("uno", first, first), first, chosen)


def _compare(predicate: str, b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    if dtype.is_float:
        return b.compare("une" if predicate == "ne" else f"o{predicate}", x, y)
    if predicate in ("eq", "ne"):
        return b.compare(predicate, x, y)
    return b.compare(f"{'s' if dtype.kind == 'i' else 'u'}{predicate}", x, y)


def _negate(b: Builder, dtype: DType, x: Value) -> Value:
    return b.neg(x)


def _absolute(b: Builder, dtype: DType, x: Value) -> Value:
    if dtype.is_float:
        return b.abs(x)
    if dtype.kind != "i":
        return x
    return b.select(b.compare("slt", x, 0), b.sub(0, x), x)


def _invert(b: Builder, dtype: DType, x: Value) -> Value:
    return b.bit_xor(x, 1 if dtype is BOOL else -1)


def _sign(b: Builder, dtype: DType, x: Value) -> Value:
    """NaN and zero give zero."""
    one = b.copysign(b.constant(1.0, x.type), x)
    return b.select(b.compare("one", x, 0.0), one, b.constant(0.0, x.type))


def _rsqrt(b: Builder, dtype: DType, x: Value) -> Value:
    return b.div(b.constant(1.0, x.type), b.sqrt(x))


def _floor_divide(b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    """Truncated quotient, less one where the signs differ and it is not exact."""
    if dtype.kind == "u":
        return b.emit(f"udiv {x}, {y.text}", x.type)
    quotient, remainder = _divide_signed(b, x, y)
    crossed = b.bit_and(b.compare("ne", remainder, 0), b.compare("slt", b.bit_xor(remainder, y), 0))
    return b.select(crossed, b.sub(quotient, 1), quotient)


def _divide_signed(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    """x / -1 overflows for the least integer, which traps: negate instead, which wraps."""
    minus_one = b.compare("eq", y, -1)
    safe = b.select(minus_one, b.constant(1, y.type), y)
    quotient = b.emit(f"sdiv {x}, {safe.text}", x.type)
    quotient = b.select(minus_one, b.sub(0, x), quotient)
    return quotient, b.sub(x, b.mul(quotient, y))


def _truncate_divide(b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    if dtype.kind == "u":
        return b.emit(f"udiv {x}, {y.text}", x.type)
    return _divide_signed(b, x, y)[0]


def _modulo(b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    """The sign follows the divisor."""
    if dtype.kind == "u":
        return b.emit(f"urem {x}, {y.text}", x.type)
    _, remainder = _divide_signed(b, x, y)
    crossed = b.bit_and(b.compare("ne", remainder, 0), b.compare("slt", b.bit_xor(remainder, y), 0))
    return b.select(crossed, b.add(remainder, y), remainder)


def _shift(left: bool, b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    """Amounts outside the width shift all bits out, as in eager; LLVM leaves them undefined."""
    width = dtype.bits
    outside = b.compare("uge", y, width)
    if left:
        shifted = b.shl(x, b.select(outside, b.constant(0, y.type), y))
        return b.select(outside, b.constant(0, x.type), shifted)
    amount = b.select(outside, b.constant(width - 1, y.type), y)
    if dtype.kind == "u":
        return b.select(outside, b.constant(0, x.type), b.lshr(x, amount))
    return b.ashr(x, amount)


def _where(b: Builder, dtype: DType, c: Value, x: Value, y: Value) -> Value:
    return b.select(c, x, y)


def _is_nan(b: Builder, dtype: DType, x: Value) -> Value:
    """Also of a stored half float: the value rules drop its widening."""
    wide = convert(b, x, dtype, dtype.compute)
    return b.compare("uno", wide, wide)


def _rounding(name: str, b: Builder, dtype: DType, x: Value) -> Value:
    return b.intrinsic(name, x)


def _copysign(b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    return b.copysign(x, y)


OP_EMITTERS: dict[str, OpEmitter] = {
    "add": partial(_arithmetic, "fadd", "add"),
    "sub": partial(_arithmetic, "fsub", "sub"),
    "mul": partial(_arithmetic, "fmul", "mul"),
    "div": partial(_arithmetic, "fdiv", "sdiv"),
    "and": partial(_arithmetic, "and", "and"),
    "or": partial(_arithmetic, "or", "or"),
    "xor": partial(_arithmetic, "xor", "xor"),
    "floordiv": _floor_divide,
    "truncdiv": _truncate_divide,
    "mod": _modulo,
    "min": partial(_extreme, "min"),
    "max": partial(_extreme, "max"),
    "shl": partial(_shift, True),
    "shr": partial(_shift, False),
    "neg": _negate,
    "abs": _absolute,
    "not": _invert,
    "sign": _sign,
    "copysign": _copysign,
    "floor": partial(_rounding, "floor"),
    "ceil": partial(_rounding, "ceil"),
    "trunc": partial(_rounding, "trunc"),
    "round": partial(_rounding, "roundeven"),
    "sqrt": partial(_rounding, "sqrt"),
    "rsqrt": _rsqrt,
    "isnan": _is_nan,
    "where": _where,
    "random_bits": random_bits,
    **{p: partial(_compare, p) for p in ("eq", "ne", "lt", "le", "gt", "ge")},
}

# Emitted by `Values`, which knows the mask and where errors are noted.
CHECKED = frozenset({*CHECK_OPS, "remainder"})


def computed_type(dtype: DType, lanes: int) -> Type:
    """The LLVM type of a value of this IR type in registers; bf16 and fp8 are held as their
    bits."""
    return Type("i16" if dtype is BF16 else ELEMENT[dtype.name], lanes)


def stored_type(dtype: DType, lanes: int) -> Type:
    """The LLVM type in memory: a bool takes a byte."""
    return Type("i8", lanes) if dtype is BOOL else computed_type(dtype, lanes)


def convert(b: Builder, x: Value, source: DType, to: DType) -> Value:
    """A cast as in C and in eager: floats truncate to integers, bools are != 0."""
    if source is to:
        return x
    if source.is_narrow:
        return convert(b, _widened(b, x, source), F32, to)
    if to.is_narrow:
        return _narrowed(b, convert(b, x, source, F32), to)
    if to is BOOL:
        return b.compare("une" if source.is_float else "ne", x, 0)
    element = ELEMENT[to.name]
    if source.is_float and to.is_float:
        return extended(b, x) if to is F64 else b.convert("fptrunc", x, element)
    if source.is_float:
        return _float_to_int(b, x, source, to)
    signed = source.kind == "i"
    if to.is_float:
        return b.convert("sitofp" if signed else "uitofp", x, element)
    width = 1 if source is BOOL else source.bits
    if to.bits == width:
        return Value(x.text, x.type)
    opcode = "trunc" if to.bits < width else "sext" if signed else "zext"
    return b.convert(opcode, x, element)


def _float_to_int(b: Builder, x: Value, source: DType, to: DType) -> Value:
    """Small integers go through i32, as in C; eager takes u8 through i64. For f32 that makes no
    difference: a float too large for i32 has zeros in its lowest byte."""
    bits = 64 if to.bits == 64 or (to is U8 and source is F64) else 32
    whole = _called(b, f"to_i{bits}", source, x, f"i{bits}")
    return whole if to.bits == bits else b.convert("trunc", whole, ELEMENT[to.name])


def _widened(b: Builder, x: Value, source: DType) -> Value:
    if source is BF16:
        return b.floats(b.shl(b.convert("zext", x, "i32"), 16))
    if source in FP8_DTYPES:
        return fp8.widened(b, x, source.name)
    return extended(b, x)


def extended(b: Builder, x: Value) -> Value:
    """A float in the next wider type, behind a fence: without it, LLVM 22 turns `where(x > 0, 0,
    x)` of an extended value into `where(x >= 0, 0, x)`, which makes 0.0 of -0.0."""
    wide = {"half": "float", "float": "double"}[x.type.element]
    return b.intrinsic("arithmetic.fence", b.convert("fpext", x, wide))


def _narrowed(b: Builder, x: Value, to: DType) -> Value:
    """Calls a function of the module, whose body may depend on the processor. A fence before f16:
    LLVM 22 would turn a copysign before the rounding into one of halves, and round the sign
    operand too. If that was extended to f64, the rounding is a call that nothing defines."""
    if to is F16:
        return b.convert("fptrunc", b.intrinsic("arithmetic.fence", x), "half")
    return _called(b, f"to_{to.name}", F32, x, computed_type(to, 1).element)


def _called(b: Builder, name: str, dtype: DType, x: Value, element: str) -> Value:
    """Call a function of the module, and note that the module needs it."""
    lanes = x.type.lanes
    b.functions.add((name, dtype.name, lanes))
    return b.call(math.symbol(name, dtype.name, lanes), x.type.of(element), x)
