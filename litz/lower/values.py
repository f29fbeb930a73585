"""Lowered values, and the state of one lowering.

In: fake tensors. Out: `View` (a view of a buffer: an index map plus eager's strides) and
`Lowering`, which allocates buffers and collects loops. Example: the transpose of `x: f32[2, 3]` is
`View(x, shape=(3, 2), index=(i1, i0), strides=(1, 3), offset=0)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from litz.config import Config
from litz.errors import UnsupportedOp
from litz.ir.aten import dtype_of
from litz.ir.checks import Site
from litz.ir.choices import NO_CHOICES, Choices, GemmChoice
from litz.ir.dtypes import F32, DType
from litz.ir.expr import Expr, apply, axis, cast, const, load, narrow, substitute, walk
from litz.ir.index import ONE, ZERO, row_major, simplify, size_product
from litz.ir.program import Buffer, Decision, Extern, Loop, Origin, Store
from litz.ir.sizes import at_least, difference
from litz.lower.registry import FallbackToAten
from litz.lower.symbols import as_value, size_of, sizes, strides
from litz.lower.unbacked_bindings import DeferredAsserts
from litz.target import Target


@dataclass(frozen=True)
class View:
    """`index` maps positions (i0, i1, ...) to the buffer's; strides and offset are eager's."""

    buffer: Buffer
    shape: tuple[Expr, ...]
    index: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    def at(self, position: Sequence[Expr], guard: Expr | None = None) -> Expr:
        """The element at a position of the view."""
        names = dict(zip(positions(self.shape), position, strict=True))
        places = {k: v for k, v in names.items() if k is not ZERO and k is not v}
        index = tuple(simplify(substitute(i, places)) for i in self.index)
        if (
            guard is None
            and may_be_empty(self.buffer)
            and any(n.op == "load" for n in walk(*index))
        ):
            guard = apply(
                "gt", size_product(self.buffer.shape), ZERO
            )  # an empty buffer has no valid index, and nothing is read
        return load(self.buffer, index, guard)


def may_be_empty(buffer: Buffer) -> bool:
    """Whether a buffer of symbolic shape may have no elements."""
    known = [n for n in buffer.shape if not n.is_const]
    return bool(known) and not all(at_least(n, ONE) for n in known)


Value = View | Expr | int | float | bool | None


def positions(shape: Sequence[Expr]) -> tuple[Expr, ...]:
    """One axis per dimension; a dimension of size one has none: its position is always ZERO."""
    return tuple(ZERO if s is ONE else axis(f"i{k}", s) for k, s in enumerate(shape))


class Lowering:
    """Collects loops and extern calls for one graph."""

    def __init__(self, config: Config, target: Target, choices: Choices = NO_CHOICES) -> None:
        self.config, self.target, self.choices = config, target, choices
        self.static: set[Buffer] = set()  # parameters: values made of them alone are prepacked
        self.packed: dict[tuple[View, int, int], Buffer] = {}
        self.body: list[Loop | Extern] = []
        self._writers: dict[Buffer, Loop | None] = {}  # None if several loops write parts of it
        self._noted = 0  # number of steps whose writes are in _writers
        self._static: dict[Buffer, bool] = {}  # whether a loop's result is made of parameters alone
        self.origin = Origin("", "")
        self.lower_node: Callable[[Lowering, torch.fx.Node, dict[torch.fx.Node, Any]], Any]
        self.used: frozenset[int] = frozenset()  # which results of the current op are read
        self.pointwise_users = False  # all readers of its result are elementwise
        self.is_user_op = True  # the current op is in the user's program, not from a decomposition
        self.rounds = False  # its result is rounded wherever it is computed
        self.original_aten = (
            "aten.op"  # the op in the user's program that the current op was decomposed from
        )
        self._sites: dict[tuple[str, tuple[Expr, ...], str], Site] = {}
        self.decisions: list[Decision] = []
        self.bound: set[Expr] = set()  # sizes known from arguments or from calls so far
        self.deferred_asserts = DeferredAsserts(set())  # assumptions about unbacked sizes
        # The offset of each buffer in its storage, as the fake tensor has it.
        self.base_offset: dict[Buffer, Expr] = {}
        self._count = 0

    @property
    def gemm_choice(self) -> GemmChoice:
        """The choice of autotuning for the current matmul."""
        return self.choices.of_gemm((self.origin,))

    def panel_columns(self, element_bytes: int, columns: int) -> int:
        """The number of columns in a panel of the current matmul's right operand."""
        return self.target.panel_columns(element_bytes, columns, self.gemm_choice.nr_vectors)

    @contextmanager
    def subgraph_body(self) -> Iterator[list[Loop | Extern]]:
        """Steps that are lowered in this context go into a separate list."""
        body, self.body = self.body, []
        try:
            yield self.body
        finally:
            self.body = body

    def check(self, name: str, site: Site, *args: Expr) -> Expr:
        """A check for the current op. Equal checks share the first one's site: it fails first."""
        found = self._sites.setdefault((name, args, site.kind), site)
        return apply(name, *args, site=found)

    def decide(self, action: str, name: str, reason: str) -> None:
        """Record a decision and its reason for `explain`."""
        self.decisions.append(Decision(action, name, name, reason))

    def unsupported(self, why: str) -> UnsupportedOp:
        return UnsupportedOp(self.origin.op, self.origin, why)

    def buffer(self, like: torch.Tensor, name: str | None = None) -> Buffer:
        """A fresh buffer with eager's layout of `like`."""
        if name is None:
            name, self._count = f"t{self._count}", self._count + 1
        made = Buffer(
            name, dtype_of(like.dtype), sizes(like.shape), strides(like.stride()), str(like.device)
        )
        self.base_offset[made] = size_of(like.storage_offset())
        return made

    def contiguous_buffer(self, shape: tuple[Expr, ...], dtype: DType) -> Buffer:
        """A fresh contiguous buffer for a value that eager does not have."""
        name, self._count = f"t{self._count}", self._count + 1
        made = Buffer(name, dtype, shape, row_major(shape), self.target.device)
        self.base_offset[made] = ZERO
        return made

    def whole(self, buffer: Buffer) -> View:
        """The view of a whole buffer."""
        return View(buffer, buffer.shape, positions(buffer.shape), buffer.strides, ZERO)

    def mapped_view(self, base: View, like: torch.Tensor, index: tuple[Expr, ...]) -> View:
        """The result of a view op: a new index map, with the strides of eager's view."""
        start = difference(size_of(like.storage_offset()), self.base_offset[base.buffer])
        mapped = dict(zip(positions(base.shape), index, strict=True))
        mapped = {k: v for k, v in mapped.items() if k is not ZERO}
        return View(
            base.buffer,
            sizes(like.shape),
            tuple(simplify(substitute(i, mapped)) for i in base.index),
            strides(like.stride()),
            start,
        )

    def producer(self, buffer: Buffer) -> Loop | None:
        """The one pointwise loop that writes a buffer, if there is one."""
        for step in self.body[self._noted :]:
            for each in step.writes:
                alone = isinstance(step, Loop) and not step.reduced and not step.ordered
                first = each not in self._writers
                self._writers[each] = step if first and alone else None  # type: ignore[assignment]
        self._noted = len(self.body)
        return self._writers.get(buffer)

    def is_static(self, buffer: Buffer) -> bool:
        """Whether it is a parameter or made of parameters alone: it seldom changes."""
        known = True if buffer in self.static else self._static.get(buffer)
        if known is None:
            reads = maker.reads if (maker := self.producer(buffer)) is not None else []
            known = self._static[buffer] = bool(reads) and all(map(self.is_static, reads))
        return known

    def emit(
        self,
        target: Buffer,
        index: tuple[Expr, ...],
        value: Expr,
        reduced: tuple[Expr, ...] = (),
    ) -> None:
        """Append a loop over the axes its store uses."""
        if target.dtype.kind == "x":
            raise FallbackToAten("a type that is not generated")
        if _overlaps(target):
            raise FallbackToAten("a result whose elements share memory")
        axes = tuple(a for a in positions(target.shape) if a is not ZERO)
        axes = tuple(a for a in axes if any(a in i.axes for i in index))
        half = target.dtype.is_half and self.rounds
        stored = cast(value, target.dtype) if half else to_storage(value, target.dtype)
        store = Store(target, index, stored)
        self.body.append(Loop(axes, reduced, (store,), (self.origin,)))

    def pointwise(
        self, like: torch.Tensor, value: Callable[[tuple[Expr, ...]], Expr], name: str | None = None
    ) -> View:
        """A fresh tensor whose element at each position is `value(position)`."""
        target = self.buffer(like, name)
        position = positions(target.shape)
        self.emit(target, position, value(position))
        return self.whole(target)


