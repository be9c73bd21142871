"""The decoder against enumerated laws, greedy references and replay."""

import dataclasses
import hashlib
import time

import numpy as np
import pytest
import torch
from scipy import stats

from spectune.choice import chain
from spectune.decoding import decode, verify
from spectune.decoding.decode import Decoded, speculative_decode
from spectune.decoding.verify import acceptance_probability, residual_distribution
from spectune.drafting import Continuation, Drafter, Scored
from spectune.drafting.draft_model import DraftModel
from spectune.drafting.ngram import NgramDrafter
from spectune.errors import ConfigError
from spectune.measure import SilentProgress
from spectune.measure.recording import record_tape
from spectune.measure.tape import TapePrompt, TapeRow, continuations, tape_table
from spectune.models.loading import LanguageModel
from spectune.models.sampling import Sampling
from spectune.models.scoring import ModelScorer, ModelSequence
from spectune.replay import Replay, accept_probabilities_rejection, replay, shifted
from tests.toys import (
    ARCHITECTURES,
    SLIDING_WINDOW,
    VOCAB,
    TableScorer,
    divergences,
    followers,
    full_logits,
    g_test,
    greedy_reference,
    joint_law,
    random_prompts,
    random_table,
    repetitive_model,
    sampling_floor,
    speculative_counts,
    tiny_pair,
    transformed_law,
)

# --- table-driven models: the output has the target's law -----------------------------------------------------------

TARGET_TABLE = random_table(16, vocab=3, order=2, scale=1.8)
TARGET = TableScorer(TARGET_TABLE)
DRAFTS = {
    "draft": DraftModel(TableScorer(random_table(36, vocab=3, order=1, scale=1.8))),
    "draft of two tokens' context": DraftModel(TableScorer(0.7 * TARGET_TABLE + random_table(13, 3, 2, scale=0.6))),
    "n-gram": NgramDrafter(min_tokens=1, max_tokens=2),
}
PROMPT = [0, 1, 2, 0, 1]


def table_joint(tokens: int, **options) -> np.ndarray:
    def next_law(token_ids: list[int]) -> np.ndarray:
        return transformed_law(TARGET_TABLE[token_ids[-2], token_ids[-1]], **options)

    return joint_law(next_law, PROMPT, tokens)


def assert_same_law(counts: np.ndarray, law: np.ndarray, laws: int = 1) -> None:
    """G-test, KL and total variation, with enough samples for plain sampling to be well inside the bounds.

    `law` may be several, each weighted as it was drawn from.
    """
    kl, variation = divergences(counts, law)
    kl_floor, variation_floor = sampling_floor(law, int(counts.sum()))
    p_value = g_test(counts, law, laws)
    print(
        f"\n{int(counts.sum())} samples, {int((law > 0).sum())} outcomes: p {p_value:.3f}, "
        f"KL {kl:.5f} (plain sampling {kl_floor:.5f}), TV {variation:.4f} (plain sampling {variation_floor:.4f})"
    )
    assert max(kl_floor, variation_floor) < 0.005
    assert p_value > 0.001
    assert kl < 0.01
    assert variation < 0.01


@pytest.mark.parametrize(("draft", "options"), [
    ("draft", {"temperature": 0.7}), ("n-gram", {"temperature": 0.7, "top_p": 0.9})
])  # fmt: skip
def test_the_first_token_has_the_law_of_the_target(draft, options):
    counts = speculative_counts(TARGET, DRAFTS[draft], PROMPT, 1, 10_000, (3,), **options)
    assert_same_law(counts, table_joint(1, **options))


