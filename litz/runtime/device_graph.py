"""A compiled graph on a GPU: what AOTAutograd calls.

In: the list of inputs. Out: the list of outputs, on their way: nothing here waits for the GPU. An
index out of range is therefore raised by the call after the one that had it, as soon as it is
known. Example: `print(compiled.text)` shows what a call does.
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
    FEWEST_RECORDED,
    LAUNCH,
    CallPlan,
    Segment,
)
from litz.ir.checks import RECORD_WORDS, device_error
from litz.ir.source import DeviceBinary
from litz.runtime.device_wrapper import DeviceWrapper
from litz.runtime.launches import Launches
from litz.runtime.layouts import mismatch
from litz.runtime.memory import Record
from litz.runtime.wrapper import bound

NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
LAUNCHER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Table:
    """The table of one call at a time: what kernels take, their handles, the way to launch them."""

    def __init__(self, entries: list[tuple[int, int]], size: int) -> None:
        self.sizes: tuple[int, ...] = ()  # that it was fitted to, and the bytes of the arena then
        self.bytes = 0
        self.table = (ctypes.c_void_p * size)()
        self.address = ctypes.addressof(self.table)
        for place, value in entries:
            self.table[place] = value


class DeviceGraph:
    """Holds what a call needs and nothing of a call."""

    # Nothing is held of parameters: there is none that it may not compute with.
    asks, frozen, unfolded = False, None, None

    def __init__(
        self, plan: CallPlan, binary: DeviceBinary, constants: dict[str, torch.Tensor],
        device: Any, config: Config,
    ) -> None:  # fmt: skip
        assert plan.recording is not None
        self.plan, self.binary, self.config = plan, binary, config
        self.device, self.recording = device, plan.recording
        handles = device.load(binary.cubins.values())
        self.record = device.record(RECORD_WORDS)
        self._flag = Record.from_address(self.record.data_ptr())
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
        self.call = self.written(self.text, wrapper.names)
        self._boxed_call = True

    def _segment(self, segment: Segment) -> Callable[..., int]:
        """A run of kernels: launched one by one, or as one where that is quicker."""
        native, plan = self.native[segment.name], self.plan
        few = len(segment.kernels) < FEWEST_RECORDED
        if few or not self.recording.runs or self.recording.recorded:
            return native
        names = {n for k in segment.kernels for one in plan.kernels[k].launches
                 for n in one.arguments}  # fmt: skip
        names |= {b.name for b in plan.workspaces}
        names |= {*plan.computed, *plan.slots}  # what follows from sizes
        used = [place for name, place in plan.table.items() if name in names]
        return Launches(native, (ARENA, *used), self._copied, self.device)

    def _copied(self, table: Any) -> Table:
        return Table(list(enumerate(table)), self._size)

    def __call__(self, args: list[Any]) -> list[Any]:
        return self.call(args)

    def written(self, text: str, names: dict[str, Any]) -> Callable[[list[Any]], list[Any]]:
        """The function of a wrapper's text. Its tables are its own: what sizes one is fitted to
        means nothing to another part of the graph."""
        free: list[Table] = []
        scope = {
            **names, "take": free.pop, "give_back": free.append,
            "new_space": self._new_table, "check": self.check, "forget": self._forget,
            "flag": self._flag, "failed": self._failed, "current": self.device.current,
            "elsewhere": self.device.elsewhere,
            "mismatch": mismatch,
        }  # fmt: skip
        return bound(text, scope)

    def _new_table(self) -> Table:
        return Table(self._fixed, self._size)

    def check(self) -> None:
        """Raise what a kernel of an earlier call noted."""
        noted = (self._flag.value, self._flag.index, self._flag.size)
        self._flag.value = 0
        if noted[0]:
            raise device_error(self.plan.sites, *noted)

    def _forget(self, error: BaseException) -> None:
        """A call ends with an error. What its kernels noted is known when they have run: it came
        first, and no call behind this one is to blame."""
        if self.device.is_recording():
            return  # nothing has run
        try:
            self.device.wait()
        except RuntimeError:
            return  # the GPU is no longer there to be asked
        if not isinstance(error, Exception):
            self._flag.value = 0
            return
        try:
            self.check()
        except Exception as first:
            raise first from error

    def _failed(self, segment: str, code: int, run: Callable[..., int], *given: Any) -> None:
        """Launch again in a thread that had no context: nothing was launched. Else raise."""
        if code == NO_CONTEXT:
            self.device.enter()
            code = run(*given)
        if code:
            raise self._error(segment, code)

    def _error(self, segment: str, code: int) -> DriverError:
        return DriverError(f"cuLaunchKernel in {segment}", code, self.device.error_text(code))
