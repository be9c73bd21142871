"""Replay of plain target samples against literal speculative decoding on toy Markov models.

A simulated round really drafts, really accepts or rejects and really samples its recovered or bonus token. It
shares nothing with the package: replay sees only text sampled from the target, from another random stream.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectune.replay import (
    accept_probabilities_block,
    accept_probabilities_exact_match,
    accept_probabilities_rejection,
    accept_probabilities_top_ranks,
    accept_probability_sampled_siblings,
    matched_in_tree,
    replay,
    shifted,
)
from spectune.tree import TokenTree, chain_tree, full_tree

MAX_K = 4
COUNTED = 20  # rounds that start at positions 0..19 are counted, in the simulation as in the replay
LENGTH = COUNTED + MAX_K
ROWS = 5000
TOLERANCE = 3.5  # combined standard errors

Play = Callable[[np.random.Generator, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""(random, lanes, previous tokens) -> (tokens [lanes, K + 1], accepted, proposed)."""


@dataclass
class Model:
    """p[previous] and q[previous]: next-token laws of the target and the draft."""

    p: np.ndarray
    q: np.ndarray

    @property
    def vocabulary(self):
        return len(self.p)

    @property
    def ranks(self):
        """ranks[previous, token]: 1 is the draft's likeliest."""
        return np.argsort(np.argsort(-self.q, axis=-1), axis=-1) + 1


def markov(seed, vocabulary=5, agreement=0.55):
    """Contexts differ in how well the draft knows them, so that round starts matter."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(vocabulary, 0.6), size=vocabulary) * 0.97 + 0.03 / vocabulary
    noise = rng.dirichlet(np.full(vocabulary, 0.6), size=vocabulary)
    share = np.clip(agreement + np.linspace(-0.45, 0.4, vocabulary), 0.05, 0.97)[:, None]
    return Model(p=p, q=share * p + (1 - share) * (0.97 * noise + 0.03 / vocabulary))


# ---------------------------------------------------------------- plain sampling: the tape


def sample(rng, law):
    """One token for each law; a token of probability zero never comes."""
    edges = law.cumsum(-1)
    edges /= edges[..., -1:]
    return (rng.random((*law.shape[:-1], 1)) >= edges).sum(-1)


def tape(rng, p, first=None):
    """Plain samples: tokens [LENGTH, rows] and the token before each; `first` comes before the text."""
    previous = rng.integers(len(p), size=ROWS) if first is None else first
    contexts, tokens = np.zeros((2, LENGTH, len(previous)), dtype=np.int64)
    for t in range(LENGTH):
        contexts[t] = previous
        tokens[t] = previous = sample(rng, p[previous])
    return contexts, tokens


# ---------------------------------------------------------------- literal speculative decoding


@dataclass
class Counted:
    text: np.ndarray  # [rows, ...] complete up to COUNTED
    rounds: np.ndarray  # [rows], as are the other counts
    accepted: np.ndarray  # [rows, K]
    reached: np.ndarray  # [rows, K]
    by_length: np.ndarray  # [rows, K + 1]

    @property
    def emitted(self):
        return self.rounds + self.accepted.sum(1)


def speculate(rng, play: Play, k, first, counted=COUNTED, first_start=0, eos=None) -> Counted:
    """Rounds of every lane until it holds `counted` tokens, or its eos token; `first` precedes the text."""
    rows = len(first)
    lane_text = np.full((rows, counted + k + 1), -1)
    at = np.full(rows, first_start)
    previous = first.copy()
    if first_start:
        lane_text[:, 0] = first
    out = Counted(lane_text, np.zeros(rows), np.zeros((rows, k)), np.zeros((rows, k)), np.zeros((rows, k + 1)))
    ended = np.zeros(rows, dtype=bool) if eos is None or not first_start else first == eos
    while len(lanes := np.flatnonzero((at < counted) & ~ended)):
        tokens, accepted, proposed = play(rng, lanes, previous[lanes])
        for j in range(k + 1):
            kept = accepted >= j
            lane_text[lanes[kept], at[lanes[kept]] + j] = tokens[kept, j]
            if eos is not None:
                ended[lanes[kept]] |= tokens[kept, j] == eos
        for j in range(k):
            out.reached[lanes, j] += (proposed > j) & (accepted >= j)
            out.accepted[lanes, j] += accepted > j
        out.rounds[lanes] += 1
        out.by_length[lanes, proposed] += 1
        previous[lanes] = tokens[np.arange(len(lanes)), accepted]
        at[lanes] += accepted + 1
    return out


def draft_chain(previous, k, next_token):
    """Contexts [lanes, k + 1] and proposals [lanes, k]."""
    contexts = [previous]
    for _ in range(k):
        contexts.append(next_token(contexts[-1]))
    return np.stack(contexts, 1), np.stack(contexts[1:], 1)


def until_rejection(accept):
    return np.cumprod(accept, axis=1).sum(1)


def closed_by(proposals, accepted, last):
    """Tokens of a round: the accepted proposals, then `last`."""
    tokens = np.concatenate([proposals, np.zeros((len(proposals), 1), dtype=np.int64)], axis=1)
    tokens[np.arange(len(tokens)), accepted] = last
    return tokens


def play_rejection(model, k, lengths=None) -> Play:
    """Sampled draft, accept where r < p/q; lengths[previous] proposals, k where not given."""

    def play(rng, lanes, previous):
        each = np.arange(len(lanes))
        contexts, proposals = draft_chain(previous, k, lambda context: sample(rng, model.q[context]))
        proposed = np.full(len(lanes), k) if lengths is None else np.minimum(lengths[previous], k)
        ratio = model.p[contexts[:, :k], proposals] / model.q[contexts[:, :k], proposals]
        accept = rng.random(ratio.shape) < ratio
        accepted = np.minimum(until_rejection(accept), proposed)
        stop = contexts[each, accepted]
        bonus = (accepted == proposed)[:, None]
        law = np.where(bonus, model.p[stop], np.maximum(model.p[stop] - model.q[stop], 0.0))
        return closed_by(proposals, accepted, sample(rng, law)), accepted, proposed

    return play


def play_greedy_draft(model, k) -> Play:
    """The draft's argmax, accepted where r < p; a rejected proposal is struck from p."""

    def play(rng, lanes, previous):
        each = np.arange(len(lanes))
        contexts, proposals = draft_chain(previous, k, lambda context: model.q[context].argmax(-1))
        accepted = until_rejection(rng.random((len(lanes), k)) < model.p[contexts[:, :k], proposals])
        law = model.p[contexts[each, accepted]].copy()
        rejected = np.flatnonzero(accepted < k)
        law[rejected, proposals[rejected, accepted[rejected]]] = 0.0
        return closed_by(proposals, accepted, sample(rng, law)), accepted, np.full(len(lanes), k)

    return play


