"""Do the intervals hold what they promise? Simulated workloads with realistic spread between prompts."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from spectune.decide.fit import Setting
from spectune.decide.selection import MIN_GAIN, decide
from spectune.profile.costs import FOLDS
from spectune.profile.manifest import Load
from spectune.replay import count_rounds, rounds_variance, walk
from spectune.stats import Interval, effective_prompts, log_ratio_influence, log_t_interval, prediction_standard_error

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


def intervals(sample: Prompts, others: int = 0) -> np.ndarray:  # [replicates, 2]
    found = []
    for emitted, rounds in zip(sample.emitted, sample.rounds, strict=True):
        influence = log_ratio_influence(emitted, rounds)
        error = prediction_standard_error(influence, 0.0, others) if others else np.sqrt(np.sum(influence**2))
        interval = log_t_interval(emitted.sum() / rounds.sum(), float(error), effective_prompts(rounds))
        found.append((interval.low, interval.high))
    return np.array(found)


@pytest.mark.parametrize("prompts", [24, 36, 150])
def test_confidence_intervals_cover_the_population(prompts) -> None:
    low, high = intervals(population(np.random.default_rng(prompts), REPLICATES, prompts)).T
    covered = np.mean((low <= truth()) & (truth() <= high))
    print(f"confidence, {prompts} prompts: {covered:.4f}")
    assert 0.93 <= covered <= 0.97


@pytest.mark.parametrize("prompts", [24, 36, 150])
def test_prediction_intervals_cover_a_run_on_twelve_others(prompts) -> None:
    rng = np.random.default_rng(1000 + prompts)
    low, high = intervals(population(rng, REPLICATES, prompts), others=12).T
    run = population(rng, REPLICATES, 12)
    figures = run.emitted.sum(1) / run.rounds.sum(1)
    covered = np.mean((low <= figures) & (figures <= high))
    narrow_low, narrow_high = intervals(population(rng, REPLICATES, prompts)).T
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
    ends = np.full(len(alpha), TOKENS)
    expected = count_rounds(walked, ends).rounds[0].reshape(replicates, -1)
    variance = rounds_variance(walked, ends, K).reshape(replicates, -1)
    runs = np.minimum(rng.geometric(1 - alpha[:, None], size=(len(alpha), TOKENS)) - 1, K) + 1
    real = ((np.cumsum(runs, axis=1) < TOKENS).sum(axis=1) + 1).reshape(replicates, -1)
    covered, without = 0, 0
    for row in range(replicates):
        rounds, figure = expected[row, :prompts], 12 * TOKENS / real[row, prompts:].sum()
        emitted = np.full(prompts, float(TOKENS))
        within = variance[row, :prompts].sum() / rounds.sum() ** 2
        for counted, share in ((True, within), (False, 0.0)):
            error = prediction_standard_error(log_ratio_influence(emitted, rounds), share, 12)
            interval = log_t_interval(emitted.sum() / rounds.sum(), error, effective_prompts(rounds))
            held = interval.low <= figure <= interval.high
            covered, without = covered + (held and counted), without + (held and not counted)
    print(
        f"prediction at T > 0, {prompts} prompts: {covered / replicates:.4f}, without chance {without / replicates:.4f}"
    )
    assert 0.93 <= covered / replicates <= 0.97
    assert without / replicates < 0.93


def equal_drafts(rng: np.random.Generator, true_speedup: float, prompts: int, drafts: int, passes: int = 40):
    """Settings of equally good drafts on the same prompts, whose cost samples are noisy each for itself."""
    difficulty = rng.normal(0, 0.9, prompts)
    settings = []
    for _ in range(drafts):
        alpha = 1 / (1 + np.exp(-(difficulty + rng.normal(0, 0.5, prompts))))
        runs = np.minimum(rng.geometric(1 - alpha[:, None], size=(prompts, 30)) - 1, K) + 1
        emitted, rounds = runs.sum(1).astype(float), np.full(prompts, 30.0)
        # scaled so that the population's speed-up is exactly the wanted one
        settings.append(_setting(rng, emitted, rounds, EXPECTED / true_speedup, passes))
    return settings


def _mean_length() -> float:
    rng = np.random.default_rng(5)
    alpha = 1 / (1 + np.exp(-(rng.normal(0, 0.9, 2_000_000) + rng.normal(0, 0.5, 2_000_000))))
    return float(np.mean(np.sum(alpha[:, None] ** np.arange(K + 1), axis=1)))


EXPECTED = _mean_length()


def _setting(rng, emitted, rounds, round_s: float, passes: int) -> Setting:
    """A plain step takes 1 s, a round `round_s`, each known from samples with 9% noise."""
    samples = round_s * np.exp(rng.normal(0, 0.09, passes))
    draws = rng.integers(passes, size=(400, passes))
    resampled, median = np.median(samples[draws], axis=1), np.median(samples)
    folds = np.arange(passes) % FOLDS
    factors = np.array(
        [[median / np.median(samples[folds == f]), median / np.median(samples[folds != f])] for f in range(FOLDS)]
    )
    seconds = rounds * median
    influence, costs = log_ratio_influence(emitted, seconds), -np.log(resampled / median)
    point, weight = emitted.sum() / seconds.sum(), effective_prompts(rounds)
    error = float(np.hypot(np.sqrt(np.sum(influence**2)), np.std(costs)))
    return Setting(
        draft=f"d{rng.integers(1 << 30)}", method="draft_model", num_speculative_tokens=K, temperature=0.0,
        load=Load(batch=1, context_tokens=100), speedup=log_t_interval(point, error, weight),
        acceptance_length=Interval(estimate=2.0, low=None, high=None), clock_acceptance_length=2.0, plain_s=1.0,
        draft_s=0.1, verify_s=1.0, overhead_s=0.0, round_s=median, effective_prompts=weight,
        categories=np.array(["a"] * len(emitted)), emitted=emitted, rounds=rounds, seconds=seconds,
        prompt_influence=influence, cost_influence=costs, fold_factors=factors, log_length_influence=influence,
        proposed=1.0, accepted=1.0, conditional_acceptance_rate=[], cumulative_acceptance_rate=[],
    )  # fmt: skip


def test_confidence_intervals_cover_where_costs_are_noisy_too() -> None:
    rng = np.random.default_rng(11)
    found = [equal_drafts(rng, 1.2, 36, 1, passes=12)[0].speedup for _ in range(REPLICATES)]
    covered = np.mean([interval.low <= 1.2 <= interval.high for interval in found])
    print(f"confidence with noisy costs, 36 prompts: {covered:.4f}")
    assert 0.93 <= covered <= 0.97


def test_eight_equal_drafts_at_the_bound_seldom_say_speculate_and_quote_no_luck() -> None:
    rng = np.random.default_rng(7)
    said, quoted, naive_said, naive, profiles = 0, [], 0, [], REPLICATES // 2  # of eight drafts each
    for _ in range(profiles):
        settings = equal_drafts(rng, MIN_GAIN, 36, 8)
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
