"""Two profiles → what changed, part by part: a regression told apart from noise.

Acceptance is compared prompt by prompt, which takes the spread between prompts out. Absolute costs are compared
between equal machines only, ratios of costs between any. A figure has regressed where the change is beyond chance
(Holm over all figures) and larger than allowed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from spectune.costs import FOLDS, CellKey, CostCells, unsteadiness
from spectune.errors import ConfigError, ProfileError
from spectune.fit import OWN_RULE, Setting, draft_record, fit_settings, replayed
from spectune.manifest import Manifest, ModelRecord
from spectune.profile import Profile
from spectune.run import MAX_REGRESSION
from spectune.selection import choose
from spectune.stats import (
    MIN_EFFECTIVE_PROMPTS,
    Change,
    Floats,
    effective_prompts,
    holm,
    log_ratio_influence,
    pooled,
    ratio_influence,
)
from spectune.tables import labels, rows_where

Part = Literal["acceptance", "cost_p", "cost_q", "overhead", "speedup"]
Status = Literal["ok", "improved", "regressed", "too-noisy", "not-comparable"]
Verdict = Literal["ok", "regressed", "too-noisy", "not-comparable"]

HEADLINES: dict[str, Part] = {
    "acceptance_length": "acceptance",
    "cost_p_1": "cost_p",
    "cost_p_verify": "cost_p",
    "cost_q": "cost_q",
    "speedup": "speedup",
}
"""The figures that decide; cost_p_verify is cost_p(K + 1). Between machines costs are in plain steps, cost_p(1)."""
_HIGHER_IS_BETTER = ("acceptance", "speedup")
_MACHINE = ("hardware", "device", "threads")
_LEVEL = 0.05
_NEGLIGIBLE = 0.01  # of a plain step


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One figure of one draft and temperature; `change` is relative to the baseline, with its 95% interval.

    `headline` ones decide; the others explain, at `place` (a position, a category, a K). `more` says how many times
    the data would settle a figure that is too noisy.
    """

    metric: str
    part: Part
    draft: str
    temperature: float
    num_speculative_tokens: int
    place: str | None
    headline: bool
    status: Status
    change: float | None
    low: float | None
    high: float | None
    more: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The verdict, the figures behind it, what regressed, and in what the two profiles differ by their own account."""

    verdict: Verdict
    findings: list[Finding]
    causes: list[Part]
    differences: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """A change before it is judged; `key` is equal for figures that are one and the same measurement."""

    metric: str
    part: Part
    change: Change | None  # None where it cannot be compared
    key: tuple[object, ...] = ()
    place: str | None = None
    enough: float = 1.0  # below 1: the share of the data that an interval needs
    negligible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """A profile, and what is compared of it."""

    profile: Profile
    cells: CostCells
    settings: dict[tuple[str, float, int], Setting]

    @staticmethod
    def of(profile: Profile, cells: CostCells) -> "_Side":
        fitted = fit_settings(profile, cells)
        keyed = {(one.draft, one.temperature, one.num_speculative_tokens): one for one in fitted}
        return _Side(profile=profile, cells=cells, settings=keyed)


def check(
    baseline: Profile,
    candidate: Profile,
    max_regression: float = MAX_REGRESSION,
    by_metric: Mapping[str, float] | None = None,
    parts: Sequence[str] = (),
) -> Check:
    """Compare; `by_metric` allows another change than `max_regression` to some figures, `parts` leaves others out.

    Raises: ProfileError where the two are not of the same target, workload, dtype and temperatures.
    """
    allowed = _allowed(max_regression, by_metric or {})
    _require_comparable(baseline.manifest, candidate.manifest)
    differences = _differences(baseline.manifest, candidate.manifest)
    same_machine = not any(name in differences for name in _MACHINE)
    referenced = same_machine and "torch" not in differences
    before = _Side.of(baseline, CostCells.of(baseline.costs))
    cells = CostCells.of(candidate.costs)
    log_speed = _machine_speed(before, candidate, cells) if referenced else 0.0
    after = _Side.of(candidate, cells.scaled(float(np.exp(log_speed))))
    over: Literal["nothing", "reference", "plain"] = "plain"
    if same_machine:
        over = "reference" if referenced else "nothing"
    noise = [unsteadiness(one.costs, over) for one in (baseline, candidate)]
    findings: list[Finding] = []
    groups = [
        _figures(before, after, _chosen(before, draft.spec, temperature), same_machine, noise)
        for draft in baseline.manifest.drafts
        for temperature in baseline.manifest.settings.temperatures
    ]
    beyond_chance = _beyond_chance([one for _, figures in groups for one in figures if _counts(one, parts)])
    for setting, figures in groups:
        judged = [_judged(one, setting, allowed, beyond_chance) for one in figures]
        findings += [one for one in _without_false_praise(judged) if not parts or one.part in parts]
    return Check(
        verdict=_verdict(findings),
        findings=findings,
        causes=list(dict.fromkeys(one.part for one in findings if one.status == "regressed")),
        differences=[f"{name}: {text}" for name, text in differences.items()],
    )


def _allowed(max_regression: float, by_metric: Mapping[str, float]) -> dict[str, float]:
    for name in by_metric:
        if name not in HEADLINES:
            raise ConfigError(f"max_regression names an unknown figure {name!r}", f"known: {', '.join(HEADLINES)}")
    for name, value in {"--max-regression": max_regression, **by_metric}.items():
        if not 0 < value < 1:
            raise ConfigError(f"{name} is {value:g}", "give a share above 0 and below 1, such as 0.05")
    return {name: by_metric.get(name, max_regression) for name in HEADLINES} | {"": max_regression}


def _require_comparable(one: Manifest, other: Manifest) -> None:
    """Raises: ProfileError naming what is not the same."""
    same = {
        "workload": (one.workload.hash[:12], other.workload.hash[:12]),
        "target": (_weights(one.target), _weights(other.target)),
        "dtype": (one.environment.dtype, other.environment.dtype),
        "temperatures": tuple(" ".join(f"{t:g}" for t in sorted(m.settings.temperatures)) for m in (one, other)),
        "max_new_tokens": (one.settings.max_new_tokens, other.settings.max_new_tokens),
        "top_p and top_k": ((one.settings.top_p, one.settings.top_k), (other.settings.top_p, other.settings.top_k)),
    }
    for name, (before, now) in same.items():
        if before != now:
            problem = f"the profiles are not comparable: another {name}, {before} and {now}"
            raise ProfileError(problem, "profile the candidate with the baseline's run file or --tape")
    missing = [draft.spec for draft in one.drafts if draft.spec not in {draft.spec for draft in other.drafts}]
    if missing:
        raise ProfileError(f"the candidate lacks the draft {missing[0]}", f"profile it with --draft {missing[0]}")
    if other.settings.max_k < one.settings.max_k:
        problem = (
            f"the candidate was measured up to K = {other.settings.max_k}, the baseline up to {one.settings.max_k}"
        )
        raise ProfileError(problem, f"profile it with --max-k {one.settings.max_k}")


def _weights(model: ModelRecord) -> str:
    return model.digest[:12] if model.digest else f"{model.name}@{model.revision}"


def _differences(one: Manifest, other: Manifest) -> dict[str, str]:
    """What the profiles say of themselves that is not the same, and does not forbid comparing."""
    pairs: dict[str, tuple[object, object]] = {
        name: (getattr(one.environment, name), getattr(other.environment, name)) for name in _MACHINE
    }
    versions = one.environment.versions
    pairs |= {name: (version, other.environment.versions.get(name)) for name, version in versions.items()}
    pairs["spectune"] = (one.spectune_version, other.spectune_version)
    pairs["chat template"] = tuple(str(m.workload.chat_template_digest)[:12] for m in (one, other))  # type: ignore[assignment]
    drafts = {draft.spec: draft for draft in other.drafts}
    for draft in one.drafts:
        now = drafts[draft.spec].model
        if draft.model and now:
            pairs[f"weights of {draft.spec}"] = (_weights(draft.model), _weights(now))
    return {name: f"{before}, now {now}" for name, (before, now) in pairs.items() if before != now}


def _machine_speed(before: _Side, candidate: Profile, cells: CostCells) -> float:
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


def _chosen(side: _Side, draft: str, temperature: float) -> Setting:
    """The K at which the two are compared: the baseline's best."""
    return choose([one for (spec, t, _), one in side.settings.items() if (spec, t) == (draft, temperature)])


