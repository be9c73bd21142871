"""The figures of two profiles side by side, each as a change with its chance: what `check` judges.

`before` is the baseline, `after` the candidate; both are compared at the setting the baseline would choose.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from spectune.decide.fit import Setting, draft_record, fit_settings, replayed
from spectune.errors import ProfileError
from spectune.profile.costs import FOLDS, CellKey, CostCells, unsteadiness
from spectune.profile.store import Profile
from spectune.profile.tables import labels, rows_where
from spectune.stats import (
    MIN_EFFECTIVE_PROMPTS,
    Change,
    Floats,
    effective_prompts,
    log_ratio_influence,
    pooled,
    ratio_influence,
)

Part = Literal["acceptance", "cost_p", "cost_q", "overhead", "speedup"]

_NEGLIGIBLE = 0.01  # of a plain step
_FEWEST_RUNS = 4  # that tell how much runs differ
_OVER_FIFTHS = 2.0  # the variance between runs over that between the fifths of one, seen over eight runs (docs/log.md)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A change before it is judged; `key` is equal for figures that are one and the same measurement."""

    metric: str
    part: Part
    change: Change | None  # None where it cannot be compared
    key: tuple[object, ...] = ()
    place: str | None = None
    enough: float = 1.0  # below 1: the share of the data that an interval needs
    negligible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRun:
    """One measurement of the costs, in seconds of a machine as fast as the first baseline's run found it."""

    cells: CostCells
    settings: dict[tuple[str, float, int], Setting]
    noise: float  # what costs change by between runs, a standard deviation of logs
    ratio_noise: float  # the same of ratios of costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A profile, and its costs as one run or several measured them."""

    profile: Profile
    runs: list[CostRun]

    @property
    def settings(self) -> dict[tuple[str, float, int], Setting]:
        """By draft, temperature and K, with the costs of the first run."""
        return self.runs[0].settings


Over = Literal["nothing", "reference", "plain"]


def side(profile: Profile, also: Sequence[Profile], first: Profile, over: Over) -> Side:
    """The profile and other runs of the same; `over` is what the costs of different runs are compared relative to."""
    return Side(profile=profile, runs=[_cost_run(profile, one.costs, first, over) for one in (profile, *also)])


def _cost_run(profile: Profile, costs: pa.Table, first: Profile, over: Over) -> CostRun:
    cells = CostCells.of(costs)
    if over == "reference":
        speed = _reference_log(CostCells.of(first.costs), first) - _reference_log(cells, profile)
        cells = cells.scaled(float(np.exp(speed)))
    keyed = {(one.draft, one.temperature, one.num_speculative_tokens): one for one in fit_settings(profile, cells)}
    return CostRun(
        cells=cells, settings=keyed, noise=unsteadiness(costs, over), ratio_noise=unsteadiness(costs, "plain")
    )


def _reference_log(cells: CostCells, profile: Profile) -> float:
    """Log seconds of a product that nobody changed, the mean over its sizes."""
    sizes = cells.sizes("reference", profile.main_load)
    if not sizes:
        raise ProfileError("a profile lacks the reference product", "run spectune profile again")
    keys = [CellKey(part="reference", tokens=n, load=profile.main_load) for n in sizes]
    return float(np.mean([np.log(cells.resampled(key)[0]) for key in keys]))


def figures_of(before: Side, after: Side, setting: Setting, same_machine: bool) -> list[Figure]:
    """Every figure at a setting of the baseline's."""
    now = after.settings[setting.draft, setting.temperature, setting.num_speculative_tokens]
    paired = _same_prompts(before.profile, after.profile, setting.temperature)
    figures = [_acceptance(setting, now, paired)]
    figures += _costs(before, after, setting, same_machine)
    figures.append(
        _speedup(before, after, setting, now, paired)
        if same_machine
        else Figure(metric="speedup", part="speedup", change=None)
    )
    figures += _positions(before.profile, after.profile, setting, paired)
    figures += _categories(setting, now, paired)
    if same_machine:
        figures += _overheads(before, after, setting)
    return figures


