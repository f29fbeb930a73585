"""A compiled graph on a GPU: the callable that AOTAutograd calls.

In: the list of inputs. Out: the list of outputs, which the GPU may still be computing: nothing here
waits for it. An index out of range is therefore raised by a later call, the first that finds the
record of the failed check. Example: `print(compiled.text)` shows the wrapper.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from litz.config import Config
from litz.errors import DriverError
from litz.ir.call_plan import (
    ARENA,
    ERROR_RECORD,
    LAUNCH,
    MIN_RECORDED_KERNELS,
    CallPlan,
    Segment,
)
from litz.ir.checks import RECORD_WORDS, device_error
from litz.ir.source import DeviceBinary
from litz.runtime.device_wrapper import DeviceWrapper
from litz.runtime.launch_graphs import LaunchGraphCache
from litz.runtime.layouts import mismatch
from litz.runtime.memory import ErrorRecord
from litz.runtime.wrapper import exec_wrapper

NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
LAUNCHER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class ArgumentTable:
    """The table of one call at a time: arguments of kernels, their handles, the launch function."""

    def __init__(self, entries: list[tuple[int, int]], size: int) -> None:
        self.sizes: tuple[int, ...] = ()  # that it is filled for; `bytes` of the arena follow
        self.bytes = 0
        self.table = (ctypes.c_void_p * size)()
        self.address = ctypes.addressof(self.table)
        for place, value in entries:
            self.table[place] = value


class DeviceGraph:
    """Everything that calls share; the state of one call is in its table."""

    # Nothing is prepacked or folded on a GPU, so that no parameters need another graph.
    guards_folding, frozen, unfolded = False, None, None

    def __init__(
        self, plan: CallPlan, binary: DeviceBinary, constants: dict[str, torch.Tensor],
        device: Any, config: Config,
    ) -> None:  # fmt: skip
        assert plan.recording is not None
        self.plan, self.binary, self.config = plan, binary, config
        self.device, self.recording = device, plan.recording
        handles = device.load(binary.cubins.values())
        self.record = device.record(RECORD_WORDS)
        self._flag = ErrorRecord.from_address(self.record.data_ptr())
        fixed = [(ERROR_RECORD, self.record.data_ptr()), (LAUNCH, device.launch_address)]
        for name, place in plan.handles.items():
            fixed += [(place, handles[name]), (place + 1, binary.cubins[name].shared)]
        self._fixed = fixed
        self._size = LAUNCH + 1 + len(plan.table) + 2 * len(plan.handles)
        address = binary.launcher.address
        self.native = {s.name: LAUNCHER(address[s.name]) for s in plan.segments}
        segments = {s.name: self._segment(s) for s in plan.segments}
        wrapper = DeviceWrapper(plan, plan.body, segments, constants, device, config)
        self.text = wrapper.text()
        self.call = self.bind_wrapper(self.text, wrapper.names)
        self._boxed_call = True

    def _segment(self, segment: Segment) -> Callable[..., int]:
        """The function of a segment: it launches kernels one by one, or all at once from a launch
        graph where that is quicker."""
        native, plan = self.native[segment.name], self.plan
        few = len(segment.kernels) < MIN_RECORDED_KERNELS
        if few or not self.recording.runs or self.recording.recorded:
            return native
        names = {n for k in segment.kernels for one in plan.kernels[k].launches
                 for n in one.arguments}  # fmt: skip
        names |= {b.name for b in plan.workspaces}
        names |= {*plan.computed, *plan.slots}  # entries that follow from sizes
        used = [place for name, place in plan.table.items() if name in names]
        return LaunchGraphCache(native, (ARENA, *used), self._copied, self.device)

    def _copied(self, table: Any) -> ArgumentTable:
        return ArgumentTable(list(enumerate(table)), self._size)

    def __call__(self, args: list[Any]) -> list[Any]:
        return self.call(args)

    def bind_wrapper(self, text: str, names: dict[str, Any]) -> Callable[[list[Any]], list[Any]]:
        """The function of a wrapper's text, with tables of its own: the sizes that a table is
        filled for have no meaning in another partition of the graph."""
        free: list[ArgumentTable] = []
        scope = {
            **names, "take": free.pop, "give_back": free.append,
            "new_space": self._new_table, "check": self.check, "forget": self._forget,
            "flag": self._flag, "failed": self._failed, "current": self.device.current,
            "call_on_device": self.device.call_on_device,
            "mismatch": mismatch,
        }  # fmt: skip
        return exec_wrapper(text, scope)

    def _new_table(self) -> ArgumentTable:
        return ArgumentTable(self._fixed, self._size)

    def check(self) -> None:
        """Raise the error of a failed check that a kernel of an earlier call recorded."""
        noted = (self._flag.value, self._flag.index, self._flag.size)
        self._flag.value = 0
        if noted[0]:
            raise device_error(self.plan.sites, *noted)

    def _forget(self, error: BaseException) -> None:
        """A call ends with an error. If one of its kernels recorded a failed check, that came first
        and is raised instead; no later call may find the record. Waits for the kernels."""
        if self.device.is_capturing():
            return  # no kernel has run
        try:
            self.device.wait()
        except RuntimeError:
            return  # the GPU itself has failed
        if not isinstance(error, Exception):
            self._flag.value = 0
            return
        try:
            self.check()
        except Exception as first:
            raise first from error

    def _failed(self, segment: str, code: int, run: Callable[..., int], *given: Any) -> None:
        """Handle an error of a launch. If the thread had no context, nothing was launched: enter it
        and launch again. Any other error is raised."""
        if code == NO_CONTEXT:
            self.device.enter()
            code = run(*given)
        if code:
            raise self._error(segment, code)

    def _error(self, segment: str, code: int) -> DriverError:
        return DriverError(f"cuLaunchKernel in {segment}", code, self.device.error_text(code))
