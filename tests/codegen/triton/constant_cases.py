"""Constants on a GPU, as the interpreter runs them: `tests/codegen/constants.py` there.

In: nothing. Out: an error if a bit differs from eager's on this CPU. Example:
`TRITON_INTERPRET=1 python -m tests.codegen.triton.constant_cases "rewrites of float32"`.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tests.codegen.constants import CASES, on_a_gpu
from tests.codegen.triton.apart import told


def run(name: str) -> list[dict[str, Any]]:
    """One case; nothing is compiled of it."""
    there, case = importlib.import_module("tests.codegen.triton.interpreted"), on_a_gpu(CASES[name])
    x = case.given()
    graph, device = there.graph_of(there.tiled(case.program, x, **case.options), **case.options)
    case.compare(there.ran(graph, device, [x])[: len(case.results)])
    return []


if __name__ == "__main__":
    told(sys.argv[1:], CASES, run)
