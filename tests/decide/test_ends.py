"""Ends of continuations: what a complete round emits, what a clock sees, and why a cut tape needs the former."""

import numpy as np
import pytest

from spectune.decide.plan import recommend
from spectune.decide.selection import choose
from spectune.speedup import expected_tokens
from spectune.stats import Interval
from tests.profiles import fitted_settings, make_profile


def test_a_short_cut_tape_and_a_long_one_agree(tmp_path) -> None:
    costs = {"plain_s": 0.1, "verify_s": 0.105, "draft_s": 0.012, "noise": 0.0, "max_k": 12}
    short = fitted_settings(make_profile(tmp_path / "64", {0.0: 0.8}, prompts=150, tokens=64, **costs))
    long = fitted_settings(make_profile(tmp_path / "1024", {0.0: 0.8}, prompts=150, tokens=1024, **costs))
    for one, other in zip(short, long, strict=True):
        assert overlap(one.acceptance.length, other.acceptance.length)
        assert overlap(one.speedup, other.speedup)
        assert one.acceptance.length.estimate == pytest.approx(
            expected_tokens(0.8, one.num_speculative_tokens), rel=0.04
        )
    best, again = choose(short), choose(long)
    there = next(s for s in long if s.num_speculative_tokens == best.num_speculative_tokens)
    assert there.speedup.estimate > 0.99 * again.speedup.estimate  # the short tape's K loses nothing
    naive = clock_lengths(tmp_path, tokens=64)[8] / clock_lengths(tmp_path, tokens=1024)[8] - 1
    assert -0.06 < naive < -0.025  # tokens over rounds of a 64-token text


def overlap(one: Interval, other: Interval) -> bool:
    return one.low <= other.high and other.low <= one.high


def clock_lengths(tmp_path, tokens: int) -> dict[int, float]:
    profile = make_profile(tmp_path / f"limit{tokens}", {0.0: 0.8}, prompts=150, tokens=tokens, end="limit", max_k=12)
    return {s.num_speculative_tokens: s.acceptance.clock_length for s in fitted_settings(profile)}


def test_ended_texts_count_in_full_and_cut_ones_by_complete_rounds(tmp_path) -> None:
    ended, cut = (
        fitted_settings(make_profile(tmp_path / end, {0.0: 0.7}, prompts=60, tokens=40, end=end, noise=0.0))
        for end in ("eos", "cut")
    )
    for clock, complete in zip(ended, cut, strict=True):
        assert clock.acceptance.length == complete.acceptance.length  # per complete round, whatever the end
        assert complete.acceptance.clock_length == pytest.approx(complete.acceptance.length.estimate)
        assert clock.texts.emitted.sum() == 60 * 40
        assert clock.acceptance.clock_length < complete.acceptance.clock_length
        k = clock.num_speculative_tokens
        chances = 0.7 ** np.arange(k + 1) * np.r_[np.full(k, 0.3), 1.0]
        sizes = np.arange(1, k + 2)
        delta = (chances @ sizes**2 / (chances @ sizes) - 1) / 2
        expected = complete.acceptance.length.estimate * 40 / (40 + delta)
        assert clock.acceptance.clock_length == pytest.approx(expected, rel=0.01)


def test_replies_shorter_than_k_still_have_an_answer(tmp_path) -> None:
    answer = recommend(make_profile(tmp_path / "p", {0.0: 0.8}, tokens=6, end="eos", max_k=8, prompts=48))
    best = answer.best_candidate
    assert answer.speedup.estimate > 1.5
    assert best.acceptance_length.estimate > best.clock_acceptance_length > 1.5
    assert best.draft_acceptance_rate > 0.3
    assert "dead-draft" not in {warning.code for warning in answer.warnings}
    assert all(length > 1.5 for length in answer.acceptance_length_by_rule.values())


def test_the_limit_is_told_from_a_cut() -> None:
    from spectune.measure.tape import TapePrompt, TapeRow, tape_table
    from spectune.models.sampling import Sampling

    prompt = TapePrompt(id="0" * 64, category="a", token_ids=[1])
    rows = [TapeRow(prompt=prompt, sampling=Sampling(), end=end, token_ids=[2]) for end in ("cut", "eos")]
    assert tape_table(rows)["end"].tolist() == ["cut", "eos"]
    assert tape_table(rows, limited=True)["end"].tolist() == ["limit", "eos"]
