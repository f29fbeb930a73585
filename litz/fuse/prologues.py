"""GEMM prologues: a GEMM may compute an operand as it reads it, where nothing is packed.

In: the steps of a program, and the choices for its GEMMs. Out: for each value that a GEMM reads,
directly or through such values: why it is stored first, or None if the GEMM computes it as it reads
it. A prologue may be any elementwise value. Every tile that needs an element recomputes it, so by
default it must save bytes. Example: in `x @ (w.bfloat16() * s).t()` with 16 rows and w in int8, the
GEMM's loop computes both the cast and the scale, and reads one byte per weight; with 4096 rows it
does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from litz.config import Config
from litz.fuse.cost import EXPENSIVE_OP, max_op_cost
from litz.ir.choices import Choices
from litz.ir.expr import Expr, cast, extent_of, rebuild, transform
from litz.ir.gemm import SIDES, GemmParts, gemm_of, mma_dtype, stored_load
from litz.ir.patterns import Depthwise, Gemm
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
from litz.ir.store_forwarding import forward_stores

# Rows or columns of a tile.
TILE = 128
# How often an element may be computed. Stored and read again, a half costs some four bytes: 1 ps on
# an H200; widening a byte and scaling it takes five instructions, 0.17 ps at 29e12 a second.
MAX_RECOMPUTES = 4
STORED = "a gemm takes rows of its operands, stored or made in its kernel"
Verdicts = dict[Buffer, str | None]


@dataclass(frozen=True)
class Prologues:
    """`makers` are the positions of loops that are the only writers of a value; `stays` says why
    such a value must be in memory whatever its readers do."""

    body: Sequence[Loop | Extern]
    makers: Mapping[Buffer, int]
    readers: Mapping[Buffer, Sequence[int]]
    stays: Callable[[Loop], str | None]
    config: Config
    choices: Choices

    def verdicts(self) -> Verdicts:
        """Verdicts on all values that GEMMs read; one GEMM that needs a value stored decides."""
        found: Verdicts = {}
        for position, step in enumerate(self.body):
            told: list[Verdicts] = []
            gemm = gemm_of(step) if isinstance(step, Loop) else None
            if gemm is not None and not gemm.taps:
                told = [self._operand(position, gemm, side) for side in SIDES]
            elif isinstance(step, Loop) and isinstance(step.pattern, Gemm | Depthwise):
                told = [dict.fromkeys(read(step), STORED)]
            for buffer, reason in (item for one in told for item in one.items()):
                found[buffer] = found.get(buffer) or reason
        return found

    def _operand(self, position: int, gemm: GemmParts, side: str) -> Verdicts:
        node = stored_load(getattr(gemm, side))
        if node is None or node.buffer not in self.makers:
            return {}
        found = self._prologue(position, node.buffer)
        if found[node.buffer] is None:
            loop = self._loop(position)
            value = self._with(loop.stores[0], found).value
            grown = replace(loop, stores=(replace(loop.stores[0], value=value),))
            after = gemm_of(recognised(grown))
            illegal = _breaks(gemm, after, side)
            found[node.buffer] = illegal or self._unprofitable(loop, gemm, side, after)
        return found if found[node.buffer] is None else {node.buffer: found[node.buffer]}

    def _prologue(self, position: int, buffer: Buffer) -> Verdicts:
        """Verdicts on the values that could be inlined into a GEMM, starting from one operand;
        readers come first, so that it is known where they are computed."""
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
        among = len(inside) > 1 and _is_conversion(maker)  # which other readers may repeat
        if not among and not inside.issuperset(self.readers[buffer]):
            return "others read it than the gemm"
        if buffer in self._epilogues:
            return "it is the epilogue of another gemm"
        return self.stays(maker)

    @cached_property
    def _epilogues(self) -> set[Buffer]:
        """Results of GEMMs, and their elementwise epilogues."""
        found: set[Buffer] = set()
        for step in self.body:
            if isinstance(step, Loop):
                gemm = gemm_of(step)
                joins = not step.reduced and not found.isdisjoint(read(step))
                if joins or (gemm is not None and gemm.rows):
                    found.update(written(step))
        return found

    def _with(self, store: Store, found: Verdicts) -> Store:
        """A store with all its prologues inlined."""
        finals: dict[Buffer, tuple[Store, tuple[Origin, ...]]] = {}
        joined = (self.makers[buffer] for buffer, reason in found.items() if reason is None)
        for one in (*(self._loop(at).stores[0] for at in sorted(joined)), store):
            value = forward_stores(one.value, finals, {})
            finals[one.buffer] = (replace(one, value=value), ())
        return finals[store.buffer][0]

    def _loop(self, position: int) -> Loop:
        step = self.body[position]
        assert isinstance(step, Loop)
        return step

    def _unprofitable(
        self, loop: Loop, gemm: GemmParts, side: str, grown: GemmParts | None
    ) -> str | None:
        """Why an operand is stored though the GEMM could compute it."""
        node = stored_load(getattr(gemm, side))
        assert node is not None and grown is not None
        chosen = self.choices.of_gemm(loop.origins).prologue
        if not self.config.prologue_fusion or chosen is False:
            return "a gemm reads its operands from memory (prologue_fusion, or timing)"
        if chosen:
            return None
        across = gemm.columns if side == "left" else gemm.rows
        in_tiles = bool(gemm.rows) and mma_dtype(gemm) is not None
        times = -(-extent_of(across) // (TILE if in_tiles else 1))
        if times == 1 and side == "right":  # for few rows, all the time goes into reading it
            return None
        operand = getattr(grown, side)
        if _bytes_read(operand) >= buffer_bytes(node.buffer):
            return "reading it moves no more bytes than reading what it is made of"
        if times > MAX_RECOMPUTES or max_op_cost(operand) >= EXPENSIVE_OP:
            return f"each of {times} tiles would compute it"
        return None


def _breaks(gemm: GemmParts, grown: GemmParts | None, side: str) -> str | None:
    """Why a prologue may not be inlined into the GEMM."""
    if grown is None or not _is_same(gemm, grown):
        return "the sum would no longer be a gemm"
    node = stored_load(getattr(gemm, side))
    other = gemm.right if side == "left" else gemm.left
    if node is not None and any(n.buffer == node.buffer for n in loads(other)):
        return "both operands of the gemm read it"
    return None


def round_operands(loop: Loop) -> Loop:
    """A GEMM whose computed operands are rounded as if stored, since tensor cores take halves; with
    one row it is a plain reduction."""
    gemm = gemm_of(loop)
    if gemm is None or not gemm.rows:
        return loop
    store = loop.stores[0]
    wide = {n: cast(cast(n.args[0].args[0], n.args[0].dtype), n.dtype)
            for n in (gemm.left, gemm.right)
            if n.op == "cast" and n.args[0].op == "narrow"}  # fmt: skip

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        return wide.get(node) or rebuild(node, args)

    return replace(loop, stores=(replace(store, value=transform(store.value, change)),))


def _is_same(one: GemmParts, two: GemmParts) -> bool:
    """Whether both have the same axes, and tensor cores take either or none."""
    axes = (one.batch, one.rows, one.columns) == (two.batch, two.rows, two.columns)
    return axes and mma_dtype(one) is mma_dtype(two)


def _is_conversion(loop: Loop) -> bool:
    """Whether it only copies or converts."""
    value = loop.stores[0].value
    while value.op in ("cast", "narrow"):
        (value,) = value.args
    return value.op == "load"


def _bytes_read(operand: Expr) -> int:
    """Bytes read: of each buffer all of it, or one element per point of the operand if fewer."""
    sizes: dict[Buffer, int] = {}
    for node in loads(operand):
        axes = frozenset[Expr]().union(*(i.axes for i in node.index))
        points = extent_of(tuple(axes)) * node.dtype.bytes
        sizes[node.buffer] = sizes.get(node.buffer, 0) + points
    return sum(min(n, buffer_bytes(b)) for b, n in sizes.items())
