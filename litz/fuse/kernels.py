"""Kernels: a group of loops written as phases over shared rows.

In: the members of a group, and the buffers that are read outside. Out: a `Kernel`. Loops that may
run together share a phase; a reader of a finished reduction comes in a later one. A buffer that
only phases of this kernel use becomes scratch; a value used inside one phase stays in registers.
Example: softmax is three phases over a row: its maximum, the exponentials with their sum, the
quotients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from litz.fuse.anchor import CannotFuse, Member, common_outer, is_sequential, places_of
from litz.fuse.rounding import drop_round_trips
from litz.ir.expr import (
    Expr,
    apply,
    cast,
    const,
    load,
    narrow,
    rebuild,
    substitute,
    transform,
)
from litz.ir.index import row_major, simplify, simplify_indices
from litz.ir.program import Buffer, Kernel, Loop, Origin, Phase, Store, loads
from litz.rewrite import Simplifier


@dataclass
class _PlacedLoop:
    """One loop in terms of the kernel's axes."""

    store: Store
    inner: tuple[Expr, ...]
    reduces: bool
    summed: tuple[Expr, ...] = ()  # the reduced axes of a GEMM, whose columns are the inner axes
    level: int = 0
    along: bool = False  # in the GEMM's phase: it is the GEMM or part of its elementwise epilogue


def make_kernel(
    members: list[Member], needed: set[Buffer], simplifier: Simplifier, name: str
) -> Kernel:
    """Phases, scratch and store forwarding for one group."""
    outer = common_outer(members)
    assert not isinstance(outer, CannotFuse), outer.reason
    pieces = [_placed(m, outer) for m in members]
    _assign_levels(pieces)
    phases = _phases(pieces)
    phases, scratch = _make_local(phases, outer, needed, _operands(pieces))
    phases = _simplified(phases, simplifier)
    origins: dict[Origin, None] = {}
    for member in members:
        origins.update(dict.fromkeys(member.loop.origins))
    return Kernel(name, outer, tuple(phases), scratch, tuple(origins))


def placed_around_gemm(members: list[Member]) -> list[str]:
    """Where each member runs relative to the GEMM among them: "before" it, "along" with it as an
    elementwise epilogue, or "behind" it, on whole rows."""
    outer = common_outer(members)
    assert not isinstance(outer, CannotFuse), outer.reason
    pieces = [_placed(m, outer) for m in members]
    _assign_levels(pieces)
    level = next(p.level for p in pieces if p.summed)
    return ["along" if p.along else "behind" if p.level > level else "before" for p in pieces]


def attention_kernel(loops: list[Loop], simplifier: Simplifier | None, name: str) -> Kernel:
    """Attention and, beside it, its row logsumexp. The latter has no width axis, so every position
    of a row's width stores the same number."""
    first, *others = loops
    stores = (first.stores[0], *(replace(o.stores[0], mode="put") for o in others))
    phase = Phase(first.reduced, True, stores)
    origins = tuple(dict.fromkeys(o for loop in loops for o in loop.origins))
    phases = [phase] if simplifier is None else _simplified([phase], simplifier)
    return Kernel(name, first.axes, tuple(phases), (), origins)


def _placed(member: Member, outer: tuple[Expr, ...]) -> _PlacedLoop:
    places = places_of(member, outer)
    store = member.loop.stores[0]
    memo: dict[Expr, Expr] = {}
    moved = replace(
        store,
        index=tuple(simplify(substitute(i, places)) for i in store.index),
        value=simplify_indices(substitute(store.value, places, memo)),
    )
    inner = tuple(places[a] for a in member.inner if a not in member.summed)
    summed = tuple(places[a] for a in member.summed)
    return _PlacedLoop(moved, inner, is_sequential(member.loop) and not summed, summed)


def _assign_levels(pieces: list[_PlacedLoop]) -> None:
    """A reader of a finished reduction, or of another column of its row, is one level later. An
    elementwise epilogue of a GEMM runs along with it; all other readers wait."""
    makers = {p.store.buffer: p for p in pieces}
    for piece in pieces:
        along: set[int] = set()  # levels of GEMMs that it might run along with
        for node in loads(piece.store.value, *piece.store.index):
            maker = makers.get(node.buffer)
            if maker is None or maker is piece:
                continue
            aligned = node.index == maker.store.index and maker.inner == piece.inner
            waits = maker.reduces or not aligned or (maker.along and piece.reduces)
            piece.level = max(piece.level, maker.level + (1 if waits else 0))
            if maker.along and not waits:
                along.add(maker.level)
        if along:
            piece.along = piece.level in along
        else:
            piece.along = bool(piece.summed)


# Where a loop runs: its level, whether along with a GEMM, its segment number, its inner axes.
_Place = tuple[int, bool, int, tuple[Expr, ...]]


