"""Choices and trials as JSON for the database, validated when they are read.

In: a choice; or its JSON and the rule's choice. Out: the JSON; or the choice. JSON that is not a
valid choice of that kind raises, usually ValueError or TypeError. Example:
`choice_of(GemmChoice(), {"mr": 8})` is `GemmChoice(mr=8)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib import metadata
from typing import Any

from litz.autotune.database import Json
from litz.autotune.results import AnyChoice, Ratio, Trial
from litz.ir.choices import GEMM_FORMS
from litz.ir.scheduled import Tiling

# Fields that are not positive numbers, and their allowed values.
NAMED: dict[str, Sequence[Any]] = {
    "backend": ("LITZ", "ATEN", "LOOP"), "form": GEMM_FORMS, "fused": (True, False),
    "rows": (True, False), "prologue": (True, False), "k_block": range(1 << 20),
}  # fmt: skip
# Upper limits: code grows with the first fields; the others count rows or elements.
LIMITS = {"mr": 64, "nr_vectors": 64, "unroll": 16, "lanes": 256, "split_k": 64}
LIMITS |= {"warps": 64, "stages": 16, "height": 1 << 10, "width": 1 << 10, "step": 1 << 10}
POWERS = ("height", "width", "step", "warps")  # fields that are powers of two
LONGEST = 200  # characters of a note
MOST, MOST_POINTS = 1 << 40, 1 << 20


def kept(choice: AnyChoice, trials: tuple[Trial, ...]) -> Json:
    """The part of a finding that another process needs."""
    rows = [{"choice": _facts(t.choice), "note": t.note,
             "ratio": None if t.ratio is None else vars(t.ratio)} for t in trials]  # fmt: skip
    return {"choice": _facts(choice), "trials": rows}


def _facts(choice: AnyChoice) -> Json:
    if isinstance(choice, Tiling):
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(choice).items()}
    return choice.facts()


def choice_of(rule: AnyChoice, facts: Json) -> AnyChoice:
    """The choice, of the kind of the rule's, that has these facts."""
    if isinstance(rule, Tiling):
        return _tiling(rule, facts)
    for name, value in facts.items():
        usual = NAMED.get(name)
        if usual is None:
            usual = range(1, LIMITS.get(name, MOST) + 1)
        sound = type(value) is type(usual[0]) and value in usual
        if not sound or (name in POWERS and value & (value - 1)):
            raise ValueError(f"{name} cannot be {value!r}")
    return type(rule)(**facts)


def positive(value: Any) -> float:
    """A time, a speed or a ratio; raises if it is not positive."""
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ValueError(f"{value!r} is no positive number")
    return float(value)


def _tiling(rule: Tiling, facts: Json) -> Tiling:
    """Another tiling of the same kernel: as many sides, and numbers where the rule has them."""
    given: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in facts.items()}
    made = replace(rule, **given)
    for name, value in asdict(made).items():
        if type(value) is not type(getattr(rule, name)):
            raise ValueError(f"{name} cannot be {value!r}")
    # The other fields follow from the kernel, such as 64-bit indices: they are not tuned.
    alike = replace(made, blocks=rule.blocks, row=rule.row, warps=rule.warps, stages=rule.stages)
    counts = (*made.blocks, made.row, made.warps)
    sound = all(type(n) is int and 0 < n <= MOST_POINTS and n & (n - 1) == 0 for n in counts)
    sound &= 0 < made.stages <= LIMITS["stages"] and alike == rule
    if not sound or len(made.blocks) != len(rule.blocks):
        raise ValueError(f"{made} is no tiling")
    return made


def trials_of(rule: AnyChoice, rows: list[Json]) -> tuple[Trial, ...]:
    """The trials that were stored."""

    def one(row: Json) -> Trial:
        times = None if row["ratio"] is None else {k: positive(v) for k, v in row["ratio"].items()}
        ratio = None if times is None else Ratio(**times)
        return Trial(choice_of(rule, row["choice"]), ratio, str(row["note"])[:LONGEST])

    return tuple(map(one, rows))


def version_of(package: str) -> str:
    """The version of an installed package; "none" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