def play_exact_match(model, k) -> Play:
    """Draft and target both sample; the target's tokens stand, up to and with the first that differs."""

    def play(rng, lanes, previous):
        contexts, proposals = draft_chain(previous, k, lambda context: sample(rng, model.q[context]))
        own = sample(rng, model.p[contexts])
        return own, until_rejection(own[:, :k] == proposals), np.full(len(lanes), k)

    return play


def play_block(model, k) -> Play:
    """Algorithm 2 of arXiv 2403.10444."""

    def play(rng, lanes, previous):
        each = np.arange(len(lanes))
        contexts, proposals = draft_chain(previous, k, lambda context: sample(rng, model.q[context]))
        joint = np.ones((len(lanes), k + 1))
        accepted = np.zeros(len(lanes), dtype=np.int64)
        for i in range(1, k + 1):
            before, token = contexts[:, i - 1], proposals[:, i - 1]
            joint[:, i] = np.minimum(1.0, joint[:, i - 1] * model.p[before, token] / model.q[before, token])
            threshold = joint[:, i]
            if i < k:
                after = contexts[:, i]
                left = np.maximum(joint[:, i, None] * model.p[after] - model.q[after], 0.0).sum(1)
                threshold = left / (left + 1.0 - joint[:, i])
            accepted[rng.random(len(lanes)) <= threshold] = i  # the last one counts, not the first failure
        stop = contexts[each, accepted]
        residual = np.maximum(joint[each, accepted, None] * model.p[stop] - model.q[stop], 0.0)
        law = np.where((accepted == k)[:, None], model.p[stop], residual)
        return closed_by(proposals, accepted, sample(rng, law)), accepted, np.full(len(lanes), k)

    return play


def play_top_children(model, k, width) -> Play:
    """Every node has the draft's `width` likeliest tokens as children; the target's own sample walks down."""

    def play(rng, lanes, previous):
        children = np.argsort(-model.q, axis=-1)[:, :width]
        tokens = np.zeros((len(lanes), k + 1), dtype=np.int64)
        accepted = np.zeros(len(lanes), dtype=np.int64)
        inside = np.ones(len(lanes), dtype=bool)
        context = previous
        for depth in range(k + 1):
            token = sample(rng, model.p[context])
            tokens[:, depth] = token
            inside &= (children[context] == token[:, None]).any(1) & (depth < k)
            accepted += inside
            context = token
        return tokens, accepted, np.full(len(lanes), k)

    return play


def play_sampled_siblings(model, k, siblings) -> Play:
    """A tree drawn in full, `siblings` i.i.d. children to each node, verified by recursive rejection."""

    def play(rng, lanes, previous):
        each = np.arange(len(lanes))
        levels = [previous[:, None]]
        for _ in range(k):
            parents = np.repeat(levels[-1], siblings, axis=1)
            levels.append(sample(rng, model.q[parents]))
        node = np.zeros(len(lanes), dtype=np.int64)
        tokens = np.zeros((len(lanes), k + 1), dtype=np.int64)
        accepted = np.zeros(len(lanes), dtype=np.int64)
        inside = np.ones(len(lanes), dtype=bool)
        for depth in range(k):
            context = levels[depth][each, node]
            law, found, draft = model.p[context].copy(), np.zeros(len(lanes), dtype=bool), model.q[context]
            eldest = node * siblings
            for i in range(siblings):
                child = eldest + i
                token = levels[depth + 1][each, child]
                take = ~found & (rng.random(len(lanes)) < law[each, token] / draft[each, token])
                tokens[inside & take, depth] = token[inside & take]
                node[inside & take] = child[inside & take]
                found |= take
                left = np.maximum(law - draft, 0.0)
                law = np.where(found[:, None], law, left / left.sum(1, keepdims=True))
            fell_out = inside & ~found
            tokens[fell_out, depth] = sample(rng, law[fell_out])
            inside &= found
            accepted += inside
        tokens[inside, k] = sample(rng, model.p[levels[k][each, node][inside]])
        return tokens, accepted, np.full(len(lanes), k)

    return play


