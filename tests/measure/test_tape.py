"""The tape: rows that do not depend on their neighbours and equal a plain loop without cache or batch."""

import dataclasses
import hashlib

import numpy as np
import pytest
import torch

from spectune.errors import ConfigError
from spectune.measure import SilentProgress
from spectune.measure.recording import record_tape
from spectune.measure.tape import (
    REPEAT_TOKENS,
    TapePrompt,
    TapeRow,
    continuations,
    repeating_rows,
    repeats_itself,
    tape_table,
)
from spectune.models.loading import LanguageModel, wrap_model
from spectune.models.sampling import Sampling, uniform_stream
from tests.toys import SLIDING_WINDOW, VOCAB, full_logits, random_prompts, tiny_network, transformed_law

TOKENS = 14
SEED = 5
SAMPLINGS = [Sampling(temperature=0.0), Sampling(temperature=1.0), Sampling(temperature=0.7, top_k=5, top_p=0.9)]


def tape_prompts(lengths: list[int]) -> list[TapePrompt]:
    return [
        TapePrompt(
            id=hashlib.sha256(str(index).encode()).hexdigest(),
            category=f"category {index % 2}",
            token_ids=random_prompts(1, length, seed=index)[0],
        )
        for index, length in enumerate(lengths)
    ]


PROMPTS = tape_prompts([6, 1, 2 * SLIDING_WINDOW + 3, 3, 11])


@pytest.fixture(scope="module", params=["gpt2", "qwen3", "gemma3-sliding"])
def model(request) -> LanguageModel:
    return wrap_model(tiny_network(request.param, seed=2), name=f"a tiny {request.param}")


@pytest.fixture(scope="module")
def tape(model) -> list[TapeRow]:
    return record(model, PROMPTS)


def record(model, prompts, samplings=SAMPLINGS, tokens=TOKENS, seed=SEED, **options) -> list[TapeRow]:
    return record_tape(model, prompts, samplings, tokens, seed, SilentProgress(), **options)


def without_cache_or_batch(model, prompt, sampling, tokens, seed):
    """Tokens and log p(x), each step from a full forward over one row."""
    written, logprobs = [], []
    for uniform in uniform_stream(seed, prompt.id, tokens):
        logits = full_logits(model, [*prompt.token_ids, *written])[-1].double().numpy()
        if sampling.greedy:
            law = np.eye(len(logits))[logits.argmax()]
        else:
            law = transformed_law(logits, sampling.temperature, sampling.top_k, sampling.top_p)
        written.append(int(np.searchsorted(np.cumsum(law), uniform, side="right")))
        logprobs.append(float(np.log(law[written[-1]])))
        if written[-1] in model.eos_token_ids:
            break
    return written, logprobs


def tokens_of(rows: list[TapeRow]) -> list[list[int]]:
    return [row.token_ids for row in rows]


def test_rows_come_in_the_order_prompts_times_samplings(tape):
    assert [(row.prompt, row.sampling) for row in tape] == [(p, s) for p in PROMPTS for s in SAMPLINGS]
    assert all(len(row.token_ids) == TOKENS for row in tape)
    assert {row.end for row in tape} == {"cut"}


def test_rows_equal_a_loop_without_cache_or_batch(model, tape):
    for row in tape:
        expected = without_cache_or_batch(model, row.prompt, row.sampling, TOKENS, SEED)
        assert row.token_ids == expected[0]
        np.testing.assert_allclose(row.logprobs, expected[1], rtol=0, atol=1e-4)


def test_sampled_rows_differ_between_prompts_and_seeds_and_greedy_rows_ignore_the_seed(model, tape):
    other = record(model, PROMPTS, seed=SEED + 1)
    at_one = [tuple(row.token_ids) for row in [*tape, *other] if row.sampling.temperature == 1.0]
    assert len(set(at_one)) == len(at_one)
    assert tokens_of(other)[:: len(SAMPLINGS)] == tokens_of(tape)[:: len(SAMPLINGS)]


def test_a_row_does_not_depend_on_its_neighbours(model, tape):
    for index, prompt in enumerate(PROMPTS):
        alone = record(model, [prompt])
        assert tokens_of(alone) == tokens_of(tape)[index * len(SAMPLINGS) : (index + 1) * len(SAMPLINGS)]
    assert tokens_of(record(model, PROMPTS, [SAMPLINGS[1]])) == tokens_of(tape)[1 :: len(SAMPLINGS)]


def test_order_and_batch_size_change_nothing(model, tape):
    expected = {(row.prompt.id, row.sampling): row.token_ids for row in tape}
    for prompts, options in ((PROMPTS[::-1], {}), (PROMPTS[2:] + PROMPTS[:2], {"rows_per_batch": 6})):
        rows = record(model, prompts, **options)
        assert [(row.prompt, row.sampling) for row in rows] == [(p, s) for p in prompts for s in SAMPLINGS]
        assert {(row.prompt.id, row.sampling): row.token_ids for row in rows} == expected


def test_a_longer_tape_continues_a_shorter_one(model, tape):
    shorter = record(model, PROMPTS, tokens=5)
    assert tokens_of(shorter) == [tokens[:5] for tokens in tokens_of(tape)]


