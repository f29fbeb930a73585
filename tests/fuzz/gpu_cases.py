"""Random programs with the kernels of a GPU, as the interpreter runs them.

In: nothing. Out: an error if a program gives anything but what eager and rounding allow. Example:
`TRITON_INTERPRET=1 python -m tests.fuzz.gpu_cases 17`.
"""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from typing import Any

from litz.fuzz.compare import check
from litz.fuzz.generate import generate
from tests.codegen.triton.apart import told

PROGRAMS = [str(seed) for seed in range(24)]


def run(name: str) -> list[dict[str, Any]]:
    """One program, by its seed."""
    there = importlib.import_module("tests.codegen.triton.interpreted")
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    program = generate(int(name))
    given = program.function(), program.fresh_inputs(), program.options, program.labels
    with there.interpreting():
        failure = check(*given, judged=("litz",))
    assert failure is None, f"{failure}\n{program.text()}"
    return []


if __name__ == "__main__":
    told(sys.argv[1:], PROGRAMS, run)
