"""Intervals. The unit is the prompt; counts are pooled; ratios are never averaged."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, stdtrit

Floats = NDArray[np.float64]

MIN_EFFECTIVE_PROMPTS = 12
FEW_EFFECTIVE_PROMPTS = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A point estimate and its 95% confidence interval; the ends are None where no interval is honest."""

    estimate: float
    low: float | None
    high: float | None


def effective_prompts(weights: Floats) -> float:
    """(Σw)²/Σw²: how many equally weighted prompts carry the same information; 0 without weight."""
    square = float(np.sum(weights**2))
    return float(np.sum(weights)) ** 2 / square if square > 0 else 0.0


def log_ratio_standard_error(
    numerators: Floats,  # [prompts]
    denominators: Floats,  # [prompts]
) -> float:
    """Jackknife standard error over prompts of log(Σnumerators/Σdenominators).

    NaN where fewer than two prompts are left or one prompt carries everything.
    """
    count = len(numerators)
    left_top = numerators.sum() - numerators
    left_bottom = denominators.sum() - denominators
    if count < 2 or np.any(left_top <= 0) or np.any(left_bottom <= 0):
        return float("nan")
    leave_one_out = np.log(left_top / left_bottom)
    spread = leave_one_out - leave_one_out.mean()
    return float(np.sqrt((count - 1) / count * np.sum(spread**2)))


def log_t_interval(estimate: float, standard_error: float, effective_count: float) -> Interval:
    """exp(log estimate ± t·SE) with n_eff − 1 degrees of freedom; open below 2 effective prompts."""
    if effective_count < 2 or not np.isfinite(standard_error):
        return Interval(estimate=estimate, low=None, high=None)
    half = float(stdtrit(effective_count - 1, 0.975)) * standard_error
    return Interval(estimate=estimate, low=estimate * float(np.exp(-half)), high=estimate * float(np.exp(half)))


def median_half_width(samples: Floats) -> float:
    """Half of the distribution-free 95% interval of the median, relative to the median; inf below 6 samples.

    Source: the sign-test interval from order statistics.
    """
    ordered = np.sort(samples)
    count = len(ordered)
    if count < 6:
        return float("inf")
    rank = int(np.searchsorted(bdtr(np.arange(count), count, 0.5), 0.025, side="right")) - 1
    width = ordered[count - 1 - rank] - ordered[rank] if rank >= 0 else np.inf
    return float(width / 2 / np.median(ordered))
