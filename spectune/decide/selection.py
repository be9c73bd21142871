"""Which candidate, and whether it may be believed although it was chosen; and what a confirming run decodes with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from spectune.choice import Choice, chain
from spectune.decide.evidence import draft_record
from spectune.decide.fit import Setting, require_measured
from spectune.drafting_spec import draft_spec
from spectune.errors import ConfigError
from spectune.profile.costs import FOLDS
from spectune.profile.store import Profile
from spectune.stats import MIN_EFFECTIVE_PROMPTS, NORMAL, Floats, Interval, max_t_quantile, t_quantile

MIN_GAIN = 1.05
_TIE = 0.01

Verdict = Literal["speculate", "plain", "insufficient-data"]
IN_WORDS: dict[Verdict, str] = {"speculate": "speculate", "plain": "plain", "insufficient-data": "not enough data"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The chosen candidate and what may be said of it.

    The estimate is cross-fitted, the lower end holds for whichever was chosen (max-t), the upper end is its own.
    """

    setting: Setting
    speedup: Interval
    verdict: Verdict
    noisy: bool  # whether it is open, and for the timings' sake: a quiet machine may turn the answer


def decide_by_temperature(settings: Sequence[Setting]) -> dict[float, Decision]:
    """Among the settings of each temperature, the lowest first."""
    temperatures = sorted({setting.temperature for setting in settings})
    return {t: decide([s for s in settings if s.temperature == t]) for t in temperatures}


def decide(candidates: Sequence[Setting]) -> Decision:
    """Choose among candidates at one temperature and load."""
    best = choose(candidates)
    own, low = best.speedup, best.speedup.low
    estimate = cross_fitted_speedup(candidates)
    if low is not None:
        low = min(own.estimate * float(np.exp(-_allowance(best, candidates))), estimate)
    speedup = Interval(estimate=estimate, low=low, high=None if own.high is None else max(own.high, estimate))
    verdict = verdict_of(speedup, best.effective_prompts)
    noisy = bool(speedup.holds(MIN_GAIN)) and bool(np.std(best.spread.costs) > best.spread.prompt_error)
    if verdict == "plain" and noisy:
        verdict = "insufficient-data"
    return Decision(setting=best, speedup=speedup, verdict=verdict, noisy=noisy)


def verdict_of(speedup: Interval, effective_prompts: float) -> Verdict:
    """speculate: the interval lies above min_gain. plain: the point or the whole interval lies below it."""
    if effective_prompts < MIN_EFFECTIVE_PROMPTS or speedup.low is None or speedup.high is None:
        return "insufficient-data"
    if speedup.low > MIN_GAIN:
        return "speculate"
    return "plain" if speedup.estimate < MIN_GAIN or speedup.high < MIN_GAIN else "insufficient-data"


def choose(candidates: Sequence[Setting]) -> Setting:
    """The fastest; within 1% of it the smaller K, then the simpler draft."""
    return candidates[_pick(candidates, np.array([setting.speedup.estimate for setting in candidates]))]


def _pick(candidates: Sequence[Setting], speedups: Floats) -> int:
    def simplest_first(index: int) -> tuple[int, int, float]:
        setting = candidates[index]
        return setting.num_speculative_tokens, setting.evidence.drafting.simplicity, -float(speedups[index])

    return min(np.flatnonzero(speedups >= speedups.max() * (1 - _TIE)).tolist(), key=simplest_first)


def _allowance(best: Setting, candidates: Sequence[Setting]) -> float:
    """How far below its log estimate the chosen candidate's lower end lies."""
    prompts = np.stack([setting.spread.prompts for setting in candidates], axis=1)
    resamples = np.stack([setting.spread.costs for setting in candidates], axis=1)
    costs = (resamples - resamples.mean(axis=0)) / np.sqrt(len(resamples))
    quantile = max_t_quantile(np.nan_to_num(np.concatenate([prompts, costs])))
    few = t_quantile(best.effective_prompts - 1, 0.975) / NORMAL.inv_cdf(0.975)
    return quantile * few * best.spread.log_error


def cross_fitted_speedup(candidates: Sequence[Setting]) -> float:
    """Choose on four fifths of prompts and cost samples, score on the fifth, rotate, pool: no luck of the choice."""
    emitted = np.stack([setting.texts.emitted for setting in candidates], axis=1)  # [prompts, candidates]
    seconds = np.stack([setting.seconds for setting in candidates], axis=1)
    plain_s = np.array([setting.round.plain_s for setting in candidates])
    factors = np.stack([setting.spread.folds for setting in candidates], axis=2)  # [folds, 2, candidates]
    fold = np.arange(len(emitted)) % FOLDS
    steps, took = 0.0, 0.0
    for number in range(min(FOLDS, len(emitted))):
        rest, scored = fold != number, fold == number
        left = seconds[rest].sum(0)
        if np.all(left > 0):
            chosen = _pick(candidates, emitted[rest].sum(0) * plain_s / left * factors[number, 1])
            steps += float(emitted[scored, chosen].sum() * plain_s[chosen])
            took += float(seconds[scored, chosen].sum() / factors[number, 0, chosen])
    return steps / took if took > 0 else choose(candidates).speedup.estimate


def trials(
    profile: Profile,
    fitted: Sequence[Setting],
    drafts: Sequence[str] = (),
    temperatures: Sequence[float] = (),
    depths: Sequence[int] = (),
    chosen_only: bool = False,
) -> list[Choice]:
    """What to decode with: by default the best draft at each temperature, with the usual K and the chosen one, or the
    latter only. Raises: ConfigError for what was not measured.
    """
    measured, longest, choices = profile.manifest.settings.temperatures, profile.manifest.settings.max_k, []
    for temperature in temperatures:
        require_measured(temperature, measured)
    for depth in depths:
        if not 1 <= depth <= longest:
            raise ConfigError(f"K = {depth} was not measured", f"give 1 to {longest}")
    specs = [draft_record(profile, draft_spec(spec).text).spec for spec in drafts]
    for temperature in temperatures or sorted(measured):
        here = [setting for setting in fitted if setting.temperature == temperature]
        for spec in specs or [choose(here).draft]:
            best = choose([setting for setting in here if setting.draft == spec]).num_speculative_tokens
            usual = [] if chosen_only else [k for k in (1, 2, 4, 8) if k <= longest]
            choices += [Choice(spec, chain(k), temperature) for k in depths or sorted({*usual, best})]
    return list(dict.fromkeys(choices))
