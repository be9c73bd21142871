"""Fit → Recommendation, "do not speculate" included. Decides, never measures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from spectune.decide.confirmation import Confirmation, ConfirmedSetting, confirmation
from spectune.decide.fit import Setting, acceptance_lengths_by_rule, draft_record, fit_settings, whole_texts
from spectune.decide.formula import FormulaFit, fit_formula
from spectune.decide.recommendation import (
    Accuracy,
    AppliesTo,
    BatchStep,
    Candidate,
    CategoryAnswer,
    Fallback,
    LoadAnswer,
    Recommendation,
    TemperatureAnswer,
    TemperatureGate,
)
from spectune.decide.round_costs import judged_rounds
from spectune.decide.selection import MIN_GAIN, Decision, Verdict, decide, timings_leave_open, verdict_of
from spectune.drafting_spec import METHODS, method_of
from spectune.errors import ConfigError
from spectune.profile.costs import CostCells
from spectune.profile.manifest import Manifest, Notice
from spectune.profile.store import Profile
from spectune.speedup import break_even_alpha
from spectune.stats import (
    FEW_EFFECTIVE_PROMPTS,
    MIN_EFFECTIVE_PROMPTS,
    effective_prompts,
    log_ratio_standard_error,
    log_t_interval,
)

_FALSE_TRIP_Z = 3.72  # a healthy stream trips about once in 10,000 windows

PUBLISHED = {
    "code": "3 to 5 times faster; acceptance about 0.6 to 0.8 with a distilled draft",
    "chat": "2 to 3 times faster; acceptance about 0.7 to 0.85 with a distilled draft",
    "creative": "no gain",
}
"""Ranges that papers and engine documentation report, by category; they conflict, hence this measurement."""


def recommend(profile: Profile, temperature: float | None = None) -> Recommendation:
    """The answer at `temperature`: by default the target's own, else the lowest measured.

    Raises: ConfigError for a temperature that was not measured; InsufficientDataError where no complete
    round was recorded.
    """
    headline = _headline_temperature(profile.manifest, temperature)
    cells = CostCells.of(profile.costs)
    everywhere = fit_settings(profile, cells, profile.manifest.settings.loads)
    settings = [setting for setting in everywhere if setting.load == profile.main_load]
    formula, confirmed = fit_formula(settings), confirmation(profile, cells, settings)
    temperatures = sorted(profile.manifest.settings.temperatures)
    decided = {t: _heeding(confirmed, decide([s for s in settings if s.temperature == t])) for t in temperatures}
    decision = decided[headline]
    best, candidate = decision.setting, _candidate(decision.setting)
    speculate = decision.verdict == "speculate"
    fallback, fallback_reason = _fallback(profile, best) if speculate else (None, _no_fallback(decision.verdict))
    here = [s for s in everywhere if s.temperature == headline]
    by_load = _by_load(profile, decision, here)
    decoded = _decoded(confirmed, best)
    return Recommendation(
        verdict=decision.verdict,
        draft=best.draft if speculate else None,
        num_speculative_tokens=best.num_speculative_tokens if speculate else None,
        tree_width=1,
        temperature=headline,
        temperature_gate=_gate(settings, decision, decided, confirmed),
        speedup=decision.speedup,
        min_gain=MIN_GAIN,
        break_even_alpha=candidate.break_even_alpha,
        fallback=fallback,
        fallback_reason=fallback_reason,
        best_candidate=candidate,
        best_decoded=decoded,
        by_temperature=[_temperature_answer(decided[t]) for t in temperatures],
        by_category=_by_category(best),
        by_load=by_load,
        by_batch=_by_batch(profile, decision, [s for s in here if s.draft == best.draft]),
        candidates=[_candidate(setting) for setting in settings],
        acceptance_length_by_rule=acceptance_lengths_by_rule(
            profile, best.draft, headline, best.num_speculative_tokens
        ),
        padded_drafts=profile.manifest.padded_drafts,
        formula=formula,
        accuracy=_accuracy(profile, cells),
        confirmation=confirmed,
        reasons=[*_why_open(decision), *_reasons(candidate), *_flips(by_load)],
        warnings=[
            *profile.manifest.warnings,
            *_warnings(best, settings, formula),
            *_noisy(decision),
            *_unconfirmed(decision, decoded),
        ],
        applies_to=_applies_to(profile),
        reproduce=profile.manifest.settings.command,
    )


def _heeding(confirmed: Confirmation | None, decision: Decision) -> Decision:
    """Confirming has the last word: what gained too little when decoded is not recommended, whatever was predicted."""
    return replace(decision, verdict=_heeded(confirmed, decision.setting, decision.verdict))


def _heeded(confirmed: Confirmation | None, setting: Setting, verdict: Verdict) -> Verdict:
    decoded = _decoded(confirmed, setting)
    refuted = verdict == "speculate" and decoded is not None and decoded.measured_speedup <= MIN_GAIN
    return "insufficient-data" if refuted else verdict


def _decoded(confirmed: Confirmation | None, setting: Setting) -> ConfirmedSetting | None:
    wanted = (setting.draft, setting.num_speculative_tokens, setting.temperature)
    seen = confirmed.settings if confirmed else []
    return next((one for one in seen if (one.draft, one.num_speculative_tokens, one.temperature) == wanted), None)


def _by_load(profile: Profile, main: Decision, settings: Sequence[Setting]) -> list[LoadAnswer]:
    answers = []
    for load in profile.manifest.settings.loads:
        here = [setting for setting in settings if setting.load == load]
        decision = main if load == profile.main_load else decide(here)
        answers.append(
            LoadAnswer(
                batch=load.batch,
                context_tokens=load.context_tokens,
                verdict=decision.verdict,
                draft=decision.setting.draft,
                num_speculative_tokens=decision.setting.num_speculative_tokens,
                speedup=decision.speedup,
            )
        )
    return answers


def _by_batch(profile: Profile, main: Decision, settings: Sequence[Setting]) -> list[BatchStep]:
    """At the main context; `settings` are those of the best candidate's draft."""
    steps = {}
    for load in profile.manifest.settings.loads:
        if load.context_tokens == profile.main_load.context_tokens:
            decision = main if load == profile.main_load else decide([s for s in settings if s.load == load])
            steps[load.batch] = decision.setting.num_speculative_tokens if decision.verdict == "speculate" else 0
    return [BatchStep(batch=batch, num_speculative_tokens=k) for batch, k in sorted(steps.items())]


