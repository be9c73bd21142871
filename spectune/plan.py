"""Fit → Recommendation, "do not speculate" included. Decides, never measures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from spectune.errors import ConfigError
from spectune.fit import FormulaFit, Setting, acceptance_lengths_by_rule, fit_formula, fit_settings
from spectune.profile import Manifest, Notice, Profile
from spectune.speedup import break_even_alpha
from spectune.stats import (
    FEW_EFFECTIVE_PROMPTS,
    MIN_EFFECTIVE_PROMPTS,
    Interval,
    effective_prompts,
    log_ratio_standard_error,
    log_t_interval,
)

MIN_GAIN = 1.05
_TIE = 0.01
_SIMPLICITY = ("ngram", "draft_model")
_FALSE_TRIP_Z = 3.72  # a healthy stream trips about once in 10,000 windows

Verdict = Literal["speculate", "plain", "insufficient-data"]

PUBLISHED = {
    "code": "3 to 5 times faster; acceptance about 0.6 to 0.8 with a distilled draft",
    "chat": "2 to 3 times faster; acceptance about 0.7 to 0.85 with a distilled draft",
    "creative": "no gain",
}
"""Ranges that papers and engine documentation report, by category; they conflict, hence this measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureGate:
    """Of the measured temperatures: speculate up to one, decode plainly from the other; None where there is none."""

    speculate_up_to: float | None
    plain_from: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """Decode plainly when, over a window of finished requests, tokens per round stay below a threshold."""

    acceptance_length_below: float
    window_requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One draft, K and temperature. Times are means per round, in seconds."""

    draft: str
    num_speculative_tokens: int
    temperature: float
    verdict: Verdict
    speedup: Interval
    acceptance_length: Interval
    draft_acceptance_rate: float | None  # None where nothing was proposed
    conditional_acceptance_rate: list[float | None]
    cumulative_acceptance_rate: list[float | None]
    plain_s: float
    draft_s: float
    verify_s: float
    overhead_s: float
    round_s: float
    round_in_plain_steps: float
    break_even_alpha: float | None
    effective_prompts: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureAnswer:
    """The answer at one measured temperature; draft and K are None unless it is to speculate."""

    temperature: float
    verdict: Verdict
    draft: str | None
    num_speculative_tokens: int | None
    speedup: Interval
    best_candidate: Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryAnswer:
    """The best candidate's figures on one category of prompts."""

    category: str
    prompts: int
    acceptance_length: float | None  # None where no complete round was recorded
    speedup: Interval | None
    published: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliesTo:
    """What the answer was measured on."""

    target: str
    hardware: str
    device: str
    dtype: str
    threads: int
    batch: int
    context_tokens: int
    engine: str
    workload: str
    profiled_prompts: int
    max_new_tokens: int
    top_p: float
    top_k: int
    versions: dict[str, str]
    profile_created_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Everything the skill says, as values. Speed-ups are over plain decoding in `applies_to.engine`."""

    verdict: Verdict
    draft: str | None
    num_speculative_tokens: int | None
    tree_width: int
    temperature: float
    temperature_gate: TemperatureGate
    speedup: Interval
    min_gain: float
    break_even_alpha: float | None
    fallback: Fallback | None
    fallback_reason: str
    best_candidate: Candidate
    by_temperature: list[TemperatureAnswer]
    by_category: list[CategoryAnswer]
    candidates: list[Candidate]
    acceptance_length_by_rule: dict[str, float]
    formula: list[FormulaFit]
    reasons: list[str]
    warnings: list[Notice]
    applies_to: AppliesTo
    reproduce: str


def recommend(profile: Profile, temperature: float | None = None) -> Recommendation:
    """The answer at `temperature`: by default the target's own, else the lowest measured.

    Raises: ConfigError for a temperature that was not measured; InsufficientDataError where no complete
    round was recorded.
    """
    headline = _headline_temperature(profile.manifest, temperature)
    settings = fit_settings(profile)
    temperatures = sorted(profile.manifest.settings.temperatures)
    chosen = {t: _choose([s for s in settings if s.temperature == t]) for t in temperatures}
    best = chosen[headline]
    candidate = _candidate(best)
    speculate = candidate.verdict == "speculate"
    fallback, fallback_reason = _fallback(best) if speculate else (None, _no_fallback(candidate.verdict))
    formula = fit_formula(settings)
    return Recommendation(
        verdict=candidate.verdict,
        draft=best.draft if speculate else None,
        num_speculative_tokens=best.num_speculative_tokens if speculate else None,
        tree_width=1,
        temperature=headline,
        temperature_gate=_gate(settings, best, chosen, speculate),
        speedup=best.speedup,
        min_gain=MIN_GAIN,
        break_even_alpha=candidate.break_even_alpha,
        fallback=fallback,
        fallback_reason=fallback_reason,
        best_candidate=candidate,
        by_temperature=[_temperature_answer(chosen[t]) for t in temperatures],
        by_category=_by_category(best),
        candidates=[_candidate(setting) for setting in settings],
        acceptance_length_by_rule=acceptance_lengths_by_rule(
            profile, best.draft, headline, best.num_speculative_tokens
        ),
        formula=formula,
        reasons=_reasons(candidate),
        warnings=[*profile.manifest.warnings, *_warnings(best, settings, formula)],
        applies_to=_applies_to(profile),
        reproduce=profile.manifest.settings.command,
    )


def _headline_temperature(manifest: Manifest, asked: float | None) -> float:
    measured = manifest.settings.temperatures
    if asked is not None and asked not in measured:
        known = ", ".join(f"{t:g}" for t in sorted(measured))
        raise ConfigError(
            f"temperature {asked:g} was not measured; {known} were", f"profile with --temperature {asked:g}"
        )
    if asked is not None:
        return asked
    shipped = manifest.settings.default_temperature
    return shipped if shipped in measured and shipped is not None else min(measured)


def verdict_of(setting: Setting) -> Verdict:
    """speculate: the interval lies above min_gain. plain: the point or the whole interval lies below it."""
    interval = setting.speedup
    if setting.effective_prompts < MIN_EFFECTIVE_PROMPTS or interval.low is None or interval.high is None:
        return "insufficient-data"
    if interval.low > MIN_GAIN:
        return "speculate"
    return "plain" if interval.estimate < MIN_GAIN or interval.high < MIN_GAIN else "insufficient-data"


def _choose(settings: Sequence[Setting]) -> Setting:
    """The fastest; within 1% of it the smaller K, then the simpler draft."""
    fastest = max(setting.speedup.estimate for setting in settings)
    ties = [setting for setting in settings if setting.speedup.estimate >= fastest * (1 - _TIE)]
    return min(ties, key=lambda s: (s.num_speculative_tokens, _SIMPLICITY.index(s.method), -s.speedup.estimate))


def _candidate(setting: Setting) -> Candidate:
    steps = setting.round_s / setting.plain_s
    return Candidate(
        draft=setting.draft,
        num_speculative_tokens=setting.num_speculative_tokens,
        temperature=setting.temperature,
        verdict=verdict_of(setting),
        speedup=setting.speedup,
        acceptance_length=setting.acceptance_length,
        draft_acceptance_rate=setting.accepted / setting.proposed if setting.proposed else None,
        conditional_acceptance_rate=setting.conditional_acceptance_rate,
        cumulative_acceptance_rate=setting.cumulative_acceptance_rate,
        plain_s=setting.plain_s,
        draft_s=setting.draft_s,
        verify_s=setting.verify_s,
        overhead_s=setting.overhead_s,
        round_s=setting.round_s,
        round_in_plain_steps=steps,
        break_even_alpha=break_even_alpha(setting.num_speculative_tokens, steps),
        effective_prompts=setting.effective_prompts,
    )


def _temperature_answer(setting: Setting) -> TemperatureAnswer:
    candidate = _candidate(setting)
    speculate = candidate.verdict == "speculate"
    return TemperatureAnswer(
        temperature=setting.temperature,
        verdict=candidate.verdict,
        draft=setting.draft if speculate else None,
        num_speculative_tokens=setting.num_speculative_tokens if speculate else None,
        speedup=setting.speedup,
        best_candidate=candidate,
    )


def _gate(settings: Sequence[Setting], best: Setting, chosen: dict[float, Setting], speculate: bool) -> TemperatureGate:
    """For the recommended draft and K, which an engine keeps at every temperature; else for each temperature's best."""
    at = dict(chosen)
    if speculate:
        same = (best.draft, best.num_speculative_tokens)
        at = {s.temperature: s for s in settings if (s.draft, s.num_speculative_tokens) == same}
    speculate_up_to = None
    for temperature in sorted(at):
        if verdict_of(at[temperature]) != "speculate":
            return TemperatureGate(speculate_up_to=speculate_up_to, plain_from=temperature)
        speculate_up_to = temperature
    return TemperatureGate(speculate_up_to=speculate_up_to, plain_from=None)


