"""Reading the text of calls: the inverse of `ir/call_text.py`.

In: text as `call_text` prints it. Out: an equal `CallPlan`, but for the values of opaque operands,
which have no text. A line that is not understood raises a `ParseError` with its number.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from litz.errors import ParseError
from litz.ir.call_plan import (
    INPUT_CHECKS,
    KINDS,
    Allocate,
    Body,
    Call,
    CallPlan,
    Free,
    Input,
    KernelCall,
    Launch,
    NanCheck,
    OpaqueOperand,
    Partition,
    Prepack,
    Range,
    Recording,
    Refresh,
    Reuse,
    Run,
    RunPartition,
    Segment,
    SetPointer,
    Skip,
    Step,
)
from litz.ir.checks import Site
from litz.ir.expr import Expr
from litz.ir.grammar import Mistake
from litz.ir.index import ONE
from litz.ir.parse import Reader
from litz.ir.parse_expr import expr_of, known, name_of, operand, site_of, tree_of
from litz.ir.program import Buffer, Decision, Extern, Origin, Output, Slot


def parse_call(text: str) -> CallPlan:
    """The call that a text describes."""
    reader = _CallReader(text)
    if not reader.device or not reader.bodies:
        raise ParseError(1, text.partition("\n")[0], "expected `call on DEVICE:` and its body")
    return reader.call()


@dataclass
class _Body:
    """A body whose steps are still being read."""

    inputs: list[Input] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    symbols: tuple[Expr, ...] = ()
    enters: tuple[str, ...] = ()
    points: frozenset[str] = frozenset()

    def done(self) -> Body:
        inputs, steps, outputs = tuple(self.inputs), tuple(self.steps), tuple(self.outputs)
        return Body(inputs, steps, outputs, self.symbols, self.enters, self.points)


class _CallReader(Reader):
    """Reads line by line. Externs before the first body belong to the prepack."""

    statements: ClassVar = dict(Reader.statements)

    def __init__(self, text: str) -> None:
        self.device = ""
        self.arena, self.unplanned = 0, 0
        self.about: Callable[[Origin], None] | None = None  # adds an origin to its step
        self.kernels: list[KernelCall] = []
        self.segments: list[Segment] = []
        self.table: dict[str, int] = {}
        self.computed: dict[str, Expr] = {}
        self.handles: dict[str, int] = {}
        self.slots: list[tuple[Buffer, Slot]] = []
        self.regions: list[tuple[Expr, int]] = []
        self.found_sites: list[Site] = []
        self.opaque: list[OpaqueOperand] = []
        self.prepack: Prepack | None = None
        self.recording: Recording | None = None
        self.bodies: list[tuple[str, tuple[Any, ...], _Body]] = []
        self.decisions: list[Decision] = []
        super().__init__(text)

    def call(self) -> CallPlan:
        """The call that was read."""
        by_kind: dict[str, list[tuple[tuple[Any, ...], Body]]] = {}
        for kind, about, body in self.bodies:
            by_kind.setdefault(kind, []).append((about, body.done()))
        ((_, whole),) = by_kind["body"]
        parts = [
            Partition(body, recorded, frozenset(kernels), parent_outputs)
            for (recorded, kernels, parent_outputs), body in by_kind.get("partition_body", ())
        ]
        driver = by_kind.get("driver", [((), None)])[0][1]
        return CallPlan(
            self.device, tuple(self.kernels), tuple(self.segments), whole,
            tuple(self.constants), self.prepack, self.table, self.computed, self.handles,
            tuple(self.slots), tuple(self.regions), self.arena, self.unplanned,
            tuple(self.found_sites), tuple(self.opaque), self.recording, driver, tuple(parts),
            tuple(self.decisions),
        )  # fmt: skip

    # -- reading one line --------------------------------------------------------------------

    def _statement(self, code: str) -> None:
        word, _, rest = code.partition(" ")
        word = word.removesuffix(":")
        if word not in self.statements:
            raise Mistake(f"there is no statement {word!r}")
        try:
            self.statements[word](self, rest.strip())
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise Mistake(str(error)) from None

    def _nodes(self, rest: str) -> list[ast.expr]:
        """The items of a line, as Python's syntax trees."""
        return list(tree_of(f"[{rest}]").elts)

    def _values(self, rest: str) -> list[Any]:
        """The items of a line that holds plain values alone."""
        try:
            return [ast.literal_eval(node) for node in self._nodes(rest)]
        except ValueError:
            raise Mistake("expected plain values") from None

    def _refs(self, node: ast.expr) -> tuple[Buffer, ...]:
        if not isinstance(node, ast.Tuple):
            raise Mistake("expected names in brackets")
        return tuple(self.scope.buffer(item) for item in node.elts)

    def _called(self, rest: str) -> tuple[str, list[ast.expr], dict[str, ast.expr]]:
        tree = tree_of(rest)
        if not isinstance(tree, ast.Call):
            raise Mistake("expected `name(...)`")
        return name_of(tree.func), tree.args, {str(k.arg): k.value for k in tree.keywords}

    def _expr(self, node: ast.expr) -> Expr:
        return expr_of(node, self.scope)

    @property
    def _body(self) -> _Body:
        if not self.bodies:
            raise Mistake("this belongs inside a body")
        return self.bodies[-1][2]

    # -- declarations ------------------------------------------------------------------------

    def _call(self, rest: str) -> None:
        self.device = rest.removeprefix("on ").removesuffix(":")

    def _known_constant(self, rest: str) -> None:
        self.constants.append(self.scope.buffer(tree_of(rest)))

    def _opaque(self, rest: str) -> None:
        number, reason = self._values(rest)
        self.opaque.append(OpaqueOperand(number, reason))
        self.scope.opaque[number] = self.opaque[-1]

    def _memory(self, rest: str) -> None:
        self.arena, self.unplanned = self._values(rest)

    def _region(self, rest: str) -> None:
        unit, count = self._nodes(rest)
        self.regions.append((self._expr(unit), ast.literal_eval(count)))

    def _slot(self, rest: str) -> None:
        buffer, offset, size, unit = self._nodes(rest)
        place = Slot(ast.literal_eval(offset), ast.literal_eval(size), self._expr(unit))
        self.slots.append((self.scope.buffer(buffer), place))

    def _entry(self, rest: str) -> None:
        name, entry, *value = self._nodes(rest)
        self.table[name_of(name)] = ast.literal_eval(entry)
        if value:
            self.computed[name_of(name)] = self._expr(value[0])

    def _handle(self, rest: str) -> None:
        name, entry = self._values(rest)
        self.handles[name] = entry

    def _check(self, rest: str) -> None:
        site = site_of(tree_of(rest))
        if site is None:
            raise Mistake("expected a site")
        self.found_sites.append(site)

    def _decision(self, rest: str) -> None:
        self.decisions.append(Decision(*self._values(rest)))

    # -- kernels -----------------------------------------------------------------------------

    def _kernel_call(self, rest: str) -> None:
        name, _, named = self._called(rest)
        reads, writes = self._refs(named["reads"]), self._refs(named["writes"])
        self.kernels.append(KernelCall(name, (), reads, writes, "checks" in named))
        self.about = self._add_to_kernel

    def _add_to_kernel(self, origin: Origin) -> None:
        last = self.kernels[-1]
        self.kernels[-1] = replace(last, origins=(*last.origins, origin))

    def _summary(self, rest: str) -> None:
        last, lines = self.kernels[-1], self._values(rest)
        self.kernels[-1] = replace(last, summary=(*last.summary, *lines))

    def _launch(self, rest: str) -> None:
        function, args, named = self._called(rest)
        sizes = named.get("sizes")
        launch = Launch(
            function,
            tuple(map(name_of, args)),
            tuple(map(self._expr, sizes.elts)) if isinstance(sizes, ast.Tuple) else (),
            self._expr(named["tasks"]) if "tasks" in named else ONE,
            self._expr(named["work"]) if "work" in named else ONE,
            ast.literal_eval(named["warps"]) if "warps" in named else 0,
            "scratch" in named,
        )
        last = self.kernels[-1]
        self.kernels[-1] = replace(last, launches=(*last.launches, launch))

    def _segment(self, rest: str) -> Segment:
        name, batches, _ = self._called(rest)
        self.segments.append(Segment(name, tuple(map(ast.literal_eval, batches))))
        return self.segments[-1]

    def _prepack(self, rest: str) -> None:
        self.prepack = Prepack(self._segment(rest), (), (), ())
        self.segments.pop()

    def _about_prepack(self, **known: Any) -> None:
        if self.prepack is None:
            raise Mistake("this belongs to a prepack")
        self.prepack = replace(self.prepack, **known)

    # -- bodies ------------------------------------------------------------------------------

    def _given(self, rest: str) -> None:
        self._body.inputs.append(Input(self._expr(tree_of(rest))))

    def _input(self, rest: str) -> None:
        buffer, check, *tangent = self._nodes(rest)
        found = _one_of(INPUT_CHECKS, check)
        self._body.inputs.append(Input(self.scope.buffer(buffer), found, bool(tangent)))

    def _symbols(self, rest: str) -> None:
        self._body.symbols = tuple(map(self._expr, self._nodes(rest)))

    def _enters(self, rest: str) -> None:
        self._body.enters = tuple(self._values(rest))

    def _points(self, rest: str) -> None:
        self._body.points = frozenset(self._values(rest))

    def _step(self, step: Step) -> None:
        self._body.steps.append(step)

    def _allocate(self, rest: str) -> None:
        buffer, kind, *shown = self._nodes(rest)
        view = operand(shown[0], self.scope) if shown else None
        self._step(Allocate(self.scope.buffer(buffer), _one_of(KINDS, kind), view))

    def _reuse(self, rest: str) -> None:
        self._step(Reuse(*map(self.scope.buffer, self._nodes(rest))))

    def _free(self, rest: str) -> None:
        self._step(Free(tuple(map(self.scope.buffer, self._nodes(rest)))))

    def _nan_check(self, rest: str) -> None:
        buffer, where, allow_inf = self._nodes(rest)
        found = ast.literal_eval(where), ast.literal_eval(allow_inf)
        self._step(NanCheck(self.scope.buffer(buffer), *found))

    def _extern(self, rest: str) -> None:
        self.nest = None
        super()._extern(rest)
        op = self.body.pop()
        assert isinstance(op, Extern)
        self.about = lambda origin: self._changed(origins=(*self._last.origins, origin))
        if self.bodies:
            self._step(Call(op))
        else:
            self._about_prepack(calls=(*self._prepacking, op))

    @property
    def _prepacking(self) -> tuple[Extern, ...]:
        return self.prepack.calls if self.prepack is not None else ()

    @property
    def _last(self) -> Extern:
        """The call that was read last."""
        if not self.bodies and self._prepacking:
            return self._prepacking[-1]
        step = self._body.steps[-1] if self._body.steps else None
        if not isinstance(step, Call):
            raise Mistake("this belongs to an extern")
        return step.op

    def _changed(self, **known: Any) -> None:
        """Add fields to the call that was read last."""
        op = replace(self._last, **known)
        if self.bodies:
            self._body.steps[-1] = Call(op)  # later lines may add `defines` and `enters`
        else:
            self._about_prepack(calls=(*self._prepacking[:-1], op))

    def _origin(self, rest: str) -> None:
        if self.about is None:
            raise Mistake("an origin belongs to a kernel or an extern")
        self.about(Origin(*self._values(rest)))

    def _defines(self, rest: str) -> None:
        step = self._body.steps[-1]
        if not isinstance(step, (Call, RunPartition)):
            raise Mistake("this belongs to an extern or a partition")
        self._body.steps[-1] = replace(step, defines=tuple(map(self._expr, self._nodes(rest))))

    def _unbacked(self, rest: str) -> None:
        step = self._body.steps[-1]
        if not isinstance(step, Call):
            raise Mistake("this belongs to an extern")
        self._body.steps[-1] = replace(step, enters=tuple(self._values(rest)))

    def _output(self, rest: str) -> None:
        self._body.outputs.append(Output(operand(tree_of(rest), self.scope)))

    # -- CUDA graphs -------------------------------------------------------------------------

    def _record(self, rest: str) -> None:
        asked, runs, cpu_scalars, returns_input_alias = self._values(rest)
        self.recording = Recording(asked, (), (), runs, cpu_scalars, returns_input_alias)

    def _skip(self, rest: str) -> None:
        why, *origin = self._values(rest)
        skip = Skip(why, Origin(*origin) if origin else None)
        self._about_recording(lambda r: replace(r, skips=(*r.skips, skip)))

    def _range(self, rest: str) -> None:
        found = Range(*self._values(rest))
        self._about_recording(lambda r: replace(r, ranges=(*r.ranges, found)))

    def _about_recording(self, change: Any) -> None:
        if self.recording is None:
            raise Mistake("this belongs to a recording")
        self.recording = change(self.recording)

    def _partition(self, rest: str) -> None:
        number, takes, gives = self._nodes(rest)
        given, made = (tuple(map(self._passed, getattr(n, "elts", ()))) for n in (takes, gives))
        self._step(RunPartition(ast.literal_eval(number), given, made))

    def _passed(self, node: ast.expr) -> Buffer | Expr:
        if isinstance(node, ast.Call):
            found: Expr = operand(node, self.scope)
            return found
        return self.scope.buffer(node)

    def _new_body(self, kind: str, rest: str) -> None:
        self.bodies.append((kind, tuple(self._values(rest.removesuffix(":"))), _Body()))


