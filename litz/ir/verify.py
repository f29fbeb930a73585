"""The laws of programs, checked between stages.

In: a `LoopProgram`, a `KernelGraph` or one `Kernel`. Out: nothing, or a `VerifyError` that shows
the broken law, the node with its operands and users, its store, and the user's line. One pass over
the nodes. Example: a loop over `i0` alone that stores `y[i0, i1]` fails with
`i1 is not an axis here`.

    scope     every axis belongs to the nest; reductions bind its reduced axes and nothing else
    order     a buffer is written before it is read; no nest reads a buffer at another place than it
              writes it, and no phase reads an input that an earlier one has updated
    whole     all elements of a buffer are written before it is read, where stores can be counted
    once      no element is written twice, as far as that can be decided
    types     operands agree, a store fits its buffer, indices are i64, as many as dimensions
    range     an index that is a sum of axes stays inside the shape, unless it is guarded
    pattern   a tag is the one that the recogniser finds

Two more laws hold between a kernel and its later forms: its schedule stores as many elements
(`verify_schedule`), and there is code for each of its stores (`verify_emitted`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Any, NoReturn

from litz.errors import VerifyError
from litz.ir.dtypes import BOOL, I64
from litz.ir.expr import Expr, walk
from litz.ir.index import ONE, ZERO, bounds, is_nonnegative, simplify, size_product, to_poly
from litz.ir.ops import OPS
from litz.ir.program import (
    Buffer,
    Extern,
    Kernel,
    KernelGraph,
    Loop,
    LoopProgram,
    Phase,
    Store,
    ViewArg,
    operand_views,
)
from litz.ir.recognise import patterns_in
from litz.ir.scheduled import Choice, ScheduledKernel, Tiling
from litz.ir.sizes import count_of, difference, total, used_in
from litz.ir.text import expr_text, extern_text, kernel_text, loop_text

Step = Loop | Kernel | Extern
# A store for which code was emitted: a buffer and its flat index, or None for all its stores.
Place = tuple[Buffer, Expr | None]


def verify(program: LoopProgram | KernelGraph | Kernel) -> None:
    """Raise `VerifyError` if a program breaks a law of the IR."""
    if isinstance(program, Kernel):
        # A kernel alone may read any buffer: its graph may have written it before.
        _Verifier(given=None).step(program)
        return
    given = [b for b in program.inputs if isinstance(b, Buffer)]
    verifier = _Verifier([*given, *program.constants])
    calls = (step for step in program.body if isinstance(step, Extern))
    verifier.late = {b.symbol for call in calls for b in call.binds}
    for step in program.body:
        verifier.step(step)
    for output in program.outputs:
        verifier.views(operand_views(output.value))


def verify_schedule(before: Kernel, after: ScheduledKernel[Any]) -> None:
    """Raise `VerifyError` if a schedule does not store as many elements as its kernel, or is made
    for a pattern that the kernel does not have."""
    wanted = {b: n for b, n in stored_points(before).items() if b not in before.scratch}
    found = {b.name: n for b, n in stored_points(after.kernel).items()}
    for number, buffer in enumerate(after.arguments):
        if buffer in wanted:
            made = found.get(f"b{number}", ZERO)
            if _differ(made, wanted[buffer]):
                law = f"{made} elements of {buffer} are stored, and not {wanted[buffer]}"
                raise VerifyError(f"{law}\n  in     {_head(before)}")
    kind = _scheduled_as(after.choice)
    if kind is not None and all(tag.kind != kind for tag in patterns_in(after.kernel).values()):
        raise VerifyError(f"what is scheduled as {kind} is none\n  in     {_head(before)}")


def _scheduled_as(choice: Choice | Tiling) -> str | None:
    """The pattern that a schedule is made for."""
    if isinstance(choice, Tiling):
        return "gemm" if choice.depth else None
    made = {"gemm": choice.gemm, "attention": choice.attention, "depthwise": choice.depthwise}
    return next((kind for kind, by in made.items() if by is not None), None)


def verify_emitted(kernel: Kernel, emitted: Set[Place]) -> None:
    """Raise `VerifyError` if no code was emitted for a store: its memory would stay unwritten."""
    for store in kernel.stores:
        if not emitted & {(store.buffer, store.index[0]), (store.buffer, None)}:
            place = ", ".join(map(expr_text, store.index))
            law = f"no code was written that stores {store.buffer}[{place}]"
            raise VerifyError(f"{law}\n  in     {_head(kernel)}")


def stored_points(step: Loop | Kernel) -> dict[Buffer, Expr]:
    """How many elements of each buffer a step sets, without those of scatters."""
    found: dict[Buffer, list[Expr]] = {}
    for nest in nests(step):
        for store in nest.stores:
            if not store.scatters:
                found.setdefault(store.buffer, []).append(_points(store))
    return {buffer: total(counts) for buffer, counts in found.items()}


def _points(store: Store) -> Expr:
    """The number of points of a store's index, each of which is another element."""
    return count_of(frozenset().union(*(i.axes for i in store.index)))


