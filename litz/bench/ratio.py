"""Medians with the interval that the samples themselves support.

In: samples. Out: `Interval`: the median between two of the samples. The interval needs no model of
the noise: of n samples, the true median lies below the k-th smallest exactly when fewer than k of
them fall below it, which has the probability of fewer than k heads in n throws of a coin. Example:

    interval([1.0] * 5 + [9.0])  # median 1, between 1 and 9, which holds with 96.9 %
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A median; `confidence` is how sure it is that the true one lies in low..high."""

    low: float
    median: float
    high: float
    confidence: float


def interval(samples: Sequence[float]) -> Interval:
    """The narrowest pair of order statistics that is sure enough, or the widest there is.

    Fewer than six samples cannot give 95 %: then it is their whole range, and says so.
    """
    ordered = sorted(samples)
    n = len(ordered)
    cut = 0  # samples left out at either end
    while cut + 1 < n - cut - 1 and _confidence(n, cut + 1) >= CONFIDENCE:
        cut += 1
    median = statistics.median(ordered)
    return Interval(ordered[cut], median, ordered[n - 1 - cut], _confidence(n, cut))


def _confidence(n: int, cut: int) -> float:
    """The chance that the median lies between the samples that remain after cutting both ends."""
    tail = sum(math.comb(n, heads) for heads in range(cut + 1))
    return 1 - 2 * tail / 2**n if n > 1 else 0.0


def geometric_mean(ratios: Iterable[float]) -> float:
    """The mean of ratios: 2 and 1/2 make 1."""
    return statistics.geometric_mean(ratios)
