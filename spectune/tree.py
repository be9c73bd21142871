"""Trees of proposed tokens: who follows whom, what each may attend to, and which tree to grow.

The root, the text's last token, is no node. Sources: Miao et al. 2023 (SpecInfer), arXiv 2305.09781; Cai et al. 2024
(Medusa), arXiv 2401.10774; Chen et al. 2024 (Sequoia), arXiv 2402.12374.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, pairwise

import numpy as np
from numpy.typing import NDArray

from spectune.errors import ConfigError

Ranks = tuple[int, ...]
"""A node by the ranks that lead to it, each among its parent's children; 1 = the draft's likeliest token."""

DEEPEST, MOST_NODES = 64, 4096


@dataclass(frozen=True)
class TokenTree:
    """Nodes by their rank paths, each behind its parent; siblings need not be neighbours.

    Raises: ConfigError for a node without its parent, one that is there twice, or a rank below 1.
    """

    paths: tuple[Ranks, ...]

    def __post_init__(self) -> None:
        places: dict[Ranks, int] = {(): -1}
        for place, path in enumerate(self.paths):
            if not path or min(path) < 1:
                raise ConfigError(f"tree path {_text(path)} is no path", "give ranks of at least 1, as in 1.2")
            if path in places:
                raise ConfigError(f"tree path {_text(path)} is given twice", "give each once")
            if path[:-1] not in places:
                raise ConfigError(f"tree path {_text(path)} comes before its parent", f"give {_text(path[:-1])} first")
            places[path] = place
        if self.depth > DEEPEST or len(self.paths) > MOST_NODES:
            problem = f"a tree of depth {self.depth} and {len(self.paths)} nodes is too large"
            raise ConfigError(problem, f"give a depth of at most {DEEPEST} and {MOST_NODES} nodes")

    @property
    def nodes(self) -> int:
        """How many tokens it proposes."""
        return len(self.paths)

    @property
    def depth(self) -> int:
        """Tokens of its longest path."""
        return max(map(len, self.paths), default=0)

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """[nodes] place of the node that each follows; −1: the root."""
        places: dict[Ranks, int] = {(): -1} | {path: place for place, path in enumerate(self.paths)}
        return tuple(places[path[:-1]] for path in self.paths)

    @property
    def widths(self) -> tuple[int, ...]:
        """Nodes of each depth."""
        return tuple(sum(len(path) == depth for path in self.paths) for depth in range(1, self.depth + 1))

    @property
    def width(self) -> int:
        """The most children of a node."""
        return max(Counter(path[:-1] for path in self.paths).values(), default=0)

    @property
    def is_chain(self) -> bool:
        """Whether it has the likeliest token behind each node and no other."""
        return all(set(path) == {1} for path in self.paths)

    def accepted_depth(self, ranks: Sequence[int]) -> int:
        """How far a text whose tokens have these ranks, by depth, leads down."""
        path: Ranks = ()
        for rank in ranks:
            if (*path, rank) not in self._places:
                break
            path = (*path, rank)
        return len(path)

    @cached_property
    def _places(self) -> frozenset[Ranks]:
        return frozenset(self.paths)

    @property
    def text(self) -> str:
        """As from_text reads it: a chain by its length, a tree of equal siblings by its children, others by paths."""
        children = _children_by_depth(self)
        if self.is_chain:
            return f"{self.depth}"
        if children is not None and self.depth > 1:
            return ",".join(map(str, children))
        return ";".join(map(_text, self.paths))


def depths(parents: Sequence[int]) -> list[int]:
    """[nodes] of each node, 1 behind the root.

    Raises: ConfigError for parents that do not stand before their children, as in a circle.
    """
    found: list[int] = []
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            problem = f"node {node} of a tree follows node {parent}, which does not stand before it"
            raise ConfigError(problem, "order nodes so that parents come first; −1 is the root")
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def attention_mask(parents: Sequence[int]) -> NDArray[np.bool_]:  # [1 + nodes, 1 + nodes]
    """Which of root and nodes each may attend to: itself and its ancestors. Row 0 is the root."""
    mask = np.eye(len(parents) + 1, dtype=bool)
    for node, parent in enumerate(parents, start=1):
        mask[node] |= mask[parent + 1]
    return mask


def chain_tree(num_speculative_tokens: int) -> TokenTree:
    """K tokens, each after the one before."""
    return TokenTree(tuple((1,) * depth for depth in range(1, num_speculative_tokens + 1)))


def full_tree(children: Sequence[int]) -> TokenTree:
    """Every node of a depth has as many children: 4,2,2 has 4 + 8 + 16 nodes. Level by level."""
    paths: list[Ranks] = []
    level: list[Ranks] = [()]
    total = 0
    for here in children:
        if here < 1:
            raise ConfigError(f"a tree with {here} children", "give at least 1 for each depth, as in 4,2,2")
        total += len(level) * here
        if total > MOST_NODES:
            raise ConfigError(f"a tree of more than {MOST_NODES} nodes", "give fewer children or a smaller depth")
        level = [(*path, rank) for path in level for rank in range(1, here + 1)]
        paths += level
    return TokenTree(tuple(paths))


def medusa_tree(choices: Iterable[Sequence[int]]) -> TokenTree:
    """From paths of ranks that count from 0, as Medusa's and EAGLE's choices do, in any order."""
    paths = [tuple(rank + 1 for rank in path) for path in choices]
    return TokenTree(tuple(sorted(paths, key=lambda path: (len(path), path))))


def tree_of_text(text: str) -> TokenTree:
    """`4,2,2`: children of every node by depth; `5`: a chain of five; `1;2;1.1`: paths of ranks.

    Raises: ConfigError for what is none of these.
    """
    try:
        if ";" in text or "." in text:
            paths = [tuple(map(int, part.split("."))) for part in text.split(";") if part]
            return TokenTree(tuple(paths))
        numbers = [int(part) for part in text.split(",")]
    except ValueError as error:
        remedy = "write children by depth, as in 4,2,2, or paths of ranks, as in 1;2;1.1"
        raise ConfigError(f"tree {text!r} is not understood", remedy) from error
    if "," in text:
        return full_tree(numbers)
    if not 1 <= numbers[0] <= DEEPEST:
        raise ConfigError(f"a tree of depth {numbers[0]}", f"give 1 to {DEEPEST}")
    return chain_tree(numbers[0])


Children = Callable[[Ranks], Sequence[tuple[float, int]]]
"""Of a node: how likely each child is the text's, and its rank; the likeliest first, none above the node's."""


def best_tree(nodes: int, depth: int, children: Children) -> TokenTree:
    """The likeliest nodes: where chances are those of the text, no tree of as many nodes accepts more tokens.

    What cannot be the text's is not grown. Raises: ConfigError for a budget of no nodes.
    """
    if nodes < 1 or depth < 1:
        raise ConfigError(f"a tree of {nodes} nodes and depth {depth}", "give at least 1 of each")
    chosen: list[Ranks] = []
    order = count()  # of equal chances the one that was found first, a parent before its child
    heap: list[tuple[float, int, Ranks, Sequence[tuple[float, int]], int]] = []

    def offer(parent: Ranks, siblings: Sequence[tuple[float, int]], place: int) -> None:
        if place < len(siblings) and siblings[place][0] > 0.0:
            chance, rank = siblings[place]
            heapq.heappush(heap, (-chance, next(order), (*parent, rank), siblings, place))

    offer((), children(()), 0)
    while heap and len(chosen) < nodes:
        *_, path, siblings, place = heapq.heappop(heap)
        chosen.append(path)
        if len(path) < depth:
            offer(path, children(path), 0)
        offer(path[:-1], siblings, place + 1)
    return TokenTree(tuple(chosen))


def best_by_products(acceptance: NDArray[np.float64], nodes: int) -> TokenTree:
    """From acceptance[d, ρ], how likely rank ρ + 1 is the text's at depth d + 1 where its parent is; as Sequoia, but
    depth by depth: ranks of different depths are taken as independent.
    """
    ranked = [sorted(((float(a), rank) for rank, a in enumerate(row, start=1)), reverse=True) for row in acceptance]
    chances: dict[Ranks, float] = {(): 1.0}

    def children(path: Ranks) -> list[tuple[float, int]]:
        below = [(chances[path] * chance, rank) for chance, rank in ranked[len(path)]]
        chances.update({(*path, rank): chance for chance, rank in below})
        return below

    return best_tree(nodes, len(acceptance), children)


def best_by_counts(counts: Mapping[Ranks, float], nodes: int, depth: int) -> TokenTree:
    """From how often texts went down each path: ranks of different depths may go together, as hard text has them."""
    below: dict[Ranks, list[tuple[float, int]]] = {}
    for path, seen in counts.items():
        below.setdefault(path[:-1], []).append((seen, path[-1]))
    return best_tree(nodes, depth, lambda path: sorted(below.get(path, ()), key=lambda child: (-child[0], child[1])))


def rank_table(given: Sequence[str], tree: TokenTree) -> NDArray[np.float64]:
    """[depth, ranks] from `0.6,0.2,0.1` for every depth, or one such text for each; ranks not told are never right.

    Raises: ConfigError for what are no chances, or too few for the tree.
    """
    try:
        rows = [[float(part) for part in text.split(",")] for text in given]
    except ValueError as error:
        raise ConfigError(f"rank acceptance {','.join(given)!r} is not understood", "write 0.6,0.2,0.1") from error
    for row in rows:
        if not all(0.0 <= chance <= 1.0 for chance in row) or sum(row) > 1.0 + 1e-9:
            problem = f"rank acceptances {', '.join(f'{chance:g}' for chance in row)} are no chances of one token"
            raise ConfigError(problem, "give numbers from 0 to 1 that add up to at most 1")
    if len(rows) not in (1, tree.depth):
        problem = f"{len(rows)} rank acceptances for a tree of depth {tree.depth}"
        raise ConfigError(problem, "give one for all depths, or one for each")
    ranks = max(path[-1] for path in tree.paths)
    if min(map(len, rows)) < ranks:
        raise ConfigError(f"the tree takes {ranks} ranks, fewer are told", f"give {ranks} numbers, or a narrower tree")
    table = np.zeros((tree.depth, max(map(len, rows))))
    for depth in range(tree.depth):
        row = rows[depth if len(rows) > 1 else 0]
        table[depth, : len(row)] = row
    return table


def tree_value(tree: TokenTree, acceptance: NDArray[np.float64]) -> float:
    """Expected tokens of a round where ranks are independent across depths, the bonus token included."""
    return 1.0 + sum(
        float(np.prod([acceptance[place, rank - 1] for place, rank in enumerate(path)])) for path in tree.paths
    )


def _children_by_depth(tree: TokenTree) -> list[int] | None:
    """Children of every node by depth, where they are equal."""
    widths = (1, *tree.widths)
    if any(after % before for before, after in pairwise(widths)):
        return None
    children = [after // before for before, after in pairwise(widths)]
    return children if set(full_tree(children).paths) == tree._places else None


def bushy(nodes: int) -> list[int]:
    """Parents of a tree with two children each: what a tree costs, whichever it is."""
    return [node // 2 - 1 for node in range(nodes)]


def levels(parents: Sequence[int]) -> Iterator[list[int]]:
    """Places of the nodes of each depth."""
    of = depths(parents)
    for depth in range(1, max(of, default=0) + 1):
        yield [node for node, own in enumerate(of) if own == depth]


def _text(path: Ranks) -> str:
    return ".".join(map(str, path)) or "the root"