@pytest.mark.parametrize(
    ("draft", "K", "options"),
    [
        ("draft", 1, {"temperature": 0.7}),
        ("draft of two tokens' context", 3, {"temperature": 1.0, "top_k": 2}),
        ("n-gram", 3, {"temperature": 0.7, "top_p": 0.9}),
    ],
)
def test_what_follows_a_token_has_the_law_of_the_target(draft, K, options):
    """Along whole texts: at any place of a round, behind whatever was accepted or not."""
    table = random_table(5, vocab=3, order=1, scale=1.8)
    counts = followers(TableScorer(table), DRAFTS[draft], PROMPT, K, 180, 100, **options)
    laws, drawn = np.array([transformed_law(row, **options) for row in table]), counts.sum(-1, keepdims=True)
    assert_same_law(counts, laws * drawn / drawn.sum(), laws=len(laws))


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize(
    ("K", "options"),
    [
        (0, {"temperature": 1.0}),
        (1, {"temperature": 1.0}),
        (3, {"temperature": 1.0}),
        (1, {"temperature": 0.7}),
        (3, {"temperature": 0.7}),
        (1, {"temperature": 1.0, "top_p": 0.8}),
        (1, {"temperature": 1.0, "top_k": 2}),
        (3, {"temperature": 1.0, "top_k": 2, "top_p": 0.9}),
    ],
)
def test_three_tokens_have_the_joint_law_of_the_target(draft, K, options):
    """Three tokens at K = 1 span two rounds, whatever is accepted."""
    counts = speculative_counts(TARGET, DRAFTS[draft], PROMPT, K, 500, (3, 3, 3), **options)
    assert g_test(counts, table_joint(3, **options)) > 0.001


def accept_with_the_ratio_upside_down(target_probs, draft_probs):
    return acceptance_probability(draft_probs, target_probs)


def always_accept(target_probs, draft_probs):
    return torch.ones_like(target_probs)


def target_instead_of_residual(target_probs, draft_probs):
    return target_probs


def residual_the_other_way_round(target_probs, draft_probs):
    return residual_distribution(draft_probs, target_probs)


def bonus_by_argmax(draft_token_ids, draft_probs, target_probs, uniforms):
    spoilt = target_probs.clone()
    spoilt[-1] = torch.nn.functional.one_hot(target_probs[-1].argmax(), target_probs.shape[-1])
    return verify.verify_chain(draft_token_ids, draft_probs, spoilt, uniforms)


def bonus_from_the_draft(draft_token_ids, draft_probs, target_probs, uniforms):
    spoilt = torch.cat([target_probs[:-1], draft_probs[-1:]])
    return verify.verify_chain(draft_token_ids, draft_probs, spoilt, uniforms)


def bonus_from_the_law_before_it(draft_token_ids, draft_probs, target_probs, uniforms):
    last = target_probs[[*range(len(draft_token_ids)), len(draft_token_ids) - 1]]
    return verify.verify_chain(draft_token_ids, draft_probs, last, uniforms)


@pytest.mark.parametrize(
    ("module", "name", "mutant"),
    [
        (verify, "acceptance_probability", accept_with_the_ratio_upside_down),
        (verify, "acceptance_probability", always_accept),
        (verify, "residual_distribution", target_instead_of_residual),
        (verify, "residual_distribution", residual_the_other_way_round),
        (decode, "verify_chain", bonus_by_argmax),
        (decode, "verify_chain", bonus_from_the_draft),
        (decode, "verify_chain", bonus_from_the_law_before_it),
    ],
)
def test_wrong_rules_are_caught_by_the_same_comparison(monkeypatch, module, name, mutant):
    monkeypatch.setattr(module, name, mutant)
    wrong = speculative_counts(TARGET, DRAFTS["draft"], PROMPT, 1, 1_000, (3, 3), temperature=1.0)
    assert g_test(wrong, table_joint(2, temperature=1.0)) < 1e-6


def test_the_right_rule_passes_that_comparison():
    right = speculative_counts(TARGET, DRAFTS["draft"], PROMPT, 1, 1_000, (3, 3), temperature=1.0)
    assert g_test(right, table_joint(2, temperature=1.0)) > 0.001


