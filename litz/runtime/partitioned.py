"""Partitioned graphs: some partitions are replayed as CUDA graphs, the others run unrecorded.

In: a device graph whose plan has partitions. Out: a callable that runs them in order. All
partitions share one arena that never moves; nor do the results that one recording gives to a later
one. For `y = softmax(x).cpu().to(x.device); return y * 2 + x.sum()`:

    def call(args):
        ...
        t2, t3 = part_0([x0])
        t4, = part_1([t2])
        return part_2([t4, t3])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from litz.ir.aten import torch_dtype
from litz.ir.call_plan import Allocate, CallPlan, RunPartition
from litz.ir.program import Buffer
from litz.runtime.cudagraphs import Call, CudaGraphRunner, positions_written
from litz.runtime.device_wrapper import DeviceWrapper
from litz.runtime.size_exprs import local_name, tuple_text
from litz.runtime.wrapper import defined_lines


class PartitionedWrapper(DeviceWrapper):
    """Prints the function that runs the partitions in order."""

    def __init__(self, graph: Any, constants: dict[str, torch.Tensor]) -> None:
        plan: CallPlan = graph.plan
        assert plan.driver is not None
        super().__init__(plan, plan.driver, {}, constants, graph.device, graph.config)
        self._printers[RunPartition] = self._partition

    def text(self) -> str:
        """The function `call(args)`."""
        self._name_tensors()
        for step in self.body.steps:
            self._printers[type(step)](step)
        results = self._results()
        lines = [*self._on_device(), *self._unpacked(), *self.lines, f"return [{results}]"]
        return "\n".join(["def call(args):", *(f"    {line}" for line in lines), ""])

    def _partition(self, step: RunPartition) -> None:
        given = ", ".join(map(self._known, step.takes))
        for buffer in (b for b in step.gives if isinstance(b, Buffer)):
            self._new(buffer, "t")
        names = "".join(f"{self._known(each)}, " for each in step.gives)
        left = f"{names.rstrip()} = " if names else ""
        self.lines.append(f"{left}part_{step.number}([{given}])")
        self.lines += defined_lines(step.defines)

    def _known(self, value: Any) -> str:
        return self.local[value.name] if isinstance(value, Buffer) else local_name(value)

    def _allocate(self, step: Allocate) -> None:
        sizes, strides = tuple_text(step.buffer.shape), tuple_text(step.buffer.strides)
        dtype = self._name("dtype", torch_dtype(step.buffer.dtype))
        self.lines.append(f"{self._new(step.buffer, 'y')} = empty({sizes}, {strides}, {dtype})")


class Shared:
    """The arena of all partitions: allocated when it is first needed, and never moved."""

    def __init__(self, size: int, empty: Callable[..., torch.Tensor]) -> None:
        self.size, self.empty = size, empty
        self.arena: torch.Tensor | None = None

    def __call__(self) -> torch.Tensor:
        if self.arena is None:
            self.arena = self.empty((self.size,), (1,), torch.uint8)
        return self.arena


def partitioned(graph: Any, constants: dict[str, torch.Tensor]) -> Call:
    """A device graph's call, partition by partition."""
    wrapper = PartitionedWrapper(graph, constants)
    calls = {f"part_{k}": call for k, call in enumerate(_calls(graph, constants))}
    call: Call = graph.bind_wrapper(wrapper.text(), wrapper.names | calls)
    return call


def _calls(graph: Any, constants: dict[str, torch.Tensor]) -> Iterator[Call]:
    """The callable of each partition."""
    plan: CallPlan = graph.plan
    shared = Shared(plan.arena_bytes, graph.device.empty)
    parents: list[CudaGraphRunner] = []
    for part in plan.partitions:
        made = (plan, part.body, graph.native, constants, graph.device, graph.config)
        wrapper = DeviceWrapper(*made, arena=shared)
        call = graph.bind_wrapper(wrapper.text(), wrapper.names)
        if not part.recorded:
            yield call
            continue
        cpu_scalars = [k for k, b in enumerate(part.body.buffers) if b.device != graph.device.name]
        replay = CudaGraphRunner(
            call, graph.device.recorder(), positions_written(plan, part.body), _nothing,
            cpu_scalars, graph.device.name, part.parent_outputs, tuple(parents),
        )  # fmt: skip
        parents.append(replay)
        yield replay.call


def _nothing() -> None:
    """A partition does not look for recorded errors: the driver does."""