# ---------------------------------------------------------------- comparison


def ratio(numerator, denominator):
    """Σ numerator / Σ denominator over rows, with its standard error."""
    estimate = numerator.sum() / denominator.sum()
    residual = numerator - estimate * denominator
    return estimate, residual.std(ddof=1) / denominator.mean() / np.sqrt(len(residual))


def errors_apart(one, other):
    """Difference in combined standard errors; equal counts that do not vary agree."""
    if one[0] == other[0]:
        return 0.0
    return (one[0] - other[0]) / np.hypot(one[1], other[1])


def assert_agree(simulated, replayed, precision=0.01):
    assert abs(errors_apart(simulated, replayed)) < TOLERANCE, (simulated, replayed)
    for estimate, error in (simulated, replayed):
        assert error < precision * estimate


def acceptance_length(counts, k):
    return ratio(counts.emitted[k - 1], counts.rounds[k - 1])


def first_tokens(rng, model):
    return rng.integers(model.vocabulary, size=ROWS)


def assert_pair_law(simulated, first, p):
    """Every transition of the emitted text, within 4.5 standard errors of the target's."""
    text = np.concatenate([first[:, None], simulated.text[:, :COUNTED]], axis=1)
    pairs = np.zeros(p.shape)
    np.add.at(pairs, (text[:, :-1].ravel(), text[:, 1:].ravel()), 1)
    seen = pairs.sum(1, keepdims=True)
    assert (np.abs(pairs - seen * p) < 4.5 * np.sqrt(seen * p * (1 - p)) + 1e-9).all()


def simulated_and_replayed(play, model, k, accept_of, seed):
    """(Counted, Replay) of one rule, from random streams of their own."""
    simulation, plain = np.random.default_rng([seed, k, 0]), np.random.default_rng([seed, 1])
    first = first_tokens(simulation, model)
    simulated = speculate(simulation, play, k, first)
    assert_pair_law(simulated, first, model.p)
    accept = accept_of(*tape(plain, model.p))
    return simulated, replay(accept, np.full(ROWS, COUNTED))


def per_position(function):
    return lambda contexts, tokens: shifted(function(contexts, tokens), MAX_K)


def rejection_of(model):
    log_p, log_q = np.log(model.p), np.log(model.q)
    return per_position(lambda c, x: accept_probabilities_rejection(log_p[c, x], log_q[c, x]))


def top_ranks_of(model, width):
    return per_position(lambda c, x: accept_probabilities_top_ranks(model.ranks[c, x], width))


def exact_match_of(model):
    log_q = np.log(model.q)
    return per_position(lambda c, x: accept_probabilities_exact_match(log_q[c, x]))


def block_of(model):
    log_p, log_q = np.log(model.p), np.log(model.q)
    return lambda c, x: accept_probabilities_block(log_p[c, x], log_q[c, x], MAX_K)


def siblings_of(model, siblings):
    tokens = range(model.vocabulary)
    table = np.array(
        [
            [accept_probability_sampled_siblings(model.p[c], model.q[c], x, siblings) for x in tokens]
            for c in range(model.vocabulary)
        ]
    )
    return per_position(lambda c, x: table[c, x])


RULES = {
    "rejection": (play_rejection, rejection_of),
    "greedy_draft": (play_greedy_draft, lambda model: top_ranks_of(model, 1)),
    "exact_match": (play_exact_match, exact_match_of),
    "exact_match_of_a_greedy_draft": (
        lambda model, k: play_top_children(model, k, 1),
        lambda model: top_ranks_of(model, 1),
    ),
    "block": (play_block, block_of),
    "tree_of_top_2": (lambda model, k: play_top_children(model, k, 2), lambda model: top_ranks_of(model, 2)),
    "tree_of_top_3": (lambda model, k: play_top_children(model, k, 3), lambda model: top_ranks_of(model, 3)),
    "two_sampled_siblings": (lambda model, k: play_sampled_siblings(model, k, 2), lambda model: siblings_of(model, 2)),
    "three_sampled_siblings": (
        lambda model, k: play_sampled_siblings(model, k, 3),
        lambda model: siblings_of(model, 3),
    ),
}


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("rule", RULES)
def test_replay_gives_the_acceptance_length_of_a_literal_simulation(rule, k):
    play_of, accept_of = RULES[rule]
    model = markov(seed=3)
    simulated, counts = simulated_and_replayed(play_of(model, k), model, k, accept_of(model), seed=11)
    assert_agree(ratio(simulated.emitted, simulated.rounds), acceptance_length(counts, k))
    one = np.ones(ROWS)
    assert_agree(ratio(simulated.rounds, one), ratio(counts.rounds[k - 1], one))
    for j in range(k):
        assert_agree(
            ratio(simulated.accepted[:, j], simulated.reached[:, j]),
            ratio(counts.accepted[k - 1, j], counts.reached[k - 1, j]),
            precision=0.1,
        )


