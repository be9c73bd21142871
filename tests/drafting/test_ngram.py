"""N-gram drafts against a brute-force statement of prompt lookup as vLLM does it."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spectune.choice import Shape, chain
from spectune.drafting import Continuation, Scored
from spectune.drafting.ngram import NgramDrafter
from spectune.drafting_spec import draft_spec
from spectune.errors import ConfigError
from spectune.models.sampling import Sampling

unhurried = settings(deadline=None)
UNREAD = Scored(logprobs=None)  # an n-gram needs nothing of the target
GREEDY = Sampling(temperature=0.0)


def brute_force(context: list[int], shortest: int, longest: int, count: int) -> list[int]:
    """What follows the earliest earlier occurrence of the longest suffix that has one."""
    for size in range(longest, shortest - 1, -1):
        suffix = context[-size:]
        for start in range(len(context) - size):
            if context[start : start + size] == suffix:
                return context[start + size : start + size + count]
    return []


contexts = st.integers(1, 3).flatmap(lambda top: st.lists(st.integers(0, top), max_size=24))
bounds = st.tuples(st.integers(1, 5), st.integers(0, 4)).map(lambda found: (found[0], sum(found)))


@unhurried
@given(contexts, bounds, st.integers(1, 8))
@example([], (1, 4), 3)
@example([7], (1, 4), 3)
@example([1, 1], (1, 1), 4)
@example([1, 1, 1, 1, 1], (2, 3), 4)
def test_lookup_equals_brute_force(context, bounds, count):
    shortest, longest = bounds
    drafter = NgramDrafter(min_tokens=shortest, max_tokens=longest)
    found = drafter.lookup(np.array(context, dtype=np.int64), count).tolist()
    assert found == brute_force(context, shortest, longest, count)


@unhurried
@given(contexts, bounds, st.integers(1, 8), st.integers(1, 8))
def test_a_shorter_proposal_is_the_start_of_a_longer_one(context, bounds, short, long):
    drafter = NgramDrafter(min_tokens=bounds[0], max_tokens=bounds[1])
    short, long = sorted((short, long))
    context = np.array(context, dtype=np.int64)
    assert drafter.lookup(context, short).tolist() == drafter.lookup(context, long).tolist()[:short]


@pytest.mark.parametrize(
    ("context", "shortest", "longest", "count", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], 1, 4, 2, [3, 4]),
        ([1, 2, 3, 4, 1, 2], 1, 4, 9, [3, 4, 1, 2]),
        ([1, 2, 3, 4, 1, 2], 3, 4, 2, []),
        ([1, 2, 3], 1, 4, 2, []),
        ([5, 1, 9, 5, 2, 9, 5], 1, 1, 1, [1]),  # the earliest of two occurrences of one length
        ([9, 5, 7, 5, 1, 9, 5], 1, 4, 1, [7]),
        ([5, 1, 9, 5, 2, 9, 5], 1, 2, 1, [2]),  # a longer suffix wins over an earlier occurrence
        ([3, 3, 3], 1, 4, 5, [3]),  # occurrences may overlap the suffix
        ([1, 2, 1, 2, 1], 1, 4, 5, [2, 1]),
    ],
)
def test_examples(context, shortest, longest, count, expected):
    drafter = NgramDrafter(min_tokens=shortest, max_tokens=longest)
    assert drafter.lookup(np.array(context), count).tolist() == expected


@unhurried
@given(contexts.filter(bool), st.integers(1, 6))
def test_proposals_are_point_masses_and_the_drafter_keeps_no_state(context, count):
    drafter = NgramDrafter(min_tokens=1, max_tokens=3)
    drafting = drafter.open(np.random.default_rng(0))
    drafting.propose([1, 2, 1, 2, 1], chain(4), GREEDY)
    for sampling in (GREEDY, Sampling(temperature=1.0)):
        proposal = drafting.propose(context, chain(count), sampling)
        assert proposal.draft_token_ids.tolist() == brute_force(context, 1, 3, count)
        assert proposal.draft_token_ids.dtype == torch.long
        assert proposal.draft_probs is None


@unhurried
@given(contexts.filter(bool), contexts.filter(bool), bounds, st.integers(1, 6))
def test_evidence_says_what_a_round_at_each_position_would_propose_and_get_right(prompt, written, bounds, max_k):
    drafter = NgramDrafter(min_tokens=bounds[0], max_tokens=bounds[1])
    continuation = Continuation(prompt_id="0", prompt_token_ids=prompt, token_ids=written, sampling=GREEDY)
    (evidence,) = drafter.evidence([continuation], [UNREAD], chain(max_k))
    for start in range(len(written)):
        proposal = brute_force([*prompt, *written[:start]], *bounds, max_k)
        right = 0
        for ours, theirs in zip(proposal, written[start:], strict=False):
            if ours != theirs:
                break
            right += 1
        assert evidence.proposed_tokens[start] == len(proposal)
        assert evidence.matched_tokens[start] == right
    assert len(evidence.proposed_tokens) == len(evidence.matched_tokens) == len(written)
    assert evidence.draft_logprobs is None


def test_evidence_of_several_continuations_is_that_of_each():
    drafter = NgramDrafter(min_tokens=1, max_tokens=2)
    rows = [
        Continuation(prompt_id=str(seed), prompt_token_ids=prompt, token_ids=tokens, sampling=GREEDY)
        for seed, (prompt, tokens) in enumerate([([1, 2, 1], [2, 1, 3]), ([4], [4, 4, 4, 4, 4]), ([0, 1], [2])])
    ]
    together = drafter.evidence(rows, [UNREAD] * len(rows), chain(4))
    for row, found in zip(rows, together, strict=True):
        (alone,) = drafter.evidence([row], [UNREAD], chain(4))
        assert np.array_equal(found.proposed_tokens, alone.proposed_tokens)
        assert np.array_equal(found.matched_tokens, alone.matched_tokens)


@pytest.mark.parametrize(("shortest", "longest"), [(0, 4), (3, 2), (-1, -1)])
def test_lengths_out_of_range_are_refused(shortest, longest):
    with pytest.raises(ConfigError):
        NgramDrafter(min_tokens=shortest, max_tokens=longest)


# --- trees of several occurrences ------------------------------------------------------------------------------------


def paths_of(tokens: list[int], parents: list[int]) -> list[list[int]]:
    paths: list[list[int]] = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append([*(paths[parent] if parent >= 0 else []), token])
    return paths


def occurrences(context: list[int], bounds: tuple[int, int]) -> list[tuple[int, int]]:
    """End of each earlier place that matches at least the shortest suffix, and how many tokens match."""
    found = []
    for end in range(len(context) - 1):
        matches = 0
        while matches < min(bounds[1], end + 1) and context[end - matches] == context[-1 - matches]:
            matches += 1
        if matches >= bounds[0]:
            found.append((end, matches))
    return found


def literal_growth(
    context: list[int], bounds: tuple[int, int], branches: int, depth: int, nodes: int
) -> list[list[int]]:
    """Always the likeliest child of what is there: the definition, without a heap."""
    found = occurrences(context, bounds)
    share, left = {}, 1.0
    for length in sorted({matches for _, matches in found}, reverse=True):
        count = sum(matches == length for _, matches in found)
        share[length] = left / (count + 1)
        left /= count + 1
    likelihood, grown = {(): sum(share[matches] for _, matches in found)}, []

    def through(path: tuple[int, ...]) -> list[tuple[int, int]]:
        return [(end, m) for end, m in found if context[end + 1 : end + 1 + len(path)] == list(path)]

    def offers(path: tuple[int, ...]) -> list[tuple[float, int, tuple[int, ...]]]:
        own = through(path)
        total, goes_on = sum(share[m] for _, m in own), len(own) / (len(own) + 1) if path else 1.0
        children = []
        for token in {context[end + 1 + len(path)] for end, _ in own if end + 1 + len(path) < len(context)}:
            after = through((*path, token))
            mass = sum(share[m] for _, m in after) / total
            children.append((likelihood[path] * goes_on * mass, max(end for end, _ in after), (*path, token)))
        return sorted(children, key=lambda child: (-round(child[0], 12), -child[1]))[:branches]

    while len(grown) < nodes:
        open_ = [child for path in [(), *grown] if len(path) < depth for child in offers(path) if child[2] not in grown]
        if not open_:
            break
        mass, _, path = min(open_, key=lambda child: (-round(child[0], 12), -child[1]))
        likelihood[path] = mass
        grown.append(path)
    return [list(path) for path in grown]


@unhurried
@given(contexts.filter(bool), bounds, st.integers(2, 3), st.integers(1, 4), st.integers(1, 8))
@example([0, 1, 0, 2, 0], (1, 1), 2, 3, 6)
def test_a_tree_has_the_likeliest_of_what_followed_all_occurrences(context, bounds, branches, depth, nodes):
    drafter = NgramDrafter(min_tokens=bounds[0], max_tokens=bounds[1], branches=branches)
    tokens, parents = drafter.grown(np.array(context), Shape(depth, nodes))
    assert sorted(paths_of(tokens, parents)) == sorted(literal_growth(context, bounds, branches, depth, nodes))
    assert all(parent < node for node, parent in enumerate(parents))


@unhurried
@given(contexts.filter(bool), bounds, st.integers(1, 6), st.integers(1, 6))
def test_a_tree_of_fewer_nodes_is_the_start_of_one_of_more(context, bounds, few, many):
    few, many = sorted((few, many))
    drafter = NgramDrafter(min_tokens=bounds[0], max_tokens=bounds[1], branches=3)
    small, large = (drafter.grown(np.array(context), Shape(4, nodes)) for nodes in (few, many))
    assert small == (large[0][:few], large[1][:few])


def test_both_of_two_occurrences_are_proposed():
    drafter = NgramDrafter(min_tokens=1, max_tokens=4, branches=2)
    tokens, parents = drafter.grown(np.array([7, 1, 5, 7, 2, 6, 7]), Shape(2, 4))
    assert paths_of(tokens, parents) == [[2], [1], [2, 6], [1, 5]]  # as often, so the more recent first


@unhurried
@given(contexts.filter(bool), contexts.filter(bool), bounds, st.integers(1, 6))
def test_evidence_of_trees_tells_for_every_budget_what_a_round_would_get_right(prompt, written, bounds, most):
    drafter = NgramDrafter(min_tokens=bounds[0], max_tokens=bounds[1], branches=3)
    continuation = Continuation(prompt_id="0", prompt_token_ids=prompt, token_ids=written, sampling=GREEDY)
    (evidence,) = drafter.evidence([continuation], [UNREAD], Shape(4, most))
    for start in range(len(written)):
        for nodes in range(1, most + 1):
            grown = drafter.grown(np.array([*prompt, *written[:start]]), Shape(4, nodes))
            matching = [len(path) for path in paths_of(*grown) if path == written[start : start + len(path)]]
            assert max(matching, default=0) == sum(rank <= nodes for rank in evidence.start_ranks[start])
            assert len(grown[0]) == min(nodes, evidence.proposed_tokens[start])
        assert evidence.matched_tokens[start] == len(evidence.start_ranks[start])


@pytest.mark.parametrize(("spec", "text", "method", "branches"), [
    ("ngram:branches=4", "ngram:min=1,max=4,branches=4", "ngram_tree", 4),
    ("ngram:min=2,branches=3", "ngram:min=2,max=2,branches=3", "ngram_tree", 3),
    ("ngram:min=1,max=3,branches=1", "ngram:min=1,max=3", "ngram", 1),
])  # fmt: skip
def test_a_spec_with_branches_is_a_tree_and_with_one_branch_the_chain(spec, text, method, branches):
    draft = draft_spec(spec)
    assert (draft.text, draft.method, draft.branches) == (text, method, branches)
    assert draft_spec(draft.text) == draft


@pytest.mark.parametrize("branches", ["0", "17", "x", "-1", ""])
def test_branches_that_are_none_are_refused(branches):
    with pytest.raises(ConfigError, match=r"branches|not understood"):
        draft_spec(f"ngram:min=1,max=4,branches={branches}")
