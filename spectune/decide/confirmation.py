"""Predicted, replayed, measured: how wrong the profile's figures were when real decoding judged them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spectune import stats
from spectune.choice import Choice, Shape, chain, plain
from spectune.decide.evidence import DraftEvidence, confirmed_evidence, whole_texts
from spectune.decide.fit import Setting
from spectune.decide.formula import cost_ratio
from spectune.decide.round_costs import RoundCosts
from spectune.profile.costs import FOLDS, unsteadiness
from spectune.profile.store import Profile
from spectune.profile.tables import numbers, rows_at
from spectune.replay import Floats, RowCounts
from spectune.speedup import expected_tokens, round_cost


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedSetting:
    """One draft, K and temperature; speed-ups are over plain decoding, intervals are 95%."""

    draft: str
    num_speculative_tokens: int
    temperature: float
    predicted_speedup: float  # from the profiled prompts; a run on as many other prompts should fall between
    predicted_low: float | None
    predicted_high: float | None
    replayed_speedup: float  # from the held-out prompts' own plain text, with the profile's costs
    measured_speedup: float  # decoded and timed, with its confidence interval
    measured_low: float | None
    measured_high: float | None
    measured_tokens: int
    acceptance_length: float  # counted while measuring: tokens over rounds, bonus included
    method_error: float  # |replayed/measured − 1|
    inside_interval: bool | None  # None without an interval
    always_one_error: float  # of the guess that nothing changes
    geometric_error: float  # of (1 − α^(K+1))/((1 − α)(K·c + 1)), α from τ(1)

    @property
    def choice(self) -> Choice:
        """What was decoded with."""
        return Choice(self.draft, chain(self.num_speculative_tokens), self.temperature)

    @property
    def predicted(self) -> stats.Interval:
        """The prediction and where a run should fall."""
        return stats.Interval(estimate=self.predicted_speedup, low=self.predicted_low, high=self.predicted_high)

    @property
    def measured(self) -> stats.Interval:
        """The measured figure with its confidence interval."""
        return stats.Interval(estimate=self.measured_speedup, low=self.measured_low, high=self.measured_high)


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
    plain_step_ratio: float  # time of a plain step, decoded over profiled, at the temperature where it changed most

    def of(self, choice: Choice) -> ConfirmedSetting | None:
        """What was seen of a choice; None where it was not decoded with."""
        return next((setting for setting in self.settings if setting.choice == choice), None)


def confirmation(profile: Profile, fitted_settings: Sequence[Setting]) -> Confirmation | None:
    """What confirming showed, beside the profile's settings at its main load; None where it has not been done."""
    record, confirmed = profile.manifest.confirmation, profile.confirmed
    if record is None or confirmed is None:
        return None
    runs, fitted = _runs_by_choice(confirmed.runs), {setting.choice: setting for setting in fitted_settings}
    evidence, another_time = confirmed_evidence(profile), unsteadiness(profile.costs, "plain")
    plain_step_ratio = _plain_step_ratio(runs, fitted_settings)
    limit, decoded = record.max_new_tokens, [choice for choice in runs if choice.draft is not None]
    settings = [_confirmed(fitted, choice, evidence, runs, limit, another_time) for choice in decoded]
    errors = [setting.method_error for setting in settings]
    inside = [setting.inside_interval for setting in settings if setting.inside_interval is not None]
    return Confirmation(
        settings=settings,
        prompts=record.prompts,
        max_new_tokens=limit,
        median_method_error=float(np.median(errors)),
        max_method_error=max(errors),
        fraction_inside_interval=sum(inside) / len(inside) if inside else None,
        null_errors=NullErrors(
            always_one=float(np.median([setting.always_one_error for setting in settings])),
            geometric=float(np.median([setting.geometric_error for setting in settings])),
        ),
        plain_step_ratio=plain_step_ratio,
    )


def _runs_by_choice(runs: pa.Table) -> dict[Choice, pa.Table]:
    """A run for each prompt, in the same order for every choice."""
    columns = (runs[name].to_pylist() for name in ("draft", "depth", "nodes", "temperature"))
    choices = [Choice(draft, Shape(depth, nodes), t) for draft, depth, nodes, t in zip(*columns, strict=True)]
    return {
        choice: rows_at(runs, np.flatnonzero([other == choice for other in choices])).sort_by("prompt_id")
        for choice in dict.fromkeys(choices)
    }


