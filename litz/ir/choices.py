"""Tuning choices about kernels: what `autotune` hands to `lower`, `fuse` and `schedule`.

In: constructors. Out: frozen values that print as Python which makes them again. A field that is
None is left to the rules of the stage that reads it. Example: `GemmChoice(mr=8, nr_vectors=3)` is a
gemm in register blocks of 8 rows by 3 vectors, with all else by the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from litz.ir.program import Origin
from litz.ir.scheduled import Choice, Tiling

# How a GPU computes a gemm. TILES: a program for each tile, operands loaded by threads.
# DESCRIPTORS: the same, operands copied by the TMA where their layout allows it. PERSISTENT: as
# many programs as run at once, each taking tile after tile.
GEMM_FORMS = ("TILES", "DESCRIPTORS", "PERSISTENT")
# The key of a choice that names no node: it holds for every gemm of a small program.
ANY = ""


class _Short:
    """Prints only the fields that differ from their defaults."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.facts().items())
        return f"{type(self).__name__}({shown})"

    def facts(self) -> dict[str, Any]:
        """Those fields by name, as JSON has them."""
        named = {f.name: f.default for f in fields(self)}  # type: ignore[arg-type]
        return {k: getattr(self, k) for k, usual in named.items() if getattr(self, k) != usual}


@dataclass(frozen=True, repr=False)
class GemmChoice(_Short):
    """Who computes a gemm and how: LITZ in register blocks, ATEN as a call, LOOP as an ordinary
    reduction without packing. On a GPU, a `form` makes it ours, in tiles of `height` x `width`
    accumulators; without one, the rules decide between ours and the library."""

    backend: str = "LITZ"
    mr: int | None = None  # rows of a block
    nr_vectors: int | None = None  # vectors of columns in a block and in a panel
    mc: int | None = None  # rows of a task
    k_block: int | None = None  # K steps that all blocks of a task do before the next; 0 is all
    split_k: int | None = None  # splits of K, which run side by side
    fused: bool = True  # the epilogue is part of its kernel
    form: str | None = None  # one of GEMM_FORMS
    height: int | None = None
    width: int | None = None
    step: int | None = None  # points along K that are loaded together
    warps: int | None = None
    stages: int | None = None  # pipeline stages: steps in flight
    rows: bool | None = None  # an epilogue over whole rows is fused as well
    # The producer of its left operand, or of either one on a GPU, is part of its kernel.
    prologue: bool | None = None


@dataclass(frozen=True, repr=False)
class LoopChoice(_Short):
    """How a kernel that is no gemm runs: the fields of a `Choice` of the same names."""

    lanes: int | None = None
    unroll: int | None = None
    chunk: int | None = None
    grain: int | None = None

    def applied(self, choice: Choice) -> Choice:
        return replace(choice, **self.facts())


@dataclass(frozen=True)
class Choices:
    """The choices of one graph: of its gemms by captured node, of other kernels by name."""

    gemms: Mapping[str, GemmChoice] = field(default_factory=dict)
    kernels: Mapping[str, LoopChoice] = field(default_factory=dict)
    tilings: Mapping[str, Tiling] = field(default_factory=dict)  # a GPU's kernels, by name

    def of_gemm(self, origins: Iterable[Origin]) -> GemmChoice:
        """The choice about the gemm that has one of these origins."""
        found = (self.gemms[o.node] for o in origins if o.node in self.gemms)
        return next(found, self.gemms.get(ANY, BY_RULE))

    def of_kernel(self, name: str) -> LoopChoice | None:
        return self.kernels.get(name)


BY_RULE = GemmChoice()
NO_CHOICES = Choices()
