"""Drafts: one Protocol, one file per method."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spectune.models.sampling import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Up to K proposed tokens; `draft_probs` is [k, vocab], None where each proposal is a point mass."""

    draft_token_ids: list[int]
    draft_probs: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Recorded text to collect evidence on: what the target was given, and what it wrote."""

    prompt_id: str
    prompt_token_ids: Sequence[int]
    token_ids: Sequence[int]
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What replay needs to know of a draft on one continuation, all [T].

    Drafts whose law at a position does not depend on the round's start fill the first three (and `overlaps`
    where the target's law is at hand); drafts that propose given tokens from each start fill the last two.
    """

    draft_logprobs: NDArray[np.float32] | None = None  # log q(x), after the sampling transform
    argmax_hits: NDArray[np.bool_] | None = None  # whether x is the likeliest under q
    ranks: NDArray[np.int32] | None = None  # of x under q; 1 = likeliest
    overlaps: NDArray[np.float32] | None = None  # Σ min(p, q)
    proposed_tokens: NDArray[np.int16] | None = None  # proposed by a round that starts here
    matched_tokens: NDArray[np.int16] | None = None  # how many of them are what the target wrote


class Drafting(Protocol):
    """One sequence being drafted for."""

    def propose(self, token_ids: Sequence[int], max_tokens: int, sampling: Sampling) -> Proposal:
        """Propose at most `max_tokens` tokens to follow `token_ids`, the whole sequence so far."""
        ...

    def fork(self, rng: np.random.Generator) -> "Drafting":
        """Another drafting that has read the same tokens, with its own chance."""
        ...


class Drafter(Protocol):
    """A drafting method."""

    def open(self, rng: np.random.Generator) -> Drafting:
        """Start on a sequence; `rng` feeds sampled drafts."""
        ...

    def evidence(self, continuations: Sequence[Continuation], max_k: int) -> list[Evidence]:
        """What replay needs, for each continuation."""
        ...
