"""Profile → Recommendation, "do not speculate" included. Decides, never measures."""

from collections.abc import Mapping, Sequence

from spectune.decide import answers
from spectune.decide.confirmation import Confirmation, confirmation
from spectune.decide.evidence import acceptance_lengths_by_rule
from spectune.decide.fallback import fallback_rule
from spectune.decide.fit import Setting, fit_settings
from spectune.decide.formula import fit_formula
from spectune.decide.reasons import notices, reasons
from spectune.decide.recommendation import Recommendation
from spectune.decide.round_costs import Accuracy, cost_accuracy
from spectune.decide.selection import Decision, decide_by_temperature
from spectune.errors import ConfigError
from spectune.profile.costs import CostCells
from spectune.profile.manifest import Manifest
from spectune.profile.store import Profile


def recommend(profile: Profile, temperature: float | None = None) -> Recommendation:
    """The answer at `temperature`: by default the target's own, else the lowest measured.

    Raises: ConfigError for a temperature that was not measured; InsufficientDataError where no complete
    round was recorded.
    """
    headline, cells = _headline_temperature(profile.manifest, temperature), CostCells.of(profile.costs)
    everywhere = fit_settings(profile, cells, profile.manifest.settings.loads)
    settings = [setting for setting in everywhere if setting.load == profile.main_load]
    confirmed = confirmation(profile, settings)
    decided = decide_by_temperature(settings, confirmed)
    here = [setting for setting in everywhere if setting.temperature == headline]
    return _answer(profile, cost_accuracy(profile, cells), settings, here, confirmed, decided, decided[headline])


def _headline_temperature(manifest: Manifest, wanted: float | None) -> float:
    measured, shipped = manifest.settings.temperatures, manifest.settings.default_temperature
    if wanted is None:
        return shipped if shipped in measured and shipped is not None else min(measured)
    if wanted not in measured:
        known = ", ".join(f"{t:g}" for t in sorted(measured))
        problem = f"temperature {wanted:g} was not measured; {known} were"
        raise ConfigError(problem, f"profile with --temperature {wanted:g}")
    return wanted


def _answer(
    profile: Profile,
    accuracy: Accuracy,
    settings: Sequence[Setting],  # at the main load
    here: Sequence[Setting],  # at the headline's temperature
    confirmed: Confirmation | None,
    decided: Mapping[float, Decision],
    decision: Decision,  # the headline's
) -> Recommendation:
    best, formula = decision.setting, fit_formula(settings)
    fallback, why = fallback_rule(decision, profile.manifest.settings.max_new_tokens)
    lengths = acceptance_lengths_by_rule(best.evidence, best.num_speculative_tokens)
    headline, by_load = answers.temperature_answer(decision), answers.load_answers(decision, here)
    return Recommendation(
        verdict=headline.verdict,
        draft=headline.draft,
        num_speculative_tokens=headline.num_speculative_tokens,
        temperature=headline.temperature,
        speedup=headline.speedup,
        break_even_alpha=headline.best_candidate.break_even_alpha,
        fallback=fallback,
        fallback_reason=why,
        best_candidate=headline.best_candidate,
        best_decoded=decision.decoded,
        by_temperature=[answers.temperature_answer(other) for other in decided.values()],
        by_category=answers.category_answers(best),
        by_load=by_load,
        by_batch=answers.batch_steps(decision, here),
        candidates=[answers.candidate_of(setting) for setting in settings],
        applies_to=answers.applies_to(profile),
        temperature_gate=answers.temperature_gate(settings, decision, decided, confirmed),
        acceptance_length_by_rule=lengths,
        padded_drafts=profile.manifest.padded_drafts,
        formula=formula,
        accuracy=accuracy,
        confirmation=confirmed,
        reasons=reasons(decision, headline.best_candidate, by_load),
        warnings=[*profile.manifest.warnings, *notices(decision, settings, formula)],
        reproduce=profile.manifest.settings.command,
    )
