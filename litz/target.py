"""Targets: what the stages may ask of the machine they compile for.

In: the machine, or the device of a graph's tensors. Out: a `Target`, a frozen value: `CpuTarget` or
`GpuTarget`, which differ in the facts that only their own stages ask. A stage asks what a target
can do, never which one it is; who does the target's part of the work is settled once, in
`litz/targets.py`. Facts come from LLVM's host query, the system's files and torch, never from
compiling a probe. Example: `host().vector_bytes` is 64 on a CPU with AVX-512.
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

# Steps of a sum up to which a GPU stores a product longer than it multiplies, and tiles of
# 128 x 128 for each multiprocessor from which the memory is busy.
SHORT_SUM, BUSY_TILES = 256, 2
# Vectors of a column reduction whose sums stand side by side, to hide the latency of an addition.
COLUMN_VECTORS = 4


@dataclass(frozen=True)
class Eager:
    """What eager's kernels do on one type of device where devices differ: results must agree."""

    # A number beside a tensor of halves is rounded to them: in front of it, in sums and
    # differences, in every step of a division that is cut off to an integer.
    rounds_numbers: bool
    # A number that lies in a tensor is read as the type of the other operand.
    reads_numbers_as_operands: bool
    compares_halves_in_f32: bool  # with a number
    powers_in_halves: bool  # roots of float16 round on their way
    refuses_types: bool  # operands of the types in the table of refusals raise
    refuses_zero_divisors: bool  # integers divided by zero raise
    keeps_memory_format: bool  # of operands, in roll, channel_shuffle and batch norms
    reads_masks_by_row: bool  # attention reads a mask along its rows
    # Libraries convolve halves in channels last, on units that multiply whole tiles.
    convolves_halves: bool


EAGER_ON_HOST = Eager(
    rounds_numbers=True, reads_numbers_as_operands=False, compares_halves_in_f32=True,
    powers_in_halves=True, refuses_types=True, refuses_zero_divisors=True,
    keeps_memory_format=True, reads_masks_by_row=False, convolves_halves=False,
)  # fmt: skip
EAGER_ON_GPU = Eager(
    rounds_numbers=False, reads_numbers_as_operands=True, compares_halves_in_f32=False,
    powers_in_halves=False, refuses_types=False, refuses_zero_divisors=False,
    keeps_memory_format=False, reads_masks_by_row=True, convolves_halves=True,
)  # fmt: skip


def eager_on(device: torch.device) -> Eager:
    """What eager does with tensors there."""
    return EAGER_ON_HOST if device.type == HOST else EAGER_ON_GPU


def names_device(value: object) -> bool:
    """Whether an argument of an op is a device other than the host's, or may be any."""
    return isinstance(value, torch.device) or (isinstance(value, str) and value[:4] == "cuda")