@pytest.mark.parametrize(("seed", "vocabulary"), [(1, 3), (2, 4), (5, 6)])
@pytest.mark.parametrize("rule", ["rejection", "exact_match", "block", "two_sampled_siblings"])
def test_fractional_rules_hold_on_other_models(rule, seed, vocabulary):
    play_of, accept_of = RULES[rule]
    model = markov(seed, vocabulary, agreement=0.4)
    simulated, counts = simulated_and_replayed(play_of(model, 4), model, 4, accept_of(model), seed=12)
    assert_agree(ratio(simulated.emitted, simulated.rounds), acceptance_length(counts, 4))


def test_greedy_target_is_counted_round_by_round():
    """T = 0, each row with a model of its own: nothing is random, so every count is exact."""
    rng = np.random.default_rng(4)
    rows, vocabulary = 300, 6
    target = rng.integers(vocabulary, size=(rows, vocabulary))
    draft = np.where(rng.random((rows, vocabulary)) < 0.7, target, rng.integers(vocabulary, size=target.shape))
    first, each = rng.integers(vocabulary, size=rows), np.arange(rows)

    def play_of(k):
        def play(_, lanes, previous):
            contexts, proposals = draft_chain(previous, k, lambda context: draft[lanes, context])
            own = target[lanes[:, None], contexts]
            return own, until_rejection(own[:, :k] == proposals), np.full(len(lanes), k)

        return play

    match, previous = np.zeros((LENGTH, rows)), first
    for t in range(LENGTH):
        match[t] = draft[each, previous] == target[each, previous]
        previous = target[each, previous]
    counts = replay(shifted(match, MAX_K), np.full(rows, COUNTED))
    for k in (1, 2, 4):
        simulated = speculate(rng, play_of(k), k, first)
        np.testing.assert_array_equal(counts.rounds[k - 1], simulated.rounds)
        np.testing.assert_array_equal(counts.emitted[k - 1], simulated.emitted)
        np.testing.assert_array_equal(counts.accepted[k - 1, :k].T, simulated.accepted)
        np.testing.assert_array_equal(counts.reached[k - 1, :k].T, simulated.reached)


def test_a_sampled_draft_of_a_greedy_target_is_accepted_with_its_own_probability():
    model = markov(seed=3)
    rng = np.random.default_rng(21)
    rows, vocabulary = ROWS, model.vocabulary
    p = np.eye(vocabulary)[np.array([3, 0, 4, 1, 2])]  # one cycle through all contexts
    greedy = Model(p=p, q=model.q)
    first = rng.integers(vocabulary, size=rows)
    simulated = speculate(rng, play_rejection(greedy, 4), 4, first)
    contexts, tokens = tape(np.random.default_rng(22), p)
    accept = accept_probabilities_rejection(np.zeros(tokens.shape), np.log(model.q[contexts, tokens]))
    counts = replay(shifted(accept, MAX_K), np.full(rows, COUNTED))
    assert_agree(ratio(simulated.emitted, simulated.rounds), acceptance_length(counts, 4))


@pytest.mark.parametrize("k", [2, 4])
def test_block_verification_exceeds_rejection_in_simulation_and_replay(k):
    model = markov(seed=3)
    rejection = simulated_and_replayed(play_rejection(model, k), model, k, rejection_of(model), seed=13)
    block = simulated_and_replayed(play_block(model, k), model, k, block_of(model), seed=14)
    for gain in (
        errors_apart(ratio(block[0].emitted, block[0].rounds), ratio(rejection[0].emitted, rejection[0].rounds)),
        errors_apart(acceptance_length(block[1], k), acceptance_length(rejection[1], k)),
    ):
        assert gain > 5
    # the same text and the same first proposal: K = 1 has no block to look at
    contexts, tokens = tape(np.random.default_rng(15), model.p)
    np.testing.assert_allclose(
        block_of(model)(contexts, tokens)[:LENGTH, 0], rejection_of(model)(contexts, tokens)[:, 0], rtol=1e-12
    )


def test_block_verification_leaves_the_law_of_three_tokens_to_the_target():
    """Tokens of one block are accepted together, so pairs alone could hide a dependence."""
    model = markov(seed=3)
    rng = np.random.default_rng(16)
    rows = 60_000
    first = np.zeros(rows, dtype=np.int64)
    text = speculate(rng, play_block(model, 3), 3, first, counted=3).text[:, :3]
    seen = np.zeros((model.vocabulary,) * 3)
    np.add.at(seen, tuple(text.T), 1)
    law = model.p[0][:, None, None] * model.p[:, :, None] * model.p[None, :, :]
    assert (np.abs(seen - rows * law) < 4.5 * np.sqrt(rows * law * (1 - law))).all()


def test_impossible_draft_tokens_are_never_accepted():
    never = np.array([[-np.inf]])
    target = np.array([[-1.0]])
    assert accept_probabilities_rejection(target, never).item() == 0.0
    assert accept_probabilities_exact_match(never).item() == 0.0
    assert accept_probabilities_block(target, never, 2)[0, 0, 0] == 0.0


# ---------------------------------------------------------------- sampled siblings


