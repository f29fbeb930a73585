"""Python's cyclic garbage collector, run less often while a graph is compiled.

In: nothing. Out: a context. A compile makes millions of objects that live until it ends, and the
collector walks them again and again: a quarter of the time of our stages at 2,000 kernels, and more
with each kernel. It is not switched off, since graphs and expressions hold cycles: what dies early
is freed early. Example: `with fewer_collections(): ...`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# New objects before young ones are looked at (Python: 700), young passes before a middle one, and
# middle passes before one over everything there is.
THRESHOLDS = (100_000, 20, 100)


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Raise the collector's thresholds; what the program chose is there again behind it."""
    before = gc.get_threshold()
    if before[0]:  # 0: the program has switched it off
        gc.set_threshold(*map(max, THRESHOLDS, before))
    try:
        yield
    finally:
        gc.set_threshold(*before)
