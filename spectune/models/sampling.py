"""The sampling transform: from logits to the law that tokens are really drawn from."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spectune.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Temperature (0 = greedy), then top-k (0 = off), then top-p (1 = off)."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature is {self.temperature}", "give a finite number of at least 0")
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"top_p is {self.top_p}", "give a number above 0 and at most 1")
        if self.top_k < 0:
            raise ConfigError(f"top_k is {self.top_k}", "give 0 (off) or a positive whole number")

    @property
    def greedy(self) -> bool:
        """Whether the law is a point mass on the largest logit."""
        return self.temperature == 0.0


def probabilities(
    logits: Tensor,  # [..., vocab]
    sampling: Sampling,
) -> Tensor:  # [..., vocab] float64
    """The law after temperature, top-k and top-p; a point mass on the argmax at T = 0.

    Ties at the top-k threshold are all kept; top-p keeps the smallest set of likeliest tokens whose mass
    reaches p, as transformers and vLLM do.
    """
    if sampling.greedy:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()
    scaled = logits.double() / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        threshold = scaled.topk(sampling.top_k, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < threshold, -torch.inf)
    if sampling.top_p < 1.0:
        scaled = scaled.masked_fill(_outside_nucleus(scaled, sampling.top_p), -torch.inf)
    return scaled.softmax(-1)


def _outside_nucleus(scaled: Tensor, top_p: float) -> Tensor:
    probs, order = scaled.softmax(-1).sort(dim=-1, descending=True, stable=True)
    outside = probs.cumsum(-1) - probs >= top_p
    return torch.zeros_like(outside).scatter(-1, order, outside)


NO_MASS_LOGPROB = -1e4
"""Stands for log 0, so that tables hold no infinity; exp of it is 0."""


def log_probabilities(
    logits: Tensor,  # [rows, vocab]
    token_ids: Tensor,  # [rows]
    sampling: Sampling,
) -> Tensor:  # [rows] float64
    """Log of the law's probability of each row's token, NO_MASS_LOGPROB where it has none."""
    if sampling.greedy:
        return NO_MASS_LOGPROB * (logits.argmax(-1) != token_ids).double()
    return _log_at(probabilities(logits, sampling), token_ids)


def drawn(
    logits: Tensor,  # [rows, vocab]
    sampling: Sampling,
    uniforms: Tensor,  # [rows] in [0, 1)
) -> tuple[Tensor, Tensor]:  # token ids and their log-probabilities, [rows] each
    """A token of each row's law; greedy ones need no law."""
    if sampling.greedy:
        token_ids = logits.argmax(-1)
        return token_ids, torch.zeros(len(token_ids), dtype=torch.float64, device=logits.device)
    law = probabilities(logits, sampling)
    token_ids = sample(law, uniforms)
    return token_ids, _log_at(law, token_ids)


def _log_at(law: Tensor, token_ids: Tensor) -> Tensor:
    return law.gather(-1, token_ids[:, None])[:, 0].log().clamp(min=NO_MASS_LOGPROB)


def sample(
    law: Tensor,  # [..., vocab], not necessarily summing to 1
    uniforms: Tensor,  # [...] in [0, 1)
) -> Tensor:  # [...] token ids
    """Draw through the inverse CDF in token-id order: the same uniform and law give the same token.

    The uniform is scaled by the total and kept below it, so rounding never picks a token without mass.
    """
    cumulative = law.cumsum(-1)
    total = cumulative[..., -1]
    points = torch.minimum(uniforms.to(cumulative) * total, torch.nextafter(total, torch.zeros_like(total)))
    token_ids = torch.searchsorted(cumulative, points[..., None], right=True)[..., 0]
    return token_ids.clamp(max=law.shape[-1] - 1)  # of a law that is no number


def likeliest(logits: Tensor, count: int) -> Tensor:  # [..., vocab] → [..., count] token ids
    """The largest logits first, of equal ones the smaller id first, which topk does not promise."""
    values, token_ids = logits.topk(count, dim=-1)
    if bool(((logits >= values[..., -1:]).sum(-1) > count).any()):  # a tie at the threshold
        return logits.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    by_id = token_ids.sort(dim=-1).values
    order = logits.gather(-1, by_id).sort(dim=-1, descending=True, stable=True).indices
    return by_id.gather(-1, order)


def ranks_of(token_ids: Tensor, logits: Tensor) -> Tensor:  # [...] and [..., vocab] → [...]
    """The place of each token among its row's likeliest, 1 the first."""
    own = logits.gather(-1, token_ids[..., None])
    smaller = torch.arange(logits.shape[-1], device=logits.device) < token_ids[..., None]
    return 1 + ((logits > own) | ((logits == own) & smaller)).sum(-1)


def uniform_stream(seed: int, key: str, count: int) -> NDArray[np.float64]:
    """`count` uniforms that depend on (seed, key, step) only, never on what else runs beside them."""
    words = [seed % 2**64, *(int(key[i : i + 16], 16) for i in range(0, 64, 16))]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words))).random(count)
