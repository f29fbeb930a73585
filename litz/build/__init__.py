"""Stage 8: source text becomes machine code, in process.

In: `Source` or `DeviceSource`. Out: `Binary` or `DeviceBinary`. LLVM parses, optimises and
assembles; the object is loaded at once. For a GPU, Triton makes cubins, and LLVM what launches
them. No C compiler, linker or temporary file is involved.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from litz.build.llvm import compile_object, load_object
from litz.build.triton import compile_ahead, compile_kernels, start_workers, worker_count
from litz.config import Config
from litz.ir.source import Binary, DeviceBinary, DeviceKernel, DeviceSource, Source
from litz.target import Target, host
from litz.trace import Trace, stage


@stage("build", "machine code, by LLVM in process and by Triton")
def build(
    source: Source | DeviceSource, target: Target, config: Config, trace: Trace
) -> Binary | DeviceBinary:
    """Compile the module and find its functions."""
    if isinstance(source, DeviceSource):
        return _build_device(source, target, config, trace)
    code = compile_object(source.text, target, config.cpp.opt_level, trace)
    with trace.span("load"):
        return load_object(code, source.exports)


def _build_device(
    source: DeviceSource, target: Target, config: Config, trace: Trace
) -> DeviceBinary:
    for kernel in source.kernels:
        trace.note(4, f"Triton source of {kernel.name}", kernel.text)
    count = worker_count(config.compile_threads)
    with ThreadPoolExecutor(1) as beside:
        cubins = beside.submit(compile_kernels, source.kernels, _capability(target), count)
        launcher = build_launcher(source, config, trace)
        with trace.span("triton"):  # as long as it takes beyond the launcher
            return DeviceBinary(cubins.result(), launcher)


def get_ready(target: Target, config: Config, ops: int) -> None:
    """Start what will compile a graph of so many ops. If that cannot be, who needs it will say."""
    if target.device.startswith("cuda"):
        with suppress(OSError):
            start_workers(worker_count(config.compile_threads), ops)


def build_ahead(kernels: list[DeviceKernel], target: Target, config: Config, end: float) -> None:
    """Compile kernels that may be asked for, until so late on the monotonic clock."""
    compile_ahead(kernels, _capability(target), worker_count(config.compile_threads), end)


def _capability(target: Target) -> int:
    return int(target.name.removeprefix("sm_"))


def build_launcher(source: DeviceSource, config: Config, trace: Trace) -> Binary:
    """The native functions that launch a graph's kernels, for the host."""
    code = compile_object(source.text, host(), config.cpp.opt_level, trace)
    return load_object(code, source.exports)
