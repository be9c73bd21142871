"""N-gram drafts (prompt lookup): propose what followed the same few tokens earlier in the sequence.

Source: prompt lookup decoding (Saxena 2023); the semantics of prompt_lookup_min and _max are vLLM's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
    return NgramDrafter(min_tokens=draft.min_tokens, max_tokens=draft.max_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramDrafter:
    """The longest suffix of min..max tokens that occurred before; its earliest occurrence; what followed it."""

    min_tokens: int = 1
    max_tokens: int = 4
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
        return Proposal(draft_token_ids=torch.from_numpy(self.lookup(np.asarray(token_ids), shape.depth)))

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

    def work(self, context: Sequence[int], rows: int, shape: Shape, sampling: Sampling) -> Mapping[int, Repeatable]:
        """A lookup in each row."""

        def look_up() -> None:
            for _ in range(rows):
                self.propose(context, shape, sampling)

        return {1: Repeatable(run=look_up)}

    def evidence(self, continuations: Sequence[Continuation], scored: Sequence[Scored], max_k: int) -> list[Evidence]:
        """For a round at each position: how much it proposes and how much of that the target wrote."""
        del scored
        return [self._evidence(continuation, max_k) for continuation in continuations]

    def _evidence(self, continuation: Continuation, max_k: int) -> Evidence:
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
