"""View ops: each is an index map over its base; no data moves.

In: a view and the op's arguments. Out: another `View` of the same buffer. The map gives, for a
position in the result, the position in the operand. Example, transpose:
`result[i0, i1] = x[i1, i0]`.
"""

from __future__ import annotations

from typing import Any

import torch

from litz.ir.expr import Expr, apply, integer
from litz.ir.index import ONE, ZERO, ravel, simplify, size_product, unravel
from litz.ir.program import Buffer
from litz.ir.sizes import at_least, difference, named, total
from litz.lower.registry import rule
from litz.lower.symbols import size_of, sizes, strides
from litz.lower.values import Lowering, View, positions


def _scaled(i: Expr, step: Expr | int, start: Expr | int) -> Expr:
    return simplify(apply("add", apply("mul", i, size_of(step)), size_of(start)))


def counted(place: Any, extent: Expr) -> Expr:
    """A position; a negative one counts from the end."""
    given = size_of(place)
    if given.is_const:
        return total((given, extent)) if given.number < 0 else given
    if at_least(given, ZERO):
        return given
    behind = apply("lt", given, ZERO)
    return named(apply("where", behind, apply("add", given, extent), given))


def first_of(start: Any, extent: Expr) -> Expr:
    """Where a slice begins, clamped to the tensor as in eager."""
    begin = counted(0 if start is None else start, extent)
    if begin.is_const and extent.is_const:
        return integer(min(max(begin.number, 0), extent.number))
    if not at_least(begin, ZERO):
        begin = apply("max", begin, ZERO)
    return begin if at_least(extent, begin) else named(apply("min", begin, extent))


@rule("view.default", "_unsafe_view", "reshape", "_reshape_alias")
def _reshape(low: Lowering, like: torch.Tensor, x: View, *_: Any) -> View:
    """Row-major order is kept: equal flat positions are the same element."""
    new = sizes(like.shape)
    if any(s is ZERO for s in new):
        return low.mapped_view(x, like, tuple(ZERO for _ in x.shape))
    return low.mapped_view(x, like, unravel(ravel(positions(new), new), x.shape))


@rule("permute")
def _permute(low: Lowering, like: torch.Tensor, x: View, dims: list[int]) -> View:
    here = positions(sizes(like.shape))
    index: list[Expr] = [ZERO] * len(dims)
    for k, dim in enumerate(dims):
        index[dim % len(dims)] = here[k]
    return low.mapped_view(x, like, tuple(index))


@rule("transpose.int")
def _transpose(low: Lowering, like: torch.Tensor, x: View, a: int, b: int) -> View:
    index = list(positions(sizes(like.shape)))
    index[a], index[b] = index[b], index[a]
    return low.mapped_view(x, like, tuple(index))


@rule("t")
def _matrix_transpose(low: Lowering, like: torch.Tensor, x: View) -> View:
    return low.mapped_view(x, like, tuple(reversed(positions(sizes(like.shape)))))


@rule("expand")
def _expand(low: Lowering, like: torch.Tensor, x: View, *_: Any, **__: Any) -> View:
    here = positions(sizes(like.shape))
    tail = here[len(here) - len(x.shape) :]
    index = tuple(ZERO if s is ONE else p for s, p in zip(x.shape, tail, strict=True))
    return low.mapped_view(x, like, index)


@rule("unsqueeze")
def _unsqueeze(low: Lowering, like: torch.Tensor, x: View, dim: int) -> View:
    index = list(positions(sizes(like.shape)))
    del index[dim % len(index)]
    return low.mapped_view(x, like, tuple(index))


@rule("squeeze.default", "squeeze.dim", "squeeze.dims")
def _squeeze(low: Lowering, like: torch.Tensor, x: View, dim: Any = None) -> View:
    rank = len(x.shape)
    wanted = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {d % rank for d in wanted if x.shape[d % rank] is ONE} if rank else set()
    here = iter(positions(sizes(like.shape)))
    return low.mapped_view(x, like, tuple(ZERO if d in gone else next(here) for d in range(rank)))


@rule("slice.Tensor")
def _slice(
    low: Lowering, like: torch.Tensor, x: View, dim: int = 0, start: Any = None,
    end: Any = None, step: int = 1,
) -> View:  # fmt: skip
    dim %= len(x.shape)
    index = list(positions(sizes(like.shape)))
    index[dim] = _scaled(index[dim], step, first_of(start, x.shape[dim]))
    return low.mapped_view(x, like, tuple(index))


