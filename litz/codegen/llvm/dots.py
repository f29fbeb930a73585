"""Instructions that multiply several neighbours along a sum and add them up.

In: the product of a kernel. Out: `Dot`, which reads its operands in groups and spells the
instruction. Example: vdpbf16ps adds a[k] * b[k] + a[k + 1] * b[k + 1] to each of 16 sums, where the
panel holds b[k] and b[k + 1] side by side for each column.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.codegen.llvm.builder import Builder, Type, Value
from litz.codegen.llvm.values import Values
from litz.ir.dtypes import BF16, I8
from litz.ir.expr import Expr, substitute
from litz.ir.index import ZERO, simplify_indices
from litz.ir.product import Blocks, Product, stored_load
from litz.isa import ISAS, DotInstruction

WORD = Type("i32", 1)
SIGN = 0x80808080  # added to four signed bytes: the same numbers, 128 larger, without a sign


@dataclass(frozen=True)
class Dot:
    """`element` is how the instruction wants the `group` numbers that make a word."""

    instruction: DotInstruction
    element: str

    @property
    def group(self) -> int:
        return self.instruction.group

    @property
    def offsets(self) -> bool:
        """Whether it takes the left numbers without a sign."""
        return self.instruction.unsigned_left

    def column(self, values: Values, blocks: Blocks, first: int) -> Value:
        """The groups of a vector of columns, from `first` on."""
        node = _at_first(blocks.right, {blocks.inside: ZERO, blocks.part: ZERO})
        place = values.b.add(values.value(node.index[0]), first * self.group)
        kind = Type(self.element, values.lanes * self.group)
        return values.memory.together(node, place, kind)

    def spread(self, values: Values, blocks: Blocks, left: Expr, part: int | None) -> Value:
        """A group of the left operand in every lane; of the last one, its first numbers and zeros,
        which meet zeros of the panel."""
        node = _at_first(left, {blocks.part: ZERO})
        place = values.value(node.index[0])
        if part is None:
            word = values.memory.together(node, place, WORD)
        else:
            word = self._partial(values, node, place, part)
        wide = values.spread(word)
        if self.offsets:
            wide = values.b.bit_xor(wide, SIGN - (1 << 32))
        return self._regrouped(values.b, wide)

    def _partial(self, values: Values, node: Expr, place: Value, part: int) -> Value:
        b, bits = values.b, 32 // self.group
        word = b.constant(0, WORD)
        for k in range(part):
            one = values.memory.together(node, b.add(place, k), Type(f"i{bits}", 1))
            word = b.bit_or(word, b.shl(b.convert("zext", one, "i32"), k * bits))
        return word

    def excess(self, lanes: int) -> Value:
        """What is too much in every number of the left operand."""
        return Value("splat (i8 -128)", Type(self.element, lanes * self.group))

    def _regrouped(self, b: Builder, wide: Value) -> Value:
        kind = Type(self.element, wide.type.lanes * self.group)
        return b.emit(f"bitcast {wide} to {kind}", kind)

    def add(self, b: Builder, before: Value, left: Value, right: Value) -> Value:
        """before + the products of each group."""
        symbol = self.instruction.symbol(before.type.lanes)
        return b.extern(symbol, before.type, before, left, right)


def _at_first(operand: Expr, places: dict[Expr, Expr]) -> Expr:
    node = stored_load(operand)
    assert node is not None, operand
    return simplify_indices(substitute(node, places))


def dot_for(product: Product, group: int, isa: str) -> Dot | None:
    """The instruction for a product in groups; None if it adds one number at a time."""
    left, right = stored_load(product.left), stored_load(product.right)
    if group == 1 or left is None or right is None:
        return None
    element = {BF16: "bfloat", I8: "i8"}[left.dtype]
    return Dot(ISAS[isa].dot(left.dtype.name, group), element)