@dataclass(frozen=True)
class Target:
    """A machine to compile for: what stages may ask of every one. `name` is the processor's;
    `threads` run at the same time, each over vectors of `vector_bytes`."""

    name: str
    threads: int
    vector_bytes: int
    l1_bytes: int
    l2_bytes: int
    device: str = HOST  # where its tensors lie
    # The most rows of a matrix product that we write for it; what has more is the library's.
    product_rows: int = 1 << 62
    # Whether tasks of one launch may share a few long rows, instead of a second launch.
    shares_rows: bool = False
    eighths: bool = True  # whether it converts floats of eight bits
    # The longest row that a task holds whole, if there is a limit: a longer one comes in blocks.
    longest_row: int = 0

    eager: ClassVar[Eager] = EAGER_ON_HOST
    panels: ClassVar[bool] = True  # whether a product reads its right operand from packed panels
    attends: ClassVar[bool] = True  # whether we write attention for it
    holds: ClassVar[bool] = True  # whether what is made of parameters is kept from call to call
    records: ClassVar[bool] = False  # whether launches can be recorded and replayed as one
    # Whether its allocator keeps what is freed for others: then a call gains nothing by freeing
    # inputs early, nor by taking memory for outputs late.
    keeps_freed: ClassVar[bool] = False
    # Below how many rows a long reduction is split, and into how many pieces at most, if that is
    # more than on any CPU. Neither follows from `threads`: a sum is the same on any machine.
    few_rows: ClassVar[int] = 0
    most_pieces: ClassVar[int] = 0
    wide_sums: ClassVar[bool] = True  # whether it adds in f64 at little cost, now and then
    # Ops of the table that have no code on it: what needs them stays with ATen.
    unspelled: ClassVar[frozenset[str]] = frozenset()
    # Arrays that one loop walks at the speed of memory. More of them, which all begin at the same
    # place of a page, push each other's lines out of the first cache: adding up 96 arrays of 4 MiB
    # in loops of 16 took a third of the time of one loop.
    streams: ClassVar[int] = 16
    # Whether columns of an array that no cache holds are best summed row by row: one thread walks
    # memory forwards. On a GPU, neighbouring threads do.
    reads_whole_rows: ClassVar[bool] = True
    # Whether a root or a division again for every element costs less than a kernel that keeps its
    # results: a GPU does it while it waits for memory, and a launch is a launch.
    computes_beside_loads: ClassVar[bool] = False
    # Elements that a kernel has begun and ended before the next one could start: loops of no more
    # share one though they have nothing in common. On a CPU a kernel is a call.
    small_loop: ClassVar[int] = 0
    block_rows: ClassVar[int] = 6  # of a matrix product whose sums the registers hold together

    def passes_by(self, row: int, array: int) -> bool:
        """Whether an array of so many bytes is best read row by row, each from its beginning to its
        end, because no cache of one core holds it. A short row is read so anyway. Of 38 MB in
        rows of 768 bytes, four of them side by side took 2.5 times as long as one by one."""
        long = row > COLUMN_VECTORS * self.vector_bytes
        return self.reads_whole_rows and long and array > self.l2_bytes

    def is_stream(self, size: int) -> bool:
        """Whether an array of so many bytes does not just stay in the first cache."""
        return size >= self.l1_bytes

    def waits_for_memory(self, rows: int, depth: int, columns: int) -> bool:
        """Whether a product that a library stores and a kernel reads again is better done by that
        kernel."""
        return False

    @property
    def product_lanes(self) -> int:
        """Float lanes of the products that we write from panels; none if we write none."""
        return self.vector_bytes // 4 if self.panels else 0

    def panel_columns(self, element_bytes: int, columns: int, vectors: int | None = None) -> int:
        """Columns of a panel: two vectors, unless a choice says how many."""
        lanes = self.vector_bytes // element_bytes
        return lanes * min(vectors or 2, -(-columns // lanes))

    def dot_group(self, left: str, right: str) -> int:
        """How many products of these types one instruction adds to each sum."""
        return 1


@dataclass(frozen=True)
class CpuTarget(Target):
    """A CPU, for which LLVM makes the code."""

    triple: str = ""
    features: tuple[str, ...] = ()
    l3_bytes: int = 32 << 20  # of the last cache, which all threads share

    @property
    def isa(self) -> Isa:
        """What its instruction set has."""
        return isa_of(self.triple)

    @property
    def registers(self) -> int:
        """Vector registers."""
        return self.isa.registers(self.vector_bytes)

    def panel_columns(self, element_bytes: int, columns: int, vectors: int | None = None) -> int:
        """With six rows, four vectors of 32 registers or two of 16."""
        return super().panel_columns(element_bytes, columns, vectors or self.registers // 8)

    def dot_group(self, left: str, right: str) -> int:
        for dot in self.isa.dots if left == right and self.vector_bytes >= 16 else ():
            if dot.feature in self.features and dot.dtype == left:
                return dot.group
        return 1


# Neither Triton nor CUDA's math library has these; ATen has kernels for them.
NOT_ON_CUDA = frozenset(
    {"airy_ai", "digamma", "gcd", "i0e", "i1e", "k0e", "k1e", "zeta"}
    | {"chebyshev_t", "chebyshev_u", "chebyshev_v", "chebyshev_w"}
    | {"hermite_h", "hermite_he", "laguerre_l", "legendre_p"}
)
# By capability, as CUDA's programming guide lists it; what is not listed has no less than 64.
SHARED_KIB = {(8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, (9, 0): 227, (10, 0): 227}
LEAST_SHARED_KIB = 64


@dataclass(frozen=True)
class GpuTarget(Target):
    """A GPU, for which Triton makes the code. `threads` are multiprocessors."""

    capability: tuple[int, int] = (9, 0)
    # How kernels are named: by number and ops, or nodes, of the graph; or by their text.
    unique_names: bool = True
    names_nodes: bool = False

    eager: ClassVar[Eager] = EAGER_ON_GPU
    panels: ClassVar[bool] = False
    attends: ClassVar[bool] = False
    # That a parameter was written to behind torch's back, only a copy would show.
    holds: ClassVar[bool] = False
    records: ClassVar[bool] = True
    keeps_freed: ClassVar[bool] = True
    few_rows: ClassVar[int] = 256
    most_pieces: ClassVar[int] = 1024
    wide_sums: ClassVar[bool] = False  # eager's variances are f32 there, too
    unspelled: ClassVar[frozenset[str]] = NOT_ON_CUDA
    streams: ClassVar[int] = 1 << 10
    reads_whole_rows: ClassVar[bool] = False
    computes_beside_loads: ClassVar[bool] = True
    small_loop: ClassVar[int] = 1 << 16

    @property
    def shared_bytes(self) -> int:
        """Of a multiprocessor's memory, what one program may have."""
        return SHARED_KIB.get(self.capability, LEAST_SHARED_KIB) << 10

    @property
    def copies_tiles(self) -> bool:
        """Whether an engine of its own copies tiles of matrices."""
        return self.capability >= (9, 0)

    def waits_for_memory(self, rows: int, depth: int, columns: int) -> bool:
        """The same of numbers of two bytes. The way through memory costs 4 bytes for each element,
        so 1 ps on an H200; twice `depth` sums cost 1.4 fs a step at the library's speed, and ours
        may take half as long again. Both are equal at 735 steps: 4096 x 768 x 3072 took 0.95 to
        1.05 of the library's time with a GELU, 100352 x 64 x 256 with a ReLU 0.46. Well below that
        it is ours, if there is enough of it to keep the memory busy."""
        busy = rows * columns >= BUSY_TILES * 128 * 128 * self.threads
        return self.copies_tiles and depth <= SHORT_SUM and busy


@cache
def _cpu() -> tuple[str, str, tuple[str, ...]]:
    flags = llvm.get_host_cpu_features()
    on = tuple(sorted(f"{'+' if enabled else '-'}{name}" for name, enabled in flags.items()))
    return llvm.get_host_cpu_name(), llvm.get_process_triple(), on


@cache
def _cache_bytes(level: int, default: int) -> int:
    """Data cache of one core, from the system's own description of it."""
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
    """A 64-bit Arm of the first version, which has NEON, and these features beside it."""
    return cpu("aarch64-unknown-linux-gnu", "generic", ("+neon", *features), threads)


def cuda(capability: tuple[int, int], multiprocessors: int, device: str = "cuda:0") -> GpuTarget:
    """A GPU: a thread loads 16 bytes at a time, and a row is short if a multiprocessor holds it."""
    return GpuTarget(
        name=f"sm_{capability[0]}{capability[1]}",
        threads=multiprocessors,
        vector_bytes=16,
        l1_bytes=64 * 1024,
        l2_bytes=512 * 1024,
        device=device,
        product_rows=1,
        longest_row=16384,
        # Before it, Triton goes through a half that it cuts, and rounds some numbers twice.
        eighths=capability >= (9, 0),
        capability=capability,
    )


def configured(gpu: GpuTarget, config: Config) -> GpuTarget:
    """A GPU as the flags want it to be used."""
    return replace(
        gpu,
        product_rows=config.triton.product_rows,
        shares_rows=config.triton.cooperative_reductions,
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
    """The target of a graph whose tensors lie on these devices: another than the host's if there is
    one among them. `lower` refuses what lies anywhere else, and says which line put it there."""
    known = sorted({str(d) for d in devices if d.type in DEVICES and d.type != HOST})
    device = torch.device(known[0] if known else HOST)
    return DEVICES[device.type](device, config)