def _same_prompts(one: Profile, other: Profile, temperature: float) -> bool:
    mine, theirs = (
        labels(rows_where(profile.tape, temperature=temperature)["prompt_id"]).tolist() for profile in (one, other)
    )
    return bool(mine == theirs)


def _difference(before: Floats, now: Floats, paired: bool) -> float:
    """Standard error of a difference from the influences of the prompts on both figures."""
    if paired:
        return float(np.sqrt(np.sum((now - before) ** 2)))
    return float(np.sqrt(np.sum(now**2) + np.sum(before**2)))


def _acceptance(setting: Setting, now: Setting, paired: bool) -> Figure:
    error = _difference(setting.log_length_influence, now.log_length_influence, paired)
    log = np.log(now.acceptance_length.estimate / setting.acceptance_length.estimate)
    weight = min(setting.effective_prompts, now.effective_prompts)
    return Figure(
        metric="acceptance_length",
        part="acceptance",
        change=Change.of_logs(float(log), error, weight - 1),
        key=(setting.draft, setting.temperature),
        enough=weight / MIN_EFFECTIVE_PROMPTS,
    )


def _speedup(before: Side, after: Side, setting: Setting, now: Setting, paired: bool) -> Figure:
    key = setting.draft, setting.temperature, setting.num_speculative_tokens
    weight = min(setting.effective_prompts, now.effective_prompts)
    prompts = _difference(setting.prompt_influence, now.prompt_influence, paired)
    means, variances = [], [(prompts**2, weight - 1)]
    for one in (before, after):
        own = float(one.settings[key].cost_influence.std())
        logs = [float(np.log(run.settings[key].speedup.estimate)) for run in one.runs]
        means.append(float(np.mean(logs)))
        variances += _over_runs(logs, [(own**2, weight - 1), (_OVER_FIFTHS * one.runs[0].ratio_noise ** 2, FOLDS - 1)])
    return Figure(
        metric="speedup",
        part="speedup",
        change=Change.of_logs(means[1] - means[0], *pooled(variances)),
        key=(setting.draft, setting.temperature),
        enough=weight / MIN_EFFECTIVE_PROMPTS,
    )


def _costs(before: Side, after: Side, setting: Setting, same_machine: bool) -> list[Figure]:
    """cost_p(1), cost_p(K + 1) and cost_q: in seconds on an equal machine, else in plain steps."""
    draft, verified = setting.draft, setting.num_speculative_tokens + 1
    cells: list[tuple[str, Part, int, str | None]] = [
        ("cost_p_1", "cost_p", 1, None),
        ("cost_p_verify", "cost_p", verified, None),
        ("cost_q", "cost_q", 1, draft),
    ]
    figures = []
    for metric, part, tokens, spec in cells:
        if metric == "cost_p_1" and not same_machine:
            figures.append(Figure(metric=metric, part=part, change=None))
            continue
        change = _cost_change(before, after, part, tokens, spec, same_machine)
        key = () if metric == "cost_q" and _negligible(before, after, spec) else (part, tokens, spec)
        figures.append(Figure(metric=metric, part=part, change=change, key=key, negligible=not key))
    return figures


def _negligible(before: Side, after: Side, draft: str | None) -> bool:
    """Whether proposing takes next to nothing in both, as looking up n-grams does: its changes do no harm."""
    shares = []
    for one in (before, after):
        plain, cells = CellKey(part="cost_p", tokens=1, load=one.profile.main_load), one.runs[0].cells
        step = cells.resampled(replace(plain, part="cost_q", draft=draft))[0]
        shares.append(step / cells.resampled(plain)[0])
    return bool(max(shares) < _NEGLIGIBLE)


def _cost_change(before: Side, after: Side, part: str, tokens: int, draft: str | None, same_machine: bool) -> Change:
    means: list[float] = []
    variances: list[tuple[float, float]] = []
    for one in (before, after):
        key = CellKey(part=part, tokens=tokens, load=one.profile.main_load, draft=draft)
        drawn = [np.log(run.cells.resampled(key)) for run in one.runs]
        if not same_machine:
            plain = replace(key, part="cost_p", tokens=1, draft=None)
            drawn = [own - np.log(run.cells.resampled(plain)) for own, run in zip(drawn, one.runs, strict=True)]
        logs, first = [float(own[0]) for own in drawn], one.runs[0]
        means.append(float(np.mean(logs)))
        alone = [(float(drawn[0][1:].var()), first.cells.count(key) - 1), (_OVER_FIFTHS * first.noise**2, FOLDS - 1)]
        variances += _over_runs(logs, alone)
    return Change.of_logs(means[1] - means[0], *pooled(variances))


