"""The measured half of the op table: `litz/optable.json`, written from a whole sweep.

In: results. Out: for each op its ATen packet, how it is computed in which dtypes, and what it
leaves to ATen. Sorted, so that equal results make equal files.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from litz.optable import MEASURED
from tests.ops.results import Result


def write_table(results: list[Result], packets: dict[str, str]) -> None:
    """One entry an op, one line a fact."""
    ops: dict[str, Any] = {}
    for r in sorted(results, key=lambda r: r.op):
        if r.status != "passed":
            continue
        entry = ops.setdefault(r.op, {"packet": packets[r.op], "dtypes": {}, "left": []})
        entry["dtypes"].setdefault(r.how, []).append(r.dtype)
        entry["left"] = sorted({*entry["left"], *r.aten})
    for entry in ops.values():
        entry["dtypes"] = {how: " ".join(names) for how, names in sorted(entry["dtypes"].items())}
    text = json.dumps({"torch": torch.__version__.partition("+")[0], "ops": ops}, indent=1)
    MEASURED.write_text(text + "\n")