def test_an_end_of_sequence_token_ends_its_row_and_no_other(model, tape):
    ends = sorted({tape[1].token_ids[2], tape[4].token_ids[7]})
    model.network.generation_config.eos_token_id = ends
    try:
        rows = record(model, PROMPTS)
    finally:
        model.network.generation_config.eos_token_id = None
    for row, whole in zip(rows, tape, strict=True):
        stop = next((place for place, token in enumerate(whole.token_ids) if token in ends), None)
        kept = TOKENS if stop is None else stop + 1
        assert row.token_ids == whole.token_ids[:kept]
        assert row.end == ("cut" if stop is None else "eos")
        assert len(row.logprobs) == kept
        np.testing.assert_allclose(row.logprobs, whole.logprobs[:kept], atol=1e-4)
    assert {row.end for row in rows} == {"cut", "eos"}


def test_an_end_of_sequence_token_at_the_last_step_counts_as_eos(model, tape):
    model.network.generation_config.eos_token_id = tape[0].token_ids[-1]
    length = tape[0].token_ids.index(tape[0].token_ids[-1]) + 1
    try:
        (row,) = record(model, PROMPTS[:1], SAMPLINGS[:1], tokens=length)
    finally:
        model.network.generation_config.eos_token_id = None
    assert row.end == "eos"
    assert row.token_ids == tape[0].token_ids[:length]


def test_ids_beyond_the_vocabulary_are_never_written(model):
    narrow = dataclasses.replace(model, vocab_size=VOCAB // 2)
    prompts = [dataclasses.replace(p, token_ids=[t % (VOCAB // 2) for t in p.token_ids]) for p in PROMPTS[:2]]
    rows = record(narrow, prompts)
    assert max(token for row in rows for token in row.token_ids) < VOCAB // 2
    assert rows[1].token_ids == without_cache_or_batch(narrow, prompts[0], SAMPLINGS[1], TOKENS, SEED)[0]


@pytest.mark.parametrize("bad_step", [0, 4])
@pytest.mark.parametrize("bad_value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_logits_are_refused_with_model_prompt_and_position(model, bad_step, bad_value):
    prompts = PROMPTS[:3]
    victim, calls = prompts[0], []

    def spoil(network, args, kwargs, output):
        """Ruin the victim's row: its own prompt's reading, or its row (the longest prompt comes first) of a step."""
        calls.append(kwargs["input_ids"].shape)
        reading = kwargs["input_ids"].tolist() == [victim.token_ids]
        if (reading and bad_step == 0) or (bad_step > 0 and len(calls) == len(prompts) + bad_step):
            output.logits[0 if reading else 1, -1, 3] = bad_value
        return output

    handle = model.network.register_forward_hook(spoil, with_kwargs=True)
    try:
        with pytest.raises(ConfigError) as refused:
            record(model, prompts, SAMPLINGS[:1])
    finally:
        handle.remove()
    assert model.name in refused.value.problem
    assert victim.id[:12] in refused.value.problem
    assert refused.value.problem.endswith(f"position {bad_step}")


def brute_force_repeats(token_ids: list[int]) -> bool:
    runs = [tuple(token_ids[i : i + REPEAT_TOKENS]) for i in range(len(token_ids) - REPEAT_TOKENS + 1)]
    return len(set(runs)) < len(runs)


def test_repeats_are_runs_of_eight_tokens():
    run = list(range(8))
    assert repeats_itself([*run, *run])
    assert repeats_itself([*run, 99, *run])
    assert repeats_itself([7] * 9)
    assert not repeats_itself([7] * 8)
    assert not repeats_itself([*run, 99, *run[1:]])
    assert not repeats_itself([])
    rng = np.random.default_rng(0)
    for _ in range(200):
        token_ids = rng.integers(2, size=rng.integers(30)).tolist()
        assert repeats_itself(token_ids) == brute_force_repeats(token_ids)


def test_repeating_rows_are_counted_by_temperature():
    rows = [
        TapeRow(prompt=PROMPTS[0], sampling=Sampling(temperature=temperature), token_ids=token_ids)
        for temperature, token_ids in [(0.0, [1] * 9), (0.0, [1] * 9), (0.0, [1]), (0.7, [2] * 3), (1.0, [3] * 20)]
    ]
    assert repeating_rows(tape_table(rows)) == {"0": 2, "0.7": 0, "1": 1}


def test_continuations_and_table_hold_the_rows_in_order(tape):
    table = tape_table(tape)
    seen = continuations(table, SAMPLINGS)
    assert table["continuation"].tolist() == list(range(len(tape)))
    for row, one, (_, record_) in zip(tape, seen, table.iterrows(), strict=True):
        assert (one.prompt_id, one.prompt_token_ids) == (row.prompt.id, row.prompt.token_ids)
        assert (one.token_ids, one.sampling) == (row.token_ids, row.sampling)
        assert (record_["prompt_id"], record_["category"]) == (row.prompt.id, row.prompt.category)
        assert (record_["temperature"], record_["end"]) == (row.sampling.temperature, row.end)
        assert list(record_["token_ids"]) == row.token_ids
        np.testing.assert_allclose(record_["logprobs"], row.logprobs, rtol=1e-6)


def test_recording_leaves_the_network_as_it_was(model):
    before = {name: weight.clone() for name, weight in model.network.state_dict().items()}
    record(model, PROMPTS[:1], tokens=2)
    assert all(torch.equal(weight, before[name]) for name, weight in model.network.state_dict().items())
