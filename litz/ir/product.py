"""Matrix products in the loop IR: their operands, read off a nest by its tag.

In: a step that is tagged as `Gemm`. Out: `Product`, a sum over one axis of a[batch, rows, k] *
b[batch, k, columns]; and `Blocks`, its operands over the axes a block runs along. The sum may run
over windows, too, as that of a convolution does: `taps` around k, and of the left operand some may
lie outside. Example: of `sum over r0 of x[i0, r0] * w[r0, i1]` the left operand is `x[i0, r0]`.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.ir.dtypes import BF16, BOOL, E4M3, E5M2, EIGHTHS, F16, F32, I8, I32, U8, DType
from litz.ir.expr import Expr, apply, axis, integer, substitute, walk
from litz.ir.index import (
    coefficient,
    flat_index,
    ravel,
    simplify_indices,
    unravel,
)
from litz.ir.patterns import Gemm
from litz.ir.program import Kernel, Loop, tagged
from litz.ir.sizes import count_of, rounded_up


@dataclass(frozen=True)
class Product:
    """`node` is the reduction over `depth` of `left` (over rows) times `right` (over columns), one
    for each point of `batch`; over `taps` as well, which run outside `depth`."""

    node: Expr
    left: Expr
    right: Expr
    depth: Expr
    batch: tuple[Expr, ...]
    rows: tuple[Expr, ...]
    columns: tuple[Expr, ...]
    taps: tuple[Expr, ...] = ()


def product_of(step: Loop | Kernel) -> Product | None:
    """The product that a loop or a kernel is tagged as. What follows that of a kernel works on its
    elements one by one, or it is a phase among others of a row."""
    found = tagged(step, Gemm)
    if found is None:
        return None
    tag, stores = found
    node = next(n for s in stores for n in walk(s.value) if n.op == "reduce")
    left, right = node.args[0].args[::-1] if tag.flipped else node.args[0].args
    (depth,) = tag.depth
    return Product(node, left, right, depth, tag.batch, tag.rows, tag.columns, tag.taps)


def is_gemm(step: Loop | Kernel) -> bool:
    """Whether it is tagged as a product."""
    return tagged(step, Gemm) is not None


def product_phase(kernel: Kernel) -> int | None:
    """Which phase of a row is a product: its columns have sums of their own. Phases before it make
    its left operand, those behind it work on whole rows of its result."""
    return next((k for k, phase in enumerate(kernel.phases) if phase.summed), None)


def stride_of(node: Expr, variable: Expr) -> int | None:
    """How far apart neighbours along an axis lie in a load; None if that differs."""
    found = coefficient(flat_index(node.buffer, node.index), variable)
    return found[0].number if found is not None and found[0].is_const else None


# -- the operands of a block -------------------------------------------------------------------


@dataclass(frozen=True)
class Blocks:
    """The operands over numbers: of the batch, of the row, of the panel and the column inside it,
    of the tap, and of the step, of which each is `group` neighbours along the sum, numbered by
    `part`."""

    batch: Expr
    row: Expr
    panel: Expr
    inside: Expr
    tap: Expr
    step: Expr
    part: Expr
    left: Expr
    right: Expr


def in_blocks(product: Product, width: int, group: int) -> Blocks:
    """The product's operands over the axes a block runs along.

    a[i0, r0], b[r0, i1]   ->   a[row, step], b[step, panel * 64 + inside]
    """
    batch, row = (axis(n, count_of(a)) for n, a in (("n", product.batch), ("m", product.rows)))
    panels = rounded_up(count_of(product.columns), width)
    panel, inside = axis("p", panels), axis("c", width)
    step, part = axis("s", rounded_up(product.depth.extent, group)), axis("e", group)
    column = ravel((panel, inside), (panel.extent, inside.extent))
    whole = step if group == 1 else apply("add", apply("mul", step, integer(group)), part)
    places = {product.depth: whole}
    tap = axis("t", count_of(product.taps))
    numbered = (product.batch, batch), (product.rows, row), (product.columns, column)
    for axes, number in (*numbered, (product.taps, tap)):
        found = unravel(number, tuple(a.extent for a in axes))
        places |= dict(zip(axes, found, strict=True))
    left, right = (simplify_indices(substitute(n, places)) for n in (product.left, product.right))
    return Blocks(batch, row, panel, inside, tap, step, part, left, right)


def stored_load(operand: Expr) -> Expr | None:
    """The load that an operand is, in the type of the sum or widened to it; None if it is made of
    more than that."""
    stored = operand.args[0] if operand.op == "cast" else operand
    return stored if stored.op == "load" else None


# -- the operands of tensor cores ----------------------------------------------------------------


SIDES = ("left", "right")
# What tensor cores multiply, and the type of the sums they add it to.
MULTIPLIED: dict[DType, DType] = {
    BF16: F32, F16: F32, F32: F32, I8: I32, E4M3: F32, E5M2: F32,
}  # fmt: skip
# What each half holds exactly.
WIDENED: frozenset[DType] = frozenset({I8, U8, BOOL, *EIGHTHS})


def multiplied(operand: Expr) -> Expr:
    """What tensor cores take of an operand: they widen it themselves."""
    return operand.args[0] if operand.op == "cast" else operand


def multiplied_type(product: Product) -> DType | None:
    """The type of both operands, if tensor cores take it. They take any two floats of eight bits:
    the left one's. Other narrow numbers are widened to the float type of the other operand; two of
    them, to halves."""
    found, other = (multiplied(n).dtype for n in (product.left, product.right))
    if {found, other} <= set(EIGHTHS):
        return found if product.node.dtype is F32 else None
    kinds = {found, other}
    if product.node.dtype is F32:
        kinds = kinds - WIDENED or {BF16}
    found = kinds.pop()
    fits = not kinds and MULTIPLIED.get(found) is product.node.dtype
    return found if fits else None


def is_stored(product: Product, side: str) -> bool:
    """Whether tensor cores take the operand on a side as it lies in memory."""
    node, kind = multiplied(getattr(product, side)), multiplied_type(product)
    return node.op == "load" and (node.dtype is kind or {node.dtype, kind} <= set(EIGHTHS))


@dataclass(frozen=True)
class Matrix:
    """Where an operand lies: how far apart neighbours are along the batch, across (rows of the left
    operand, columns of the right one) and along the sum; and where the first one is."""

    start: int
    batch: int
    across: int
    depth: int


def matrix_of(product: Product, side: str) -> Matrix | None:
    """Where the operand on a side lies, of a product over one axis each; None if it is no load or
    not at even distances."""
    node = stored_load(product.left if side == "left" else product.right)
    if node is None:
        return None
    (across,) = product.rows if side == "left" else product.columns
    rest = flat_index(node.buffer, node.index)
    found: list[int] = []
    for variable in (*product.batch[:1], across, product.depth):
        parts = coefficient(rest, variable)
        if parts is None or not parts[0].is_const:
            return None
        found.append(parts[0].number)
        rest = parts[1]
    if not rest.is_const:
        return None
    return Matrix(rest.number, *([] if product.batch else [0]), *found)
