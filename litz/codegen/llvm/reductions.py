"""Reductions: accumulators in lanes, carried through a loop and folded at its end.

In: a `reduce` node. Out: its finished value. Each unrolled copy of a loop body has its own
accumulator, so that additions overlap. Copies and lanes are folded in a fixed tree, so that the
result does not depend on timing. Example: a row of 768 floats is summed in 4 vectors of 16.

Long sums are flushed into f64 totals from time to time (`blocked_summation.py`).
"""

from __future__ import annotations

from litz.codegen.llvm.blocked_summation import BlockedSummation
from litz.codegen.llvm.builder import Type, Value
from litz.codegen.llvm.ops import OP_EMITTERS, computed_type, convert
from litz.codegen.llvm.values import Values
from litz.ir.checks import CHECK_OPS
from litz.ir.dtypes import BOOL, F64
from litz.ir.expr import Expr, cast, walk
from litz.ir.index import ravel
from litz.ir.ops import REDUCTIONS, neutral

INDEX = Type("i64", 1)
DIVISIONS = frozenset({"floordiv", "truncdiv", "mod", "remainder"})


def stack_slot(values: Values, kind: Type, name: str) -> Value:
    """Stack memory in the entry block, which LLVM turns into registers."""
    slot = Value(f"%{values.b.fresh(name)}", Type("ptr", 1))
    values.scopes.stack[0].lines.insert(1, f"  {slot.text} = alloca {kind}")
    return slot


def _may_fail(node: Expr) -> bool:
    """Whether a point can raise an error that eager would raise, even if its value is not used."""
    divides = node.op in DIVISIONS and not node.dtype.is_float and not node.args[1].is_const
    return divides or node.op in CHECK_OPS


