"""Constants on a GPU: part `constants` of `tests_gpu.run`.

In: `Results`. Out: a check a case of `tests/codegen/constants.py`: every bit is eager's on the same
GPU. Small kernels: many are compiled at a time. Example: `python -m tests_gpu.run constants`.
"""

from __future__ import annotations

from functools import partial

import torch

from tests.codegen.constants import CASES, Case
from tests.stages import compiled
from tests_gpu.run import Results

# Eager on a GPU divides by a number as it multiplies by 1 over it, which is off by a bit, and has
# a function of its own for this power.
OTHERWISE = ("x / c", "x / 8", "x / 3", "x / -2 ** -20", "x / 2 ** 127", "x ** -1")
FEW = 8  # results a kernel


def _run(case: Case) -> str:
    x = case.given("cuda")
    kept = {n: f for n, f in case.results.items() if n.split(", c =")[0] not in OTHERWISE}
    for name, function in list(kept.items()):
        try:
            function(x)
        except (RuntimeError, NotImplementedError):  # eager has no such kernel there
            del kept[name]
    case = Case(case.dtype, kept)
    run = compiled(case.program, **case.options, max_fusion_size=FEW)
    found = run(x)
    torch.cuda.synchronize()
    case.compare(found, "cuda")
    return f"{len(kept)} results"


def constants(results: Results) -> None:
    """Zeros with a sign, denormals, NaN, limits and long integers as constants of every type."""
    for name, case in CASES.items():
        results.check(f"constants, {name}", partial(_run, case))
