"""Choices about kernels that timing may make: what `autotune` hands to `lower`, `fuse`, `schedule`.

In: constructors. Out: frozen values that print as Python which makes them again; what they leave
open (None) is up to the rules of the stage that reads them. Example: `ProductChoice(block=8,
vectors=3)` is a product in blocks of 8 rows by 3 vectors, and all else as without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from litz.ir.program import Origin
from litz.ir.scheduled import Choice, Tiling

# How a GPU computes a product: a program a tile, operands loaded by threads; the same, operands
# copied by the GPU's engine for that where they lie as it needs; and as many programs as run at
# once, which take tile after tile.
FORMS = ("TILES", "DESCRIPTORS", "PERSISTENT")
# Whom a product's choice concerns if it names no node: every product of a small program.
ANY = ""


class _Short:
    """Prints what differs from the defaults alone."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.facts().items())
        return f"{type(self).__name__}({shown})"

    def facts(self) -> dict[str, Any]:
        """The same fields, as JSON has them."""
        named = {f.name: f.default for f in fields(self)}  # type: ignore[arg-type]
        return {k: getattr(self, k) for k, usual in named.items() if getattr(self, k) != usual}


@dataclass(frozen=True, repr=False)
class ProductChoice(_Short):
    """Who computes a matrix product and how: LITZ as blocks in registers, ATEN as a call, LOOP as a
    reduction like others, for which nothing is packed. On a GPU a `form` makes it ours, in tiles of
    `height` x `width` sums; without one it is whose the rules say."""

    backend: str = "LITZ"
    block: int | None = None  # rows of a block
    vectors: int | None = None  # of columns, in a block and a panel
    chunk: int | None = None  # rows of a task
    stretch: int | None = None  # steps of the sum that all blocks of a task pass along; 0 is all
    slices: int | None = None  # of the sum, which run side by side
    fused: bool = True  # what follows it is part of its kernel
    form: str | None = None  # one of FORMS
    height: int | None = None
    width: int | None = None
    step: int | None = None  # points of the sum that are loaded together
    warps: int | None = None
    stages: int | None = None  # steps that are under way
    rows: bool | None = None  # and so is what needs whole rows of it
    # What makes its left operand, or either one on a GPU, is part of its kernel.
    prologue: bool | None = None


@dataclass(frozen=True, repr=False)
class LoopChoice(_Short):
    """How a kernel that is no product runs: the fields of a `Choice` of the same names."""

    lanes: int | None = None
    unroll: int | None = None
    chunk: int | None = None
    grain: int | None = None

    def applied(self, choice: Choice) -> Choice:
        return replace(choice, **self.facts())


@dataclass(frozen=True)
class Choices:
    """Those of one graph: of its products by the captured node, of other kernels by name."""

    products: Mapping[str, ProductChoice] = field(default_factory=dict)
    kernels: Mapping[str, LoopChoice] = field(default_factory=dict)
    tilings: Mapping[str, Tiling] = field(default_factory=dict)  # a GPU's kernels, by name

    def of_product(self, origins: Iterable[Origin]) -> ProductChoice:
        """The choice about the product that has one of these origins."""
        found = (self.products[o.node] for o in origins if o.node in self.products)
        return next(found, self.products.get(ANY, BY_RULE))

    def of_kernel(self, name: str) -> LoopChoice | None:
        return self.kernels.get(name)


BY_RULE = ProductChoice()
NO_CHOICES = Choices()