# --- limits, ends and refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_decoding_stops_at_the_first_end_of_sequence_token(draft, temperature):
    for seed in range(20):
        for K in (0, 1, 4):
            free = speculative_decode(TARGET, DRAFTS[draft], PROMPT, K, temperature, max_new_tokens=12, seed=seed)
            ended = speculative_decode(
                TARGET, DRAFTS[draft], PROMPT, K, temperature, max_new_tokens=12, seed=seed, eos_token_ids={2}
            )
            stop = free.token_ids.index(2) + 1 if 2 in free.token_ids else 12
            assert ended.token_ids == free.token_ids[:stop]
            assert ended.ended == (2 in free.token_ids)
            assert not free.ended


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_no_more_than_the_limit_is_kept_and_rounds_account_for_every_token(limit):
    for draft in DRAFTS.values():
        for K in (0, 1, 5):
            decoded = speculative_decode(TARGET, draft, PROMPT, K, 1.0, max_new_tokens=limit, seed=limit)
            emitted = [token_id for one in decoded.rounds for token_id in one.token_ids]
            assert len(decoded.token_ids) == limit
            assert emitted[:limit] == decoded.token_ids
            assert [one.start for one in decoded.rounds] == [
                sum(len(earlier.token_ids) for earlier in decoded.rounds[:place])
                for place in range(len(decoded.rounds))
            ]
            assert all(len(one.token_ids) == one.accepted + 1 for one in decoded.rounds)
            assert all(0 <= one.accepted <= one.proposed <= K for one in decoded.rounds)
            assert decoded.rounds[-1].start < limit


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others():
    runs = [
        speculative_decode(TARGET, DRAFTS["draft"], PROMPT, 3, 1.0, max_new_tokens=30, seed=seed) for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1]
    assert runs[0].token_ids != runs[2].token_ids


def test_a_draft_equal_to_the_target_is_always_accepted():
    for temperature in (0.0, 1.0):
        decoded = speculative_decode(TARGET, DraftModel(TARGET), PROMPT, 4, temperature, max_new_tokens=40)
        assert all(one.accepted == one.proposed == 4 for one in decoded.rounds)


def test_a_draft_model_forgets_whatever_the_sequence_does_not_share():
    """Also where the sequence was rewritten far behind the last proposals."""
    scorer = TableScorer(random_table(14, vocab=8, order=2))
    drafting, greedy = DraftModel(scorer).open(np.random.default_rng(0)), Sampling(temperature=0.0)
    for token_ids in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7], [1, 7, 3], [1, 7, 3], [2], [2, 0, 0, 5]):
        fresh = DraftModel(scorer).open(np.random.default_rng(0)).propose(token_ids, chain(4), greedy)
        again = drafting.propose(token_ids, chain(4), greedy)
        assert again.draft_token_ids.tolist() == fresh.draft_token_ids.tolist()
        assert drafting._sequence.token_ids[: len(token_ids)] == token_ids


def test_the_prompt_is_left_as_it_was():
    prompt = [0, 1]
    speculative_decode(TARGET, DRAFTS["draft"], prompt, 2, 1.0, max_new_tokens=5)
    assert prompt == [0, 1]


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"prompt": []}, "prompt"),
        ({"K": -1}, "K is -1"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -3}, "top_k"),
    ],
)
def test_values_out_of_range_are_refused(changed, word):
    arguments = {"prompt": PROMPT, "K": 2, "temperature": 1.0, **changed}
    with pytest.raises(ConfigError, match=word):
        speculative_decode(TARGET, DRAFTS["draft"], **arguments)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_non_finite_logits_of_the_target_are_refused(temperature):
    table = TARGET_TABLE.copy()
    table[:, 2, 1] = np.nan
    with pytest.raises(ConfigError, match="non-finite"):
        speculative_decode(TableScorer(table), DRAFTS["draft"], [0, 2], 2, temperature)


# --- tiny networks --------------------------------------------------------------------------------------------------

NEW_TOKENS = 26
TINY_PROMPTS = [random_prompts(1, length, seed=length)[0] for length in (1, 2 * SLIDING_WINDOW + 1)]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def pair(request) -> tuple[LanguageModel, LanguageModel]:
    return tiny_pair(request.param)


