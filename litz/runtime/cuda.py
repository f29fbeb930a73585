"""The CUDA driver, through ctypes: modules loaded, kernels launched, without a compiler.

In: cubins. Out: handles for the launcher, and what a graph's entry asks of its device: memory, the
current stream, a flag that kernels can set. Example: `Cuda(0).load(cubins)` gives the handle and
the shared memory of each kernel.
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

MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
THIS_THREAD = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
FREE_SHARED = 48 * 1024  # a kernel that wants more has to ask
SIDE = Lock()  # one thread at a time records on a side stream


@cache
def _driver() -> Any:
    """libcuda, which torch has loaded and initialised long before a graph is compiled."""
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
    """The context that torch works in on a device. It is never let go: torch's never is."""
    context = ctypes.c_void_p()
    found = _driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), index)
    _check("cuDevicePrimaryCtxRetain", found)
    return context.value or 0


@cache
def _side_stream(index: int) -> int:
    """A stream of ours on a device, to record on: nothing ever runs there."""
    stream = ctypes.c_void_p()
    _check("cuStreamCreate", _driver().cuStreamCreate(ctypes.byref(stream), NON_BLOCKING))
    return stream.value or 0


def error_text(code: int) -> str:
    """What the driver says about a code."""
    text = ctypes.c_char_p()
    _driver().cuGetErrorString(code, ctypes.byref(text))
    return (text.value or b"unknown").decode()


class LaunchGraph:
    """Launches that were recorded, as one; given back to the driver with the last owner of this.
    What is on its way by then is not disturbed: the driver waits for it."""

    def __init__(self, driver: Any, instance: int) -> None:
        self._launch, self._instance = driver.cuGraphLaunch, instance
        # At exit, the driver may be gone before us, and takes everything with it.
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
        """Where cuLaunchKernel is."""
        return ctypes.cast(_driver().cuLaunchKernel, ctypes.c_void_p).value or 0

    def stream(self) -> int:
        """The stream that torch works on."""
        return self._stream(self.index)

    def is_recording(self) -> bool:
        """Whether what is launched now becomes part of a CUDA graph of torch's."""
        return bool(torch.cuda.is_current_stream_capturing())

    def wait(self) -> None:
        """Until all that was launched on torch's stream has run."""
        torch.cuda.current_stream(self.index).synchronize()

    def record(self, words: int) -> torch.Tensor:
        """Integers that kernels can write and we can read without waiting for them."""
        return torch.zeros(words, dtype=torch.int64, device="cpu").pin_memory()

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """A number of the CPU's, on the GPU. Pinned memory would be read some time after this
        call, when its owner may have written to it; any other is read at once. A recording of the
        user's has the number itself, as eager's has: its replays would read memory that is gone."""
        if not tensor.is_cuda and self.is_recording():
            number = tensor.item()
            return torch.full(tensor.shape, number, dtype=tensor.dtype, device=self.name)
        return tensor.to(self.name, non_blocking=not tensor.is_pinned())

    def enter(self) -> None:
        """Make the device's context this thread's. A thread has none before torch first needs it
        there, which a call whose memory lies ready does not show."""
        _check("cuCtxSetCurrent", _driver().cuCtxSetCurrent(_context(self.index)))

    def elsewhere(self, call: Callable[[list[Any]], Any], args: list[Any]) -> Any:
        """Call with this device as the current one."""
        with torch.cuda.device(self.index):
            return call(args)

    def error_text(self, code: int) -> str:
        """What the driver says about a code."""
        return error_text(code)

    def recorder(self) -> CudaRecorder:
        """Who records CUDA graphs on it."""
        return CudaRecorder(self.index)

    def recorded(self, run: Callable[[int], int]) -> Callable[[int], int] | None:
        """What `run` launches on a stream, as one launch; None while torch records another."""
        if torch.cuda.is_current_stream_capturing():
            return None
        self.enter()
        driver, graph, instance = _driver(), ctypes.c_void_p(), ctypes.c_void_p()
        with SIDE:
            stream = _side_stream(self.index)
            _check("cuStreamBeginCapture", driver.cuStreamBeginCapture_v2(stream, THIS_THREAD))
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
            torch.cuda.current_stream()  # torch makes the context when it is first asked
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
        if cubin.shared > FREE_SHARED:
            granted = driver.cuFuncSetAttribute(function, MOST_SHARED, cubin.shared)
            _check(f"cuFuncSetAttribute({cubin.name}, {cubin.shared} bytes)", granted)
        return function.value or 0