def _differ(one: Expr, other: Expr) -> bool:
    """Whether two sizes are certainly not equal."""
    if one.is_const and other.is_const:
        return one is not other
    more = dict(to_poly(difference(one, other)))
    less = {monomial: -factor for monomial, factor in more.items()}
    for poly in (more, less):
        poly[()] = poly.get((), 0) - 1
    return is_nonnegative(more) or is_nonnegative(less)


@dataclass(frozen=True)
class Nest:
    """A loop, or the stores of one phase that happen inside its nest, or those after it."""

    axes: tuple[Expr, ...]
    reduced: tuple[Expr, ...]
    stores: tuple[Store, ...]
    beside: tuple[Store, ...] = ()  # of the stores after a nest: those inside it


def nests(step: Loop | Kernel) -> list[Nest]:
    """The loop nests of a step, in order."""
    if isinstance(step, Loop):
        return [Nest(step.axes, step.reduced, step.stores)]
    found = []
    for phase in step.phases:
        found.append(Nest(step.outer + phase.inner, phase.summed, phase.inside))
        if phase.is_reduction:
            found.append(Nest(step.outer, phase.inner, phase.completing, phase.inside))
    return found


class _Verifier:
    """Walks a program in order and tracks which buffers are written."""

    def __init__(self, given: Iterable[Buffer] | None) -> None:
        self.closed = given is not None
        self.ready: set[Buffer] = set(given or ())
        self.named: dict[str, Buffer] = {b.name: b for b in self.ready}
        # The indices at which each buffer has been stored.
        self.covered: dict[Buffer, set[tuple[Expr, ...]]] = {}
        self.sound: set[Expr] = set()  # nodes whose own types and ranges have been checked
        self.current: Step | None = None
        self.late: set[Expr] = set()  # unbacked sizes whose call has not run yet
        self.given: frozenset[Buffer] = frozenset(self.ready)
        # How many elements of each buffer are written; scatters cannot be counted.
        self.counted: dict[Buffer, list[Expr]] = {}
        self.complete: set[Buffer] = set(self.ready)

    def step(self, step: Step) -> None:
        self.current = step
        if self.late:
            self._sizes(step)
        if isinstance(step, Extern):
            self._extern(step)
        else:
            updated: set[Buffer] = set()
            for nest in nests(step):
                self._nest(nest, step.scratch if isinstance(step, Kernel) else (), updated)
                updated.update(self.given.intersection(s.buffer for s in nest.stores))
            self._pattern(step)
            if isinstance(step, Kernel):
                self._outer(step)
                for buffer in step.scratch:
                    self._forget(buffer)
        self.current = None

    def _forget(self, buffer: Buffer) -> None:
        self.ready.discard(buffer)
        self.covered.pop(buffer, None)
        self.counted.pop(buffer, None)
        self.complete.discard(buffer)
        self.named.pop(buffer.name, None)

    # -- order -------------------------------------------------------------------------------

    def views(self, operands: Iterable[ViewArg]) -> None:
        for view in operands:
            self._read(view.buffer)

    def _read(
        self, buffer: Buffer, local: tuple[Buffer, ...] = (), node: Expr | None = None
    ) -> None:
        self._named(buffer)
        if ZERO in buffer.shape:
            return  # it has no elements to be written
        if buffer not in self.ready and (self.closed or buffer in local):
            self._fail(f"{buffer} is read before it is written", node)
        if buffer not in self.complete and buffer in self.counted:
            self._whole(buffer, node)

    def _whole(self, buffer: Buffer, node: Expr | None) -> None:
        there, all_of_it = total(self.counted[buffer]), size_product(buffer.shape)
        if _differ(there, all_of_it):
            self._fail(f"{there} of {all_of_it} elements of {buffer} are written", node)
        self.complete.add(buffer)

    def _named(self, buffer: Buffer) -> None:
        if self.named.setdefault(buffer.name, buffer) != buffer:
            self._fail(f"two different buffers are called {buffer}")

    def _sizes(self, step: Step) -> None:
        """An unbacked size is used only after the call that binds it."""
        if isinstance(step, Extern):  # the shapes of its own results may use the size
            self.late = self.late.difference(b.symbol for b in step.binds)
        if early := self.late & used_in(step):
            name = min(str(n.attr[0]) for n in early)
            self._fail(f"the size {name} is used before the call that tells it")

    def _extern(self, step: Extern) -> None:
        self.views(operand_views((step.args, step.kwargs)))
        for buffer in step.mutates:
            self._read(buffer)
        for result in step.outputs:
            if result is not None:
                self._named(result)
                if result in self.covered:
                    self._fail(f"{result} is written twice")
                self.covered[result] = {()}
                self.ready.add(result)
                self.complete.add(result)

    def _outer(self, kernel: Kernel) -> None:
        """Outer iterations run in any order, so none may read an element that another writes."""
        places = _places(s for s in kernel.stores if s.buffer not in kernel.scratch)
        for node in _nodes(kernel.stores):
            for place in places.get(node.buffer, ()) if node.op == "load" else ():
                for mine, theirs in zip(node.index, place, strict=True):
                    if theirs in kernel.outer and mine is not theirs:
                        self._fail(f"{node.buffer} is written by another outer iteration", node)

    def _pattern(self, step: Loop | Kernel) -> None:
        """Every tag is the one that the recogniser finds for its nest."""
        nests: Iterable[Loop | Phase] = (step,) if isinstance(step, Loop) else step.phases
        tags = {k: nest.pattern for k, nest in enumerate(nests) if nest.pattern is not None}
        found = patterns_in(step) if tags else {}
        for place, tag in tags.items():
            if found.get(place) != tag:
                self._fail(f"{tag} is not what is computed: that is {found.get(place)}")

    # -- one nest ----------------------------------------------------------------------------

    def _nest(self, nest: Nest, local: tuple[Buffer, ...], updated: set[Buffer]) -> None:
        axes, reduced = frozenset(nest.axes), frozenset(nest.reduced)
        if len({a.attr for a in nest.axes + nest.reduced}) < len(nest.axes) + len(nest.reduced):
            self._fail("two axes of a nest have one name")
        places = _places(nest.stores)
        beside = {s.buffer for s in nest.beside}
        for node in _nodes(nest.stores):
            if node.op == "load":
                self._read(node.buffer, local, node)
                if node.buffer in updated:
                    self._fail(f"{node.buffer} is read behind its update in place", node)
                if node.buffer in beside:
                    self._fail(f"{node.buffer} is read while the same phase stores it", node)
                if places.get(node.buffer, {node.index}) != {node.index}:
                    self._fail(f"{node.buffer} is read at another place than it is stored", node)
            elif node.op == "reduce" and not reduced.issuperset(node.attr[1]):
                names = ", ".join(a.attr for a in node.attr[1] if a not in reduced)
                self._fail(f"{names} is not a reduced axis here", node)
            if node not in self.sound:
                problem = _problem(node)
                if problem:
                    self._fail(problem, node)
                self.sound.add(node)
        for store in nest.stores:
            self._scope(store, axes, reduced)
            self._store(store)

    def _scope(self, store: Store, axes: frozenset[Expr], reduced: frozenset[Expr]) -> None:
        for part in (*store.index, store.value):
            for axis in part.axes - axes:
                where = "a store's index" if part in store.index else "a value outside a reduction"
                self._fail(
                    f"{axis.attr} is reduced, but used in {where}"
                    if axis in reduced
                    else f"{axis.attr} is not an axis here",
                    axis,
                    store,
                )

    def _store(self, store: Store) -> None:
        buffer, index = store.buffer, store.index
        self._named(buffer)
        problem = _misplaced(buffer, index, guarded=False)
        if store.value.dtype is not buffer.dtype:
            problem = f"{buffer} holds {buffer.dtype}, but {store.value.dtype} is stored"
        if problem:
            self._fail(problem, store=store)
        before = self.covered.setdefault(buffer, set())
        place = tuple(simplify(i) for i in index)
        if not store.scatters and ((before and _is_whole(buffer, place)) or place in before):
            self._fail(f"{buffer} is written twice", store=store)
        before.add(place)
        self.ready.add(buffer)
        if store.scatters and buffer not in self.counted:
            self.complete.add(buffer)
        elif not store.scatters:
            self.counted.setdefault(buffer, []).append(_points(store))

    # -- what a failure shows ----------------------------------------------------------------

    def _fail(self, law: str, node: Expr | None = None, store: Store | None = None) -> NoReturn:
        step, lines = self.current, [law]
        if store is None and node is not None and step is not None and not isinstance(step, Extern):
            store = next(s for s in step.stores if node in _nodes([s]))
        if node is not None:
            lines.append(f"  at     {_typed(node)}")
            lines += [f"  of     {_typed(a)}" for a in node.args]
        if node is not None and store is not None:
            lines += [f"  inside {_typed(n)}" for n in _nodes([store]) if node in n.args]
        if store is not None:
            place = ", ".join(map(expr_text, store.index))
            lines.append(f"  stored {store.buffer}[{place}] = {expr_text(store.value)}")
        if step is not None:
            lines.append(f"  in     {_head(step)}")
        raise VerifyError("\n".join(lines))


