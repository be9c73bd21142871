"""Exact speculative decoding of one sequence: draft, verify, commit.

Source: Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from spectune.decoding.verify import verify_chain, verify_greedy
from spectune.drafting import Drafter, Drafting, Proposal
from spectune.errors import ConfigError
from spectune.models.sampling import Sampling, probabilities
from spectune.models.scoring import CachedSequence, Scorer, require_finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One pass of the target: where it began, what was proposed and accepted, what was emitted."""

    start: int  # tokens emitted before this round
    proposed: int
    accepted: int
    token_ids: tuple[int, ...]  # accepted proposals, then the recovered or bonus token


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The tokens kept, and the rounds that made them; the last round may have emitted more than was kept."""

    token_ids: list[int]
    rounds: list[Round]
    ended: bool  # on an end-of-sequence token rather than at the limit


def speculative_rounds(
    target: CachedSequence,
    draft: Drafting,
    token_ids: list[int],
    num_speculative_tokens: int,
    sampling: Sampling,
    rng: np.random.Generator,
    name: str = "the target",
) -> Iterator[Round]:
    """Endless rounds on a sequence whose target cache holds all of `token_ids` but the last; both grow in step.

    With K = 0, or where the draft proposes nothing, a round is a plain decoding step.
    """
    prompt_length = len(token_ids)
    while True:
        proposal = draft.propose(token_ids, num_speculative_tokens, sampling) if num_speculative_tokens else _NOTHING
        drafted = proposal.draft_token_ids
        logits = target.extend([token_ids[-1], *drafted])
        require_finite(logits, name, ["being decoded"] * len(logits), len(token_ids))
        if sampling.greedy:
            accepted, next_token_id = verify_greedy(drafted, logits.argmax(-1).tolist())
        else:
            accepted, next_token_id = verify_chain(drafted, proposal.draft_probs, probabilities(logits, sampling), rng)
        emitted = (*drafted[:accepted], next_token_id)
        start = len(token_ids) - prompt_length
        token_ids.extend(emitted)
        target.crop(len(token_ids) - 1)
        yield Round(start=start, proposed=len(drafted), accepted=accepted, token_ids=emitted)


_NOTHING = Proposal(draft_token_ids=[])


def speculative_decode(
    target: Scorer,
    draft: Drafter,
    prompt: Sequence[int],
    K: int,  # noqa: N803 - the field's name for it
    temperature: float,
    *,
    max_new_tokens: int = 128,
    top_p: float = 1.0,
    top_k: int = 0,
    eos_token_ids: Collection[int] = (),
    seed: int = 0,
) -> Decoded:
    """Decode with K speculative tokens a round; the text is distributed exactly as plain sampling's.

    `prompt` is token ids, at least one. K = 0 is plain decoding. Raises: ConfigError for values out of range.
    """
    if not prompt:
        raise ConfigError("the prompt has no tokens", "give at least one token id")
    if K < 0 or max_new_tokens < 1:
        raise ConfigError(f"K is {K}, max_new_tokens {max_new_tokens}", "give K ≥ 0 and max_new_tokens ≥ 1")
    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k)
    rng = np.random.default_rng(seed)
    sequence, token_ids = target.open(), list(prompt)
    if len(token_ids) > 1:
        sequence.extend(token_ids[:-1])
    rounds: list[Round] = []
    for this_round in speculative_rounds(sequence, draft.open(rng), token_ids, K, sampling, rng):
        rounds.append(this_round)
        written = token_ids[len(prompt) :][:max_new_tokens]
        end = next((i for i in range(this_round.start, len(written)) if written[i] in eos_token_ids), None)
        if end is not None or len(written) == max_new_tokens:
            kept = written if end is None else written[: end + 1]
            return Decoded(token_ids=kept, rounds=rounds, ended=end is not None)
    raise AssertionError("rounds never end by themselves")