def _fallback(setting: Setting) -> tuple[Fallback | None, str]:
    """Threshold τ_be = T_round/T_plain, and a window long enough that a healthy stream hardly ever falls below."""
    threshold = float(setting.seconds.sum() / setting.rounds.sum() / setting.plain_s)
    used = setting.rounds > 0
    gain = setting.emitted[used] - threshold * setting.rounds[used]  # tokens won by each request
    deviation = float(gain.std(ddof=1))
    surely_won = float(gain.mean()) - 1.645 * deviation / math.sqrt(len(gain))
    if surely_won <= 0:
        return None, "the gain per request is too uncertain for a rule that would not trip on a healthy stream"
    window = max(1, math.ceil((_FALSE_TRIP_Z * deviation / surely_won) ** 2))
    return Fallback(acceptance_length_below=threshold, window_requests=window), (
        "a healthy stream falls below this about once in 10000 windows; requests as long as the recorded ones"
    )


def _no_fallback(verdict: Verdict) -> str:
    return "plain decoding has nothing to fall back from" if verdict == "plain" else "no setting is recommended yet"


def _by_category(setting: Setting) -> list[CategoryAnswer]:
    return [_category_answer(setting, category) for category in dict.fromkeys(setting.categories)]


def _category_answer(setting: Setting, category: str) -> CategoryAnswer:
    mine = setting.categories == category
    emitted, rounds, seconds = (values[mine] for values in (setting.emitted, setting.rounds, setting.seconds))
    length, speedup = None, None
    if rounds.sum() > 0:
        length = float(emitted.sum() / rounds.sum())
        point = float(emitted.sum() * setting.plain_s / seconds.sum())
        speedup = log_t_interval(point, log_ratio_standard_error(emitted, seconds), effective_prompts(rounds))
    return CategoryAnswer(
        category=category,
        prompts=int(mine.sum()),
        acceptance_length=length,
        speedup=speedup,
        published=PUBLISHED.get(category),
    )


