"""Targets: the facts about a machine that the stages need to compile for it.

In: the machine, or the device of a graph's tensors. Out: a `Target`, a frozen value: `CpuTarget` or
`GpuTarget`, each with further facts for its own stages. A stage asks what a target can do, never
which one it is; `litz/targets.py` alone chooses functions by the target. Facts come from LLVM's
host query, the system's files and torch, never from compiling a probe. Example:
`host().vector_bytes` is 64 on a CPU with AVX-512.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import llvmlite.binding as llvm
import torch

from litz.config import Config
from litz.errors import MissingDependency
from litz.ir.program import HOST
from litz.isa import Isa, isa_of

# `GpuTarget.gemm_is_memory_bound`: the largest depth (K) at which a GPU spends longer on storing a
# gemm's result than on multiplying, and the 128 x 128 tiles a multiprocessor needs to keep the
# memory busy.
SHORT_SUM, BUSY_TILES = 256, 2
# Independent accumulators of a column reduction, in vectors: they hide the latency of an addition.
COLUMN_VECTORS = 4


@dataclass(frozen=True)
class Eager:
    """How eager's kernels behave where device types differ: our results must agree with them."""

    # A Python number combined with a float16 or bfloat16 tensor is rounded to its type: as the left
    # operand, in sums and differences, and in every step of a truncating division.
    rounds_scalars: bool
    # A 0-d tensor is read in the type of the other operand.
    casts_scalar_tensors: bool
    compares_half_in_f32: bool  # with a Python number
    pow_in_half: bool  # roots of float16 round their intermediate results
    refuses_types: bool  # raises for the types in `ir/refused.py`
    refuses_zero_divisors: bool  # raises if an integer is divided by zero
    keeps_memory_format: bool  # of operands, in roll, channel_shuffle and batch norms
    reads_masks_by_row: bool  # attention reads a mask along its rows
    # Libraries convolve halves in channels last, on tensor cores.
    channels_last_half_conv: bool


EAGER_ON_HOST = Eager(
    rounds_scalars=True, casts_scalar_tensors=False, compares_half_in_f32=True,
    pow_in_half=True, refuses_types=True, refuses_zero_divisors=True,
    keeps_memory_format=True, reads_masks_by_row=False, channels_last_half_conv=False,
)  # fmt: skip
EAGER_ON_GPU = Eager(
    rounds_scalars=False, casts_scalar_tensors=True, compares_half_in_f32=False,
    pow_in_half=False, refuses_types=False, refuses_zero_divisors=False,
    keeps_memory_format=False, reads_masks_by_row=True, channels_last_half_conv=True,
)  # fmt: skip


def eager_on(device: torch.device) -> Eager:
    """How eager behaves on a device."""
    return EAGER_ON_HOST if device.type == HOST else EAGER_ON_GPU


def names_device(value: object) -> bool:
    """Whether an op's argument may name a device that is not the host: any `torch.device`, or a
    string that begins with "cuda"."""
    return isinstance(value, torch.device) or (isinstance(value, str) and value[:4] == "cuda")