def test_sampled_siblings_match_the_accepted_share_of_each_token():
    p, q = markov(seed=6, vocabulary=4).p[1], markov(seed=7, vocabulary=4).q[2]
    rng = np.random.default_rng(31)
    trials = 100_000
    for siblings in (1, 2, 4):
        law = np.broadcast_to(p, (trials, 4))
        out, found = np.full(trials, -1), np.zeros(trials, dtype=bool)
        for _ in range(siblings):
            token = sample(rng, np.broadcast_to(q, (trials, 4)))
            take = ~found & (rng.random(trials) < law[np.arange(trials), token] / q[token])
            out[take] = token[take]
            found |= take
            left = np.maximum(law - q, 0.0)
            law = np.where(found[:, None], law, left / left.sum(1, keepdims=True))
        out[~found] = sample(rng, law[~found])
        for x in range(4):
            expected = accept_probability_sampled_siblings(p, q, x, siblings)
            of_x = found[out == x]
            assert abs(of_x.mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / len(of_x)) + 1e-9


def test_one_sampled_sibling_is_the_rejection_rule():
    model = markov(seed=8)
    for c in range(model.vocabulary):
        for x in range(model.vocabulary):
            single = accept_probability_sampled_siblings(model.p[c], model.q[c], x, 1)
            assert single == pytest.approx(min(1.0, model.q[c, x] / model.p[c, x]), rel=1e-12)


def test_siblings_of_a_perfect_draft_are_always_accepted():
    law = np.array([0.2, 0.5, 0.3])
    assert accept_probability_sampled_siblings(law, law, 1, 3) == pytest.approx(1.0)


def test_the_rank_rule_errs_in_either_direction_for_sampled_siblings():
    def accepted_shares(p, q):
        siblings = [accept_probability_sampled_siblings(p, q, x, 2) for x in range(len(p))]
        ranks = np.argsort(np.argsort(-q)) + 1
        return p @ siblings, p @ accept_probabilities_top_ranks(ranks, 2)

    siblings, by_rank = accepted_shares(
        np.array([0.24, 0.22, 0.2, 0.18, 0.16]), np.array([0.24, 0.22, 0.2, 0.18, 0.16])
    )
    assert siblings == pytest.approx(1.0)
    assert by_rank == pytest.approx(0.46)
    siblings, by_rank = accepted_shares(np.array([0.9, 0.06, 0.04]), np.array([0.5, 0.3, 0.2]))
    # first sibling Σ min(p, q) = 0.6; the residual (1, 0, 0) then takes q's 0.5 of the other 0.4
    assert siblings == pytest.approx(0.8)
    assert by_rank == pytest.approx(0.96)


@pytest.mark.parametrize("other", ["single_draft", "rank"])
def test_rank_and_single_draft_rules_misprice_sampled_siblings(other):
    model, k = markov(seed=3), 4
    simulated, _ = simulated_and_replayed(play_sampled_siblings(model, k, 2), model, k, siblings_of(model, 2), seed=17)
    accept_of = rejection_of(model) if other == "single_draft" else top_ranks_of(model, 2)
    wrong = replay(accept_of(*tape(np.random.default_rng(18), model.p)), np.full(ROWS, COUNTED))
    apart = errors_apart(acceptance_length(wrong, k), ratio(simulated.emitted, simulated.rounds))
    assert abs(apart) > 2 * TOLERANCE
    if other == "single_draft":
        assert apart < 0


# ---------------------------------------------------------------- drafts of varying length


def assert_all_counts_agree(simulated, counts, k):
    one = np.ones(len(simulated.rounds))
    lengths = np.arange(k + 1)
    assert_agree(ratio(simulated.emitted, simulated.rounds), acceptance_length(counts, k))
    pairs = [
        (simulated.rounds, counts.rounds[k - 1]),
        (simulated.emitted, counts.emitted[k - 1]),
        (simulated.by_length @ lengths, counts.proposed[k - 1]),
        *((simulated.by_length[:, n], counts.rounds_by_shape[k - 1, n]) for n in lengths),
        *((simulated.reached[:, j], counts.reached[k - 1, j]) for j in range(k)),
        *((simulated.accepted[:, j], counts.accepted[k - 1, j]) for j in range(k)),
    ]
    for mine, theirs in pairs:
        if not mine.any():
            assert not theirs.any()
        else:
            assert abs(errors_apart(ratio(mine, one), ratio(theirs, one))) < TOLERANCE
    assert not counts.reached[k - 1, k:].any()
    assert not counts.accepted[k - 1, k:].any()
    assert not counts.rounds_by_shape[k - 1, k + 1 :].any()


LENGTHS_BY_CONTEXT = np.array([0, 4, 1, 2, 3])


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_sampled_drafts_whose_length_depends_on_the_context(k):
    model = markov(seed=3)
    simulation = np.random.default_rng([41, k])
    first = first_tokens(simulation, model)
    simulated = speculate(simulation, play_rejection(model, k, LENGTHS_BY_CONTEXT), k, first)
    assert_pair_law(simulated, first, model.p)
    contexts, tokens = tape(np.random.default_rng(42), model.p)
    accept = rejection_of(model)(contexts, tokens)
    counts = replay(accept, np.full(ROWS, COUNTED), LENGTHS_BY_CONTEXT[contexts])
    assert_all_counts_agree(simulated, counts, k)


def look_up(past, k):
    """What followed the latest earlier occurrence of the last token: 0 to k proposals."""
    for i in range(len(past) - 2, -1, -1):
        if past[i] == past[-1]:
            return past[i + 1 : i + 1 + k]
    return []


