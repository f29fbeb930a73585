"""The GPU target on this CPU: Triton's interpreter stands behind the launcher.

In: a function and its inputs. Out: its outputs, computed by the very kernels, native launcher and
entry that a GPU would run; only `cuLaunchKernel` is ours. Every address is held against the
arguments of its launch. Triton decides when it is imported whether it interprets: so this module
belongs in a process that has TRITON_INTERPRET=1. Example:
`graph, device = graph_of(tiled(lambda x: x + 1, torch.ones(8)))`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch._C._dynamo.guards import _empty_strided_cpu
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from litz import compiler
from litz.build import build_launcher, load_launcher
from litz.build.triton_worker import function_of
from litz.call import plan_call
from litz.config import snapshot
from litz.errors import DriverError
from litz.ir import fp8
from litz.ir.aten import torch_dtype
from litz.ir.call_plan import CallPlan
from litz.ir.checks import RECORD_WORDS
from litz.ir.choices import NO_CHOICES, Choices
from litz.ir.dtypes import E4M3, E5M2
from litz.ir.ops import OPS
from litz.ir.program import Buffer, Kernel, KernelGraph, Plan
from litz.ir.sizes import span
from litz.ir.source import Cubin, DeviceKernel, DeviceObject, DeviceSource
from litz.runtime import recorded
from litz.runtime.device_graph import NO_CONTEXT, DeviceGraph
from litz.runtime.size_exprs import local_name, number_text
from litz.target import Target, cuda
from litz.targets import toolchain_of
from litz.trace import Trace
from tests.runtime.tape import Tape
from tests.stages import Stages, copied, staged, through_aot
from tests.toolchain import drive, emit, schedule

# A GPU whose tensors lie where the interpreter can reach them; `triton.gemm_max_rows` is 16.
TARGET: Target = replace(cuda((9, 0), 132), device="cpu", gemm_max_rows=16)

TORCH: dict[str, torch.dtype] = {
    "*fp64": torch.float64, "*fp32": torch.float32, "*fp16": torch.float16,
    "*bf16": torch.bfloat16, "*i64": torch.int64, "*i32": torch.int32, "*i16": torch.int16,
    "*i8": torch.int8, "*u8": torch.uint8, "*i1": torch.bool,
    "*fp8e4nv": torch.float8_e4m3fn, "*fp8e5": torch.float8_e5m2,
}  # fmt: skip
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p,
)  # fmt: skip

# Where empty tensors begin: nothing may be read there, and `Bounds` sees to that. The interpreter
# takes tensors at one address for one tensor.
NOWHERE = torch.zeros(64, 64, dtype=torch.uint8)
SIZES = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp64": ctypes.c_double}


# The interpreter's grid, and `Bounds`, are the process's: threads launch one after the other.
ONE_LAUNCH = threading.Lock()

OTHER_NAMES = {"rint": "round", "normcdfinv": "ndtri"}


class Libdevice:
    """CUDA's math library, as the op table means it."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        meaning = OPS[OTHER_NAMES.get(name, name)].numpy

        def call(*args: Any) -> Any:
            given = [a for a in args if isinstance(a, tl.tensor)]
            tensor = next((a for a in given if a.type.is_block()), given[0])  # the rest spread
            scalar = tensor.dtype.scalar
            data = [a.handle.data if isinstance(a, tl.tensor) else a for a in args]
            kind = tensor.handle.data.dtype
            with np.errstate(all="ignore"):
                found = np.asarray(meaning(*(np.asarray(d, kind) for d in data))).astype(kind)
            shape = found.shape
            block = tl.block_type(scalar, list(shape)) if tensor.type.is_block() else scalar
            return tl.tensor(TensorHandle(found, scalar), block)

        return call