def _one_of(words: tuple[str, ...], node: ast.expr) -> str:
    return str(known({word: word for word in words}, name_of(node), "word"))


_CallReader.statements = {
    name: Reader.statements[name] for name in ("size", "number", "buffer")
} | {
    "call": _CallReader._call,
    "constant": _CallReader._known_constant,
    "opaque": _CallReader._opaque,
    "memory": _CallReader._memory,
    "region": _CallReader._region,
    "slot": _CallReader._slot,
    "entry": _CallReader._entry,
    "handle": _CallReader._handle,
    "check": _CallReader._check,
    "decision": _CallReader._decision,
    "kernel": _CallReader._kernel_call,
    "summary": _CallReader._summary,
    "launch": _CallReader._launch,
    "segment": _CallReader._segment,
    "prepack": _CallReader._prepack,
    "makes": lambda r, rest: r._about_prepack(makes=r._refs(tree_of(rest))),
    "sources": lambda r, rest: r._about_prepack(sources=r._refs(tree_of(rest))),
    "constants": lambda r, rest: r._about_prepack(constants=r._refs(tree_of(rest))),
    "final": lambda r, rest: r._about_prepack(final=rest == "True"),
    "given": _CallReader._given,
    "input": _CallReader._input,
    "symbols": _CallReader._symbols,
    "enters": _CallReader._enters,
    "points": _CallReader._points,
    "point": lambda r, rest: r._step(SetPointer(r.scope.buffer(tree_of(rest)))),
    "refresh": lambda r, _: r._step(Refresh()),
    "allocate": _CallReader._allocate,
    "run": lambda r, rest: r._step(Run(rest)),
    "reuse": _CallReader._reuse,
    "free": _CallReader._free,
    "nan_check": _CallReader._nan_check,
    "extern": _CallReader._extern,
    "into": lambda r, _: r._changed(into=True),
    "ordered": lambda r, _: r._changed(ordered=True),
    "origin": _CallReader._origin,
    "defines": _CallReader._defines,
    "unbacked": _CallReader._unbacked,
    "output": _CallReader._output,
    "recording": _CallReader._record,
    "skip": _CallReader._skip,
    "range": _CallReader._range,
    "partition": _CallReader._partition,
    "body": lambda r, rest: r._new_body("body", rest),
    "driver": lambda r, rest: r._new_body("driver", rest),
    "partition_body": lambda r, rest: r._new_body("partition_body", rest),
}
