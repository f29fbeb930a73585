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

from litz.fuzz.compare import TORCH, Failure, check, check_calls
from litz.fuzz.generate import generate
from litz.fuzz.program import Program
from tests.codegen.triton.apart import told

# Without one whose op is refused by name, and two that the interpreter takes 20 seconds for.
PROGRAMS = [str(seed) for seed in range(27) if seed not in (3, 10, 12)]


def run(name: str) -> list[dict[str, Any]]:
    """One program, by its seed."""
    there = importlib.import_module("tests.codegen.triton.interpreted")
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    program = generate(int(name))
    with there.interpreting():
        failure = judged(program)
    torchs = failure is not None and failure.who == TORCH  # its own capture is wrong alike
    assert failure is None or torchs, f"{failure}\n{program.text()}"
    return []


def judged(program: Program) -> Failure | None:
    """At the sizes of all its calls, for its gradients and by threads, as a hunt calls it."""
    function, rest = program.function(), (program.options, program.labels)
    calls = [program.fresh_inputs(k) for k in range(program.calls)]
    if program.is_plain:
        return check(function, calls[0], *rest, judged=("litz",))
    return check_calls(function, calls, *rest, program.call_mode, program.parameters)


if __name__ == "__main__":
    told(sys.argv[1:], PROGRAMS, run)
