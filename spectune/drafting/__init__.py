"""Drafts: one Protocol, one file per method, one row each in spectune.drafting_spec."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spectune.choice import Shape
from spectune.drafting_spec import METHODS, DraftSpec
from spectune.models.loading import LanguageModel
from spectune.models.sampling import Sampling
from spectune.models.scoring import Features, Forward, Repeatable, Scorer


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Proposed tokens; leading axes are rows."""

    draft_token_ids: Tensor  # [..., k]
    draft_probs: Tensor | None = None  # [..., k, vocab]; None: each proposal is a point mass
    parents: Tensor | None = None  # [..., k] place of the proposal that each follows, −1 the text; None: a chain


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Recorded text to collect evidence on: what the target was given, and what it wrote."""

    prompt_id: str
    prompt_token_ids: Sequence[int]
    token_ids: Sequence[int]
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The target's pass over a continuation, as far as it tells."""

    logprobs: NDArray[np.float64] | None  # [T] after the sampling transform
    features: Features = field(default_factory=dict)  # of the layers that a draft asks for, [prompt + T, hidden] each


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What replay needs to know of a draft on one continuation, all [T].

    Drafts whose law at a position does not depend on the round's start fill the first three; drafts that propose given
    tokens from each start fill the next two, and the last where what they propose is a tree: there a rank is the place
    in the order in which nodes are grown, so that a tree of n nodes has those up to n.
    """

    draft_logprobs: NDArray[np.float32] | None = None  # log q(x), after the sampling transform
    argmax_hits: NDArray[np.bool_] | None = None  # whether x is the likeliest under q
    ranks: NDArray[np.int32] | None = None  # of x under q; 1 = likeliest
    proposed_tokens: NDArray[np.int16] | None = None  # proposed by a round that starts here
    matched_tokens: NDArray[np.int16] | None = None  # how many of them are what the target wrote
    start_ranks: list[list[int]] | None = (
        None  # of x at each depth of a round that starts here, as far as it is matched
    )


class Drafting(Protocol):
    """One sequence being drafted for."""

    def propose(self, token_ids: Sequence[int], shape: Shape, sampling: Sampling) -> Proposal:
        """Propose tokens of at most that shape to follow `token_ids`, the whole sequence so far."""

    def observe(self, committed: Forward) -> None:
        """Hear the target's forward over the tokens that are now part of the text: the prompt's, then each round's."""

    def fork(self, rng: np.random.Generator) -> "Drafting":
        """Another drafting that has read the same tokens, with its own chance."""


class Drafter(Protocol):
    """A drafting method."""

    @property
    def model(self) -> LanguageModel | None:
        """The weights that it drafts with, if any."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Whose hidden states it wants of the target; 0 is the embedding."""

    def open(self, rng: np.random.Generator) -> Drafting:
        """Start on a sequence; `rng` feeds sampled drafts."""

    def evidence(
        self, continuations: Sequence[Continuation], scored: Sequence[Scored], largest: Shape
    ) -> list[Evidence]:
        """What replay needs, for each continuation, to price every shape up to the largest; `scored` is the target's
        pass over each, with `layers`.
        """

    def work(self, context: Sequence[int], rows: int, shape: Shape, sampling: Sampling) -> Mapping[int, Repeatable]:
        """What proposing takes, to be timed: a step over n tokens for each n, or a whole proposal under 1."""

    def through(self, wrap: Callable[[Scorer], Scorer]) -> "Drafter":
        """The same drafter whose forwards pass through `wrap`."""


Load = Callable[[str], LanguageModel]


def open_draft(draft: DraftSpec, target: LanguageModel, load: Load) -> Drafter:
    """The drafter of a SPEC, for this target; `load` gives the model of a name.

    Raises: ConfigError, IncompatibleModelsError where the two do not go together.
    """
    opener = METHODS[draft.method].opener
    assert opener is not None, "a method that is measured"
    module, _, function = opener.partition(":")
    opened = getattr(import_module(module), function)(draft, target, load)
    return cast(Drafter, opened)
