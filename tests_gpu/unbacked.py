"""Sizes that only data tells, on a GPU: part `unbacked` of `tests_gpu.run`.

In: `Results`. Out: a check a program of `tests/dynamic/unbacked.py`, at all its calls, against
eager on the same GPU; some of them again with CUDA graphs asked for; and last a table: calls that
were compared, calls that torch itself refuses, kernels, parts that are recorded, seconds. A program
is one compile and runs nowhere as eager. Example: `python -m tests_gpu.run unbacked`.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch

from tests.codegen.triton.unbacked_cases import IN_PARTS
from tests.dynamic.unbacked import PROGRAMS, Program, check
from tests_gpu.run import Results

# GPU and eager add up in different orders: relative and absolute, of floats alone.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
RECORDED = {"triton.cudagraphs": True}
AGAIN = ("chosen", "in_turn", "run_of_kernels", "experts", "softmax_loss", "times_number", "window")
SECONDS = 100.0  # then the rest is not reached


class Table:
    """Rows of what was run; printed when all is done, whatever failed."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, ...]] = []
        self.end = time.monotonic() + SECONDS

    def run(self, program: Program, options: dict[str, Any] | None = None) -> None:
        """One program at all its calls."""
        name = f"{program.name}{', recorded' if options else ''}"
        start = time.monotonic()
        if start > self.end:
            self.rows.append((name, "not reached", "", "", "", ""))
            raise TimeoutError(f"{SECONDS:.0f} s are over")
        try:
            notes, refused = check(program, "cuda", options, **CLOSE)
            torch.cuda.synchronize()
        except Exception as error:
            self.rows.append((name, f"FAIL {type(error).__name__}", "", "", "", ""))
            raise
        calls = str(len(program.calls) - refused)
        kernels = sum(len(g.kernels) for g in notes.graphs)
        policies = [g.call.recording for g in notes.graphs]
        recorded = sum(policy.recorded for policy in policies)
        took = f"{time.monotonic() - start:.1f}"
        self.rows.append((name, calls, str(refused), str(kernels), str(recorded), took))

    def text(self) -> str:
        head = ("program", "calls", "refused", "kernels", "recorded parts", "s")
        return "\n".join(
            f"  {row[0]:32}" + "".join(f"{cell:>16}" for cell in row[1:])
            for row in (head, *self.rows)
        )


def unbacked(results: Results) -> None:
    """Sizes and numbers that data tells: every program at changing counts, zero and one too."""
    table = Table()
    for name, program in {**PROGRAMS, **IN_PARTS}.items():
        results.check(f"unbacked {name}", partial(table.run, program))
    for name, program in {**{n: PROGRAMS[n] for n in AGAIN}, **IN_PARTS}.items():
        results.check(f"unbacked {name}, recorded", partial(table.run, program, RECORDED))
    print(table.text(), flush=True)
