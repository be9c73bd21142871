"""Whole requests: reading the prompt is part of them, for the draft too."""

import json
from dataclasses import replace

import numpy as np
import pytest

from spectune.cli.app import run
from spectune.decide.plan import recommend
from spectune.errors import ConfigError
from spectune.profile.tables import rows_at
from tests.profiles import READ_S, make_profile

PROMPT_TOKENS, DRAFT_S, PLAIN_S = 3, 0.01, 0.101  # of every made-up prompt; of a draft step; of a plain step


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    return make_profile(tmp_path_factory.mktemp("requests") / "p", {0.0: 0.85}, noise=0.0)


def test_a_request_takes_its_reading_and_its_decoding(profile) -> None:
    """By the clock of one request, added up by hand."""
    answer = recommend(profile)
    whole, decoding = answer.whole_requests, answer.speedup.estimate
    read, draft_read = READ_S * PROMPT_TOKENS, READ_S / 2 * PROMPT_TOKENS - DRAFT_S
    assert (whole.prompt_tokens, whole.answer_tokens) == (PROMPT_TOKENS, 64)
    assert (whole.read_s, whole.draft_read_s) == (pytest.approx(read), pytest.approx(draft_read))
    plainly = read + 64 * PLAIN_S
    speculative = read + draft_read + 64 * PLAIN_S / decoding
    assert whole.speedup.estimate == pytest.approx(plainly / speculative)
    assert whole.speedup.low < whole.speedup.estimate < whole.speedup.high
    assert whole.speedup.estimate < decoding
    assert any("whole requests of 3 tokens of prompt and 64 of answer reach" in text for text in answer.reasons)


def test_short_answers_do_not_pay_for_the_drafts_reading(profile) -> None:
    for tokens in (1, 2, 4, 8, 400):
        whole = recommend(profile, answer_tokens=tokens).whole_requests
        assert whole.answer_tokens == tokens
        assert (whole.speedup.estimate > 1) == (tokens >= whole.pays_from_tokens)
    short = recommend(profile, answer_tokens=1)
    assert short.verdict == "speculate"  # of decoding
    assert short.whole_requests.turned
    assert any(f"it pays from answers of {short.whole_requests.pays_from_tokens} tokens on" in r for r in short.reasons)


def test_what_was_not_seen_of_the_answers_is_told(profile, tmp_path) -> None:
    assert recommend(profile).whole_requests.goes_on_share == 1.0  # all were cut
    whole = recommend(make_profile(tmp_path / "p", {0.0: 0.85}, end="eos"))
    assert whole.whole_requests.goes_on_share == 0.0
    assert not any("goes on beyond" in reason for reason in whole.reasons)


def test_a_profile_without_timed_prompts_has_no_such_answer(profile) -> None:
    there = np.array([not part.startswith("read") for part in profile.costs["part"].to_pylist()])
    before = replace(profile, costs=rows_at(profile.costs, np.flatnonzero(there)))
    answer, told = recommend(before), recommend(profile)
    assert answer.whole_requests is None
    assert answer.speedup == told.speedup  # and nothing else changes


def test_the_length_is_checked_and_stands_in_the_machine_output(profile, tmp_path, capsys) -> None:
    with pytest.raises(ConfigError, match="--answer-tokens is 0"):
        recommend(profile, answer_tokens=0)
    directory = tmp_path / "p"
    make_profile(directory, {0.0: 0.85})
    options = ["--json", "--answer-tokens", "10", "-o", str(tmp_path / "s.md")]
    assert run(["recommend", str(directory), *options]) == 0
    assert json.loads(capsys.readouterr().out)["whole_requests"]["answer_tokens"] == 10
    assert "| speed-up of whole requests |" in (tmp_path / "s.md").read_text()
