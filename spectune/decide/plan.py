"""Profile → Recommendation, "do not speculate" included. Decides, never measures."""

from spectune.decide import answers
from spectune.decide.confirmation import confirmation, judged_settings
from spectune.decide.decoded import decoded_run
from spectune.decide.evidence import acceptance_lengths_by_rule
from spectune.decide.fallback import fallback_rule
from spectune.decide.fit import fit_settings, require_measured
from spectune.decide.formula import fit_formula
from spectune.decide.reasons import confirmed_notices, notices, reasons
from spectune.decide.recommendation import Recommendation
from spectune.decide.requests import whole_requests
from spectune.decide.round_costs import cost_accuracy
from spectune.decide.selection import decide, decide_by_temperature
from spectune.errors import ConfigError
from spectune.profile.costs import CostCells
from spectune.profile.manifest import Settings
from spectune.profile.store import Profile


def recommend(profile: Profile, temperature: float | None = None, answer_tokens: int | None = None) -> Recommendation:
    """The answer at a measured temperature, by default the target's own, else the lowest.

    Whole requests are priced at the recorded answers, or at answers of so many tokens. Raises: SpectuneError.
    """
    if answer_tokens is not None and answer_tokens < 1:
        raise ConfigError(f"--answer-tokens is {answer_tokens}", "give a whole number of at least 1")
    measured, cells = profile.manifest.settings, CostCells.of(profile.costs)
    headline = _headline_temperature(measured, temperature)
    everywhere = fit_settings(profile, cells, measured.loads)
    profiled = [setting for setting in everywhere if setting.load == profile.main_load]
    run, confirmed, predicted = decoded_run(profile, profiled), None, None
    if run:  # judged before its prompts join those that were profiled
        confirmed = confirmation(profile, run, profiled)
        predicted = decide([setting for setting in profiled if setting.temperature == headline])
        everywhere = judged_settings(profile, cells, run, measured.loads)
    settings = [setting for setting in everywhere if setting.load == profile.main_load]
    decided, formula = decide_by_temperature(settings), fit_formula(settings)
    decision, here = decided[headline], [setting for setting in everywhere if setting.temperature == headline]
    fallback, why = fallback_rule(decision, measured.max_new_tokens)
    lengths = acceptance_lengths_by_rule(decision.setting.evidence, decision.setting.num_speculative_tokens)
    answer = answers.temperature_answer(decision)
    best, by_load = answer.best_candidate, answers.load_answers(answers.decide_by_load(decision, here))
    candidates = [answers.candidate_of(setting) for setting in settings]
    requests = whole_requests(cells, decision.setting, decision.speedup, answer_tokens)
    return Recommendation(
        tree_width=best.tree_width if decision.verdict == "speculate" else 1,
        **{name: getattr(answer, name) for name in answer.__slots__},
        break_even_alpha=best.break_even_alpha,
        whole_requests=requests,
        fallback=fallback,
        fallback_reason=why,
        best_decoded=confirmed.of(best.choice) if confirmed else None,
        predicted=answers.predicted(predicted) if predicted else None,
        by_temperature=[answers.temperature_answer(other) for other in decided.values()],
        by_category=answers.category_answers(decision.setting),
        by_load=by_load,
        by_batch=answers.batch_steps(decision, here),
        candidates=candidates,
        applies_to=answers.applies_to(profile),
        temperature_gate=answers.temperature_gate(settings, decision, decided),
        acceptance_length_by_rule=lengths,
        padded_drafts=profile.manifest.padded_drafts,
        formula=formula,
        accuracy=cost_accuracy(profile, cells),
        confirmation=confirmed,
        reasons=reasons(decision, best, candidates, by_load, requests),
        warnings=[
            *profile.manifest.warnings,
            *notices(decision, settings, formula),
            *confirmed_notices(decision, predicted, confirmed),
        ],
        reproduce=measured.command,
    )


def _headline_temperature(measured: Settings, wanted: float | None) -> float:
    shipped = measured.default_temperature
    if wanted is None:
        return shipped if shipped in measured.temperatures and shipped is not None else min(measured.temperatures)
    require_measured(wanted, measured.temperatures, f"profile with --temperature {wanted:g}")
    return wanted
