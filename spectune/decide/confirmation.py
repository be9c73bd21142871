"""Predicted, replayed, measured: how wrong the profile's figures were when real decoding judged them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from spectune import stats
from spectune.choice import Choice, chain, plain
from spectune.decide.decoded import DecodedCosts, DecodedRounds, DecodedRun, Machine
from spectune.decide.evidence import DraftEvidence, all_evidence, confirmed_evidence, whole_texts, written_evidence
from spectune.decide.evidence import replayed as counted_rounds
from spectune.decide.fit import Setting, priced_settings, repriced
from spectune.decide.formula import cost_ratio
from spectune.decide.round_costs import RoundCosts
from spectune.decide.split import Split
from spectune.profile.costs import FOLDS, CostCells, unsteadiness
from spectune.profile.manifest import Load
from spectune.profile.store import Profile
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
    measured_speedup: float  # decoded and timed, with its confidence interval; disturbed rounds at the others' median
    measured_low: float | None
    measured_high: float | None
    raw_speedup: float  # tokens over seconds as they passed, disturbed rounds and all
    measured_tokens: int
    acceptance_length: float  # counted while measuring: tokens over rounds, bonus included
    disturbed_rounds: int
    method_error: float  # |replayed/measured − 1|
    miss: Split  # of measured over replayed
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
    machine: Machine  # steady, or disturbed or changed: then its seconds decide nothing, its texts do all the same
    plain_step_ratio: float  # time of a plain step, decoded over profiled, at the temperature where it changed most
    rounds: int  # plain steps included
    disturbed_rounds: int  # of them, left out of every figure but raw_speedup

    def of(self, choice: Choice) -> ConfirmedSetting | None:
        """What was seen of a choice; None where it was not decoded with."""
        return next((setting for setting in self.settings if setting.choice == choice), None)


def confirmation(profile: Profile, run: DecodedRun, fitted_settings: Sequence[Setting]) -> Confirmation:
    """What confirming showed, beside the profile's settings at its main load."""
    record = profile.manifest.confirmation
    assert record is not None, "where there is a run"
    fitted = {setting.choice: setting for setting in fitted_settings}
    evidence, another_time = confirmed_evidence(profile), unsteadiness(profile.costs, "plain")
    settings = []
    for choice in run.costs:
        held_out = evidence[str(choice.draft), choice.temperature]
        predicted, replayed = _said_before(fitted[choice], held_out, record.max_new_tokens, another_time)
        settings.append(_confirmed(profile, run, fitted, choice, predicted, replayed))
    errors = [setting.method_error for setting in settings]
    inside = [setting.inside_interval for setting in settings if setting.inside_interval is not None]
    rounds, disturbed = run.counts
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
        machine=run.machine,
        plain_step_ratio=run.plain_step_ratio,
        rounds=rounds,
        disturbed_rounds=disturbed,
    )


def judged_settings(profile: Profile, cells: CostCells, run: DecodedRun, loads: Sequence[Load]) -> list[Setting]:
    """At every load, by all prompts, the confirming run's among them; at the main one by that run's seconds too.

    A K that it did not decode goes by how far the nearest was off. Where the machine was another, its seconds are left.
    """
    counted = [counted_rounds(evidence) for evidence in all_evidence(profile)]
    settings = priced_settings(counted, cells, profile.manifest.settings, loads)
    if run.machine != "steady":
        return settings
    judged = []
    for setting in settings:
        nearest = run.nearest(setting.choice) if setting.load == profile.main_load else None
        judged.append(repriced(setting, *run.costs[nearest].replacing(setting.costs)) if nearest else setting)
    return judged


def _said_before(
    setting: Setting, held_out: DraftEvidence, limit_tokens: int, another_time: float
) -> tuple[stats.Interval, RowCounts]:
    """The profile's prediction of a run on as many prompts, and rounds replayed on their plain texts."""
    k = setting.num_speculative_tokens
    profiled, rows = (whole_texts(texts, k, limit_tokens) for texts in (setting.evidence, held_out))
    return predicted_speedup(*profiled, setting.costs, len(held_out.written), another_time), rows[0]