def _nodes(stores: Iterable[Store]) -> Iterator[Expr]:
    return walk(*(e for s in stores for e in (*s.index, s.value)))


def _places(stores: Iterable[Store]) -> dict[Buffer, set[tuple[Expr, ...]]]:
    """The indices at which each buffer is stored."""
    places: dict[Buffer, set[tuple[Expr, ...]]] = {}
    for store in stores:
        places.setdefault(store.buffer, set()).add(store.index)
    return places


def _typed(node: Expr) -> str:
    return f"{expr_text(node)}: {node.dtype}"


def _head(step: Step) -> str:
    if isinstance(step, Extern):
        return extern_text(step)
    text = loop_text(step) if isinstance(step, Loop) else kernel_text(step)
    return text.partition("\n")[0]


# -- laws of one node ------------------------------------------------------------------------


def _problem(node: Expr) -> str | None:
    """What is wrong with a node and its operands, independent of its surroundings."""
    if node.op == "load":
        return _misplaced(node.buffer, node.index, node.guard is not None) or _bad_guard(node)
    if node.op == "scan" and node.args[1].op != "axis":
        return "a scan runs along an axis"
    if node.op == "bitcast" and node.dtype.bytes != node.args[0].dtype.bytes:
        return f"a bitcast of {node.args[0].dtype} to {node.dtype} changes the size"
    if node.op == "reduce" and not node.attr[1]:
        return "a reduction binds at least one axis"
    return _mixed(node) if node.op in OPS else None


