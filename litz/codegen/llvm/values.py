"""Values: an expression becomes instructions, each in the outermost scope where it can be computed.

In: an `Expr`, the open scopes and the axis in lanes. Out: an LLVM value, a scalar if the expression
is the same in all lanes, a vector if it is not. Example: with j0 in 16 lanes,
`b0[o0 * 768 + j0]` is one load of sixteen floats at an address whose row part was computed outside.
"""

from __future__ import annotations

from collections.abc import Callable

from litz.codegen.llvm import math
from litz.codegen.llvm.builder import Builder, Type, Value
from litz.codegen.llvm.checks import CHECK_RECORD, check_lanes
from litz.codegen.llvm.frame import Frame
from litz.codegen.llvm.memory import Memory
from litz.codegen.llvm.ops import INLINE_MATH, OP_EMITTERS, computed_type, convert
from litz.codegen.llvm.scope import Scopes
from litz.ir.checks import CHECK_OPS, DIVISOR, Site
from litz.ir.dtypes import DType
from litz.ir.expr import Expr, apply
from litz.ir.index import ONE, bounds, is_nonnegative, to_poly
from litz.ir.magnitude import is_exact

INDEX = Type("i64", 1)


# How many lanes of the last, partial vector are inside the loop: known now, or only at the call;
# None if the vector is whole.
Tail = int | Value | None


