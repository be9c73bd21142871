"""The transform against transformers' own, inverse-CDF draws, and the streams of uniforms."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from spectune.errors import ConfigError
from spectune.models.sampling import NO_MASS_LOGPROB, Sampling, log_probabilities, probabilities, sample, uniform_stream
from tests.toys import divergences, g_test, transformed_law

unhurried = settings(deadline=None)
KEY = hashlib.sha256(b"a prompt").hexdigest()
JUST_BELOW_ONE = float(np.nextafter(1.0, 0.0))

distinct_logits = st.lists(st.integers(-300, 300), min_size=2, max_size=12, unique=True).map(
    lambda found: torch.tensor([value / 40 for value in found], dtype=torch.float64)
)
temperatures = st.floats(0.1, 3.0)


def transformers_law(logits: torch.Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0) -> torch.Tensor:
    scores = TemperatureLogitsWarper(temperature)(None, logits[None].clone())
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1.0:
        scores = TopPLogitsWarper(top_p)(None, scores)
    return scores.softmax(-1)[0]


def at_a_boundary(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> bool:
    """Whether rounding alone decides which tokens top-p keeps."""
    mass = np.cumsum(np.sort(transformed_law(logits.numpy(), temperature, top_k))[::-1])
    return bool(np.any(np.abs(mass - top_p) < 1e-9))


@unhurried
@given(distinct_logits, temperatures)
def test_temperature_alone_as_in_transformers(logits, temperature):
    law = probabilities(logits, Sampling(temperature=temperature))
    torch.testing.assert_close(law, transformers_law(logits, temperature), rtol=1e-9, atol=1e-12)


@unhurried
@given(distinct_logits, temperatures, st.integers(1, 15))
def test_top_k_as_in_transformers(logits, temperature, top_k):
    law = probabilities(logits, Sampling(temperature=temperature, top_k=top_k))
    torch.testing.assert_close(law, transformers_law(logits, temperature, top_k), rtol=1e-9, atol=1e-12)
    assert int((law > 0).sum()) <= top_k


@unhurried
@given(distinct_logits, temperatures, st.floats(1e-6, 1.0))
def test_top_p_as_in_transformers(logits, temperature, top_p):
    assume(not at_a_boundary(logits, temperature, 0, top_p))
    law = probabilities(logits, Sampling(temperature=temperature, top_p=top_p))
    torch.testing.assert_close(law, transformers_law(logits, temperature, 0, top_p), rtol=1e-9, atol=1e-12)


@unhurried
@given(distinct_logits, temperatures, st.integers(1, 12), st.floats(0.05, 0.99))
def test_top_k_and_top_p_together_in_the_order_of_transformers(logits, temperature, top_k, top_p):
    assume(not at_a_boundary(logits, temperature, top_k, top_p))
    law = probabilities(logits, Sampling(temperature=temperature, top_k=top_k, top_p=top_p))
    torch.testing.assert_close(law, transformers_law(logits, temperature, top_k, top_p), rtol=1e-9, atol=1e-12)


@unhurried
@given(distinct_logits, temperatures, st.integers(0, 12), st.floats(0.05, 1.0))
def test_transform_equals_an_independent_statement_of_it(logits, temperature, top_k, top_p):
    assume(not at_a_boundary(logits, temperature, top_k, top_p))
    law = probabilities(logits, Sampling(temperature=temperature, top_k=top_k, top_p=top_p))
    np.testing.assert_allclose(law, transformed_law(logits.numpy(), temperature, top_k, top_p), atol=1e-12)


def test_ties_at_the_top_k_threshold_are_all_kept_as_in_transformers():
    logits = torch.tensor([1.0, 2.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    law = probabilities(logits, Sampling(temperature=1.0, top_k=2))
    assert (law > 0).tolist() == [True, True, True, False, True]
    torch.testing.assert_close(law, transformers_law(logits, 1.0, top_k=2))


def test_masked_logits_stay_without_mass_under_every_transform():
    logits = torch.tensor([0.3, -torch.inf, 1.0, -torch.inf], dtype=torch.float64)
    for options in ({}, {"top_k": 3}, {"top_p": 0.999}, {"top_k": 3, "top_p": 0.999}):
        law = probabilities(logits, Sampling(temperature=0.7, **options))
        assert law[1] == law[3] == 0.0
        torch.testing.assert_close(law, transformers_law(logits, 0.7, **options))


def test_top_k_of_one_and_a_tiny_top_p_leave_the_argmax():
    logits = torch.tensor([0.3, 2.0, 1.0])
    for options in ({"top_k": 1}, {"top_p": 1e-9}):
        assert probabilities(logits, Sampling(temperature=1.0, **options)).tolist() == [0.0, 1.0, 0.0]


def test_top_k_of_the_whole_vocabulary_and_top_p_of_one_change_nothing():
    logits = torch.randn(6, generator=torch.Generator().manual_seed(0))
    plain = probabilities(logits, Sampling(temperature=0.9))
    for options in ({"top_k": 6}, {"top_k": 100}, {"top_p": 1.0}):
        assert torch.equal(probabilities(logits, Sampling(temperature=0.9, **options)), plain)


def test_temperature_zero_is_a_point_mass_on_the_argmax_whatever_else_is_set():
    logits = torch.tensor([[0.3, 2.0, 1.0], [5.0, 2.0, 5.0]])
    law = probabilities(logits, Sampling(temperature=0.0, top_k=2, top_p=0.5))
    assert law.dtype == torch.float64
    assert law.tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]


def test_rows_are_transformed_independently():
    logits = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(1))
    sampling = Sampling(temperature=0.8, top_k=4, top_p=0.9)
    together = probabilities(logits, sampling)
    for place in np.ndindex(2, 5):
        torch.testing.assert_close(together[place], probabilities(logits[place], sampling))


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": float("nan")},
        {"top_k": -1},
    ],
)
def test_values_out_of_range_are_refused(options):
    with pytest.raises(ConfigError):
        Sampling(**options)


@st.composite
def weights_and_uniform(draw):
    vocab = draw(st.integers(1, 9))
    weights = draw(st.lists(st.sampled_from([0.0, 0.0, 1e-300, 1e-12, 0.1, 1.0, 3.0]), min_size=vocab, max_size=vocab))
    assume(any(weights))
    uniform = draw(st.one_of(st.just(0.0), st.just(JUST_BELOW_ONE), st.floats(0.0, JUST_BELOW_ONE)))
    return torch.tensor([weights], dtype=draw(st.sampled_from([torch.float64, torch.float32]))), uniform


@unhurried
@given(weights_and_uniform())
def test_no_uniform_draws_a_token_without_mass(case):
    probs, uniform = case
    assume(float(probs.sum()) > 0)
    token_id = int(sample(probs, torch.tensor([uniform], dtype=torch.float64))[0])
    assert probs[0, token_id] > 0


def test_uniforms_at_the_ends_draw_the_first_and_last_token_with_mass():
    probs = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]] * 2, dtype=torch.float64)
    assert sample(probs, torch.tensor([0.0, JUST_BELOW_ONE], dtype=torch.float64)).tolist() == [1, 3]


def test_a_uniform_on_a_step_of_the_cdf_belongs_to_the_next_token():
    probs = torch.tensor([[0.25, 0.25, 0.5]] * 4, dtype=torch.float64)
    uniforms = torch.tensor([0.25, float(np.nextafter(0.25, 0)), 0.5, float(np.nextafter(0.5, 0))], dtype=torch.float64)
    assert sample(probs, uniforms).tolist() == [1, 0, 2, 1]


def test_evenly_spread_uniforms_give_every_token_its_share():
    law = torch.tensor([0.1, 0.0, 0.2, 0.3, 0.4], dtype=torch.float64)
    uniforms = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    counts = torch.bincount(sample(law.expand(10_000, -1), uniforms), minlength=5)
    assert counts.tolist() == [1000, 0, 2000, 3000, 4000]


def test_a_stream_of_uniforms_draws_the_law():
    law = np.array([0.5, 0.0, 0.2, 0.3])
    uniforms = torch.from_numpy(uniform_stream(3, KEY, 20_000))
    counts = np.bincount(sample(torch.tensor(law).expand(20_000, -1), uniforms), minlength=4)
    assert g_test(counts, law) > 0.001
    assert max(divergences(counts, law)) < 0.01


def test_log_probabilities_stay_finite_without_mass():
    logits = torch.tensor([[0.25, 0.75], [1.0, 0.0]], dtype=torch.float64).log()
    written = torch.tensor([0, 1])
    sampled = log_probabilities(logits, written, Sampling(temperature=1.0))
    assert sampled.tolist() == [pytest.approx(np.log(0.25)), NO_MASS_LOGPROB]
    greedy = log_probabilities(logits, torch.tensor([1, 1]), Sampling(temperature=0.0))
    assert greedy.tolist() == [0.0, NO_MASS_LOGPROB]
    assert np.exp(NO_MASS_LOGPROB) == 0.0


@unhurried
@given(st.integers(-5, 2**63), st.binary(max_size=8), st.integers(1, 60), st.integers(1, 60))
def test_a_stream_is_the_same_every_time_and_for_every_length(seed, name, short, long):
    key = hashlib.sha256(name).hexdigest()
    first, second = uniform_stream(seed, key, short), uniform_stream(seed, key, long)
    shared = min(short, long)
    assert np.array_equal(first[:shared], second[:shared])
    assert np.all((first >= 0.0) & (first < 1.0))


def test_streams_differ_by_seed_and_by_every_part_of_the_key():
    keys = [KEY, *(KEY[:place] + ("0" if KEY[place] != "0" else "1") + KEY[place + 1 :] for place in (0, 20, 40, 63))]
    streams = [uniform_stream(seed, key, 4).tobytes() for seed in (0, 1) for key in keys]
    assert len(set(streams)) == len(streams)


def test_a_stream_ignores_the_global_generators():
    np.random.default_rng(0).random()
    torch.manual_seed(0)
    before = uniform_stream(5, KEY, 8)
    torch.manual_seed(1)
    assert np.array_equal(before, uniform_stream(5, KEY, 8))
