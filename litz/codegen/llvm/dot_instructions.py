"""Dot-product instructions: they multiply several neighbours along the sum and add them up.

In: the operands of a GEMM. Out: `DotEmitter`, which loads them in groups and emits the
instruction. Example: vdpbf16ps adds a[k] * b[k] + a[k + 1] * b[k + 1] to each of 16 sums; the panel
holds b[k] and b[k + 1] side by side for each column.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.codegen.llvm.builder import Builder, Type, Value
from litz.codegen.llvm.values import Values
from litz.ir.dtypes import BF16, I8
from litz.ir.expr import Expr, substitute
from litz.ir.gemm import BlockedOperands, GemmParts, stored_load
from litz.ir.index import ZERO, simplify_indices
from litz.isa import ISAS, DotInstruction

PACKED_WORD = Type("i32", 1)
SIGN = 0x80808080  # added to four signed bytes, it gives the same numbers plus 128, unsigned


@dataclass(frozen=True)
class DotEmitter:
    """`element` is the instruction's type for each of the `group` numbers in a word."""

    instruction: DotInstruction
    element: str

    @property
    def group(self) -> int:
        return self.instruction.group

    @property
    def needs_compensation(self) -> bool:
        """Whether it takes the left numbers as unsigned."""
        return self.instruction.unsigned_left

    def column(self, values: Values, blocks: BlockedOperands, first: int) -> Value:
        """The groups of a vector of columns, from column `first` on."""
        node = _at_first(blocks.right, {blocks.inside: ZERO, blocks.part: ZERO})
        place = values.b.add(values.value(node.index[0]), first * self.group)
        kind = Type(self.element, values.lanes * self.group)
        return values.memory.load_bits(node, place, kind)

    def broadcast(
        self, values: Values, blocks: BlockedOperands, left: Expr, part: int | None
    ) -> Value:
        """A group of the left operand in every lane. With `part`, the last group: its first numbers
        and zeros, which meet zeros of the panel."""
        node = _at_first(left, {blocks.part: ZERO})
        place = values.value(node.index[0])
        if part is None:
            word = values.memory.load_bits(node, place, PACKED_WORD)
        else:
            word = self._partial(values, node, place, part)
        wide = values.broadcast(word)
        if self.needs_compensation:
            wide = values.b.bit_xor(wide, SIGN - (1 << 32))
        return self._regrouped(values.b, wide)

    def _partial(self, values: Values, node: Expr, place: Value, part: int) -> Value:
        b, bits = values.b, 32 // self.group
        word = b.constant(0, PACKED_WORD)
        for k in range(part):
            one = values.memory.load_bits(node, b.add(place, k), Type(f"i{bits}", 1))
            word = b.bit_or(word, b.shl(b.convert("zext", one, "i32"), k * bits))
        return word

    def sign_excess(self, lanes: int) -> Value:
        """The excess of every number of the left operand: 128, as an unsigned byte."""
        return Value("splat (i8 -128)", Type(self.element, lanes * self.group))

    def _regrouped(self, b: Builder, wide: Value) -> Value:
        kind = Type(self.element, wide.type.lanes * self.group)
        return b.emit(f"bitcast {wide} to {kind}", kind)

    def add(self, b: Builder, before: Value, left: Value, right: Value) -> Value:
        """before + the dot product of each group."""
        symbol = self.instruction.symbol(before.type.lanes)
        return b.extern(symbol, before.type, before, left, right)


def _at_first(operand: Expr, places: dict[Expr, Expr]) -> Expr:
    node = stored_load(operand)
    assert node is not None, operand
    return simplify_indices(substitute(node, places))


def dot_emitter_for(gemm: GemmParts, group: int, isa: str) -> DotEmitter | None:
    """The dot instruction of a GEMM in groups; None if it adds one number at a time."""
    left, right = stored_load(gemm.left), stored_load(gemm.right)
    if group == 1 or left is None or right is None:
        return None
    element = {BF16: "bfloat", I8: "i8"}[left.dtype]
    return DotEmitter(ISAS[isa].dot(left.dtype.name, group), element)
