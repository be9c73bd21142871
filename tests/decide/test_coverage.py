"""Do the intervals hold what they promise? Simulated workloads with realistic spread between prompts."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from spectune.decide.confirmation import predicted_speedup
from spectune.decide.fit import Setting, speedup_with_spread
from spectune.decide.round_costs import RoundCosts
from spectune.decide.selection import MIN_GAIN, decide
from spectune.profile.costs import FOLDS
from spectune.replay import RowCounts, count_rounds, rounds_variance, walk
from spectune.stats import Interval, log_ratio_interval
from tests.profiles import fitted_settings, make_profile

REPLICATES = 4000
K, TOKENS = 4, 64


@dataclass(frozen=True)
class Prompts:
    """Texts of a population: prompts differ in how predictable they are, and some end early."""

    emitted: np.ndarray  # [replicates, prompts]
    rounds: np.ndarray  # [replicates, prompts]


def population(rng: np.random.Generator, replicates: int, prompts: int, mean: float = 0.55) -> Prompts:
    """Acceptance by prompt from a Beta whose spread is that of chat, code and prose together; lengths 16 to 64."""
    alpha = rng.beta(6 * mean, 6 * (1 - mean), size=(replicates, prompts))
    lengths = np.where(rng.random(alpha.shape) < 0.3, rng.integers(16, TOKENS, alpha.shape), TOKENS)
    emitted, rounds = np.zeros(alpha.shape), np.zeros(alpha.shape)
    alive = np.ones(alpha.shape, dtype=bool)
    while alive.any():
        run = np.minimum(rng.geometric(1 - alpha) - 1, K) + 1
        rounds += alive
        emitted += np.where(alive, run, 0)
        alive &= emitted < lengths
    return Prompts(emitted=np.minimum(emitted, lengths), rounds=rounds)


@cache
def truth(mean: float = 0.55) -> float:
    many = population(np.random.default_rng(99), 1, 2_000_000, mean)
    return float(many.emitted.sum() / many.rounds.sum())


def rows(emitted: np.ndarray, rounds: np.ndarray) -> RowCounts:
    """Rounds that all have K proposals."""
    k = np.array([K])
    filled = np.zeros(len(rounds))
    return RowCounts(emitted=emitted, rounds=rounds, draft_steps=k, nodes=k, by_shape=rounds[None], filled=filled)


def costs(round_s: np.ndarray, plain_s: float = 1.0) -> RoundCosts:  # [draws] of a round of K proposals
    """All of a round goes into verifying."""
    nothing, draws = np.zeros((len(round_s), K + 1)), len(round_s)
    verify = np.tile(round_s[:, None], K + 1)
    return RoundCosts(plain_s=np.full(draws, plain_s), draft_s=nothing, verify_s=verify, overhead_s=nothing,
                      catch_up_s=np.zeros(draws))  # fmt: skip


EXACT = costs(np.ones(2))  # a round and a plain step take 1 s: the speed-up is the tokens of a round


def ends(intervals: list[Interval]) -> np.ndarray:  # [2, replicates]
    return np.array([(interval.low, interval.high) for interval in intervals]).T


def confidence(sample: Prompts) -> np.ndarray:  # [2, replicates]
    return ends([log_ratio_interval(*pair) for pair in zip(sample.emitted, sample.rounds, strict=True)])


def prediction(sample: Prompts, others: int) -> np.ndarray:  # [2, replicates]
    pairs = zip(sample.emitted, sample.rounds, strict=True)
    return ends([predicted_speedup(rows(*pair), np.zeros(len(pair[0])), EXACT, others, 0.0) for pair in pairs])


@pytest.mark.parametrize("prompts", [24, 36, 150])
def test_confidence_intervals_cover_the_population(prompts) -> None:
    low, high = confidence(population(np.random.default_rng(prompts), REPLICATES, prompts))
    covered = np.mean((low <= truth()) & (truth() <= high))
    print(f"confidence, {prompts} prompts: {covered:.4f}")
    assert 0.93 <= covered <= 0.97


@pytest.mark.parametrize("prompts", [24, 36, 150])
def test_prediction_intervals_cover_a_run_on_twelve_others(prompts) -> None:
    rng = np.random.default_rng(1000 + prompts)
    low, high = prediction(population(rng, REPLICATES, prompts), others=12)
    run = population(rng, REPLICATES, 12)
    figures = run.emitted.sum(1) / run.rounds.sum(1)
    covered = np.mean((low <= figures) & (figures <= high))
    narrow_low, narrow_high = confidence(population(rng, REPLICATES, prompts))
    held = np.mean((narrow_low <= figures) & (figures <= narrow_high))
    print(f"prediction, {prompts} prompts: {covered:.4f}; a confidence interval holds {held:.4f}")
    assert 0.93 <= covered <= 0.97
    assert held < 0.9


@pytest.mark.parametrize("prompts", [24, 36])
def test_prediction_intervals_hold_where_replay_knows_each_texts_mean_only(prompts) -> None:
    """T > 0: the profile has expected rounds of each text, the run on twelve others has rounds by chance."""
    rng, replicates = np.random.default_rng(prompts), 1500
    alpha = rng.beta(30, 20, size=replicates * (prompts + 12))  # prompts alike: chance within texts matters
    walked = walk(np.broadcast_to(alpha, (TOKENS, K, len(alpha))), depths=[K])
    lengths = np.full(len(alpha), TOKENS)
    expected = count_rounds(walked, lengths).rounds[0].reshape(replicates, -1)
    variance = rounds_variance(walked, lengths, K).reshape(replicates, -1)
    runs = np.minimum(rng.geometric(1 - alpha[:, None], size=(len(alpha), TOKENS)) - 1, K) + 1
    real = ((np.cumsum(runs, axis=1) < TOKENS).sum(axis=1) + 1).reshape(replicates, -1)
    covered, without = 0, 0
    for row in range(replicates):
        texts, figure = (
            rows(np.full(prompts, float(TOKENS)), expected[row, :prompts]),
            12 * TOKENS / real[row, prompts:].sum(),
        )
        chance = variance[row, :prompts]
        for counted, given in ((True, chance), (False, 0 * chance)):
            interval = predicted_speedup(texts, given, EXACT, 12, another_time=0.0)
            held = interval.low <= figure <= interval.high
            covered, without = covered + (held and counted), without + (held and not counted)
    print(
        f"prediction at T > 0, {prompts} prompts: {covered / replicates:.4f}, without chance {without / replicates:.4f}"
    )
    assert 0.93 <= covered / replicates <= 0.97
    assert without / replicates < 0.93


@pytest.fixture(scope="module")
def any_setting(tmp_path_factory) -> Setting:
    return fitted_settings(make_profile(tmp_path_factory.mktemp("coverage") / "p", {0.0: 0.8}))[K - 1]


def equal_drafts(
    any_setting: Setting, rng: np.random.Generator, true_speedup: float, prompts: int, drafts: int, passes: int = 40
):
    """Settings of equally good drafts on the same prompts, whose cost samples are noisy each for itself."""
    difficulty = rng.normal(0, 0.9, prompts)
    settings = []
    for _ in range(drafts):
        alpha = 1 / (1 + np.exp(-(difficulty + rng.normal(0, 0.5, prompts))))
        runs = np.minimum(rng.geometric(1 - alpha[:, None], size=(prompts, 30)) - 1, K) + 1
        texts = rows(runs.sum(1).astype(float), np.full(prompts, 30.0))
        # scaled so that the population's speed-up is exactly the wanted one
        settings.append(_setting(any_setting, rng, texts, EXPECTED / true_speedup, passes))
    return settings


def _mean_length() -> float:
    rng = np.random.default_rng(5)
    alpha = 1 / (1 + np.exp(-(rng.normal(0, 0.9, 2_000_000) + rng.normal(0, 0.5, 2_000_000))))
    return float(np.mean(np.sum(alpha[:, None] ** np.arange(K + 1), axis=1)))


EXPECTED = _mean_length()


def _setting(any_setting: Setting, rng, texts: RowCounts, round_s: float, passes: int) -> Setting:
    """A plain step takes 1 s, a round `round_s`, each known from samples with 9% noise."""
    samples = round_s * np.exp(rng.normal(0, 0.09, passes))
    draws = rng.integers(passes, size=(400, passes))
    medians = costs(np.concatenate([[np.median(samples)], np.median(samples[draws], axis=1)]))
    fold = np.arange(passes) % FOLDS
    sides = [[np.median(samples[(fold == f) == side]) for f in range(FOLDS)] for side in (True, False)]
    speedup, spread = speedup_with_spread(texts, medians, [costs(np.array(side)) for side in sides])
    return replace(any_setting, costs=medians, round=medians.times(texts), speedup=speedup, spread=spread, texts=texts)


def test_confidence_intervals_cover_where_costs_are_noisy_too(any_setting) -> None:
    rng = np.random.default_rng(11)
    found = [equal_drafts(any_setting, rng, 1.2, 36, 1, passes=12)[0].speedup for _ in range(REPLICATES)]
    covered = np.mean([interval.low <= 1.2 <= interval.high for interval in found])
    print(f"confidence with noisy costs, 36 prompts: {covered:.4f}")
    assert 0.93 <= covered <= 0.97


def test_eight_equal_drafts_at_the_bound_seldom_say_speculate_and_quote_no_luck(any_setting) -> None:
    rng = np.random.default_rng(7)
    said, quoted, naive_said, naive, profiles = 0, [], 0, [], REPLICATES // 2  # of eight drafts each
    for _ in range(profiles):
        settings = equal_drafts(any_setting, rng, MIN_GAIN, 36, 8)
        decision = decide(settings)
        said += decision.verdict == "speculate"
        quoted.append(decision.speedup.estimate)
        best = max(settings, key=lambda setting: setting.speedup.estimate)
        naive.append(best.speedup.estimate)
        naive_said += best.speedup.low > MIN_GAIN
    rate, bias = said / profiles, np.mean(quoted) / MIN_GAIN - 1
    print(f"speculate {rate:.4f} (its own interval: {naive_said / profiles:.4f}); bias {bias:+.4f}"
          f" (the best's own point: {np.mean(naive) / MIN_GAIN - 1:+.4f})")  # fmt: skip
    assert rate <= 0.05
    assert abs(bias) < 0.01
    assert np.mean(naive) / MIN_GAIN - 1 > 0.03
