"""The targets: each with the functions that schedule, emit, build, load and run its kernels.

In: a `Target`. Out: its `Toolchain`. This is the one place that knows all targets: the compiler
asks here once a graph. Example: `toolchain_of(host()).emit` writes LLVM IR.
"""

from __future__ import annotations

from litz.autotune.cpu_tuning import CpuTuning
from litz.autotune.gpu_tuning import GpuTuning
from litz.build import (
    build_cubins,
    build_object,
    load_kernels,
    load_launcher,
    precompile,
    start_triton,
)
from litz.codegen import drive_llvm, drive_triton, emit_llvm, emit_triton
from litz.runtime import link_device, link_host
from litz.schedule import schedule_tiles, schedule_vectors
from litz.target import CpuTarget, GpuTarget, Target
from litz.toolchain import Toolchain

TOOLCHAINS: dict[type[Target], Toolchain] = {
    CpuTarget: Toolchain(
        schedule_vectors, emit_llvm, drive_llvm, build_object, load_kernels, link_host,
        tuning=CpuTuning(),
    ),
    GpuTarget: Toolchain(
        schedule_tiles, emit_triton, drive_triton, build_cubins, load_launcher, link_device,
        start_triton, precompile, GpuTuning(),
    ),
}  # fmt: skip


def toolchain_of(target: Target) -> Toolchain:
    """The functions that compile for a target and run its kernels."""
    return TOOLCHAINS[type(target)]