@dataclass(frozen=True)
class Target:
    """A machine to compile for, with the facts that every target has. `name` is the processor's;
    `threads` run at the same time, each over vectors of `vector_bytes`."""

    name: str
    threads: int
    vector_bytes: int
    l1_bytes: int
    l2_bytes: int
    device: str = HOST  # where its tensors are
    # The most rows of a gemm that we generate; one with more goes to the library.
    gemm_max_rows: int = 1 << 62
    # Whether tasks of one launch may share a few long rows, instead of a second launch.
    cooperative_reductions: bool = False
    fp8: bool = True  # whether it converts fp8 floats
    # The longest row that a task holds at once, if there is a limit: a longer one comes in blocks.
    longest_row: int = 0

    eager: ClassVar[Eager] = EAGER_ON_HOST
    panels: ClassVar[bool] = True  # whether a gemm reads its right operand from packed panels
    generates_attention: ClassVar[bool] = True  # whether we generate attention kernels for it
    prepacks: ClassVar[bool] = True  # whether prepacked weights are kept from call to call
    supports_cudagraphs: ClassVar[bool] = (
        False  # whether launches can be recorded and replayed as one
    )
    # Whether its allocator caches freed memory: then a call gains nothing by freeing inputs early,
    # nor by allocating outputs late.
    caching_allocator: ClassVar[bool] = False
    # Below how many rows a long reduction is split, and into how many splits at most; zero is the
    # CPU's limit. Neither follows from `threads`: a sum is the same on any machine.
    few_rows: ClassVar[int] = 0
    max_splits: ClassVar[int] = 0
    cheap_f64_sums: ClassVar[bool] = True  # whether an occasional addition in f64 costs little
    # Ops of the table for which it has no code: loops that need them stay with ATen.
    unsupported_ops: ClassVar[frozenset[str]] = frozenset()
    # Arrays that one loop reads at the speed of memory. With more, which all begin at the same
    # offset in a page, they evict each other's lines from L1: adding up 96 arrays of 4 MiB in loops
    # of 16 took a third of the time of one loop.
    max_load_streams: ClassVar[int] = 16
    # Whether columns of an array larger than the caches are best summed row by row, so that one
    # thread walks memory forwards. On a GPU, neighbouring threads do that together.
    reads_whole_rows: ClassVar[bool] = True
    # Whether recomputing a root or a division for every element is cheaper than a kernel that
    # stores its results: a GPU computes while it waits for memory, and saves a launch.
    hides_compute_behind_loads: ClassVar[bool] = False
    # Elements that a kernel finishes before the next one could start: loops of at most so many
    # share a kernel though they have nothing in common. On a CPU a launch is a mere call.
    small_loop: ClassVar[int] = 0
    mr: ClassVar[int] = 6  # rows of a gemm's register block

    def reads_row_by_row(self, row: int, array: int) -> bool:
        """Whether an array of `array` bytes in rows of `row` bytes is best read one row after the
        other, because no cache of one core holds it. A short row is read at once anyway. 38 MB in
        rows of 768 bytes took 2.5 times as long with four rows side by side as one by one."""
        long = row > COLUMN_VECTORS * self.vector_bytes
        return self.reads_whole_rows and long and array > self.l2_bytes

    def is_stream(self, size: int) -> bool:
        """Whether an array of so many bytes is too large to stay in L1."""
        return size >= self.l1_bytes

    def gemm_is_memory_bound(self, rows: int, depth: int, columns: int) -> bool:
        """Whether a gemm is better generated with its epilogue than left to the library, whose
        result a second kernel would read again."""
        return False

    @property
    def gemm_lanes(self) -> int:
        """Float lanes of the gemms that we generate over panels; 0 if we generate none."""
        return self.vector_bytes // 4 if self.panels else 0

    def panel_columns(self, element_bytes: int, columns: int, vectors: int | None = None) -> int:
        """Columns of a panel: two vectors, unless a choice gives their number."""
        lanes = self.vector_bytes // element_bytes
        return lanes * min(vectors or 2, -(-columns // lanes))

    def dot_group(self, left: str, right: str) -> int:
        """How many products of these types one instruction adds to each accumulator lane."""
        return 1


@dataclass(frozen=True)
class CpuTarget(Target):
    """A CPU, whose code LLVM makes."""

    triple: str = ""
    features: tuple[str, ...] = ()
    l3_bytes: int = 32 << 20  # of the last-level cache, which all threads share

    @property
    def isa(self) -> Isa:
        """The facts of its instruction set."""
        return isa_of(self.triple)

    @property
    def registers(self) -> int:
        """Vector registers."""
        return self.isa.registers(self.vector_bytes)

    def panel_columns(self, element_bytes: int, columns: int, vectors: int | None = None) -> int:
        """Four vectors if there are 32 registers, two if there are 16: a block has six rows."""
        return super().panel_columns(element_bytes, columns, vectors or self.registers // 8)

    def dot_group(self, left: str, right: str) -> int:
        for dot in self.isa.dot_instructions if left == right and self.vector_bytes >= 16 else ():
            if dot.feature in self.features and dot.dtype == left:
                return dot.group
        return 1


# Neither Triton nor CUDA's math library has these; ATen has kernels for them.
NOT_ON_CUDA = frozenset(
    {"airy_ai", "digamma", "gcd", "i0e", "i1e", "k0e", "k1e", "zeta"}
    | {"chebyshev_t", "chebyshev_u", "chebyshev_v", "chebyshev_w"}
    | {"hermite_h", "hermite_he", "laguerre_l", "legendre_p"}
)
# Shared memory by compute capability, from CUDA's programming guide; an unlisted one has at least
# 64 KiB.
SHARED_KIB = {(8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, (9, 0): 227, (10, 0): 227}
LEAST_SHARED_KIB = 64


@dataclass(frozen=True)
class GpuTarget(Target):
    """A GPU, whose code Triton makes. `threads` are multiprocessors."""

    capability: tuple[int, int] = (9, 0)
    # How kernels are named: by their number and the ops (or nodes) of the graph, or by their text.
    unique_names: bool = True
    names_nodes: bool = False

    eager: ClassVar[Eager] = EAGER_ON_GPU
    panels: ClassVar[bool] = False
    generates_attention: ClassVar[bool] = False
    # A write to a parameter behind torch's back could only be noticed by comparing with a copy.
    prepacks: ClassVar[bool] = False
    supports_cudagraphs: ClassVar[bool] = True
    caching_allocator: ClassVar[bool] = True
    few_rows: ClassVar[int] = 256
    max_splits: ClassVar[int] = 1024
    cheap_f64_sums: ClassVar[bool] = False  # eager's variances are f32 there, too
    unsupported_ops: ClassVar[frozenset[str]] = NOT_ON_CUDA
    max_load_streams: ClassVar[int] = 1 << 10
    reads_whole_rows: ClassVar[bool] = False
    hides_compute_behind_loads: ClassVar[bool] = True
    small_loop: ClassVar[int] = 1 << 16

    @property
    def shared_bytes(self) -> int:
        """The shared memory that one program may have."""
        return SHARED_KIB.get(self.capability, LEAST_SHARED_KIB) << 10

    @property
    def has_tma(self) -> bool:
        """Whether it has the Tensor Memory Accelerator (TMA), which copies tiles of matrices."""
        return self.capability >= (9, 0)

    def gemm_is_memory_bound(self, rows: int, depth: int, columns: int) -> bool:
        """The same for elements of two bytes. Storing and reloading one costs 4 bytes, or 1 ps on
        an H200. Its 2 * `depth` operations cost 1.4 fs a step at the library's speed, and our gemm
        may take half as long again. Both are equal at a depth of 735: 4096 x 768 x 3072 took 0.95
        to 1.05 of the library's time with a GELU, 100352 x 64 x 256 with a ReLU 0.46. Well below
        that depth we generate the gemm, if it has enough tiles to keep the memory busy."""
        busy = rows * columns >= BUSY_TILES * 128 * 128 * self.threads
        return self.has_tma and depth <= SHORT_SUM and busy


@cache
def _cpu() -> tuple[str, str, tuple[str, ...]]:
    flags = llvm.get_host_cpu_features()
    on = tuple(sorted(f"{'+' if enabled else '-'}{name}" for name, enabled in flags.items()))
    return llvm.get_host_cpu_name(), llvm.get_process_triple(), on


@cache
def _cache_bytes(level: int, default: int) -> int:
    """Bytes of the data cache of one core at a level, from Linux's description of it."""
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if int((entry / "level").read_text()) != level:
                continue
            if (entry / "type").read_text().strip() == "Instruction":
                continue
            text = (entry / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        scale = {"K": 1024, "M": 1024**2}.get(text[-1], 1)
        return int(text.rstrip("KM")) * scale
    return default


def cpu(
    triple: str, name: str, features: tuple[str, ...], threads: int, vector_bits: int | None = None
) -> CpuTarget:
    """A CPU of any instruction set, with caches like this machine's."""
    width = isa_of(triple).vector_bytes(features)
    if vector_bits is not None:
        width = min(width, max(vector_bits // 8, 4))
    return CpuTarget(
        name=name,
        threads=threads,
        vector_bytes=width,
        l1_bytes=_cache_bytes(1, 32 * 1024),
        l2_bytes=_cache_bytes(2, 512 * 1024),
        l3_bytes=_cache_bytes(3, 32 << 20),
        triple=triple,
        features=features,
    )


def host(threads: int | None = None, vector_bits: int | None = None) -> CpuTarget:
    """This machine; fewer threads or narrower vectors on request."""
    name, triple, features = _cpu()
    count = torch.get_num_threads() if threads is None or threads < 1 else threads
    return cpu(triple, name, features, min(count, os.cpu_count() or 1), vector_bits)


def aarch64(features: tuple[str, ...] = (), threads: int = 1) -> CpuTarget:
    """A baseline 64-bit Arm with NEON, and these features."""
    return cpu("aarch64-unknown-linux-gnu", "generic", ("+neon", *features), threads)


def cuda(capability: tuple[int, int], multiprocessors: int, device: str = "cuda:0") -> GpuTarget:
    """A GPU: a thread loads 16 bytes at a time, and a row is short if it fits a multiprocessor."""
    return GpuTarget(
        name=f"sm_{capability[0]}{capability[1]}",
        threads=multiprocessors,
        vector_bytes=16,
        l1_bytes=64 * 1024,
        l2_bytes=512 * 1024,
        device=device,
        gemm_max_rows=1,
        longest_row=16384,
        # Below 9.0, Triton converts through float16, truncated, and so rounds some numbers twice.
        fp8=capability >= (9, 0),
        capability=capability,
    )


def configured(gpu: GpuTarget, config: Config) -> GpuTarget:
    """The target with the flags applied."""
    return replace(
        gpu,
        gemm_max_rows=config.triton.gemm_max_rows,
        cooperative_reductions=config.triton.cooperative_reductions,
        unique_names=config.triton.unique_kernel_names,
        names_nodes=config.triton.descriptive_names == "inductor_node",
    )


def _host_of(_: torch.device, config: Config) -> Target:
    return host(config.cpp.threads, config.cpp.simdlen)


def _gpu_of(device: torch.device, config: Config) -> Target:
    if importlib.util.find_spec("triton") is None:
        raise MissingDependency("triton", "pip install litz[gpu]")
    facts = torch.cuda.get_device_properties(device)
    found = cuda((facts.major, facts.minor), facts.multi_processor_count, str(device))
    return configured(found, config)


# The target of each type of device.
DEVICES: dict[str, Callable[[torch.device, Config], Target]] = {
    HOST: _host_of, "cuda": _gpu_of,
}  # fmt: skip


def target_for(devices: Iterable[torch.device], config: Config) -> Target:
    """The target of a graph whose tensors are on these devices: the GPU if there is one among them,
    else the host. `lower` refuses tensors on any other device, and names the line that put them
    there."""
    known = sorted({str(d) for d in devices if d.type in DEVICES and d.type != HOST})
    device = torch.device(known[0] if known else HOST)
    return DEVICES[device.type](device, config)
