"""The wrapper: the Python function of one call, printed from its plan step by step.

In: `CallPlan`, native segments. Out: the function's text and the values of its names. A call then
runs one line for each ATen call, and one for all the kernels between two of them. For x + 1:

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._C._dynamo.guards import _reinterpret_tensor  # type: ignore[attr-defined]

from litz.config import Config
from litz.errors import LitzError
from litz.ir.aten import op_of, returns_alias, torch_dtype
from litz.ir.call_plan import (
    OUTPUT,
    TEMPORARY,
    WORKSPACE,
    Allocate,
    Body,
    Call,
    CallPlan,
    Free,
    NanCheck,
    Refresh,
    Reuse,
    Run,
    Segment,
    SetPointer,
    origins_text,
)
from litz.ir.calls import STORAGE_OFFSET_ARG
from litz.ir.expr import Expr
from litz.ir.index import size_product
from litz.ir.program import Buffer, Extern, buffer_bytes
from litz.runtime.asserts import assert_finite, check_failed
from litz.runtime.frozen import Frozen
from litz.runtime.memory import HUGE_PAGE_THRESHOLD, copy_of, empty, empty_large, with_layout
from litz.runtime.naming import Naming
from litz.runtime.poison import (
    arena_ranges,
    arena_ranges_text,
    check_arena_gaps,
    check_redzone,
    guarded,
    poisoned,
)
from litz.runtime.prepacked import PrepackCache
from litz.runtime.size_exprs import (
    check_line,
    float_bits,
    local_name,
    number_text,
    table_text,
    tuple_text,
    unbacked_text,
)

# Lines that add the op and the user's line to an error of an ATen call.
NAMED = ("except BaseException as error:", "    name_op(error)")
WRAPPER = "<litz wrapper>"
# Namespaces of ops whose shapes and types torch's own tested meta functions predict, or ours.
TRUSTED = ("aten.", "mkldnn.", "prims.", "litz.")
LETTERS = {OUTPUT: "y", TEMPORARY: "t", WORKSPACE: "w"}
Native = Callable[..., Any]


class Wrapper(Naming):
    """Prints the function of a body. `segments` are the native functions by name."""

    def __init__(
        self, call: CallPlan, body: Body, segments: Mapping[str, Native],
        constants: dict[str, torch.Tensor], config: Config, prepacked: PrepackCache | None = None,
        frozen: Frozen | None = None,
    ) -> None:  # fmt: skip
        super().__init__(call, body, config)
        self.names |= {"empty": empty, "empty_large": empty_large}
        self.names["reinterpret"] = _reinterpret_tensor
        self.names |= {"math_floor": math.floor, "math_ceil": math.ceil}  # of symbolic numbers
        if body.symbols or body.unbacked:
            self.names["float_bits"] = float_bits
        self.segments, self.prepacked = segments, prepacked
        self.constants = {b.name: constants[b.name] for b in call.constants}
        if frozen is not None:
            self.constants = {name: frozen.own(t) for name, t in self.constants.items()}
        self.poisons = config.debug_poison_memory
        self.guarded: dict[str, str] = {}  # outputs with a redzone after them
        self.infinity_flags: dict[str, str] = {}  # the variable that says a buffer has infinities
        if self.poisons:
            self.names |= {"empty": guarded, "empty_large": guarded, "poisoned": poisoned}
        self._printers: dict[type, Callable[[Any], None]] = {
            SetPointer: self._point, Refresh: self._refresh, Allocate: self._allocate, Run:
            self._run, Call: self._call, Reuse: self._reuse, Free: self._free, NanCheck:
            self._check_finite,
        }  # fmt: skip

    def text(self) -> str:
        """The function `call(args)`."""
        self._name_tensors()
        for step in self.body.steps:
            self._printers[type(step)](step)
        results = self._results()
        self.lines += self._overrun_checks()
        self.lines.append(f"return [{results}]")
        resize = self._resize() if self.body.symbols else ""
        lines = [f"    {line}" for line in (*self._unpacked(), *self._in_workspace())]
        return "\n".join(["def call(args):", *lines, "", resize])

    def _name_tensors(self) -> None:
        for buffer in self.body.buffers:
            self._new(buffer, "x")
        for name, tensor in self.constants.items():
            self.local[name] = self._name("constant", tensor)
        if self.plan.prepack is not None:  # the workspace knows their addresses
            self.local |= {b.name: f"prepacked[{b.name!r}]" for b in self.plan.prepack.makes}
            if self.plan.prepack.final:
                assert self.prepacked is not None
                self.names["prepacked"] = self.prepacked.sets[()].known

    def _in_workspace(self) -> list[str]:
        """The lines inside a `try` that takes a workspace and gives it back whatever happens, clean
        for the next call."""
        body = [
            *(["if space.sizes != sizes: resize(space, sizes)"] if self.body.symbols else []),
            *(["poisoned(space.arena)"] if self.poisons else []),
            "table, views, address = space.table, space.views, space.address", *self.lines,
        ]  # fmt: skip
        body = ["try:", *_indented(body)]
        body += [*NAMED, "    forget(space, error)", "    raise"]
        if self.plan.slots:  # give the arena back, if it was borrowed
            body = [*body, "finally:", "    give_arena(space.arena)"]
            body = ["try:", "    space.borrow()", *_indented(body)]
        acquire = ["try:", "    space = take()", "except IndexError:", "    space = new_space()"]
        return [*acquire, *body, "finally:", "    give_back(space)"]

    def _overrun_checks(self) -> list[str]:
        """Lines that check whether anything was written outside buffers."""
        if not self.poisons:
            return []
        self.names |= {"check_arena_gaps": check_arena_gaps, "check_redzone": check_redzone}
        symbolic = bool(self.body.symbols)
        inside = (
            "space.arena_ranges"
            if symbolic
            else self._name("arena_ranges", arena_ranges(self.plan.intermediates))
        )
        behind = [f"check_redzone({buffer!r}, {name})" for buffer, name in self.guarded.items()]
        return [f"check_arena_gaps(space.arena, {inside})", *behind]

    # -- memory ------------------------------------------------------------------------------

    def _point(self, step: SetPointer) -> None:
        self._enter(step.buffer)

    def _refresh(self, _: Refresh) -> None:
        assert self.plan.prepack is not None
        given = "".join(f"{self.local[b.name]}, " for b in self.plan.prepack.sources)
        self.lines.append(f"prepacked = refresh(space, ({given}))")
        self._raise_recorded_error(self.plan.prepack.segment)
        if self.plan.prepack.fold_guards:
            inputs = ", ".join(name for _, name in self._named_inputs())
            self.lines.append(f"if prepacked is None: return unfolded([{inputs}])")

    def _allocate(self, step: Allocate) -> None:
        """Allocate a buffer, on huge pages if it is large."""
        buffer, layout = step.buffer, step.output_view or step.buffer
        if step.output_view is not None:
            self.output_view[buffer.name] = step.output_view
        huge = self.config.cpp.huge_pages and buffer_bytes(buffer) >= HUGE_PAGE_THRESHOLD
        make = "empty_large" if huge else "empty"
        dtype = self._name("dtype", torch_dtype(buffer.dtype))
        name = self._new(buffer, LETTERS[step.kind])
        sizes, strides = tuple_text(layout.shape), tuple_text(layout.strides)
        self.lines.append(f"{name} = {make}({sizes}, {strides}, {dtype})")
        if step.kind == OUTPUT:  # others may be freed before the end
            self.guarded[buffer.name] = name
        self._enter(buffer)

    def _reuse(self, step: Reuse) -> None:
        before = self.local[step.before.name]
        self.lines.append(f"{self._new(step.buffer, 't')} = {before}")
        self._enter(step.buffer)

    def _free(self, step: Free) -> None:
        self.lines += [f"del {self.local[buffer.name]}" for buffer in step.buffers]

    # -- kernels and calls -------------------------------------------------------------------

    def _run(self, step: Run) -> None:
        segment = self.plan.segment[step.segment]
        name = segment.name.removeprefix("litz_")
        self.names[name] = self.segments[segment.name]
        self._launch(name)
        self._raise_recorded_error(segment)

    def _launch(self, segment: str) -> None:
        self.lines.append(f"{segment}(address)")

    def _raise_recorded_error(self, segment: Segment) -> None:
        """Add a line that raises a recorded error, if a kernel of the segment has checks."""
        if self.plan.may_fail(segment):
            self.lines.append("if space.error.value: fail(space)")

    def _call(self, step: Call) -> None:
        op = step.op
        if op.checks:
            self.names["check_failed"] = check_failed
            self.lines += filter(None, [check_line(op)])
            return
        function = self._name("op", op_of(op))
        args = [self._operand(a, op.foreign) for a in op.args]
        if op.target in STORAGE_OFFSET_ARG:
            self.names["copy_of"] = copy_of
            args[0] = f"copy_of({args[0]})"
        args += [f"{k}={self._operand(v, op.foreign)}" for k, v in op.kwargs]
        if op.into:
            (made,) = op.outputs
            assert made is not None
            args.append(f"out={self._tensor(made)}")
        call = f"{function}({', '.join(args)})  # {origins_text(op.origins)}"
        if op.into or not (op.binds or any(b is not None for b in op.outputs)):
            self.lines.append(call)
            return
        self.lines.append(f"result = {call}")
        for b in op.binds:
            told = unbacked_text(b, "result", "".join(args[:1]))
            self.lines.append(f"{local_name(b.symbol)} = {told}")
        self.lines += defined_lines(step.defines)
        self.lines += self._entered_lines(step.enters)
        for k, buffer in enumerate(op.outputs):
            self._keep(op, buffer, "result" if op.single else f"result[{k}]")
        self.lines.append("del result")

    def _keep(self, op: Extern, buffer: Buffer | None, source: str) -> None:
        """Name an op's result, after checking that it has the strides that torch predicted, for
        which kernels were compiled. If it has unbacked sizes, or the op is not trusted, its shape
        and type are checked too."""
        if buffer is None:
            return
        name = self._new(buffer, "t")
        self.names["with_layout"], count = with_layout, size_product(buffer.shape)
        sizes, strides = tuple_text(buffer.shape), tuple_text(buffer.strides)
        dtype = self._name("dtype", torch_dtype(buffer.dtype))
        where = origins_text(op.origins)
        laid_out = f"with_layout({source}, {sizes}, {strides}, {dtype}, {where!r})"
        as_predicted = [f"{source}.stride() == {strides}"]
        if op.binds or not op.target.startswith(TRUSTED):
            as_predicted += [f"{source}.shape == {sizes}", f"{source}.dtype is {dtype}"]
        if returns_alias(op):
            self.lines.append(f"{name} = {laid_out}")
        elif count.is_const and count.number <= 1 and len(as_predicted) == 1:
            self.lines.append(f"{name} = {source}")
        else:
            self.lines.append(f"{name} = {source} if {' and '.join(as_predicted)} else {laid_out}")
        self._enter(buffer)

    def _check_finite(self, step: NanCheck) -> None:
        self.names["assert_finite"] = assert_finite
        name, allow_inf = step.buffer.name, str(step.allow_inf)
        if isinstance(step.allow_inf, tuple):
            allow_inf = " or ".join(
                dict.fromkeys(self.infinity_flags[before] for before in step.allow_inf)
            )
        given = f"{self._tensor(step.buffer)}, {name!r}, {step.where!r}, {allow_inf}"
        self.infinity_flags[name] = flag = f"infinite_{len(self.lines)}"
        self.lines.append(f"{flag} = assert_finite({given})")

    # -- sizes -------------------------------------------------------------------------------

    def _entered_lines(self, names: Iterable[str]) -> list[str]:
        """Lines that enter numbers into the table."""
        table, computed = self.plan.table, self.plan.computed
        return [f"table[{table[name]}] = {table_text(computed[name])}" for name in names]

    def _resize(self) -> str:
        """The function that fills a workspace for new sizes: the table's entries that follow from
        them, the regions of the arena, the views of it."""
        plan = self.plan
        lines = [
            "space.sizes = None",  # until all of it fits
            f"{''.join(f'{local_name(s)}, ' for s in self.body.symbols)} = sizes",
            "table = space.table",
            *self._entered_lines(self.body.enters),
            *region_lines(plan),
            "arena = space.reserve(end)",
        ]
        places = region_names(plan)
        for name, slot in plan.slots.items():
            if name in plan.table:
                start, unit = places[slot.unit]
                place = f"arena + {start} + {unit} * {slot.offset}"
                lines.append(f"table[{plan.table[name]}] = {place}")
        if self.poisons:
            lines.append(f"space.arena_ranges = {arena_ranges_text(plan.intermediates, places)}")
        views = []
        for view in self.views:
            slot = plan.slots[view.buffer.name]
            start, unit = places[slot.unit]
            dtype = self._name("dtype", torch_dtype(view.buffer.dtype))
            layout = f"{tuple_text(view.shape)}, {tuple_text(view.strides)}, {dtype}"
            place = f"{start} + {unit} * {slot.offset}, {number_text(view.offset)}"
            views.append(f"space.strided_view({place}, {layout})")
        lines += [f"space.views = [{', '.join(views)}]", "space.sizes = sizes"]
        return "\n".join(["def resize(space, sizes):", *_indented(lines), ""])


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def defined_lines(symbols: Iterable[Expr]) -> list[str]:
    """Lines that compute sizes which are made of others."""
    return [f"{local_name(s)} = {number_text(s.args[0])}" for s in symbols]


def region_lines(plan: CallPlan) -> list[str]:
    """Lines that compute the start of each region of the arena, and its end."""
    lines = ["end = 0"]
    for k, (unit, size) in enumerate(plan.regions):
        lines += [f"region{k}, unit{k} = end, {number_text(unit)}", f"end += unit{k} * {size}"]
    return lines


def region_names(plan: CallPlan) -> dict[Expr, tuple[str, str]]:
    """The names of the start and the unit of each region in those lines."""
    return {unit: (f"region{k}", f"unit{k}") for k, (unit, _) in enumerate(plan.regions)}


def name_op(lines: Sequence[str], error: BaseException) -> None:
    """Add a note to torch's error: the op and the user's line, from its line of the wrapper."""
    step = error.__traceback__
    if isinstance(error, LitzError) or step is None or step.tb_frame.f_code.co_filename != WRAPPER:
        return
    _, asked, op = lines[step.tb_lineno - 1].rpartition("  # ")
    if asked:
        error.add_note(f"raised by {op}")


def exec_wrapper(text: str, scope: dict[str, Any]) -> Callable[[list[Any]], list[Any]]:
    """The function that a text defines, with the names in `scope`."""
    scope["__builtins__"] = builtins
    scope["name_op"] = partial(name_op, text.splitlines())
    exec(compile(text, WRAPPER, "exec"), scope)
    call: Any = scope["call"]
    call._boxed_call = True  # AOTAutograd then passes the inputs as one list
    return call  # type: ignore[no-any-return]
