"""The figures of two profiles side by side, each as a change with its chance: what `check` judges.

`before` is the baseline, `after` the candidate; both are compared at the setting the baseline would choose.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from spectune.costs import FOLDS, CellKey, CostCells, unsteadiness
from spectune.errors import ProfileError
from spectune.fit import OWN_RULE, Setting, draft_record, fit_settings, replayed
from spectune.profile import Profile
from spectune.stats import (
    MIN_EFFECTIVE_PROMPTS,
    Change,
    Floats,
    effective_prompts,
    log_ratio_influence,
    pooled,
    ratio_influence,
)
from spectune.tables import labels, rows_where

Part = Literal["acceptance", "cost_p", "cost_q", "overhead", "speedup"]

_NEGLIGIBLE = 0.01  # of a plain step


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
class Side:
    """A profile, and what is compared of it."""

    profile: Profile
    cells: CostCells
    settings: dict[tuple[str, float, int], Setting]
    ratio_noise: float  # of ratios of costs between runs, a standard deviation of logs

    @staticmethod
    def of(profile: Profile, cells: CostCells) -> "Side":
        """Fitted with those cells, which may be other than the profile's own."""
        fitted = fit_settings(profile, cells)
        keyed = {(one.draft, one.temperature, one.num_speculative_tokens): one for one in fitted}
        ratio_noise = unsteadiness(profile.costs, "plain")
        return Side(profile=profile, cells=cells, settings=keyed, ratio_noise=ratio_noise)


def machine_speed(before: Side, candidate: Profile, cells: CostCells) -> float:
    """Log of how much faster the machine was for the candidate: by a product that nobody changed, the mean over its
    sizes.
    """
    loads = before.profile.main_load, candidate.main_load
    sizes = sorted(set(before.cells.sizes("reference", loads[0])) & set(cells.sizes("reference", loads[1])))
    if not sizes:
        raise ProfileError("a profile lacks the reference product", "run spectune profile again")
    ours, theirs = (
        np.mean([np.log(side.resampled(CellKey(part="reference", tokens=n, load=load))[0]) for n in sizes])
        for side, load in zip((before.cells, cells), loads, strict=True)
    )
    return float(ours - theirs)


def figures_of(before: Side, after: Side, setting: Setting, same_machine: bool, noise: Sequence[float]) -> list[Figure]:
    """Every figure at a setting of the baseline's; `noise` is what costs of either side change by between runs."""
    now = after.settings[setting.draft, setting.temperature, setting.num_speculative_tokens]
    paired = _same_prompts(before.profile, after.profile, setting.temperature)
    figures = [_acceptance(setting, now, paired)]
    figures += _costs(before, after, setting, same_machine, noise)
    figures.append(
        _speedup(before, after, setting, now, paired)
        if same_machine
        else Figure(metric="speedup", part="speedup", change=None)
    )
    figures += _positions(before.profile, after.profile, setting, paired)
    figures += _categories(setting, now, paired)
    if same_machine:
        figures += _overheads(before, after, setting, noise)
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
    noise = [side.ratio_noise for side in (before, after)]
    prompts = _difference(setting.prompt_influence, now.prompt_influence, paired)
    costs = float(np.hypot(setting.cost_influence.std(), now.cost_influence.std()))
    weight = min(setting.effective_prompts, now.effective_prompts)
    error, degrees = pooled([(prompts**2 + costs**2, weight - 1), *_between_runs(noise)])
    log = float(np.log(now.speedup.estimate / setting.speedup.estimate))
    return Figure(
        metric="speedup",
        part="speedup",
        change=Change.of_logs(log, error, degrees),
        key=(setting.draft, setting.temperature),
        enough=weight / MIN_EFFECTIVE_PROMPTS,
    )


def _costs(before: Side, after: Side, setting: Setting, same_machine: bool, noise: Sequence[float]) -> list[Figure]:
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
        change = _cost_change(before, after, part, tokens, spec, same_machine, noise)
        key = () if metric == "cost_q" and _negligible(before, after, spec) else (part, tokens, spec)
        figures.append(Figure(metric=metric, part=part, change=change, key=key, negligible=not key))
    return figures


def _negligible(before: Side, after: Side, draft: str | None) -> bool:
    """Whether proposing takes next to nothing in both, as looking up n-grams does: its changes do no harm."""
    shares = []
    for side in (before, after):
        plain = CellKey(part="cost_p", tokens=1, load=side.profile.main_load)
        step = side.cells.resampled(replace(plain, part="cost_q", draft=draft))[0]
        shares.append(step / side.cells.resampled(plain)[0])
    return bool(max(shares) < _NEGLIGIBLE)


def _cost_change(
    before: Side, after: Side, part: str, tokens: int, draft: str | None, same_machine: bool, noise: Sequence[float]
) -> Change:
    logs, variances = [], _between_runs(noise)
    for side in (before, after):
        key = CellKey(part=part, tokens=tokens, load=side.profile.main_load, draft=draft)
        drawn = np.log(side.cells.resampled(key))
        if not same_machine:
            drawn = drawn - np.log(side.cells.resampled(replace(key, part="cost_p", tokens=1, draft=None)))
        logs.append(float(drawn[0]))
        variances.append((float(drawn[1:].var()), side.cells.count(key) - 1))
    return Change.of_logs(logs[1] - logs[0], *pooled(variances))


def _between_runs(noise: Sequence[float]) -> list[tuple[float, float]]:
    """Variance and degrees of freedom of what runs change by: a run is taken to differ from others as much as its
    fifths do.
    """
    return [(one**2, FOLDS - 1) for one in noise]


def _positions(one: Profile, other: Profile, setting: Setting, paired: bool) -> Iterator[Figure]:
    """The share accepted of the proposals that were reached, by position."""
    k = setting.num_speculative_tokens
    counts = []
    for profile in (one, other):
        draft = draft_record(profile, setting.draft)
        counted = replayed(profile, draft, setting.temperature, OWN_RULE[draft.method], [k])
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


def _overheads(before: Side, after: Side, setting: Setting, noise: Sequence[float]) -> Iterator[Figure]:
    """Seconds of the loop beyond its forwards, at each K it was measured at; relative to the baseline's."""
    greedy, main = setting.temperature == 0.0, before.profile.main_load
    for k in before.cells.sizes("overhead", main, setting.draft, greedy):
        key = CellKey(part="overhead", tokens=k, load=main, draft=setting.draft, greedy=greedy)
        drawn = before.cells.resampled(key)
        drawn_now = after.cells.resampled(replace(key, load=after.profile.main_load))
        change = None
        if drawn[0] > 0:
            variances = [(variance * float(drawn[0]) ** 2, degrees) for variance, degrees in _between_runs(noise)]
            for side, draws in ((before, drawn), (after, drawn_now)):
                variances.append((float(draws[1:].var()), side.cells.count(key) - 1))
            error, degrees = pooled(variances)
            change = Change.of_difference(float(drawn_now[0] - drawn[0]), error, float(drawn[0]), degrees)
        yield Figure(metric="overhead", part="overhead", change=change, place=f"K = {k}")