def test_greedy_output_equals_plain_decoding_without_a_cache(pair):
    target, draft = pair
    proposed, accepted = {}, {}
    for prompt in TINY_PROMPTS:
        expected = greedy_reference(target, prompt, NEW_TOKENS)
        assert len(set(expected)) > 3
        for name, drafter in {"draft": DraftModel(draft), "n-gram": NgramDrafter(max_tokens=3)}.items():
            for K in (0, 1, 3, 5):
                decoded = speculative_decode(ModelScorer(target), drafter, prompt, K, 0.0, max_new_tokens=NEW_TOKENS)
                assert decoded.token_ids == expected
                proposed[name] = proposed.get(name, 0) + sum(one.proposed for one in decoded.rounds)
                accepted[name] = accepted.get(name, 0) + sum(one.accepted for one in decoded.rounds)
    for name in proposed:
        assert 0 < accepted[name] < proposed[name]


def test_extending_and_cropping_gives_the_logits_of_a_fresh_forward(pair):
    target, _ = pair
    tokens = random_prompts(6, 90, seed=4)
    sequence, held = ModelSequence(target), []
    steps = [(0, 1), (1, 20), (13, 5), (18, 1), (12, 80), (70, 3), (0, 2 * SLIDING_WINDOW), (3, 0), (3, 30)]
    for place, (length, count) in enumerate(steps):
        sequence.keep(length)
        del held[length:]
        if not count:
            continue
        new = tokens[place % 6][:count]
        logits = sequence.extend(torch.tensor(new)).logits
        held += new
        torch.testing.assert_close(logits, full_logits(target, held)[-count:], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("architecture", "samples"),
    [("gpt2", 500), ("llama", 400), ("qwen3", 400), ("gemma", 400), ("gemma3-sliding", 250)],
)
def test_sampled_tokens_of_networks_have_the_law_of_full_forwards(architecture, samples):
    target, draft = tiny_pair(architecture)
    prompt, options = random_prompts(1, SLIDING_WINDOW + 2, seed=9)[0], {"temperature": 1.0, "top_k": 4}

    def next_law(token_ids: list[int]) -> np.ndarray:
        return transformed_law(full_logits(target, token_ids)[-1].double().numpy(), **options)

    law = joint_law(next_law, prompt, 2)
    counts = speculative_counts(ModelScorer(target), DraftModel(draft), prompt, 1, samples, (VOCAB, VOCAB), **options)
    assert (law > 0).sum() == 16
    assert g_test(counts, law) > 0.001


# --- replay is real -------------------------------------------------------------------------------------------------

MAX_K = 4


def decoded_rounds(target, drafter, prompt, K, temperature, tokens, seed=0) -> Decoded:
    return speculative_decode(ModelScorer(target), drafter, prompt, K, temperature, max_new_tokens=tokens, seed=seed)


def evidence_columns(drafter: Drafter, rows: list[Continuation], max_k: int) -> dict[str, np.ndarray]:
    """Evidence of continuations of one length, each field as [T, rows]."""
    unread = [Scored(logprobs=None)] * len(rows)
    found = [dataclasses.asdict(one) for one in drafter.evidence(rows, unread, chain(max_k))]
    return {name: np.stack([one[name] for one in found], 1) for name, first in found[0].items() if first is not None}


def ngram_accepts(evidence: dict[str, np.ndarray], max_k: int) -> np.ndarray:  # [T, max_k, rows]
    return (np.arange(max_k)[None, :, None] < evidence["matched_tokens"][:, None, :]).astype(float)


def greedy_replay(drafter: Drafter, rows: list[Continuation], shift: int = 0) -> Replay:
    """Replay at T = 0; `shift` misplaces the evidence, to see that it matters."""
    tokens = np.stack([row.token_ids for row in rows], 1)
    evidence = evidence_columns(drafter, rows, MAX_K)
    if isinstance(drafter, NgramDrafter):
        accept, made = ngram_accepts(evidence, MAX_K), evidence["proposed_tokens"].astype(int)
    else:
        accept, made = shifted(evidence["argmax_hits"].astype(float), MAX_K), None
    return replay(np.roll(accept, -shift, axis=0), np.full(len(rows), len(tokens)), made)


