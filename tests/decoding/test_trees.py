"""Trees decoded for real: the target's law, the longest right branch, the branch's entries kept."""

import itertools

import numpy as np
import pytest
import torch

from spectune.choice import Shape, branching
from spectune.decoding import decode
from spectune.decoding.decode import speculative_decode
from spectune.decoding.verify import Verified, verify_tree
from spectune.drafting.draft_model import DraftModel
from spectune.drafting.ngram import NgramDrafter
from spectune.errors import ConfigError
from spectune.models.sampling import Sampling, likeliest, ranks_of
from spectune.models.scoring import CachedSequence, ModelScorer, ModelSequence
from spectune.tree import TokenTree, attention_mask, chain_tree, full_tree
from tests.decoding.test_decode import PROMPT, TARGET, TARGET_TABLE, table_joint
from tests.toys import (
    ARCHITECTURES,
    VOCAB,
    TableScorer,
    full_logits,
    g_test,
    greedy_reference,
    random_prompts,
    random_table,
    speculative_counts,
    tiny_pair,
    transformed_law,
)

DRAFT = DraftModel(TableScorer(random_table(36, vocab=3, order=1, scale=1.8)))
TREES = {
    "full": full_tree((2, 2)),
    "uneven": TokenTree(((2,), (1,), (2, 1), (1, 3), (1, 1), (2, 1, 1))),
    "one behind another": chain_tree(3),
}


def emitted_law(proposal, depth: int, temperature: float) -> dict[tuple[int, ...], float]:
    """Of one round, by enumeration of everything that the target may say after root and nodes."""
    tokens = proposal.draft_token_ids.tolist()
    parents = list(range(-1, len(tokens) - 1)) if proposal.parents is None else proposal.parents.tolist()
    histories = [list(PROMPT)]
    for node, parent in enumerate(parents):
        histories.append([*histories[parent + 1], tokens[node]])
    laws = [transformed_law(TARGET_TABLE[history[-2], history[-1]], temperature) for history in histories]
    said = torch.tensor(list(itertools.product(range(3), repeat=len(histories))))
    mass = np.prod([law[said[:, place]] for place, law in enumerate(laws)], axis=0)
    rows = (len(said), len(tokens))
    verified = verify_tree(proposal.draft_token_ids.expand(rows), torch.tensor(parents).expand(rows), depth, said)
    found: dict[tuple[int, ...], float] = {}
    for path, token, weight in zip(verified.path.tolist(), verified.next_token_id.tolist(), mass, strict=True):
        emitted = (*(tokens[place] for place in path if place >= 0), token)
        found[emitted] = found.get(emitted, 0.0) + float(weight)
    return found


def proposals():
    rng = np.random.default_rng(0)
    for name, tree in TREES.items():
        shape = Shape(tree.depth, tree.nodes, tree.text)
        yield name, DRAFT.open(rng).propose(PROMPT, shape, Sampling(temperature=1.0)), tree.depth
    drafter = NgramDrafter(min_tokens=1, max_tokens=2, branches=3)
    yield "n-gram", drafter.propose([0, 1, 2, 0, 1, 1, 0, 1], Shape(3, 6), Sampling(temperature=1.0)), 3


@pytest.mark.parametrize(("name", "proposal", "depth"), list(proposals()))
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_a_round_has_the_law_of_the_target_to_the_last_digit(name, proposal, depth, temperature) -> None:
    """What it emits, and plain sampling behind it, together are distributed as plain sampling."""
    assert len(proposal.draft_token_ids) >= 3
    joint = table_joint(depth + 1, temperature=temperature)
    together = np.zeros_like(joint)
    for emitted, mass in emitted_law(proposal, depth, temperature).items():
        behind = joint[emitted]
        together[emitted] += mass * behind / behind.sum()
    assert np.abs(together - joint).max() < 1e-9


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("options", [{"temperature": 1.0}, {"temperature": 0.7, "top_k": 2}])
def test_three_tokens_have_the_joint_law_of_the_target(tree, options) -> None:
    counts = speculative_counts(TARGET, DRAFT, PROMPT, tree, 500, (3, 3, 3), **options)
    assert g_test(counts, table_joint(3, **options)) > 0.001


# --- networks: greedy text is plain greedy text, whatever is proposed ------------------------------------------------

NEW_TOKENS = 26
SHAPES = {"full": full_tree((3, 2, 1)), "uneven": TokenTree(((2,), (1,), (2, 1), (1, 3), (2, 1, 1), (2, 1, 2)))}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def pair(request):
    return tiny_pair(request.param, noise=0.3)


def greedy_tree(target, draft, prompt, tree, tokens=NEW_TOKENS):
    return speculative_decode(ModelScorer(target), draft, prompt, tree, 0.0, max_new_tokens=tokens)


@pytest.mark.parametrize("tree", SHAPES.values(), ids=SHAPES)
def test_greedy_text_of_a_tree_is_that_of_plain_decoding(pair, tree) -> None:
    target, draft = pair
    accepted = []
    for prompt in random_prompts(2, 17, seed=2):
        decoded = greedy_tree(target, DraftModel(draft), prompt, tree)
        assert decoded.token_ids == greedy_reference(target, prompt, NEW_TOKENS)
        accepted += [one.accepted for one in decoded.rounds]
        assert {one.proposed for one in decoded.rounds} == {tree.nodes}
    assert 0 < sum(accepted) < tree.depth * len(accepted)


