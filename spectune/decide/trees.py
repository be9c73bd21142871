"""Which tree of a draft's likeliest tokens accepts most along recorded text: candidates, each replayed on it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spectune.replay import Floats, Ints, matched_in_tree, round_starts
from spectune.tree import Ranks, TokenTree, best_by_counts, best_by_products, chain_tree

WIDEST = 16  # ranks that are looked at
_REBUILT = 3  # times, from where a tree's own rounds start


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A tree, and what it would have done on text that the target already wrote."""

    tree: TokenTree
    matched: Ints  # [T, rows] tokens that a round at each position accepts
    starts: NDArray[np.bool_]  # [T, rows] where its rounds start

    def acceptance_length(self, window: Ints) -> float:
        """Tokens a round, over the rounds that start before `window`, [rows]."""
        counted = self.starts & (np.arange(len(self.starts))[:, None] < window)
        return 1.0 + float(self.matched[counted].mean()) if counted.any() else 1.0


def replayed_tree(ranks: Ints, tree: TokenTree) -> Replayed:
    """Along texts whose tokens have these ranks, [T, rows]; 0 beyond their end."""
    matched = matched_in_tree(ranks, tree)
    return Replayed(tree=tree, matched=matched, starts=round_starts(matched))


def best_replayed(ranks: Ints, nodes: int, depth: int, window: Ints) -> Replayed:
    """Of trees of so many nodes the one that accepts most, by its replay and not by what it was built from.

    Built from products of rank acceptance by depth, from whole paths of ranks, and the chain; rebuilt from where
    each tree's own rounds start.
    """
    best = replayed_tree(ranks, chain_tree(min(nodes, depth)))
    for build in (_by_products, _by_counts):
        starts = best.starts
        for _ in range(_REBUILT):
            tree = build(ranks, starts & (np.arange(len(ranks))[:, None] < window), nodes, depth)
            if tree is None:
                break
            candidate = replayed_tree(ranks, tree)
            if candidate.acceptance_length(window) > best.acceptance_length(window):
                best = candidate
            if (candidate.starts == starts).all():
                break
            starts = candidate.starts
    return best


def _by_products(ranks: Ints, starts: NDArray[np.bool_], nodes: int, depth: int) -> TokenTree | None:
    acceptance = rank_acceptance(ranks, starts, depth)
    return best_by_products(acceptance, nodes) if acceptance[0].any() else None


def _by_counts(ranks: Ints, starts: NDArray[np.bool_], nodes: int, depth: int) -> TokenTree | None:
    counts = Counter[Ranks]()
    for path in _paths(ranks, starts, depth):
        counts.update(path[:end] for end in range(1, len(path) + 1))
    return best_by_counts(counts, nodes, depth) if counts else None


def rank_acceptance(ranks: Ints, starts: NDArray[np.bool_], depth: int) -> Floats:  # [depth, WIDEST]
    """How often the text's token has each rank at each depth of the rounds that start there, the ones above being ranks
    that are looked at.
    """
    seen, reached = np.zeros((depth, WIDEST)), np.zeros(depth)
    for path in _paths(ranks, starts, depth):
        for place, rank in enumerate(path):
            seen[place, rank - 1] += 1
        reached[: len(path) + 1] += 1
    return np.asarray(seen / np.maximum(reached, 1)[:, None])


def _paths(ranks: Ints, starts: NDArray[np.bool_], depth: int) -> Iterator[Ranks]:
    """The ranks of what follows each start, up to the first that is not looked at."""
    length = len(ranks)
    for start, row in zip(*map(np.ndarray.tolist, np.nonzero(starts)), strict=True):
        path = ranks[start : min(start + depth, length), row]
        looked_at = (path >= 1) & (path <= WIDEST)
        yield tuple(path[: len(path) if looked_at.all() else int(np.argmin(looked_at))].tolist())
