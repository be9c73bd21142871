"""The acceptance rule by enumeration: whatever the draft, what is emitted has the target's law."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spectune.decoding import verify
from spectune.decoding.verify import acceptance_probability, residual_distribution, verify_chain, verify_greedy

unhurried = settings(deadline=None)


def laws(vocab: int):
    """Laws with zeros and point masses among them: whole weights over their sum."""
    weights = st.lists(st.one_of(st.just(0), st.integers(0, 1000)), min_size=vocab, max_size=vocab)
    return weights.filter(any).map(lambda found: np.array(found, dtype=np.float64) / sum(found))


@st.composite
def target_and_draft(draw):
    vocab = draw(st.integers(2, 8))
    return draw(laws(vocab)), draw(laws(vocab))


@st.composite
def chains(draw):
    """Laws of the next token by the token before it, for target and draft, and the number of proposals."""
    vocab, count = draw(st.integers(2, 3)), draw(st.integers(1, 3))
    target, draft = (np.stack([draw(laws(vocab)) for _ in range(vocab)]) for _ in range(2))
    return target, draft, count


def probability(target_prob: float, draft_prob: float) -> float:
    return float(acceptance_probability(*torch.tensor([target_prob, draft_prob], dtype=torch.float64)))


def verified(draft_token_ids, draft_probs, target_probs, uniforms) -> tuple[int, int]:
    """Proposals accepted, all from the first on, and the token after them."""
    outcome = verify_chain(
        torch.tensor(draft_token_ids, dtype=torch.long),
        draft_probs,
        target_probs,
        torch.tensor(uniforms, dtype=torch.float64),
    )
    accepted = int((outcome.path >= 0).sum())
    assert outcome.path.tolist() == [*range(accepted), *[-1] * (len(draft_token_ids) - accepted)]
    return accepted, int(outcome.next_token_id)


def decisions(draft_token_ids, draft_probs, target_probs):
    """Every outcome of verify_chain as (probability, accepted, law of the token after them).

    A decision is forced from both sides of its threshold, so that the threshold itself is tested.
    """
    found, reached = [], 1.0
    captured = []

    def capture(probs, uniforms):
        captured.append(probs.numpy())
        return torch.zeros((), dtype=torch.long)

    count = len(draft_token_ids)
    script: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "sample", capture)
        for place, token_id in enumerate(draft_token_ids):
            draft_prob = 1.0 if draft_probs is None else float(draft_probs[place, token_id])
            threshold = probability(float(target_probs[place, token_id]), draft_prob)
            if threshold < 1.0:
                uniforms = [*script, threshold, *[0.0] * (count - place - 1), 0.5]
                accepted, _ = verified(draft_token_ids, draft_probs, target_probs, uniforms)
                assert accepted == place
                found.append((reached * (1 - threshold), accepted, captured[-1]))
            if threshold == 0.0:
                return found
            script.append(float(np.nextafter(threshold, 0.0)))
            reached *= threshold
        accepted, _ = verified(draft_token_ids, draft_probs, target_probs, [*script, 0.5])
    assert accepted == count
    found.append((reached, accepted, captured[-1]))
    return found


def chain_law(target: np.ndarray, prefix: tuple[int, ...]) -> float:
    """Probability of a run of tokens that follows token 0."""
    return float(np.prod([target[before, after] for before, after in itertools.pairwise((0, *prefix))]))


def emitted_joint(target: np.ndarray, draft: np.ndarray | None, count: int, propose) -> np.ndarray:
    """Law of the first count + 1 tokens: what a round emits, then plain tokens of the target."""
    vocab = len(target)
    joint = np.zeros((vocab,) * (count + 1))
    for probability, proposals in propose:
        rows = [0, *proposals]
        draft_probs = None if draft is None else torch.tensor(draft[rows[:-1]])
        target_probs = torch.tensor(target[rows])
        for mass, accepted, law in decisions(list(proposals), draft_probs, target_probs):
            for token_id in range(vocab):
                start = (*proposals[:accepted], token_id)
                for rest in itertools.product(range(vocab), repeat=count + 1 - len(start)):
                    plain = np.prod([target[a, b] for a, b in itertools.pairwise((token_id, *rest))])
                    joint[start + rest] += probability * mass * law[token_id] * plain
    return joint


@unhurried
@given(target_and_draft())
def test_accepting_or_recovering_gives_each_token_the_probability_of_the_target(pair):
    target, draft = pair
    accepted = np.array([q * probability(p, q) if q > 0 else 0.0 for p, q in zip(target, draft, strict=True)])
    emitted = accepted.copy()
    if not np.array_equal(target, draft):
        residual = residual_distribution(torch.tensor(target), torch.tensor(draft)).numpy()
        assert residual.sum() == pytest.approx(1.0, abs=1e-12)
        emitted += (1 - accepted.sum()) * residual
    np.testing.assert_allclose(emitted, target, rtol=0, atol=1e-9)


@unhurried
@given(target_and_draft())
def test_total_acceptance_is_the_overlap_of_the_two_laws(pair):
    target, draft = pair
    accepted = sum(q * probability(p, q) for p, q in zip(target, draft, strict=True) if q > 0)
    assert accepted == pytest.approx(np.minimum(target, draft).sum(), abs=1e-12)


@unhurried
@given(laws(5))
def test_equal_laws_cannot_reject_so_they_have_no_residual(law):
    assert all(probability(p, p) == 1.0 for p in law if p > 0)
    with pytest.raises(ValueError, match="agree"):
        residual_distribution(torch.tensor(law), torch.tensor(law))


def test_residual_holds_only_what_the_target_has_more_of():
    residual = residual_distribution(torch.tensor([0.5, 0.3, 0.2, 0.0]), torch.tensor([0.1, 0.2, 0.3, 0.4]))
    torch.testing.assert_close(residual, torch.tensor([0.8, 0.2, 0.0, 0.0]))


@settings(max_examples=40, deadline=None)
@given(chains())
def test_chain_of_sampled_proposals_emits_the_joint_law_of_the_target(chain):
    target, draft, count = chain
    proposals = [(chain_law(draft, run), run) for run in itertools.product(range(len(draft)), repeat=count)]
    joint = emitted_joint(target, draft, count, [found for found in proposals if found[0] > 0])
    expected = [chain_law(target, run) for run in itertools.product(range(len(target)), repeat=count + 1)]
    np.testing.assert_allclose(joint.ravel(), expected, rtol=0, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(chains(), st.lists(st.integers(0, 2), min_size=3, max_size=3))
def test_chain_of_point_masses_emits_the_joint_law_of_the_target(chain, proposals):
    target, _, count = chain
    proposals = tuple(min(token_id, len(target) - 1) for token_id in proposals[:count])
    joint = emitted_joint(target, None, count, [(1.0, proposals)])
    expected = [chain_law(target, run) for run in itertools.product(range(len(target)), repeat=count + 1)]
    np.testing.assert_allclose(joint.ravel(), expected, rtol=0, atol=1e-9)


@unhurried
@given(target_and_draft(), st.integers(0, 2**32 - 1))
def test_what_the_target_never_says_is_never_emitted(pair, seed):
    target, draft = pair
    assume((target == 0).any())
    rng = np.random.default_rng(seed)
    proposal = int(rng.choice(len(draft), p=draft))
    accepted, token_id = verified(
        [proposal], torch.tensor(draft[None]), torch.tensor(np.stack([target, target])), rng.random(2)
    )
    assert accepted == 0 or target[proposal] > 0
    assert target[token_id] > 0


def test_without_proposals_the_token_is_a_plain_sample():
    target = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    assert verified([], None, target, [0.2]) == (0, 0)
    assert verified([], None, target, [0.3]) == (0, 1)


def verified_greedily(proposals: list[int], argmaxes: list[int]) -> tuple[int, int]:
    outcome = verify_greedy(torch.tensor(proposals, dtype=torch.long), torch.tensor(argmaxes))
    return int((outcome.path >= 0).sum()), int(outcome.next_token_id)


@pytest.mark.parametrize(
    ("proposals", "argmaxes", "expected"),
    [
        ([], [5], (0, 5)),
        ([5], [5, 6], (1, 6)),
        ([4], [5, 6], (0, 5)),
        ([5, 6, 7], [5, 6, 7, 8], (3, 8)),
        ([5, 0, 7], [5, 6, 7, 8], (1, 6)),
        ([5, 6, 0], [5, 6, 7, 8], (2, 7)),
    ],
)
def test_greedy_rule_accepts_up_to_the_first_difference(proposals, argmaxes, expected):
    assert verified_greedily(proposals, argmaxes) == expected


@unhurried
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6), st.integers(0, 3))
def test_greedy_rule_emits_the_argmaxes_of_the_target(pairs, last):
    proposals, argmaxes = [pair[0] for pair in pairs], [*(pair[1] for pair in pairs), last]
    accepted, token_id = verified_greedily(proposals, argmaxes)
    assert [*proposals[:accepted], token_id] == argmaxes[: accepted + 1]
    assert accepted == len(proposals) or proposals[accepted] != argmaxes[accepted]
