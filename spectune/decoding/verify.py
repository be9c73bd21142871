"""The exact rule: of a chain accept while r < p/q, of a tree follow the target's own token; then one token more.

Leading axes are rows, so that nothing here waits for the device. Source: Leviathan et al. 2023, arXiv 2211.17192,
Algorithm 1; Chen et al. 2023, arXiv 2302.01318; trees: Miao et al. 2023, arXiv 2305.09781.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from spectune.models.sampling import sample


@dataclass(frozen=True, slots=True)
class Verified:
    """Which proposals are accepted, each after the one before, and the token after them (recovered or bonus)."""

    path: Tensor  # [..., depth] places among the proposals, −1 behind the last accepted
    next_token_id: Tensor  # [...]


def acceptance_probability(
    target_probs: Tensor,  # [...]
    draft_probs: Tensor,  # [...]
) -> Tensor:  # [...]
    """min(1, p/q) of proposed tokens; a draft probability of 0 cannot arise, since they were proposed."""
    return (target_probs / draft_probs).clamp(max=1.0)


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
    draft_token_ids: Tensor,  # [k]
    draft_probs: Tensor | None,  # [k, vocab]; None = point masses
    target_probs: Tensor,  # [k + 1, vocab]
    uniforms: Tensor,  # [k + 1] in [0, 1): one for each proposal, the last for the token after them
) -> Verified:
    """The tokens emitted are distributed as if sampled from the target one by one, whatever the draft."""
    count, proposed = len(draft_token_ids), draft_token_ids[:, None]
    target_of_proposed = target_probs[:count].gather(-1, proposed)[:, 0]
    draft_of_proposed = torch.ones_like(target_of_proposed)
    if draft_probs is not None:
        draft_of_proposed = draft_probs.gather(-1, proposed)[:, 0]
    accepts = uniforms[:count] < acceptance_probability(target_of_proposed, draft_of_proposed)
    path, accepted = _until_first_refusal(accepts)
    law = target_probs[accepted]
    if (place := int(accepted)) < count:
        refused = one_hot(draft_token_ids[place], law.shape[-1]) if draft_probs is None else draft_probs[place]
        law = residual_distribution(law, refused)
    return Verified(path, sample(law, uniforms[-1]))


def verify_greedy(
    draft_token_ids: Tensor,  # [..., k]
    target_token_ids: Tensor,  # [..., k + 1] argmaxes of the target
) -> Verified:
    """The rule at T = 0: accept while the proposal is the target's argmax; then that argmax."""
    path, accepted = _until_first_refusal(draft_token_ids == target_token_ids[..., :-1])
    return Verified(path, target_token_ids.gather(-1, accepted[..., None])[..., 0])


def verify_tree(
    draft_token_ids: Tensor,  # [..., nodes]
    parents: Tensor,  # [..., nodes] place of the node that each follows, −1 the root
    depth: int,
    target_token_ids: Tensor,  # [..., 1 + nodes] the target's own sample (argmax at T = 0) after root and nodes
) -> Verified:
    """Follow the target's own tokens down while a child has them: exact at every temperature, whatever the children,
    since they are given tokens that its sample does not depend on.
    """
    at = torch.zeros_like(target_token_ids[..., :1])
    arrived = torch.ones_like(at, dtype=torch.bool)
    path = []
    for _ in range(depth):
        wanted = target_token_ids.gather(-1, at)
        fits = (parents + 1 == at) & (draft_token_ids == wanted)
        arrived = arrived & fits.any(-1, keepdim=True)
        place = fits.long().argmax(-1, keepdim=True)
        path.append(torch.where(arrived, place, -1))
        at = torch.where(arrived, place + 1, at)
    return Verified(torch.cat(path, -1), target_token_ids.gather(-1, at)[..., 0])


def _until_first_refusal(accepts: Tensor) -> tuple[Tensor, Tensor]:
    """[..., k] as a path, and how long it is, [...]."""
    kept = accepts.long().cumprod(-1)
    places = torch.arange(accepts.shape[-1], device=accepts.device)
    return torch.where(kept.bool(), places, -1), kept.sum(-1)