def _confirmed(
    profile: Profile,
    run: DecodedRun,
    fitted: Mapping[Choice, Setting],
    choice: Choice,
    predicted: stats.Interval,
    replayed: RowCounts,
) -> ConfirmedSetting:
    setting, k, decoded = fitted[choice], choice.num_speculative_tokens, run.rounds[choice]
    texts = written_evidence(profile, setting.draft, decoded.runs["continuation"].to_pylist(), choice.temperature)
    own, variance = whole_texts(texts, k, profile.manifest.settings.max_new_tokens)
    replayed_speedup, measured = float(np.exp(setting.costs.log_speedups(replayed)[0])), _measured(run, choice, texts)
    rounds, costs = decoded.by_run(np.ones(len(decoded.seconds))), run.costs[choice]
    counted_length, seconds = texts.written.sum() / rounds.sum(), decoded.seconds.sum()
    plainly = run.rounds[plain(choice.temperature)]
    raw = texts.written.sum() / seconds * plainly.seconds.sum() / len(plainly.seconds)
    first = fitted[replace(choice, shape=chain(1))].acceptance.length.estimate  # its α is what people feed the formula
    geometric = expected_tokens(min(max(first - 1, 0.0), 1.0), k) / round_cost(cost_ratio(setting), k)
    return ConfirmedSetting(
        draft=setting.draft,
        num_speculative_tokens=k,
        temperature=choice.temperature,
        predicted_speedup=predicted.estimate,
        predicted_low=predicted.low,
        predicted_high=predicted.high,
        replayed_speedup=replayed_speedup,
        measured_speedup=measured.estimate,
        measured_low=measured.low,
        measured_high=measured.high,
        raw_speedup=float(raw),
        measured_tokens=int(texts.written.sum()),
        acceptance_length=float(1 + decoded.accepted.sum() / rounds.sum()),
        disturbed_rounds=int(decoded.disturbed.sum()),
        method_error=abs(replayed_speedup / measured.estimate - 1),
        miss=Split(
            tokens=float(counted_length * replayed.rounds.sum() / replayed.emitted.sum()),
            plain_step=costs.plain_step,
            round=float(_seconds(decoded, costs).sum() / decoded.expected.sum()),
            replay_z=_standardised(rounds - own.rounds, variance),
        ),
        inside_interval=predicted.holds(measured.estimate),
        always_one_error=abs(1 / measured.estimate - 1),
        geometric_error=abs(geometric / measured.estimate - 1),
    )


def _standardised(surplus: Floats, variance: Floats) -> float | None:
    """Rounds beyond those expected, summed over texts, in standard errors; None where nothing is left to chance."""
    total = float(variance.sum())
    return float(surplus.sum() / np.sqrt(total)) if total > 0 else None


def _seconds(decoded: DecodedRounds, costs: DecodedCosts) -> Floats:
    """[rounds] what each takes when nothing disturbs it."""
    return np.asarray(decoded.expected * costs.by_steps[decoded.proposed])


def _measured(run: DecodedRun, choice: Choice, texts: DraftEvidence) -> stats.Interval:
    """Tokens per second over plain decoding's, each round at the median of its kind; prompts and timings move it."""
    decoded, plainly, costs = run.rounds[choice], run.rounds[plain(choice.temperature)], run.costs[choice]
    tokens, seconds = texts.written.astype(np.float64), decoded.by_run(_seconds(decoded, costs))
    speedup = tokens.sum() / seconds.sum() * plainly.expected[0] * costs.plain_step
    error = np.hypot(stats.root_sum_square(stats.log_ratio_influence(tokens, seconds)), costs.error)
    return stats.log_t_interval(float(speedup), float(error), stats.effective_prompts(seconds))


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
