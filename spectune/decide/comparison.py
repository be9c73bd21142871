"""The figures of two profiles, each as a change with its chance, at the setting that the baseline would choose."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from spectune import stats
from spectune.choice import Choice
from spectune.decide.evidence import Counts, profiled_evidence, replayed
from spectune.decide.fit import Setting, priced_settings
from spectune.decide.metrics import METRICS, Part
from spectune.decide.round_costs import verify_part
from spectune.decide.split import Split
from spectune.errors import ProfileError
from spectune.profile.costs import FOLDS, CellKey, CostCells, unsteadiness
from spectune.profile.manifest import Load
from spectune.profile.store import Profile
from spectune.replay import Floats

_NEGLIGIBLE = 0.01  # of a plain step
_FEWEST_RUNS = 4  # that tell how much runs differ
_OVER_FIFTHS = 2.0  # the variance between runs over that between the fifths of one, seen over eight runs (docs/log.md)

Over = Literal["nothing", "reference", "plain"]
Variances = Sequence[tuple[float, float]]  # each with its degrees of freedom
Side = list["CostRun"]  # a profile's own first, then further runs of the same
CellFigure = Callable[[CostCells, CellKey], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A change before it is judged; `key` is equal for figures that are one and the same measurement."""

    metric: str
    change: stats.Change | None  # None where it cannot be compared
    key: tuple[object, ...] = ()
    place: str | None = None
    enough: float = 1.0  # below 1: the share of the data that an interval needs
    negligible: bool = False
    split: Split | None = None  # of a speed-up

    @property
    def part(self) -> Part:
        """What it is a figure of."""
        return METRICS[self.metric].part


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRun:
    """One measurement of the costs, in seconds of a machine as fast as the first baseline's run found it."""

    load: Load  # the profile's main one
    cells: CostCells
    settings: Mapping[Choice, Setting]
    noise: float  # what costs change by between runs, a standard deviation of logs
    ratio_noise: float  # the same of ratios of costs


def measured_side(profile: Profile, also: Sequence[Profile], first: Profile, over: Over) -> Side:
    """The profile and other runs of the same; `over` is what the costs of different runs are compared relative to."""
    counted = [replayed(evidence) for evidence in profiled_evidence(profile)]
    return [_cost_run(profile, counted, run.costs, first, over) for run in (profile, *also)]


def _cost_run(profile: Profile, counted: Sequence[Counts], costs: pa.Table, first: Profile, over: Over) -> CostRun:
    cells = CostCells.of(costs)
    if over == "reference":
        speed = _reference_log(CostCells.of(first.costs), first) - _reference_log(cells, profile)
        cells = cells.scaled(float(np.exp(speed)))
    settings = priced_settings(counted, cells, profile.manifest.settings)
    by_choice = {setting.choice: setting for setting in settings}
    noise, ratio_noise = unsteadiness(costs, over), unsteadiness(costs, "plain")
    return CostRun(load=profile.main_load, cells=cells, settings=by_choice, noise=noise, ratio_noise=ratio_noise)


def _reference_log(cells: CostCells, profile: Profile) -> float:
    """Log seconds of a product that nobody changed, the mean over its sizes."""
    sizes = cells.sizes("reference", profile.main_load)
    if not sizes:
        raise ProfileError("a profile lacks the reference product", "run spectune profile again")
    keys = [CellKey(part="reference", tokens=n, load=profile.main_load) for n in sizes]
    return float(np.mean([np.log(cells.resampled(key)[0]) for key in keys]))


def figures_of(before: Side, after: Side, setting: Setting, same_machine: bool) -> Iterator[Figure]:
    """Every figure at a setting of the baseline's."""
    now = after[0].settings[setting.choice]
    paired = setting.evidence.texts["prompt_id"].equals(now.evidence.texts["prompt_id"])
    yield _acceptance(setting, now, paired)
    yield from _costs(before, after, setting.choice, same_machine)
    yield _speedup(before, after, setting, paired) if same_machine else Figure(metric="speedup", change=None)
    yield from _positions(setting, now, paired)
    yield from _categories(setting, now) if paired else ()
    yield from _overheads(before, after, setting.choice) if same_machine else ()


def _difference(before: Floats, now: Floats, paired: bool) -> float:
    """Standard error of a difference from the influences of the prompts on both figures."""
    return stats.root_sum_square(now - before) if paired else stats.root_sum_square(now, before)


def _acceptance(setting: Setting, now: Setting, paired: bool) -> Figure:
    before, after = setting.acceptance, now.acceptance
    error = _difference(before.length_influence, after.length_influence, paired)
    log = np.log(after.length.estimate / before.length.estimate)
    weight = min(setting.effective_prompts, now.effective_prompts)
    return _of_prompts("acceptance_length", setting, stats.Change.of_logs(float(log), error, weight - 1), weight)


def _of_prompts(metric: str, setting: Setting, change: stats.Change, weight: float) -> Figure:
    """One that so many prompts bear."""
    key, enough = (setting.draft, setting.temperature), weight / stats.MIN_EFFECTIVE_PROMPTS
    return Figure(metric=metric, change=change, key=key, enough=enough)


def _speedup(before: Side, after: Side, setting: Setting, paired: bool) -> Figure:
    now = after[0].settings[setting.choice]
    weight = min(setting.effective_prompts, now.effective_prompts)
    prompts = _difference(setting.spread.prompts, now.spread.prompts, paired)

    def logs(side: Side) -> tuple[list[float], Variances]:
        at = [run.settings[setting.choice] for run in side]
        drawn, noise = float(at[0].spread.costs.std()), _OVER_FIFTHS * side[0].ratio_noise ** 2
        return [float(np.log(one.speedup.estimate)) for one in at], [(drawn**2, weight - 1), (noise, FOLDS - 1)]

    moved, error, degrees = _moved(map(logs, (before, after)), [(prompts**2, weight - 1)])
    figure = _of_prompts("speedup", setting, stats.Change.of_logs(moved, error, degrees), weight)
    tokens = now.acceptance.clock_length / setting.acceptance.clock_length
    plain_step, round_ = (getattr(now.round, name) / getattr(setting.round, name) for name in ("plain_s", "round_s"))
    return replace(figure, split=Split(tokens=tokens, plain_step=plain_step, round=round_))


def _moved(sides: Iterable[tuple[Sequence[float], Variances]], more: Variances = ()) -> tuple[float, float, float]:
    """The mean over the second's runs less the first's, error and degrees; few runs differ as the first alone tells."""
    means, variances = [], [*more]
    for values, alone in sides:
        count = len(values)
        means.append(float(np.mean(values)))
        shown = [(float(np.var(values, ddof=1)) / count, count - 1.0)] if count >= _FEWEST_RUNS else []
        variances += shown or [(variance / count, degrees) for variance, degrees in alone]
    return means[1] - means[0], *stats.pooled(variances)


def _runs(side: Side, key: CellKey, figure: CellFigure, scale: float = 1.0) -> tuple[list[float], Variances]:
    """A cell's figure in each run, and what the first alone tells of how much they differ."""
    here = replace(key, load=side[0].load)
    drawn, noise = [figure(run.cells, here) for run in side], _OVER_FIFTHS * (side[0].noise * scale) ** 2
    alone = [(float(drawn[0][1:].var()), side[0].cells.count(here) - 1.0), (noise, FOLDS - 1.0)]
    return [float(own[0]) for own in drawn], alone


def _log_seconds(cells: CostCells, key: CellKey) -> Floats:
    return np.asarray(np.log(cells.resampled(key)))


def _log_plain_steps(cells: CostCells, key: CellKey) -> Floats:
    return _log_seconds(cells, key) - _log_seconds(cells, _plain_step(key))


