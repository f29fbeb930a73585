"""Interleaved timing: candidates alternate in one loop, so a busy moment hits all of them.

In: functions by name. Out: `Timing` for each: seconds a call, one sample a round. The number of
rounds follows from a budget in seconds. Example:

    timings = interleave({"eager": lambda: f(x), "litz": lambda: compiled(x)}, seconds=2)
    timings["litz"].median_ms
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Candidate = Callable[[], object]
# A sample lasts at least this long: a call of microseconds is repeated to fill it.
SHORTEST_SAMPLE = 500e-6
FEWEST_ROUNDS = 6  # fewer cannot give a 95 % interval of a median


@dataclass(frozen=True)
class Timing:
    """The measurement of one candidate; `samples` are seconds a call, in order of time."""

    samples: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        return 1e3 * statistics.median(self.samples)


def interleave(
    candidates: Mapping[str, Candidate], seconds: float = 3.0, warm_up: int = 3
) -> dict[str, Timing]:
    """Call every candidate once a round until the budget is spent, for at least six rounds.

    Each round begins with another candidate, so that none always runs on the caches that the
    same neighbour left behind.
    """
    repeats = {name: _repeats(call, warm_up) for name, call in candidates.items()}
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    order = list(candidates)
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < FEWEST_ROUNDS or time.perf_counter() < end:
        for name in order:
            samples[name].append(_sample(candidates[name], repeats[name]))
        order.append(order.pop(0))
        rounds += 1
    return {name: Timing(tuple(found)) for name, found in samples.items()}


def _repeats(call: Candidate, warm_up: int) -> int:
    """Warm up, then find how many calls a sample needs."""
    fastest = min(_sample(call, 1) for _ in range(max(warm_up, 1)))
    return max(1, round(SHORTEST_SAMPLE / max(fastest, 1e-9)))


def _sample(call: Candidate, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats
