"""Intervals. The unit is the prompt; counts are pooled; ratios are never averaged."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MIN_EFFECTIVE_PROMPTS = 12
FEW_EFFECTIVE_PROMPTS = 36
NORMAL = NormalDist()
_SWEEPS = 3
_DRAWS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A point estimate and its 95% confidence interval; the ends are None where no interval is honest."""

    estimate: float
    low: float | None
    high: float | None

    def holds(self, value: float) -> bool | None:
        """Whether the value lies inside; None without an interval."""
        return None if self.low is None or self.high is None else self.low <= value <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A figure relative to an earlier one, less 1, with its 95% interval and the chance of so much without a change."""

    relative: float
    low: float
    high: float
    p_value: float

    @staticmethod
    def of_logs(log: float, error: float, degrees: float) -> "Change":
        """From a difference of logs and its standard error."""
        half, p_value = _half_and_p(log, error, degrees)
        low, high = math.expm1(log - half), (math.expm1(log + half) if log + half < 700 else math.inf)
        return Change(relative=math.expm1(log), low=low, high=high, p_value=p_value)

    @staticmethod
    def of_difference(difference: float, error: float, before: float, degrees: float) -> "Change":
        """From a plain difference and its standard error, for figures that may fall to 0; `before` is above 0."""
        half, p_value = _half_and_p(difference, error, degrees)
        ends = (difference - half) / before, (difference + half) / before
        return Change(relative=difference / before, low=ends[0], high=ends[1], p_value=p_value)


def _half_and_p(value: float, error: float, degrees: float) -> tuple[float, float]:
    """Half of the 95% interval, two-sided p-value; unknown errors and no degrees of freedom leave all open."""
    if not math.isfinite(error) or degrees < 1:
        return math.inf, 1.0
    if error == 0:
        return 0.0, float(value == 0)
    return t_quantile(degrees, 0.975) * error, t_tails(abs(value) / error, degrees)


def pooled(variances: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Standard error and degrees of freedom of a sum of independent errors. Source: Satterthwaite 1946; Welch 1947."""
    total = sum(variance for variance, _ in variances)
    if not 0 < total < math.inf:
        return math.sqrt(total), 1.0
    spread = sum(variance**2 / max(degrees, 1.0) for variance, degrees in variances)
    return math.sqrt(total), min(total**2 / spread, 1e6) if spread > 0 else 1e6


def holm(p_values: Sequence[float], level: float) -> list[bool]:
    """Which of several hypotheses fall: the chance of any false one is at most `level`. Source: Holm 1979."""
    fallen = [False] * len(p_values)
    for step, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        if p_values[index] > level / (len(p_values) - step):
            break
        fallen[index] = True
    return fallen


def t_tails(t: float, degrees: float) -> float:
    """P(|T| > t) of Student's t with real `degrees` of freedom."""
    from scipy.special import stdtr  # type: ignore[import-untyped]  # slow to import: only where it is needed

    return float(2 * stdtr(degrees, -t))


@cache
def t_quantile(degrees: float, probability: float) -> float:
    """Quantile of Student's t with real `degrees` of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


@cache
def _tail_rank(count: int) -> int:
    """The last order statistic that lies below the median with at least 97.5%; −1 where none does."""
    from scipy.special import bdtr

    return int(np.searchsorted(bdtr(np.arange(count), count, 0.5), 0.025, side="right")) - 1


def effective_prompts(weights: Floats) -> float:
    """(Σw)²/Σw²: how many equally weighted prompts carry the same information; 0 without weight."""
    square = float(np.sum(weights**2))
    return float(np.sum(weights)) ** 2 / square if square > 0 else 0.0


def ratio_influence(numerators: Floats, denominators: Floats, log: bool = False) -> Floats:  # [prompts] each
    """What each prompt does to Σnumerators/Σdenominators: jackknife deviations whose squares sum to its variance.

    Products of two such arrays sum to a covariance. NaN where fewer than two are left or one carries everything.
    """
    top, bottom = (values.sum() - values for values in (numerators, denominators))
    count = len(top)
    if count < 2 or not np.all(bottom > 0) or (log and not np.all(top > 0)):
        return np.full(count, np.nan)
    left = np.log(top / bottom) if log else top / bottom  # without each prompt
    return np.asarray((left.mean() - left) * np.sqrt((count - 1) / count))


def log_ratio_influence(numerators: Floats, denominators: Floats) -> Floats:  # [prompts] each
    """What each prompt does to the ratio's logarithm."""
    return ratio_influence(numerators, denominators, log=True)


def root_sum_square(*influences: Floats) -> float:
    """The standard error that prompts give a figure they do this to; NaN where it is not known."""
    return float(np.sqrt(sum(np.sum(influence**2) for influence in influences)))


