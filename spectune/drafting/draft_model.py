"""A smaller language model of the target's family as draft.

Source: Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from spectune.drafting import Continuation, Evidence, Proposal
from spectune.models.loading import LanguageModel
from spectune.models.sampling import Sampling, log_probabilities, probabilities, sample
from spectune.models.scoring import CachedSequence, ModelScorer, Scorer, require_finite, teacher_forced_logits

_TOKENS_PER_FORWARD = 4096


class DraftModel:
    """Draws each proposal from the draft's own law, under the target's sampling transform."""

    def __init__(self, model: LanguageModel | Scorer, target: LanguageModel | None = None) -> None:
        """`target`, where given, is run beside the draft over recorded text so that Σ min(p, q) is known."""
        self._model = model if isinstance(model, LanguageModel) else None
        self.scorer: Scorer = ModelScorer(model) if isinstance(model, LanguageModel) else model
        self._target = target

    @property
    def model(self) -> LanguageModel:
        """The language model that drafts. Raises: AssertionError where it is a table of a test."""
        assert self._model is not None, "needs a language model"
        return self._model

    def open(self, rng: np.random.Generator) -> "DraftModelSequence":
        """Start on a sequence."""
        return DraftModelSequence(self.scorer.open(), [], rng)

    def evidence(self, continuations: Sequence[Continuation], max_k: int) -> list[Evidence]:
        """Log q(x), argmax, rank (and Σ min(p, q)) at every position, teacher-forced: one pass gives every K."""
        del max_k
        found: dict[int, Evidence] = {}
        for batch in _batches(continuations):
            rows = [continuations[index] for index in batch]
            found.update(zip(batch, self._batch_evidence(self.model, rows), strict=True))
        return [found[index] for index in range(len(continuations))]

    def _batch_evidence(self, model: LanguageModel, rows: list[Continuation]) -> list[Evidence]:
        prompts, tokens = [row.prompt_token_ids for row in rows], [row.token_ids for row in rows]
        logits = teacher_forced_logits(model, prompts, tokens)
        for row, row_logits in zip(rows, logits, strict=True):
            require_finite(row_logits, model.name, [row.prompt_id] * len(row_logits), len(row.prompt_token_ids))
        if self._target is None:
            return [_evidence(row, own, None) for row, own in zip(rows, logits, strict=True)]
        targets = teacher_forced_logits(self._target, prompts, tokens)
        return [_evidence(row, own, theirs) for row, own, theirs in zip(rows, logits, targets, strict=True)]


class DraftModelSequence:
    """The draft's cache, kept in step with the sequence by the prefix they share."""

    def __init__(self, sequence: CachedSequence, cached: list[int], rng: np.random.Generator) -> None:
        self._sequence = sequence
        self._cached = cached
        self._rng = rng

    def fork(self, rng: np.random.Generator) -> "DraftModelSequence":
        """Another drafting that has read the same tokens."""
        return DraftModelSequence(self._sequence.fork(), list(self._cached), rng)

    def propose(self, token_ids: Sequence[int], max_tokens: int, sampling: Sampling) -> Proposal:
        """Sample `max_tokens` tokens one by one; at T = 0 their argmaxes, as point masses."""
        pending = self._roll_back(token_ids)
        drafted: list[int] = []
        laws: list[Tensor] = []
        for _ in range(max_tokens):
            logits = self._sequence.extend(pending)[-1:]
            require_finite(logits, "the draft", ["being decoded"], len(self._cached) + len(pending))
            self._cached.extend(pending)
            pending = [self._pick(logits, sampling, laws)]
            drafted += pending
        return Proposal(draft_token_ids=drafted, draft_probs=torch.cat(laws) if laws else None)

    def _roll_back(self, token_ids: Sequence[int]) -> list[int]:
        """Crop the cache to what it shares with the sequence, all but the last token at most; what is missing."""
        shared = 0
        for ours, theirs in zip(self._cached, token_ids[:-1], strict=False):
            if ours != theirs:
                break
            shared += 1
        self._sequence.crop(shared)
        del self._cached[shared:]
        return list(token_ids[shared:])

    def _pick(self, logits: Tensor, sampling: Sampling, laws: list[Tensor]) -> int:
        if sampling.greedy:
            return int(logits.argmax(-1))
        law = probabilities(logits, sampling)
        laws.append(law)
        return int(sample(law, torch.tensor([self._rng.random()], dtype=torch.float64))[0])


def _batches(continuations: Sequence[Continuation]) -> list[list[int]]:
    """Indices grouped by similar length, so that padding stays small."""
    sizes = [len(row.prompt_token_ids) + len(row.token_ids) for row in continuations]
    batches: list[list[int]] = []
    for index in sorted(range(len(sizes)), key=sizes.__getitem__):
        if batches and (len(batches[-1]) + 1) * sizes[index] <= _TOKENS_PER_FORWARD:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def _evidence(row: Continuation, draft_logits: Tensor, target_logits: Tensor | None) -> Evidence:
    written = torch.tensor(row.token_ids, device=draft_logits.device)[:, None]
    law = probabilities(draft_logits, row.sampling)
    own = draft_logits.gather(-1, written)
    overlaps = None
    if target_logits is not None:
        overlap = torch.minimum(law, probabilities(target_logits, row.sampling)).sum(-1)
        overlaps = overlap.cpu().numpy().astype(np.float32)
    return Evidence(
        draft_logprobs=log_probabilities(law, written).cpu().numpy().astype(np.float32),
        argmax_hits=(draft_logits.argmax(-1) == written[:, 0]).cpu().numpy(),
        ranks=(1 + (draft_logits > own).sum(-1)).cpu().numpy().astype(np.int32),
        overlaps=overlaps,
    )
