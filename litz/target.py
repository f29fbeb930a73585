"""Targets: what the stages may ask of the machine they compile for.

In: nothing but the machine. Out: `Target`, a frozen value. No stage asks which target it is, only
what it can do. Facts come from LLVM's host query and the system's files, never from compiling a
probe. Example: `host().vector_bytes` is 64 on a CPU with AVX-512.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm
import torch

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

    @property
    def registers(self) -> int:
        """Vector registers."""
        wide = self.vector_bytes == 64 or self.triple.startswith(("aarch64", "arm64"))
        return 32 if wide else 16

    @property
    def block_rows(self) -> int:
        """Rows of a matrix product whose sums the registers hold together."""
        return 6

    def panel_columns(self, element_bytes: int, columns: int) -> int:
        """Columns of it: with six rows, four vectors of 32 registers or two of 16."""
        lanes = self.vector_bytes // element_bytes
        return lanes * min(self.registers // 8, -(-columns // lanes))

    def dot_group(self, left: str, right: str) -> int:
        """How many products of these types one instruction adds to each sum."""
        for feature, stored, group in DOTS:
            if feature in self.features and left == right == stored and self.vector_bytes >= 16:
                return group
        return 1

    @property
    def kind(self) -> str:
        return "cpu"


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
    )