def _overlaps(buffer: Buffer) -> bool:
    """Whether two elements may share an address, as in eager's copy of an unfolded tensor: the
    final value then depends on the order of writes."""
    reach: Expr = ZERO
    steps = [(s, n) for s, n in zip(buffer.strides, buffer.shape, strict=True) if n not in SINGLE]
    for step, n in sorted(steps, key=lambda pair: (pair[0].hint, pair[1].hint)):
        if not at_least(step, apply("add", reach, ONE)):
            return True
        reach = simplify(apply("add", reach, apply("mul", step, difference(n, ONE))))
    return False


SINGLE = (ZERO, ONE)


def to_storage(value: Expr, dtype: DType) -> Expr:
    """A computed value in its storage dtype; fusion may elide the rounding to a half type."""
    if value.dtype is dtype:
        return value
    return narrow(value, dtype) if dtype.is_half and value.dtype is F32 else cast(value, dtype)


def widen(value: Expr, dtype: DType) -> Expr:
    """An operand in its compute dtype."""
    return cast(value, dtype.compute)


def broadcast(view: View, position: Sequence[Expr]) -> tuple[Expr, ...]:
    """The position in `view` that broadcasting reads for a position of the result."""
    tail = position[len(position) - len(view.shape) :]
    return tuple(ZERO if s is ONE else p for s, p in zip(view.shape, tail, strict=True))


def element(value: Value, position: Sequence[Expr], dtype: DType) -> Expr:
    """An operand (tensor or number) at a position, in its compute dtype."""
    if isinstance(value, View):
        return widen(value.at(broadcast(value, position)), dtype)
    if isinstance(value, Expr):
        return widen(as_value(value), dtype)
    if value is None:
        raise TypeError("an operand is missing")
    return const(value, dtype.compute)