class Values:
    """Emits expressions. `vector` is the axis in lanes, `base` its value in the first lane; `mask`
    has the lanes of the last, partial vector that are inside the loop."""

    def __init__(self, builder: Builder, scopes: Scopes, lanes: int) -> None:
        self.b, self.scopes, self.lanes = builder, scopes, lanes
        self.vector: Expr | None = None
        self.base: Value | None = None
        self.tail: Tail = None
        self.mask: Value | None = None
        self.axis_level: dict[Expr, int] = {}
        self.row_level = 0
        self.memory = Memory(self)
        self.frame = Frame(builder, scopes)
        self.scans: dict[Expr, Callable[[Value], Value]] = {}  # each combines one more element
        self.noted: Value | None = None  # the note of a failed check, once there is a check
        self._facts: dict[Expr, tuple[bool, bool]] = {}

    # -- facts about a node ------------------------------------------------------------------

    def set_vector(self, variable: Expr | None, base: Value | None, tail: Tail) -> None:
        self.vector, self.base, self.tail, self.mask = variable, base, tail, None
        if isinstance(tail, Value):
            # 32 bits are enough, and compared twice as fast as the counter's 64.
            numbers = ", ".join(f"i32 {k}" for k in range(self.lanes))
            lanes = Value(f"<{numbers}>" if self.lanes > 1 else "0", Type("i32", self.lanes))
            left = self.broadcast(self.b.convert("trunc", tail, "i32"))
            self.mask = self.b.compare("slt", lanes, left)
        elif tail is not None:
            bits = ", ".join(f"i1 {int(k < tail)}" for k in range(self.lanes))
            self.mask = Value(f"<{bits}>", Type("i1", self.lanes))
        self._facts.clear()

    def facts(self, node: Expr) -> tuple[bool, bool]:
        """(depends on values computed in this row, differs from lane to lane)."""
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
            # With a row in lanes, a finished reduction is one number; with lanes as rows, one each.
            varies = outer if node.op == "reduce" else varies
        return state, varies

    def varies(self, node: Expr) -> bool:
        return self.facts(node)[1]

    def level(self, node: Expr) -> int:
        """The outermost scope in which all operands of the node are known."""
        level = max((self.axis_level[a] for a in node.axes), default=0)
        state, varies = self.facts(node)
        if varies and self.vector is not None:
            level = max(level, self.axis_level[self.vector])
        return max(level, self.row_level) if state else level

    # -- emission ----------------------------------------------------------------------------

    def value(self, root: Expr) -> Value:
        """The value of an expression here; every node is emitted once in each scope."""
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
        """The value with one element a lane."""
        return self.broadcast(self.value(node), self.level(node))

    def broadcast(self, value: Value, level: int | None = None) -> Value:
        """A scalar in every lane, emitted in the scope of the scalar."""
        if value.type.lanes == self.lanes:
            return value
        wide = Type(value.type.element, self.lanes)
        if not value.text.startswith("%"):
            return Value(f"splat ({value.type.element} {value.text})", wide)
        level = self.scopes.depth if level is None else level
        known = self.scopes.stack[level].broadcasts.get(value.text)
        if known is not None and known.type == wide:
            return known
        self.scopes.select(level)
        one = self.b.emit(f"insertelement {wide} poison, {value}, i64 0", wide)
        mask = f"<{self.lanes} x i32> zeroinitializer"
        result = self.b.emit(f"shufflevector {one}, {wide} poison, {mask}", wide)
        self.scopes.stack[level].broadcasts[value.text] = result
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
            same = value.type.element == element  # bf16 is held as its bits
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
        if node.op in CHECK_OPS:
            return self._check(node, args)
        if node.op in ("floordiv", "mod", "truncdiv"):
            return self._divide(node, args)
        if node.op == "remainder":
            return self._remainder(dtype, args[0], args[1])
        if node.op in INLINE_MATH:
            return self.call(node.op, dtype, args)
        return OP_EMITTERS[node.op](self.b, dtype, *args)

    def call(self, name: str, dtype: DType, args: list[Value]) -> Value:
        """Call an op that is an inline function of the module."""
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
        first = self.broadcast(self.base, level)
        self.scopes.select(level)
        return self.b.add(first, self.iota(1))

    def iota(self, step: int) -> Value:
        numbers = ", ".join(f"i64 {k * step}" for k in range(self.lanes))
        wide = Type("i64", self.lanes)
        return Value(f"<{numbers}>" if self.lanes > 1 else "0", wide)

    def _scan(self, node: Expr) -> Value:
        value = self.value(node.args[0])
        return self.scans[node](self.broadcast(value) if self.varies(node) else value)

    # -- errors ------------------------------------------------------------------------------

    def flag(
        self, bad: Value, site: Site, index: Value | None = None, size: Value | int = 0
    ) -> Value:  # fmt: skip
        """Note an error in the lanes that are inside the loop. Returns the index to continue with,
        zero where the check failed."""
        if self.noted is None:
            self.noted = Value(f"%{self.b.fresh('noted')}", Type("ptr", 1))
            # The site is cleared at entry; the rest is read only if a site is set.
            self.scopes.stack[0].lines[1:1] = [
                f"  {self.noted.text} = alloca {CHECK_RECORD}, align 8",
                f"  store i64 0, {self.noted}",
            ]
        if bad.type.lanes > 1 and self.mask is not None:
            bad = self.b.bit_and(bad, self.mask)
        kind = Type("i64", bad.type.lanes)
        first = self.b.constant(0, kind) if index is None else index
        second = size if isinstance(size, Value) else self.b.constant(size, kind)
        return check_lanes(self.b, bad, site.number, first, second, self.noted)

    def _check(self, node: Expr, args: list[Value]) -> Value:
        """The value of a check where it holds, and a safe one where it does not."""
        b, site = self.b, node.attr or Site("index")
        if node.op == "check_index":
            index, size = args
            return self.flag(b.compare("uge", index, size), site, index, size)
        if node.op == "check_divisor":
            (divisor,) = args
            zero = b.compare("eq", divisor, 0)
            self.flag(zero, site)
            return b.select(zero, b.constant(1, divisor.type), divisor)
        holds, first, second, value = args
        self.flag(b.bit_xor(holds, 1), site, first, second)
        return value

    def _divide(self, node: Expr, args: list[Value]) -> Value:
        value, divisor = node.args
        x, y = args
        positive = is_nonnegative(to_poly(apply("sub", divisor, ONE)))
        if positive and node.op != "truncdiv" and is_exact(value):
            span = bounds(to_poly(value))
            if span is not None and is_nonnegative(span[0]):
                return self.b.emit(
                    f"{'udiv' if node.op == 'floordiv' else 'urem'} {x}, {y.text}", x.type
                )
        known = divisor.op == "check_divisor" or (divisor.is_const and divisor.attr != 0)
        if not known and not positive:
            zero = self.b.compare("eq", y, 0)
            self.flag(zero, DIVISOR)
            y = self.b.select(zero, self.b.constant(1, y.type), y)
        return OP_EMITTERS[node.op](self.b, node.dtype, x, y)
