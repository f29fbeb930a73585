"""Scans: the elements combined so far, carried from one turn of a loop to the next.

In: a `scan` node. Out: `step`, which combines the element of this turn and returns the result up to
it. With rows in lanes, each lane carries its own. A turn waits for the one before it, so the path
from the old carry to the new one is kept short. Example: a running sum loads its accumulator, adds,
stores it, and returns the sum.
"""

from __future__ import annotations

from litz.codegen.llvm.builder import Type, Value
from litz.codegen.llvm.ops import OP_EMITTERS, computed_type
from litz.codegen.llvm.reductions import stack_slot
from litz.codegen.llvm.values import Values
from litz.ir.dtypes import F32, F64, I32, I64, DType
from litz.ir.expr import Expr
from litz.ir.ops import SCANS, neutral

# The integer type that each float type is ordered by.
ORDERED: dict[DType, DType] = {F32: I32, F64: I64}


class Scan:
    """One `scan` node and its carries: an accumulator and, for some kinds, a second value."""

    def __init__(self, values: Values, node: Expr, lanes: int) -> None:
        self.values, self.node, self.spec = values, node, SCANS[node.attr]
        self.dtype = node.args[0].dtype
        self.type = computed_type(self.dtype, lanes)
        self.is_extreme = self.spec.name in ("max", "min", "argmax", "argmin")
        # max and min compare integers, and carry the element or its position as a second value.
        # logsumexp carries the maximum, and the sum of exponentials as the second.
        self.key = ORDERED[self.dtype] if self.is_extreme and self.dtype.is_float else self.dtype
        self.carry_type = computed_type(self.key, lanes)
        self.second_type = Type("i64", lanes) if self.spec.gives_index else self.type
        self.carry = stack_slot(values, self.carry_type, "acc")
        self.second = stack_slot(values, self.second_type, "beside")

    def start(self) -> None:
        b = self.values.b
        self._store(b.constant(neutral(self.spec.combine, self.key), self.carry_type), self.carry)
        self._store(b.constant(0, self.second_type), self.second)

    def step(self, value: Value) -> Value:
        """Combine the element of this turn."""
        if self.spec.name == "logsumexp":
            return self._step_log(value)
        if self.is_extreme:
            return self._step_extreme(value)
        before = self._load(self.carry, value.type)
        after = OP_EMITTERS[self.spec.combine](self.values.b, self.dtype, before, value)
        self._store(after, self.carry)
        return after

    def _load(self, slot: Value, kind: Type) -> Value:
        return self.values.b.emit(f"load {kind}, {slot}", kind)

    def _store(self, value: Value, slot: Value) -> None:
        self.values.b.lines.append(f"  store {value}, {slot}")

    def _step_extreme(self, value: Value) -> Value:
        """An element no worse than all before it is the new extreme: among equals the last wins."""
        b = self.values.b
        key = self._ordered(value) if self.dtype.is_float else value
        wanted = value
        if self.spec.gives_index:
            wanted = self.values.value(self.node.args[1])
            wanted = self.values.broadcast(wanted) if value.type.lanes > 1 else wanted
        best, held = self._load(self.carry, key.type), self._load(self.second, wanted.type)
        predicate = "ge" if self.spec.combine == "max" else "le"
        better = OP_EMITTERS[predicate](b, self.key, key, best)
        held = b.select(better, wanted, held)
        self._store(b.select(better, key, best), self.carry)
        self._store(held, self.second)
        return held

    def _ordered(self, x: Value) -> Value:
        """Integers in the order of the floats: both zeros are equal, NaN is beyond all.

        They are compared in one cycle, where floats take four and NaN a second comparison.
        """
        b = self.values.b
        bits = b.bits(b.add(x, 0.0))
        largest = (1 << (bits.type.bits - 1)) - 1
        flipped = b.bit_xor(bits, b.bit_and(b.ashr(bits, bits.type.bits - 1), largest))
        beyond = largest if self.spec.combine == "max" else -largest - 1
        return b.select(b.compare("uno", x, x), b.constant(beyond, bits.type), flipped)

    def _step_log(self, value: Value) -> Value:
        """log(sum of exp) = m + log(s), m the maximum so far and s the sum of exp(x - m).

        A new maximum scales s down, anything else adds to it: one exponential a turn. The next
        turn does not wait for the logarithm. A NaN stays in s.
        """
        b = self.values.b
        largest, total = self._load(self.carry, value.type), self._load(self.second, value.type)
        distance = b.neg(b.abs(b.sub(value, largest)))
        # Two equal infinities are at distance 0, not NaN.
        distance = b.select(b.compare("oeq", value, largest), 0.0, distance)
        part = self.values.call("exp", self.dtype, [distance])
        grows = b.compare("ogt", value, largest)
        total = b.select(grows, b.fma(total, part, 1.0), b.add(total, part))
        largest = b.select(grows, value, largest)
        self._store(largest, self.carry)
        self._store(total, self.second)
        return b.add(largest, self.values.call("log", self.dtype, [total]))