def _plain_step_ratio(runs: Mapping[Choice, pa.Table], fitted_settings: Sequence[Setting]) -> float:
    """The machine of the run against the machine of the profile: what no prediction can know."""
    ratios = []
    for temperature, profiled_s in {s.temperature: s.round.plain_s for s in fitted_settings}.items():
        if (plainly := runs.get(plain(temperature))) is not None:
            ratios.append(float(numbers(plainly["seconds"]).sum() / numbers(plainly["rounds"]).sum() / profiled_s))
    return max(ratios, key=lambda ratio: abs(np.log(ratio)))


def _confirmed(
    fitted: Mapping[Choice, Setting],
    choice: Choice,
    evidence: Mapping[tuple[str | None, float], DraftEvidence],
    runs: Mapping[Choice, pa.Table],
    limit_tokens: int,
    another_time: float,
) -> ConfirmedSetting:
    setting, k, decoded = fitted[choice], choice.num_speculative_tokens, runs[choice]
    profiled, held_out = (
        whole_texts(texts, k, limit_tokens) for texts in (setting.evidence, evidence[choice.draft, choice.temperature])
    )
    predicted = predicted_speedup(*profiled, setting.costs, decoded.num_rows, another_time)
    replayed = float(np.exp(setting.costs.log_speedups(held_out[0])[0]))
    measured = _measured(decoded, runs[plain(choice.temperature)])
    first = fitted[replace(choice, shape=chain(1))].acceptance.length.estimate  # its α is what people feed the formula
    geometric = expected_tokens(min(max(first - 1, 0.0), 1.0), k) / round_cost(cost_ratio(setting), k)
    return ConfirmedSetting(
        draft=setting.draft,
        num_speculative_tokens=k,
        temperature=choice.temperature,
        predicted_speedup=predicted.estimate,
        predicted_low=predicted.low,
        predicted_high=predicted.high,
        replayed_speedup=replayed,
        measured_speedup=measured.estimate,
        measured_low=measured.low,
        measured_high=measured.high,
        measured_tokens=int(numbers(decoded["tokens"]).sum()),
        acceptance_length=float(1 + numbers(decoded["accepted"]).sum() / numbers(decoded["rounds"]).sum()),
        method_error=abs(replayed / measured.estimate - 1),
        inside_interval=predicted.holds(measured.estimate),
        always_one_error=abs(1 / measured.estimate - 1),
        geometric_error=abs(geometric / measured.estimate - 1),
    )


def predicted_speedup(
    rows: RowCounts,
    variance: Floats,  # [rows] of each text's rounds, given the text
    costs: RoundCosts,
    prompts: int,
    another_time: float,  # what the machine changes by until then: a standard deviation of logs
) -> stats.Interval:
    """The population's speed-up on such texts, and where a run on so many other prompts falls."""
    seconds, draws = costs.seconds(rows), costs.log_speedups(rows)
    per_round = seconds.sum() / rows.rounds.sum()
    within = float(variance.sum()) * per_round**2 / seconds.sum() ** 2
    influence = stats.log_ratio_influence(rows.emitted, seconds)
    error = stats.prediction_standard_error(influence, within, prompts)
    timings = float(np.var(draws[1:] - draws[0]))
    weight = stats.effective_prompts(rows.rounds)
    error, degrees = stats.pooled([(error**2 + timings, weight - 1), (another_time**2, FOLDS - 1)])
    return stats.log_t_interval(float(np.exp(draws[0])), error, min(weight, degrees + 1))


def _measured(runs: pa.Table, plain: pa.Table) -> stats.Interval:
    """Tokens per second over plain decoding's, on the same prompts; each prompt moves both."""
    parts = [(numbers(table["tokens"]), numbers(table["seconds"])) for table in (runs, plain)]
    (tokens, seconds), (plain_tokens, plain_seconds) = parts
    influence = stats.log_ratio_influence(tokens, seconds) - stats.log_ratio_influence(plain_tokens, plain_seconds)
    speedup = tokens.sum() / seconds.sum() * plain_seconds.sum() / plain_tokens.sum()
    return stats.log_t_interval(float(speedup), stats.root_sum_square(influence), stats.effective_prompts(seconds))
