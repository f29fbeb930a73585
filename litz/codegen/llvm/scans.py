"""Scans: what has been combined so far, carried from one turn of a loop to the next.

In: a `scan` node. Out: `step`, which takes in the element of this turn and gives the value up to
it. With rows in lanes, each lane carries its own. Example: a running sum loads its accumulator,
adds, stores it, and gives the sum.
"""

from __future__ import annotations

from litz.codegen.llvm.builder import Type, Value
from litz.codegen.llvm.ops import CALLED, SPELLING, computed_type
from litz.codegen.llvm.reductions import identity, stack_slot
from litz.codegen.llvm.values import Values
from litz.ir.expr import Expr
from litz.ir.ops import SCANS


class Scan:
    """One `scan` node with its accumulator (and the position it came from, if that is asked)."""

    def __init__(self, values: Values, node: Expr, lanes: int) -> None:
        self.values, self.node, self.spec = values, node, SCANS[node.attr]
        self.dtype = node.args[0].dtype
        self.type = computed_type(self.dtype, lanes)
        self.slot = stack_slot(values, self.type, "acc")
        self.place = stack_slot(values, Type("i64", lanes), "at")

    def start(self) -> None:
        b = self.values.b
        neutral = b.constant(identity(self.spec.combine, self.dtype), self.type)
        b.lines.append(f"  store {neutral}, {self.slot}")
        if self.spec.gives_index:
            b.lines.append(f"  store {b.constant(0, Type('i64', self.type.lanes))}, {self.place}")

    def step(self, value: Value) -> Value:
        """Take in the element of this turn."""
        b = self.values.b
        before = b.emit(f"load {value.type}, {self.slot}", value.type)
        if self.spec.gives_index:
            return self._step_place(before, value)
        after = self._combined(before, value)
        b.lines.append(f"  store {after}, {self.slot}")
        return after

    def _combined(self, before: Value, value: Value) -> Value:
        op = self.spec.combine
        if op in CALLED:
            return self.values.call(op, self.dtype, [before, value])
        return SPELLING[op](self.values.b, self.dtype, before, value)

    def _step_place(self, before: Value, value: Value) -> Value:
        """A NaN, or what is no worse than all before it, is the new extreme: the last of equals."""
        b = self.values.b
        predicate = "ge" if self.spec.combine == "max" else "le"
        better = SPELLING[predicate](b, self.dtype, value, before)
        if self.dtype.is_float:
            better = b.bit_or(better, b.compare("uno", value, value))
        here = self.values.value(self.node.args[1])
        here = self.values.spread(here) if value.type.lanes > 1 else here
        where = b.emit(f"load {here.type}, {self.place}", here.type)
        where = b.select(better, here, where)
        b.lines.append(f"  store {b.select(better, value, before)}, {self.slot}")
        b.lines.append(f"  store {where}, {self.place}")
        return where