def _figures(
    before: _Side, after: _Side, setting: Setting, same_machine: bool, noise: Sequence[float]
) -> tuple[Setting, list[_Figure]]:
    now = after.settings[setting.draft, setting.temperature, setting.num_speculative_tokens]
    paired = _same_prompts(before.profile, after.profile, setting.temperature)
    figures = [_acceptance(setting, now, paired)]
    figures += _costs(before, after, setting, same_machine, noise)
    figures.append(
        _speedup(before, after, setting, now, paired)
        if same_machine
        else _Figure(metric="speedup", part="speedup", change=None)
    )
    figures += _positions(before.profile, after.profile, setting, paired)
    figures += _categories(setting, now, paired)
    if same_machine:
        figures += _overheads(before, after, setting, noise)
    return setting, figures


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


def _acceptance(setting: Setting, now: Setting, paired: bool) -> _Figure:
    error = _difference(setting.log_length_influence, now.log_length_influence, paired)
    log = np.log(now.acceptance_length.estimate / setting.acceptance_length.estimate)
    weight = min(setting.effective_prompts, now.effective_prompts)
    return _Figure(
        metric="acceptance_length",
        part="acceptance",
        change=Change.of_logs(float(log), error, weight - 1),
        key=(setting.draft, setting.temperature),
        enough=weight / MIN_EFFECTIVE_PROMPTS,
    )


