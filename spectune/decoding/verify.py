"""The exact rule for a chain: accept while r < p/q, then the recovered or the bonus token.

Source: Leviathan et al. 2023, arXiv 2211.17192, Algorithm 1; Chen et al. 2023, arXiv 2302.01318.
"""

import numpy as np
import torch
from torch import Tensor

from spectune.models.sampling import sample


def acceptance_probability(target_prob: float, draft_prob: float) -> float:
    """min(1, p/q) of a proposed token; 1 for a draft probability of 0 cannot arise, since it was proposed."""
    return min(1.0, target_prob / draft_prob)


def residual_distribution(
    target_probs: Tensor,  # [vocab]
    draft_probs: Tensor,  # [vocab]
) -> Tensor:  # [vocab]
    """Distribution to sample from after a rejection: max(0, p − q), normalised.

    Raises: ValueError where p == q, which cannot be rejected.
    Source: Leviathan et al. 2023, arXiv 2211.17192, Algorithm 1.
    """
    excess = (target_probs - draft_probs).clamp(min=0.0)
    total = excess.sum()
    if not total > 0:
        raise ValueError("target and draft agree: nothing can have been rejected")
    return excess / total


def verify_chain(
    draft_token_ids: list[int],  # k proposals
    draft_probs: Tensor | None,  # [k, vocab]; None = point masses
    target_probs: Tensor,  # [k + 1, vocab]
    rng: np.random.Generator,
) -> tuple[int, int]:
    """How many proposals are accepted, and the token after them (recovered or bonus).

    The tokens emitted are distributed as if sampled from the target one by one, whatever the draft.
    """
    accepted = 0
    for position, token_id in enumerate(draft_token_ids):
        target_prob = float(target_probs[position, token_id])
        draft_prob = 1.0 if draft_probs is None else float(draft_probs[position, token_id])
        if rng.random() >= acceptance_probability(target_prob, draft_prob):
            draft_row = _draft_row(draft_probs, position, token_id, target_probs)
            return accepted, _draw(residual_distribution(target_probs[position], draft_row), rng)
        accepted += 1
    return accepted, _draw(target_probs[accepted], rng)


def verify_greedy(
    draft_token_ids: list[int],  # k proposals
    target_token_ids: list[int],  # k + 1 argmaxes of the target
) -> tuple[int, int]:
    """The rule at T = 0: accept while the proposal is the target's argmax; then that argmax."""
    for accepted, token_id in enumerate(draft_token_ids):
        if token_id != target_token_ids[accepted]:
            return accepted, target_token_ids[accepted]
    return len(draft_token_ids), target_token_ids[-1]


def _draft_row(draft_probs: Tensor | None, position: int, token_id: int, target_probs: Tensor) -> Tensor:
    if draft_probs is not None:
        return draft_probs[position]
    return torch.nn.functional.one_hot(torch.tensor(token_id), target_probs.shape[-1]).to(target_probs)


def _draw(probs: Tensor, rng: np.random.Generator) -> int:
    return int(sample(probs[None], torch.tensor([rng.random()], dtype=torch.float64))[0])
