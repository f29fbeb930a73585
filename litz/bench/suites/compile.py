"""Suite `compile`: compile times of the models of the zoo, cold and in a second process.

In: nothing. Out: a case for each model. Example: `bert`.
"""

from __future__ import annotations

from functools import partial

from litz.bench.case import Case, Suite
from litz.bench.fresh import measure_compile
from litz.bench.suites.cpu import model
from litz.bench.zoo import ZOO


def cases(quick: bool) -> list[Case]:
    return [
        Case("compile", name, "", partial(model, name, 2, quick), measure_compile) for name in ZOO
    ]


SUITE = Suite("Models, batch 2: the time to compile, in fresh processes with empty caches.", cases)