def _speedup(before: _Side, after: _Side, setting: Setting, now: Setting, paired: bool) -> _Figure:
    noise = [unsteadiness(side.profile.costs, "plain") for side in (before, after)]
    prompts = _difference(setting.prompt_influence, now.prompt_influence, paired)
    costs = float(np.hypot(setting.cost_influence.std(), now.cost_influence.std()))
    weight = min(setting.effective_prompts, now.effective_prompts)
    error, degrees = pooled([(prompts**2 + costs**2, weight - 1), *_between_runs(noise)])
    log = float(np.log(now.speedup.estimate / setting.speedup.estimate))
    return _Figure(
        metric="speedup",
        part="speedup",
        change=Change.of_logs(log, error, degrees),
        key=(setting.draft, setting.temperature),
        enough=weight / MIN_EFFECTIVE_PROMPTS,
    )


def _costs(before: _Side, after: _Side, setting: Setting, same_machine: bool, noise: Sequence[float]) -> list[_Figure]:
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
            figures.append(_Figure(metric=metric, part=part, change=None))
            continue
        change = _cost_change(before, after, part, tokens, spec, same_machine, noise)
        key = () if metric == "cost_q" and _negligible(before, after, spec) else (part, tokens, spec)
        figures.append(_Figure(metric=metric, part=part, change=change, key=key, negligible=not key))
    return figures


def _negligible(before: _Side, after: _Side, draft: str | None) -> bool:
    """Whether proposing takes next to nothing in both, as looking up n-grams does: its changes do no harm."""
    shares = []
    for side in (before, after):
        plain = CellKey(part="cost_p", tokens=1, load=side.profile.main_load)
        step = side.cells.resampled(replace(plain, part="cost_q", draft=draft))[0]
        shares.append(step / side.cells.resampled(plain)[0])
    return bool(max(shares) < _NEGLIGIBLE)