@rule("select.int")
def _select(low: Lowering, like: torch.Tensor, x: View, dim: int, place: int) -> View:
    dim %= len(x.shape)
    index = list(positions(sizes(like.shape)))
    index.insert(dim, counted(place, x.shape[dim]))
    return low.mapped_view(x, like, tuple(index))


@rule("split.Tensor", "split_with_sizes", "unsafe_split.Tensor", "unsafe_split_with_sizes")
def _split(low: Lowering, like: list[torch.Tensor], x: View, _: Any, dim: int = 0) -> list[View]:
    dim %= len(x.shape)
    parts = []
    start: Expr = ZERO
    for part in like:
        index = list(positions(sizes(part.shape)))
        index[dim] = _scaled(index[dim], 1, start)
        # unsafe_split copies, and its parts own their storage; a view has the same values.
        parts.append(_split_view(low, x, part, tuple(index), dim, start))
        start = total((start, size_of(part.shape[dim])))
    return parts


def _split_view(
    low: Lowering, x: View, part: torch.Tensor, index: tuple[Expr, ...], dim: int, start: Expr
) -> View:
    view = low.mapped_view(x, part, index)
    offset = simplify(apply("add", x.offset, apply("mul", start, x.strides[dim])))
    return View(view.buffer, view.shape, view.index, x.strides, offset)


@rule("unbind.int")
def _unbind(low: Lowering, like: list[torch.Tensor], x: View, dim: int = 0) -> list[View]:
    return [_select(low, part, x, dim, k) for k, part in enumerate(like)]


@rule("diagonal")
def _diagonal(
    low: Lowering, like: torch.Tensor, x: View, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> View:
    rank = len(x.shape)
    first, second = dim1 % rank, dim2 % rank
    *rest, along = positions(sizes(like.shape))
    index: list[Expr] = []
    left = iter(rest)
    for d in range(rank):
        if d == first:
            index.append(_scaled(along, 1, max(-offset, 0)))
        elif d == second:
            index.append(_scaled(along, 1, max(offset, 0)))
        else:
            index.append(next(left))
    return low.mapped_view(x, like, tuple(index))


@rule("unfold")
def _unfold(low: Lowering, like: torch.Tensor, x: View, dim: int, _: int, step: int) -> View:
    here = positions(sizes(like.shape))
    index = list(here[:-1])
    if index:
        dim %= len(index)
        index[dim] = simplify(apply("add", _scaled(index[dim], step, 0), here[-1]))
        return low.mapped_view(x, like, tuple(index))
    return low.mapped_view(x, like, ())


@rule("as_strided")
def _as_strided(low: Lowering, like: torch.Tensor, x: View, *_: Any) -> View:
    """The address in the base's storage, converted back to an index of the base."""
    base = x.buffer
    start = difference(size_of(like.storage_offset()), low.base_offset[base])
    _check_reach(low, base, like, start)
    flat = start
    for p, s in zip(positions(sizes(like.shape)), strides(like.stride()), strict=True):
        flat = apply("add", flat, apply("mul", p, s))
    return View(
        base,
        sizes(like.shape),
        _index_at_address(low, base, simplify(flat)),
        strides(like.stride()),
        start,
    )


def _check_reach(low: Lowering, base: Buffer, like: torch.Tensor, start: Expr) -> None:
    """An input may be a slice of a larger storage that the graph does not get. The sizes at tracing
    decide: a window inside the tensor then is assumed to stay inside."""
    shape, steps = sizes(like.shape), strides(like.stride())
    last = sum((n.hint - 1) * step.hint for n, step in zip(shape, steps, strict=True))
    inside = 0 <= start.hint <= start.hint + last < size_product(base.shape).hint
    if not inside and all(n.hint for n in shape):
        raise low.unsupported("its window reaches outside of the tensor that the graph is given")


def _index_at_address(low: Lowering, base: Buffer, flat: Expr) -> tuple[Expr, ...]:
    """Invert a dense layout: largest stride first, each digit of the address is an index."""
    order = sorted(range(len(base.shape)), key=lambda d: -base.strides[d].hint)
    expected: Expr = ONE
    for d in reversed(order):
        if base.shape[d] is not ONE and base.strides[d] is not expected:
            raise low.unsupported("as_strided of a tensor whose memory has gaps or overlaps")
        expected = size_product((expected, base.shape[d]))
    digits = unravel(flat, tuple(base.shape[d] for d in order))
    index: list[Expr] = [ZERO] * len(order)
    for d, digit in zip(order, digits, strict=True):
        index[d] = digit
    return tuple(index)


@rule("alias", "detach", "lift_fresh", "lift")
def _alias(low: Lowering, like: torch.Tensor, x: View) -> View:
    return x
