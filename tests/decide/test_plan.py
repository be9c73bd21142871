"""Decisions from made-up profiles whose right answer is known."""

import numpy as np
import pytest

from spectune.decide.evidence import profiled_evidence
from spectune.decide.formula import fit_formula
from spectune.decide.plan import recommend
from spectune.decide.reasons import machine_line
from spectune.errors import ConfigError, InsufficientDataError
from spectune.report.sections import headline
from spectune.speedup import expected_tokens
from tests.profiles import NGRAM, decoded, fitted_settings, literal_rounds, make_profile


def test_settings_recover_the_known_acceptance_and_costs(tmp_path) -> None:
    profile = make_profile(tmp_path / "p", {0.0: 0.8}, prompts=200, noise=0.0)
    for setting in fitted_settings(profile):
        k = setting.num_speculative_tokens
        tokens = expected_tokens(0.8, k)
        knots = np.interp(k, [0, 1, 4], [0.001, 0.002, 0.002])
        round_s = 0.01 * k + 0.105 + knots
        assert setting.acceptance.length.estimate == pytest.approx(tokens, rel=0.03)
        assert setting.round.round_s == pytest.approx(round_s, rel=1e-9)
        assert setting.speedup.estimate == pytest.approx(tokens * 0.101 / round_s, rel=0.03)
        assert setting.speedup.low < setting.speedup.estimate < setting.speedup.high
    assert fit_formula(fitted_settings(profile))[0].alpha == pytest.approx(0.8, abs=0.02)


def test_a_sampled_draft_is_replayed_by_the_ratio(tmp_path) -> None:
    profile = make_profile(tmp_path / "p", {1.0: 0.6}, prompts=40)
    settings = fitted_settings(profile)
    for setting in settings:  # every w is exactly 0.6
        assert setting.acceptance.length.estimate == pytest.approx(
            expected_tokens(0.6, setting.num_speculative_tokens), rel=0.01
        )


def test_a_good_draft_is_recommended(tmp_path) -> None:
    answer = recommend(make_profile(tmp_path / "p", {0.0: 0.85, 1.5: 0.2}))
    assert (answer.verdict, answer.draft) == ("speculate", "small")
    assert answer.num_speculative_tokens == 4
    assert (answer.temperature_gate.speculate_up_to, answer.temperature_gate.plain_from) == (0.0, 1.5)
    assert answer.fallback is not None
    steps = answer.best_candidate.round_in_plain_steps
    assert answer.fallback.acceptance_length_below == pytest.approx(steps)
    assert answer.break_even_alpha is not None
    assert expected_tokens(answer.break_even_alpha, 4) == pytest.approx(steps)
    assert {a.category for a in answer.by_category} == {"code", "chat", "creative"}


def test_real_decoding_is_evidence_of_what_it_decoded(tmp_path) -> None:
    profile = make_profile(tmp_path / "p", {0.0: 0.85, 1.5: 0.2})
    alone, held, refuted = (recommend(p) for p in (profile, decoded(profile, 4, 1.4), decoded(profile, 4, 0.9)))
    other = recommend(decoded(profile, 2, 0.9))  # another K than the recommended one says nothing of that one
    assert [answer.verdict for answer in (alone, held, other)] == ["speculate"] * 3
    assert (alone.predicted, alone.best_decoded, other.best_decoded) == (None, None, None)
    assert held.best_decoded.raw_speedup == pytest.approx(1.4)
    assert held.best_decoded.measured_speedup == pytest.approx(1.4, rel=0.01)
    assert held.predicted.speedup == alone.speedup
    assert not held.refuted
    hits = profiled_evidence(profile)[0].proposals["argmax_hits"].to_pylist()[:8]
    tokens_a_round = 8 * 64 / sum(len(literal_rounds(np.array(row), 4)) for row in hits)
    best = held.best_candidate
    assert best.round_in_plain_steps == pytest.approx(tokens_a_round / 1.4, rel=0.01)
    assert held.speedup.estimate == pytest.approx(best.clock_acceptance_length / best.round_in_plain_steps, rel=0.03)
    assert (refuted.verdict, refuted.draft, refuted.num_speculative_tokens) == ("plain", None, None)
    assert refuted.refuted
    assert refuted.predicted.speedup == alone.speedup  # the prediction is still told
    assert (refuted.by_temperature[0].verdict, refuted.by_load[0].verdict) == ("plain",) * 2
    assert (refuted.temperature_gate.speculate_up_to, refuted.temperature_gate.plain_from) == (None, 0.0)
    assert refuted.fallback is None
    assert "unconfirmed" in {warning.code for warning in refuted.warnings}
    assert f"reaches {refuted.speedup.estimate:.2f}×" in headline(refuted)


def test_k_that_was_not_decoded_goes_by_the_nearest_and_is_called_so(tmp_path) -> None:
    profile = make_profile(tmp_path / "p", {0.0: 0.85})
    before, after = recommend(profile), recommend(decoded(profile, 2, 1.2))
    first, now = ({c.num_speculative_tokens: c for c in a.candidates if c.temperature == 0.0} for a in (before, after))
    off = after.confirmation.settings[0].miss
    for k in (1, 2, 3, 4):
        ratio = now[k].round_in_plain_steps / first[k].round_in_plain_steps
        assert ratio == pytest.approx(off.round / off.plain_step, rel=0.01)
    assert (after.num_speculative_tokens, after.best_decoded) == (4, None)
    assert [w.message for w in after.warnings if w.code == "not-decoded"] == [
        "small at K = 4 was never decoded for real: others were"
    ]


