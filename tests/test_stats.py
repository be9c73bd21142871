"""Quantiles, ranks and tests against their definitions."""

from math import lgamma

import numpy as np
import pytest
from scipy.special import bdtr, stdtr, stdtrit

from spectune.stats import Change, _tail_rank, holm, median_half_width, ratio_influence, t_quantile, t_tails


def below(t: float, degrees: float) -> float:
    """P(T < t), t > 0, by the trapezoid rule on the density in the angle θ, t = √ν·tan θ."""
    angles = np.linspace(0.0, np.arctan(t / np.sqrt(degrees)), 200_001)
    scale = np.exp(lgamma((degrees + 1) / 2) - lgamma(degrees / 2)) / np.sqrt(np.pi)
    return 0.5 + scale * float(np.trapezoid(np.cos(angles) ** (degrees - 1), angles))


@pytest.mark.parametrize("probability", [0.9, 0.975, 1 - 0.025 / 64])
def test_t_quantiles_of_real_degrees(probability) -> None:
    for degrees in [1.0, 1.37, 2.0, 4.5, 11.0, 35.2, 500.0, 8000.0]:
        assert below(t_quantile(degrees, probability), degrees) == pytest.approx(probability, abs=1e-9)
    assert t_quantile(1.0, probability) == pytest.approx(np.tan(np.pi * (probability - 0.5)))  # Cauchy's
    assert t_quantile(4.5, 0.5) == 0.0


def test_the_median_lies_between_the_ranks_with_at_least_95_percent() -> None:
    for count in (6, 7, 11, 30, 101, 400):
        rank = _tail_rank(count)
        assert bdtr(rank, count, 0.5) <= 0.025 < bdtr(rank + 1, count, 0.5)


def test_six_samples_span_their_own_range() -> None:
    samples = np.array([3.0, 1.0, 2.0, 4.0, 6.0, 5.0])
    assert median_half_width(samples) == pytest.approx(5.0 / 2 / 3.5)
    assert median_half_width(samples, scale=10.0) == pytest.approx(0.25)
    assert median_half_width(samples[:5]) == float("inf")


@pytest.mark.parametrize("degrees", [1.0, 2.5, 11.0, 35.7, 400.0])
@pytest.mark.parametrize("t", [0.0, 0.3, 1.96, 2.6, 6.0, 40.0])
def test_tails_of_t_are_those_of_its_density(degrees, t) -> None:
    assert t_tails(t, degrees) == pytest.approx(2 * (1 - below(t, degrees)), abs=1e-8)


def test_holm_is_a_closed_test_with_bonferroni() -> None:
    """Oracle: a hypothesis falls where every set that holds it is rejected at level over its size."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        p_values = (rng.random(5) ** 4).tolist()
        subsets = [[i for i in range(5) if number >> i & 1] for number in range(1, 32)]
        rejected = [subset for subset in subsets if min(p_values[i] for i in subset) <= 0.05 / len(subset)]
        expected = [all(subset in rejected for subset in subsets if i in subset) for i in range(5)]
        assert holm(p_values, 0.05) == expected
    assert holm([], 0.05) == []


def test_the_influence_on_a_ratio_is_its_jackknife() -> None:
    rng = np.random.default_rng(0)
    top, bottom = rng.random(20), 1 + rng.random(20)
    left = np.array([np.delete(top, i).sum() / np.delete(bottom, i).sum() for i in range(20)])
    variance = 19 / 20 * np.sum((left - left.mean()) ** 2)
    assert np.sum(ratio_influence(top, bottom) ** 2) == pytest.approx(variance)
    assert np.allclose(ratio_influence(np.zeros(20), bottom), 0.0)
    assert np.isnan(ratio_influence(top[:1], bottom[:1])).all()


def test_changes_hold_what_they_are_made_of() -> None:
    change = Change.of_logs(np.log(1.1), 0.02, 30)
    assert change.relative == pytest.approx(0.1)
    assert change.low < 0.1 < change.high
    assert change.p_value == pytest.approx(2 * stdtr(30, -np.log(1.1) / 0.02))
    assert Change.of_logs(0.0, 0.0, 30).p_value == 1.0
    assert Change.of_logs(0.1, 0.0, 30).p_value == 0.0
    unknown = Change.of_logs(0.1, float("nan"), 30)
    assert (unknown.low, unknown.high, unknown.p_value) == (-1.0, float("inf"), 1.0)
    fallen = Change.of_difference(-0.5, 0.1, 0.5, 30)
    assert (fallen.relative, fallen.low) == (-1.0, pytest.approx(-1.0 - stdtrit(30, 0.975) * 0.2))