def _over_runs(values: Sequence[float], alone: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Variances, with their degrees of freedom, of the mean over runs: what the runs show, or `alone` of the first.

    Fewer than four show too little: each is taken to differ from others as the first's fifths do, and some more.
    """
    count = len(values)
    if count < _FEWEST_RUNS:
        return [(variance / count, degrees) for variance, degrees in alone]
    return [(float(np.var(values, ddof=1)) / count, count - 1)]


def _positions(one: Profile, other: Profile, setting: Setting, paired: bool) -> Iterator[Figure]:
    """The share accepted of the proposals that were reached, by position."""
    k = setting.num_speculative_tokens
    counts = []
    for profile in (one, other):
        draft = draft_record(profile, setting.draft)
        counted = replayed(profile, draft, setting.temperature, draft.drafting.rule, [k])
        found = counted.complete if counted.complete.rounds.sum() > 0 else counted.clock
        counts.append((found.accepted[0], found.reached[0]))  # [K, rows] each
    (accepted, reached), (accepted_now, reached_now) = counts
    for j in range(k):
        change = None
        if accepted[j].sum() > 0 and reached_now[j].sum() > 0:
            rate, rate_now = accepted[j].sum() / reached[j].sum(), accepted_now[j].sum() / reached_now[j].sum()
            influences = ratio_influence(accepted[j], reached[j]), ratio_influence(accepted_now[j], reached_now[j])
            error = _difference(*influences, paired)
            weight = min(effective_prompts(reached[j]), effective_prompts(reached_now[j]))
            change = Change.of_difference(float(rate_now - rate), error, float(rate), weight - 1)
        yield Figure(metric="conditional_acceptance_rate", part="acceptance", change=change, place=f"position {j + 1}")


def _categories(setting: Setting, now: Setting, paired: bool) -> Iterator[Figure]:
    if not paired:
        return
    for category in dict.fromkeys(setting.categories):
        mine = setting.categories == category
        emitted, rounds, emitted_now, rounds_now = (
            values[mine] for values in (setting.emitted, setting.rounds, now.emitted, now.rounds)
        )
        change = None
        if rounds.sum() > 0 and rounds_now.sum() > 0:
            log = np.log(emitted_now.sum() / rounds_now.sum() * rounds.sum() / emitted.sum())
            error = _difference(
                log_ratio_influence(emitted, rounds), log_ratio_influence(emitted_now, rounds_now), True
            )
            change = Change.of_logs(float(log), error, effective_prompts(rounds) - 1)
        yield Figure(metric="acceptance_length", part="acceptance", change=change, place=str(category))


def _overheads(before: Side, after: Side, setting: Setting) -> Iterator[Figure]:
    """Seconds of the loop beyond its forwards, at each K it was measured at; relative to the baseline's."""
    greedy, main = setting.temperature == 0.0, before.profile.main_load
    for key in before.runs[0].cells.rounds("overhead", main, setting.draft, greedy):
        means: list[float] = []
        variances: list[tuple[float, float]] = []
        for one in (before, after):
            here = replace(key, load=one.profile.main_load)
            drawn, first = [run.cells.resampled(here) for run in one.runs], one.runs[0]
            seconds = [float(own[0]) for own in drawn]
            means.append(float(np.mean(seconds)))
            felt = _OVER_FIFTHS * (first.noise * means[0]) ** 2
            alone = [(float(drawn[0][1:].var()), first.cells.count(here) - 1), (felt, FOLDS - 1)]
            variances += _over_runs(seconds, alone)
        change = None
        if means[0] > 0:
            error, degrees = pooled(variances)
            change = Change.of_difference(means[1] - means[0], error, means[0], degrees)
        yield Figure(metric="overhead", part="overhead", change=change, place=f"K = {key.draft_steps}")