@pytest.mark.parametrize("architecture", ["gpt2", "gemma3-sliding"])
@pytest.mark.parametrize("method", ["draft model", "n-gram"])
def test_greedy_rounds_start_exactly_where_replay_says(architecture, method):
    target, draft = tiny_pair(architecture, noise=0.15)
    drafter = DraftModel(draft) if method == "draft model" else NgramDrafter(max_tokens=3)
    rows = []
    for prompt in random_prompts(4, SLIDING_WINDOW + 4, seed=21):
        plain = decoded_rounds(target, drafter, prompt, 0, 0.0, 40).token_ids
        rows.append(
            Continuation(prompt_id="", prompt_token_ids=prompt, token_ids=plain, sampling=Sampling(temperature=0.0))
        )
    replayed, misplaced = greedy_replay(drafter, rows), greedy_replay(drafter, rows, shift=1)
    agreements = []
    for place, row in enumerate(rows):
        for K in (1, 2, 4):
            decoded = decoded_rounds(target, drafter, row.prompt_token_ids, K, 0.0, 40)
            starts = [one.start for one in decoded.rounds]
            assert starts == np.flatnonzero(replayed.starts[K - 1, :, place]).tolist()
            assert set(replayed.starts[K - 1, :, place]) <= {0.0, 1.0}
            for one, emitted in zip(decoded.rounds, np.diff([*starts, 0])[:-1], strict=False):
                assert one.accepted + 1 == emitted
            agreements.append(starts == np.flatnonzero(misplaced.starts[K - 1, :, place]).tolist())
            assert len(starts) < 40
    assert not all(agreements)


def compared(counted: np.ndarray, replayed: np.ndarray) -> tuple[float, float]:
    """log of one τ over the other and its 95% half-width; both are [2, prompts], tokens over rounds.

    Jackknife over prompts of the paired difference, since both ran on the same prompts.
    """
    count = counted.shape[1]

    def log_length(sums: np.ndarray) -> np.ndarray:
        return np.log(sums[0] / sums[1])

    sums = counted.sum(1, keepdims=True), replayed.sum(1, keepdims=True)
    difference = float((log_length(sums[0]) - log_length(sums[1]))[0])
    left_out = log_length(sums[0] - counted) - log_length(sums[1] - replayed)
    error = np.sqrt((count - 1) / count * np.sum((left_out - left_out.mean()) ** 2))
    return difference, float(stats.t.ppf(0.975, count - 1) * error)


def sampled_tape(target: LanguageModel, prompts: list[list[int]], temperature: float, tokens: int) -> list[TapeRow]:
    asked = [
        TapePrompt(id=hashlib.sha256(str(prompt).encode()).hexdigest(), category="tiny", token_ids=prompt)
        for prompt in prompts
    ]
    return record_tape(target, asked, [Sampling(temperature=temperature)], tokens, 0, SilentProgress())


def counted_lengths(target, drafter, prompts, temperature, tokens) -> np.ndarray:  # [2, prompts]
    """Tokens and rounds of complete rounds, counted in real speculative runs."""
    found = []
    for seed, prompt in enumerate(prompts):
        rounds = decoded_rounds(target, drafter, prompt, MAX_K, temperature, tokens, seed=seed).rounds
        lengths = [one.accepted + 1 for one in rounds if one.start < tokens - MAX_K]
        found.append((sum(lengths), len(lengths)))
    return np.array(found, dtype=float).T


def totals(counts: Replay) -> np.ndarray:  # [2, prompts]
    return np.stack([counts.emitted[MAX_K - 1], counts.rounds[MAX_K - 1]])


