"""Medians with the confidence interval that the samples themselves support.

In: samples. Out: `Interval`: the median, between two of the samples. The interval needs no model of
the noise: of n samples, the true median lies below the k-th smallest exactly if fewer than k of
them are below it, which has the probability of fewer than k heads in n throws of a coin. Example:

    interval([1.0] * 5 + [9.0])  # median 1, between 1 and 9, with confidence 96.9 %
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A median; `confidence` is the probability that the true one lies in low..high."""

    low: float
    median: float
    high: float
    confidence: float


def interval(samples: Sequence[float]) -> Interval:
    """The narrowest pair of order statistics with 95 % confidence, or the widest there is.

    Fewer than six samples cannot give 95 %: then it is their whole range, and `confidence` says so.
    """
    ordered = sorted(samples)
    n = len(ordered)
    sure = list(takewhile(lambda chance: chance >= CONFIDENCE, _confidences(n)))
    cut = max(min(len(sure) - 1, (n - 1) // 2 - (n % 2 == 0)), 0)  # samples cut at either end
    confidence = sure[cut] if sure else next(_confidences(n))
    return Interval(ordered[cut], statistics.median(ordered), ordered[n - 1 - cut], confidence)


def _confidences(n: int) -> Iterator[float]:
    """The probabilities that the median lies between the samples that remain after cutting 0, 1,
    ... of them at both ends."""
    tail, ways = 0, 1
    for cut in range(n // 2 + 1):
        tail += ways
        ways = ways * (n - cut) // (cut + 1)
        yield 1 - 2 * tail / 2**n if n > 1 else 0.0


def geometric_mean(ratios: Iterable[float]) -> float:
    """The mean of ratios: 2 and 1/2 make 1."""
    return statistics.geometric_mean(ratios)
