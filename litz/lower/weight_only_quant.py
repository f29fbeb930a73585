"""Weight-only quantization: an operand of integers and scales is dequantized as it is read.

In: the element of a matrix at [k, j], as a value made of parameters. Out: the same value made of
packed parts, each in panels and in its narrow type: 4-bit integers two in a byte, scales once per
group; and a factor that can be applied after the sum. None if it contains no small integers.
Example: `cast(w[j, k]) * s[j]` becomes `cast(packed[j // 64, k, j % 64])`, with `s[j]` applied
after the sum: a quarter of the bytes of a float32 weight.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.ir.dtypes import F32, F64, I8, I32, U8
from litz.ir.expr import (
    Expr,
    apply,
    axis,
    cast,
    const,
    integer,
    rebuild,
    substitute,
    transform,
    walk,
)
from litz.ir.index import floordiv, modulo, simplify_indices
from litz.ir.program import loads
from litz.ir.store_forwarding import value_at
from litz.lower.panels import in_panels, packed_panels
from litz.lower.registry import FallbackToAten
from litz.lower.values import Lowering, positions

# Arithmetic that dequantizes; each op runs once per step along k for six rows of accumulators.
DEQUANT_OPS = frozenset({"add", "sub", "mul", "neg"})
MAX_DEQUANT_OPS = 6
# A scale for fewer neighbours along k takes as much memory as the weights.
MIN_GROUP_SIZE = 8


@dataclass(frozen=True)
class QuantizedOperand:
    """`value` is the operand over (k, j); `scale`, over j alone, is applied after the sum."""

    value: Expr
    scale: Expr | None


def quantized_operand(
    low: Lowering, value: Expr, k: Expr, j: Expr, width: int
) -> QuantizedOperand | None:
    """A value made of parameters alone, read from packed parts; None if it is not quantized."""
    kept = all(low.is_static(node.buffer) for node in loads(value))
    if not kept or not low.config.cpp.weight_prepack or low.config.emulate_precision_casts:
        return None
    whole = _expanded(low, value, {})
    small = any(node.op == "cast" and node.args[0].dtype.is_int for node in walk(whole))
    if not small or any(node.dtype is F64 for node in walk(whole)):
        return None
    whole, scale = _hoist_scale(whole, k)
    try:
        packed = _Prepacking(low, k, j, width).packed(whole)
    except FallbackToAten:
        return None
    return QuantizedOperand(packed, scale)


def _expanded(low: Lowering, value: Expr, memo: dict[Expr, Expr]) -> Expr:
    """The value with its producers inlined, recursively; halves are not rounded in between."""

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        node = rebuild(node, args)
        maker = low.producer(node.buffer) if node.op == "load" else None
        if maker is not None:
            return _expanded(low, value_at(maker.stores[0], node), memo)
        return cast(args[0], F32) if _rounds(node) else node

    return transform(value, change, memo)


def _rounds(node: Expr) -> bool:
    """A conversion to a float type: here all floats are computed in f32."""
    return node.op in ("narrow", "cast") and node.dtype.is_float


def _hoist_scale(value: Expr, k: Expr) -> tuple[Expr, Expr | None]:
    """sum over k of x * (w * s)  ->  (sum over k of x * w) * s, where s is the same for all k."""
    if value.op == "mul":
        for one, other in (value.args, value.args[::-1]):
            if k not in other.axes:
                return one, other
    return value, None


class _Prepacking:
    """Packs the parts of one operand: integers under casts, and scales."""

    def __init__(self, low: Lowering, k: Expr, j: Expr, width: int) -> None:
        self.low, self.k, self.j, self.width = low, k, j, width
        self.ops = 0

    def packed(self, node: Expr) -> Expr:
        if node.is_const:
            return const(node.attr, F32)
        if node.op == "cast" and node.args[0].dtype.is_int:
            return cast(self._integers(node.args[0]), F32)
        if node.op == "cast" or node.op == "load":
            return cast(self._scales(node), F32)
        self.ops += 1
        if node.op not in DEQUANT_OPS or self.ops > MAX_DEQUANT_OPS:
            raise FallbackToAten("a weight that is computed in another way")
        return apply(node.op, *(self.packed(a) for a in node.args))

    def _integers(self, node: Expr) -> Expr:
        """Small integers, one or two in a byte."""
        span = integer_range(node)
        if span is None or span[1] - span[0] > 255 or not {self.k, self.j} <= node.axes:
            raise FallbackToAten("integers of more than a byte")
        least, most = span
        if most - least < 16 and self.k.extent.number % 2 == 0:
            return self._int4_pairs(node, least)
        kind = I8 if least >= -128 and most <= 127 else U8
        shift = 0 if kind is I8 or least >= 0 else least
        stored = cast(_shifted(node, -shift), kind)
        found = cast(self._panels(stored, self.k.extent.number, self.k), node.dtype)
        return _shifted(found, shift)

    def _int4_pairs(self, node: Expr, least: int) -> Expr:
        """[k, j] for two neighbouring k in one byte."""
        pair = axis("i0", self.k.extent.number // 2)
        first = apply("mul", pair, integer(2))
        halves = [
            cast(_shifted(simplify_indices(substitute(node, {self.k: place})), -least), U8)
            for place in (first, apply("add", first, integer(1)))
        ]
        both = apply("or", halves[0], apply("shl", halves[1], const(4, U8)))
        byte = self._panels(both, pair.extent.number, floordiv(self.k, integer(2)))
        wide, even = cast(byte, I32), apply("eq", modulo(self.k, integer(2)), integer(0))
        low, high = apply("and", wide, const(15, I32)), apply("shr", wide, const(4, I32))
        return _shifted(apply("where", even, low, high), least)

    def _scales(self, node: Expr) -> Expr:
        """Floats that many neighbours along k share."""
        if not node.axes & {self.k, self.j}:
            return node
        group = _group_size(node, self.k)
        if group < min(MIN_GROUP_SIZE, self.k.extent.number):
            raise FallbackToAten("a weight of floats")
        count = -(-self.k.extent.number // group)
        place = apply("mul", axis("i0", count), integer(group)) if count > 1 else integer(0)
        value = simplify_indices(substitute(node, {self.k: place}))
        return self._panels(value, count, floordiv(self.k, integer(group)))

    def _panels(self, value: Expr, depth: int, row: Expr) -> Expr:
        """A value over (i0, j) as a matrix in panels, read at [row, j]."""
        made = self.low.contiguous_buffer((integer(depth), self.j.extent), value.dtype)
        place = positions(made.shape)
        moved = substitute(value, {self.j: place[1]})
        self.low.emit(made, place, simplify_indices(substitute(moved, {self.k: place[0]})))
        packed = self.low.whole(packed_panels(self.low, self.low.whole(made), self.width, 1))
        return packed.at(in_panels((row, self.j), self.width, 1))


def _shifted(node: Expr, by: int) -> Expr:
    return apply("add", node, const(by, node.dtype)) if by else node


def _group_size(node: Expr, k: Expr) -> int:
    """How many neighbours along k share a value: k occurs in it only as k // group."""
    if k not in node.axes:
        return k.extent.number
    divided = {n for n in walk(node) if n.op == "floordiv" and n.args[0] is k}
    counts = {n.args[1].number for n in divided}
    rest = substitute(node, {n: integer(0) for n in divided})
    return counts.pop() if len(counts) == 1 and k not in rest.axes else 1


