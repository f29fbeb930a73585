"""How a random program is called: once, or again at other sizes, for gradients, by threads.

In: a seed. Out: a `Manner`, the number of calls, and the sizes of each. The first call and the last
are the longest, so that memory which a call in between left behind would show.
"""

from __future__ import annotations

import random

from litz.fuzz.program import Manner

SMALL = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
# Around lanes times unroll, and what is left beside them.
ODD = (2, 3, 7, 16, 31, 33, 64, 130, 257)
LONG = (1031, 4099, 20011)  # more than a task, more than a cache

Sizes = list[list[int]]  # of each symbol, call by call


def holds_layers(seed: int) -> bool:
    """Whether a program is a module with parameters: some of those that go through Dynamo are."""
    return random.Random(f"layers {seed}").random() < 0.5


def draw_manner(seed: int) -> tuple[Manner, int]:
    """With a source of its own: what is drawn for the manner does not change the program."""
    source = random.Random(f"manner {seed}")
    if source.random() < 0.5:
        return Manner(), 1
    gradients = source.random() < 0.35
    calls = source.choice([1, 1, 2]) if gradients else source.choice([3, 4])
    threads = 2 if source.random() < 0.15 else 1
    automatic = calls > 1 and source.random() < 0.25
    return Manner(gradients, threads, automatic, dynamo=calls == 1), calls


def draw_sizes(source: random.Random, calls: int, fixed: bool = False) -> Sizes:
    """Three symbols. One may be long, and one empty in some call; one is `fixed`, if layers are to
    have parameters of that size."""
    every = [_sizes(source, source.choice(ODD), calls) for _ in range(3)]
    if fixed:
        every[2] = [source.choice(ODD[:7])] * calls
    if source.random() < 0.2:
        every[0] = _sizes(source, source.choice(LONG), calls)
    if calls > 2 and source.random() < 0.2:
        every[source.randrange(2 if fixed else 3)][1] = 0
    return every


def _sizes(source: random.Random, most: int, calls: int) -> list[int]:
    """Longest first and last; sometimes one size in all calls."""
    if source.random() < 0.25:
        return [most] * calls
    below = [n for n in (1, *ODD, *LONG) if n <= most]
    between = [source.choice(below) for _ in range(calls - 2)]
    return [most, *between, most][:calls]