def _flips(answers: Sequence[LoadAnswer]) -> list[str]:
    """Where the verdict changes between neighbouring loads: an interval, nothing being measured inside it."""
    found = []
    for axis, other, name in (("batch", "context_tokens", "batch"), ("context_tokens", "batch", "context")):
        for fixed in sorted({getattr(answer, other) for answer in answers}):
            line = sorted((a for a in answers if getattr(a, other) == fixed), key=lambda a: int(getattr(a, axis)))
            for before, after in pairwise(line):
                if before.verdict != after.verdict:
                    low, high = getattr(before, axis), getattr(after, axis)
                    at = f"{fixed} tokens of context" if axis == "batch" else f"batch {fixed}"
                    found.append(
                        f"between {name} {low} ({before.verdict}) and {high} ({after.verdict}) it turns, at {at}"
                    )
    return found


def _accuracy(profile: Profile, cells: CostCells) -> Accuracy:
    cell, width = cells.noisiest
    return Accuracy(
        noisiest_cell=str(cell),
        noisiest_half_width=width if math.isfinite(width) else None,
        worst_round_error=max((one.error for one in judged_rounds(profile, cells)), key=abs, default=None),
        worst_surface_error=max(cells.surface_residuals().values(), key=abs, default=None),
    )


def _noisy(decision: Decision) -> list[Notice]:
    if not timings_leave_open(decision.speedup, decision.setting):
        return []
    message = "the timings are too noisy to decide: they widen the interval more than the prompts do"
    return [Notice(code="noisy-costs", message=message, advice="profile on a quiet machine, or with more --budget-s")]