def integer_range(node: Expr) -> tuple[int, int] | None:
    """The range of an integer, as far as its ops determine it."""
    if node.is_const:
        return node.number, node.number
    if node.op == "load":
        bits = 8 * node.dtype.bytes
        if bits > 8:
            return None
        return (-128, 127) if node.dtype is I8 else (0, 255)
    parts = [integer_range(a) for a in node.args if a.dtype.is_int]
    if not parts or None in parts:
        return None
    return _combined(node, [p for p in parts if p is not None])


def _combined(node: Expr, parts: list[tuple[int, int]]) -> tuple[int, int] | None:
    first, last = parts[0], parts[-1]
    if node.op == "and" and last[0] == last[1] >= 0:
        return 0, last[1]
    if node.op == "shr" and last[0] == last[1] >= 0:
        return first[0] >> last[0], first[1] >> last[0]
    if node.op == "where":
        return min(p[0] for p in parts), max(p[1] for p in parts)
    limits = {"add": (first[0] + last[0], first[1] + last[1]),
              "sub": (first[0] - last[1], first[1] - last[0]), "cast": first}  # fmt: skip
    found = limits.get(node.op)
    return found if found is not None and _fits(found, node) else None


def _fits(span: tuple[int, int], node: Expr) -> bool:
    """Whether no value of a range wraps in the node's type."""
    bits = 8 * node.dtype.bytes
    least, most = (
        (0, 2**bits - 1) if node.dtype is U8 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
    return least <= span[0] and span[1] <= most
