"""Medians and their intervals, held against planted samples and against chance itself."""

from __future__ import annotations

import pytest

from litz.bench.ratio import CONFIDENCE, geometric_mean, interval
from litz.bench.results import Row
from tests import draws
from tests.bench.planted import BERT, VIT


@pytest.mark.parametrize(
    ("n", "low", "high", "confidence"),
    [
        # From tables of the binomial distribution: 2^(1-n) is outside the whole range.
        (1, 0, 0, 0.0),
        (2, 0, 1, 0.5),
        (5, 0, 4, 0.9375),
        (6, 0, 5, 0.96875),
        (8, 0, 7, 0.9921875),
        (9, 1, 7, 0.9609375),
        (20, 5, 14, 0.9586105),
        (100, 39, 60, 0.9647998),
    ],
)
def test_the_interval_is_between_the_right_samples(
    n: int, low: int, high: int, confidence: float
) -> None:
    samples = [float(k) for k in range(n)]
    draws.python_generator(n).shuffle(samples)
    found = interval(samples)
    assert (found.low, found.median, found.high) == (low, (n - 1) / 2, high)
    assert found.confidence == pytest.approx(confidence, abs=1e-6)


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    """Skewed noise, as timings have it; the median of exp(normal) is 1."""
    draw = draws.python_generator(0)
    trials = 2000
    held = 0
    for _ in range(trials):
        found = interval([draw.lognormvariate(0, 1) for _ in range(15)])
        held += found.low <= 1 <= found.high
    # Of 2000 trials at 96.5 %, fewer than 95 % would be 3.6 standard deviations away.
    assert found.confidence > CONFIDENCE
    assert held / trials >= CONFIDENCE


def test_a_ratio_is_taken_within_each_round() -> None:
    """A machine that slows down under both leaves their ratio as it is."""
    ours = (0.010, 0.020, 0.040, 0.080, 0.010, 0.020, 0.010)
    row = Row("s", "c", "", "call", {"litz": ours, "eager": tuple(1.5 * s for s in ours)})
    found = row.speedup("eager")
    assert found is not None
    assert (found.low, found.median, found.high) == pytest.approx((1.5, 1.5, 1.5))
    wide = row.of("litz")
    assert wide is not None
    assert (wide.low, wide.median, wide.high) == pytest.approx((10, 20, 80))  # milliseconds


def test_above_one_is_better() -> None:
    faster = BERT.speedup("inductor")
    assert faster is not None and faster.median == pytest.approx(2)
    assert VIT.speedup("inductor") is None
    assert VIT.speedup("nobody") is None


def test_the_mean_of_a_ratio_and_its_inverse_is_one() -> None:
    assert geometric_mean([4.0, 0.25]) == pytest.approx(1)
