"""Patterns: the tags of loop nests that have a schedule of their own, as the roles of their axes.

In: constructors. Out: frozen values, which a `Loop` or a `Phase` carries and its text shows. A tag
has axes and no expressions, because inlining and simplifying change a stored value but not the
roles of its axes. `ir/recognise.py` finds tags and `ir/verify.py` checks them; `ir/gemm.py`,
`ir/attention.py` and `ir/depthwise.py` use them to read operands off the stored value. Example:

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
    """Each role is a field with some axes of the nest. `flipped` says that the factors of the sum
    are swapped: the second one has the first role (left operand, query, image)."""

    kind: ClassVar[str]
    flipped: bool = False

    @property
    def roles(self) -> dict[str, Axes]:
        """The axes by role, without empty roles."""
        named = ((f.name, getattr(self, f.name)) for f in fields(self) if f.name != "flipped")
        return {name: axes for name, axes in named if axes}

    def moved(self: P, places: Mapping[Expr, Axes]) -> P:
        """The same roles, with some axes replaced by new ones."""
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
    """A gemm: a sum over `depth` of left[batch, rows, depth] * right[batch, depth, columns]. With
    `taps` the sum runs over the windows of a convolution as well."""

    kind: ClassVar[str] = "gemm"
    batch: Axes = ()
    rows: Axes = ()
    columns: Axes = ()
    taps: Axes = ()
    depth: Axes = ()

    def moved(self, places: Mapping[Expr, Axes]) -> Gemm:
        """If the depth was merged into the axis before it, the last tap becomes the depth."""
        found = super().moved(places)
        return found if found.depth else replace(found, taps=found.taps[:-1], depth=found.taps[-1:])


@dataclass(frozen=True)
class Attention(Pattern):
    """A mean over `column` of values of some `width`, weighted by the exponentials of scores. A
    score holds the sum over `depth` of query times key. `row` is empty if there is one query."""

    kind: ClassVar[str] = "attention"
    row: Axes = ()
    column: Axes = ()
    depth: Axes = ()
    width: Axes = ()


@dataclass(frozen=True)
class Depthwise(Pattern):
    """A convolution of each `channel` by itself: neighbouring windows are `along` an axis, along
    which the last of the `taps` moves as well."""

    kind: ClassVar[str] = "depthwise"
    channel: Axes = ()
    along: Axes = ()
    taps: Axes = ()


PATTERNS: dict[str, type[Pattern]] = {p.kind: p for p in (Gemm, Attention, Depthwise)}