def without_bonus(counts: Replay, accept: np.ndarray, made: np.ndarray) -> np.ndarray:  # [2, prompts]
    """As if a round whose proposals were all accepted emitted nothing after them."""
    through = np.cumprod(accept, axis=1)
    last = np.minimum(made, MAX_K)
    complete = np.take_along_axis(through, np.maximum(last - 1, 0)[:, None], axis=1)[:, 0] * (last > 0)
    dropped = (counts.starts[MAX_K - 1] * complete).sum(0)
    return np.stack([counts.emitted[MAX_K - 1] - dropped, counts.rounds[MAX_K - 1]])


def assert_only_the_right_replay_agrees(name, counted, right, mutants, began) -> None:
    difference, half_width = compared(counted, right)
    print(
        f"\n{name}: counted τ {counted[0].sum() / counted[1].sum():.3f} over {counted[1].sum():.0f} rounds of "
        f"{counted.shape[1]} prompts, replayed {right[0].sum() / right[1].sum():.3f}; "
        f"difference {difference:+.2%} ± {half_width:.2%}; {time.perf_counter() - began:.0f} s"
    )
    wrong = {mutant: compared(counted, found) for mutant, found in mutants.items()}
    for mutant, (gap, width) in wrong.items():
        print(f"  {mutant}: {gap:+.1%} ± {width:.1%}")
    assert half_width < 0.03
    assert abs(difference) < half_width
    for gap, width in wrong.values():
        assert abs(gap) > width


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_counted_acceptance_length_of_a_draft_model_is_the_replayed_one(temperature):
    began = time.perf_counter()
    target, draft = tiny_pair("gpt2", noise=0.12)
    prompts, tokens = random_prompts(56, 6, seed=31), 120
    drafter = DraftModel(draft)
    rows = sampled_tape(target, prompts, temperature, tokens)
    target_logprobs = np.stack([row.logprobs for row in rows], 1)
    draft_logprobs = evidence_columns(drafter, continuations(tape_table(rows), [rows[0].sampling]), MAX_K)[
        "draft_logprobs"
    ]
    counted_starts = np.full(len(rows), tokens - MAX_K)

    def accepts(ours: np.ndarray) -> np.ndarray:
        return shifted(accept_probabilities_rejection(target_logprobs, ours), MAX_K)

    right = replay(accepts(draft_logprobs), counted_starts)
    mutants = {
        "draft evidence one position off": totals(replay(accepts(np.roll(draft_logprobs, -1, axis=0)), counted_starts)),
        "no bonus": without_bonus(right, accepts(draft_logprobs), np.full_like(draft_logprobs, MAX_K, dtype=int)),
    }
    counted = counted_lengths(target, drafter, prompts, temperature, tokens)
    assert_only_the_right_replay_agrees(f"draft model, T {temperature}", counted, totals(right), mutants, began)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_counted_acceptance_length_of_ngram_is_the_replayed_one(temperature):
    began = time.perf_counter()
    target = repetitive_model()
    prompts, tokens = random_prompts(80, 6, seed=32), 120
    drafter = NgramDrafter(max_tokens=3)
    rows = sampled_tape(target, prompts, temperature, tokens)
    evidence = evidence_columns(drafter, continuations(tape_table(rows), [rows[0].sampling]), MAX_K)
    accept, made = ngram_accepts(evidence, MAX_K), evidence["proposed_tokens"].astype(int)
    counted_starts = np.full(len(rows), tokens - MAX_K)
    right = replay(accept, counted_starts, made)
    one_off = replay(np.roll(accept, -1, axis=1), counted_starts, made)
    window = evidence["matched_tokens"][: tokens - MAX_K]
    uniform = np.stack([(1 + window).sum(0), np.full(len(rows), len(window))]).astype(float)
    mutants = {
        "offset of a proposal one off": totals(one_off),
        "no bonus": without_bonus(right, accept, made),
        "uniform": uniform,
    }
    counted = counted_lengths(target, drafter, prompts, temperature, tokens)
    assert_only_the_right_replay_agrees(f"n-gram, T {temperature}", counted, totals(right), mutants, began)
