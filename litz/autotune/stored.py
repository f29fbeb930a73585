"""Choices and trials as the database keeps them: JSON, read back with care.

In: a choice, or what was kept of one and the rule's choice beside it. Out: the other. What is not
as a choice of that kind can be raises ValueError or TypeError. Example:
`choice_of(ProductChoice(), {"block": 8})` is `ProductChoice(block=8)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from litz.autotune.database import Json
from litz.autotune.results import AnyChoice, Ratio, Trial
from litz.ir.choices import FORMS
from litz.ir.scheduled import Tiling

# Fields that need not be positive numbers, and what they may be.
NAMED: dict[str, Sequence[Any]] = {
    "backend": ("LITZ", "ATEN", "LOOP"), "form": FORMS, "fused": (True, False),
    "rows": (True, False), "prologue": (True, False), "stretch": range(1 << 20),
}  # fmt: skip


def kept(choice: AnyChoice, trials: tuple[Trial, ...]) -> Json:
    """All of a finding that another process needs."""
    rows = [{"choice": _facts(t.choice), "note": t.note,
             "ratio": None if t.ratio is None else vars(t.ratio)} for t in trials]  # fmt: skip
    return {"choice": _facts(choice), "trials": rows}


def _facts(choice: AnyChoice) -> Json:
    if isinstance(choice, Tiling):
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(choice).items()}
    return choice.facts()


def choice_of(rule: AnyChoice, facts: Json) -> AnyChoice:
    """The choice of the rule's kind that these are the facts of."""
    if isinstance(rule, Tiling):
        return _tiling(rule, facts)
    for name, value in facts.items():
        usual = NAMED.get(name)
        if value not in usual if usual else type(value) is not int or value < 1:
            raise ValueError(f"{name} cannot be {value!r}")
    return type(rule)(**facts)


def _tiling(rule: Tiling, facts: Json) -> Tiling:
    """Another tiling of the same kernel: as many sides, and numbers where the rule has them."""
    given: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in facts.items()}
    made = replace(rule, **given)
    for name, value in asdict(made).items():
        if type(value) is not type(getattr(rule, name)):
            raise ValueError(f"{name} cannot be {value!r}")
    sound = all(type(n) is int and n > 0 for n in (*made.blocks, made.row, made.warps, made.stages))
    if not sound or len(made.blocks) != len(rule.blocks):
        raise ValueError(f"{made} is no tiling")
    return made


def trials_of(rule: AnyChoice, rows: list[Json]) -> tuple[Trial, ...]:
    """The trials that were kept."""

    def one(row: Json) -> Trial:
        ratio = None if row["ratio"] is None else Ratio(**row["ratio"])
        return Trial(choice_of(rule, row["choice"]), ratio, str(row["note"]))

    return tuple(map(one, rows))
