"""Expected tokens, speed-up, best K and break-even α: the pure formulas.

Source: Leviathan et al. 2023, arXiv 2211.17192, equation 1 and theorem 3.8.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spectune.errors import ConfigError

_ALPHA_STEP = 1e-12
_GRID = 101
_HALVINGS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupRow:
    """One K of a what-if table; `speedup` is over plain decoding."""

    num_speculative_tokens: int
    expected_tokens: float
    speedup: float


def _checked(name: str, value: float, low: float, high: float) -> float:
    if not (math.isfinite(value) and low <= value <= high):
        raise ConfigError(f"{name} is {value}", f"give a number from {low:g} to {high:g}")
    return value


def _check_count(num_speculative_tokens: int) -> None:
    if num_speculative_tokens != int(_checked("num_speculative_tokens", num_speculative_tokens, 0, 1e6)):
        raise ConfigError(f"num_speculative_tokens is {num_speculative_tokens}", "give a whole number")


def expected_tokens(alpha: float, num_speculative_tokens: int) -> float:
    """Tokens of one round with i.i.d. acceptance: (1 − α^(K+1))/(1 − α), bonus included. Raises: ConfigError."""
    _checked("alpha", alpha, 0.0, 1.0)
    _check_count(num_speculative_tokens)
    if alpha == 1.0:
        return float(num_speculative_tokens + 1)
    # −expm1((K+1)·log α) keeps its digits where α is close to 1
    log_alpha = math.log(alpha) if alpha > 0 else -math.inf
    return -math.expm1((num_speculative_tokens + 1) * log_alpha) / (1.0 - alpha)


def log_slope(alpha: float, num_speculative_tokens: int) -> float:
    """d/dα of log (1 − α^(K+1))/(1 − α): how many per cent τ moves as α does."""
    powers = _checked("alpha", alpha, 0.0, 1.0) ** np.arange(num_speculative_tokens + 1)
    return float(np.arange(1, num_speculative_tokens + 1) @ powers[:-1] / powers.sum())


def round_cost(cost_ratio: float, num_speculative_tokens: int) -> float:
    """Time of a round in plain steps under the formula's assumption: K·c + 1, c = cost_q/cost_p."""
    _checked("cost_ratio", cost_ratio, 0.0, math.inf)
    return num_speculative_tokens * cost_ratio + 1.0


def speedup_rows(alpha: float, round_costs: dict[int, float]) -> list[SpeedupRow]:
    """Speed-up at each K, for rounds that take `round_costs[K]` > 0 plain steps."""
    for cost in round_costs.values():
        _checked("round cost", cost, 1e-9, 1e12)
    return [
        SpeedupRow(num_speculative_tokens=k, expected_tokens=tokens, speedup=tokens / cost)
        for k, cost in sorted(round_costs.items())
        for tokens in [expected_tokens(alpha, k)]
    ]


def fastest_row(rows: Sequence[SpeedupRow]) -> SpeedupRow:
    """The K with the largest speed-up; the smallest such K."""
    return max(rows, key=lambda row: (row.speedup, -row.num_speculative_tokens))


def best_row(rows: Sequence[SpeedupRow]) -> SpeedupRow:
    """The fastest; K = 0 where none beats plain decoding."""
    return fastest_row([SpeedupRow(num_speculative_tokens=0, expected_tokens=1.0, speedup=1.0), *rows])


def break_even_alpha(num_speculative_tokens: int, round_cost_in_steps: float) -> float | None:
    """The α at which a round of so many plain steps neither gains nor loses; None where even a perfect draft loses."""
    _checked("round cost", round_cost_in_steps, 0.0, math.inf)
    _check_count(num_speculative_tokens)
    if round_cost_in_steps > num_speculative_tokens + 1:
        return None
    if round_cost_in_steps <= 1.0:
        return 0.0
    if round_cost_in_steps == num_speculative_tokens + 1:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):  # tokens grow with α: halve the stretch where they reach the cost
        middle = (low + high) / 2
        enough = expected_tokens(middle, num_speculative_tokens) >= round_cost_in_steps
        low, high = (low, middle) if enough else (middle, high)
    return high


def fitted_alpha(acceptance_lengths: dict[int, float]) -> float:
    """The single α whose (1 − α^(K+1))/(1 − α) is closest to the measured τ(K), in squared log error."""
    if not acceptance_lengths:
        raise ConfigError("no acceptance length is given", "give τ for at least one K")
    for k, length in acceptance_lengths.items():
        _checked(f"acceptance length at K = {k}", length, 1.0, k + 1 + 1e-6)
    measured, depths = np.log(list(acceptance_lengths.values())), np.array(list(acceptance_lengths))
    low, high = 0.0, 1.0
    while high - low > _ALPHA_STEP:  # a grid over what is left, then its best point's surroundings
        grid = np.linspace(low, high, _GRID)
        powers = np.cumsum(grid[:, None] ** np.arange(depths.max() + 1), axis=1)
        misfit = np.sum((np.log(powers[:, depths]) - measured) ** 2, axis=1)
        best = int(np.argmin(misfit))
        low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, _GRID - 1)])
    return (low + high) / 2
