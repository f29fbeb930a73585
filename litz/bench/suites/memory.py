"""Suite `memory`: the memory that a call of each model of the zoo adds at its peak.

In: nothing. Out: a case for each model. Example: `bert`.
"""

from __future__ import annotations

from functools import partial

from litz.bench.case import Case, Suite
from litz.bench.fresh import measure_memory
from litz.bench.suites.cpu import model
from litz.bench.zoo import ZOO


def cases(quick: bool) -> list[Case]:
    return [
        Case("memory", name, "", partial(model, name, 4, quick), measure_memory) for name in ZOO
    ]


SUITE = Suite("Models, batch 4: peak of intermediates and results, in fresh processes.", cases)
