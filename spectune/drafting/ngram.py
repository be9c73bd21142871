"""N-gram drafts (prompt lookup): propose what followed the same few tokens earlier in the sequence.

Source: prompt lookup decoding (Saxena 2023); the semantics of prompt_lookup_min and _max are vLLM's. Trees of several
occurrences are our own, with the escapes of Cleary and Witten 1984 (PPM, method A).
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from spectune.choice import Shape
from spectune.drafting import Continuation, Evidence, Load, Proposal, Scored
from spectune.drafting_spec import DraftSpec
from spectune.errors import ConfigError
from spectune.models.loading import LanguageModel
from spectune.models.sampling import Sampling
from spectune.models.scoring import Forward, Repeatable, Scorer


def open_ngram(draft: DraftSpec, target: LanguageModel, load: Load) -> "NgramDrafter":
    """Of its bounds alone."""
    del target, load
    return NgramDrafter(min_tokens=draft.min_tokens, max_tokens=draft.max_tokens, branches=draft.branches)


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramDrafter:
    """The longest suffix of min..max tokens that occurred before; its earliest occurrence; what followed it.

    With branches, all occurrences of all such suffixes, merged into a tree of at most so many children a node.
    """

    min_tokens: int = 1
    max_tokens: int = 4
    branches: int = 1
    model: LanguageModel | None = None
    layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.min_tokens <= self.max_tokens:
            problem = f"n-gram min={self.min_tokens}, max={self.max_tokens}"
            raise ConfigError(problem, "give 1 ≤ min ≤ max, for example ngram:min=1,max=4")

    def open(self, rng: np.random.Generator) -> "NgramDrafter":
        """N-gram keeps no state between rounds."""
        del rng
        return self

    def fork(self, rng: np.random.Generator) -> "NgramDrafter":
        """As `open`."""
        return self.open(rng)

    def through(self, wrap: Callable[[Scorer], Scorer]) -> "NgramDrafter":
        """It has no forwards."""
        del wrap
        return self

    def observe(self, committed: Forward) -> None:
        """The text is all it looks at."""

    def propose(self, token_ids: Sequence[int], shape: Shape, sampling: Sampling) -> Proposal:
        """Point masses on the tokens that followed; none where no suffix recurs."""
        del sampling
        if self.branches == 1:
            return Proposal(draft_token_ids=torch.from_numpy(self.lookup(np.asarray(token_ids), shape.depth)))
        drafted, parents = self.grown(np.asarray(token_ids), shape)
        forked = parents != list(range(-1, len(parents) - 1))
        return Proposal(
            draft_token_ids=torch.tensor(drafted, dtype=torch.long), parents=torch.tensor(parents) if forked else None
        )

    def lookup(
        self,
        token_ids: np.ndarray,  # [length]
        max_tokens: int,
    ) -> np.ndarray:  # [at most max_tokens]
        """The proposal after `token_ids`; it ends where the sequence does."""
        lengths = _suffix_matches(token_ids, self.max_tokens)
        longest = int(lengths.max(initial=0))
        if longest < self.min_tokens:
            return token_ids[:0]
        follow = int(np.argmax(lengths == longest)) + 1
        return token_ids[follow : follow + max_tokens]

    def grown(self, token_ids: np.ndarray, shape: Shape) -> tuple[list[int], list[int]]:  # token ids, parents
        """The likeliest nodes after `token_ids`, each behind its parent; of equal ones the more recent.

        An occurrence counts by how long its match is, as PPM escapes to shorter contexts; a node that n occurrences
        lead to goes on with n of n + 1. A tree of fewer nodes is the start of one of more.
        """
        lengths = _suffix_matches(token_ids, self.max_tokens)
        ends = np.flatnonzero(lengths >= self.min_tokens)
        following = [token_ids[end + 1 : end + 1 + shape.depth].tolist() for end in ends.tolist()]
        growth = _Growth(following, _weights(lengths[ends].tolist()), self.branches)
        growth.grow(shape.nodes)
        return growth.token_ids, growth.parents

    def work(self, context: Sequence[int], rows: int, shape: Shape, sampling: Sampling) -> Mapping[int, Repeatable]:
        """A lookup in each row."""

        def look_up() -> None:
            for _ in range(rows):
                self.propose(context, shape, sampling)

        return {1: Repeatable(run=look_up)}

    def evidence(
        self, continuations: Sequence[Continuation], scored: Sequence[Scored], largest: Shape
    ) -> list[Evidence]:
        """For a round at each position: how much it proposes and how much of that the target wrote."""
        del scored
        collect = self._evidence if self.branches == 1 else self._tree_evidence
        return [collect(continuation, largest) for continuation in continuations]

    def _tree_evidence(self, continuation: Continuation, largest: Shape) -> Evidence:
        sequence, written = np.array([*continuation.prompt_token_ids, *continuation.token_ids]), continuation.token_ids
        first, proposed, start_ranks = len(continuation.prompt_token_ids), [], []
        for start in range(len(written)):
            drafted, parents = self.grown(sequence[: first + start], largest)
            nodes, at, ranks = list(zip(parents, drafted, strict=True)), -1, []
            for token in written[start : start + largest.depth]:
                if (at, token) not in nodes:
                    break
                at = nodes.index((at, token))
                ranks.append(at + 1)
            proposed.append(len(drafted))
            start_ranks.append(ranks)
        return Evidence(
            proposed_tokens=np.array(proposed, np.int16),
            matched_tokens=np.array([len(ranks) for ranks in start_ranks], np.int16),
            start_ranks=start_ranks,
        )

    def _evidence(self, continuation: Continuation, largest: Shape) -> Evidence:
        max_k = largest.depth
        sequence = np.array([*continuation.prompt_token_ids, *continuation.token_ids])
        count = len(continuation.token_ids)
        first = len(sequence) - count
        proposed, matched = np.zeros((2, count), dtype=np.int16)
        for start in range(count):
            proposal = self.lookup(sequence[: first + start], max_k)
            truth = sequence[first + start : first + start + len(proposal)]
            proposed[start] = len(proposal)
            matched[start] = np.cumprod(proposal[: len(truth)] == truth).sum()
        return Evidence(proposed_tokens=proposed, matched_tokens=matched)


class _Growth:
    """A tree of what followed each occurrence, the earliest first, by how much each of them weighs."""

    def __init__(self, following: Sequence[Sequence[int]], weights: Sequence[float], branches: int) -> None:
        self.token_ids: list[int] = []
        self.parents: list[int] = []
        self._following, self._weights, self._branches = following, weights, branches
        self._depths = {-1: 0}
        # −likelihood, −the most recent occurrence, token, parent, all occurrences
        self._open: list[tuple[float, int, int, int, list[int]]] = []
        self._offer(-1, sum(weights), list(range(len(following))))

    def grow(self, nodes: int) -> None:
        """Take the likeliest open node, and open its children, up to so many nodes."""
        while self._open and len(self.parents) < nodes:
            negative, _, token, parent, own = heapq.heappop(self._open)
            place = len(self.parents)
            self.token_ids.append(token)
            self.parents.append(parent)
            self._depths[place] = self._depths[parent] + 1
            self._offer(place, -negative * len(own) / (len(own) + 1), own)

    def _offer(self, node: int, likelihood: float, occurrences: Sequence[int]) -> None:
        """Open the likeliest children of a node, which share what it passes on."""
        children, depth = defaultdict(list), self._depths[node]
        for occurrence in occurrences:
            if depth < len(self._following[occurrence]):
                children[self._following[occurrence][depth]].append(occurrence)
        total = sum(self._weights[occurrence] for occurrence in occurrences)
        kept = [
            (-likelihood * sum(self._weights[one] for one in own) / total, -own[-1], token, node, own)
            for token, own in children.items()
        ]
        for child in sorted(kept)[: self._branches]:
            heapq.heappush(self._open, child)


def _weights(matches: Sequence[int]) -> list[float]:
    """Of occurrences that match so many tokens: c of c + 1 go to the c longest, what is left to the next."""
    left, weight_of = 1.0, {}
    for length, equal in groupby(sorted(matches, reverse=True)):
        count = len(list(equal))
        weight_of[length] = left / (count + 1)
        left /= count + 1
    return [weight_of[length] for length in matches]


def _suffix_matches(token_ids: np.ndarray, longest: int) -> np.ndarray:
    """For each earlier end position, how many tokens before it equal the sequence's last, at most `longest`."""
    length = len(token_ids)
    matches = np.zeros(max(length - 1, 0), dtype=np.int64)
    alive = np.ones(len(matches), dtype=bool)
    for back in range(min(longest, length - 1)):
        alive[back:] &= token_ids[: length - 1 - back] == token_ids[length - 1 - back]
        alive[:back] = False
        if not alive.any():
            break
        matches += alive
    return matches
