"""Values: an expression becomes instructions, each in the outermost scope where it can stand.

In: an `Expr`, the open scopes and the axis that runs in lanes. Out: an LLVM value, scalar if the
expression is the same in all lanes, a vector if it is not. Example: with j0 in 16 lanes,
`b0[o0 * 768 + j0]` is one load of sixteen floats at an address whose row part was computed outside.
"""

from __future__ import annotations

from collections.abc import Callable

from litz.codegen.llvm import math
from litz.codegen.llvm.builder import Builder, Type, Value
from litz.codegen.llvm.memory import Memory
from litz.codegen.llvm.ops import CALLED, SPELLING, computed_type, convert
from litz.codegen.llvm.scope import Scopes
from litz.ir.dtypes import I64, DType
from litz.ir.expr import Expr, apply
from litz.ir.index import ONE, bounds, is_nonnegative, to_poly

INDEX = Type("i64", 1)
# What a kernel writes into the error flag; `runtime` raises the error that each stands for.
INDEX_ERROR, DIVISION_ERROR = 1, 2


# How many lanes are inside the loop in its last, partial vector: known, or known to a call alone;
# None if the vector is whole.
Tail = int | Value | None


class Values:
    """Emits expressions. `vector` is the axis in lanes, `base` its first lane's value; `mask` says
    which lanes are inside the loop in its last, partial vector."""

    def __init__(self, builder: Builder, scopes: Scopes, lanes: int) -> None:
        self.b, self.scopes, self.lanes = builder, scopes, lanes
        self.vector: Expr | None = None
        self.base: Value | None = None
        self.tail: Tail = None
        self.mask: Value | None = None
        self.axis_level: dict[Expr, int] = {}
        self.row_level = 0
        self.memory = Memory(self)
        self.scans: dict[Expr, Callable[[Value], Value]] = {}  # each takes in one more element
        self.errors: Value | None = None
        self._facts: dict[Expr, tuple[bool, bool]] = {}

    # -- what is known of a node -------------------------------------------------------------

    def set_vector(self, variable: Expr | None, base: Value | None, tail: Tail) -> None:
        self.vector, self.base, self.tail, self.mask = variable, base, tail, None
        if isinstance(tail, Value):
            # Half as wide as the counter is enough, and twice as quick to compare.
            numbers = ", ".join(f"i32 {k}" for k in range(self.lanes))
            lanes = Value(f"<{numbers}>" if self.lanes > 1 else "0", Type("i32", self.lanes))
            left = self.spread(self.b.convert("trunc", tail, "i32"))
            self.mask = self.b.compare("slt", lanes, left)
        elif tail is not None:
            bits = ", ".join(f"i1 {int(k < tail)}" for k in range(self.lanes))
            self.mask = Value(f"<{bits}>", Type("i1", self.lanes))
        self._facts.clear()

    def facts(self, node: Expr) -> tuple[bool, bool]:
        """(depends on what this row computed before, differs from lane to lane)."""
        known = self._facts.get(node)
        if known is not None:
            return known
        stack = [node]
        while stack:
            top = stack[-1]
            missing = [a for a in top.args if a not in self._facts]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            self._facts[top] = self._own_facts(top)
        return self._facts[node]

    def _own_facts(self, node: Expr) -> tuple[bool, bool]:
        below = [self._facts[a] for a in node.args]
        state = any(s for s, _ in below)
        varies = node is self.vector or any(v for _, v in below)
        if node.op == "axis":
            return False, node is self.vector
        if node.op == "load":
            state = state or node.buffer in self.memory.local or node.buffer in self.memory.written
            varies = varies or self.memory.local.get(node.buffer, 1) > 1
        elif node.op in ("reduce", "scan"):
            state = True
            outer = self.vector is not None and self.axis_level.get(self.vector) == self.row_level
            # Row by row, a finished reduction is one number; lane by lane, one number a lane.
            varies = outer if node.op == "reduce" else varies
        return state, varies

    def varies(self, node: Expr) -> bool:
        return self.facts(node)[1]

    def level(self, node: Expr) -> int:
        """The outermost scope in which everything the node needs is known."""
        level = max((self.axis_level[a] for a in node.axes), default=0)
        state, varies = self.facts(node)
        if varies and self.vector is not None:
            level = max(level, self.axis_level[self.vector])
        return max(level, self.row_level) if state else level

    # -- emission ----------------------------------------------------------------------------

    def value(self, root: Expr) -> Value:
        """The value of an expression here; every node once in each scope."""
        found = self.scopes.find(root)
        if found is not None:
            return found
        stack = [root]
        while stack:
            node = stack[-1]
            if self.scopes.find(node) is not None:
                stack.pop()
                continue
            missing = [n for n in self._operands(node) if self.scopes.find(n) is None]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            level = self.level(node)
            self.scopes.select(level)
            self.scopes.bind(level, node, self._emit(node))
            self.scopes.select(self.scopes.depth)
        result = self.scopes.find(root)
        assert result is not None
        return result

    def _operands(self, node: Expr) -> tuple[Expr, ...]:
        if node.op == "load":
            return () if node.guard is None else (node.guard,)
        if node.op in ("axis", "reduce", "size"):
            return ()
        return node.args[:1] if node.op == "scan" else node.args

    def lanewise(self, node: Expr) -> Value:
        """The value with one copy a lane."""
        return self.spread(self.value(node), self.level(node))

    def spread(self, value: Value, level: int | None = None) -> Value:
        """A scalar in every lane, written where the scalar is known."""
        if value.type.lanes == self.lanes:
            return value
        wide = Type(value.type.element, self.lanes)
        if not value.text.startswith("%"):
            return Value(f"splat ({value.type.element} {value.text})", wide)
        level = self.scopes.depth if level is None else level
        known = self.scopes.stack[level].spreads.get(value.text)
        if known is not None and known.type == wide:
            return known
        self.scopes.select(level)
        one = self.b.emit(f"insertelement {wide} poison, {value}, i64 0", wide)
        mask = f"<{self.lanes} x i32> zeroinitializer"
        result = self.b.emit(f"shufflevector {one}, {wide} poison, {mask}", wide)
        self.scopes.stack[level].spreads[value.text] = result
        self.scopes.select(self.scopes.depth)
        return result

    def _emit(self, node: Expr) -> Value:
        if node.op == "const":
            number = self.b.constant(node.attr, computed_type(node.dtype.compute, 1))
            return convert(self.b, number, node.dtype.compute, node.dtype)
        if node.op == "axis":
            return self._lane_numbers(node)
        if node.op == "load":
            return self.memory.load(node)
        if node.op in ("cast", "narrow"):
            return convert(self.b, self.value(node.args[0]), node.args[0].dtype, node.dtype)
        if node.op == "bitcast":
            value = self.value(node.args[0])
            element = computed_type(node.dtype, 1).element
            same = value.type.element == element  # a bf16 is held as its bits
            return value if same else self.b.convert("bitcast", value, element)
        if node.op == "scan":
            return self._scan(node)
        assert node.op != "reduce", f"{node} is used before its phase has run"
        return self._apply(node)

    def _apply(self, node: Expr) -> Value:
        varies = self.varies(node)
        level = self.level(node)
        args = [self.lanewise(a) if varies else self.value(a) for a in node.args]
        self.scopes.select(level)
        dtype = node.args[-1].dtype
        if node.op == "check_index":
            return self._checked_index(args[0], args[1])
        if node.op in ("floordiv", "mod", "truncdiv"):
            return self._divide(node, args)
        if node.op == "remainder":
            return self._remainder(dtype, args[0], args[1])
        if node.op in CALLED:
            return self.call(node.op, dtype, args)
        return SPELLING[node.op](self.b, dtype, *args)

    def call(self, name: str, dtype: DType, args: list[Value]) -> Value:
        """An op that is an inline function of the module."""
        lanes = args[0].type.lanes
        self.b.functions.add((name, dtype.name, lanes))
        return self.b.call(math.symbol(name, dtype.name, lanes), args[0].type, *args)

    def _remainder(self, dtype: DType, x: Value, y: Value) -> Value:
        b = self.b
        rest = self.call("fmod", dtype, [x, y])
        crossed = b.bit_and(
            b.compare("one", rest, 0.0),
            b.bit_xor(b.compare("olt", rest, 0.0), b.compare("olt", y, 0.0)),
        )
        return b.select(crossed, b.add(rest, y), rest)

    def _lane_numbers(self, node: Expr) -> Value:
        assert node is self.vector and self.base is not None, f"axis {node.attr} is not bound here"
        level = self.axis_level[node]
        first = self.spread(self.base, level)
        self.scopes.select(level)
        return self.b.add(first, self.iota(1))

    def iota(self, step: int) -> Value:
        numbers = ", ".join(f"i64 {k * step}" for k in range(self.lanes))
        wide = Type("i64", self.lanes)
        return Value(f"<{numbers}>" if self.lanes > 1 else "0", wide)

    def _scan(self, node: Expr) -> Value:
        value = self.value(node.args[0])
        return self.scans[node](self.spread(value) if self.varies(node) else value)

    # -- errors ------------------------------------------------------------------------------

    def flag(self, bad: Value, code: int) -> None:
        """Note an error in the lanes that are inside the loop; the kernel goes on safely."""
        assert self.errors is not None
        if bad.type.lanes > 1 and self.mask is not None:
            bad = self.b.bit_and(bad, self.mask)
        some = self.b.convert("zext", self.b.any_lane(bad), "i32")
        noted = self.b.emit(f"load i32, {self.errors}", Type("i32", 1))
        both = self.b.bit_or(noted, self.b.mul(some, code))
        self.b.lines.append(f"  store {both}, {self.errors}")

    def _checked_index(self, index: Value, size: Value) -> Value:
        """An index outside the tensor reads element zero and raises eager's error afterwards."""
        bad = self.b.compare("uge", index, size)
        self.flag(bad, INDEX_ERROR)
        return self.b.select(bad, self.b.constant(0, index.type), index)

    def _divide(self, node: Expr, args: list[Value]) -> Value:
        value, divisor = node.args
        x, y = args
        positive = is_nonnegative(to_poly(apply("sub", divisor, ONE)))
        if positive and node.dtype is I64 and node.op != "truncdiv":
            span = bounds(to_poly(value))
            if span is not None and is_nonnegative(span[0]):
                return self.b.emit(
                    f"{'udiv' if node.op == 'floordiv' else 'urem'} {x}, {y.text}", x.type
                )
        if not (divisor.is_const and divisor.attr != 0) and not positive:
            zero = self.b.compare("eq", y, 0)
            self.flag(zero, DIVISION_ERROR)
            y = self.b.select(zero, self.b.constant(1, y.type), y)
        return SPELLING[node.op](self.b, node.dtype, x, y)
