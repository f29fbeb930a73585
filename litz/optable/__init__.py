"""The op table: what Litz does with each op of torch, in which dtypes.

In: `measured.json`, which `make test-ops` writes after it has run each op of torch's own op
database in each dtype, compared it with eager, and noted what its kernels compute and what is left
to ATen. Out: `load() -> OpTable`. Nothing here asks the compiler: tests hold the file against the
rules of this version. Example: `python -m litz ops --op cumsum`.
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

# What a row can say, and what it means.
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
    """One way in which an op is computed, and the dtypes in which it is."""

    op: str
    how: str
    dtypes: tuple[str, ...]
    made_of: tuple[str, ...] = ()  # the ATen ops that kernels compute
    left: tuple[str, ...] = ()  # the ATen ops that are called
    promised: bool = False  # among the ops that Litz says it generates

    @property
    def why(self) -> str:
        """Why what is left to ATen is left to it."""
        return "; ".join(dict.fromkeys(reason(op) for op in self.left))

    @property
    def types(self) -> str:
        """The dtypes, those that are often together by one name."""
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
    """The rows, and what the sweep that measured them counted."""

    torch: str
    samples: int
    rows: tuple[Row, ...]
    core: Mapping[str, str]  # a core ATen op: by a rule, decomposed, or ATen's
    counts: Mapping[str, Mapping[str, int]]  # of cases: dtype, then what came of them
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
    def share(self) -> float:
        """Which part of the promised ops is generated."""
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
