"""Two profiles → what changed, part by part: a regression is beyond chance (Holm) and larger than allowed.

Acceptance is compared prompt by prompt. Absolute costs are compared between equal machines only, ratios between any.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, get_args

import numpy as np

from spectune.choice import Choice, chain
from spectune.decide.comparison import Figure, Over, figures_of, measured_side
from spectune.decide.fit import Setting
from spectune.decide.metrics import HEADLINES, PARTS, Part
from spectune.decide.selection import choose
from spectune.decide.split import Split
from spectune.errors import ConfigError, ProfileError
from spectune.profile.manifest import MACHINE, Manifest, ModelRecord
from spectune.profile.run import MAX_REGRESSION
from spectune.profile.store import Profile
from spectune.stats import holm

Status = Literal["ok", "improved", "regressed", "too-noisy", "not-comparable"]
Verdict = Literal["ok", "regressed", "too-noisy", "not-comparable"]

_HIGHER_IS_BETTER = ("acceptance", "speedup")
_LEVEL = 0.02  # of one false alarm or more; the other half of it would be false praise


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One figure of one draft and temperature; headline ones decide, the others explain."""

    metric: str
    part: Part
    draft: str
    temperature: float
    num_speculative_tokens: int
    place: str | None  # a position, a category, a K
    headline: bool
    status: Status
    change: float | None  # relative to the baseline, with its 95% interval
    low: float | None
    high: float | None
    more: float | None  # how many times the data would settle it
    negligible: bool  # whether it is next to nothing of a round, so that its changes do no harm
    split: Split | None  # of a speed-up, into what made it change

    @property
    def choice(self) -> Choice:
        """What the two profiles are compared at."""
        return Choice(self.draft, chain(self.num_speculative_tokens), self.temperature)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The verdict, the figures behind it, what regressed, and in what the two profiles differ by their own account."""

    verdict: Verdict
    findings: list[Finding]
    causes: list[Part]
    differences: list[str]
    same: bool  # whether it is one profile, given twice


def check(
    baseline: Profile,
    candidate: Profile,
    max_regression: float = MAX_REGRESSION,
    by_metric: Mapping[str, float] | None = None,
    parts: Sequence[str] = (),
    also_baseline: Sequence[Profile] = (),
    also_candidate: Sequence[Profile] = (),
) -> Check:
    """Compare, some figures by another bound, of some parts only; `also_…` are further runs, for their costs.

    Raises: ProfileError where the two are not of the same target, workload, dtype and temperatures.
    """
    allowed = _allowed(max_regression, by_metric or {})
    if unknown := [part for part in parts if part not in PARTS]:
        raise ConfigError(f"--only {unknown[0]} is no part", f"give one of {', '.join(PARTS)}")
    require_comparable(baseline.manifest, candidate.manifest)
    require_further_runs(baseline, also_baseline)
    require_further_runs(candidate, also_candidate)
    changed = differences(baseline.manifest, candidate.manifest)
    over: Over = "reference" if "torch" not in changed else "nothing"  # a product that torch's version changes
    over = "plain" if any(name in changed for name in MACHINE) else over
    before = measured_side(baseline, also_baseline, baseline, over)
    after = measured_side(candidate, also_candidate, baseline, over)
    groups = groupby(before[0].settings.values(), key=lambda setting: (setting.draft, setting.temperature))
    chosen = [choose(list(group)) for _, group in groups]  # the best K
    compared = [(setting, list(figures_of(before, after, setting, over != "plain"))) for setting in chosen]
    wanted = tuple(parts) or get_args(Part)
    chance = _beyond_chance([figure for _, figures in compared for figure in figures if figure.part in wanted])
    findings = [
        finding
        for setting, figures in compared
        for finding in _without_false_praise([_judged(figure, setting, allowed, chance) for figure in figures])
        if finding.part in wanted
    ]
    tables = ("tape", "acceptance", "costs")
    same = all(getattr(baseline, name).equals(getattr(candidate, name)) for name in tables)
    if same:
        findings = [replace(finding, status="ok", more=None) for finding in findings]
    return Check(
        same=same,
        verdict=_verdict(findings),
        findings=findings,
        causes=list(dict.fromkeys(finding.part for finding in findings if finding.status == "regressed")),
        differences=[f"{name}: {text}" for name, text in changed.items()],
    )


def _allowed(max_regression: float, by_metric: Mapping[str, float]) -> dict[str, float]:
    for name in by_metric:
        if name not in HEADLINES:
            raise ConfigError(f"max_regression names an unknown figure {name!r}", f"known: {', '.join(HEADLINES)}")
    for name, value in {"--max-regression": max_regression, **by_metric}.items():
        if not 0 < value < 1:
            raise ConfigError(f"{name} is {value:g}", "give a share above 0 and below 1, such as 0.05")
    return {name: by_metric.get(name, max_regression) for name in HEADLINES} | {"": max_regression}


def _beyond_chance(figures: Sequence[Figure]) -> dict[tuple[object, ...], bool]:
    """Holm over the distinct figures that decide."""
    values = {(figure.metric, *figure.key): figure.change.p_value for figure in figures if figure.key and figure.change}
    return dict(zip(values, holm(list(values.values()), _LEVEL), strict=True))


def _judged(
    figure: Figure, setting: Setting, allowed: Mapping[str, float], beyond_chance: Mapping[tuple[object, ...], bool]
) -> Finding:
    bound, change = allowed.get(figure.metric, allowed[""]), figure.change
    status, more = _status(figure, bound, beyond_chance)
    known = change is not None and np.isfinite([change.low, change.high]).all()
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
        negligible=figure.negligible,
        split=figure.split,
    )


def _without_false_praise(findings: Sequence[Finding]) -> list[Finding]:
    """A speed-up over plain decoding rises where the target got slower: that counts only where others bear it out."""
    plain = next((finding.status for finding in findings if finding.metric == "cost_p_1"), "ok")
    worse = any(finding.status == "regressed" for finding in findings if finding.metric != "speedup")
    false = {"regressed": plain == "improved" and not worse, "improved": plain == "regressed"}
    return [
        replace(finding, status="ok") if finding.metric == "speedup" and false.get(finding.status, False) else finding
        for finding in findings
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
    order: tuple[Verdict, ...] = ("regressed", "too-noisy")
    settled: Verdict = "ok" if statuses - {"not-comparable"} else "not-comparable"
    return next((verdict for verdict in order if verdict in statuses), settled)


def require_comparable(baseline: Manifest, candidate: Manifest) -> None:
    """Raises: ProfileError naming what is not the same."""
    for (name, before), now in zip(_subject(baseline).items(), _subject(candidate).values(), strict=True):
        if before != now:
            problem = f"the profiles are not comparable: another {name}, {before} and {now}"
            raise ProfileError(problem, "profile the candidate with the baseline's run file or --tape")
    specs = [draft.spec for draft in candidate.drafts]
    for draft in baseline.drafts:
        if draft.spec not in specs:
            raise ProfileError(f"the candidate lacks the draft {draft.spec}", f"profile it with --draft {draft.spec}")
    longest, needed = candidate.settings.max_k, baseline.settings.max_k
    if longest < needed:
        problem = f"the candidate was measured up to K = {longest}, the baseline up to {needed}"
        raise ProfileError(problem, f"profile it with --max-k {needed}")


def _subject(manifest: Manifest) -> dict[str, object]:
    """What must be the same for a difference to mean anything."""
    settings = manifest.settings
    return {
        "workload": manifest.workload.hash[:12],
        "target": _weights(manifest.target),
        "dtype": manifest.environment.dtype,
        "temperatures": " ".join(f"{t:g}" for t in sorted(settings.temperatures)),
        "max_new_tokens": settings.max_new_tokens,
        "top_p and top_k": (settings.top_p, settings.top_k),
    }


def require_further_runs(profile: Profile, others: Sequence[Profile]) -> None:
    """Raises: ProfileError where one is not another run of the same, or its costs are given twice."""
    for place, other in enumerate(others):
        require_comparable(profile.manifest, other.manifest)
        for name, text in differences(profile.manifest, other.manifest).items():
            problem = f"a further run is not one of the same: {name} {text}"
            raise ProfileError(problem, "give profiles of one code, model and machine")
        if any(other.costs.equals(earlier.costs) for earlier in (profile, *others[:place])):
            raise ProfileError("the same costs are given twice", "give each run of a side once")


def differences(baseline: Manifest, candidate: Manifest) -> dict[str, str]:
    """What the profiles say of themselves that is not the same, and does not forbid comparing."""
    before, after = _circumstances(baseline), _circumstances(candidate)
    return {name: f"{value}, now {after.get(name)}" for name, value in before.items() if value != after.get(name)}


def _circumstances(manifest: Manifest) -> dict[str, object]:
    template = str(manifest.workload.chat_template_digest)[:12]
    return {
        **{name: getattr(manifest.environment, name) for name in MACHINE},
        **manifest.environment.versions,
        "spectune": manifest.spectune_version,
        "chat template": template,
        **{f"weights of {draft.spec}": _weights(draft.model) for draft in manifest.drafts if draft.model},
    }


def _weights(model: ModelRecord) -> str:
    return model.digest[:12] if model.digest else f"{model.name}@{model.revision}"
