"""Predicted, replayed, measured: how wrong the profile's figures were when real decoding judged them.

Two errors, kept apart. Method error: replay of the held-out prompts' own plain text with the profile's costs,
against what a clock saw. Generalisation: whether the measured figure fell into the prediction interval.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spectune.decide.fit import Setting, draft_record, whole_texts
from spectune.decide.formula import cost_ratio
from spectune.decide.round_costs import RoundCosts, round_costs
from spectune.profile.costs import FOLDS, CostCells, unsteadiness
from spectune.profile.manifest import DraftRecord
from spectune.profile.store import Profile
from spectune.profile.tables import numbers, rows_where
from spectune.speedup import expected_tokens, round_cost
from spectune.stats import (
    Interval,
    effective_prompts,
    log_ratio_influence,
    log_t_interval,
    pooled,
    prediction_standard_error,
)

_KEYS = ("draft", "depth", "temperature")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedSetting:
    """One draft, K and temperature; speed-ups are over plain decoding, intervals are 95%.

    predicted: from the profiled prompts, with the interval a run on this many other prompts should fall into.
    replayed: from the held-out prompts' plain text. measured: decoded and timed, with its confidence interval.
    """

    draft: str
    num_speculative_tokens: int
    temperature: float
    predicted_speedup: float
    predicted_low: float | None
    predicted_high: float | None
    replayed_speedup: float
    measured_speedup: float
    measured_low: float | None
    measured_high: float | None
    measured_tokens: int
    acceptance_length: float  # counted while measuring: tokens over rounds, bonus included
    method_error: float  # |replayed/measured − 1|
    inside_interval: bool | None  # None without an interval
    always_one_error: float  # of the guess that nothing changes
    geometric_error: float  # of (1 − α^(K+1))/((1 − α)(K·c + 1)), α from τ(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NullErrors:
    """Median errors of two answers that need no replay, over the same settings."""

    always_one: float
    geometric: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """All settings that were decoded, and the errors over them."""

    settings: list[ConfirmedSetting]
    prompts: int
    max_new_tokens: int
    median_method_error: float
    max_method_error: float
    fraction_inside_interval: float | None
    null_errors: NullErrors
    plain_step_ratio: (
        float  # time of a plain step, decoded over profiled, at the temperature where it is furthest from 1
    )


def confirmation(profile: Profile, cells: CostCells, fitted_settings: Sequence[Setting]) -> Confirmation | None:
    """What confirming showed, beside the profile's settings at its main load; None where it has not been done."""
    record, confirmed = profile.manifest.confirmation, profile.confirmed
    if record is None or confirmed is None:
        return None
    fitted = {(s.draft, s.num_speculative_tokens, s.temperature): s for s in fitted_settings}
    runs = confirmed.runs
    keys = dict.fromkeys(zip(*(runs[name].to_pylist() for name in _KEYS), strict=True))
    another_time = unsteadiness(profile.costs, "plain")
    settings = [_confirmed(profile, cells, fitted, key, another_time) for key in keys if key[0] is not None]
    errors = [setting.method_error for setting in settings]
    inside = [setting.inside_interval for setting in settings if setting.inside_interval is not None]
    return Confirmation(
        settings=settings,
        prompts=record.prompts,
        max_new_tokens=record.max_new_tokens,
        median_method_error=float(np.median(errors)),
        max_method_error=max(errors),
        fraction_inside_interval=sum(inside) / len(inside) if inside else None,
        null_errors=NullErrors(
            always_one=float(np.median([setting.always_one_error for setting in settings])),
            geometric=float(np.median([setting.geometric_error for setting in settings])),
        ),
        plain_step_ratio=_plain_step_ratio(profile, fitted_settings),
    )


def _plain_step_ratio(profile: Profile, fitted_settings: Sequence[Setting]) -> float:
    """The machine of the run against the machine of the profile: what no prediction can know."""
    assert profile.confirmed is not None
    ratios = []
    for temperature, profiled_s in {one.temperature: one.plain_s for one in fitted_settings}.items():
        plain = _runs(profile, None, 0, temperature)
        if plain.num_rows:
            ratios.append(float(numbers(plain["seconds"]).sum() / numbers(plain["rounds"]).sum() / profiled_s))
    return max(ratios, key=lambda ratio: abs(np.log(ratio)))


def predicted_interval(one: ConfirmedSetting) -> Interval:
    """The prediction and where a run should fall."""
    return Interval(estimate=one.predicted_speedup, low=one.predicted_low, high=one.predicted_high)


def measured_interval(one: ConfirmedSetting) -> Interval:
    """The measured figure with its confidence interval."""
    return Interval(estimate=one.measured_speedup, low=one.measured_low, high=one.measured_high)


