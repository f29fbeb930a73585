"""Tuning results: values that `explain`, the table on stderr and the database all read.

In: choices and times. Out: a `Finding` for each kernel that was tuned, a `Tuning` for a graph.
Example: `print(finding.table())` lists every choice that was tried, the fastest first.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.ir.choices import NO_CHOICES, Choices, GemmChoice, LoopChoice
from litz.ir.program import Decision
from litz.ir.scheduled import Tiling

AnyChoice = GemmChoice | LoopChoice | Tiling


@dataclass(frozen=True)
class Ratio:
    """The time of a choice over the rule's, in alternating calls: the median, and its 99 %
    confidence interval if calls are independent. `seconds` is the rule's."""

    median: float
    low: float
    high: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Trial:
    """One choice that was tried. Without a ratio, `note` says why there is none."""

    choice: AnyChoice
    ratio: Ratio | None = None
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """The result for one kernel. `names` are the graph's nodes or kernels that are equal to it,
    `seconds` the time of a call by rule."""

    what: str
    names: tuple[str, ...]
    choice: AnyChoice
    default: AnyChoice  # the rule's
    trials: tuple[Trial, ...] = ()
    kept: bool = False  # it comes from the database

    @property
    def seconds(self) -> float:
        return next((t.ratio.seconds for t in self.trials if t.ratio is not None), 0.0)

    @property
    def title(self) -> str:
        places = f", {len(self.names)} places" if len(self.names) > 1 else ""
        return f"{self.what}{places}{', from the database' if self.kept else ''}"

    def table(self) -> str:
        """A line for each choice: its time over the rule's; an arrow marks the one taken."""
        order = sorted(self.trials, key=lambda t: t.ratio.median if t.ratio else 1e9)
        rows = [(f"{1e6 * self.seconds:.0f} us" if self.seconds else "not timed", self.default)]
        lines = [_line("1.00, " + rows[0][0], self.default, self.choice)]
        for trial in order:
            how = str(trial.ratio) if trial.ratio is not None else trial.note
            lines.append(_line(how, trial.choice, self.choice))
        return "\n".join(lines)


def _line(how: str, choice: AnyChoice, taken: AnyChoice) -> str:
    return f"{'-> ' if choice == taken else '   '}{how:24} {choice!r}"


@dataclass(frozen=True)
class Tuning:
    """The result of tuning a graph; `timed` counts the trials that were run for it."""

    choices: Choices = NO_CHOICES
    findings: tuple[Finding, ...] = ()
    decisions: tuple[Decision, ...] = ()
    timed: int = 0
