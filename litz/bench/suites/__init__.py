"""The suites: one file each, and this table of them.

In: a name. Out: `Suite`: a sentence and a function that returns named cases. To add one, write a
file with a `SUITE` and add a row here. Example: `SUITES["cpu"].cases(True)[0].label`.
"""

from __future__ import annotations

from litz.bench.case import Case, Suite
from litz.bench.suites import (
    attention,
    best,
    calls,
    compile,
    conv,
    cpu,
    dynamic,
    gemm,
    gpu,
    kernels,
    memory,
    scaling,
    train,
)

SUITES: dict[str, Suite] = {
    "cpu": cpu.SUITE,
    "best": best.SUITE,
    "kernels": kernels.SUITE,
    "gemm": gemm.SUITE,
    "conv": conv.SUITE,
    "attention": attention.SUITE,
    "calls": calls.SUITE,
    "compile": compile.SUITE,
    "scaling": scaling.SUITE,
    "memory": memory.SUITE,
    "train": train.SUITE,
    "dynamic": dynamic.SUITE,
    "gpu": gpu.SUITE,
}


def case_named(suite: str, name: str, variant: str, quick: bool) -> Case:
    """The case of that name, which a worker was started for."""
    cases = SUITES[suite].cases(quick)
    return next(case for case in cases if (case.name, case.variant) == (name, variant))
