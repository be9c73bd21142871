"""The figures of two profiles side by side, each as a change with its chance: what `check` judges.

`before` is the baseline, `after` the candidate; both are compared at the setting the baseline would choose.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from spectune.choice import Choice
from spectune.decide.evidence import Counts, profiled_evidence, replayed
from spectune.decide.fit import Setting, priced_settings
from spectune.decide.metrics import METRICS, Part
from spectune.errors import ProfileError
from spectune.profile.costs import FOLDS, CellKey, CostCells, unsteadiness
from spectune.profile.store import Profile
from spectune.stats import (
    MIN_EFFECTIVE_PROMPTS,
    Change,
    Floats,
    effective_prompts,
    log_ratio_influence,
    pooled,
    ratio_influence,
)

_NEGLIGIBLE = 0.01  # of a plain step
_FEWEST_RUNS = 4  # that tell how much runs differ
_OVER_FIFTHS = 2.0  # the variance between runs over that between the fifths of one, seen over eight runs (docs/log.md)

Over = Literal["nothing", "reference", "plain"]
Variances = Sequence[tuple[float, float]]  # each with its degrees of freedom


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A change before it is judged; `key` is equal for figures that are one and the same measurement."""

    metric: str
    change: Change | None  # None where it cannot be compared
    key: tuple[object, ...] = ()
    place: str | None = None
    enough: float = 1.0  # below 1: the share of the data that an interval needs
    negligible: bool = False

    @property
    def part(self) -> Part:
        """What it is a figure of."""
        return METRICS[self.metric].part


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRun:
    """One measurement of the costs, in seconds of a machine as fast as the first baseline's run found it."""

    cells: CostCells
    settings: Mapping[Choice, Setting]
    noise: float  # what costs change by between runs, a standard deviation of logs
    ratio_noise: float  # the same of ratios of costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A profile, and its costs as one run or several measured them."""

    profile: Profile
    runs: list[CostRun]

    @property
    def first(self) -> CostRun:
        """The profile's own run."""
        return self.runs[0]


def measured_side(profile: Profile, also: Sequence[Profile], first: Profile, over: Over) -> Side:
    """The profile and other runs of the same; `over` is what the costs of different runs are compared relative to."""
    counted = [replayed(evidence) for evidence in profiled_evidence(profile)]
    return Side(profile=profile, runs=[_cost_run(profile, counted, run.costs, first, over) for run in (profile, *also)])


def _cost_run(profile: Profile, counted: Sequence[Counts], costs: pa.Table, first: Profile, over: Over) -> CostRun:
    cells = CostCells.of(costs)
    if over == "reference":
        speed = _reference_log(CostCells.of(first.costs), first) - _reference_log(cells, profile)
        cells = cells.scaled(float(np.exp(speed)))
    settings = priced_settings(counted, cells, profile.manifest.settings)
    return CostRun(
        cells=cells,
        settings={setting.choice: setting for setting in settings},
        noise=unsteadiness(costs, over),
        ratio_noise=unsteadiness(costs, "plain"),
    )


def _reference_log(cells: CostCells, profile: Profile) -> float:
    """Log seconds of a product that nobody changed, the mean over its sizes."""
    sizes = cells.sizes("reference", profile.main_load)
    if not sizes:
        raise ProfileError("a profile lacks the reference product", "run spectune profile again")
    keys = [CellKey(part="reference", tokens=n, load=profile.main_load) for n in sizes]
    return float(np.mean([np.log(cells.resampled(key)[0]) for key in keys]))


def figures_of(before: Side, after: Side, setting: Setting, same_machine: bool) -> Iterator[Figure]:
    """Every figure at a setting of the baseline's."""
    now = after.first.settings[setting.choice]
    paired = setting.evidence.prompt_ids == now.evidence.prompt_ids
    yield _acceptance(setting, now, paired)
    yield from _costs(before, after, setting.choice, same_machine)
    yield _speedup(before, after, setting, paired) if same_machine else Figure(metric="speedup", change=None)
    yield from _positions(setting, now, paired)
    yield from _categories(setting, now) if paired else ()
    yield from _overheads(before, after, setting.choice) if same_machine else ()


