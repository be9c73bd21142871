"""The formula's fit: a verdict that can go either way, and what it would have cost to believe it."""

from dataclasses import replace

import numpy as np
import pytest

from spectune.decide.formula import fit_formula
from spectune.decide.plan import recommend
from spectune.profile import schemas
from spectune.profile.tables import to_arrow
from spectune.speedup import expected_tokens, log_slope
from tests.profiles import fitted_settings, make_profile


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1.0])
def test_the_slope_is_that_of_the_formula(alpha) -> None:
    low, high = max(alpha - 1e-6, 0.0), min(alpha + 1e-6, 1.0)
    steps = np.log(expected_tokens(high, 5)) - np.log(expected_tokens(low, 5))
    assert log_slope(alpha, 5) == pytest.approx(steps / (high - low), rel=1e-4)


def test_independent_acceptance_fits(tmp_path) -> None:
    (fit,) = fit_formula(fitted_settings(make_profile(tmp_path / "p", {0.0: 0.7}, prompts=600, max_k=6)))
    assert fit.alpha == pytest.approx(0.7, abs=0.01)
    assert fit.verdict == "fits"
    assert abs(fit.largest_error) < 0.02


def test_few_prompts_leave_it_undecided(tmp_path) -> None:
    (fit,) = fit_formula(fitted_settings(make_profile(tmp_path / "p", {0.0: 0.7}, prompts=14, max_k=6)))
    assert fit.verdict == "undecided"


def test_bursts_mislead_it_and_the_reader_is_told(tmp_path) -> None:
    """Some stretches are copied, others not: long runs are likelier than one α allows."""
    profile = make_profile(tmp_path / "p", {0.0: 0.5}, prompts=80, max_k=8)
    rng = np.random.default_rng(4)
    evidence = profile.acceptance.to_pandas()
    for row in range(len(profile.tape)):
        easy = np.repeat(rng.random(4) < 0.4, 16)
        hit = rng.random(64) < np.where(easy, 0.98, 0.15)
        evidence.at[row, "argmax_hits"] = hit
    profile = replace(profile, acceptance=to_arrow(evidence, schemas.ACCEPTANCE))
    settings = fitted_settings(profile)
    (fit,) = fit_formula(settings)
    assert fit.verdict == "misleads"
    worst = settings[fit.largest_error_at - 1].acceptance.length.estimate
    assert fit.largest_error == pytest.approx(expected_tokens(fit.alpha, fit.largest_error_at) / worst - 1)
    assert abs(fit.largest_error) > 0.02
    assert "formula" in {warning.code for warning in recommend(profile).warnings}


def test_it_says_what_the_formula_would_have_chosen(tmp_path) -> None:
    settings = fitted_settings(make_profile(tmp_path / "p", {0.0: 0.7}, verify_s=0.2, prompts=100, max_k=6, noise=0.0))
    (fit,) = fit_formula(settings)
    ratio = 0.01 / 0.101
    promises = {k: expected_tokens(fit.alpha, k) / (1 + k * ratio) for k in range(1, 7)}
    assert fit.chosen_k == max(promises, key=lambda k: promises[k])
    assert fit.promised_speedup == pytest.approx(promises[fit.chosen_k], rel=0.01)
    assert fit.replayed_speedup == settings[fit.chosen_k - 1].speedup.estimate
    assert fit.promised_speedup > 1.6 * fit.replayed_speedup  # it takes verifying for one plain step
