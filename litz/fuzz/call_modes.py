"""Call modes: a random program is called once, or again at other sizes, for gradients, by threads.

In: a seed. Out: a `CallMode`, the number of calls, and the sizes of each. The first and the last
call are the largest, so that a call in between that leaves stale memory behind is noticed.
"""

from __future__ import annotations

import random

from litz.fuzz.program import CallMode

SMALL = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
# Sizes around lanes times unroll, and with tails.
ODD = (2, 3, 7, 16, 31, 33, 64, 130, 257)
LONG = (1031, 4099, 20011)  # more than a task, more than a cache

Sizes = list[list[int]]  # for each symbol, its size in each call


def holds_layers(seed: int) -> bool:
    """Whether a program is a module with parameters, as half of those through Dynamo are."""
    return random.Random(f"layers {seed}").random() < 0.5


def draw_call_mode(seed: int) -> tuple[CallMode, int]:
    """Draws from its own random source: the call mode does not change the program."""
    source = random.Random(f"manner {seed}")
    if source.random() < 0.5:
        return CallMode(), 1
    gradients = source.random() < 0.35
    calls = source.choice([1, 1, 2]) if gradients else source.choice([3, 4])
    threads = 2 if source.random() < 0.15 else 1
    automatic = calls > 1 and source.random() < 0.25
    return CallMode(gradients, threads, automatic, dynamo=calls == 1), calls


def draw_sizes(source: random.Random, calls: int, fixed: bool = False) -> Sizes:
    """The sizes of three symbols. One may be long, and one empty in some call. One is `fixed`, if
    layers are to have parameters of that size."""
    every = [_sizes(source, source.choice(ODD), calls) for _ in range(3)]
    if fixed:
        every[2] = [source.choice(ODD[:7])] * calls
    if source.random() < 0.2:
        every[0] = _sizes(source, source.choice(LONG), calls)
    if calls > 2 and source.random() < 0.2:
        every[source.randrange(2 if fixed else 3)][1] = 0
    return every


def _sizes(source: random.Random, most: int, calls: int) -> list[int]:
    """The largest size first and last; sometimes the same size in all calls."""
    if source.random() < 0.25:
        return [most] * calls
    below = [n for n in (1, *ODD, *LONG) if n <= most]
    between = [source.choice(below) for _ in range(calls - 2)]
    return [most, *between, most][:calls]
