"""Blocked summation: how many additions a sum takes before it is put aside, and where.

In: the reductions of a phase and its axes. Out: `Runs`. A run is added up in the type of its
elements, runs are added up in f64: so the error of a sum is that of its runs, however long it is,
and of many runs most cancels. With u half a unit in the last place, a run of k positive numbers is
off by about k^(1/2) / 4 u, and a mean over m runs by m^(1/2) less.

    rows in lanes        64 additions; errors cancel over 16 to 64 accumulators as well
    lanes that are rows  16 additions, as eager has; from 64 rows on 32
    wide_sum             to be no further off than a sum in f64 that is rounded once: as many of
                         rows in lanes; of lanes that are rows no more than the root of all, or
                         f64 from the first one on

Example, sums over 1000 x n elements, n unknown: `{r1: 64, r0: max(64 // max(n, 1), 1)}`: after 64
turns of the inner axis, should it have more, and after as many turns of the outer one as make a
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litz.ir.dtypes import F64
from litz.ir.expr import Expr, apply, integer
from litz.ir.index import ONE, floordiv, product
from litz.ir.ops import REDUCTIONS
from litz.ir.program import Phase
from litz.ir.sizes import count_of, rounded_up

# Additions of a run.
TURNS = 64
# The same where each lane is a row of its own: of fewer than `MANY` points, and of as many. (Of 32
# points in one run, sums are up to 2.1 times as far off as eager's, in two runs never further. From
# 64 on, runs of 32 are at most 1.6 times as far off.)
TURNS_APART, TURNS_OF_MANY, MANY = 16, 32, 64
# The shortest runs of a `wide_sum` that cost less than f64.
SHORTEST = 8


@dataclass(frozen=True)
class Runs:
    """Turns of some axes after which sums are put aside, none if all is one run. With `wide`, a
    `wide_sum` is an f64 from the first addition on."""

    aside: dict[Expr, Expr]
    wide: bool = False


def runs_of(reduces: Sequence[Expr], phase: Phase, step: int, apart: bool) -> Runs:
    """The runs of a phase that takes `step` points of its last axis a turn; `apart` says that each
    lane is a row of its own."""
    points = count_of(phase.inner)
    many = points.is_const and points.number >= MANY
    turns, wide = TURNS, False
    if apart:
        turns = TURNS_OF_MANY if many else TURNS_APART
    sums_wide = any(REDUCTIONS[n.attr[0]].widens for n in reduces)
    if apart and sums_wide and not _is_part(phase):
        root = 1 << (points.number.bit_length() - 1) // 2 if points.is_const else SHORTEST
        turns, wide = (min(root, turns), False) if root >= SHORTEST else (TURNS_APART, True)
    return Runs(put_aside_at(phase.inner, step, turns), wide)


def _is_part(phase: Phase) -> bool:
    """Whether its sums are those of pieces, over which errors will cancel."""
    return all(s.value.op == "reduce" and s.buffer.dtype is F64 for s in phase.completing)


def put_aside_at(axes: tuple[Expr, ...], step: int, turns: int) -> dict[Expr, Expr]:
    """After how many turns of which axes sums are put aside, the innermost first."""
    inside: Expr = ONE
    found: dict[Expr, Expr] = {}
    for variable in reversed(axes):
        within = inside
        inside = product((inside, rounded_up(variable.extent, step)))
        step = 1
        if inside.is_const and inside.number <= turns:
            continue
        found[variable] = _at_least_one(floordiv(integer(turns), _at_least_one(within)))
        if inside.is_const:
            break  # whatever is around it, each of its passes puts something aside
    return found


def _at_least_one(n: Expr) -> Expr:
    return integer(max(n.number, 1)) if n.is_const else apply("max", n, ONE)
