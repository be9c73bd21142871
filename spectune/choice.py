"""What may be chosen: a draft, the shape of what it proposes in a round, a temperature. The one key of every figure."""

from dataclasses import dataclass

from spectune.tree import TokenTree

LONGEST = 1000
"""The largest K, depth or width that anything is asked about."""
LONGEST_MEASURED = 64
"""The largest K that is measured."""


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """At most `nodes` proposals in at most `depth` draft steps; a chain of K has K of both, plain decoding none."""

    depth: int
    nodes: int
    tree: str = ""  # a tree that is always the same, as TokenTree.text; empty: a chain, or as the draft grows it

    @property
    def verified_tokens(self) -> int:
        """N of the target's forward: the last token emitted and every proposal."""
        return self.nodes + 1


def chain(num_speculative_tokens: int) -> Shape:
    """K proposals, each after the one before."""
    return Shape(num_speculative_tokens, num_speculative_tokens)


def branching(tree: TokenTree) -> Shape:
    """That tree in every round; one without branches is a chain."""
    return chain(tree.depth) if tree.is_chain else Shape(tree.depth, tree.nodes, tree.text)


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to decode; without a draft it is plain decoding."""

    draft: str | None  # its SPEC
    shape: Shape
    temperature: float

    @property
    def num_speculative_tokens(self) -> int:
        """K: of a tree its depth, of plain decoding 0."""
        return self.shape.depth


def plain(temperature: float) -> Choice:
    """One token a round."""
    return Choice(None, chain(0), temperature)
