"""Two profiles → what changed, part by part: a regression told apart from noise.

Acceptance is compared prompt by prompt, which takes the spread between prompts out. Absolute costs are compared
between equal machines only, ratios of costs between any. A figure has regressed where the change is beyond chance
(Holm over all figures) and larger than allowed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from spectune.decide.comparison import Figure, Over, Part, Side, figures_of, side
from spectune.decide.fit import Setting
from spectune.decide.selection import choose
from spectune.errors import ConfigError, ProfileError
from spectune.profile.manifest import Manifest, ModelRecord
from spectune.profile.run import MAX_REGRESSION
from spectune.profile.store import Profile
from spectune.stats import holm

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
_LEVEL = 0.02  # of one false alarm or more; the other half of it would be false praise


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


def check(
    baseline: Profile,
    candidate: Profile,
    max_regression: float = MAX_REGRESSION,
    by_metric: Mapping[str, float] | None = None,
    parts: Sequence[str] = (),
    also_baseline: Sequence[Profile] = (),
    also_candidate: Sequence[Profile] = (),
) -> Check:
    """Compare; `by_metric` allows another change than `max_regression` to some figures, `parts` leaves others out.

    `also_…` are further runs of the same, for their costs: what those differ by among themselves is what a difference
    is held against. Raises: ProfileError where the two are not of the same target, workload, dtype and temperatures.
    """
    allowed = _allowed(max_regression, by_metric or {})
    _require_comparable(baseline.manifest, candidate.manifest)
    differences = _differences(baseline.manifest, candidate.manifest)
    for one, others in ((baseline, also_baseline), (candidate, also_candidate)):
        for other in others:
            _require_same(one.manifest, other.manifest)
        _require_distinct([one, *others])
    same_machine = not any(name in differences for name in _MACHINE)
    over: Over = "plain"
    if same_machine:
        over = "nothing" if "torch" in differences else "reference"
    before = side(baseline, also_baseline, baseline, over)
    after = side(candidate, also_candidate, baseline, over)
    findings: list[Finding] = []
    groups = [
        (setting, figures_of(before, after, setting, same_machine))
        for draft in baseline.manifest.drafts
        for temperature in baseline.manifest.settings.temperatures
        for setting in [_chosen(before, draft.spec, temperature)]
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


def _require_same(one: Manifest, other: Manifest) -> None:
    """Raises: ProfileError where the other is not another run of the same."""
    _require_comparable(one, other)
    differences = _differences(one, other)
    if differences:
        name, text = next(iter(differences.items()))
        problem = f"a further run is not one of the same: {name} {text}"
        raise ProfileError(problem, "give profiles of one code, model and machine")


def _require_distinct(runs: Sequence[Profile]) -> None:
    """Raises: ProfileError: the same costs twice would show a spread that is not there."""
    for place, one in enumerate(runs):
        if any(one.costs.equals(other.costs) for other in runs[:place]):
            raise ProfileError("the same costs are given twice", "give each run of a side once")


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


def _chosen(side: Side, draft: str, temperature: float) -> Setting:
    """The K at which the two are compared: the baseline's best."""
    return choose([one for (spec, t, _), one in side.settings.items() if (spec, t) == (draft, temperature)])


def _counts(figure: Figure, parts: Sequence[str]) -> bool:
    return bool(figure.key) and figure.change is not None and (not parts or figure.part in parts)


def _beyond_chance(figures: Sequence[Figure]) -> dict[tuple[object, ...], bool]:
    """Holm over the distinct figures that decide."""
    values = {(one.metric, *one.key): one.change.p_value for one in figures if one.change}
    return dict(zip(values, holm(list(values.values()), _LEVEL), strict=True))


def _judged(
    figure: Figure, setting: Setting, allowed: Mapping[str, float], beyond_chance: Mapping[tuple[object, ...], bool]
) -> Finding:
    bound, change = allowed.get(figure.metric, allowed[""]), figure.change
    status, more = _status(figure, bound, beyond_chance)
    known = change is not None and np.isfinite(change.low) and np.isfinite(change.high)
    return Finding(
        metric=figure.metric,
        part=figure.part,
        draft=setting.draft,
        temperature=setting.temperature,
        num_speculative_tokens=setting.num_speculative_tokens,
        place=figure.place,
        headline=figure.metric in HEADLINES and figure.place is None,
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
    figure: Figure, bound: float, beyond_chance: Mapping[tuple[object, ...], bool]
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
