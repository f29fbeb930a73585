"""What computes an operand of a product may be part of the product, where nothing is packed for it.

In: the steps of a program, and what is chosen about its products. Out: for each value that a
product reads, or that goes into such a one: why it is stored first, or None if the product
computes it as it reads it. That may be any elementwise value; every tile of the product that needs
an element computes it again, so by rule it has to save bytes. Example: of `x @ (w.bfloat16() *
s).t()` with 16 rows and w in int8, both the cast and the scale are computed in the product's loop,
and one byte a weight is read; with 4096 rows they are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from litz.config import Config
from litz.fuse.cost import HEAVY, heaviest
from litz.ir.choices import Choices
from litz.ir.expr import Expr, cast, extent_of, rebuild, transform
from litz.ir.patterns import Depthwise, Gemm
from litz.ir.product import SIDES, Product, multiplied_type, product_of, stored_load
from litz.ir.program import (
    Buffer,
    Extern,
    Loop,
    Origin,
    Store,
    buffer_bytes,
    loads,
    read,
    written,
)
from litz.ir.recognise import recognised
from litz.ir.stored import with_producers

# Rows, or columns, of a tile.
TILE = 128
# Times that an element may be computed. Stored and read again, a half costs some four bytes: 1 ps
# on an H200; widening a byte and scaling it takes five instructions, 0.17 ps at 29e12 a second.
MOST_TIMES = 4
STORED = "a product takes rows of its operands, stored or made beside it"
Verdicts = dict[Buffer, str | None]


@dataclass(frozen=True)
class Prologues:
    """`makers` are the places of the loops that alone write a value; `stays` says why such a value
    is needed in memory whatever its readers do."""

    body: Sequence[Loop | Extern]
    makers: Mapping[Buffer, int]
    readers: Mapping[Buffer, Sequence[int]]
    stays: Callable[[Loop], str | None]
    config: Config
    choices: Choices

    def verdicts(self) -> Verdicts:
        """About all that products read; what one of them wants in memory is there for all."""
        found: Verdicts = {}
        for position, step in enumerate(self.body):
            told: list[Verdicts] = []
            product = product_of(step) if isinstance(step, Loop) else None
            if product is not None and not product.taps:
                told = [self._operand(position, product, side) for side in SIDES]
            elif isinstance(step, Loop) and isinstance(step.pattern, Gemm | Depthwise):
                told = [dict.fromkeys(read(step), STORED)]
            for buffer, reason in (item for one in told for item in one.items()):
                found[buffer] = found.get(buffer) or reason
        return found

    def _operand(self, position: int, product: Product, side: str) -> Verdicts:
        node = stored_load(getattr(product, side))
        if node is None or node.buffer not in self.makers:
            return {}
        found = self._joining(position, node.buffer)
        if found[node.buffer] is None:
            loop = self._loop(position)
            value = self._with(loop.stores[0], found).value
            grown = replace(loop, stores=(replace(loop.stores[0], value=value),))
            after = product_of(recognised(grown))
            illegal = _breaks(product, after, side)
            found[node.buffer] = illegal or self._unprofitable(loop, product, side, after)
        return found if found[node.buffer] is None else {node.buffer: found[node.buffer]}

    def _joining(self, position: int, buffer: Buffer) -> Verdicts:
        """What may be written into a product, from one of its operands on; readers come first, so
        that it is known where they are computed."""
        found: Verdicts = {}
        inside, open_ = {position}, {buffer}
        while open_:
            buffer = max(open_, key=self.makers.__getitem__)
            open_.remove(buffer)
            maker = self._loop(self.makers[buffer])
            found[buffer] = self._illegal(maker, inside)
            if found[buffer] is None:
                inside.add(self.makers[buffer])
                open_.update(source for source in read(maker) if source in self.makers)
        return found

    def _illegal(self, maker: Loop, inside: set[int]) -> str | None:
        buffer = maker.stores[0].buffer
        among = len(inside) > 1 and _is_conversion(maker)  # which others may do as well
        if not among and not inside.issuperset(self.readers[buffer]):
            return "others read it than the product"
        if buffer in self._following:
            return "what follows a product is done behind it"
        return self.stays(maker)

    @cached_property
    def _following(self) -> set[Buffer]:
        """What products give, and what is done to that element by element."""
        found: set[Buffer] = set()
        for step in self.body:
            if isinstance(step, Loop):
                product = product_of(step)
                joins = not step.reduced and not found.isdisjoint(read(step))
                if joins or (product is not None and product.rows):
                    found.update(written(step))
        return found

    def _with(self, store: Store, found: Verdicts) -> Store:
        """A store with all written into it that joins it."""
        finals: dict[Buffer, tuple[Store, tuple[Origin, ...]]] = {}
        joined = (self.makers[buffer] for buffer, reason in found.items() if reason is None)
        for one in (*(self._loop(at).stores[0] for at in sorted(joined)), store):
            value = with_producers(one.value, finals, {})
            finals[one.buffer] = (replace(one, value=value), ())
        return finals[store.buffer][0]

    def _loop(self, position: int) -> Loop:
        step = self.body[position]
        assert isinstance(step, Loop)
        return step

    def _unprofitable(
        self, loop: Loop, product: Product, side: str, grown: Product | None
    ) -> str | None:
        """Why an operand is stored though the product could be grown by what computes it."""
        node = stored_load(getattr(product, side))
        assert node is not None and grown is not None
        chosen = self.choices.of_product(loop.origins).prologue
        if not self.config.prologue_fusion or chosen is False:
            return "a product reads its operands from memory (prologue_fusion, or timing)"
        if chosen:
            return None
        across = product.columns if side == "left" else product.rows
        in_tiles = bool(product.rows) and multiplied_type(product) is not None
        times = -(-extent_of(across) // (TILE if in_tiles else 1))
        if times == 1 and side == "right":  # for few rows, all the time goes into reading it
            return None
        operand = getattr(grown, side)
        if _bytes_read(operand) >= buffer_bytes(node.buffer):
            return "reading it moves no more bytes than reading what it is made of"
        if times > MOST_TIMES or heaviest(operand) >= HEAVY:
            return f"each of {times} tiles would compute it"
        return None


def _breaks(product: Product, grown: Product | None, side: str) -> str | None:
    """Why what computes an operand may not be written into the product."""
    if grown is None or not _is_same(product, grown):
        return "the sum would be no product of matrices any more"
    node = stored_load(getattr(product, side))
    other = product.right if side == "left" else product.left
    if node is not None and any(n.buffer == node.buffer for n in loads(other)):
        return "both operands of the product read it"
    return None


def rounded(loop: Loop) -> Loop:
    """A product whose operands are rounded as they would be stored, since tensor cores take halves;
    one row of it is a sum like others."""
    product = product_of(loop)
    if product is None or not product.rows:
        return loop
    store = loop.stores[0]
    wide = {n: cast(cast(n.args[0].args[0], n.args[0].dtype), n.dtype)
            for n in (product.left, product.right)
            if n.op == "cast" and n.args[0].op == "narrow"}  # fmt: skip

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        return wide.get(node) or rebuild(node, args)

    return replace(loop, stores=(replace(store, value=transform(store.value, change)),))


def _is_same(one: Product, two: Product) -> bool:
    """Whether both are over the same axes, and tensor cores take either or none."""
    axes = (one.batch, one.rows, one.columns) == (two.batch, two.rows, two.columns)
    return axes and multiplied_type(one) is multiplied_type(two)


def _is_conversion(loop: Loop) -> bool:
    """Whether it only copies, in another type perhaps."""
    value = loop.stores[0].value
    while value.op in ("cast", "narrow"):
        (value,) = value.args
    return value.op == "load"


def _bytes_read(operand: Expr) -> int:
    """Of each buffer what there is, or as many elements as the operand has points."""
    sizes: dict[Buffer, int] = {}
    for node in loads(operand):
        axes = frozenset[Expr]().union(*(i.axes for i in node.index))
        points = extent_of(tuple(axes)) * node.dtype.bytes
        sizes[node.buffer] = sizes.get(node.buffer, 0) + points
    return sum(min(n, buffer_bytes(b)) for b, n in sizes.items())
