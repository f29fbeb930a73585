"""The entry: the Python function of one call, written for its graph line by line.

In: `Plan`, `Source`, `Binary`. Out: the function's text and what its names stand for. All that is
known beforehand is settled here: which inputs have an entry in the table, which windows on the
arena ATen gets, when its results die. A call then runs a line an ATen call and a line for all the
kernels between two of them. For x + 1:

    def call(args):
        x0, = args
        args.clear()
        ...
        y = empty((8,), (1,), float32)
        table[2] = x0.data_ptr()
        table[3] = y.data_ptr()
        segment_0(address)
        return [y]
"""

from __future__ import annotations

import builtins
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch._C._dynamo.guards import _reinterpret_tensor  # type: ignore[attr-defined]

from litz.config import Config
from litz.errors import InternalError, LitzError
from litz.ir.calls import BY_OFFSET
from litz.ir.index import ZERO, product
from litz.ir.lifetimes import cuts, dying_inputs
from litz.ir.program import (
    Buffer,
    Extern,
    Kernel,
    KernelGraph,
    Plan,
    ViewArg,
    buffer_bytes,
    read,
    written,
)
from litz.ir.source import DeviceSource, Segment, Source
from litz.runtime.asserts import (
    check_failed,
    known_infinities,
    where,
)
from litz.runtime.frozen import Frozen
from litz.runtime.held import Held
from litz.runtime.late import LateSizes, check_line
from litz.runtime.memory import LARGE, copy_of, empty, empty_large, with_layout
from litz.runtime.modes import apart, function_modes
from litz.runtime.numbers import (
    float_bits,
    local_name,
    number_text,
    source_of,
    symbols_of,
    table_text,
    tuple_text,
)
from litz.runtime.poison import guarded, look_behind, look_between, poisoned, taken, taken_text
from litz.runtime.steps import (
    freed_after,
    op_of,
    returns_alias,
    torch_dtype,
)
from litz.runtime.wording import TANGENT, Wording

# An error of an ATen call says which op and line it is about.
NAMED = ("except BaseException as error:", "    name_op(error)")
ENTRY = "<litz entry>"
# Namespaces of ops whose shapes and types are foretold by torch's own tested functions, or by us.
TRUSTED = ("aten.", "mkldnn.", "prims.", "litz.")
Segments = Sequence[Callable[[int], Any]]