def _runs(profile: Profile, draft: str | None, k: int, temperature: float) -> pa.Table:
    """A run for each prompt, in the same order for every setting."""
    assert profile.confirmed is not None
    runs = profile.confirmed.runs
    return rows_where(runs, draft=draft, depth=k, temperature=temperature).sort_by("prompt_id")


def _confirmed(
    profile: Profile,
    cells: CostCells,
    fitted: dict[tuple[str, int, float], Setting],
    key: tuple[str, int, float],
    another_time: float,
) -> ConfirmedSetting:
    spec, k, temperature = key
    runs, plain = _runs(profile, spec, k, temperature), _runs(profile, None, 0, temperature)
    draft, setting = draft_record(profile, spec), fitted[spec, k, temperature]
    main, max_k = profile.main_load, profile.manifest.settings.max_k
    costs = round_costs(cells, draft, temperature == 0.0, main, main, max_k)
    predicted = _predicted(profile, draft, temperature, k, costs, runs.num_rows, another_time)
    replayed = _replayed(profile, draft, temperature, k, costs)
    measured = _measured(runs, plain)
    geometric = expected_tokens(_first_alpha(fitted, setting), k) / round_cost(cost_ratio(setting), k)
    inside = None if predicted.low is None else predicted.low <= measured.estimate <= (predicted.high or np.inf)
    return ConfirmedSetting(
        draft=spec,
        num_speculative_tokens=k,
        temperature=temperature,
        predicted_speedup=predicted.estimate,
        predicted_low=predicted.low,
        predicted_high=predicted.high,
        replayed_speedup=replayed,
        measured_speedup=measured.estimate,
        measured_low=measured.low,
        measured_high=measured.high,
        measured_tokens=int(numbers(runs["tokens"]).sum()),
        acceptance_length=float(1 + numbers(runs["accepted"]).sum() / numbers(runs["rounds"]).sum()),
        method_error=abs(replayed / measured.estimate - 1),
        inside_interval=None if inside is None else bool(inside),
        always_one_error=abs(1 / measured.estimate - 1),
        geometric_error=abs(geometric / measured.estimate - 1),
    )


def _first_alpha(fitted: dict[tuple[str, int, float], Setting], setting: Setting) -> float:
    """The acceptance of a first proposal, which is what people feed the formula."""
    first = fitted[setting.draft, 1, setting.temperature].acceptance_length.estimate
    return min(max(first - 1, 0.0), 1.0)


def _predicted(
    profile: Profile,
    draft: DraftRecord,
    temperature: float,
    k: int,
    costs: RoundCosts,
    prompts: int,
    another_time: float,
) -> Interval:
    """The population's speed-up on texts of the confirming run's length, and where a run on m prompts falls.

    `another_time`: what a machine changes by until then, as it did within the profile; a standard deviation of logs.
    """
    assert profile.manifest.confirmation is not None
    limit = profile.manifest.confirmation.max_new_tokens
    rows, variance = whole_texts(profile, profile.tape, profile.acceptance, draft, temperature, k, limit)
    seconds, draws = rows.seconds(costs), rows.log_speedups(costs)
    per_round = seconds.sum() / rows.rounds.sum()
    within = float(variance.sum()) * per_round**2 / seconds.sum() ** 2
    influence = log_ratio_influence(rows.emitted, seconds)
    error = prediction_standard_error(influence, within, prompts)
    timings = float(np.var(draws[1:] - draws[0]))
    weight = effective_prompts(rows.rounds)
    error, degrees = pooled([(error**2 + timings, weight - 1), (another_time**2, FOLDS - 1)])
    return log_t_interval(float(np.exp(draws[0])), error, min(weight, degrees + 1))


def _replayed(profile: Profile, draft: DraftRecord, temperature: float, k: int, costs: RoundCosts) -> float:
    confirmed, record = profile.confirmed, profile.manifest.confirmation
    assert confirmed is not None
    assert record is not None
    rows, _ = whole_texts(profile, confirmed.tape, confirmed.acceptance, draft, temperature, k, record.max_new_tokens)
    return float(np.exp(rows.log_speedups(costs)[0]))


def _measured(runs: pa.Table, plain: pa.Table) -> Interval:
    """Tokens per second over plain decoding's, on the same prompts; each prompt moves both."""
    parts = [(numbers(table["tokens"]), numbers(table["seconds"])) for table in (runs, plain)]
    (tokens, seconds), (plain_tokens, plain_seconds) = parts
    influence = log_ratio_influence(tokens, seconds) - log_ratio_influence(plain_tokens, plain_seconds)
    speedup = tokens.sum() / seconds.sum() * plain_seconds.sum() / plain_tokens.sum()
    error = float(np.sqrt(np.sum(influence**2)))
    return log_t_interval(float(speedup), error, effective_prompts(seconds))