def _reasons(best: Candidate) -> list[str]:
    """Why, in the terms of the round: what it emits, what it takes, and what would turn the answer."""
    k, ms = best.num_speculative_tokens, 1e3
    return [
        f"a round of {best.draft} at K = {k} emits {best.acceptance_length.estimate:.2f} tokens "
        f"and takes {best.round_in_plain_steps:.2f} plain steps",
        f"of its {best.round_s * ms:.1f} ms, verifying takes {best.verify_s * ms:.1f} ms, drafting "
        f"{best.draft_s * ms:.1f} ms, the loop {best.overhead_s * ms:.1f} ms; "
        f"a plain step takes {best.plain_s * ms:.1f} ms",
        _break_even_reason(best),
    ]


def _break_even_reason(best: Candidate) -> str:
    k = best.num_speculative_tokens
    if (k + 1) * best.plain_s < best.verify_s + best.overhead_s:
        return f"even a free and perfect draft loses at K = {k}: verifying alone takes longer than {k + 1} plain steps"
    if best.break_even_alpha is None:
        return f"even a perfect draft loses at K = {k}: the round takes longer than {k + 1} plain steps"
    return (
        f"it breaks even at {best.round_in_plain_steps:.2f} tokens a round, "
        f"an acceptance of {best.break_even_alpha:.2f} at every position"
    )


def _warnings(best: Setting, settings: Sequence[Setting], formula: Sequence[FormulaFit]) -> list[Notice]:
    found = [_dead(setting) for setting in settings if setting.num_speculative_tokens == 1 and setting.accepted == 0]
    if best.effective_prompts < FEW_EFFECTIVE_PROMPTS:
        message = f"the figures rest on {best.effective_prompts:.0f} effective prompts"
        found.append(Notice(code="few-prompts", message=message, advice=f"give {FEW_EFFECTIVE_PROMPTS} or more"))
    for fit in formula:
        if fit.largest_error > 0.05 and (fit.draft, fit.temperature) == (best.draft, best.temperature):
            message = (
                f"the formula with its best α = {fit.alpha:.2f} is off by up to {fit.largest_error:.0%} for {fit.draft}"
            )
            found.append(Notice(code="formula", message=message, advice="trust the replayed tokens per round instead"))
    return found


def _dead(setting: Setting) -> Notice:
    message = f"{setting.draft} had none of {setting.proposed:.0f} proposals accepted at T = {setting.temperature:g}"
    if setting.proposed == 0:
        message = f"{setting.draft} proposed nothing at T = {setting.temperature:g}"
    advice = "check that the draft is of the target's family, its weights are whole and its chat template is the same"
    if setting.method == "ngram":
        advice = "the outputs repeat nothing of the prompts; n-gram drafts do not suit this workload"
    return Notice(code="dead-draft", message=message, advice=advice)


def _applies_to(profile: Profile) -> AppliesTo:
    manifest = profile.manifest
    return AppliesTo(
        target=manifest.target.name,
        hardware=manifest.environment.hardware,
        device=manifest.environment.device,
        dtype=manifest.environment.dtype,
        threads=manifest.environment.threads,
        batch=int(profile.costs["batch"].iloc[0]),
        context_tokens=int(np.median(profile.costs["context_tokens"])),
        engine=manifest.settings.engine,
        workload=manifest.workload.name,
        profiled_prompts=int(profile.tape["prompt_id"].nunique()),
        max_new_tokens=manifest.settings.max_new_tokens,
        top_p=manifest.settings.top_p,
        top_k=manifest.settings.top_k,
        versions=manifest.environment.versions,
        profile_created_at=manifest.created_at,
    )