class Entry(Wording):
    """Writes the function. `names` holds what the text refers to, `views` the windows on the arena
    in the order of a workspace's list. Memory is `thrifty`: an output's is taken right before it is
    written, a dying input's given back right after it was read."""

    thrifty = True

    def __init__(
        self, plan: Plan, source: Source | DeviceSource, segments: Segments,
        constants: dict[str, torch.Tensor], held: Held | None, config: Config,
        frozen: Frozen | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.graph, self.source, self.config = plan, plan.graph, source, config
        self.names: dict[str, Any] = {"empty": empty, "empty_large": empty_large}
        self.names["reinterpret"] = _reinterpret_tensor
        self.names |= {"math_floor": math.floor, "math_ceil": math.ceil}  # of symbolic numbers
        self.views: dict[ViewArg, int] = {}
        self.local: dict[str, str] = {}  # the Python name of a buffer outside the arena
        self.segments, self.held, self.frozen = segments, held, frozen
        self.final = held is not None and held.is_final
        body = self.graph.body[self.graph.prepared :] if self.final else self.graph.body
        kernels = [s for s in body if isinstance(s, Kernel)]
        self.in_table = {b.name for k in kernels for b in (*read(k), *written(k))}
        if not self.final:
            self.in_table |= {b.name for b in plan.sources}  # whose addresses are looked at
        # What is held for good needs no more of what it was made of.
        shown = [o.value.buffer for o in self.graph.outputs if isinstance(o.value, ViewArg)]
        used = {*shown, *(b for step in body for b in read(step))}
        self.constants = {b.name: constants[b.name] for b in self.graph.constants if b in used}
        if frozen is not None:
            self.constants = {name: frozen.own(t) for name, t in self.constants.items()}
        self.late = LateSizes(self.graph.bound)
        symbols = symbols_of(plan, source.computed.values())
        self.symbols = [s for s in symbols if not self.late.concerns(s)]
        if symbols:
            self.names["float_bits"] = float_bits
            self.late.await_numbers(symbols, source.computed, source.layout)
        self.lines: list[str] = []
        self.shown = Counter(shown)
        self.laid = laid_out_as_shown(plan) if self.thrifty else {}
        self.pending: dict[str, Buffer] = {}  # outputs that have no memory yet
        self.poisons = config.debug_poison_memory
        self.guarded: set[str] = set()  # outputs with a guard behind them
        if self.poisons:
            self.names |= {"empty": guarded, "empty_large": guarded, "poisoned": poisoned}
        self.cuts = cuts(plan) if self.thrifty else frozenset()
        # Whether a buffer holds infinities that are meant, as text.
        self.infinite = known_infinities(self.graph, constants) if config.nan_asserts else {}

    def text(self) -> str:
        """The function `call(args)`."""
        self._inputs()
        for name, tensor in self.constants.items():
            self.local[name] = self._name("constant", tensor)
            self._point(name)
        if self.held is not None:
            # The workspace knows their addresses.
            self.local |= {b.name: f"held[{b.name!r}]" for b in self.graph.held}
            if self.final:
                self.names["held"] = self.held.sets[()].known
            else:
                given = "".join(f"{self.local[b.name]}, " for b in self.plan.sources)
                self.lines.append(f"held = refresh(space, ({given}))")
                self._raise_noted(self.source.preparation)
                if self.held.questions:
                    inputs = ", ".join(name for _, name in self._named_inputs())
                    self.lines.append(f"if held is None: return unfolded([{inputs}])")
        self._outputs_to_allocate()
        self._body()
        results = ", ".join(self._output(o.value) for o in self.graph.outputs)
        self.lines += self._looks_around()
        self.lines.append(f"return [{results}]")
        resize = resize_text(self) if self.symbols else ""
        lines = [f"    {line}" for line in (*self._unpacked(), *self._in_workspace())]
        return "\n".join(["def call(args):", *lines, "", resize])

    def _in_workspace(self) -> list[str]:
        """The lines inside what they work in, which goes back whatever happens: the next call finds
        it as good as new."""
        body = [
            *(["if space.sizes != sizes: resize(space, sizes)"] if self.symbols else []),
            *(["poisoned(space.arena)"] if self.poisons else []),
            "table, views, address = space.table, space.views, space.address", *self.lines,
        ]  # fmt: skip
        body = ["try:", *_indented(body)]
        body += [*NAMED, "    forget(space, error)", "    raise"]
        if self.plan.slots:  # the arena goes back once it is there
            body = [*body, "finally:", "    give_arena(space.arena)"]
            body = ["try:", "    space.borrow()", *_indented(body)]
        taken = ["try:", "    space = take()", "except IndexError:", "    space = new_space()"]
        return [*taken, *body, "finally:", "    give_back(space)"]

    def _looks_around(self) -> list[str]:
        """Lines that look whether anything was written outside of buffers."""
        if not self.poisons:
            return []
        self.names |= {"look_between": look_between, "look_behind": look_behind}
        inside = "space.taken" if self.symbols else self._name("taken", taken(self.plan))
        fresh = [(b, n) for b, n in self.local.items() if n in self.guarded]
        behind = [f"look_behind({buffer!r}, {name})" for buffer, name in fresh]
        return [f"look_between(space.arena, {inside})", *behind]

    # -- inputs and outputs ------------------------------------------------------------------

    def _unpacked(self) -> list[str]:
        given = self._named_inputs()
        names = [name for _, name in given]
        lines = [f"{', '.join(names)}{',' if len(names) == 1 else ''} = args"] if names else []
        for symbol in self.symbols:
            source, name = source_of(symbol, given), local_name(symbol)
            lines += [f"{name} = {source}"] if source != name else []
        if self.symbols:
            lines.append(f"sizes = {tuple_text(self.symbols)}")
        # Dynamo guards what kind of tensor each input is, and passes know it; autograd's gradients
        # come as they are: negated lazily, or zero without any memory.
        for name in (n for b, n in given if isinstance(b, Buffer) and b.name.startswith(TANGENT)):
            odd = f"{name} is not None and ({name}.is_neg() or {name}._is_zerotensor())"
            lines.append(f"if {odd}: {name} = {name}.clone()")
        if self._still:
            frozen = "".join(f"{self.local[name]}, " for name in self._still)
            lines.append(f"if not still(({frozen})): return elsewhere(args)")
        if self.config.size_asserts:
            saved = self._saved()
            pairs = [(b, name) for b, name in given if isinstance(b, Buffer)]
            pairs = [(b, name) for b, name in pairs if b.name not in self._still]
            lines += [self._check(b, name, b in saved) for b, name in pairs]
        self.names |= {"function_modes": function_modes, "apart": apart}
        return ["if function_modes(): return apart(call, args)", *lines, "args.clear()"]

    @property
    def _still(self) -> list[str]:
        """Inputs that are looked at no further than whether they are what they were."""
        return [] if self.frozen is None else self.frozen.inputs

    def _inputs(self) -> None:
        for buffer in (b for b in self.graph.inputs if isinstance(b, Buffer)):
            self.local[buffer.name] = f"x{len(self.local)}"
            self._point(buffer.name)

    def _outputs_to_allocate(self) -> None:
        """Outputs that kernels (or out= ops) write: fresh memory for each call."""
        calls = [s for s in self.graph.body if isinstance(s, Extern) and not s.into]
        known = {*self.graph.inputs, *self.graph.constants, *(b for s in calls for b in s.outputs)}
        shown = [o.value.buffer for o in self.graph.outputs if isinstance(o.value, ViewArg)]
        for buffer in (b for b in dict.fromkeys(shown) if b not in known):
            if self.late.concerns(*buffer.shape, *buffer.strides):
                self.late.outputs.append(buffer)
            elif self.thrifty:
                self.pending[buffer.name] = buffer
            else:
                self._allocate(buffer, "y")

    def _allocate(self, buffer: Buffer, prefix: str) -> None:
        """Fresh memory for a buffer, with large pages below it if it is large."""
        layout = self.laid.get(buffer.name, buffer)
        sizes, strides = tuple_text(layout.shape), tuple_text(layout.strides)
        huge = self.config.cpp.huge_pages and buffer_bytes(buffer) >= LARGE
        make = "empty_large" if huge else "empty"
        dtype = self._name("dtype", torch_dtype(buffer.dtype))
        self.local[buffer.name] = name = f"{prefix}{len(self.local)}"
        self.lines.append(f"{name} = {make}({sizes}, {strides}, {dtype})")
        if prefix == "y":  # others may be gone at the end
            self.guarded.add(name)
        self._point(buffer.name)

    # -- steps -------------------------------------------------------------------------------

    def _body(self) -> None:
        freed = freed_after(self.plan)
        if self.thrifty:
            for position, buffers in dying_inputs(self.plan).items():
                freed.setdefault(position, []).extend(b.name for b in buffers)
        given = [
            b for b in self.graph.inputs if isinstance(b, Buffer) and b.name not in self._still
        ]
        tangents = [b for b in given if b.name.startswith(TANGENT)]
        self._assert_finite(tangents or given)
        # The forward graph looked at the rest, so infinities there are meant.
        self._assert_finite([b for b in given if tangents and b not in tangents], meant="True")
        segments = iter(range(len(self.segments)))
        in_segment = False
        for position, step in enumerate(self.graph.body):
            if position < self.graph.prepared:
                continue
            in_segment = in_segment and position not in self.cuts
            if not (isinstance(step, Extern) and step.checks):
                self._allocate_told()
            if isinstance(step, Extern):
                self._extern(step)
                self._assert_finite(step.outputs, step)
                in_segment = False
            elif not in_segment:
                self._inherit(position)
                number = next(segments)
                self.names[f"segment_{number}"] = self.segments[number]
                self._launch(f"segment_{number}")
                self._raise_noted(self.source.segments[number])
                for kernel in kernels_from(self.graph, position, self.cuts):
                    self._assert_finite(written(kernel), kernel)
                in_segment = True
            for name in freed.get(position, ()):
                if name in self.local:
                    self.lines.append(f"del {self.local[name]}")
        self._allocate_told()
        for buffer in list(self.pending.values()):  # what nothing writes to
            self._allocate_output(buffer)

    def _allocate_output(self, buffer: Buffer) -> None:
        if self.pending.pop(buffer.name, None) is not None:
            self._allocate(buffer, "y")

    def _allocate_empty(self, buffer: Buffer) -> None:
        if ZERO not in buffer.shape:
            raise InternalError(f"{buffer} is read, and no step has written it")
        self.pending.pop(buffer.name, None)
        self._allocate(buffer, "t")

    def _allocate_told(self) -> None:
        """Outputs and workspaces whose sizes are known and checked by now."""
        for buffer in self.late.ready():
            self._allocate(buffer, "y")

    def _launch(self, segment: str) -> None:
        self.lines.append(f"{segment}(address)")

    def _raise_noted(self, segment: Segment | None) -> None:
        """Raise what a kernel of a segment noted, if one may have."""
        if segment is not None and self.source.may_fail.intersection(segment.kernels):
            self.lines.append("if space.error.value: fail(space)")

    def _inherit(self, position: int) -> None:
        """Memory for what the kernels of a segment write outside the arena: ATen's that is theirs
        by now, or lent to them."""
        for step in kernels_from(self.graph, position, self.cuts):
            for buffer in written(step):
                self._allocate_output(buffer)
                if buffer.name in self.plan.lent and buffer.name not in self.local:
                    self._allocate(buffer, "t")
                before = self.plan.heirs.get(buffer.name)
                if before is not None and buffer.name not in self.local:
                    self.local[buffer.name] = name = f"t{len(self.local)}"
                    self.lines.append(f"{name} = {self.local[before]}")
                    self._point(buffer.name)

    def _extern(self, step: Extern) -> None:
        if step.checks:
            self.names["check_failed"] = check_failed
            self.lines += filter(None, [check_line(step)])
            return
        op = self._name("op", op_of(step))
        args = [self._operand(a, step.foreign) for a in step.args]
        if step.target in BY_OFFSET:
            self.names["copy_of"] = copy_of
            args[0] = f"copy_of({args[0]})"
        args += [f"{k}={self._operand(v, step.foreign)}" for k, v in step.kwargs]
        asked = f"  # {where(step.origins)}"
        if step.into:
            (made,) = step.outputs
            assert made is not None
            self._allocate_output(made)
            if made.name in self.plan.lent and made.name not in self.local:
                self._allocate(made, "t")
            self.lines.append(f"{op}({', '.join([*args, f'out={self._tensor(made)}'])}){asked}")
            return
        call = f"{op}({', '.join(args)}){asked}"
        if not any(b is not None for b in step.outputs) and not step.binds:
            self.lines.append(call)
            return
        self.lines.append(f"result = {call}")
        if step.binds:
            self.lines += self.late.told_lines(step, "result", "".join(args[:1]))
        for k, buffer in enumerate(step.outputs):
            self._keep(step, buffer, "result" if step.single else f"result[{k}]")
        self.lines.append("del result")

    def _keep(self, step: Extern, buffer: Buffer | None, source: str) -> None:
        """Name an op's result; the kernels know the strides that torch foretold for it. Of what
        hangs on data, and of what others wrote, shape and type are looked at, too."""
        if buffer is None:
            return
        self.local[buffer.name] = name = f"t{len(self.local)}"
        self.names["with_layout"], count = with_layout, product(buffer.shape)
        sizes, strides = tuple_text(buffer.shape), tuple_text(buffer.strides)
        dtype = self._name("dtype", torch_dtype(buffer.dtype))
        laid_out = f"with_layout({source}, {sizes}, {strides}, {dtype}, {where(step.origins)!r})"
        as_foretold = [f"{source}.stride() == {strides}"]
        if step.binds or not step.target.startswith(TRUSTED):
            as_foretold += [f"{source}.shape == {sizes}", f"{source}.dtype is {dtype}"]
        if returns_alias(step):
            self.lines.append(f"{name} = {laid_out}")
        elif count.is_const and count.number <= 1 and len(as_foretold) == 1:
            self.lines.append(f"{name} = {source}")
        else:
            self.lines.append(f"{name} = {source} if {' and '.join(as_foretold)} else {laid_out}")
        self._point(buffer.name)


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def kernels_from(
    graph: KernelGraph, position: int, cut: Collection[int]
) -> Iterator[Kernel]:  # fmt: skip
    """The kernels of the segment that begins there."""
    for place, step in enumerate(graph.body[position:], position):
        if not isinstance(step, Kernel) or (place in cut and place > position):
            return
        yield step


def laid_out_as_shown(plan: Plan) -> dict[str, ViewArg]:
    """Outputs that only kernels know, which have no need of a shape: the caller's will do."""
    graph = plan.graph
    shown = [o.value for o in graph.outputs if isinstance(o.value, ViewArg)]
    others = {*graph.inputs, *graph.constants, *(b for s in graph.externs for b in s.writes)}
    others.update(b for s in graph.externs for b in s.reads)
    counts = Counter(view.buffer for view in shown)
    return {
        view.buffer.name: view
        for view in shown
        if counts[view.buffer] == 1 and view.buffer not in others and _covers(view)
        if view.buffer.name not in plan.heirs
    }


def _covers(view: ViewArg) -> bool:
    """Whether a window shows each element of its buffer once, where the numbers tell."""
    sizes = (*view.shape, *view.strides, *view.buffer.shape, *view.buffer.strides, view.offset)
    if not all(n.is_const for n in sizes):
        return False
    return view.offset is ZERO and len({n for v in (view, view.buffer) for n in _extents(v)}) == 1


def _extents(layout: ViewArg | Buffer) -> tuple[int, int]:
    """How many elements there are, and how many places from the first to the last."""
    steps = [(n.number, s.number) for n, s in zip(layout.shape, layout.strides, strict=True)]
    return math.prod(n for n, _ in steps), 1 + sum((n - 1) * step for n, step in steps)


def name_op(lines: Sequence[str], error: BaseException) -> None:
    """Add to torch's error what its line of the entry's text says: the op, and the user's line."""
    step = error.__traceback__
    if isinstance(error, LitzError) or step is None or step.tb_frame.f_code.co_filename != ENTRY:
        return
    _, asked, op = lines[step.tb_lineno - 1].rpartition("  # ")
    if asked:
        error.add_note(f"raised by {op}")


def bound(text: str, scope: dict[str, Any]) -> Callable[[list[Any]], list[Any]]:
    """The function of a text whose names stand for what `scope` says."""
    scope["__builtins__"] = builtins
    scope["name_op"] = partial(name_op, text.splitlines())
    exec(compile(text, ENTRY, "exec"), scope)
    call: Any = scope["call"]
    call._boxed_call = True  # AOTAutograd then passes the inputs as one list
    return call  # type: ignore[no-any-return]


def resize_text(entry: Entry) -> str:
    """The function that fits a workspace to sizes: what of the table follows from them, the regions
    of the arena, the windows on it."""
    plan, source = entry.plan, entry.source
    lines = [
        "space.sizes = None",  # until all of it fits
        f"{''.join(f'{local_name(s)}, ' for s in entry.symbols)} = sizes",
        "table = space.table",
    ]
    for name, value in source.computed.items():
        if not entry.late.concerns(value):
            lines.append(f"table[{source.layout[name]}] = {table_text(value)}")
    places = {}
    lines.append("end = 0")
    for k, (unit, size) in enumerate(plan.regions):
        places[unit] = (f"region{k}", f"unit{k}")
        lines += [f"region{k}, unit{k} = end, {number_text(unit)}", f"end += unit{k} * {size}"]
    lines.append("arena = space.reserve(end)")
    for name, slot in plan.slots.items():
        if name in source.layout:
            start, unit_name = places[slot.unit]
            place = f"arena + {start} + {unit_name} * {slot.offset}"
            lines.append(f"table[{source.layout[name]}] = {place}")
    if entry.poisons:
        lines.append(f"space.taken = {taken_text(plan, places)}")
    views = []
    for view in entry.views:
        slot = plan.slots[view.buffer.name]
        start, unit_name = places[slot.unit]
        dtype = entry._name("dtype", torch_dtype(view.buffer.dtype))
        layout = f"{tuple_text(view.shape)}, {tuple_text(view.strides)}, {dtype}"
        place = f"{start} + {unit_name} * {slot.offset}, {number_text(view.offset)}"
        views.append(f"space.window({place}, {layout})")
    lines += [f"space.views = [{', '.join(views)}]", "space.sizes = sizes"]
    return "\n".join(["def resize(space, sizes):", *(f"    {line}" for line in lines), ""])