class Bounds:
    """Which addresses the launch at hand may touch."""

    allowed: tuple[tuple[int, int], ...] = ()
    STEP = 16  # a load may take the whole of an aligned step that an argument ends in

    @classmethod
    def check(cls, addresses: Any, mask: Any, reads: bool = False) -> None:
        wanted = np.broadcast_to(addresses, np.broadcast(addresses, mask).shape)[mask.astype(bool)]
        inside = np.zeros(wanted.shape, bool)
        for first, end in cls.allowed:
            last = -(-end // cls.STEP) * cls.STEP if reads else end
            inside |= (wanted >= first) & (wanted < last)
        if not inside.all():
            raise IndexError(f"{np.count_nonzero(~inside)} addresses outside of every argument")


def _watched(method: str, where: Callable[..., tuple[Any, Any]]) -> None:
    """Make a memory access of the interpreter look at its addresses first."""
    original = getattr(InterpreterBuilder, method)

    def checked(self: Any, *args: Any, **named: Any) -> Any:
        pointers, mask = where(*args)
        # A block pointer's mask is an array as it is.
        found = mask.data if isinstance(mask, TensorHandle) else mask
        Bounds.check(pointers.data, np.asarray(found), method == "create_masked_load")
        return original(self, *args, **named)

    setattr(InterpreterBuilder, method, checked)


_watched("create_masked_load", lambda pointers, mask, *_: (pointers, mask))
_watched("create_masked_store", lambda pointers, value, mask, *_: (pointers, mask))
_watched("create_atomic_rmw", lambda op, pointers, value, mask, *_: (pointers, mask))


_patch_tensor = interpreter._patch_lang_tensor


def _with_index(tensor: Any, scope: Any) -> None:
    """A number that a loop begins at; NumPy no longer takes an array of one for it."""
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _with_index
_cast = InterpreterBuilder.cast_impl


def _rounded_cast(self: Any, source: Any, to: Any) -> Any:
    """To the nearest bf16, ties to even, as a GPU rounds; the interpreter cuts, and it makes zeros
    of the bf16 that are too small to be normal."""
    if source.dtype.scalar == tl.bfloat16 and to.scalar == tl.float32:
        return TensorHandle(_widened(source), tl.float32)
    if source.dtype.scalar != tl.float32 or to.scalar != tl.bfloat16:
        return _cast(self, source, to)
    bits = np.ascontiguousarray(source.data).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    quiet = (bits >> 16) | 0x40
    kept = np.where(np.isnan(source.data), quiet, rounded)
    return TensorHandle(kept.astype(np.uint16), tl.bfloat16)


InterpreterBuilder.cast_impl = _rounded_cast


def _splat(self: Any, kind: Any, value: Any) -> Any:
    """A number everywhere; the interpreter makes a float of what two floats compared to."""
    return TensorHandle(np.full(kind.shape, value.data, value.data.dtype), value.dtype.scalar)


InterpreterBuilder.create_splat = _splat
FP8_DTYPES = {tl.float8e4nv: E4M3, tl.float8e5: E5M2}


def _cast_eighths(self: Any, source: Any, to: Any, _: Any) -> Any:
    """To the nearest, and what is too large to the largest number, as a GPU has it; the interpreter
    knows neither ties nor NaN."""
    if source.dtype.scalar in FP8_DTYPES:
        wide = fp8.from_bits(source.data, FP8_DTYPES[source.dtype.scalar])
        return _cast(self, TensorHandle(wide, tl.float32), to)
    assert source.dtype.scalar == tl.float32
    kind = FP8_DTYPES[to.scalar]
    most = fp8.FORMATS[kind].most
    near = fp8.rounded(np.clip(source.data, -most, most), kind)
    return TensorHandle(fp8.to_bits(near, kind), to.scalar)


InterpreterBuilder.create_fp_to_fp = _cast_eighths
_dot = InterpreterBuilder.create_dot


def _dot_of_halves(self: Any, a: Any, b: Any, *rest: Any) -> Any:
    """Sums of products as the numbers they are; the interpreter multiplies the bits of bf16."""
    if a.dtype.scalar not in (tl.bfloat16, *FP8_DTYPES):
        return _dot(self, a, b, *rest)
    wide = [TensorHandle(_widened(x), tl.float32) for x in (a, b)]
    return _dot(self, *wide, *rest)


def _widened(operand: Any) -> Any:
    if operand.dtype.scalar in FP8_DTYPES:
        return fp8.from_bits(operand.data, FP8_DTYPES[operand.dtype.scalar])
    return (operand.data.astype(np.uint32) << 16).view(np.float32)


InterpreterBuilder.create_dot = _dot_of_halves
_add_to_memory = InterpreterBuilder.create_atomic_rmw


def _add_halves(
    self: Any, op: Any, pointers: Any, value: Any, mask: Any, sem: Any, scope: Any
) -> Any:
    """The interpreter adds no bf16 to memory; a GPU does, one element after the other."""
    if value.dtype.scalar != tl.bfloat16:
        return _add_to_memory(self, op, pointers, value, mask, sem, scope)
    Bounds.check(pointers.data, mask.data)
    for address, bits, wanted in zip(
        pointers.data.ravel(), value.data.ravel(), mask.data.ravel(), strict=True
    ):
        if wanted:
            place = _at(int(address), torch.bfloat16)
            place += torch.tensor([int(bits)], dtype=torch.uint16).view(torch.bfloat16)
    return value


InterpreterBuilder.create_atomic_rmw = _add_halves


def _sum(self: Any, given: Any) -> Any:
    """A sum wraps in its own type; NumPy adds integers of 32 bits up in 64."""
    data = given.handle.data
    summed = data.sum(axis=self.axis, keepdims=self.keep_dims, dtype=data.dtype)
    return self.to_tensor(summed, given.dtype)


def _running_sum(self: Any, given: Any) -> list[Any]:
    data = given.handle.data
    return [self.to_tensor(data.cumsum(axis=self.axis, dtype=data.dtype), given.dtype)]


interpreter.ReduceOps.sum, interpreter.ScanOps.cumsum = _sum, _running_sum


@dataclass
class Interpreted:
    """A device whose kernels the interpreter runs; `spans` are the bytes behind each argument."""

    source: DeviceSource
    spans: dict[str, Callable[..., list[int]]]

    def __post_init__(self) -> None:
        self.index, self.name = 0, "cpu"
        self.launches, self.supports_cudagraphs, self.tape = 0, 0, Tape()
        self.error: Exception | None = None
        self.entered = True  # whether the thread has a context
        self._functions = {k.name: self._function(k) for k in self.source.kernels}
        self._callback = LAUNCH(self._launch)  # kept: native code calls it

    @staticmethod
    def _function(kernel: DeviceKernel) -> Any:
        function = function_of(kernel.text, kernel.name)
        function.fn.__globals__["libdevice"] = Libdevice()
        return function

    def empty(self, shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
        made: torch.Tensor = _empty_strided_cpu(shape, strides, dtype)
        if dtype is torch.uint8:
            self.tape.arenas.append(made)
        return made

    @property
    def launch_address(self) -> int:
        return ctypes.cast(self._callback, ctypes.c_void_p).value or 0

    def current(self) -> int:
        return self.index

    def stream(self) -> int:
        return 0

    def is_capturing(self) -> bool:
        return False

    def wait(self) -> None:
        """Kernels have run when they were launched."""

    def enter(self) -> None:
        self.entered = True

    def record(self, words: int) -> torch.Tensor:
        return torch.zeros(words, dtype=torch.int64)

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def call_on_device(self, call: Callable[..., Any], args: list[Any]) -> Any:
        raise AssertionError("there is one device")

    def error_text(self, code: int) -> str:
        return str(self.error)

    def recorder(self) -> Tape:
        return self.tape

    def recorded(self, run: Callable[[int], int]) -> Callable[[int], int]:
        """What was recorded runs when it is replayed, over the table as it was."""
        self.supports_cudagraphs += 1
        return run

    def load(self, cubins: Iterable[Cubin]) -> dict[str, int]:
        """Handles are places in the list of kernels, from one on."""
        names = [k.name for k in self.source.kernels]
        return {c.name: names.index(c.name) + 1 for c in cubins}

    def _launch(self, function: int, *args: Any) -> int:
        grid, parameters = args[:3], args[8]
        if not self.entered:
            return NO_CONTEXT
        self.launches += 1
        try:
            with ONE_LAUNCH:
                self._run(self.source.kernels[function - 1], grid, parameters)
        except Exception as error:
            self.error = error
            return 1
        return 0

    def _run(self, kernel: DeviceKernel, grid: tuple[int, ...], parameters: Any) -> None:
        count, given = len(kernel.pointers), len(kernel.pointers) + len(kernel.sizes)
        slots = [ctypes.c_void_p.from_address(parameters[k]) for k in range(count)]
        addresses = [slot.value or NOWHERE[k].data_ptr() for k, slot in enumerate(slots)]
        kinds = zip(kernel.sizes, parameters[count:given], strict=True)
        sizes = [SIZES[kind].from_address(address).value for kind, address in kinds]
        for k in range(2):  # Triton's own parameters: memory for programs that need some
            hidden = ctypes.c_void_p.from_address(parameters[given + k])
            assert (hidden.value is not None) == (k == 0 and kernel.scratch > 0)
        spans = [*self.spans[kernel.name](*sizes), 8 * RECORD_WORDS]
        Bounds.allowed = tuple((a, a + n) for a, n in zip(addresses, spans, strict=False))
        data = addresses[: len(addresses) - kernel.checks]
        assert all(a % 16 == 0 for a in data), "Triton was told of aligned pointers"
        tensors = [_at(a, TORCH[p]) for a, p in zip(addresses, kernel.pointers, strict=True)]
        with np.errstate(all="ignore"):
            given = map(_scalar, sizes, kernel.sizes)
            self._functions[kernel.name][grid](*tensors, *given)


def _scalar(value: float, kind: str) -> Any:
    """A number of the type that the signature says: the interpreter would look at its value."""
    dtype = {"i32": tl.int32, "i64": tl.int64, "fp64": tl.float64}[kind]
    data = np.array([value], {"i32": np.int32, "i64": np.int64, "fp64": np.float64}[kind])
    return tl.tensor(TensorHandle(data, dtype), dtype)


def _at(address: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor that begins at an address: the interpreter asks for nothing else."""
    memory = (ctypes.c_char * dtype.itemsize).from_address(address)
    return torch.frombuffer(memory, dtype=dtype)


def graph_of(
    made: Stages, target: Target = TARGET, **options: Any
) -> tuple[DeviceGraph, Interpreted]:
    """What the stages made of a function, linked."""
    source = emit(made.plan, made.scheduled, target)
    assert isinstance(source, DeviceSource)
    config, constants = snapshot(options), made.graph.constants
    call = plan_call(made.plan, source, constants, config, target)
    return link_interpreted(call, source, made.scheduled, constants, config)


def _bytes(kernel: Any) -> Callable[..., list[int]]:
    """The bytes behind each argument, at the sizes that a launch is given."""
    names = ", ".join(local_name(symbol) for symbol in kernel.sizes)
    spans = [f"({number_text(span(b))}) * {b.dtype.bytes}" for b in kernel.arguments]
    return eval(f"lambda {names}: [{', '.join(spans)}]", {})  # type: ignore[no-any-return]


def link_interpreted(
    call: CallPlan, source: DeviceSource, scheduled: list[Any], constants: Any, config: Any
) -> tuple[DeviceGraph, Interpreted]:
    """The callable that `link` would make, on the interpreter, and the device it runs on."""
    spans: dict[str, Callable[..., list[int]]] = {}
    for name, kernel in zip(source.names, scheduled, strict=True):
        spans[name] = _bytes(kernel)
    cubins = {k.name: Cubin(k.name, b"", 0, k.warps) for k in source.kernels}
    driven = drive(source, call, TARGET)
    code = DeviceObject(cubins, build_launcher(driven, config, Trace()))
    binary = load_launcher(driven, code)
    device = Interpreted(source, spans)
    graph = DeviceGraph(call, binary, constants, device, config)
    recorded(graph, constants)
    return graph, device


def run_kernel(
    kernel: Kernel, given: dict[Buffer, torch.Tensor | None], config: Any = None
) -> tuple[dict[str, torch.Tensor], Any]:
    """One kernel built by hand, as `tests.codegen.native.run` runs it on the CPU."""
    plan = Plan(KernelGraph(tuple(given), (), (kernel,), ()))
    scheduled = [schedule(kernel, TARGET, snapshot({}))]
    source = emit(plan, scheduled, TARGET)
    assert isinstance(source, DeviceSource)
    call = plan_call(plan, source, {}, snapshot({}), TARGET)
    graph, device = link_interpreted(call, source, scheduled, {}, snapshot({}))
    tensors = []
    for buffer, value in given.items():
        shape = [n.number for n in buffer.shape]
        made = torch.zeros(shape, dtype=torch_dtype(buffer.dtype))
        tensors.append(made if value is None else made.copy_(value))
    ran(graph, device, tensors, copies=False)
    return {b.name: t for b, t in zip(given, tensors, strict=True)}, scheduled[0]


def tiled(
    function: Callable[..., Any], *inputs: Any, target: Target = TARGET,
    choices: Choices = NO_CHOICES, **options: Any,
) -> Stages:  # fmt: skip
    """Every stage up to `schedule`, for the GPU."""
    found: list[Stages] = []
    config = snapshot({name.replace("__", "."): value for name, value in options.items()})

    def compiler(module: torch.fx.GraphModule) -> Callable[..., Any]:
        found.append(staged(module, target, config, inputs, choices))
        return module.forward  # type: ignore[no-any-return]

    with torch.no_grad():
        through_aot(function, compiler)(*(copied(i) for i in inputs))
    return found[0]


def ran(
    graph: DeviceGraph, device: Interpreted, inputs: list[torch.Tensor], copies: bool = True
) -> list[Any]:
    """The outputs over copies of the inputs, and then these, updated or not."""
    given = [copied(i) for i in inputs] if copies else inputs
    try:
        results = graph(list(given))
    except DriverError as error:
        raise (device.error or error) from error
    return [*results, *given]


class _Compiled:
    """The callable of one graph; what went wrong inside a kernel is raised as it was."""

    def __init__(self, graph: Any, device: Any) -> None:
        self.graph, self.device, self._boxed_call = graph, device, True
        self.guards_folding, self.frozen = False, None
        self.recording = graph.recording

    def __call__(self, args: list[Any]) -> Any:
        try:
            results = self.graph(args)
        except DriverError:
            raise self.device.error from None
        self.graph.check()  # a GPU would say so at the next call
        return results

    call = __call__
    call._boxed_call = True  # type: ignore[attr-defined]  # it takes its inputs as one list


@contextmanager
def interpreting() -> Iterator[list[Any]]:
    """Compile for the GPU, and run on the interpreter; gives the graphs as they are linked."""
    scheduled: list[Any] = []
    made: list[Any] = []
    names = ("target_for", "toolchain_of")
    before = {name: getattr(compiler, name) for name in names}
    real = toolchain_of(TARGET)

    def target_for(devices: Any, config: Any) -> Any:
        scheduled.clear()
        return TARGET

    def keep(kernel: Any, *args: Any) -> Any:
        scheduled.append(real.schedule(kernel, *args))
        return scheduled[-1]

    def skip(*args: Any) -> Any:
        """The interpreter reads the source itself."""
        return args[0]

    def link(call: Any, source: Any, constants: Any, config: Any, *more: Any) -> Any:
        made.append(_Compiled(*link_interpreted(call, source, list(scheduled), constants, config)))
        return made[-1]

    tools = replace(real, schedule=keep, build=skip, load=skip, link=link)
    for name, function in zip(names, (target_for, lambda _: tools), strict=True):
        setattr(compiler, name, function)
    try:
        yield made
    finally:
        for name, function in before.items():
            setattr(compiler, name, function)
