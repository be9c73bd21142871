"""Settings and decisions → the answer's values: candidates, the best by temperature, category, load and batch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from spectune.decide import recommendation as told
from spectune.decide.fit import Setting
from spectune.decide.selection import Decision, decide, verdict_of
from spectune.profile.manifest import Load
from spectune.profile.store import Profile
from spectune.speedup import break_even_alpha
from spectune.stats import effective_prompts, log_ratio_influence, log_t_interval, root_sum_square

PUBLISHED = {
    "code": "3 to 5 times faster; acceptance about 0.6 to 0.8 with a distilled draft",
    "chat": "2 to 3 times faster; acceptance about 0.7 to 0.85 with a distilled draft",
    "creative": "no gain",
}
"""Ranges that papers and engine documentation report, by category; they conflict, hence this measurement."""


def candidate_of(setting: Setting) -> told.Candidate:
    """Its figures, with the verdict that it would have alone."""
    acceptance, steps = setting.acceptance, setting.round.round_s / setting.round.plain_s
    return told.Candidate(
        draft=setting.draft,
        num_speculative_tokens=setting.num_speculative_tokens,
        temperature=setting.temperature,
        verdict=verdict_of(setting.speedup, setting.effective_prompts),
        speedup=setting.speedup,
        acceptance_length=acceptance.length,
        clock_acceptance_length=acceptance.clock_length,
        draft_acceptance_rate=acceptance.rate,
        conditional_acceptance_rate=acceptance.conditional_rates,
        cumulative_acceptance_rate=acceptance.cumulative_rates,
        **asdict(setting.round),
        round_in_plain_steps=steps,
        break_even_alpha=break_even_alpha(setting.num_speculative_tokens, steps),
        effective_prompts=setting.effective_prompts,
    )


def temperature_answer(decision: Decision) -> told.TemperatureAnswer:
    """The best at its temperature, and whether it is to be used."""
    setting, speculate = decision.setting, decision.verdict == "speculate"
    return told.TemperatureAnswer(
        temperature=setting.temperature,
        verdict=decision.verdict,
        draft=setting.draft if speculate else None,
        num_speculative_tokens=setting.num_speculative_tokens if speculate else None,
        speedup=decision.speedup,
        best_candidate=candidate_of(setting),
    )


def predicted(decision: Decision) -> told.Predicted:
    """What was said before anything was decoded."""
    setting = decision.setting
    return told.Predicted(
        verdict=decision.verdict,
        draft=setting.draft,
        num_speculative_tokens=setting.num_speculative_tokens,
        speedup=decision.speedup,
    )


def temperature_gate(
    settings: Sequence[Setting], decision: Decision, decided: Mapping[float, Decision]
) -> told.TemperatureGate:
    """For the recommended draft and K, which an engine keeps at every temperature; else for each temperature's best."""
    verdicts = {temperature: other.verdict for temperature, other in decided.items()}
    if decision.verdict == "speculate":  # from the headline's temperature upwards
        best = decision.setting.choice
        verdicts = {best.temperature: decision.verdict}
        for other in (s for s in settings if s.temperature > best.temperature):  # as if there were no other candidates
            if (other.choice.draft, other.choice.shape) == (best.draft, best.shape):
                verdicts[other.temperature] = verdict_of(other.speedup, other.effective_prompts)
    speculate_up_to = None
    for temperature in sorted(verdicts):
        if verdicts[temperature] != "speculate":
            return told.TemperatureGate(speculate_up_to=speculate_up_to, plain_from=temperature)
        speculate_up_to = temperature
    return told.TemperatureGate(speculate_up_to=speculate_up_to, plain_from=None)


def category_answers(setting: Setting) -> list[told.CategoryAnswer]:
    """Its figures on each category of prompts."""
    texts, categories, answers = setting.texts, setting.evidence.categories, []
    for category in dict.fromkeys(categories):
        inside, length, speedup = categories == category, None, None
        emitted, rounds, seconds = (values[inside] for values in (texts.emitted, texts.rounds, setting.seconds))
        if rounds.sum() > 0:
            length = float(emitted.sum() / rounds.sum())
            point = float(emitted.sum() * setting.round.plain_s / seconds.sum())
            error = math.hypot(root_sum_square(log_ratio_influence(emitted, seconds)), setting.spread.costs.std())
            speedup = log_t_interval(point, error, effective_prompts(rounds))
        prompts, published = int(inside.sum()), PUBLISHED.get(category)
        answers.append(
            told.CategoryAnswer(
                category=category, prompts=prompts, acceptance_length=length, speedup=speedup, published=published
            )
        )
    return answers


def load_answers(decisions: Mapping[Load, Decision]) -> list[told.LoadAnswer]:
    """The best at each load, whether it is to be used or not."""
    return [
        told.LoadAnswer(
            **load.model_dump(),
            draft=decision.setting.draft,
            num_speculative_tokens=decision.setting.num_speculative_tokens,
            verdict=decision.verdict,
            speedup=decision.speedup,
        )
        for load, decision in decisions.items()
    ]


def batch_steps(main: Decision, settings: Sequence[Setting]) -> list[told.BatchStep]:
    """At the main context, for the best candidate's draft."""
    best = main.setting
    same = [s for s in settings if (s.draft, s.load.context_tokens) == (best.draft, best.load.context_tokens)]
    by_load = decide_by_load(main, same).items()
    steps = [(at.batch, one.setting.num_speculative_tokens * (one.verdict == "speculate")) for at, one in by_load]
    return [told.BatchStep(batch=batch, num_speculative_tokens=k) for batch, k in sorted(steps)]


def decide_by_load(main: Decision, settings: Sequence[Setting]) -> dict[Load, Decision]:
    """A decision at each load that settings are of, those of the headline's temperature; at its own, the main one."""
    loads = dict.fromkeys(setting.load for setting in settings)
    return {at: main if at == main.setting.load else decide([s for s in settings if s.load == at]) for at in loads}


def applies_to(profile: Profile) -> told.AppliesTo:
    """What the profile was measured on."""
    confirmed = profile.confirmed.tape["prompt_id"].unique() if profile.confirmed else []
    manifest, asked = profile.manifest, {"engine", "max_new_tokens", "top_p", "top_k"}
    return told.AppliesTo(
        target=manifest.target.name,
        workload=manifest.workload.name,
        profiled_prompts=len(profile.tape["prompt_id"].unique()),
        confirmed_prompts=len(confirmed),
        profile_created_at=manifest.created_at,
        **manifest.environment.model_dump(include={"hardware", "device", "dtype", "threads", "versions"}),
        **profile.main_load.model_dump(),
        **manifest.settings.model_dump(include=asked),
    )