def speculate_by_lookup(rng, p, first, k):
    """One lane at a time; a proposal is a point mass."""
    rows, tokens = len(first), range(len(p))
    out = Counted(
        np.full((rows, COUNTED), -1), np.zeros(rows), np.zeros((rows, k)), np.zeros((rows, k)), np.zeros((rows, k + 1))
    )
    for row in range(rows):
        past = [int(first[row])]
        while len(past) - 1 < COUNTED:
            proposals, law = look_up(past, k), p[past[-1]]
            out.rounds[row] += 1
            out.by_length[row, len(proposals)] += 1
            for j, token in enumerate(proposals):
                out.reached[row, j] += 1
                if rng.random() >= law[token]:
                    law = np.where(np.array(tokens) == token, 0.0, law)
                    break
                out.accepted[row, j] += 1
                past.append(token)
                law = p[token]
            past.append(int(sample(rng, law)))
        out.text[row] = past[1 : COUNTED + 1]
    return out


def lookup_evidence(contexts, tokens):
    """w(s, j) and k(s) of the look-up drafter along plain text."""
    length, rows = tokens.shape
    accept, made = np.zeros((length, MAX_K, rows)), np.zeros((length, rows), dtype=np.int64)
    for row in range(rows):
        text = [int(contexts[0, row]), *tokens[:, row].tolist()]
        for s in range(length):
            proposals = look_up(text[: s + 1], MAX_K)
            made[s, row] = len(proposals)
            for j, token in enumerate(proposals):
                accept[s, j, row] = s + j < length and token == text[1 + s + j]
    return accept, made


@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_look_up_drafter_whose_proposals_depend_on_the_whole_past(k):
    model, rows = markov(seed=9, vocabulary=6), 1500
    simulation, plain = np.random.default_rng([51, k]), np.random.default_rng(52)
    first = simulation.integers(6, size=rows)
    simulated = speculate_by_lookup(simulation, model.p, first, k)
    assert_pair_law(simulated, first, model.p)
    accept, made = lookup_evidence(*tape(plain, model.p, plain.integers(6, size=rows)))
    assert_all_counts_agree(simulated, replay(accept, np.full(rows, COUNTED), made), k)


# ---------------------------------------------------------------- what a server's clock sees


@pytest.mark.parametrize("first_start", [0, 1])
@pytest.mark.parametrize("k", [1, 4])
def test_rounds_until_end_of_sequence_or_limit(k, first_start):
    """The end depends on the text; first_start 1: the prompt's own pass gave the first token."""
    model, eos = markov(seed=3), 1
    simulation = np.random.default_rng([61, k, first_start])
    first = first_tokens(simulation, model)
    if first_start:
        first = sample(simulation, model.p[first])
    simulated = speculate(
        simulation, play_rejection(model, k), k, first, counted=LENGTH, first_start=first_start, eos=eos
    )
    contexts, tokens = tape(np.random.default_rng(62), model.p)
    is_eos = tokens == eos
    lengths = np.where(is_eos.any(0), is_eos.argmax(0) + 1, LENGTH)
    assert len(np.unique(lengths)) > 10
    counts = replay(rejection_of(model)(contexts, tokens), lengths, first_start=first_start)
    written = simulated.text[:, :LENGTH]
    simulated_lengths = np.where((written == eos).any(1), (written == eos).argmax(1) + 1, LENGTH)
    one, rounds = np.ones(ROWS), counts.rounds[k - 1]
    assert_agree(ratio(simulated.rounds, one), ratio(rounds, one), precision=0.02)
    assert_agree(ratio(simulated_lengths, one), ratio(lengths, one), precision=0.02)
    assert_agree(ratio(simulated_lengths, simulated.rounds), ratio(lengths, rounds))


# ---------------------------------------------------------------- the recursion, row by row


@dataclass
class Row:
    starts: np.ndarray
    reached: np.ndarray
    accepted: np.ndarray
    by_length: np.ndarray

    @property
    def tau(self):
        return 1 + self.accepted.sum() / self.starts.sum()


def recursion(w, made, k, counted, first_start=0, bonus=1):
    """r[1] = 1 and onwards, one-based as it is written, for one row and one K; w is [T, >= k]."""
    length = len(w)
    r = np.zeros(length + k + 3)
    r[1 + first_start] = 1.0
    row = Row(np.zeros(length), np.zeros(k), np.zeros(k), np.zeros(k + 1))
    for s in range(1, length + 1):
        proposals = min(int(made[s - 1]), k)
        weight = float(s <= counted)
        m = r[s]
        row.starts[s - 1] = weight * m
        row.by_length[proposals] += weight * m
        for j in range(proposals):
            row.reached[j] += weight * m
            row.accepted[j] += weight * m * w[s - 1, j]
            r[s + j + 1] += m * (1.0 - w[s - 1, j])
            m *= w[s - 1, j]
        r[max(s + proposals + bonus, s + 1)] += m
    return row