def _costs(before: Side, after: Side, choice: Choice, same_machine: bool) -> Iterator[Figure]:
    """cost_p(1), cost_p(n) and cost_q: in seconds on an equal machine, else in plain steps."""
    figure = _log_seconds if same_machine else _log_plain_steps
    for metric, tokens in (("cost_p_1", 1), ("cost_p_verify", choice.shape.verified_tokens), ("cost_q", 1)):
        if metric == "cost_p_1" and not same_machine:
            yield Figure(metric=metric, change=None)
            continue
        draft, part = choice.draft if metric == "cost_q" else None, str(METRICS[metric].part)
        if metric == "cost_p_verify":
            part = verify_part(before[0].settings[choice].evidence.draft, tokens)
        key = CellKey(part=part, tokens=tokens, load=before[0].load, draft=draft)
        negligible = metric == "cost_q" and _negligible(before, after, key)
        change = stats.Change.of_logs(*_moved(_runs(side, key, figure) for side in (before, after)))
        yield Figure(metric=metric, change=change, key=() if negligible else (key,), negligible=negligible)


def _plain_step(key: CellKey) -> CellKey:
    return replace(key, part="cost_p", tokens=1, draft=None)


def _negligible(before: Side, after: Side, key: CellKey) -> bool:
    """Whether proposing takes next to nothing in both, as looking up n-grams does: its changes do no harm."""
    steps = [(side[0].cells, replace(key, load=side[0].load)) for side in (before, after)]
    shares = [cells.resampled(step)[0] / cells.resampled(_plain_step(step))[0] for cells, step in steps]
    return bool(max(shares) < _NEGLIGIBLE)


def _positions(setting: Setting, now: Setting, paired: bool) -> Iterator[Figure]:
    """The share accepted of the proposals that were reached, by position."""
    before, after = (zip(s.acceptance.accepted, s.acceptance.reached, strict=True) for s in (setting, now))
    for place, (was, seen) in enumerate(zip(before, after, strict=True), start=1):  # accepted and reached, [prompts]
        change = None
        if was[0].sum() > 0 and seen[1].sum() > 0:
            rate, rate_now = (float(accepted.sum() / reached.sum()) for accepted, reached in (was, seen))
            error = _difference(stats.ratio_influence(*was), stats.ratio_influence(*seen), paired)
            weight = min(stats.effective_prompts(was[1]), stats.effective_prompts(seen[1]))
            change = stats.Change.of_difference(rate_now - rate, error, rate, weight - 1)
        yield Figure(metric="conditional_acceptance_rate", change=change, place=f"position {place}")


def _categories(setting: Setting, now: Setting) -> Iterator[Figure]:
    """Tokens per round of each, on the same prompts."""
    categories = setting.evidence.categories
    for category in dict.fromkeys(categories):
        inside, change = categories == category, None
        was, seen = ((fitted.texts.emitted[inside], fitted.texts.rounds[inside]) for fitted in (setting, now))
        if was[1].sum() > 0 and seen[1].sum() > 0:
            log = float(np.log(seen[0].sum() / seen[1].sum() * was[1].sum() / was[0].sum()))
            error = _difference(stats.log_ratio_influence(*was), stats.log_ratio_influence(*seen), paired=True)
            change = stats.Change.of_logs(log, error, stats.effective_prompts(was[1]) - 1)
        yield Figure(metric="acceptance_length", change=change, place=str(category))


def _overheads(before: Side, after: Side, choice: Choice) -> Iterator[Figure]:
    """Seconds of the loop beyond its forwards, at each K it was measured at; relative to the baseline's."""
    greedy, main = choice.temperature == 0.0, before[0].load
    for key in before[0].cells.rounds("overhead", main, choice.draft, greedy):
        was_s = float(np.mean([float(run.cells.resampled(key)[0]) for run in before]))
        change = None
        if was_s > 0:
            sides = (_runs(side, key, CostCells.resampled, was_s) for side in (before, after))
            moved_s, error, degrees = _moved(sides)
            change = stats.Change.of_difference(moved_s, error, was_s, degrees)
        yield Figure(metric="overhead", change=change, place=f"K = {key.draft_steps}")