def _unconfirmed(decision: Decision, decoded: ConfirmedSetting | None) -> list[Notice]:
    predicted = decision.speedup.low
    if decoded is None or predicted is None or predicted <= MIN_GAIN or decoded.measured_speedup > MIN_GAIN:
        return []
    message = f"real decoding of held-out prompts gained {decoded.measured_speedup:.2f}× only"
    return [Notice(code="unconfirmed", message=message, advice="profile more prompts and confirm again")]


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


def _candidate(setting: Setting) -> Candidate:
    steps = setting.round_s / setting.plain_s
    return Candidate(
        draft=setting.draft,
        num_speculative_tokens=setting.num_speculative_tokens,
        temperature=setting.temperature,
        verdict=verdict_of(setting.speedup, setting.effective_prompts),
        speedup=setting.speedup,
        acceptance_length=setting.acceptance_length,
        clock_acceptance_length=setting.clock_acceptance_length,
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


def _temperature_answer(decision: Decision) -> TemperatureAnswer:
    setting, speculate = decision.setting, decision.verdict == "speculate"
    return TemperatureAnswer(
        temperature=setting.temperature,
        verdict=decision.verdict,
        draft=setting.draft if speculate else None,
        num_speculative_tokens=setting.num_speculative_tokens if speculate else None,
        speedup=decision.speedup,
        best_candidate=_candidate(setting),
    )


def _gate(
    settings: Sequence[Setting],
    decision: Decision,
    decided: Mapping[float, Decision],
    confirmed: Confirmation | None,
) -> TemperatureGate:
    """For the recommended draft and K, which an engine keeps at every temperature; else for each temperature's best."""
    verdicts = {temperature: one.verdict for temperature, one in decided.items()}
    if decision.verdict == "speculate":  # from the headline's temperature upwards
        best = decision.setting
        same = (best.draft, best.num_speculative_tokens)
        kept = [s for s in settings if (s.draft, s.num_speculative_tokens) == same]
        verdicts = {s.temperature: _heeded(confirmed, s, verdict_of(s.speedup, s.effective_prompts)) for s in kept}
        verdicts[best.temperature] = decision.verdict
        verdicts = {t: verdict for t, verdict in verdicts.items() if t >= best.temperature}
    speculate_up_to = None
    for temperature in sorted(verdicts):
        if verdicts[temperature] != "speculate":
            return TemperatureGate(speculate_up_to=speculate_up_to, plain_from=temperature)
        speculate_up_to = temperature
    return TemperatureGate(speculate_up_to=speculate_up_to, plain_from=None)


def _fallback(profile: Profile, setting: Setting) -> tuple[Fallback | None, str]:
    """Threshold τ_be = T_round/T_plain, and a window long enough that a healthy stream hardly ever falls below.

    A request's gain varies with its text, and given the text with the chance of acceptance.
    """
    threshold = float(setting.seconds.sum() / setting.rounds.sum() / setting.plain_s)
    used = setting.rounds > 0
    gain = setting.emitted[used] - threshold * setting.rounds[used]  # tokens won by each request
    deviation = math.hypot(float(gain.std(ddof=1)), threshold * _chance_of_rounds(profile, setting))
    surely_won = float(gain.mean()) - 1.645 * deviation / math.sqrt(len(gain))
    if surely_won <= 0:
        return None, "the gain per request is too uncertain for a rule that would not trip on a healthy stream"
    window = max(1, math.ceil((_FALSE_TRIP_Z * deviation / surely_won) ** 2))
    rate = math.erfc(surely_won * math.sqrt(window / 2) / deviation) / 2 if deviation > 0 else 0.0
    rule = Fallback(acceptance_length_below=threshold, window_requests=window, false_trip_rate=rate)
    return rule, "requests as long as the recorded ones"


def _chance_of_rounds(profile: Profile, setting: Setting) -> float:
    """Standard deviation of a request's rounds, given its text; 0 where acceptance is certain or impossible."""
    if METHODS[setting.method].rule == "greedy_draft" or setting.temperature == 0.0:
        return 0.0
    draft, limit = draft_record(profile, setting.draft), profile.manifest.settings.max_new_tokens
    where = (draft, setting.temperature, setting.num_speculative_tokens, limit)
    _, variance = whole_texts(profile, profile.tape, profile.acceptance, *where)
    return math.sqrt(float(variance.mean()))


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
        error = math.hypot(log_ratio_standard_error(emitted, seconds), float(setting.cost_influence.std()))
        speedup = log_t_interval(point, error, effective_prompts(rounds))
    return CategoryAnswer(
        category=category,
        prompts=int(mine.sum()),
        acceptance_length=length,
        speedup=speedup,
        published=PUBLISHED.get(category),
    )


def _why_open(decision: Decision) -> list[str]:
    """What stands between the data and a verdict, where there is none."""
    low, high, prompts = decision.speedup.low, decision.speedup.high, decision.setting.effective_prompts
    if decision.verdict != "insufficient-data":
        return []
    if prompts < MIN_EFFECTIVE_PROMPTS:
        return [f"{prompts:.0f} effective prompts are fewer than the {MIN_EFFECTIVE_PROMPTS} that a verdict takes"]
    if low is not None and high is not None and low <= MIN_GAIN <= high:
        return [f"the interval holds {MIN_GAIN:g}, the least gain that counts"]
    return []


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
    proposing = " of K tokens proposed in every round" if method_of(best.draft).evidence == "start" else ""
    return (
        f"it breaks even at {best.round_in_plain_steps:.2f} tokens a round, "
        f"an acceptance of {best.break_even_alpha:.2f} at every position{proposing}"
    )


def _warnings(best: Setting, settings: Sequence[Setting], formula: Sequence[FormulaFit]) -> list[Notice]:
    found = [_dead(setting) for setting in settings if setting.num_speculative_tokens == 1 and setting.accepted == 0]
    if best.effective_prompts < FEW_EFFECTIVE_PROMPTS:
        message = f"the figures rest on {best.effective_prompts:.0f} effective prompts"
        found.append(Notice(code="few-prompts", message=message, advice=f"give {FEW_EFFECTIVE_PROMPTS} or more"))
    for fit in formula:
        if fit.verdict == "misleads" and (fit.draft, fit.temperature) == (best.draft, best.temperature):
            message = (
                f"with its best α = {fit.alpha:.2f} it is off by {fit.largest_error:+.0%} at K = "
                f"{fit.largest_error_at} for {fit.draft}, beyond chance"
            )
            found.append(Notice(code="formula", message=message, advice="trust the replayed tokens per round instead"))
    return found


def _dead(setting: Setting) -> Notice:
    message = f"{setting.draft} had none of {setting.proposed:.0f} proposals accepted at T = {setting.temperature:g}"
    if setting.proposed == 0:
        message = f"{setting.draft} proposed nothing at T = {setting.temperature:g}"
    advice = "check that the draft is of the target's family, its weights are whole and its chat template is the same"
    if METHODS[setting.method].weights == "none":
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
        batch=profile.main_load.batch,
        context_tokens=profile.main_load.context_tokens,
        engine=manifest.settings.engine,
        workload=manifest.workload.name,
        profiled_prompts=len(profile.tape["prompt_id"].unique()),
        max_new_tokens=manifest.settings.max_new_tokens,
        top_p=manifest.settings.top_p,
        top_k=manifest.settings.top_k,
        versions=manifest.environment.versions,
        profile_created_at=manifest.created_at,
    )