def _difference(before: Floats, now: Floats, paired: bool) -> float:
    """Standard error of a difference from the influences of the prompts on both figures."""
    if paired:
        return float(np.sqrt(np.sum((now - before) ** 2)))
    return float(np.sqrt(np.sum(now**2) + np.sum(before**2)))


def _acceptance(setting: Setting, now: Setting, paired: bool) -> Figure:
    before, after = setting.acceptance, now.acceptance
    error = _difference(before.length_influence, after.length_influence, paired)
    log = np.log(after.length.estimate / before.length.estimate)
    weight = min(setting.effective_prompts, now.effective_prompts)
    return _of_prompts("acceptance_length", setting, Change.of_logs(float(log), error, weight - 1), weight)


def _of_prompts(metric: str, setting: Setting, change: Change, weight: float) -> Figure:
    """One that so many prompts bear."""
    key, enough = (setting.draft, setting.temperature), weight / MIN_EFFECTIVE_PROMPTS
    return Figure(metric=metric, change=change, key=key, enough=enough)


def _speedup(before: Side, after: Side, setting: Setting, paired: bool) -> Figure:
    now = after.first.settings[setting.choice]
    weight = min(setting.effective_prompts, now.effective_prompts)
    prompts = _difference(setting.spread.prompts, now.spread.prompts, paired)
    means, variances = [], [(prompts**2, weight - 1)]
    for side in (before, after):
        at = [run.settings[setting.choice] for run in side.runs]
        logs = [float(np.log(fitted.speedup.estimate)) for fitted in at]
        means.append(float(np.mean(logs)))
        drawn, noise = float(at[0].spread.costs.std()), side.first.ratio_noise
        variances += _over_runs(logs, [(drawn**2, weight - 1), (_OVER_FIFTHS * noise**2, FOLDS - 1)])
    return _of_prompts("speedup", setting, Change.of_logs(means[1] - means[0], *pooled(variances)), weight)


def _costs(before: Side, after: Side, choice: Choice, same_machine: bool) -> Iterator[Figure]:
    """cost_p(1), cost_p(n) and cost_q: in seconds on an equal machine, else in plain steps."""
    cells: list[tuple[str, Part, int, str | None]] = [
        ("cost_p_1", "cost_p", 1, None),
        ("cost_p_verify", "cost_p", choice.shape.verified_tokens, None),
        ("cost_q", "cost_q", 1, choice.draft),
    ]
    for metric, part, tokens, draft in cells:
        if metric == "cost_p_1" and not same_machine:
            yield Figure(metric=metric, change=None)
            continue
        key = CellKey(part=part, tokens=tokens, load=before.profile.main_load, draft=draft)
        negligible = metric == "cost_q" and _negligible(before, after, key)
        change = _cost_change(before, after, key, same_machine)
        yield Figure(metric=metric, change=change, key=() if negligible else (key,), negligible=negligible)


def _plain_step(key: CellKey) -> CellKey:
    return replace(key, part="cost_p", tokens=1, draft=None)


def _negligible(before: Side, after: Side, key: CellKey) -> bool:
    """Whether proposing takes next to nothing in both, as looking up n-grams does: its changes do no harm."""
    steps = [(side.first.cells, replace(key, load=side.profile.main_load)) for side in (before, after)]
    shares = [cells.resampled(step)[0] / cells.resampled(_plain_step(step))[0] for cells, step in steps]
    return bool(max(shares) < _NEGLIGIBLE)