def assert_recursion(w, counted, made=None, first_start=0):
    length, max_k, rows = w.shape
    counts = replay(w, counted, made, first_start)
    every = np.full((length, rows), max_k) if made is None else made
    close = {"rtol": 0.0, "atol": 1e-12}
    for k in range(1, max_k + 1):
        for i in range(rows):
            row = recursion(w[:, :, i], every[:, i], k, counted[i], first_start)
            np.testing.assert_allclose(counts.starts[k - 1, :, i], row.starts, **close)
            np.testing.assert_allclose(counts.reached[k - 1, :k, i], row.reached, **close)
            np.testing.assert_allclose(counts.accepted[k - 1, :k, i], row.accepted, **close)
            np.testing.assert_allclose(counts.rounds_by_shape[k - 1, : k + 1, i], row.by_length, **close)
            np.testing.assert_allclose(counts.rounds[k - 1, i], row.starts.sum(), **close)
            np.testing.assert_allclose(counts.emitted[k - 1, i], row.starts.sum() + row.accepted.sum(), **close)
            np.testing.assert_allclose(counts.proposed[k - 1, i], row.by_length @ np.arange(k + 1), **close)
        assert not counts.reached[k - 1, k:].any()
        assert not counts.accepted[k - 1, k:].any()
        assert not counts.rounds_by_shape[k - 1, k + 1 :].any()


@pytest.mark.parametrize("first_start", [0, 1])
@pytest.mark.parametrize("window", ["complete_rounds", "server_clock"])
@pytest.mark.parametrize("varying", [False, True])
def test_replay_equals_the_written_recursion(varying, window, first_start):
    rng = np.random.default_rng(71)
    for length, max_k, rows in ((1, 1, 1), (1, 4, 2), (3, 5, 3), (17, 1, 4), (23, 6, 6)):
        w = rng.random((length, max_k, rows))
        w[rng.random(w.shape) < 0.3] = 1.0
        w[rng.random(w.shape) < 0.2] = 0.0
        lengths = rng.integers(0, length + 1, size=rows)
        lengths[0] = length
        counted = np.maximum(lengths - max_k, 0) if window == "complete_rounds" else lengths
        made = rng.integers(0, max_k + 3, size=(length, rows)) if varying else None
        assert_recursion(w, counted, made, first_start)


def test_certain_evidence_gives_the_starts_of_a_hand_stepped_loop():
    rng = np.random.default_rng(72)
    length, max_k, rows = 40, 5, 30
    w = (rng.random((length, max_k, rows)) < 0.7).astype(float)
    made = rng.integers(0, max_k + 1, size=(length, rows))
    counts = replay(w, np.full(rows, length), made)
    for k in range(1, max_k + 1):
        for i in range(rows):
            starts, s = [], 0
            while s < length:
                starts.append(s)
                m = 0
                while m < min(k, made[s, i]) and w[s, m, i] == 1.0:
                    m += 1
                s += m + 1
            np.testing.assert_array_equal(np.flatnonzero(counts.starts[k - 1, :, i]), starts)
            assert set(counts.starts[k - 1, :, i]) <= {0.0, 1.0}


def test_shifted_reads_ahead_and_is_zero_beyond_the_end():
    evidence = np.array([[0.1, 0.5], [0.2, 0.6], [0.3, 0.7]])
    found = shifted(evidence, 4)
    assert found.shape == (3, 4, 2)
    for s in range(3):
        for j in range(4):
            expected = evidence[s + j] if s + j < 3 else np.zeros(2)
            np.testing.assert_array_equal(found[s, j], expected)


def test_block_evidence_is_carried_from_the_start_of_each_round():
    rng = np.random.default_rng(73)
    log_p, log_q = np.log(rng.random((2, 12, 3)))
    found = accept_probabilities_block(log_p, log_q, 3)
    for s in range(12 - 3):
        for row in range(3):
            carried = 1.0
            for j in range(3):
                p_over_q = np.exp(log_p[s + j, row] - log_q[s + j, row])
                assert found[s, j, row] == pytest.approx(min(1.0, 1.0 / (carried * p_over_q)), rel=1e-12)
                carried = min(1.0, carried * p_over_q)


# ---------------------------------------------------------------- errors that the comparisons must see


def ring():
    """A target that mostly counts upwards; the draft knows four contexts of six well and two badly."""
    p = 0.88 * np.roll(np.eye(6), 1, axis=1) + 0.02
    unlike = 0.88 * np.roll(np.eye(6), 4, axis=1) + 0.02
    share = np.array([0.98, 0.97, 0.96, 0.95, 0.15, 0.05])[:, None]
    return Model(p=p, q=share * p + (1 - share) * unlike)


RING_LENGTHS = np.array([4, 3, 2, 2, 1, 1])
RING_FIRST = 2  # every text begins after the same token: otherwise a shifted stationary text is as good as the text


def read_one_later(accept, made, k):
    """w(s, j) of the next position."""
    counts = replay(np.concatenate([accept[1:], accept[-1:]]), np.full(accept.shape[2], COUNTED), made)
    return counts.rounds[k - 1], counts.accepted[k - 1].sum(0)


def no_bonus(accept, made, k):
    """The round after a fully accepted one begins a token early."""
    rows = accept.shape[2]
    found = [recursion(accept[:, :, i], made[:, i], k, COUNTED, bonus=0) for i in range(rows)]
    return np.array([row.starts.sum() for row in found]), np.array([row.accepted.sum() for row in found])


def uniform_starts(accept, made, k):
    """Every counted position weighs the same."""
    proposed = np.arange(k)[None, :, None] < made[:, None, :]
    reach = np.cumprod(accept[:, :k] * proposed, axis=1)[:COUNTED]
    return np.full(accept.shape[2], float(COUNTED)), reach.sum((0, 1))


