"""Values: an expression becomes instructions, each in the outermost scope where it can stand.

In: an `Expr`, the open scopes and the axis that runs in lanes. Out: an LLVM value, scalar if the
expression is the same in all lanes, a vector if it is not. Example: with j0 in 16 lanes,
`b0[o0 * 768 + j0]` is one load of sixteen floats at an address whose row part was computed outside.
"""

from __future__ import annotations

from litz.codegen.llvm.builder import Builder, Type, Value
from litz.codegen.llvm.ops import CALLED, SPELLING, computed_type, convert, stored_type
from litz.codegen.llvm.scope import Scopes
from litz.ir.dtypes import BOOL, I64, DType
from litz.ir.expr import Expr
from litz.ir.index import bounds, coefficient, is_nonnegative, to_poly
from litz.ir.program import Buffer

INDEX = Type("i64", 1)
BIT = Type("i1", 1)
# What a kernel writes into the error flag; `runtime` raises the error that each stands for.
INDEX_ERROR, DIVISION_ERROR = 1, 2


class Values:
    """Emits expressions. `vector` is the axis in lanes, `base` its first lane's value, `mask` the
    lanes that are inside the loop, in its last, partial vector."""

    def __init__(self, builder: Builder, scopes: Scopes, lanes: int) -> None:
        self.b, self.scopes, self.lanes = builder, scopes, lanes
        self.vector: Expr | None = None
        self.base: Value | None = None
        self.mask: Value | None = None
        self.axis_level: dict[Expr, int] = {}
        self.row_level = 0
        self.pointers: dict[Buffer, Value] = {}
        self.local: dict[Buffer, int] = {}  # scratch: copies held side by side, one a lane
        self.written: set[Buffer] = set()
        self.wanted: set[tuple[str, str, int]] = set()  # inline math functions used
        self.accumulators: dict[Expr, Value] = {}  # of scans
        self.errors: Value | None = None
        self.safe: Value | None = None
        self._facts: dict[Expr, tuple[bool, bool]] = {}

    # -- what is known of a node -------------------------------------------------------------

    def set_vector(self, variable: Expr | None, base: Value | None, mask: Value | None) -> None:
        self.vector, self.base, self.mask = variable, base, mask
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
            state = state or node.buffer in self.local or node.buffer in self.written
            varies = varies or self.local.get(node.buffer, 1) > 1
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
        if node.op in ("axis", "reduce"):
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
            return self._load(node)
        if node.op in ("cast", "narrow"):
            return convert(self.b, self.value(node.args[0]), node.args[0].dtype, node.dtype)
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
            return self._call(node.op, dtype, args)
        return SPELLING[node.op](self.b, dtype, *args)

    def _call(self, name: str, dtype: DType, args: list[Value]) -> Value:
        lanes = args[0].type.lanes
        if not dtype.is_float:  # an integer power
            return self._integer_power(dtype, args[0], args[1])
        self.wanted.add((name, dtype.name, lanes))
        return self.b.call(f"litz.{name}.{dtype.name}.v{lanes}", args[0].type, *args)

    def _integer_power(self, dtype: DType, x: Value, y: Value) -> Value:
        """Square and multiply; a negative exponent keeps only what 1 and -1 keep."""
        b = self.b
        one = b.constant(1, x.type)
        result, square = one, x
        for bit in range(6):
            odd = b.compare("ne", b.bit_and(y, 1 << bit), 0)
            result = b.mul(result, b.select(odd, square, one))
            square = b.mul(square, square)
        if dtype.kind == "u":
            return result
        odd = b.compare("ne", b.bit_and(y, 1), 0)
        minus = b.select(odd, x, one)
        tiny = b.select(b.compare("eq", x, -1), minus, b.constant(0, x.type))
        tiny = b.select(b.compare("eq", x, 1), one, tiny)
        return b.select(b.compare("slt", y, 0), tiny, result)

    def _remainder(self, dtype: DType, x: Value, y: Value) -> Value:
        b = self.b
        rest = self._call("fmod", dtype, [x, y])
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
        slot = self.accumulators[node]
        value = self.value(node.args[0])
        value = self.spread(value) if self.varies(node) else value
        before = self.b.emit(f"load {value.type}, {slot}", value.type)
        op = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}[node.attr]
        after = SPELLING[op](self.b, node.dtype, before, value)
        self.b.lines.append(f"  store {after}, {slot}")
        return after

    # -- errors ------------------------------------------------------------------------------

    def _flag(self, bad: Value, code: int) -> None:
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
        self._flag(bad, INDEX_ERROR)
        return self.b.select(bad, self.b.constant(0, index.type), index)

    def _divide(self, node: Expr, args: list[Value]) -> Value:
        value, divisor = node.args
        x, y = args
        if divisor.op in ("const", "size") and node.dtype is I64 and node.op != "truncdiv":
            span = bounds(to_poly(value))
            if span is not None and is_nonnegative(span[0]):
                return self.b.emit(
                    f"{'udiv' if node.op == 'floordiv' else 'urem'} {x}, {y.text}", x.type
                )
        if not (divisor.is_const and divisor.attr != 0):
            zero = self.b.compare("eq", y, 0)
            self._flag(zero, DIVISION_ERROR)
            y = self.b.select(zero, self.b.constant(1, y.type), y)
        return SPELLING[node.op](self.b, node.dtype, x, y)

    # -- memory ------------------------------------------------------------------------------

    def _load(self, node: Expr) -> Value:
        """Operands are emitted first, each in its own scope; then this node's is selected."""
        buffer, index, level = node.buffer, node.index[0], self.level(node)
        guard = None if node.guard is None else self.value(node.guard)
        copies = self.local.get(buffer, 1)
        if copies > 1 or not self.varies(index):
            place = self.value(index)
            self.scopes.select(level)
            if copies > 1:
                address = self._address(buffer, self.b.mul(place, copies))
                return self._loaded(node, address, self.lanes)
            return self._uniform_load(node, place, guard, level)
        assert self.vector is not None and self.base is not None
        found = coefficient(index, self.vector)
        mask = self._load_mask(node, level)
        if found is None or not found[0].is_const or self.varies(found[1]):
            places = self.lanewise(index)
            self.scopes.select(level)
            return self._gather(node, places, mask)
        stride, rest = found[0].attr, self.value(found[1])
        self.scopes.select(level)
        if stride == 1:
            address = self._address(buffer, self.b.add(rest, self.base))
            return self._masked_load(node, address, mask)
        first = self.spread(self.b.add(rest, self.b.mul(self.base, stride)), level)
        self.scopes.select(level)
        return self._gather(node, self.b.add(first, self.iota(stride)), mask)

    def _uniform_load(self, node: Expr, place: Value, guard: Value | None, level: int) -> Value:
        """One address for all lanes. If the guard differs by lane: read if any may, keep where it
        holds."""
        if guard is None or guard.type.lanes == 1:
            return self._scalar_load(node, place, guard)
        one = self._scalar_load(node, place, self.b.any_lane(guard))
        zero = self.b.constant(0, Type(one.type.element, self.lanes))
        spread = self.spread(one, level)
        self.scopes.select(level)
        return self.b.select(guard, spread, zero)

    def _load_mask(self, node: Expr, level: int) -> Value | None:
        if node.guard is None:
            return self.mask
        guard = self.lanewise(node.guard)
        self.scopes.select(level)
        return guard if self.mask is None else self.b.bit_and(guard, self.mask)

    def _address(self, buffer: Buffer, place: Value) -> Value:
        element = stored_type(buffer.dtype, 1)
        pointer = self.pointers[buffer]
        where = Type("ptr", place.type.lanes)
        return self.b.emit(f"getelementptr inbounds {element}, {pointer}, {place}", where)

    def _loaded(self, node: Expr, address: Value, lanes: int) -> Value:
        kind = stored_type(node.dtype, lanes)
        text = f"load {kind}, {address}, align {node.dtype.bytes}"
        return self._from_memory(node.dtype, self.b.emit(text, kind))

    def _from_memory(self, dtype: DType, value: Value) -> Value:
        return self.b.compare("ne", value, 0) if dtype is BOOL else value

    def _scalar_load(self, node: Expr, place: Value, guard: Value | None) -> Value:
        """A guarded scalar reads a zero of our own where it must not read the buffer."""
        address = self._address(node.buffer, place)
        if guard is not None:
            assert self.safe is not None
            address = self.b.select(guard, address, self.safe)
        return self._loaded(node, address, 1)

    def _masked_load(self, node: Expr, address: Value, mask: Value | None) -> Value:
        if mask is None or self.lanes == 1:
            return (
                self._loaded(node, address, self.lanes)
                if mask is None
                else (self._lane_load(node, address, mask))
            )
        kind = stored_type(node.dtype, self.lanes)
        symbol = f"llvm.masked.load.{kind.mangled}.p0"
        align = Value(str(node.dtype.bytes), Type("i32", 1))
        zero = Value("zeroinitializer", kind)
        return self._from_memory(
            node.dtype, self._masked_call(symbol, kind, address, align, mask, zero)
        )

    def _lane_load(self, node: Expr, address: Value, mask: Value) -> Value:
        assert self.safe is not None
        return self._loaded(node, self.b.select(mask, address, self.safe), 1)

    def _gather(self, node: Expr, places: Value, mask: Value | None) -> Value:
        address = self._address(node.buffer, places)
        if self.lanes == 1:
            return self._masked_load(node, address, mask)
        kind = stored_type(node.dtype, self.lanes)
        symbol = f"llvm.masked.gather.{kind.mangled}.v{self.lanes}p0"
        align = Value(str(node.dtype.bytes), Type("i32", 1))
        inside = mask or self.b.constant(1, Type("i1", self.lanes))
        zero = Value("zeroinitializer", kind)
        return self._from_memory(
            node.dtype, self._masked_call(symbol, kind, address, align, inside, zero)
        )

    def _masked_call(self, symbol: str, result: Type, *args: Value) -> Value:
        """The alignment must be an immediate: its operand is declared so."""
        types = ", ".join(
            f"{a.type} immarg" if a.type.element == "i32" and a.type.lanes == 1 else str(a.type)
            for a in args
        )
        self.b.declares.add(f"declare {result} @{symbol}({types})")
        text = f"call {result} @{symbol}({', '.join(map(str, args))})"
        if result.element == "void":
            self.b.lines.append(f"  {text}")
            return args[0]
        return self.b.emit(text, result)

    def store(self, buffer: Buffer, index: Expr, value: Value, dtype: DType) -> None:
        """Write a value here: one element, a vector side by side, or lane by lane."""
        copies = self.local.get(buffer, 1)
        if copies > 1:
            address = self._address(buffer, self.b.mul(self.value(index), copies))
            self._write(address, self._to_memory(dtype, self.spread(value)))
            return
        if not self.varies(index):
            self._write(self._address(buffer, self.value(index)), self._to_memory(dtype, value))
            return
        stored = self._to_memory(dtype, self.spread(value))
        found = coefficient(index, self.vector) if self.vector is not None else None
        if found is not None and found[0].is_const and found[0].attr == 1:
            assert self.base is not None
            place = self.b.add(self.value(found[1]), self.base)
            self._masked_write("store", self._address(buffer, place), stored, dtype)
            return
        address = self._address(buffer, self.lanewise(index))
        self._masked_write("scatter", address, stored, dtype)

    def _to_memory(self, dtype: DType, value: Value) -> Value:
        return self.b.convert("zext", value, "i8") if dtype is BOOL else value

    def _write(self, address: Value, value: Value) -> None:
        self.b.lines.append(f"  store {value}, {address}, align {self._bytes(value)}")

    def _bytes(self, value: Value) -> int:
        return max(value.type.bits // 8, 1)

    def _masked_write(self, kind: str, address: Value, value: Value, dtype: DType) -> None:
        if kind == "store" and self.mask is None:
            self._write(address, value)
            return
        if self.lanes == 1:
            self._write(address, value)
            return
        pointers = "p0" if kind == "store" else f"v{self.lanes}p0"
        symbol = f"llvm.masked.{kind}.{value.type.mangled}.{pointers}"
        align = Value(str(self._bytes(value)), Type("i32", 1))
        mask = self.mask or self.b.constant(1, Type("i1", self.lanes))
        self._masked_call(symbol, Type("void", 1), value, address, align, mask)
