"""The search for a tree against brute force over all small ones, each replayed."""

import numpy as np
import pytest

from spectune.decide.trees import best_replayed, rank_acceptance, replayed_tree
from spectune.replay import round_starts
from spectune.tree import TokenTree, best_by_products, chain_tree, full_tree, tree_value
from tests.test_tree import all_trees

DEPTH = 3


def ranks_of_texts(seed: int, rows: int, length: int, shares: tuple[float, ...]) -> np.ndarray:
    """Each text's share of likeliest tokens is one of these; ranks 1, 2, 3 and beyond."""
    rng = np.random.default_rng(seed)
    share = rng.choice(shares, rows)
    ranks = 1 + (rng.random((length, rows, 3)) > share[:, None]).cumprod(-1).sum(-1)
    return np.where(ranks > 3, 99, ranks)


def in_order(tree: frozenset[tuple[int, ...]]) -> TokenTree:
    return TokenTree(tuple(sorted(tree, key=lambda path: (len(path), path))))


@pytest.mark.parametrize("shares", [(0.6,), (0.35, 0.9)], ids=["independent", "texts that are hard throughout"])
@pytest.mark.parametrize("nodes", [2, 4, 5])
def test_the_tree_that_is_found_is_hardly_worse_than_the_best_of_all(shares, nodes) -> None:
    ranks = ranks_of_texts(1, 300, 40, shares)
    window = np.full(300, 40 - DEPTH)
    best = best_replayed(ranks, nodes, DEPTH, window)
    of_all = max(replayed_tree(ranks, in_order(tree)).acceptance_length(window) for tree in all_trees(nodes, DEPTH, 3))
    assert best.tree.nodes <= nodes
    assert best.acceptance_length(window) <= of_all + 1e-12
    assert best.acceptance_length(window) > of_all * 0.995


def test_where_depth_does_not_matter_it_is_the_optimum_of_the_products() -> None:
    ranks = ranks_of_texts(2, 2000, 60, (0.55,))
    window = np.full(2000, 60 - DEPTH)
    acceptance = np.tile([0.55, 0.45 * 0.55, 0.45**2 * 0.55], (DEPTH, 1))
    for nodes in (3, 6, 12):
        best = best_replayed(ranks, nodes, DEPTH, window)
        optimum = tree_value(best_by_products(acceptance, nodes), acceptance)
        assert best.acceptance_length(window) == pytest.approx(optimum, rel=0.01)


def test_hard_texts_make_products_promise_too_much_and_the_replayed_figure_does_not() -> None:
    ranks = ranks_of_texts(3, 400, 60, (0.1, 0.95))
    window = np.full(400, 60 - 6)
    best = best_replayed(ranks, 8, 6, window)
    acceptance = rank_acceptance(ranks, best.starts, 6)
    promised = tree_value(best_by_products(acceptance, 8), acceptance)
    literal = literal_rounds(ranks, best.tree, window)
    assert best.acceptance_length(window) == pytest.approx(literal, abs=1e-12)
    assert abs(promised / literal - 1) > 0.01


def literal_rounds(ranks: np.ndarray, tree: TokenTree, window: np.ndarray) -> float:
    """Tokens a round, round by round."""
    tokens = rounds = 0
    for row in range(ranks.shape[1]):
        start = 0
        while start < window[row]:
            path: tuple[int, ...] = ()
            while start + len(path) < len(ranks) and (*path, int(ranks[start + len(path), row])) in tree.paths:
                path = (*path, int(ranks[start + len(path), row]))
            tokens, rounds, start = tokens + len(path) + 1, rounds + 1, start + len(path) + 1
    return tokens / rounds


def test_a_wider_tree_around_a_chain_never_takes_more_rounds() -> None:
    """Of a draft model, whose evidence does not depend on where a round starts."""
    for seed in range(20):
        ranks = ranks_of_texts(seed, 30, 50, (0.3, 0.8))
        chain, tree = (round_starts(replayed_tree(ranks, t).matched) for t in (chain_tree(3), full_tree((3, 2, 1))))
        assert (tree.sum(0) <= chain.sum(0)).all()


def test_what_is_never_seen_makes_no_tree() -> None:
    ranks = np.full((12, 2), 99)
    best = best_replayed(ranks, 6, 3, np.full(2, 9))
    assert best.tree == chain_tree(3)
    assert best.acceptance_length(np.full(2, 9)) == 1.0