def _cost_change(
    before: _Side, after: _Side, part: str, tokens: int, draft: str | None, same_machine: bool, noise: Sequence[float]
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


def _positions(one: Profile, other: Profile, setting: Setting, paired: bool) -> Iterator[_Figure]:
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
        yield _Figure(metric="conditional_acceptance_rate", part="acceptance", change=change, place=f"position {j + 1}")


def _categories(setting: Setting, now: Setting, paired: bool) -> Iterator[_Figure]:
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
        yield _Figure(metric="acceptance_length", part="acceptance", change=change, place=str(category))


def _overheads(before: _Side, after: _Side, setting: Setting, noise: Sequence[float]) -> Iterator[_Figure]:
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
        yield _Figure(metric="overhead", part="overhead", change=change, place=f"K = {k}")


def _counts(figure: _Figure, parts: Sequence[str]) -> bool:
    return bool(figure.key) and figure.change is not None and (not parts or figure.part in parts)


def _beyond_chance(figures: Sequence[_Figure]) -> dict[tuple[object, ...], bool]:
    """Holm over the distinct figures that decide."""
    values = {(one.metric, *one.key): one.change.p_value for one in figures if one.change}
    return dict(zip(values, holm(list(values.values()), _LEVEL), strict=True))


def _judged(
    figure: _Figure, setting: Setting, allowed: Mapping[str, float], beyond_chance: Mapping[tuple[object, ...], bool]
) -> Finding:
    bound, change, headline = (
        allowed.get(figure.metric, allowed[""]),
        figure.change,
        figure.metric in HEADLINES and figure.place is None,
    )
    status, more = _status(figure, bound, beyond_chance)
    known = change is not None and np.isfinite(change.low) and np.isfinite(change.high)
    return Finding(
        metric=figure.metric,
        part=figure.part,
        draft=setting.draft,
        temperature=setting.temperature,
        num_speculative_tokens=setting.num_speculative_tokens,
        place=figure.place,
        headline=headline,
        status=status,
        change=change.relative if change else None,
        low=change.low if change and known else None,
        high=change.high if change and known else None,
        more=more,
    )


def _without_false_praise(findings: Sequence[Finding]) -> list[Finding]:
    """A speed-up is over plain decoding: it rises where the target got slower, and falls where it got faster. Neither
    counts, where nothing else bears it out.
    """
    plain = next((one.status for one in findings if one.metric == "cost_p_1"), "ok")
    worse = any(one.status == "regressed" for one in findings if one.metric != "speedup")
    false = {"regressed": plain == "improved" and not worse, "improved": plain == "regressed"}
    return [
        replace(one, status="ok") if one.metric == "speedup" and false.get(one.status, False) else one
        for one in findings
    ]


def _status(
    figure: _Figure, bound: float, beyond_chance: Mapping[tuple[object, ...], bool]
) -> tuple[Status, float | None]:
    change = figure.change
    if change is None:
        return "not-comparable", None
    if figure.negligible:
        return "ok", None
    if figure.enough < 1:
        return "too-noisy", 1 / figure.enough
    sure = beyond_chance.get((figure.metric, *figure.key), change.p_value < _LEVEL)
    if sure and abs(change.relative) > bound:
        better = (change.relative > 0) == (figure.part in _HIGHER_IS_BETTER)
        return ("improved" if better else "regressed"), None
    half = (change.high - change.low) / 2
    return ("too-noisy", (half / bound) ** 2 if np.isfinite(half) else None) if half > bound else ("ok", None)


def _verdict(findings: Sequence[Finding]) -> Verdict:
    statuses = {finding.status for finding in findings if finding.headline}
    if "regressed" in statuses:
        return "regressed"
    if "too-noisy" in statuses:
        return "too-noisy"
    return "ok" if statuses - {"not-comparable"} else "not-comparable"
