"""Exact speculative decoding of one sequence: draft, verify, commit.

Source: Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spectune.choice import Shape, branching, chain
from spectune.decoding.verify import Verified, verify_chain, verify_greedy, verify_tree
from spectune.drafting import Drafter, Drafting, Proposal
from spectune.errors import ConfigError
from spectune.models.sampling import Sampling, drawn, probabilities
from spectune.models.scoring import CachedSequence, Forward, Scorer, require_finite
from spectune.tree import TokenTree, attention_mask


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
    draft: Drafting | None,
    token_ids: list[int],
    shape: Shape,
    sampling: Sampling,
    rng: np.random.Generator,
    name: str = "the target",
) -> Iterator[Round]:
    """Endless rounds on a sequence whose target cache holds all of `token_ids` but the last; both grow in step.

    Without a draft, or where it proposes nothing, a round is a plain decoding step.
    """
    prompt_length = len(token_ids)
    while True:
        proposal = draft.propose(token_ids, shape, sampling) if draft and shape.nodes else _NOTHING
        forward = _extended(target, token_ids, proposal)
        require_finite(forward.logits, name, ["being decoded"] * len(forward.logits), len(token_ids))
        verified = _verify(proposal, forward.logits, shape.depth, sampling, rng)
        path, emitted = _settled(proposal, verified)
        start, cached = len(token_ids) - prompt_length, len(token_ids) - 1
        token_ids.extend(emitted)
        committed: slice | Tensor = slice(len(emitted))  # of what the pass was over
        if proposal.parents is None:
            target.keep(len(token_ids) - 1)
        else:
            committed = torch.tensor([0, *(place + 1 for place in path)])
            target.keep(cached, committed)
        if draft:
            draft.observe(forward.at(committed))
        proposed = len(proposal.draft_token_ids)
        yield Round(start=start, proposed=proposed, accepted=len(path), token_ids=emitted)


_NOTHING = Proposal(draft_token_ids=torch.empty(0, dtype=torch.long))


def _extended(target: CachedSequence, token_ids: Sequence[int], proposal: Proposal) -> Forward:
    """The target's pass over the text's last token and all proposals."""
    drafted = proposal.draft_token_ids
    ids = torch.cat([torch.tensor(token_ids[-1:], device=drafted.device), drafted])
    if proposal.parents is None:
        return target.extend(ids)
    mask = torch.from_numpy(attention_mask(proposal.parents.tolist())).to(drafted.device)
    return target.extend(ids, len(token_ids) - 2 + mask.sum(-1), mask)


def _verify(proposal: Proposal, logits: Tensor, depth: int, sampling: Sampling, rng: np.random.Generator) -> Verified:
    drafted = proposal.draft_token_ids.to(logits.device)
    if proposal.parents is not None:
        own, _ = drawn(logits, sampling, torch.from_numpy(rng.random(len(logits))).to(logits.device))
        return verify_tree(drafted, proposal.parents.to(logits.device), depth, own)
    if sampling.greedy:
        return verify_greedy(drafted, logits.argmax(-1))
    uniforms = torch.from_numpy(rng.random(len(drafted) + 1)).to(logits.device)
    draft_probs = None if proposal.draft_probs is None else proposal.draft_probs.to(logits.device)
    return verify_chain(drafted, draft_probs, probabilities(logits, sampling), uniforms)


def _settled(proposal: Proposal, verified: Verified) -> tuple[list[int], tuple[int, ...]]:
    """Places of the accepted proposals, and all that is emitted: the one time a round waits for the device."""
    drafted = proposal.draft_token_ids.to(verified.path.device)
    *read, next_token_id = torch.cat([drafted, verified.path, verified.next_token_id[None]]).tolist()
    proposed, path = read[: len(drafted)], [place for place in read[len(drafted) :] if place >= 0]
    return path, (*(proposed[place] for place in path), next_token_id)


def speculative_decode(
    target: Scorer,
    draft: Drafter,
    prompt: Sequence[int],
    K: int | TokenTree,  # noqa: N803 - the field's name for it
    temperature: float,
    *,
    max_new_tokens: int = 128,
    top_p: float = 1.0,
    top_k: int = 0,
    eos_token_ids: Collection[int] = (),
    seed: int = 0,
) -> Decoded:
    """Decode with K speculative tokens a round, or a tree of them; the text is distributed exactly as plain sampling's.

    `prompt` is token ids, at least one. K = 0 is plain decoding. Raises: ConfigError for values out of range.
    """
    if not prompt:
        raise ConfigError("the prompt has no tokens", "give at least one token id")
    shape = branching(K) if isinstance(K, TokenTree) else chain(K)
    if shape.depth < 0 or max_new_tokens < 1:
        raise ConfigError(f"K is {K}, max_new_tokens {max_new_tokens}", "give K ≥ 0 and max_new_tokens ≥ 1")
    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k)
    rng = np.random.default_rng(seed)
    drafting, token_ids = draft.open(rng), list(prompt)
    sequence = read_prompt(target, [drafting], token_ids, draft.layers)
    rounds: list[Round] = []
    for this_round in speculative_rounds(sequence, drafting, token_ids, shape, sampling, rng):
        rounds.append(this_round)
        written = token_ids[len(prompt) :][:max_new_tokens]
        end = next((i for i in range(this_round.start, len(written)) if written[i] in eos_token_ids), None)
        if end is not None or len(written) == max_new_tokens:
            kept = written if end is None else written[: end + 1]
            return Decoded(token_ids=kept, rounds=rounds, ended=end is not None)
    raise AssertionError("rounds never end by themselves")


def read_prompt(
    target: Scorer, draftings: Iterable[Drafting], token_ids: Sequence[int], layers: Sequence[int] = ()
) -> CachedSequence:
    """The target's sequence with all of a prompt cached but its last token; the drafts hear of it."""
    sequence = target.open(layers)
    if len(token_ids) > 1:
        forward = sequence.read(torch.tensor(token_ids[:-1], device=target.device))
        for drafting in draftings:
            drafting.observe(forward)
    return sequence
