"""A text builder for LLVM IR: each call appends one instruction and returns its result.

In: an algorithm, as calls. Out: `lines` (the body) and `declares` (the declarations that the
module must hold, each once). A Python number may stand for any operand: it becomes a splat of the
type of the operands beside it. Example:

    b = Builder(16, "f32")
    x = b.parameter("x")
    b.ret(b.fma(x, x, 1.0))   # %1 = call <16 x float> @llvm.fma.v16f32(<16 x float> %x, ...)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from litz.codegen.llvm.literals import ELEMENT, float_literal, int_literal, splat

_BITS = {"float": 32, "double": 64, "half": 16, "bfloat": 16, "ptr": 64}
_MANGLED = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}


@dataclass(frozen=True, slots=True)
class Type:
    """An element type and a number of lanes; one lane is the scalar."""

    element: str
    lanes: int

    def __str__(self) -> str:
        return self.element if self.lanes == 1 else f"<{self.lanes} x {self.element}>"

    @property
    def is_float(self) -> bool:
        return self.element in ("float", "double", "half", "bfloat")

    @property
    def bits(self) -> int:
        """The width of one element."""
        return _BITS.get(self.element) or int(self.element[1:])

    @property
    def mangled(self) -> str:
        """The suffix of an overloaded intrinsic, e.g. `v16f32`."""
        element = _MANGLED.get(self.element, self.element)
        return element if self.lanes == 1 else f"v{self.lanes}{element}"

    def of(self, element: str) -> Type:
        """As many lanes of another element."""
        return replace(self, element=element)

    @property
    def integer(self) -> Type:
        """The integer type of the same width, which holds the bits of a float."""
        return self.of(f"i{self.bits}")


@dataclass(frozen=True, slots=True)
class Value:
    """A register or a constant, with its type."""

    text: str
    type: Type

    def __str__(self) -> str:
        return f"{self.type} {self.text}"


Operand = Value | float | int


class Builder:
    """Writes one function body. `lanes` and `dtype` are those of its plain float values."""

    def __init__(self, lanes: int, dtype: str) -> None:
        self.lanes = lanes
        self.dtype = dtype
        self.type = Type(ELEMENT[dtype], lanes)
        self.lines: list[str] = []
        self.declares: set[str] = set()
        self.functions: set[tuple[str, str, int]] = set()  # inline functions that are called
        self.block = "entry"
        self._count = 0

    @contextmanager
    def typed(self, dtype: str) -> Iterator[None]:
        """For a while, plain float values are of another type: an f32 function computes in f64."""
        before = self.dtype, self.type
        self.dtype, self.type = dtype, Type(ELEMENT[dtype], self.lanes)
        yield
        self.dtype, self.type = before

    # Text

    def fresh(self, prefix: str = "") -> str:
        """A name not used yet in this function."""
        self._count += 1
        return f"{prefix}{self._count}" if prefix else f"v{self._count}"

    def emit(self, text: str, type: Type) -> Value:
        """Append `%new = text`; the result has `type`."""
        value = Value(f"%{self.fresh()}", type)
        self.lines.append(f"  {value.text} = {text}")
        return value

    def parameter(self, name: str, type: Type | None = None) -> Value:
        return Value(f"%{name}", type or self.type)

    def constant(self, value: float, type: Type | None = None) -> Value:
        """`value` in every lane."""
        type = type or self.type
        if type.is_float:
            literal = float_literal(value, "f32" if type.element == "float" else "f64")
        else:
            literal = int_literal(int(value), type.bits)
        return Value(splat(literal, type.element, type.lanes), type)

    def _lift(self, operands: Sequence[Operand]) -> list[Value]:
        """Python numbers take the type of the first operand that is a `Value`."""
        type = next((x.type for x in operands if isinstance(x, Value)), self.type)
        return [x if isinstance(x, Value) else self.constant(x, type) for x in operands]

    def _binary(self, opcode: str, x: Operand, y: Operand) -> Value:
        left, right = self._lift((x, y))
        assert left.type == right.type, (opcode, left, right)
        return self.emit(f"{opcode} {left}, {right.text}", left.type)

    def _arithmetic(self, opcode: str, x: Operand, y: Operand) -> Value:
        left, right = self._lift((x, y))
        return self._binary(f"f{opcode}" if left.type.is_float else opcode, left, right)

    # Arithmetic: of floats or of integers, by the type of the operands

    def add(self, x: Operand, y: Operand) -> Value:
        return self._arithmetic("add", x, y)

    def sub(self, x: Operand, y: Operand) -> Value:
        return self._arithmetic("sub", x, y)

    def mul(self, x: Operand, y: Operand) -> Value:
        return self._arithmetic("mul", x, y)

    def div(self, x: Operand, y: Operand) -> Value:
        return self._binary("fdiv", x, y)

    def neg(self, x: Value) -> Value:
        return self.emit(f"fneg {x}", x.type) if x.type.is_float else self.sub(0, x)

    def fma(self, x: Operand, y: Operand, z: Operand) -> Value:
        """x * y + z, rounded once."""
        return self.intrinsic("fma", x, y, z)

    def horner(self, x: Value, coefficients: Sequence[float]) -> Value:
        """c0 + x * (c1 + x * (c2 + ...)), lowest power first."""
        *lower, high = coefficients
        total: Operand = self.constant(high, x.type)
        for c in reversed(lower):
            total = self.fma(x, total, c)
        return self._lift((total, x))[0]

    def abs(self, x: Value) -> Value:
        return self.intrinsic("fabs", x)

    def sqrt(self, x: Value) -> Value:
        return self.intrinsic("sqrt", x)

    def trunc(self, x: Value) -> Value:
        return self.intrinsic("trunc", x)

    def copysign(self, x: Operand, sign: Value) -> Value:
        return self.intrinsic("copysign", x, sign)

    def at_most(self, x: Value, limit: float) -> Value:
        """min(x, limit) that propagates NaN: one x86 instruction, which returns its second operand
        if either is NaN."""
        return self.select(self.compare("ogt", x, limit), limit, x)

    def at_least(self, x: Value, limit: float) -> Value:
        """max(x, limit) that propagates NaN."""
        return self.select(self.compare("olt", x, limit), limit, x)

    # Bits

    def bit_and(self, x: Operand, y: Operand) -> Value:
        return self._binary("and", x, y)

    def bit_or(self, x: Operand, y: Operand) -> Value:
        return self._binary("or", x, y)

    def bit_xor(self, x: Operand, y: Operand) -> Value:
        return self._binary("xor", x, y)

    def shl(self, x: Operand, y: Operand) -> Value:
        return self._binary("shl", x, y)

    def lshr(self, x: Operand, y: Operand) -> Value:
        return self._binary("lshr", x, y)

    def ashr(self, x: Operand, y: Operand) -> Value:
        return self._binary("ashr", x, y)

    # Choice

    def compare(self, predicate: str, x: Operand, y: Operand) -> Value:
        """`predicate` is LLVM's name: `olt`, `uno`, ... of floats, `eq`, `slt`, ... of integers."""
        left, right = self._lift((x, y))
        opcode = "fcmp" if left.type.is_float else "icmp"
        return self.emit(f"{opcode} {predicate} {left}, {right.text}", left.type.of("i1"))

    def select(self, condition: Value, x: Operand, y: Operand) -> Value:
        left, right = self._lift((x, y))
        return self.emit(f"select {condition}, {left}, {right}", left.type)

    # Types

    def convert(self, opcode: str, x: Value, element: str) -> Value:
        """`opcode` is any LLVM conversion: `bitcast`, `fpext`, `sitofp`, `trunc`, ..."""
        type = x.type.of(element)
        return self.emit(f"{opcode} {x} to {type}", type)

    def bits(self, x: Value) -> Value:
        """The bits of floats, as integers."""
        return self.convert("bitcast", x, x.type.integer.element)

    def floats(self, x: Value) -> Value:
        """The floats that have these bits, 32 or 64 wide."""
        return self.convert("bitcast", x, "float" if x.type.bits == 32 else "double")

    # Calls

    def call(self, symbol: str, result: Type, *args: Value) -> Value:
        """Call a function defined in this module."""
        return self.emit(f"call {result} @{symbol}({', '.join(map(str, args))})", result)

    def extern(self, symbol: str, result: Type, *args: Value) -> Value:
        """Call a function defined elsewhere, and declare it."""
        types = ", ".join(str(x.type) for x in args)
        self.declares.add(f"declare {result} @{symbol}({types})")
        return self.call(symbol, result, *args)

    def intrinsic(self, name: str, *args: Operand) -> Value:
        """Call `@llvm.name` whose operands and result all have one type."""
        values = self._lift(args)
        type = values[0].type
        return self.extern(f"llvm.{name}.{type.mangled}", type, *values)

    def libm(self, symbol: str, *args: Value) -> Value:
        """Call a scalar function of libm, which LLVM must not recognise.

        LLVM makes fmod(x, y) an frem without NaNs if x is finite and y is not zero, though y may
        be NaN, and then leaves the result undefined.
        """
        type = args[0].type
        self.declares.add(f"declare {type} @{symbol}({', '.join(str(x.type) for x in args)})")
        operands = ", ".join(map(str, args))
        return self.emit(f"call {type} @{symbol}({operands}) nobuiltin", type)

    def each_lane(self, symbol: str, *args: Value) -> Value:
        """Call a scalar function of libm lane by lane."""
        type = args[0].type
        scalar = Type(type.element, 1)
        if type.lanes == 1:
            return self.libm(symbol, *args)
        result = Value("poison", type)
        for lane in range(type.lanes):
            taken = [self.emit(f"extractelement {x}, i32 {lane}", scalar) for x in args]
            value = self.libm(symbol, *taken)
            result = self.emit(f"insertelement {result}, {value}, i32 {lane}", type)
        return result

    # Control

    def label(self, name: str) -> None:
        """Begin a block."""
        self.lines.append(f"{name}:")
        self.block = name

    def branch(self, target: str) -> None:
        self.lines.append(f"  br label %{target}")

    def branch_if(
        self, condition: Value, then: str, otherwise: str, *, rarely: bool = False
    ) -> None:
        """With `rarely`, the code of `then` is laid out behind the rest."""
        weights = ', !prof !{!"branch_weights", i32 1, i32 2000}' if rarely else ""
        self.lines.append(f"  br {condition}, label %{then}, label %{otherwise}{weights}")

    def any_lane(self, condition: Value) -> Value:
        """One i1: whether `condition` holds in some lane."""
        if condition.type.lanes == 1:
            return condition
        symbol = f"llvm.vector.reduce.or.{condition.type.mangled}"
        return self.extern(symbol, Type("i1", 1), condition)

    def phi(self, incoming: Iterable[tuple[Value, str]]) -> Value:
        pairs = list(incoming)
        text = ", ".join(f"[ {value.text}, %{block} ]" for value, block in pairs)
        type = pairs[0][0].type
        return self.emit(f"phi {type} {text}", type)

    def assign(self, register: Value, value: Value) -> None:
        """Define `register`, which a phi above already uses, as `value`."""
        self.lines.append(f"  {register.text} = bitcast {value} to {value.type}")

    def ret(self, value: Value) -> None:
        self.lines.append(f"  ret {value}")
