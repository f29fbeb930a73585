"""The CUDA driver, through ctypes: modules loaded, kernels launched, without a compiler.

In: cubins. Out: handles for the launcher, and what a wrapper needs of its device: memory, the
current stream, a record that kernels can write. Example: `Cuda(0).load(cubins)` gives the handle of
each kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import cache
from threading import Lock
from typing import Any
from weakref import finalize

import torch
from torch._C._dynamo.guards import _empty_strided_cuda  # type: ignore[attr-defined]

from litz.errors import DriverError
from litz.ir.source import Cubin
from litz.runtime.cudagraphs import CudaRecorder

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
CAPTURE_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
DEFAULT_SHARED_LIMIT = 48 * 1024  # a kernel that needs more must set MAX_DYNAMIC_SHARED
CAPTURE_LOCK = Lock()  # one thread at a time records on a side stream


@cache
def _driver() -> Any:
    """libcuda, which torch has loaded and initialised before a graph is compiled."""
    library = ctypes.CDLL("libcuda.so.1")
    library.cuModuleLoadData.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.cuModuleGetFunction.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p]
    library.cuFuncSetAttribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    handle, out = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
    library.cuStreamCreate.argtypes = [out, ctypes.c_uint]
    library.cuStreamBeginCapture_v2.argtypes = [handle, ctypes.c_int]
    library.cuStreamEndCapture.argtypes = [handle, out]
    library.cuGraphInstantiateWithFlags.argtypes = [out, handle, ctypes.c_ulonglong]
    library.cuGraphDestroy.argtypes = [handle]
    library.cuGraphExecDestroy.argtypes = [handle]
    library.cuDevicePrimaryCtxRetain.argtypes = [out, ctypes.c_int]
    library.cuCtxSetCurrent.argtypes = [handle]
    library.cuGraphLaunch.argtypes = [handle, handle]
    return library


def _check(what: str, code: int) -> None:
    if code:
        raise DriverError(what, code, error_text(code))


@cache
def _context(index: int) -> int:
    """The primary context of a device, which torch uses. It is never released, as torch's."""
    context = ctypes.c_void_p()
    found = _driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), index)
    _check("cuDevicePrimaryCtxRetain", found)
    return context.value or 0


@cache
def _capture_stream(index: int) -> int:
    """A stream of ours on a device, only to record on: nothing ever runs there."""
    stream = ctypes.c_void_p()
    _check("cuStreamCreate", _driver().cuStreamCreate(ctypes.byref(stream), NON_BLOCKING))
    return stream.value or 0


def error_text(code: int) -> str:
    """The driver's text for an error code."""
    text = ctypes.c_char_p()
    _driver().cuGetErrorString(code, ctypes.byref(text))
    return (text.value or b"unknown").decode()


class LaunchGraph:
    """Recorded launches as one launch. The driver's graph is destroyed with this object; launches
    that still run are not disturbed, since the driver waits for them."""

    def __init__(self, driver: Any, instance: int) -> None:
        self._launch, self._instance = driver.cuGraphLaunch, instance
        # At exit the driver may be gone before us, and has freed everything.
        finalize(self, driver.cuGraphExecDestroy, instance).atexit = False

    def __call__(self, stream: int) -> int:
        return int(self._launch(self._instance, stream))


class Cuda:
    """One GPU."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = f"cuda:{index}"
        self.empty: Callable[..., torch.Tensor] = _empty_strided_cuda
        self.current: Callable[[], int] = torch._C._cuda_getDevice  # type: ignore[attr-defined]
        self._stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream  # type: ignore
        self._modules: list[ctypes.c_void_p] = []

    @property
    def launch_address(self) -> int:
        """The address of cuLaunchKernel."""
        return ctypes.cast(_driver().cuLaunchKernel, ctypes.c_void_p).value or 0

    def stream(self) -> int:
        """torch's current stream."""
        return self._stream(self.index)

    def is_capturing(self) -> bool:
        """Whether launches now become part of a CUDA graph that torch records."""
        return bool(torch.cuda.is_current_stream_capturing())

    def wait(self) -> None:
        """Wait until all launches on torch's stream have run."""
        torch.cuda.current_stream(self.index).synchronize()

    def record(self, words: int) -> torch.Tensor:
        """Integers that kernels can write and we can read without waiting for them."""
        return torch.zeros(words, dtype=torch.int64, device="cpu").pin_memory()

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a scalar tensor of the CPU on the GPU. Pinned memory would be read some time
        after this call, when its owner may have written to it; any other is read at once. While the
        user records a CUDA graph, the number itself is recorded, as in eager: a replay would read
        memory that is gone."""
        if not tensor.is_cuda and self.is_capturing():
            number = tensor.item()
            return torch.full(tensor.shape, number, dtype=tensor.dtype, device=self.name)
        return tensor.to(self.name, non_blocking=not tensor.is_pinned())

    def enter(self) -> None:
        """Make the device's context current in this thread. A thread has none until torch first
        needs it there, and a call that allocates nothing does not make torch need it."""
        _check("cuCtxSetCurrent", _driver().cuCtxSetCurrent(_context(self.index)))

    def call_on_device(self, call: Callable[[list[Any]], Any], args: list[Any]) -> Any:
        """Call with this device as the current one."""
        with torch.cuda.device(self.index):
            return call(args)

    def error_text(self, code: int) -> str:
        """The driver's text for an error code."""
        return error_text(code)

    def recorder(self) -> CudaRecorder:
        """The recorder of CUDA graphs on this device."""
        return CudaRecorder(self.index)

    def recorded(self, run: Callable[[int], int]) -> Callable[[int], int] | None:
        """The launches of `run` on a stream, as one launch; None while torch records a graph."""
        if torch.cuda.is_current_stream_capturing():
            return None
        self.enter()
        driver, graph, instance = _driver(), ctypes.c_void_p(), ctypes.c_void_p()
        with CAPTURE_LOCK:
            stream = _capture_stream(self.index)
            _check(
                "cuStreamBeginCapture", driver.cuStreamBeginCapture_v2(stream, CAPTURE_THREAD_LOCAL)
            )
            code = run(stream)
            ended = driver.cuStreamEndCapture(stream, ctypes.byref(graph))
        _check("a launch that is recorded", code)
        _check("cuStreamEndCapture", ended)
        made = driver.cuGraphInstantiateWithFlags(ctypes.byref(instance), graph, 0)
        _check("cuGraphInstantiate", made)
        _check("cuGraphDestroy", driver.cuGraphDestroy(graph))
        return LaunchGraph(driver, instance.value or 0)

    def load(self, cubins: Iterable[Cubin]) -> dict[str, int]:
        """The handle of each kernel. They stay loaded for as long as this object lives."""
        handles: dict[str, int] = {}
        with torch.cuda.device(self.index):
            torch.cuda.current_stream()  # makes torch create the context
            for cubin in cubins:
                handles[cubin.name] = self._function(cubin)
        return handles

    def _function(self, cubin: Cubin) -> int:
        driver, module, function = _driver(), ctypes.c_void_p(), ctypes.c_void_p()
        _check("cuModuleLoadData", driver.cuModuleLoadData(ctypes.byref(module), cubin.code))
        self._modules.append(module)
        name = cubin.name.encode()
        found = driver.cuModuleGetFunction(ctypes.byref(function), module, name)
        _check(f"cuModuleGetFunction({cubin.name})", found)
        if cubin.shared > DEFAULT_SHARED_LIMIT:
            granted = driver.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED, cubin.shared)
            _check(f"cuFuncSetAttribute({cubin.name}, {cubin.shared} bytes)", granted)
        return function.value or 0
