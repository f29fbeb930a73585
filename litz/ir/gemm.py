"""Gemms in the loop IR: the operands of one, read off a nest by its tag.

In: a step that is tagged as `Gemm`. Out: `GemmParts`, a sum over one axis k of
`a[batch, rows, k] * b[batch, k, columns]`; and `BlockedOperands`, its operands over the axes that a
register block runs along. The sum may also run over the `taps` of a convolution, around k; some
taps of the left operand may be outside the image. Example: the left operand of
`sum over r0 of x[i0, r0] * w[r0, i1]` is `x[i0, r0]`.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.ir.dtypes import BF16, BOOL, E4M3, E5M2, F16, F32, FP8_DTYPES, I8, I32, U8, DType
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
from litz.ir.sizes import ceil_div, count_of


@dataclass(frozen=True)
class GemmParts:
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


def gemm_of(step: Loop | Kernel) -> GemmParts | None:
    """The gemm that a loop or a kernel is tagged as. In a kernel, either a pointwise epilogue
    follows it, or it is one of several phases over a row."""
    found = tagged(step, Gemm)
    if found is None:
        return None
    tag, stores = found
    node = next(n for s in stores for n in walk(s.value) if n.op == "reduce")
    left, right = node.args[0].args[::-1] if tag.flipped else node.args[0].args
    (depth,) = tag.depth
    return GemmParts(node, left, right, depth, tag.batch, tag.rows, tag.columns, tag.taps)


def is_gemm(step: Loop | Kernel) -> bool:
    """Whether it is tagged as a gemm."""
    return tagged(step, Gemm) is not None


def gemm_phase(kernel: Kernel) -> int | None:
    """The number of the phase that is a gemm: each of its columns has a sum of its own. Phases
    before it compute its left operand, those after it work on whole rows of its result."""
    return next((k for k, phase in enumerate(kernel.phases) if phase.summed), None)


def stride_of(node: Expr, variable: Expr) -> int | None:
    """The stride of a load along an axis; None if it is not constant."""
    found = coefficient(flat_index(node.buffer, node.index), variable)
    return found[0].number if found is not None and found[0].is_const else None


# -- the operands of a block -------------------------------------------------------------------


@dataclass(frozen=True)
class BlockedOperands:
    """The operands over one axis each: the batch, the row, the panel and the column `inside` it,
    the tap, and the step along K. A step is a group of neighbours, numbered by `part`."""

    batch: Expr
    row: Expr
    panel: Expr
    inside: Expr
    tap: Expr
    step: Expr
    part: Expr
    left: Expr
    right: Expr


def blocked_operands(gemm: GemmParts, width: int, group: int) -> BlockedOperands:
    """The gemm's operands over the axes that a register block runs along.

    a[i0, r0], b[r0, i1]   ->   a[row, step], b[step, panel * 64 + inside]
    """
    batch, row = (axis(n, count_of(a)) for n, a in (("n", gemm.batch), ("m", gemm.rows)))
    panels = ceil_div(count_of(gemm.columns), width)
    panel, inside = axis("p", panels), axis("c", width)
    step, part = axis("s", ceil_div(gemm.depth.extent, group)), axis("e", group)
    column = ravel((panel, inside), (panel.extent, inside.extent))
    whole = step if group == 1 else apply("add", apply("mul", step, integer(group)), part)
    places = {gemm.depth: whole}
    tap = axis("t", count_of(gemm.taps))
    numbered = (gemm.batch, batch), (gemm.rows, row), (gemm.columns, column)
    for axes, number in (*numbered, (gemm.taps, tap)):
        found = unravel(number, tuple(a.extent for a in axes))
        places |= dict(zip(axes, found, strict=True))
    left, right = (simplify_indices(substitute(n, places)) for n in (gemm.left, gemm.right))
    return BlockedOperands(batch, row, panel, inside, tap, step, part, left, right)


def stored_load(operand: Expr) -> Expr | None:
    """The load that an operand consists of, seen through a widening cast; None if it is computed
    otherwise."""
    stored = operand.args[0] if operand.op == "cast" else operand
    return stored if stored.op == "load" else None


# -- the operands of tensor cores ----------------------------------------------------------------


SIDES = ("left", "right")
# The operand types of tensor cores, and the accumulator type of each.
MMA_ACCUMULATORS: dict[DType, DType] = {
    BF16: F32, F16: F32, F32: F32, I8: I32, E4M3: F32, E5M2: F32,
}  # fmt: skip
# The types that both float16 and bfloat16 represent exactly.
EXACT_IN_HALF: frozenset[DType] = frozenset({I8, U8, BOOL, *FP8_DTYPES})


def mma_operand(operand: Expr) -> Expr:
    """The operand without its widening cast: tensor cores widen it themselves."""
    return operand.args[0] if operand.op == "cast" else operand


def mma_dtype(gemm: GemmParts) -> DType | None:
    """The type in which tensor cores take the operands, if they do. They take any two fp8 types:
    then it is the left one's. Other narrow types are widened to the float type of the other
    operand, or both to bfloat16."""
    found, other = (mma_operand(n).dtype for n in (gemm.left, gemm.right))
    if {found, other} <= set(FP8_DTYPES):
        return found if gemm.node.dtype is F32 else None
    kinds = {found, other}
    if gemm.node.dtype is F32:
        kinds = kinds - EXACT_IN_HALF or {BF16}
    found = kinds.pop()
    fits = not kinds and MMA_ACCUMULATORS.get(found) is gemm.node.dtype
    return found if fits else None


def is_direct_mma_operand(gemm: GemmParts, side: str) -> bool:
    """Whether tensor cores take the operand on a side directly from memory."""
    node, kind = mma_operand(getattr(gemm, side)), mma_dtype(gemm)
    return node.op == "load" and (node.dtype is kind or {node.dtype, kind} <= set(FP8_DTYPES))


@dataclass(frozen=True)
class OperandStrides:
    """Where an operand is in its buffer: the offset of its first element, and its strides along the
    batch, along M or N (rows of the left operand, columns of the right one) and along the depth."""

    start: int
    batch: int
    mn: int
    depth: int


def operand_strides(gemm: GemmParts, side: str) -> OperandStrides | None:
    """The strides of the operand on a side of a gemm with one axis for each role; None if it is no
    load, or a stride is not constant."""
    node = stored_load(gemm.left if side == "left" else gemm.right)
    if node is None:
        return None
    (mn,) = gemm.rows if side == "left" else gemm.columns
    rest = flat_index(node.buffer, node.index)
    found: list[int] = []
    for variable in (*gemm.batch[:1], mn, gemm.depth):
        parts = coefficient(rest, variable)
        if parts is None or not parts[0].is_const:
            return None
        found.append(parts[0].number)
        rest = parts[1]
    if not rest.is_const:
        return None
    return OperandStrides(rest.number, *([] if gemm.batch else [0]), *found)
