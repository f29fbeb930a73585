"""An entry of the zoo: how to build an architecture, what to call it with, and how to try it.

In: nothing. Out: values. Numbers are drawn from the default generator, which the runner seeds by
the entry's name. Example:

    Entry("gru", "recurrent", lambda: nn.GRU(8, 16), lambda n: {"input": torch.randn(n, 2, 8)})
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

LENGTHS = (12, 7, 12)  # longest first and last: what a smaller call leaves behind would show
BATCHES = (3, 2, 3)
BOTH = ("inference", "training")
SIZED = ("inference", "sized training")


@dataclass(frozen=True)
class Entry:
    """One architecture."""

    name: str
    family: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], dict[str, Any]]  # by size: a length or a batch
    sizes: tuple[int, ...] = LENGTHS
    kinds: tuple[str, ...] = BOTH  # keys of `runs.RUNS`
    optimizer: str = ""  # the class in torch.optim, for the kind of that name
