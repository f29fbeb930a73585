"""Stage 9: source text becomes machine code, and machine code is loaded.

In: `Source` or `DeviceSource`. Out: object code or a `DeviceObject`, which any process may load;
once loaded, `Binary` or `DeviceBinary`. LLVM parses, optimises and assembles, for any CPU that it
knows. For a GPU, Triton makes the cubins and LLVM the launcher. No C compiler, linker or temporary
file is involved.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from litz.build.llvm import compile_object, load_object
from litz.build.triton import compile_kernels, precompile_kernels, start_workers, worker_count
from litz.config import Config
from litz.ir.source import Binary, DeviceBinary, DeviceObject, DeviceSource, Source
from litz.target import CpuTarget, GpuTarget, host
from litz.trace import Trace, stage


@stage("build", "machine code, by LLVM in process")
def build_object(source: Source, target: CpuTarget, config: Config, trace: Trace) -> bytes:
    """The module as object code for the target."""
    return compile_object(source.text, target, config.cpp.opt_level, trace)


@stage("load", "machine code in memory")
def load_kernels(source: Source, code: bytes) -> Binary:
    """Load object code for this machine and find its functions."""
    return load_object(code, source.exports)


@stage("build", "machine code, by Triton and by LLVM in process")
def build_cubins(
    source: DeviceSource, target: GpuTarget, config: Config, trace: Trace
) -> DeviceObject:
    """The kernels as cubins; the launcher is built meanwhile."""
    for kernel in source.kernels:
        trace.note(4, f"Triton source of {kernel.name}", kernel.text)
    count = worker_count(config.compile_threads)
    with ThreadPoolExecutor(1) as beside:
        cubins = beside.submit(compile_kernels, source.kernels, _number(target), count)
        launcher = build_launcher(source, config, trace)
        with trace.span("triton"):  # the time beyond that of the launcher
            return DeviceObject(cubins.result(), launcher)


@stage("load", "machine code in memory")
def load_launcher(source: DeviceSource, code: DeviceObject) -> DeviceBinary:
    """Load the launcher into the host's memory; a graph loads its cubins into the GPU's."""
    launcher = load_object(code.launcher, source.exports)
    return DeviceBinary(code.cubins, launcher)


def start_triton(target: GpuTarget, config: Config, ops: int) -> None:
    """Start the workers for a graph of so many ops. If that fails, compiling reports it later."""
    with suppress(OSError):
        start_workers(worker_count(config.compile_threads), ops)


def precompile(sources: list[DeviceSource], target: GpuTarget, config: Config, end: float) -> None:
    """Compile kernels that may be needed, until `end` on the monotonic clock."""
    kernels = [kernel for source in sources for kernel in source.kernels]
    precompile_kernels(kernels, _number(target), worker_count(config.compile_threads), end)


def _number(target: GpuTarget) -> int:
    """The compute capability as Triton's number: 90 for (9, 0)."""
    major, minor = target.capability
    return 10 * major + minor


def build_launcher(source: DeviceSource, config: Config, trace: Trace) -> bytes:
    """The native functions that launch a graph's kernels, for the host."""
    return compile_object(source.text, host(), config.cpp.opt_level, trace)
