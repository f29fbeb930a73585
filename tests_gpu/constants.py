"""Constants on a GPU: part `constants` of `tests_gpu.run`.

In: `Results`. Out: a check a case of `tests/codegen/constants.py`: every bit is eager's on the same
GPU. Small kernels: many are compiled at a time. Example: `python -m tests_gpu.run constants`.
"""

from __future__ import annotations

from functools import partial

import torch

from tests.codegen.constants import CASES, HALF_DTYPES, Case
from tests.stages import compiled
from tests_gpu.run import Results

# Eager on a GPU divides by a number as it multiplies by 1 over it, which is off by a bit, and has
# a function of its own for this power.
OTHERWISE = ("x / c", "x / 8", "x / 3", "x / -2 ** -20", "x / 2 ** 127", "x ** -1")
# LLVM takes `x > 0 ? 0 : x` for an extreme if x was converted from another type, and then forgets
# the sign of its zero.
CONVERTED = ("where c, x", "where(x > 0, 0, x)", "wide where(x > 0, 0, x)")
FEW = 8  # results a kernel


def _is_kept(name: str, case: Case) -> bool:
    """Whether eager's result there is to be ours, bit for bit."""
    op, _, number = name.partition(", c = ")
    if op.startswith("clamp") and number == "nan":
        return False  # eager drops such a bound on a GPU, and gives NaN on a CPU, as we do on both
    converted = case.dtype in HALF_DTYPES or op.startswith("wide")
    return op not in OTHERWISE and not (converted and op in CONVERTED)


def _run(case: Case) -> str:
    x = case.given("cuda")
    kept = {n: f for n, f in case.results.items() if _is_kept(n, case)}
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
