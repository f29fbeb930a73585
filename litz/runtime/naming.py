"""Names in a wrapper: how its text refers to tensors, numbers, views and checks.

In: a `CallPlan` and one of its bodies. Out: `Naming`, the part of a wrapper that writes operands
and results. Example: a view of the arena is `views[3]`, an input `x0`, and a dtype, which has no
text, `dtype_7`.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import Any

from litz.config import Config
from litz.ir.aten import torch_dtype
from litz.ir.call_plan import FROZEN, LAYOUT, RESTORE, Body, CallPlan, Input, OpaqueOperand
from litz.ir.expr import Expr
from litz.ir.index import ZERO
from litz.ir.program import Buffer, ViewArg
from litz.ir.sizes import roots
from litz.runtime.asserts import misaligned
from litz.runtime.layouts import is_full_view
from litz.runtime.memory import copy_of, restrided
from litz.runtime.modes import call_without_modes, function_modes
from litz.runtime.size_exprs import local_name, number_text, source_of, tuple_text


class Naming:
    """`names` are the values of the text's global names, `views` the views of the arena in the
    order of a workspace's list, `local` the Python names of buffers outside the arena."""

    def __init__(self, call: CallPlan, body: Body, config: Config) -> None:
        self.plan, self.body, self.config = call, body, config
        self.names: dict[str, Any] = {}
        self.views: dict[ViewArg, int] = {}
        self.local: dict[str, str] = {}
        self.lines: list[str] = []
        shown = [o.value.buffer for o in body.outputs if isinstance(o.value, ViewArg)]
        self.output_uses = Counter(shown)  # how many outputs are views of a buffer
        self.output_view: dict[str, ViewArg] = {}  # outputs allocated as the view the caller gets
        self.given = {b.name for b in body.buffers}
        self.fixed = {b.name for b in call.constants}

    # -- inputs ------------------------------------------------------------------------------

    def _named_inputs(self) -> list[tuple[Input, str]]:
        """The arguments of a call, each with its Python name; a size keeps its own name."""
        named: list[tuple[Input, str]] = []
        for k, item in enumerate(self.body.inputs):
            value = item.value
            if isinstance(value, Buffer):
                named.append((item, self.local[value.name]))
            else:
                fresh = value.op == "size" and not any(i.value is value for i, _ in named)
                named.append((item, local_name(value) if fresh else f"i{k}"))
        return named

    def _unpacked(self) -> list[str]:
        """Lines that name the inputs, and check them."""
        given = self._named_inputs()
        names = [name for _, name in given]
        lines = [f"{', '.join(names)}{',' if len(names) == 1 else ''} = args"] if names else []
        pairs = [(i.value, name) for i, name in given]
        for symbol in self.body.symbols:
            source, name = source_of(symbol, pairs), local_name(symbol)
            lines += [f"{name} = {source}"] if source != name else []
        if self.body.symbols:
            lines.append(f"sizes = {tuple_text(self.body.symbols)}")
        # Dynamo guards the kind of each input. Gradients from autograd are not guarded: they may be
        # negated lazily, or zero without memory.
        for name in (name for item, name in given if item.tangent):
            odd = f"{name} is not None and ({name}.is_neg() or {name}._is_zerotensor())"
            lines.append(f"if {odd}: {name} = {name}.clone()")
        frozen = "".join(f"{name}, " for item, name in given if item.check == FROZEN)
        if frozen:
            lines.append(f"if not still(({frozen})): return elsewhere(args)")
        lines += [self._check(i, name) for i, name in given if i.check in (LAYOUT, RESTORE)]
        self.names |= {"function_modes": function_modes, "call_without_modes": call_without_modes}
        return [
            "if function_modes(): return call_without_modes(call, args)",
            *lines,
            "args.clear()",
        ]

    def _check(self, item: Input, name: str) -> str:
        """A line that detects another layout; then `mismatch` decides whether it matters, or
        `restrided` restores it."""
        buffer = item.value
        assert isinstance(buffer, Buffer)
        sizes, strides = tuple_text(buffer.shape), tuple_text(buffer.strides)
        dtype = self._name("dtype", torch_dtype(buffer.dtype))
        layout = f"{name}.shape != {sizes} or {name}.stride() != {strides}"
        wrong = f"{layout} or {name}.dtype is not {dtype}"
        given = f"({buffer.name!r}, {name}, {sizes}, {strides}, {dtype})"
        told = f"mismatch{given}"
        if item.check == RESTORE:
            self.names["restrided"] = restrided
            told = f"{name} = restrided{given}"
        # An effect token is None at run time.
        return f"if {name} is not None and ({wrong}): {told}"

    # -- outputs and operands ----------------------------------------------------------------

    def _results(self) -> str:
        return ", ".join(self._output(o.value) for o in self.body.outputs)

    def _output(self, value: Any) -> str:
        if isinstance(value, Expr):
            return number_text(value)
        if not isinstance(value, ViewArg):
            return self._name("value", value)
        if is_full_view(value) or value.buffer.name in self.given:
            return self._window(value)
        # For autograd an output must not be a view, or the caller could not write to it. Outputs
        # that share memory share its version counter, on which a backward graph relies.
        if self.output_uses[value.buffer] > 1:
            return f"{self._window(value)}.detach()"
        base = self._tensor(value.buffer)
        if self.output_view.get(value.buffer.name) == value:
            return base
        layout = f"{tuple_text(value.shape)}, {tuple_text(value.strides)}"
        return f"reinterpret({base}, {layout}, {number_text(value.offset)})"

    def _window(self, view: ViewArg) -> str:
        """The text of a view of a buffer's tensor."""
        base = self._tensor(view.buffer)
        if is_full_view(view):
            return base
        start = f"{base}.storage_offset() + {number_text(view.offset)}"
        return f"{base}.as_strided({tuple_text(view.shape)}, {tuple_text(view.strides)}, {start})"

    def _operand(self, value: Any, given_away: bool = False) -> str:
        """The text of an argument of a call. A constant is `given_away` as a copy: foreign code may
        keep it and write to it, and the next call must find ours unchanged."""
        if isinstance(value, ViewArg):
            shown = self._view(value)
            if given_away and value.buffer.name in self.fixed:
                self.names["copy_of"] = copy_of
                return f"copy_of({shown})"
            return shown
        if isinstance(value, tuple):
            inside = ", ".join(self._operand(v, given_away) for v in value)
            return f"({inside},)" if value else "()"
        if isinstance(value, Expr):
            return number_text(value)
        return self._name("value", value.value if isinstance(value, OpaqueOperand) else value)

    def _tensor(self, buffer: Buffer) -> str:
        if buffer.name in self.plan.slots:
            return self._view(ViewArg(buffer, buffer.shape, buffer.strides, ZERO))
        return self.local[buffer.name]

    def _view(self, view: ViewArg) -> str:
        sizes = (*view.shape, *view.strides, view.offset)
        unbacked = self.body.unbacked and self.body.unbacked & roots(*sizes)
        if view.buffer.name in self.plan.slots and not unbacked:
            return f"views[{self.views.setdefault(view, len(self.views))}]"
        return self._window(view)

    def _name(self, kind: str, value: Any) -> str:
        """The text of a value: its repr, or a new name if it has no text."""
        if value is None or (isinstance(value, (bool, int, str)) and not isinstance(value, Enum)):
            return repr(value)
        name = f"{kind}_{len(self.names)}"
        self.names[name] = value
        return name

    def _new(self, buffer: Buffer, letter: str) -> str:
        """A new name for the tensor of a buffer."""
        self.local[buffer.name] = name = f"{letter}{len(self.local)}"
        return name

    # -- the table ---------------------------------------------------------------------------

    def _enter(self, buffer: Buffer) -> None:
        """Enter a tensor's address into the table, if a kernel reads it there."""
        if buffer.name in self.body.points and buffer.name in self.plan.table:
            entry = self.plan.table[buffer.name]
            self.lines.append(f"table[{entry}] = {self.local[buffer.name]}.data_ptr()")
            self._assert_aligned(buffer)

    def _assert_aligned(self, buffer: Buffer) -> None:
        if self.config.alignment_asserts:
            self.names["misaligned"] = misaligned
            entry, size = self.plan.table[buffer.name], self._alignment(buffer)
            given = f"{buffer.name!r}, table[{entry}], {size}"
            self.lines.append(f"if (table[{entry}] or 0) % {size}: misaligned({given})")

    def _alignment(self, buffer: Buffer) -> int:
        """The alignment of its address that kernels rely on, in bytes."""
        return buffer.dtype.bytes