def _phases(pieces: list[_PlacedLoop]) -> list[Phase]:
    """Loops of one level over the same inner axes run in one loop nest. Segments of one buffer run
    one after the other, so that a row is written from start to end, unless they read the same
    elements, which are then read once. A GEMM comes last of its level. A loop that updates a buffer
    waits for all readers of the old value."""
    shared: dict[_Place, list[_PlacedLoop]] = {}
    windows: dict[Buffer, int] = {}
    reading: dict[Buffer, tuple[int, bool, int]] = {}  # the last nest so far that reads a buffer
    for piece in pieces:
        window = windows.get(piece.store.buffer, 0)
        before = shared.get((piece.level, piece.along, window - 1, piece.inner), [])
        if any(_reads_same(piece, other) for other in before):
            window -= 1
        windows[piece.store.buffer] = window + 1
        place = (piece.level, piece.along, window)
        place = max(place, reading.get(piece.store.buffer, place))
        for node in loads(piece.store.value, *piece.store.index):
            reading[node.buffer] = max(place, reading.get(node.buffer, place))
        shared.setdefault((*place, piece.inner), []).append(piece)
    ordered = sorted(shared.items(), key=lambda item: item[0][:3])
    return [_phase(inner, group) for (*_, inner), group in ordered]


def _phase(inner: tuple[Expr, ...], group: list[_PlacedLoop]) -> Phase:
    stores = _forwarded([p.store for p in group])
    summed = next((p.summed for p in group if p.summed), ())
    return Phase(inner, any(p.reduces for p in group), stores, summed)


def _reads_same(piece: _PlacedLoop, other: _PlacedLoop) -> bool:
    """Whether two loops read some element at the same time in each iteration."""
    inner = frozenset(piece.inner)
    own = {node for node in loads(piece.store.value) if node.axes & inner}
    return any(node in own for node in loads(other.store.value))


def _forwarded(stores: list[Store]) -> tuple[Store, ...]:
    """Store forwarding: inside a phase a stored value is used directly, not loaded again."""
    known: dict[tuple[Buffer, tuple[Expr, ...]], Expr] = {}

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        node = rebuild(node, args)
        value = known.get((node.buffer, node.index)) if node.op == "load" else None
        if value is None or node.guard is None:
            return value or node
        return apply("where", node.guard, value, const(0, value.dtype))

    result = []
    for store in stores:
        value = transform(store.value, change)
        index = tuple(transform(i, change) for i in store.index)  # a scatter's may contain loads
        result.append(replace(store, index=index, value=value))
        if not store.scatters:
            known[store.buffer, store.index] = value
    return tuple(result)


@dataclass(frozen=True)
class _Row:
    """Scratch for one row of a buffer: the dimensions whose index uses an inner axis."""

    buffer: Buffer
    dims: tuple[int, ...]

    def index(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Rows were checked to agree, so only the dimensions inside the row remain."""
        return tuple(index[d] for d in self.dims)


def _operands(pieces: list[_PlacedLoop]) -> set[Buffer]:
    """The buffers that GEMMs read, which keep their dtype: instructions take halves and bytes."""
    return {n.buffer for p in pieces if p.summed for n in loads(p.store.value)}


def _make_local(
    phases: list[Phase], outer: tuple[Expr, ...], needed: set[Buffer], operands: set[Buffer]
) -> tuple[list[Phase], tuple[Buffer, ...]]:
    """Buffers that nothing outside reads become scratch of one row, or vanish."""
    read_later: set[Buffer] = set()
    for phase in phases:
        for store in phase.stores:
            read_later |= {n.buffer for n in loads(store.value, *store.index)}
    stored = {s.buffer: s for phase in phases for s in phase.stores}
    local = {b: _row(s, outer, b in operands) for b, s in stored.items() if b not in needed}
    result = []
    for phase in phases:
        stores = [
            _localised(s, local)
            for s in phase.stores
            if s.buffer not in local or s.buffer in read_later
        ]
        if stores:
            result.append(replace(phase, stores=tuple(stores)))
    return result, tuple(row.buffer for b, row in local.items() if b in read_later)


def _row(store: Store, outer: tuple[Expr, ...], as_is: bool) -> _Row:
    """Halves are stored wide: a value that never leaves the kernel is not rounded."""
    dims = tuple(d for d, i in enumerate(store.index) if i.axes - set(outer))
    shape = tuple(store.buffer.shape[d] for d in dims)
    name, dtype = f"{store.buffer.name}_row", store.buffer.dtype
    dtype = dtype if as_is else dtype.compute
    return _Row(Buffer(name, dtype, shape, row_major(shape), store.buffer.device), dims)


def _localised(store: Store, local: dict[Buffer, _Row]) -> Store:
    """A store with its loads (and itself, if local) moved to scratch."""

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        node = rebuild(node, args)
        row = local.get(node.buffer) if node.op == "load" else None
        if row is None:
            return node
        return narrow(load(row.buffer, row.index(node.index), node.guard), node.buffer.dtype)

    memo: dict[Expr, Expr] = {}
    value = transform(store.value, change, memo)
    index = tuple(transform(i, change, memo) for i in store.index)
    row = local.get(store.buffer)
    if row is None:
        return replace(store, index=index, value=value)
    if value.dtype is not row.buffer.dtype:
        value = value.args[0] if value.op == "narrow" else cast(value, row.buffer.dtype)
    return Store(row.buffer, row.index(index), value)


def _simplified(phases: list[Phase], simplifier: Simplifier) -> list[Phase]:
    """Value rules over every store, now that forwarding has joined producers and readers."""

    def simplified(store: Store) -> Store:
        return replace(store, value=drop_round_trips(simplifier(store.value)))

    return [replace(phase, stores=tuple(map(simplified, phase.stores))) for phase in phases]
