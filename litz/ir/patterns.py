"""Patterns: the tags of loop nests that have a schedule of their own, as the roles of their axes.

In: constructors. Out: frozen values, which a `Loop` or a `Phase` carries and its text shows. A tag
holds axes and no expressions: inlining and simplifying change a stored value and leave its roles.
`ir/recognise.py` finds them, `ir/verify.py` holds them against the value; `ir/product.py`,
`ir/attention.py` and `ir/window.py` read operands off the value by them. Example:

    loop i0 < 8, i1 < 64 reduce r0 < 32 as gemm(rows=[i0], columns=[i1], depth=[r0]):
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

if TYPE_CHECKING:
    from litz.ir.expr import Expr

Axes = tuple["Expr", ...]
P = TypeVar("P", bound="Pattern")


@dataclass(frozen=True)
class Pattern:
    """Roles are fields, each some axes of the nest. `flipped` says that of the two factors that are
    multiplied and summed, the second is the one that comes first by its role."""

    kind: ClassVar[str]
    flipped: bool = False

    @property
    def roles(self) -> dict[str, Axes]:
        """The axes by role, without roles that no axis has."""
        named = ((f.name, getattr(self, f.name)) for f in fields(self) if f.name != "flipped")
        return {name: axes for name, axes in named if axes}

    def moved(self: P, places: Mapping[Expr, Axes]) -> P:
        """The same roles, with new axes in the place of some."""
        found = {
            name: tuple(new for a in axes for new in places.get(a, (a,)))
            for name, axes in self.roles.items()
        }
        return type(self)(self.flipped, **found)

    def __str__(self) -> str:
        said = [f"{k}=[{', '.join(a.attr for a in axes)}]" for k, axes in self.roles.items()]
        said += ["flipped=True"] if self.flipped else []
        return f"{self.kind}({', '.join(said)})"


@dataclass(frozen=True)
class Gemm(Pattern):
    """A matrix product: a sum over `depth` of left[batch, rows, depth] * right[batch, depth,
    columns]. With `taps` the sum runs over windows, too, as that of a convolution does."""

    kind: ClassVar[str] = "gemm"
    batch: Axes = ()
    rows: Axes = ()
    columns: Axes = ()
    taps: Axes = ()
    depth: Axes = ()

    def moved(self, places: Mapping[Expr, Axes]) -> Gemm:
        """An axis of the sum that is merged goes with the one before it."""
        found = super().moved(places)
        return found if found.depth else replace(found, taps=found.taps[:-1], depth=found.taps[-1:])


@dataclass(frozen=True)
class Attention(Pattern):
    """A mean over `column` of values of some `width`, weighed by the exponentials of scores, which
    hold the sum over `depth` of query times key. There may be but one `row` of queries."""

    kind: ClassVar[str] = "attention"
    row: Axes = ()
    column: Axes = ()
    depth: Axes = ()
    width: Axes = ()


@dataclass(frozen=True)
class Depthwise(Pattern):
    """A convolution of each `channel` by itself: windows lie side by side `along` an axis, along
    which the last of the `taps` moves as well."""

    kind: ClassVar[str] = "depthwise"
    channel: Axes = ()
    along: Axes = ()
    taps: Axes = ()


PATTERNS: dict[str, type[Pattern]] = {p.kind: p for p in (Gemm, Attention, Depthwise)}
