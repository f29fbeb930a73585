"""Scans: what has been combined so far, carried from one turn of a loop to the next.

In: a `scan` node. Out: `step`, which takes in the element of this turn and gives the value up to
it. With rows in lanes, each lane carries its own. A turn waits for the one before it, so a step
keeps short what lies between the old carry and the new. Example: a running sum loads its
accumulator, adds, stores it, and gives the sum.
"""

from __future__ import annotations

from litz.codegen.llvm.builder import Type, Value
from litz.codegen.llvm.ops import SPELLING, computed_type
from litz.codegen.llvm.reductions import stack_slot
from litz.codegen.llvm.values import Values
from litz.ir.dtypes import F32, F64, I32, I64, DType
from litz.ir.expr import Expr
from litz.ir.ops import SCANS, neutral

# The integers that hold the order of each float type.
ORDERED: dict[DType, DType] = {F32: I32, F64: I64}


class Scan:
    """One `scan` node with what it carries: an accumulator and, for some kinds, one thing more."""

    def __init__(self, values: Values, node: Expr, lanes: int) -> None:
        self.values, self.node, self.spec = values, node, SCANS[node.attr]
        self.dtype = node.args[0].dtype
        self.type = computed_type(self.dtype, lanes)
        self.is_extreme = self.spec.name in ("max", "min", "argmax", "argmin")
        # Extremes compare integers, and carry the element or its position beside them. Behind
        # the maximum of a sum of exponentials goes the sum.
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
        """Take in the element of this turn."""
        if self.spec.name == "logsumexp":
            return self._step_log(value)
        if self.is_extreme:
            return self._step_extreme(value)
        before = self._load(self.carry, value.type)
        after = SPELLING[self.spec.combine](self.values.b, self.dtype, before, value)
        self._store(after, self.carry)
        return after

    def _load(self, slot: Value, kind: Type) -> Value:
        return self.values.b.emit(f"load {kind}, {slot}", kind)

    def _store(self, value: Value, slot: Value) -> None:
        self.values.b.lines.append(f"  store {value}, {slot}")

    def _step_extreme(self, value: Value) -> Value:
        """What is no worse than all before it is the new extreme: of equals the last one counts."""
        b = self.values.b
        key = self._ordered(value) if self.dtype.is_float else value
        wanted = value
        if self.spec.gives_index:
            wanted = self.values.value(self.node.args[1])
            wanted = self.values.spread(wanted) if value.type.lanes > 1 else wanted
        best, held = self._load(self.carry, key.type), self._load(self.second, wanted.type)
        predicate = "ge" if self.spec.combine == "max" else "le"
        better = SPELLING[predicate](b, self.key, key, best)
        held = b.select(better, wanted, held)
        self._store(b.select(better, key, best), self.carry)
        self._store(held, self.second)
        return held

    def _ordered(self, x: Value) -> Value:
        """Integers in the order of the floats: both zeros are one, NaN is beyond all.

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

        A new maximum scales s down, anything else adds to it: one exponential a turn, and the
        logarithm is nothing that the next turn waits for. A NaN stays in s.
        """
        b = self.values.b
        largest, total = self._load(self.carry, value.type), self._load(self.second, value.type)
        distance = b.neg(b.abs(b.sub(value, largest)))
        # Equal infinities have no distance.
        distance = b.select(b.compare("oeq", value, largest), 0.0, distance)
        part = self.values.call("exp", self.dtype, [distance])
        grows = b.compare("ogt", value, largest)
        total = b.select(grows, b.fma(total, part, 1.0), b.add(total, part))
        largest = b.select(grows, value, largest)
        self._store(largest, self.carry)
        self._store(total, self.second)
        return b.add(largest, self.values.call("log", self.dtype, [total]))
