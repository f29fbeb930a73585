"""The words of a wrapper: how its text names tensors, numbers, windows and checks.

In: a `CallPlan` and one of its bodies. Out: `Naming`, the part of a wrapper that spells operands
and results. Example: a window on the arena is `views[3]`, an input `x0`, and a dtype, which no text
can spell, `dtype_7`.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import Any

from litz.config import Config
from litz.ir.aten import torch_dtype
from litz.ir.call_plan import FROZEN, LAYOUT, RESTORE, Body, CallPlan, Input, Live
from litz.ir.expr import Expr
from litz.ir.index import ZERO
from litz.ir.program import Buffer, ViewArg
from litz.ir.sizes import roots
from litz.runtime.asserts import misaligned
from litz.runtime.layouts import is_whole
from litz.runtime.memory import copy_of, restored
from litz.runtime.modes import apart, function_modes
from litz.runtime.numbers import local_name, number_text, source_of, tuple_text


class Naming:
    """`names` holds what the text refers to, `views` the windows on the arena in the order of a
    workspace's list, `local` the Python name of a buffer outside the arena."""

    def __init__(self, call: CallPlan, body: Body, config: Config) -> None:
        self.plan, self.body, self.config = call, body, config
        self.names: dict[str, Any] = {}
        self.views: dict[ViewArg, int] = {}
        self.local: dict[str, str] = {}
        self.lines: list[str] = []
        shown = [o.value.buffer for o in body.outputs if isinstance(o.value, ViewArg)]
        self.shown = Counter(shown)  # how many outputs show a buffer
        self.as_shown: dict[str, ViewArg] = {}  # outputs whose tensor is what the caller gets
        self.given = {b.name for b in body.buffers}
        self.fixed = {b.name for b in call.constants}

    # -- inputs ------------------------------------------------------------------------------

    def _named_inputs(self) -> list[tuple[Input, str]]:
        """The arguments of a call and what the text calls them: a size goes by its own name."""
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
        # Dynamo guards what kind of tensor each input is, and passes know it; autograd's gradients
        # come as they are: negated lazily, or zero without any memory.
        for name in (name for item, name in given if item.tangent):
            odd = f"{name} is not None and ({name}.is_neg() or {name}._is_zerotensor())"
            lines.append(f"if {odd}: {name} = {name}.clone()")
        frozen = "".join(f"{name}, " for item, name in given if item.check == FROZEN)
        if frozen:
            lines.append(f"if not still(({frozen})): return elsewhere(args)")
        lines += [self._check(i, name) for i, name in given if i.check in (LAYOUT, RESTORE)]
        self.names |= {"function_modes": function_modes, "apart": apart}
        return ["if function_modes(): return apart(call, args)", *lines, "args.clear()"]

    def _check(self, item: Input, name: str) -> str:
        """A line that sees another layout; `mismatch` then looks whether it matters, or `restored`
        brings it back."""
        buffer = item.value
        assert isinstance(buffer, Buffer)
        sizes, strides = tuple_text(buffer.shape), tuple_text(buffer.strides)
        dtype = self._name("dtype", torch_dtype(buffer.dtype))
        layout = f"{name}.shape != {sizes} or {name}.stride() != {strides}"
        wrong = f"{layout} or {name}.dtype is not {dtype}"
        given = f"({buffer.name!r}, {name}, {sizes}, {strides}, {dtype})"
        told = f"mismatch{given}"
        if item.check == RESTORE:
            self.names["restored"] = restored
            told = f"{name} = restored{given}"
        # An effect token is nothing at run time.
        return f"if {name} is not None and ({wrong}): {told}"

    # -- outputs and operands ----------------------------------------------------------------

    def _results(self) -> str:
        return ", ".join(self._output(o.value) for o in self.body.outputs)

    def _output(self, value: Any) -> str:
        if isinstance(value, Expr):
            return number_text(value)
        if not isinstance(value, ViewArg):
            return self._name("value", value)
        if is_whole(value) or value.buffer.name in self.given:
            return self._window(value)
        # To autograd an output is no view: a caller could not write into it. Those that share
        # memory share its count of changes, which a backward graph relies on.
        if self.shown[value.buffer] > 1:
            return f"{self._window(value)}.detach()"
        base = self._tensor(value.buffer)
        if self.as_shown.get(value.buffer.name) == value:
            return base
        layout = f"{tuple_text(value.shape)}, {tuple_text(value.strides)}"
        return f"reinterpret({base}, {layout}, {number_text(value.offset)})"

    def _window(self, view: ViewArg) -> str:
        """A strided window on the tensor of its buffer."""
        base = self._tensor(view.buffer)
        if is_whole(view):
            return base
        start = f"{base}.storage_offset() + {number_text(view.offset)}"
        return f"{base}.as_strided({tuple_text(view.shape)}, {tuple_text(view.strides)}, {start})"

    def _operand(self, value: Any, given_away: bool = False) -> str:
        """An argument of a call. A constant is `given_away` as a copy: whoever keeps it may write
        into it, and the next call is to find ours."""
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
        return self._name("value", value.value if isinstance(value, Live) else value)

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
        """A name for a value that the text cannot spell."""
        if value is None or (isinstance(value, (bool, int, str)) and not isinstance(value, Enum)):
            return repr(value)
        name = f"{kind}_{len(self.names)}"
        self.names[name] = value
        return name

    def _new(self, buffer: Buffer, letter: str) -> str:
        """A name for the tensor of a buffer."""
        self.local[buffer.name] = name = f"{letter}{len(self.local)}"
        return name

    # -- the table ---------------------------------------------------------------------------

    def _enter(self, buffer: Buffer) -> None:
        """Put a tensor's address into the table, if a kernel looks for it there."""
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
        """What kernels take for granted of its address."""
        return buffer.dtype.bytes
