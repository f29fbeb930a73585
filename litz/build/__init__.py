"""Stage 8: source text becomes machine code, and machine code is loaded.

In: `Source` or `DeviceSource`. Out: an object or a `DeviceObject`, which any process may load; once
loaded, `Binary` or `DeviceBinary`. LLVM parses, optimises and assembles, for any CPU that it knows.
For a GPU, Triton makes cubins, and LLVM what launches them. No C compiler, linker or temporary file
is involved.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from litz.build.llvm import compile_object, load_object
from litz.build.triton import compile_ahead, compile_kernels, start_workers, worker_count
from litz.config import Config
from litz.ir.source import Binary, DeviceBinary, DeviceObject, DeviceSource, Source
from litz.target import CpuTarget, GpuTarget, host
from litz.trace import Trace, stage


@stage("build", "machine code, by LLVM in process")
def build_object(source: Source, target: CpuTarget, config: Config, trace: Trace) -> bytes:
    """The module as an object file of the target's."""
    return compile_object(source.text, target, config.cpp.opt_level, trace)


@stage("load", "machine code in memory")
def load_kernels(source: Source, code: bytes) -> Binary:
    """Put an object of this machine's into memory and find its functions."""
    return load_object(code, source.exports)


@stage("build", "machine code, by Triton and by LLVM in process")
def build_cubins(
    source: DeviceSource, target: GpuTarget, config: Config, trace: Trace
) -> DeviceObject:
    """The kernels as cubins, side by side with what launches them."""
    for kernel in source.kernels:
        trace.note(4, f"Triton source of {kernel.name}", kernel.text)
    count = worker_count(config.compile_threads)
    with ThreadPoolExecutor(1) as beside:
        cubins = beside.submit(compile_kernels, source.kernels, _number(target), count)
        launcher = build_launcher(source, config, trace)
        with trace.span("triton"):  # as long as it takes beyond the launcher
            return DeviceObject(cubins.result(), launcher)


@stage("load", "machine code in memory")
def load_launcher(source: DeviceSource, code: DeviceObject) -> DeviceBinary:
    """Put the native functions into the host's memory; a graph puts its cubins into the GPU's."""
    launcher = load_object(code.launcher, source.exports)
    return DeviceBinary(code.cubins, launcher)


def start_triton(target: GpuTarget, config: Config, ops: int) -> None:
    """Start what will compile a graph of so many ops. If that cannot be, who needs it will say."""
    with suppress(OSError):
        start_workers(worker_count(config.compile_threads), ops)


def build_ahead(sources: list[DeviceSource], target: GpuTarget, config: Config, end: float) -> None:
    """Compile kernels that may be asked for, until so late on the monotonic clock."""
    kernels = [kernel for source in sources for kernel in source.kernels]
    compile_ahead(kernels, _number(target), worker_count(config.compile_threads), end)


def _number(target: GpuTarget) -> int:
    """The capability as Triton has it."""
    major, minor = target.capability
    return 10 * major + minor


def build_launcher(source: DeviceSource, config: Config, trace: Trace) -> bytes:
    """The native functions that launch a graph's kernels, for the host."""
    return compile_object(source.text, host(), config.cpp.opt_level, trace)