def right(accept, made, k):
    counts = replay(accept, np.full(accept.shape[2], COUNTED), made)
    return counts.rounds[k - 1], counts.accepted[k - 1].sum(0)


MUTANTS = [read_one_later, no_bonus, uniform_starts]


def apart(replayed, accept, made, k, simulated):
    rounds, accepted = replayed(accept, made, k)
    truth = ratio(simulated.emitted, simulated.rounds)
    return abs(errors_apart(ratio(rounds + accepted, rounds), truth))


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("lengths", [None, RING_LENGTHS], ids=["fixed_length", "varying_length"])
@pytest.mark.parametrize("k", [2, 4])
def test_wrong_replays_of_sampled_drafts_fall_outside_the_tolerance(k, lengths, mutant):
    model, first = ring(), np.full(2000, RING_FIRST)
    simulated = speculate(np.random.default_rng([81, k]), play_rejection(model, k, lengths), k, first)
    contexts, tokens = tape(np.random.default_rng(82), model.p, first)
    made = np.full(tokens.shape, k) if lengths is None else lengths[contexts]
    accept = rejection_of(model)(contexts, tokens)
    assert apart(right, accept, made, k, simulated) < TOLERANCE
    assert apart(mutant, accept, made, k, simulated) > TOLERANCE


@pytest.fixture(scope="module")
def looked_up():
    """(Counted, w, k(s)) of the look-up drafter at K = 4, where earlier text is worth looking up."""
    model, first = ring(), np.full(1500, RING_FIRST)
    simulated = speculate_by_lookup(np.random.default_rng(83), model.p, first, MAX_K)
    return simulated, *lookup_evidence(*tape(np.random.default_rng(84), model.p, first))


def test_all_counts_of_a_look_up_drafter_agree_where_most_is_accepted(looked_up):
    simulated, accept, made = looked_up
    counts = replay(accept, np.full(accept.shape[2], COUNTED), made)
    assert_all_counts_agree(simulated, counts, MAX_K)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_replays_of_a_look_up_drafter_fall_outside_the_tolerance(looked_up, mutant):
    simulated, accept, made = looked_up
    assert apart(mutant, accept, made, MAX_K, simulated) > TOLERANCE


# ---------------------------------------------------------------- properties


@st.composite
def evidence(draw):
    length, max_k, rows = draw(st.integers(1, 12)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    w = rng.random((length, max_k, rows)) ** draw(st.sampled_from([0.2, 1.0, 5.0]))
    if draw(st.booleans()):
        w = np.round(w)
    made = rng.integers(0, max_k + 1, size=(length, rows)) if draw(st.booleans()) else None
    return w, rng.integers(0, length + 1, size=rows), made, draw(st.integers(0, 1))


@settings(deadline=None, derandomize=True, max_examples=150)
@given(evidence())
def test_counts_are_consistent(case):
    w, counted, made, first_start = case
    counts = replay(w, counted, made, first_start)
    max_k = w.shape[1]
    bound = np.arange(1, max_k + 1)[:, None] + 1
    close = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(counts.emitted, counts.rounds + counts.accepted.sum(1), **close)
    np.testing.assert_allclose(counts.rounds, counts.starts.sum(1), **close)
    np.testing.assert_allclose(counts.rounds, counts.rounds_by_shape.sum(1), **close)
    np.testing.assert_array_equal(counts.nodes, counts.draft_steps)
    np.testing.assert_allclose(counts.proposed, np.einsum("ksr,s->kr", counts.rounds_by_shape, counts.nodes), **close)
    assert (counts.emitted >= counts.rounds - 1e-12).all()
    assert (counts.emitted <= bound * counts.rounds + 1e-12).all()
    assert (counts.accepted <= counts.reached + 1e-12).all()
    assert (counts.reached.sum(1) <= counts.proposed + 1e-12).all()
    assert ((counts.starts >= 0) & (counts.starts <= 1 + 1e-12)).all()
    np.testing.assert_array_equal(counts.rounds > 0, np.broadcast_to(counted > first_start, counts.rounds.shape))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 3))
def test_all_or_nothing_accepted_bounds_the_acceptance_length(max_k, counted, rows):
    window = np.full(rows, counted)
    shape = (counted + max_k, max_k, rows)
    perfect, useless = replay(np.ones(shape), window), replay(np.zeros(shape), window)
    for k in range(1, max_k + 1):
        np.testing.assert_allclose(perfect.emitted[k - 1] / perfect.rounds[k - 1], k + 1, rtol=1e-12)
        np.testing.assert_array_equal(perfect.rounds[k - 1], -(-counted // (k + 1)))
        np.testing.assert_array_equal(useless.emitted[k - 1], useless.rounds[k - 1])
        np.testing.assert_array_equal(useless.rounds[k - 1], counted)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(0, 3))
def test_what_a_tree_matches_at_each_position_is_found_by_walking_its_paths(ranks, number):
    tree = [
        full_tree((2, 2)), full_tree((3, 1, 1)), chain_tree(3), TokenTree(((2,), (1,), (2, 1), (2, 3), (2, 3, 1)))
    ][number]  # fmt: skip
    found = matched_in_tree(np.array(ranks)[:, None], tree)[:, 0]
    assert found.tolist() == [tree.accepted_depth(ranks[start:]) for start in range(len(ranks))]