def log_t_interval(estimate: float, standard_error: float, effective_count: float) -> Interval:
    """exp(log estimate ± t·SE) with n_eff − 1 degrees of freedom; open below 2 effective prompts."""
    if effective_count < 2 or not np.isfinite(standard_error):
        return Interval(estimate=estimate, low=None, high=None)
    half = t_quantile(effective_count - 1, 0.975) * standard_error
    return Interval(estimate=estimate, low=estimate * float(np.exp(-half)), high=estimate * float(np.exp(half)))


def log_ratio_interval(numerators: Floats, denominators: Floats) -> Interval:  # of [prompts]
    """Σnumerators/Σdenominators with its interval over prompts, which weigh what their denominators do."""
    error = root_sum_square(log_ratio_influence(numerators, denominators))
    return log_t_interval(float(numerators.sum() / denominators.sum()), error, effective_prompts(denominators))


def max_t_quantile(influence: Floats) -> float:  # [observations, candidates] on each candidate's log figure
    """The 97.5% quantile of the largest standardised error among candidates: at least 1.96.

    A lower end so far below the best candidate holds for whichever was picked. Errors are normal with the candidates'
    own covariance. Source: Westfall and Young 1993 (max-t); Chernozhukov et al. 2013 (multiplier bootstrap).
    """
    covariance = influence.T @ influence
    deviation = np.sqrt(np.diag(covariance))
    alive = deviation > 0
    if not alive.any():
        return NORMAL.inv_cdf(0.975)
    correlation = covariance[np.ix_(alive, alive)] / np.outer(deviation[alive], deviation[alive])
    values, vectors = np.linalg.eigh(correlation)
    normals = np.random.default_rng(0).standard_normal((_DRAWS, len(values)))
    errors = normals @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
    return max(float(np.quantile(errors.max(axis=1), 0.975)), NORMAL.inv_cdf(0.975))


def prediction_standard_error(influence: Floats, within_variance: float, prompts: int) -> float:
    """Standard error of the log ratio that a run on `prompts` other prompts will show.

    `within_variance` is what the chance of acceptance adds to the log ratio of one run on the prompts at hand.
    """
    share = len(influence) / prompts
    return float(np.sqrt(np.sum(influence**2) * (1 + share) + within_variance * share))


def median_half_width(samples: Floats, scale: float = 0.0) -> float:
    """Half of the sign test's 95% interval of the median, relative to it or to `scale`, the larger; else infinite."""
    ordered, count = np.sort(samples), len(samples)
    if count < 6:
        return math.inf
    rank = _tail_rank(count)
    width = ordered[count - 1 - rank] - ordered[rank] if rank >= 0 else np.inf
    reference = max(abs(float(np.median(ordered))), scale)
    return float(width / 2 / reference) if reference > 0 else math.inf


def steady_seconds(
    seconds: Floats,  # [samples]
    cells: NDArray[np.int64],  # [samples] which cell each sample is of
    passes: NDArray[np.int64],  # [samples] which measurement pass it belongs to
    forwards: NDArray[np.bool_],  # [samples] whether it may tell how fast the machine was
) -> Floats:  # [samples]
    """Samples with what all forwards of a pass share divided out: a drift of the machine touches all cells alike.

    It is the pass effect of a median polish of log seconds (Tukey 1977); fewer than five forwards would hide noise.
    """
    levels = np.zeros(int(passes.max(initial=-1)) + 1)
    enough = np.bincount(passes[forwards], minlength=len(levels)) >= 5
    logs = np.log(np.maximum(seconds[forwards], 1e-12))
    pass_of, cell_of = passes[forwards], cells[forwards]  # each forward
    for _ in range(_SWEEPS if enough.any() else 0):
        flat = medians_by(logs - levels[pass_of], cell_of)
        levels = np.where(enough, medians_by(logs - flat[cell_of], pass_of, len(levels)), 0.0)
        levels = np.where(enough, levels - np.median(levels[enough]), 0.0)
    return np.asarray(seconds / np.exp(levels[passes]))


def medians_by(values: Floats, groups: NDArray[np.int64], count: int = 0) -> Floats:
    """[groups] median of the values in each group, 0 where it is empty; at least `count` groups."""
    ordered, sizes = values[np.lexsort((values, groups))], np.bincount(groups, minlength=count)
    first, there = np.cumsum(sizes) - sizes, sizes > 0
    medians = np.zeros(len(sizes))
    low, high = (first + (sizes - 1) // 2)[there], (first + sizes // 2)[there]
    medians[there] = (ordered[low] + ordered[high]) / 2
    return medians