def _cost_change(before: Side, after: Side, key: CellKey, same_machine: bool) -> Change:
    means: list[float] = []
    variances: list[tuple[float, float]] = []
    for side in (before, after):
        here = replace(key, load=side.profile.main_load)
        drawn = [np.log(run.cells.resampled(here)) for run in side.runs]
        if not same_machine:
            plain = [np.log(run.cells.resampled(_plain_step(here))) for run in side.runs]
            drawn = [own - steps for own, steps in zip(drawn, plain, strict=True)]
        logs, noise = [float(own[0]) for own in drawn], _OVER_FIFTHS * side.first.noise**2
        means.append(float(np.mean(logs)))
        alone = [(float(drawn[0][1:].var()), side.first.cells.count(here) - 1), (noise, FOLDS - 1)]
        variances += _over_runs(logs, alone)
    return Change.of_logs(means[1] - means[0], *pooled(variances))


def _over_runs(values: Sequence[float], alone: Variances) -> Variances:
    """Variances of the mean over runs: what the runs show, or `alone` of the first.

    Fewer than four show too little: each is taken to differ from others as the first's fifths do, and some more.
    """
    count = len(values)
    if count < _FEWEST_RUNS:
        return [(variance / count, degrees) for variance, degrees in alone]
    return [(float(np.var(values, ddof=1)) / count, count - 1)]


def _positions(setting: Setting, now: Setting, paired: bool) -> Iterator[Figure]:
    """The share accepted of the proposals that were reached, by position."""
    counts = [(fitted.acceptance.accepted, fitted.acceptance.reached) for fitted in (setting, now)]
    (accepted, reached), (accepted_now, reached_now) = counts  # [K, prompts] each
    for j in range(len(accepted)):
        change = None
        if accepted[j].sum() > 0 and reached_now[j].sum() > 0:
            rate, rate_now = accepted[j].sum() / reached[j].sum(), accepted_now[j].sum() / reached_now[j].sum()
            influences = ratio_influence(accepted[j], reached[j]), ratio_influence(accepted_now[j], reached_now[j])
            error = _difference(*influences, paired)
            weight = min(effective_prompts(reached[j]), effective_prompts(reached_now[j]))
            change = Change.of_difference(float(rate_now - rate), error, float(rate), weight - 1)
        yield Figure(metric="conditional_acceptance_rate", change=change, place=f"position {j + 1}")


def _categories(setting: Setting, now: Setting) -> Iterator[Figure]:
    """Tokens per round of each, on the same prompts."""
    for category in dict.fromkeys(setting.evidence.categories):
        inside = setting.evidence.categories == category
        emitted, rounds = setting.texts.emitted[inside], setting.texts.rounds[inside]
        emitted_now, rounds_now = now.texts.emitted[inside], now.texts.rounds[inside]
        change = None
        if rounds.sum() > 0 and rounds_now.sum() > 0:
            log = np.log(emitted_now.sum() / rounds_now.sum() * rounds.sum() / emitted.sum())
            influences = log_ratio_influence(emitted, rounds), log_ratio_influence(emitted_now, rounds_now)
            change = Change.of_logs(float(log), _difference(*influences, paired=True), effective_prompts(rounds) - 1)
        yield Figure(metric="acceptance_length", change=change, place=str(category))


def _overheads(before: Side, after: Side, choice: Choice) -> Iterator[Figure]:
    """Seconds of the loop beyond its forwards, at each K it was measured at; relative to the baseline's."""
    greedy, main = choice.temperature == 0.0, before.profile.main_load
    for key in before.first.cells.rounds("overhead", main, choice.draft, greedy):
        means: list[float] = []
        variances: list[tuple[float, float]] = []
        for side in (before, after):
            here = replace(key, load=side.profile.main_load)
            drawn = [run.cells.resampled(here) for run in side.runs]
            seconds = [float(own[0]) for own in drawn]
            means.append(float(np.mean(seconds)))
            felt = _OVER_FIFTHS * (side.first.noise * means[0]) ** 2
            alone = [(float(drawn[0][1:].var()), side.first.cells.count(here) - 1), (felt, FOLDS - 1)]
            variances += _over_runs(seconds, alone)
        change = None
        if means[0] > 0:
            error, degrees = pooled(variances)
            change = Change.of_difference(means[1] - means[0], error, means[0], degrees)
        yield Figure(metric="overhead", change=change, place=f"K = {key.draft_steps}")
