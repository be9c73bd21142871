"""What replay gains over counting, and whether a fallback rule leaves healthy streams alone."""

import numpy as np
import pytest

from spectune.decide.plan import recommend
from spectune.decoding.decode import speculative_decode
from spectune.drafting.draft_model import DraftModel
from spectune.replay import accept_probabilities_rejection, replay, shifted
from tests.profiles import make_profile
from tests.toys import TableScorer, random_table

VOCAB, K, TOKENS, SEEDS = 12, 4, 64, 100


def test_replay_has_a_fifth_of_the_variance_of_counting_within_prompts() -> None:
    table = random_table(2, VOCAB, 1, scale=1.0)
    draft_table = table + random_table(3, VOCAB, 1, scale=0.3)
    target, draft = TableScorer(table), DraftModel(TableScorer(draft_table))
    laws = [np.exp(logits) / np.exp(logits).sum(-1, keepdims=True) for logits in (table, draft_table)]
    counted, replayed = np.zeros((2, 4, SEEDS))
    for prompt in range(4):
        for seed in range(SEEDS):
            decoded = speculative_decode(target, draft, [prompt], K, 1.0, max_new_tokens=TOKENS, seed=seed)
            counted[prompt, seed] = np.log(TOKENS / len(decoded.rounds))
        texts = sampled_texts(laws[0], prompt)
        p, q = (np.log(law[texts[:-1], texts[1:]]) for law in laws)
        rounds = replay(shifted(accept_probabilities_rejection(p, q), K), np.full(SEEDS, TOKENS)).rounds[K - 1]
        replayed[prompt] = np.log(TOKENS / rounds)
    ratio = replayed.var(axis=1, ddof=1).mean() / counted.var(axis=1, ddof=1).mean()
    difference = replayed.mean() - counted.mean()
    spread = np.sqrt((counted.var(axis=1).mean() + replayed.var(axis=1).mean()) / counted.size)
    print(f"variance within prompts, replayed over counted: {ratio:.3f}; mean log τ {difference:+.4f} ± {spread:.4f}")
    assert ratio <= 1 / 5
    assert abs(difference) < 3.5 * spread


def sampled_texts(law: np.ndarray, prompt: int) -> np.ndarray:  # [1 + TOKENS, SEEDS]
    """Plain texts of the target, the prompt's token before them."""
    rng, texts = np.random.default_rng(prompt), [np.full(SEEDS, prompt)]
    for _ in range(TOKENS):
        below = np.cumsum(law, axis=1)[texts[-1], :-1] < rng.random(SEEDS)[:, None]
        texts.append(below.sum(axis=1))
    return np.array(texts)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_healthy_stream_seldom_trips_the_fallback_rule(tmp_path, temperature) -> None:
    """At T = 1 replay knows the mean of each text only; the rule must allow for the chance of acceptance too."""
    profile = make_profile(tmp_path / "p", {temperature: 0.75}, prompts=60, end="limit")
    rule = recommend(profile).fallback
    assert rule is not None
    assert 0 <= rule.false_trip_rate <= 1.05e-4
    assert trips(rule, alpha=0.75, windows=20_000) <= 20 * rule.false_trip_rate
    assert trips(rule, alpha=0.05, windows=200) == 1.0  # and a draft gone bad does trip it


def trips(rule, alpha: float, windows: int) -> float:
    """The share of windows of finished requests whose tokens per round stay below the threshold."""
    rng = np.random.default_rng(5)
    tripped = 0
    for _ in range(windows):
        runs = np.minimum(rng.geometric(1 - alpha, size=(rule.window_requests, TOKENS)) - 1, K) + 1
        rounds = (np.cumsum(runs, axis=1) < TOKENS).sum(axis=1) + 1
        tripped += rule.window_requests * TOKENS < rule.acceptance_length_below * rounds.sum()
    return tripped / windows
