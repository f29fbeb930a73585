"""The words of an entry: how its text names tensors, numbers, windows and checks.

In: a `Plan` and its source. Out: `Wording`, what `Entry` writes its lines with. Example: a window
on the arena is `views[3]`, an input `x0`, and a dtype, which no text can spell, `dtype_7`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import Any

from litz.config import Config
from litz.ir.expr import Expr
from litz.ir.index import ZERO
from litz.ir.program import Buffer, Extern, Kernel, KernelGraph, Plan, ViewArg, written
from litz.ir.source import DeviceSource, Source
from litz.runtime.asserts import assert_finite, meant_by, misaligned, where
from litz.runtime.late import LateSizes
from litz.runtime.memory import copy_of, restored
from litz.runtime.numbers import local_name, number_text, tuple_text
from litz.runtime.steps import is_whole, torch_dtype

TANGENT = "tangents_"  # what AOTAutograd calls the gradients that a backward graph is given


class Wording(ABC):
    """`names` holds what the text refers to, `views` the windows on the arena in the order of a
    workspace's list, `local` the Python name of a buffer outside the arena."""

    plan: Plan
    graph: KernelGraph
    source: Source | DeviceSource
    config: Config
    late: LateSizes
    names: dict[str, Any]
    views: dict[ViewArg, int]
    local: dict[str, str]
    lines: list[str]
    in_table: set[str]
    infinite: dict[str, str]
    shown: Counter[Buffer]  # how many outputs show a buffer
    laid: dict[str, ViewArg]  # outputs whose tensor is the window that the caller gets

    @abstractmethod
    def _allocate_empty(self, buffer: Buffer) -> None:
        """Lines that make a tensor for a buffer that no step writes."""

    def _named_inputs(self) -> list[tuple[Buffer | Expr, str]]:
        """The arguments of a call and what the text calls them: a size goes by its own name."""
        named: list[tuple[Buffer | Expr, str]] = []
        for k, item in enumerate(self.graph.inputs):
            if isinstance(item, Buffer):
                named.append((item, self.local[item.name]))
            else:
                fresh = item.op == "size" and not any(i is item for i, _ in named)
                named.append((item, local_name(item) if fresh else f"i{k}"))
        return named

    def _check(self, buffer: Buffer, name: str, saved: bool) -> str:
        """A line that sees another layout; `mismatch` then looks whether it matters, or `restored`
        brings it back."""
        sizes, strides = tuple_text(buffer.shape), tuple_text(buffer.strides)
        dtype = self._name("dtype", torch_dtype(buffer.dtype))
        layout = f"{name}.shape != {sizes} or {name}.stride() != {strides}"
        wrong = f"{layout} or {name}.dtype is not {dtype}"
        given = f"({buffer.name!r}, {name}, {sizes}, {strides}, {dtype})"
        told = f"mismatch{given}"
        if saved:
            self.names["restored"] = restored
            told = f"{name} = restored{given}"
        # An effect token is nothing at run time.
        return f"if {name} is not None and ({wrong}): {told}"

    def _saved(self) -> set[Buffer]:
        """What a backward graph is given and only reads: a write belongs into the tensor itself."""
        inputs = {b for b in self.graph.inputs if isinstance(b, Buffer)}
        if not any(b.name.startswith(TANGENT) for b in inputs):
            return set()
        return inputs.difference(*(written(step) for step in self.graph.body))

    def _output(self, value: Any) -> str:
        if isinstance(value, Expr):
            return number_text(value)
        if not isinstance(value, ViewArg):
            return self._name("value", value)
        if is_whole(value) or value.buffer in self.graph.inputs:
            return self._window(value)
        # To autograd an output is no view: a caller could not write into it. Those that share
        # memory share its count of changes, which a backward graph relies on.
        if self.shown[value.buffer] > 1:
            return f"{self._window(value)}.detach()"
        base = self._tensor(value.buffer)
        if self.laid.get(value.buffer.name) == value:
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

    def _point(self, buffer: str) -> None:
        """Put a tensor's address into the table, if a kernel looks for it there."""
        if buffer in self.in_table and buffer in self.source.layout:
            entry = self.source.layout[buffer]
            self.lines.append(f"table[{entry}] = {self.local[buffer]}.data_ptr()")
            self._assert_aligned(buffer)

    def _assert_aligned(self, buffer: str) -> None:
        if self.config.alignment_asserts:
            self.names["misaligned"] = misaligned
            entry, size = self.source.layout[buffer], self._alignment(buffer)
            given = f"{buffer!r}, table[{entry}], {size}"
            self.lines.append(f"if (table[{entry}] or 0) % {size}: misaligned({given})")

    def _alignment(self, buffer: str) -> int:
        """What kernels take for granted of its address."""
        return next(b.dtype.bytes for b in self.plan.outside if b.name == buffer)

    def _assert_finite(
        self,
        buffers: Iterable[Buffer | None],
        step: Kernel | Extern | None = None,
        meant: str = "False",
    ) -> None:
        """Look at inputs, or at what a step wrote; remember who has infinities that are meant."""
        if not self.config.nan_asserts:
            return
        self.names["assert_finite"] = assert_finite
        meant = meant_by(step, self.infinite) if step else meant
        origins = step.origins if step else ()
        for buffer in (b for b in buffers if b is not None and b.dtype.is_float):
            flag = f"infinite_{len(self.lines)}"
            self.infinite |= {buffer.name: flag}
            given = f"{self._tensor(buffer)}, {buffer.name!r}, {where(origins)!r}, {meant}"
            self.lines.append(f"{flag} = assert_finite({given})")

    def _operand(self, value: Any, given_away: bool = False) -> str:
        """An argument of a call. A constant is `given_away` as a copy: whoever keeps it may write
        into it, and the next call is to find ours."""
        if isinstance(value, ViewArg):
            shown = self._view(value)
            if given_away and value.buffer in self.graph.constants:
                self.names["copy_of"] = copy_of
                return f"copy_of({shown})"
            return shown
        if isinstance(value, tuple):
            inside = ", ".join(self._operand(v, given_away) for v in value)
            return f"({inside},)" if value else "()"
        if isinstance(value, Expr):
            return number_text(value)
        return self._name("value", value)

    def _tensor(self, buffer: Buffer) -> str:
        if buffer.name in self.plan.slots:
            return self._view(ViewArg(buffer, buffer.shape, buffer.strides, ZERO))
        if buffer.name not in self.local:  # it has no elements: nothing has written it
            self._allocate_empty(buffer)
        return self.local[buffer.name]

    def _view(self, view: ViewArg) -> str:
        name = view.buffer.name
        if name in self.plan.slots and not self.late.concerns(
            *view.shape, *view.strides, view.offset
        ):
            return f"views[{self.views.setdefault(view, len(self.views))}]"
        return self._window(view)

    def _name(self, kind: str, value: Any) -> str:
        """A name for a value that the text cannot spell."""
        if value is None or (isinstance(value, (bool, int, str)) and not isinstance(value, Enum)):
            return repr(value)
        name = f"{kind}_{len(self.names)}"
        self.names[name] = value
        return name