def _bad_guard(node: Expr) -> str | None:
    guard = node.guard
    return None if guard is None or guard.dtype is BOOL else f"a guard is bool, not {guard.dtype}"


BITWISE = frozenset({"and", "or", "xor", "not", "shl", "shr"})


def _mixed(node: Expr) -> str | None:
    operands = node.args
    if node.op == "where":
        if operands[0].dtype is not BOOL:
            return f"where chooses by {operands[0].dtype}, not by bool"
        operands = operands[1:]
    if node.op == "check":
        kinds = [operand.dtype for operand in operands[:3]]
        wanted = [BOOL, I64, I64]
        return None if kinds == wanted else f"check takes {wanted} and a value, not {kinds}"
    first = operands[0].dtype
    for other in operands[1:]:
        if other.dtype is not first:
            return f"{node.op} of {first} and {other.dtype}"
    if OPS[node.op].floats_only and not first.is_float:
        return f"{node.op} takes floats, not {first}"
    if node.op in BITWISE and first.is_float:
        return f"{node.op} takes integers, not {first}"
    return None


def _misplaced(buffer: Buffer, index: tuple[Expr, ...], guarded: bool) -> str | None:
    """What is wrong with an index: its rank, its type, or a point certainly outside the shape."""
    if len(index) != len(buffer.shape):
        return f"{buffer} has {len(buffer.shape)} dimensions, but {len(index)} indices"
    for i, extent in zip(index, buffer.shape, strict=True):
        if i.dtype is not I64:
            return f"an index is i64, not {i.dtype}"
        if not guarded and _leaves(i, extent):
            return f"{expr_text(i)} leaves 0..{expr_text(extent)} of {buffer}"
    return None


def _leaves(index: Expr, extent: Expr) -> bool:
    """Whether some point is certainly outside: a sum of axes takes both of its bounds."""
    if index.op == "axis" and index.extent is extent:
        return False
    if index.is_const and extent.is_const:
        return not 0 <= index.attr < extent.attr
    poly = to_poly(simplify(index))
    if any(len(m) > 1 or m[0].op != "axis" or m[0].extent is ZERO for m in poly if m):
        return False
    span = bounds(poly)
    if span is None:
        return False
    below, above = {m: -c for m, c in span[0].items()}, dict(span[1])
    below[()] = below.get((), 0) - 1
    for monomial, factor in to_poly(extent).items():
        above[monomial] = above.get(monomial, 0) - factor
    return is_nonnegative(below) or is_nonnegative(above)


def _is_whole(buffer: Buffer, place: tuple[Expr, ...]) -> bool:
    """Whether a store at this index writes every element: one axis for each dimension."""
    reach = [ONE if i is ZERO else i.extent if i.op == "axis" else None for i in place]
    varied = [i for i in place if i is not ZERO]
    return reach == list(buffer.shape) and len(set(varied)) == len(varied)