def test_rounds_that_other_work_slowed_are_left_out_and_told(tmp_path) -> None:
    profile = make_profile(tmp_path / "p", {0.0: 0.85})
    calm, hit = (recommend(decoded(profile, 4, 1.4, slow=slow, noise=0.03)) for slow in (0.0, 0.05))
    assert calm.confirmation.disturbed_rounds == 0
    assert hit.confirmation.machine == "steady"
    assert 0.03 < hit.confirmation.disturbed_rounds / hit.confirmation.rounds < 0.07
    assert abs(hit.best_decoded.raw_speedup / 1.4 - 1) > 0.05
    assert hit.best_decoded.measured_speedup == pytest.approx(calm.best_decoded.measured_speedup, rel=0.01)
    assert hit.speedup.estimate == pytest.approx(calm.speedup.estimate, rel=0.01)
    assert "took far longer than others like them and are left out" in machine_line(hit.confirmation)


def test_a_machine_that_changed_judges_acceptance_only(tmp_path) -> None:
    profile = make_profile(tmp_path / "p", {0.0: 0.85})
    answer = recommend(decoded(profile, 4, 0.9, plain_s=0.15))
    assert answer.confirmation.machine == "changed"
    assert "disturbed" in {warning.code for warning in answer.warnings}
    assert answer.verdict == "speculate"
    assert answer.speedup.estimate == pytest.approx(recommend(profile).speedup.estimate, rel=0.03)
    assert answer.best_candidate.effective_prompts == pytest.approx(44, rel=0.02)


def test_a_round_as_long_as_two_steps_means_plain_and_no_break_even(tmp_path) -> None:
    profile = make_profile(tmp_path / "p", {0.0: 0.86}, plain_s=0.051, verify_s=0.1, draft_s=0.03, max_k=1)
    answer = recommend(profile)
    assert (answer.verdict, answer.draft, answer.num_speculative_tokens) == ("plain", None, None)
    assert answer.break_even_alpha is None
    assert answer.fallback is None
    assert answer.fallback_reason
    assert any("even a perfect draft loses" in reason for reason in answer.reasons)


def test_few_prompts_never_decide(tmp_path) -> None:
    answer = recommend(make_profile(tmp_path / "p", {0.0: 0.85}, prompts=9))
    assert answer.verdict == "insufficient-data"
    assert "few-prompts" in {warning.code for warning in answer.warnings}


def test_an_interval_around_the_bound_does_not_decide(tmp_path) -> None:
    answer = recommend(make_profile(tmp_path / "p", {0.0: 0.08}, prompts=14, draft_s=0.001, noise=0.08))
    assert answer.speedup.low < 1.05 < answer.speedup.high
    assert answer.speedup.estimate > 1.05
    assert answer.verdict == "insufficient-data"


def test_timings_too_noisy_to_decide_never_say_plain(tmp_path) -> None:
    costs = {"plain_s": 0.1, "verify_s": 0.16, "draft_s": 0.001, "max_k": 1, "prompts": 60}
    quiet, noisy = (
        recommend(make_profile(tmp_path / name, {0.0: 0.6}, noise=noise, passes=passes, **costs))
        for name, noise, passes in (("quiet", 0.002, 12), ("noisy", 0.4, 7))
    )
    assert quiet.verdict == "plain"
    assert "noisy-costs" not in {warning.code for warning in quiet.warnings}
    assert noisy.speedup.low < 1.05 < noisy.speedup.high
    assert noisy.verdict == "insufficient-data"
    assert "noisy-costs" in {warning.code for warning in noisy.warnings}


def test_within_a_percent_the_smaller_k_and_the_simpler_draft_win(tmp_path) -> None:
    profile = make_profile(tmp_path / "p", {0.0: 1.0}, max_k=1, draft_s=0.0005, ngram_acceptance=1.0, noise=0.0)
    assert recommend(profile).draft == NGRAM


def test_a_dead_draft_is_named(tmp_path) -> None:
    answer = recommend(make_profile(tmp_path / "p", {0.0: 0.0}))
    assert answer.verdict == "plain"
    dead = next(warning for warning in answer.warnings if warning.code == "dead-draft")
    assert "small had none of" in dead.message


def test_the_headline_temperature_is_the_targets_own_then_the_lowest(tmp_path) -> None:
    settings = {0.0: 0.85, 0.7: 0.8}
    profile = make_profile(tmp_path / "p", settings)
    assert recommend(profile).temperature == 0.0
    assert recommend(profile, 0.7).temperature == 0.7
    with pytest.raises(ConfigError, match=r"0\.5 was not measured; 0, 0.7 were"):
        recommend(profile, 0.5)
    with pytest.raises(ConfigError, match="nan"):
        recommend(profile, float("nan"))
    asked = profile.manifest.settings.model_copy(update={"default_temperature": 0.7})
    shipped = profile.manifest.model_copy(update={"settings": asked})
    from dataclasses import replace

    assert recommend(replace(profile, manifest=shipped)).temperature == 0.7


def test_continuations_shorter_than_k_are_not_enough(tmp_path) -> None:
    with pytest.raises(InsufficientDataError):
        recommend(make_profile(tmp_path / "p", {0.0: 0.8}, max_k=64))


def test_intervals_shrink_with_prompts_and_widen_with_cost_noise(tmp_path) -> None:
    def width(name: str, **options) -> float:
        interval = recommend(make_profile(tmp_path / name, {0.0: 0.7}, **options)).speedup
        return float(np.log(interval.high / interval.low))

    assert width("many", prompts=144) < 0.7 * width("few", prompts=36)
    assert width("noisy", prompts=144, noise=0.2) > 1.5 * width("quiet", prompts=144, noise=0.0)
