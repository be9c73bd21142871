"""Quantiles and ranks against a library that has them."""

import numpy as np
import pytest
from scipy.special import bdtr, stdtrit

from spectune.stats import _tail_rank, median_half_width, t_quantile


@pytest.mark.parametrize("probability", [0.5, 0.9, 0.975, 1 - 0.025 / 64])
def test_t_quantiles_of_real_degrees(probability) -> None:
    for degrees in [1.0, 1.37, 2.0, 4.5, 11.0, 35.2, 500.0, 8000.0]:
        assert t_quantile(degrees, probability) == pytest.approx(stdtrit(degrees, probability), rel=1e-5, abs=1e-12)


def test_the_median_lies_between_the_ranks_with_at_least_95_percent() -> None:
    for count in (6, 7, 11, 30, 101, 400):
        rank = _tail_rank(count)
        assert bdtr(rank, count, 0.5) <= 0.025 < bdtr(rank + 1, count, 0.5)


def test_six_samples_span_their_own_range() -> None:
    samples = np.array([3.0, 1.0, 2.0, 4.0, 6.0, 5.0])
    assert median_half_width(samples) == pytest.approx(5.0 / 2 / 3.5)
    assert median_half_width(samples, scale=10.0) == pytest.approx(0.25)
    assert median_half_width(samples[:5]) == float("inf")
