"""Trees against brute force: ancestors, orders, and the best one of a budget."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectune.errors import ConfigError
from spectune.tree import (
    TokenTree,
    attention_mask,
    best_by_counts,
    best_by_products,
    best_tree,
    chain_tree,
    depths,
    full_tree,
    levels,
    medusa_tree,
    tree_of_text,
    tree_value,
)

parent_lists = st.lists(st.integers(0, 10**6), max_size=24).map(
    lambda drawn: [draw % (node + 1) - 1 for node, draw in enumerate(drawn)]
)


def ancestors(parents: list[int], node: int) -> set[int]:
    return {node} | (ancestors(parents, parents[node]) if node >= 0 else set())


@given(parent_lists)
def test_a_node_attends_to_itself_and_its_ancestors(parents) -> None:
    mask = attention_mask(parents)
    for node in range(-1, len(parents)):
        assert {int(place) - 1 for place in np.flatnonzero(mask[node + 1])} == ancestors(parents, node)
    assert mask.shape == (len(parents) + 1,) * 2


@given(parent_lists)
def test_depths_are_the_lengths_of_paths_and_levels_hold_each_node_once(parents) -> None:
    found = depths(parents)
    assert found == [len(ancestors(parents, node)) - 1 for node in range(len(parents))]
    assert sorted(itertools.chain(*levels(parents))) == list(range(len(parents)))
    for depth, level in enumerate(levels(parents), start=1):
        assert {found[node] for node in level} == {depth}


@pytest.mark.parametrize("parents", [[0], [-1, 1], [1, 0], [-1, 2, 1], [-2], [-1, -1, 3]])
def test_parents_in_a_circle_or_out_of_order_are_refused(parents) -> None:
    with pytest.raises(ConfigError, match="does not stand before it"):
        depths(parents)


def test_a_full_tree_has_all_paths() -> None:
    tree = full_tree((4, 2, 2))
    assert tree.nodes == 4 + 8 + 16
    assert (tree.depth, tree.width, tree.widths) == (3, 4, (4, 8, 16))
    assert set(tree.paths) == {
        path
        for depth in (1, 2, 3)
        for path in itertools.product(*(range(1, children + 1) for children in (4, 2, 2)[:depth]))
    }
    leaves = [path for path in full_tree((3,) * 4).paths if len(path) == 4]
    assert len(leaves) == 81


@given(st.lists(st.integers(1, 5), min_size=4, max_size=6))
def test_a_top_3_tree_of_depth_4_accepts_the_longest_right_branch(ranks) -> None:
    tree = full_tree((3,) * 4)
    right = list(itertools.takewhile(lambda rank: rank <= 3, ranks[:4]))
    assert tree.accepted_depth(ranks) == len(right)


@pytest.mark.parametrize("tree", [
    chain_tree(1), chain_tree(5), full_tree((3,)), full_tree((4, 2, 2)), full_tree((3, 2, 1, 1)),
    TokenTree(((1,), (2,), (2, 1))), TokenTree(((1,), (1, 1), (2,), (1, 2))),
])  # fmt: skip
def test_a_tree_is_read_back_from_its_text(tree) -> None:
    assert set(tree_of_text(tree.text).paths) == set(tree.paths)


def test_choices_of_medusa_count_from_zero_and_come_in_any_order() -> None:
    tree = medusa_tree([[0, 0], [0], [1], [0, 0, 2]])  # a hole among siblings is fine
    assert tree.paths == ((1,), (2,), (1, 1), (1, 1, 3))
    assert tree.parents == (-1, -1, 0, 2)
    assert tree.width == 2


@pytest.mark.parametrize(("make", "words"), [
    (lambda: TokenTree(((1,), (1,))), "given twice"),
    (lambda: TokenTree(((1, 1), (1,))), "before its parent"),
    (lambda: medusa_tree([[0, 0]]), "before its parent"),
    (lambda: TokenTree(((0,),)), "no path"),
    (lambda: TokenTree(((),)), "no path"),
    (lambda: full_tree((4, 0)), "0 children"),
    (lambda: full_tree((9,) * 9), "more than"),
    (lambda: chain_tree(65), "too large"),
    (lambda: tree_of_text("4,x"), "not understood"),
    (lambda: tree_of_text(""), "not understood"),
    (lambda: tree_of_text("1;1.x"), "not understood"),
    (lambda: tree_of_text("0"), "depth 0"),
    (lambda: best_tree(0, 3, lambda _: [(1.0, 1)]), "0 nodes"),
])  # fmt: skip
def test_what_is_no_tree_is_refused_in_one_line(make, words) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


def all_trees(nodes: int, depth: int, ranks: int) -> set[frozenset[tuple[int, ...]]]:
    """Every tree of so many nodes."""
    trees = {frozenset[tuple[int, ...]]()}
    for _ in range(nodes):
        trees = {
            tree | {(*parent, rank)}
            for tree in trees
            for parent in (*tree, ())
            if len(parent) < depth
            for rank in range(1, ranks + 1)
            if (*parent, rank) not in tree
        }
    return trees


@pytest.mark.parametrize("seed", range(4))
def test_the_best_tree_is_the_best_of_all(seed) -> None:
    """Independent of depth, as Sequoia assumes, and not."""
    rng = np.random.default_rng(seed)
    same = np.sort(rng.dirichlet(np.ones(4))[:3])[::-1]
    for acceptance in (np.tile(same, (3, 1)), np.sort(rng.dirichlet(np.ones(4), 3)[:, :3])[:, ::-1]):
        for nodes in range(1, 7):
            best = tree_value(best_by_products(acceptance, nodes), acceptance)
            values = [
                tree_value(TokenTree(tuple(sorted(tree, key=lambda path: (len(path), path)))), acceptance)
                for tree in all_trees(nodes, 3, 3)
            ]
            assert best == pytest.approx(max(values), abs=1e-12)


def test_the_best_tree_of_eight_nodes_is_the_best_of_all() -> None:
    acceptance = np.tile([0.55, 0.25], (4, 1))
    values = [
        tree_value(TokenTree(tuple(sorted(tree, key=lambda path: (len(path), path)))), acceptance)
        for tree in all_trees(8, 4, 2)
    ]
    assert tree_value(best_by_products(acceptance, 8), acceptance) == pytest.approx(max(values), abs=1e-12)


def test_at_certainty_a_child_ties_its_parent_and_is_not_grown_without_it() -> None:
    assert best_by_products(np.array([[1.0, 0.0]] * 4), 4).paths == chain_tree(4).paths
    assert best_by_products(np.array([[1.0, 1.0]] * 2), 5).nodes == 5


def test_what_cannot_be_right_is_not_grown() -> None:
    assert best_by_products(np.array([[0.5, 0.0], [0.0, 0.0]]), 6).paths == ((1,),)


def test_a_tree_by_counts_covers_most_of_what_was_seen() -> None:
    rng = np.random.default_rng(3)
    seen = [tuple(path) for path in rng.geometric(0.6, (60, 3)).tolist()]
    counts: dict[tuple[int, ...], float] = {}
    for path in seen:
        for depth in (1, 2, 3):
            counts[path[:depth]] = counts.get(path[:depth], 0) + 1
    kept = {path: seen for path, seen in counts.items() if max(path) <= 3}

    def covered(tree: frozenset[tuple[int, ...]]) -> float:
        return sum(kept.get(path, 0) for path in tree)

    for nodes in range(1, 6):
        best = best_by_counts(kept, nodes, 3)
        assert covered(frozenset(best.paths)) == max(map(covered, all_trees(nodes, 3, 3)))
