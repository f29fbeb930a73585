"""Targets: what the stages may ask of the machine they compile for.

In: nothing but the machine. Out: `Target`, a frozen value. No stage before `schedule` asks which
target it is, only what it can do. Facts come from LLVM's host query, the system's files and torch,
never from compiling a probe. Example: `host().vector_bytes` is 64 on a CPU with AVX-512.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm
import torch

from litz.config import Config
from litz.errors import MissingDependency

# Steps of a sum up to which a GPU stores a product longer than it multiplies, and tiles of
# 128 x 128 for each multiprocessor from which the memory is busy.
SHORT_SUM, BUSY_TILES = 256, 2
# Vectors of a column reduction whose sums stand side by side, to hide the latency of an addition.
COLUMN_VECTORS = 4
# Instructions that multiply and add several neighbours at once: the feature, the type, how many.
DOTS = (("+avx512bf16", "bf16", 2), ("+avx512vnni", "i8", 4))


@dataclass(frozen=True)
class Target:
    """A machine to compile for."""

    name: str
    triple: str
    features: tuple[str, ...]
    vector_bytes: int
    threads: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int = 32 << 20  # of the last cache, which all threads share
    kind: str = "cpu"  # who writes its code: "cpu" is LLVM, "cuda" is Triton
    device: str = "cpu"  # where its tensors lie
    # The most rows of a matrix product that we write for it; what has more is the library's.
    product_rows: int = 1 << 62
    panels: bool = True  # whether a product reads its right operand from packed panels
    attends: bool = True  # whether we write attention for it
    holds: bool = True  # whether what is made of parameters alone is kept from call to call
    # Below how many rows a long reduction is split, and into how many pieces at most, if that is
    # more than on any CPU. Neither follows from `threads`: a sum is the same on any machine.
    few_rows: int = 0
    most_pieces: int = 0
    shared_bytes: int = 0  # of a multiprocessor that one program may have, on a GPU
    # The longest row that a program holds whole, if there is a limit: a longer one comes in blocks.
    longest_row: int = 0
    copies_tiles: bool = False  # whether an engine of its own copies tiles of matrices
    # Whether the programs of one launch may share a few long rows, instead of a second launch.
    shares_rows: bool = False
    # How kernels are named: by number and ops, or nodes, of the graph; or by their text.
    unique_names: bool = True
    names_nodes: bool = False
    eighths: bool = True  # whether it converts floats of eight bits
    wide_sums: bool = True  # whether it adds in f64 at little cost, now and then
    # Ops of the table that have no code on it: what needs them stays with ATen.
    unspelled: frozenset[str] = frozenset()

    @property
    def registers(self) -> int:
        """Vector registers."""
        wide = self.vector_bytes == 64 or self.triple.startswith(("aarch64", "arm64"))
        return 32 if wide else 16

    @property
    def streams(self) -> int:
        """Arrays that one loop walks at the speed of memory. More of them, which all begin at the
        same place of a page, push each other's lines out of the first cache: adding up 96 arrays
        of 4 MiB in loops of 16 took a third of the time of one loop. A GPU has no such limit."""
        return 16 if self.kind == "cpu" else 1 << 10

    @property
    def refuses_zero_divisors(self) -> bool:
        """Whether eager raises where integers are divided by zero; on a GPU it goes on."""
        return self.kind == "cpu"

    @property
    def reads_whole_rows(self) -> bool:
        """Whether columns of an array that no cache holds are best summed row by row: one thread
        walks memory forwards. On a GPU, neighbouring threads do."""
        return self.kind == "cpu"

    def passes_by(self, row: int, array: int) -> bool:
        """Whether an array of so many bytes is best read row by row, each from its beginning to its
        end, because no cache of one core holds it. A short row is read so anyway. Of 38 MB in
        rows of 768 bytes, four of them side by side took 2.5 times as long as one by one."""
        long = row > COLUMN_VECTORS * self.vector_bytes
        return self.reads_whole_rows and long and array > self.l2_bytes

    @property
    def computes_beside_loads(self) -> bool:
        """Whether a root or a division again for every element costs less than a kernel that keeps
        its results: a GPU does it while it waits for memory, and a launch is a launch."""
        return self.kind == "cuda"

    @property
    def small_loop(self) -> int:
        """Elements that a kernel has begun and ended before the next one could start: loops of no
        more share one though they have nothing in common. On a CPU a kernel is a call."""
        return 1 << 16 if self.kind == "cuda" else 0

    def waits_for_memory(self, rows: int, depth: int, columns: int) -> bool:
        """Whether a product, of two bytes a number, that a library stores and a kernel reads again
        is better done by that kernel. The way through memory costs 4 bytes for each element, so
        1 ps on an H200; twice `depth` sums cost 1.4 fs a step at the library's speed, and ours may
        take half as long again. Both are equal at 735 steps: 4096 x 768 x 3072 took 0.95 to 1.05 of
        the library's time with a GELU, 100352 x 64 x 256 with a ReLU 0.46. Well below that it is
        ours, if there is enough of it to keep the memory busy."""
        busy = rows * columns >= BUSY_TILES * 128 * 128 * self.threads
        return self.copies_tiles and depth <= SHORT_SUM and busy

    def is_stream(self, size: int) -> bool:
        """Whether an array of so many bytes does not just stay in the first cache."""
        return size >= self.l1_bytes

    @property
    def block_rows(self) -> int:
        """Rows of a matrix product whose sums the registers hold together."""
        return 6

    @property
    def product_lanes(self) -> int:
        """Float lanes of the products that we write for it; none if we write none."""
        return self.vector_bytes // 4 if self.panels else 0

    def panel_columns(self, element_bytes: int, columns: int, vectors: int | None = None) -> int:
        """Columns of it: with six rows, four vectors of 32 registers or two of 16, unless a choice
        says how many."""
        lanes = self.vector_bytes // element_bytes
        return lanes * min(vectors or self.registers // 8, -(-columns // lanes))

    def dot_group(self, left: str, right: str) -> int:
        """How many products of these types one instruction adds to each sum."""
        for feature, stored, group in DOTS:
            if feature in self.features and left == right == stored and self.vector_bytes >= 16:
                return group
        return 1


@cache
def _cpu() -> tuple[str, str, tuple[str, ...]]:
    flags = llvm.get_host_cpu_features()
    on = tuple(sorted(f"{'+' if enabled else '-'}{name}" for name, enabled in flags.items()))
    return llvm.get_host_cpu_name(), llvm.get_process_triple(), on


def _vector_bytes(triple: str, features: tuple[str, ...]) -> int:
    if "+avx512f" in features and "+avx512bw" in features and "+avx512vl" in features:
        return 64
    if "+avx2" in features:
        return 32
    return 16


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


def host(threads: int | None = None, vector_bits: int | None = None) -> Target:
    """This machine; fewer threads or narrower vectors on request."""
    name, triple, features = _cpu()
    width = _vector_bytes(triple, features)
    if vector_bits is not None:
        width = min(width, max(vector_bits // 8, 4))
    count = torch.get_num_threads() if threads is None or threads < 1 else threads
    return Target(
        name=name,
        triple=triple,
        features=features,
        vector_bytes=width,
        threads=min(count, os.cpu_count() or 1),
        l1_bytes=_cache_bytes(1, 32 * 1024),
        l2_bytes=_cache_bytes(2, 512 * 1024),
        l3_bytes=_cache_bytes(3, 32 << 20),
    )


# Neither Triton nor CUDA's math library has these; ATen has kernels for them.
NOT_ON_CUDA = frozenset(
    {"airy_ai", "digamma", "gcd", "i0e", "i1e", "k0e", "k1e", "zeta"}
    | {"chebyshev_t", "chebyshev_u", "chebyshev_v", "chebyshev_w"}
    | {"hermite_h", "hermite_he", "laguerre_l", "legendre_p"}
)


# By capability, as CUDA's programming guide lists it; what is not listed has no less than 64.
SHARED_KIB = {(8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, (9, 0): 227, (10, 0): 227}
LEAST_SHARED_KIB = 64


def cuda(capability: tuple[int, int], multiprocessors: int, device: str = "cuda:0") -> Target:
    """A GPU: a thread loads 16 bytes at a time, and a row is short if a multiprocessor holds it."""
    return Target(
        name=f"sm_{capability[0]}{capability[1]}",
        triple="nvptx64-nvidia-cuda",
        features=(),
        vector_bytes=16,
        threads=multiprocessors,
        l1_bytes=64 * 1024,
        l2_bytes=512 * 1024,
        kind="cuda",
        device=device,
        product_rows=1,
        panels=False,
        attends=False,
        holds=False,  # that a parameter was written to behind torch's back, only a copy would show
        few_rows=256,
        most_pieces=1024,
        shared_bytes=SHARED_KIB.get(capability, LEAST_SHARED_KIB) << 10,
        longest_row=16384,
        copies_tiles=capability >= (9, 0),
        # Before it, Triton goes through a half that it cuts, and rounds some numbers twice.
        eighths=capability >= (9, 0),
        wide_sums=False,  # eager's variances are f32 there, too
        unspelled=NOT_ON_CUDA,
    )


def target_for(devices: Iterable[torch.device], config: Config) -> Target:
    """The target of a graph whose tensors lie on these devices: a GPU if there is one among them.
    `lower` refuses what lies anywhere else, and says which line put it there."""
    gpus = sorted({str(d) for d in devices if d.type == "cuda"})
    if not gpus:
        return host(config.cpp.threads, config.cpp.simdlen)
    device = torch.device(gpus[0])
    if importlib.util.find_spec("triton") is None:
        raise MissingDependency("triton", "pip install litz[gpu]")
    facts = torch.cuda.get_device_properties(device)
    found = cuda((facts.major, facts.minor), facts.multi_processor_count, str(device))
    return configured(found, config)


def configured(gpu: Target, config: Config) -> Target:
    """A GPU as the flags want it to be used."""
    return replace(
        gpu,
        product_rows=config.triton.product_rows,
        shares_rows=config.triton.cooperative_reductions,
        unique_names=config.triton.unique_kernel_names,
        names_nodes=config.triton.descriptive_names == "inductor_node",
    )