class Reduction:
    """One `reduce` node with its accumulators (and, for argmax, the positions they came from)."""

    def __init__(
        self,
        values: Values,
        node: Expr,
        copies: int,
        lanes: int,
        blocked_summation: BlockedSummation,
    ) -> None:
        self.values, self.node = values, node
        self.kind: str = node.attr[0]
        self.spec = REDUCTIONS[self.kind]
        self.dtype = node.args[0].dtype
        long = bool(blocked_summation.flush_every)
        if self.spec.widens and blocked_summation.wide:
            long = long and self.dtype is F64
            self.dtype = F64
        self.type = computed_type(self.dtype, lanes)
        count = 1 if self.spec.gives_index else copies
        self.slots = [stack_slot(values, self.type, "acc") for _ in range(count)]
        # A long sum of floats has a slot for flushed blocks, which `finish` then reads.
        self.is_blocked = long and self.adds_floats
        # The type that is folded at the end.
        self.total = F64 if self.is_blocked or self.spec.widens else self.dtype
        self.total_type = computed_type(self.total, lanes)
        self.flushed = stack_slot(values, self.total_type, "flushed") if self.is_blocked else None
        places = Type("i64", lanes)
        self.places = stack_slot(values, places, "at") if self.spec.gives_index else None

    @property
    def adds_floats(self) -> bool:
        return self.spec.combine == "add" and self.dtype.is_float

    @property
    def guard(self) -> Expr | None:
        """The condition outside of which a value is neutral and changes nothing. Only conditions on
        axes alone: a branch on data would be mispredicted."""
        value, none = self.node.args[0], neutral(self.spec.combine, self.dtype)
        while value.op == "cast":
            (value,) = value.args
        found = None
        if value.op == "load" and none == 0:
            found = value.guard
        elif value.op == "where" and value.args[2].is_const and value.args[2].attr == none:
            found = value.args[0]
        data = found is None or any(n.op == "load" for n in walk(found))
        return None if data or self.spec.gives_index or any(map(_may_fail, walk(value))) else found

    @property
    def nothing(self) -> Value:
        """The initial value of an accumulator. Adding to -0.0 leaves every float as it is, so that
        LLVM drops the first addition; `finish` turns a result of -0.0 into +0.0."""
        start = -0.0 if self.adds_floats else neutral(self.spec.combine, self.dtype)
        return self.values.b.constant(start, self.type)

    def start(self) -> None:
        b = self.values.b
        b.lines += [f"  store {self.nothing}, {slot}" for slot in self.slots]
        if self.flushed is not None:
            b.lines.append(f"  store {b.constant(0, self.total_type)}, {self.flushed}")
        if self.places is not None:
            none = b.constant(-1, Type("i64", self.type.lanes))
            b.lines.append(f"  store {none}, {self.places}")

    def update(self, copy: int) -> None:
        """Take in the elements of one copy of the loop body."""
        if self.places is not None:
            self._update_place(self._lanewise(self.node.args[0]))
            return
        slot = self.slots[copy]
        after = self._added(slot) if self.spec.widens else self._joined(slot)
        self.values.b.lines.append(f"  store {after}, {slot}")

    def _accumulator(self, slot: Value) -> Value:
        return self.values.b.emit(f"load {self.type}, {slot}", self.type)

    def _lanewise(self, element: Expr) -> Value:
        value = self.values.value(element)
        return self.values.broadcast(value) if self.type.lanes > 1 else value

    def _joined(self, slot: Value) -> Value:
        """The accumulator combined with the element, or with the neutral value after the row's
        end."""
        value = self._lanewise(self.node.args[0])
        if self.values.mask is not None and self.type.lanes > 1:
            value = self.values.b.select(self.values.mask, value, self.nothing)
        return self.combined(self._accumulator(slot), value)

    def _added(self, slot: Value) -> Value:
        """The same for a `wide_sum`: a product in it is not rounded on its own."""
        b, (element,) = self.values.b, self.node.args
        factors = element.args if element.op == "mul" else (element,)
        given = [self._lanewise(cast(factor, self.dtype)) for factor in factors]
        before = self._accumulator(slot)
        after = b.intrinsic("fma", *given, before) if len(given) > 1 else b.add(before, *given)
        if self.values.mask is None or self.type.lanes == 1:
            return after
        return b.select(self.values.mask, after, before)

    def combined(self, x: Value, y: Value) -> Value:
        return OP_EMITTERS[self.spec.combine](self.values.b, self.dtype, x, y)

    def _update_place(self, value: Value) -> None:
        b, values = self.values.b, self.values
        assert self.places is not None
        axes: tuple[Expr, ...] = self.node.attr[1]
        position = ravel(axes, tuple(a.extent for a in axes))
        here = values.value(position)
        here = values.broadcast(here) if self.type.lanes > 1 else here
        best = b.emit(f"load {self.type}, {self.slots[0]}", self.type)
        where = b.emit(f"load {here.type}, {self.places}", here.type)
        better = self._better(value, here, best, where)
        if values.mask is not None and better.type.lanes > 1:
            better = b.bit_and(better, values.mask)
        b.lines.append(f"  store {b.select(better, value, best)}, {self.slots[0]}")
        b.lines.append(f"  store {b.select(better, here, where)}, {self.places}")

    def _better(self, value: Value, here: Value, best: Value, where: Value) -> Value:
        """NaN beats all, then the extreme, then the first position; -1 means no position yet."""
        b = self.values.b
        predicate = "gt" if self.spec.combine == "max" else "lt"
        beats = OP_EMITTERS[predicate](b, self.dtype, value, best)
        ties = OP_EMITTERS["eq"](b, self.dtype, value, best)
        if self.dtype.is_float:
            new_nan, old_nan = b.compare("uno", value, value), b.compare("uno", best, best)
            beats = b.bit_or(beats, b.bit_and(new_nan, b.bit_xor(old_nan, 1)))
            ties = b.bit_or(ties, b.bit_and(new_nan, old_nan))
        # Unsigned, so that "no position" loses every tie.
        return b.bit_or(beats, b.bit_and(ties, b.compare("ult", here, where)))

    def flush(self) -> None:
        """Add the sums so far to the flushed total, and begin again."""
        b = self.values.b
        assert self.flushed is not None
        before = b.emit(f"load {self.total_type}, {self.flushed}", self.total_type)
        after = self.combined(before, self.widened(self._folded()))
        b.lines.append(f"  store {after}, {self.flushed}")
        b.lines += [f"  store {self.nothing}, {slot}" for slot in self.slots]

    def widened(self, value: Value) -> Value:
        """An accumulator, in the type of the total."""
        return convert(self.values.b, value, self.dtype, self.total)

    def rounded(self, value: Value) -> Value:
        """A total, in the type of the node."""
        wide = self.spec.gives_index or self.total is self.node.dtype
        return value if wide else convert(self.values.b, value, self.total, self.node.dtype)

    def join_copies(self) -> None:
        """Fold the copies into the first, which alone is used from here on."""
        self.values.b.lines.append(f"  store {self._folded()}, {self.slots[0]}")

    def _folded(self) -> Value:
        """The copies combined."""
        parts = [self._accumulator(slot) for slot in self.slots]
        while len(parts) > 1:
            pairs = [self.combined(x, y) for x, y in zip(parts[::2], parts[1::2], strict=False)]
            parts = pairs + parts[len(pairs) * 2 :]
        return parts[0]

    def finish(self, fold_lanes: bool) -> Value:
        """The finished value: copies folded, and lanes too unless each lane is its own row."""
        b = self.values.b
        total = self.widened(self._folded())
        if self.flushed is not None:
            before = b.emit(f"load {self.total_type}, {self.flushed}", self.total_type)
            total = self.combined(before, total)
        if self.places is not None:
            where = b.emit(
                f"load {Type('i64', self.type.lanes)}, {self.places}", Type("i64", self.type.lanes)
            )
            return self._fold_places(total, where) if fold_lanes else where
        total = self._fold(total) if fold_lanes else total
        if self.adds_floats and self.flushed is None:  # a flushed total begins with +0.0
            total = b.add(total, b.constant(0.0, total.type))
        return self.rounded(total)

    def _fold(self, value: Value) -> Value:
        """Halve the vector until one lane is left."""
        b = self.values.b
        while value.type.lanes > 1:
            low, high = (self._half(value, part) for part in (0, 1))
            value = self.combined(low, high)
        return value if self.dtype is not BOOL else b.compare("ne", value, 0)

    def _half(self, value: Value, part: int) -> Value:
        count = value.type.lanes // 2
        numbers = ", ".join(f"i32 {part * count + k}" for k in range(count))
        b, kind = self.values.b, Type(value.type.element, count)
        if count == 1:
            return b.emit(f"extractelement {value}, i64 {part}", kind)
        return b.emit(
            f"shufflevector {value}, {value.type} poison, <{count} x i32> <{numbers}>", kind
        )

    def _fold_places(self, best: Value, where: Value) -> Value:
        while best.type.lanes > 1:
            low, high = self._half(best, 0), self._half(best, 1)
            at_low, at_high = self._half(where, 0), self._half(where, 1)
            better = self._better(high, at_high, low, at_low)
            best = self.values.b.select(better, high, low)
            where = self.values.b.select(better, at_high, at_low)
        return where
