"""The op table: how Litz computes each op of torch, in which dtypes.

In: `measured.json`, which `make test-ops` writes. That runs each op of torch's own op database in
each dtype, compares it with eager, and notes which ops become kernels and which stay with ATen.
Out: `load() -> OpTable`. Nothing here asks the compiler: tests compare the file with the rules of
this version. Example: `python -m litz ops --op cumsum`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from litz.optable.reasons import reason

MEASURED = Path(__file__).with_name("measured.json")
FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
DTYPES = (*FLOATS, *INTEGERS, "bool")

# The values of `how`, and their meanings.
HOWS = {
    "generated": "kernels of ours, nothing else",
    "view": "no code at all: an index map over the operand, or a number",
    "partly": "generated kernels around calls of ATen",
    "ATen": "calls of ATen, with eager's strides, types and aliasing",
    "eager": "torch's capture breaks the graph at it, so nothing is compiled",
    "unsupported": "torch's backend `aot_eager` fails as well, or gives other values than eager",
}


@dataclass(frozen=True)
class Row:
    """One way in which an op is computed, and the dtypes it is for."""

    op: str
    how: str
    dtypes: tuple[str, ...]
    made_of: tuple[str, ...] = ()  # the ATen ops that kernels compute
    left: tuple[str, ...] = ()  # the ATen ops that are called
    promised: bool = False  # whether Litz promises to generate it

    @property
    def why(self) -> str:
        """Why the ops left to ATen are left to it."""
        return "; ".join(dict.fromkeys(reason(op) for op in self.left))

    @property
    def types(self) -> str:
        """The dtypes, with one name for common groups."""
        rest = list(self.dtypes)
        shown = []
        for name, group in (("all", DTYPES), ("floats", FLOATS), ("integers", INTEGERS)):
            if set(group) <= set(rest):
                shown.append(name)
                rest = [dtype for dtype in rest if dtype not in group]
        return ", ".join([*shown, *rest])

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "why": self.why}


@dataclass(frozen=True)
class OpTable:
    """The rows, and the counts of the sweep that measured them."""

    torch: str
    samples: int
    rows: tuple[Row, ...]
    core: Mapping[str, str]  # for each core ATen op: by a rule, decomposed, or ATen's
    counts: Mapping[str, Mapping[str, int]]  # numbers of cases, by dtype, then by outcome
    exceptions: Mapping[str, str]

    def how(self, op: str, dtype: str) -> str | None:
        return next((r.how for r in self.rows if r.op == op and dtype in r.dtypes), None)

    @property
    def promised(self) -> tuple[set[str], set[str]]:
        """The promised ops that were run, and those generated in each dtype they were run in."""
        ran = {r.op for r in self.rows if r.promised and r.how != "unsupported"}
        short = {r.op for r in self.rows if r.how not in ("generated", "view", "unsupported")}
        return ran, ran - short

    @property
    def generated_ratio(self) -> float:
        """The fraction of the promised ops that is generated."""
        ran, generated = self.promised
        return len(generated) / len(ran)


@cache
def load(file: Path = MEASURED) -> OpTable:
    read = json.loads(file.read_text())
    rows = [row for op, facts in read.pop("ops").items() for row in _rows(op, facts)]
    return OpTable(rows=tuple(rows), **read)


def _rows(op: str, facts: dict[str, Any]) -> list[Row]:
    """A row for each way in which the op is computed."""
    made, left = (tuple(facts.get(key, "").split()) for key in ("made_of", "left"))
    return [
        Row(
            op,
            how,
            tuple(dtypes.split()),
            made_of=made if how in ("generated", "partly") else (),
            left=left if how in ("ATen", "partly") else (),
            promised=facts.get("promised", False),
        )
        for how, dtypes in facts["dtypes"].items()
    ]
