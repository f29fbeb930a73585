"""Producer into consumer: a pointwise value is recomputed where it is read, not stored.

In: a `LoopProgram`. Out: the remaining loops, with the values of the others written into them, and
a decision for each. Example:

    t0[i0] = exp(x[i0]);  y[i0] = t0[i0] + 1.0   ->   y[i0] = exp(x[i0]) + 1.0

Decisions run backwards (a reader is decided before its producer), substitutions forwards (a
producer's final value is known before its reader's). Axes are named by position, so a read at the
same position substitutes nothing: a chain of n ops costs n.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from litz.config import Config
from litz.fuse.cost import EXPENSIVE_OP, cost_of, max_op_cost
from litz.fuse.index_coverage import checks_of, unrolled, walked
from litz.fuse.prologues import STORED, Prologues, Verdicts, round_operands
from litz.ir.attention import attention_of, walk_of
from litz.ir.choices import NO_CHOICES, Choices
from litz.ir.expr import Expr, walk
from litz.ir.patterns import Axes, Depthwise, Gemm
from litz.ir.program import (
    Buffer,
    Decision,
    Extern,
    Loop,
    LoopProgram,
    Origin,
    Store,
    ViewArg,
    buffer_bytes,
    loads,
    read,
    written,
)
from litz.ir.recognise import recognised
from litz.ir.store_forwarding import forward_stores, value_at
from litz.target import Target

# A load from L1 costs about this many additions: cheaper values are always recomputed.
RECOMPUTE_COST = 6
# A division or a root costs a few additions alone and many in a row: they keep one unit busy.
DIVISION = 4
MANY_REPEATS = 8
# More copies of a value than this pay only if it is cheap.
MAX_SITES = 4
# The largest value made of parameters that is kept: a vector with one number per channel.
MAX_HOISTED_BYTES = 1 << 18
# (the loop that finally computes the value, the loads it is read through; () is the same position)
Site = tuple[int, tuple[Expr, ...]]


@dataclass
class _Value:
    """The facts about one producer while deciding."""

    sites: set[Site] = field(default_factory=set)
    repeats: int = 1  # how often the value is computed for each of its elements
    cost_again: int = 0  # its cost and that of the readers that are already computed twice
    # Its own axes that some site reads at an index which must be checked.
    checked: set[Expr] = field(default_factory=set)
    # For each site, which of its own axes are covered completely there.
    walks: set[frozenset[Expr]] = field(default_factory=set)


@dataclass(frozen=True)
class Inlined:
    """The steps that remain, in order, and why each producer was inlined or not."""

    body: tuple[Loop | Extern, ...]
    decisions: tuple[Decision, ...]


def inline_producers(
    program: LoopProgram, target: Target, config: Config, choices: Choices = NO_CHOICES
) -> Inlined:
    """Decide backwards, substitute forwards."""
    inliner = _Inliner(program, target, config, choices)
    inliner.decide()
    return Inlined(tuple(inliner.substituted()), tuple(reversed(inliner.decisions)))


class _Inliner:
    def __init__(
        self, program: LoopProgram, target: Target, config: Config, choices: Choices
    ) -> None:
        self.body = program.body
        self.target, self.config = target, config
        self.decisions: list[Decision] = []
        self.inlined: set[int] = set()
        self.dead: set[int] = set()
        self.size: dict[int, int] = defaultdict(lambda: 1)  # ops that end up in each loop
        self.streams: dict[int, set[Buffer]] = {}  # the long arrays that each loop reads so far
        self.writers: dict[Buffer, list[int]] = defaultdict(list)
        self.readers: dict[Buffer, list[int]] = defaultdict(list)
        self.kept: set[Buffer] = set()
        self.static = set(program.static)  # and values made of it alone
        # Buffer -> the axes that each check in its values depends on.
        self.checks: dict[Buffer, set[frozenset[Expr]]] = {}
        for step in program.body:
            if isinstance(step, Loop) and self._is_static(step):
                self.static.update(written(step))
            if isinstance(step, Loop) and (made := checks_of(step.stores[0])):
                self.checks[step.stores[0].buffer] = made
        self.gemms = {
            position for position, step in enumerate(program.body)
            if isinstance(step, Loop) and isinstance(step.pattern, Gemm | Depthwise)
        }  # fmt: skip
        # The buffers that attention reads as query, key or value, and along which axes.
        self.attention_reads: dict[Buffer, list[tuple[Expr, Axes]]] = defaultdict(list)
        for step in program.body:
            found = attention_of(step) if isinstance(step, Loop) else None
            for node, along in found.walked if found is not None else ():
                self.attention_reads[node.buffer].append((node, along))
        for position, step in enumerate(program.body):
            for buffer in read(step):
                self.readers[buffer].append(position)
                if isinstance(step, Extern):
                    self.kept.add(buffer)
            for buffer in written(step):
                self.writers[buffer].append(position)
        for output in program.outputs:
            if isinstance(output.value, ViewArg):
                self.kept.add(output.value.buffer)
        self.inputs = {b for b in (*program.inputs, *program.constants) if isinstance(b, Buffer)}
        self.prologues = {} if target.panels else self._prologues(choices)

    def _prologues(self, choices: Choices) -> Verdicts:
        alone = {b: at[0] for b, at in self.writers.items() if len(at) == 1}
        makers = {b: at for b, at in alone.items() if isinstance(self.body[at], Loop)}
        given = (self.body, makers, self.readers, self._must_be_stored, self.config, choices)
        return Prologues(*given).verdicts()

    # -- deciding ----------------------------------------------------------------------------

    def decide(self) -> None:
        values: dict[int, _Value] = {}
        for position in range(len(self.body) - 1, -1, -1):
            step = self.body[position]
            if not isinstance(step, Loop):
                continue
            target = step.stores[0].buffer
            if target not in self.kept and target not in self.inputs:
                live = [r for r in self.readers[target] if r not in self.dead]
                if not live:
                    self.dead.add(position)
                    continue
            value = self._collect(step, values)
            values[position] = value
            reason = self._refusal(step, value)
            if reason is None:
                self.inlined.add(position)
                for root, _ in value.sites:
                    self.size[root] += 1
                    self.streams[root] = self._streams_with(root, step)
                where = f"computed at {len(value.sites)} site(s)"
                if self.prologues.get(target, "") is None:
                    where = "the gemm that reads it computes it (prologue_fusion)"
                self._record("inlined", step, value, where)
            else:
                self._record("refused", step, value, reason)

    def _record(self, action: str, step: Loop, value: _Value, reason: str) -> None:
        roots = sorted({root for root, _ in value.sites})
        names = ", ".join(_name(self.body[r]) for r in roots) or "program output"
        self.decisions.append(Decision(action, step.stores[0].buffer.name, names, reason))

    def _collect(self, step: Loop, values: dict[int, _Value]) -> _Value:
        """Where this value would be computed if it were inlined into all its readers."""
        target = step.stores[0].buffer
        own_place = step.stores[0].index
        result = _Value()
        for reader in self.readers[target]:
            consumer = self.body[reader]
            if reader in self.dead or not isinstance(consumer, Loop):
                continue
            inside = reader in self.inlined
            onward = values[reader].sites if inside else {(reader, ())}
            given = loads(consumer.stores[0].value, *consumer.stores[0].index)
            nodes = [node for node in given if node.buffer == target]
            if self.checks:
                whole = {frozenset((*consumer.axes, *consumer.reduced))}
                walks = _walks(own_place, nodes, values[reader].walks if inside else whole)
                result.walks.update(walks)
            for node in nodes:
                aligned = node.index == own_place and node.guard is None
                for root, place in onward:
                    result.sites.add((root, place if aligned else (*place, node)))
                made = () if inside else consumer.stores[0].index  # checks that run anyway
                outside = values[reader].checked if inside else set()
                result.checked |= _checked_axes(own_place, node, outside, made)
                repeats = _repeats(node, consumer) * (values[reader].repeats if inside else 1)
                result.repeats = max(result.repeats, repeats)
            if inside and len(values[reader].sites) > 1:
                result.cost_again = max(result.cost_again, values[reader].cost_again)
        result.cost_again += cost_of(step.stores[0].value)
        return result

    def _refusal(self, step: Loop, value: _Value) -> str | None:
        """Why the value is stored instead; None if it is inlined into its readers."""
        reason = self._must_be_stored(step)
        if reason is not None:
            return reason
        store = step.stores[0]
        if not value.sites:
            return "nothing reads it"
        if any(root in self.gemms for root, _ in value.sites):
            apart = self.prologues.get(store.buffer, STORED)
            alone = all(root in self.gemms for root, _ in value.sites)
            expensive = self._too_many_ops(value) if alone else self._unprofitable(step, value)
            return apart or expensive or self._illegal(step, value)
        if not self._attention_may_read(store):
            return "attention reads its operands from memory"
        if self._is_hoisted(step, value):
            return "it is made of parameters alone, once and not at each call"
        return self._unprofitable(step, value) or self._illegal(step, value)

    def _must_be_stored(self, step: Loop) -> str | None:
        """Why a value must be in memory, wherever it is read."""
        store = step.stores[0]
        if store.buffer in self.inputs:
            return "it updates an input"
        if store.buffer in self.kept:
            return "an output or an ATen call needs it in memory"
        if len(self.writers[store.buffer]) > 1:
            return "several loops write parts of it"
        if step.reduced or _has_scan(store.value):
            return "it is a reduction"
        return None

    def _is_hoisted(self, step: Loop, value: _Value) -> bool:
        """Whether a small value made of parameters is prepacked rather than inlined into readers
        that run at each call. A plain copy is not: readers read its source."""
        if not self.config.cpp.weight_prepack:
            return False  # nothing is prepacked
        small = (
            buffer_bytes(step.stores[0].buffer) <= MAX_HOISTED_BYTES
            and cost_of(step.stores[0].value) > 0
        )
        readers = {self.body[root] for root, _ in value.sites}
        return small and self._is_static(step) and not all(map(self._is_static, readers))

    def _is_static(self, step: Loop | Extern) -> bool:
        return bool(self.static) and self.static.issuperset(read(step))

    def _attention_may_read(self, store: Store) -> bool:
        """Attention may read the source of a copy, if that has constant strides as well."""
        sources = []
        for node, along in self.attention_reads.get(store.buffer, ()):
            source = value_at(store, node)
            if source.op != "load" or source.guard is not None or walk_of(source, along) is None:
                return False
            sources.append((source, along))
        for source, along in sources:
            self.attention_reads[source.buffer].append((source, along))
        return True

    def _unprofitable(self, step: Loop, value: _Value) -> str | None:
        """Why storing it is cheaper than recomputing it where it is read."""
        config = self.config
        cost = cost_of(step.stores[0].value)
        reads = len(loads(step.stores[0].value))
        if cost == 0 and reads == 0:
            return None  # a constant or an index range costs nothing
        heavy = max_op_cost(step.stores[0].value) >= EXPENSIVE_OP
        if len(value.sites) > 1:
            if _whole_reads(step) > 1:
                return "reading it back moves fewer bytes than reading its operands again"
            if heavy:
                return f"recomputing it at {len(value.sites)} sites costs more than storing it"
            if value.cost_again > config.realize_opcount_threshold:
                return "the chain recomputed at several sites exceeds realize_opcount_threshold"
            many = len(value.sites) > MAX_SITES and cost > RECOMPUTE_COST
            if reads > config.realize_reads_threshold or many:
                return "recomputing its reads at several sites exceeds realize_reads_threshold"
        divides = max_op_cost(step.stores[0].value) >= DIVISION and value.repeats >= MANY_REPEATS
        expensive = cost > RECOMPUTE_COST or divides
        if self.target.hides_compute_behind_loads and cost <= EXPENSIVE_OP:
            expensive = False
        if value.repeats > 1 and (heavy or expensive):
            return f"it would be computed {value.repeats} times for each element"
        large = self._too_many_ops(value)
        if large is not None:
            return large
        walked = max((len(self._streams_with(root, step)) for root, _ in value.sites), default=0)
        if walked > self.target.max_load_streams:
            return f"{walked} arrays walked at once push each other out of the cache"
        return None

    def _too_many_ops(self, value: _Value) -> str | None:
        most = self.config.max_fusion_size
        if any(self.size[root] >= most for root, _ in value.sites):
            return f"its reader already holds max_fusion_size={most} ops"
        return None

    def _streams_with(self, root: int, step: Loop) -> set[Buffer]:
        """The long arrays that a loop reads if it recomputes the result of another."""
        before = self.streams.get(root) or self._streams_of(self.body[root])
        return before - {step.stores[0].buffer} | self._streams_of(step)

    def _streams_of(self, step: Loop | Extern) -> set[Buffer]:
        return {b for b in read(step) if self.target.is_stream(buffer_bytes(b))}

    def _illegal(self, step: Loop, value: _Value) -> str | None:
        """Why it may not be recomputed where it is read. A read of an input must stay before its
        in-place update, nothing may trap that eager does not run, and eager's checks must run."""
        for node in loads(step.stores[0].value):
            updates = [w for w in self.writers[node.buffer] if node.buffer in self.inputs]
            if not updates:
                continue
            for root, place in value.sites:
                reader = self.body[root]
                assert isinstance(reader, Loop)
                same_place = place == () and node.index == reader.stores[0].index
                if root > updates[0] or (root == updates[0] and not same_place):
                    return f"it reads {node.buffer} before an in-place update"
        if _may_trap(step.stores[0].value):
            guarded = any(n.guard is not None for _, place in value.sites for n in place)
            if guarded:
                return "an integer division must not run where a guard is false"
        if value.checked - step.stores[0].value.axes:
            return "its reader checks an index on which it does not depend"
        for needed in self.checks.get(step.stores[0].buffer, ()):
            if not any(needed <= whole for whole in value.walks):
                return "its readers skip places that eager checks"
        return None

    # -- substituting ------------------------------------------------------------------------

    def substituted(self) -> list[Loop | Extern]:
        finals: dict[Buffer, tuple[Store, tuple[Origin, ...]]] = {}
        result: list[Loop | Extern] = []
        for position, step in enumerate(self.body):
            if position in self.dead:
                continue
            if isinstance(step, Extern):
                result.append(step)
                continue
            store = step.stores[0]
            origins = dict.fromkeys(step.origins)
            used = [b for b in read(step) if b in finals]
            for buffer in used:
                origins.update(dict.fromkeys(finals[buffer][1]))
            memo: dict[Expr, Expr] = {}
            value = forward_stores(store.value, finals, memo)
            index = tuple(forward_stores(i, finals, memo) for i in store.index)
            final = replace(store, index=index, value=value)
            # The producers' origins come first; a kernel keeps at most the last few dozen.
            ordered = tuple(reversed(list(origins)))[-64:]
            if position in self.inlined:
                finals[store.buffer] = (final, ordered)
            else:
                made = replace(step, stores=(final,), origins=ordered)
                # A sum of products may be recognised as a GEMM only now, with its factors inlined.
                made = recognised(made) if used else made
                result.append(round_operands(made) if self.prologues and used else made)
        return result


