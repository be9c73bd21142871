"""How well the field's formula describes a profile: its α, a goodness-of-fit verdict, and what it would have said."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np

from spectune.decide.fit import Setting
from spectune.speedup import best_row, expected_tokens, fitted_alpha, log_slope, round_cost, speedup_rows
from spectune.stats import Floats, t_quantile

TOLERANCE = 0.02
Fits = Literal["fits", "misleads", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormulaFit:
    """The α of (1 − α^(K+1))/(1 − α) fitted to τ(K) over all K, and how far the formula is then off.

    `misleads`: at some K it is off beyond chance and by more than 2%; `fits`: within 2% at every K, ends included.
    """

    draft: str
    temperature: float
    alpha: float
    verdict: Fits
    largest_error: float  # of τ, relative, over K; signed: above 0 the formula promises too much
    largest_error_at: int  # that K
    chosen_k: int  # the K that the formula picks from this α and cost_q/cost_p, 0 for plain
    promised_speedup: float  # what it promises there
    replayed_speedup: float  # what replay and measured costs say of the same K


def fit_formula(settings: Sequence[Setting]) -> list[FormulaFit]:
    """One fit for each draft and temperature; drafts that nothing is accepted of fit α = 0."""
    return [_fit(list(group)) for _, group in groupby(settings, key=lambda one: (one.draft, one.temperature))]


def _fit(group: Sequence[Setting]) -> FormulaFit:
    """What it chooses assumes that verifying K + 1 tokens costs one plain step: Leviathan et al. 2023, theorem 3.8."""
    by_k = {setting.num_speculative_tokens: setting for setting in group}
    lengths = {k: setting.acceptance.length.estimate for k, setting in by_k.items()}
    alpha = fitted_alpha(lengths)
    log_errors = np.array([np.log(expected_tokens(alpha, k) / length) for k, length in lengths.items()])
    worst = int(np.argmax(np.abs(log_errors)))
    chosen = best_row(speedup_rows(alpha, {k: round_cost(cost_ratio(setting), k) for k, setting in by_k.items()}))
    replayed = by_k.get(chosen.num_speculative_tokens)
    return FormulaFit(
        draft=group[0].draft,
        temperature=group[0].temperature,
        alpha=alpha,
        verdict=_verdict(log_errors, _half_widths(group, alpha)),
        largest_error=float(np.expm1(log_errors[worst])),
        largest_error_at=list(lengths)[worst],
        chosen_k=chosen.num_speculative_tokens,
        promised_speedup=chosen.speedup,
        replayed_speedup=replayed.speedup.estimate if replayed else 1.0,
    )


def cost_ratio(setting: Setting) -> float:
    """cost_q/cost_p(1) as the formula takes it: a draft step in plain steps."""
    return setting.round.draft_s / setting.num_speculative_tokens / setting.round.plain_s


def _half_widths(group: Sequence[Setting], alpha: float) -> Floats:
    """[K] half-widths of the log errors, all K at once (Bonferroni); α moves with the prompts too."""
    influence = np.stack([setting.acceptance.length_influence for setting in group], axis=1)  # [prompts, K]
    slopes = np.array([log_slope(alpha, setting.num_speculative_tokens) for setting in group])
    moved = np.outer(influence @ slopes / (slopes @ slopes), slopes) - influence
    weight = group[0].effective_prompts
    if weight < 2:
        return np.full(len(group), np.inf)
    return np.asarray(t_quantile(weight - 1, 1 - 0.025 / len(group)) * np.sqrt(np.sum(moved**2, axis=0)))


def _verdict(log_errors: Floats, half_widths: Floats) -> Fits:
    sizes = np.abs(log_errors)
    if len(sizes) < 2:  # one α fits one τ whatever it is
        return "undecided"
    if np.any((sizes > half_widths) & (sizes > TOLERANCE)):
        return "misleads"
    return "fits" if np.all(sizes + half_widths < TOLERANCE) else "undecided"