def test_greedy_text_of_an_ngram_tree_is_that_of_plain_decoding(pair) -> None:
    target, _ = pair
    drafter, forked = NgramDrafter(max_tokens=3, branches=3), 0
    for prompt in (p * 3 for p in random_prompts(3, 9, seed=5)):
        sequence = speculative_decode(ModelScorer(target), drafter, prompt, 6, 0.0, max_new_tokens=NEW_TOKENS)
        assert sequence.token_ids == greedy_reference(target, prompt, NEW_TOKENS)
        text = [*prompt, *sequence.token_ids]
        proposals = [drafter.propose(text[:end], Shape(6, 6), Sampling()) for end in range(len(prompt), len(text))]
        forked += sum(proposal.parents is not None for proposal in proposals)
    assert forked > 0


def test_a_tree_never_accepts_less_than_the_chain_inside_it_nor_takes_more_rounds(pair) -> None:
    target, draft = pair
    for prompt in random_prompts(3, 12, seed=7):
        chain = greedy_tree(target, DraftModel(draft), prompt, chain_tree(3))
        tree = greedy_tree(target, DraftModel(draft), prompt, full_tree((2, 2, 1)))
        at = {one.start: one.accepted for one in tree.rounds}
        assert all(at.get(one.start, one.accepted) >= one.accepted for one in chain.rounds)
        assert len(tree.rounds) <= len(chain.rounds)


def test_the_draft_proposes_its_likeliest_tokens_behind_each_node(pair) -> None:
    """Against full forwards of each path alone."""
    _, draft = pair
    prompt, tree = random_prompts(1, 11, seed=8)[0], full_tree((3, 2, 2))
    proposal = DraftModel(draft).open(np.random.default_rng(0)).propose(prompt, branching(tree), Sampling())
    tokens = proposal.draft_token_ids.tolist()
    written = {(): []} | {
        path: [tokens[tree.paths.index(path[:depth])] for depth in range(1, len(path) + 1)] for path in tree.paths
    }
    for path in tree.paths:
        ranked = likeliest(full_logits(draft, [*prompt, *written[path[:-1]]])[-1], 3).tolist()
        assert tokens[tree.paths.index(path)] == ranked[path[-1] - 1]


# --- the same comparison catches what is wrong -----------------------------------------------------------------------


def sibling_seen(parents):
    mask = attention_mask(parents)
    mask[2, 1] = True
    return mask


def kept_wrongly(self, length, path=None, keep=ModelSequence.keep):
    keep(self, length, None if path is None else path.clamp(max=len(path) - 1))


def off_by_one(target: CachedSequence, token_ids, proposal):
    mask = torch.from_numpy(attention_mask(proposal.parents.tolist()))
    ids = torch.cat([torch.tensor(token_ids[-1:]), proposal.draft_token_ids])
    return target.extend(ids, len(token_ids) - 1 + mask.sum(-1), mask)


def no_bonus(*arguments):
    verified = verify_tree(*arguments)
    return Verified(verified.path, verified.next_token_id * 0)


@pytest.mark.parametrize(("where", "name", "mutant"), [
    (decode, "attention_mask", sibling_seen), (ModelSequence, "keep", kept_wrongly),
    (decode, "_extended", off_by_one), (decode, "verify_tree", no_bonus),
])  # fmt: skip
def test_what_is_wrong_with_a_tree_changes_the_text(monkeypatch, where, name, mutant) -> None:
    target, draft = tiny_pair("llama", noise=0.3)
    prompts = random_prompts(3, 17, seed=2)
    expected = [greedy_reference(target, prompt, NEW_TOKENS) for prompt in prompts]
    tree = full_tree((3, 2, 1))
    assert [greedy_tree(target, DraftModel(draft), prompt, tree).token_ids for prompt in prompts] == expected
    monkeypatch.setattr(where, name, mutant)
    assert [greedy_tree(target, DraftModel(draft), prompt, tree).token_ids for prompt in prompts] != expected


# --- ranks -----------------------------------------------------------------------------------------------------------


def test_ranks_are_by_logit_then_id() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0, 3.0, 1.0]] * 2)
    assert likeliest(logits, 4).tolist() == [[1, 2, 4, 0]] * 2
    assert likeliest(logits, 2).tolist() == [[1, 2]] * 2
    assert [int(ranks_of(torch.tensor([token]), logits[:1])) for token in range(6)] == [4, 1, 2, 6, 3, 5]
    coarse = torch.randint(5, (40, VOCAB), generator=torch.Generator().manual_seed(1)).double()
    for count in (1, 3, 17, VOCAB):
        rows = likeliest(coarse, count)
        for rank in range(count):
            assert (ranks_of(rows[:, rank], coarse) == rank + 1).all()


def test_a_tree_wider_than_the_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigError, match="4 likeliest"):
        speculative_decode(TARGET, DRAFT, PROMPT, full_tree((4,)), 1.0)


def test_layers_that_look_at_the_text_in_another_way_refuse_trees_by_name() -> None:
    target, _ = tiny_pair("qwen3")
    sequence, mask = ModelSequence(target), torch.from_numpy(attention_mask([-1, -1]))
    sequence.read(torch.tensor([1, 2]))
    target.network.config.layer_types = ["full_attention", "chunked_attention", "full_attention"]
    with pytest.raises(ConfigError, match="chunked_attention"):
        sequence.extend(torch.tensor([3, 4, 5]), 1 + mask.sum(-1), mask)