def _walks(
    place: tuple[Expr, ...], nodes: list[Expr], whole: set[frozenset[Expr]]
) -> set[frozenset[Expr]]:
    """The axes of a value that each of its loads covers, alone or together with the others."""
    together = unrolled(place, nodes)
    none: frozenset[Expr] = frozenset()
    return {
        walked(place, node, axes) | together.get(node, none) for node in nodes for axes in whole
    }


def _repeats(node: Expr, consumer: Loop) -> int:
    """How often one element is read; unused innermost axes do not count."""
    order = [*memory_order(consumer), *consumer.reduced]
    used: frozenset[Expr] = (
        frozenset().union(*(i.axes for i in node.index)) if node.index else (frozenset())
    )
    while order and order[-1] not in used:
        order.pop()
    factor = 1
    for variable in order:
        if variable not in used:
            factor *= variable.extent.hint
    return factor


def memory_order(loop: Loop) -> list[Expr]:
    """The parallel axes in the memory order of the result, in which they will run."""
    store = loop.stores[0]
    step = {
        i: s.hint for i, s in zip(store.index, store.buffer.strides, strict=True) if i.op == "axis"
    }
    return sorted(loop.axes, key=lambda a: -step.get(a, 0)) if len(step) > 1 else list(loop.axes)


def _whole_reads(step: Loop) -> int:
    """The number of operands as large as the result: recomputing it reads them again."""
    axes = frozenset(step.axes)
    return sum(
        not axes - frozenset().union(*(i.axes for i in node.index))
        for node in loads(step.stores[0].value)
        if node.index
    )


def _has_scan(value: Expr) -> bool:
    return any(n.op == "scan" for n in walk(value))


def _may_trap(value: Expr) -> bool:
    return any(
        n.op in ("floordiv", "truncdiv", "mod") and not n.args[1].is_const and loads(n)
        for n in walk(value)
    )


def _checked_axes(
    place: tuple[Expr, ...], node: Expr, outside: set[Expr], made: tuple[Expr, ...]
) -> set[Expr]:
    """The axes of a stored value that a load indexes with a checked index, other than those that
    are checked in `made`."""
    known = {n for n in walk(*made) if n.op == "check_index"}

    def is_checked(index: Expr) -> bool:
        return any(n.op == "check_index" and n not in known for n in walk(index))

    return {
        variable
        for variable, index in zip(place, node.index, strict=True)
        if variable.op == "axis" and (index.axes & outside or is_checked(index))
    }


def _name(step: Loop | Extern) -> str:
    return ", ".join(b.name for b in written(step))
