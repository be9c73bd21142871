"""A smaller language model of the target's family as draft.

Source: Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from spectune.choice import Shape
from spectune.drafting import Continuation, Evidence, Load, Proposal, Scored
from spectune.drafting_spec import DraftSpec
from spectune.errors import ConfigError
from spectune.models.loading import LanguageModel, require_same_tokenizer
from spectune.models.sampling import Sampling, likeliest, log_probabilities, probabilities, ranks_of, sample
from spectune.models.scoring import (
    CachedSequence,
    Forward,
    ModelScorer,
    Repeatable,
    Scorer,
    repeatable_forwards,
    require_finite,
    teacher_forced,
)
from spectune.tree import TokenTree, attention_mask, levels, tree_of_text

_TOKENS_PER_FORWARD = 4096


def open_model(draft: DraftSpec, target: LanguageModel, load: Load) -> "DraftModel":
    """The model that the SPEC names. Raises: IncompatibleModelsError where its tokens are not the target's."""
    model = load(str(draft.model))
    require_same_tokenizer(target, model)
    return DraftModel(model)


class DraftModel:
    """Draws each proposal from the draft's own law, under the target's sampling transform."""

    layers: tuple[int, ...] = ()

    def __init__(self, model: LanguageModel | Scorer) -> None:
        self.scorer: Scorer = ModelScorer(model) if isinstance(model, LanguageModel) else model

    @property
    def model(self) -> LanguageModel | None:
        """The language model that drafts; None where it is a table of a test."""
        return self.scorer.model if isinstance(self.scorer, ModelScorer) else None

    def open(self, rng: np.random.Generator) -> "DraftModelSequence":
        """Start on a sequence."""
        return DraftModelSequence(self.scorer, self.scorer.open(), [], rng)

    def through(self, wrap: Callable[[Scorer], Scorer]) -> "DraftModel":
        """The same draft whose forwards pass through `wrap`."""
        return DraftModel(wrap(self.scorer))

    def work(self, context: Sequence[int], rows: int, shape: Shape, sampling: Sampling) -> Mapping[int, Repeatable]:
        """A step, and one over two tokens: what it costs after a round whose proposals were all accepted."""
        del shape, sampling
        return repeatable_forwards(self._language_model, context, rows, (1, 2), last_only=True)

    def evidence(
        self, continuations: Sequence[Continuation], scored: Sequence[Scored], largest: Shape
    ) -> list[Evidence]:
        """Log q(x), argmax and rank at every position, teacher-forced: one pass gives every K."""
        del scored, largest
        collected: dict[int, Evidence] = {}
        for batch in _batches(continuations):
            rows = [continuations[index] for index in batch]
            collected.update(zip(batch, self._batch_evidence(rows), strict=True))
        return [collected[index] for index in range(len(continuations))]

    def _batch_evidence(self, rows: list[Continuation]) -> list[Evidence]:
        model = self._language_model
        passes = teacher_forced(model, [row.prompt_token_ids for row in rows], [row.token_ids for row in rows])
        for row, forward in zip(rows, passes, strict=True):
            names = [row.prompt_id] * len(row.token_ids)
            require_finite(forward.logits, model.name, names, len(row.prompt_token_ids))
        return [_evidence(row, forward.logits) for row, forward in zip(rows, passes, strict=True)]

    @property
    def _language_model(self) -> LanguageModel:
        assert self.model is not None, "needs a language model"
        return self.model


class DraftModelSequence:
    """The draft's cache, kept in step with the sequence by the prefix they share."""

    def __init__(self, scorer: Scorer, sequence: CachedSequence, cached: list[int], rng: np.random.Generator) -> None:
        self._scorer, self._sequence, self._cached, self._rng = scorer, sequence, cached, rng

    def fork(self, rng: np.random.Generator) -> "DraftModelSequence":
        """Another drafting that has read the same tokens."""
        return DraftModelSequence(self._scorer, self._sequence.fork(), list(self._cached), rng)

    def observe(self, committed: Forward) -> None:
        """It reads the text itself."""

    def propose(self, token_ids: Sequence[int], shape: Shape, sampling: Sampling) -> Proposal:
        """Sample tokens one by one; at T = 0 their argmaxes, as point masses. The ids stay on the device.

        A tree has the likeliest tokens behind each node, at every temperature.
        """
        if shape.tree:
            return self._tree(token_ids, tree_of_text(shape.tree))
        missing = self._roll_back(token_ids)
        pending = torch.tensor(missing, device=self._scorer.device)
        uniforms = torch.from_numpy(self._rng.random(0 if sampling.greedy else shape.depth)).to(self._scorer.device)
        drafted: list[Tensor] = []
        laws: list[Tensor] = []
        for place in range(shape.depth):
            logits = self._sequence.read(pending).logits
            require_finite(logits, "the draft", ["being decoded"], len(token_ids) + place)
            if sampling.greedy:
                pending = logits.argmax(-1)
            else:
                laws.append(probabilities(logits, sampling))
                pending = sample(laws[-1], uniforms[place : place + 1])
            drafted.append(pending)
        token_ids_drafted = torch.cat(drafted)
        self._cached += [*missing, *token_ids_drafted[:-1].tolist()]
        return Proposal(draft_token_ids=token_ids_drafted, draft_probs=torch.cat(laws) if laws else None)

    def _tree(self, token_ids: Sequence[int], tree: TokenTree) -> Proposal:
        """Level by level: a forward over the nodes that have children, whose own entries are forgotten at the end."""
        if (most := max(path[-1] for path in tree.paths)) > self._scorer.vocab_size:
            problem = f"a tree of the {most} likeliest tokens, of {self._scorer.vocab_size} in the vocabulary"
            raise ConfigError(problem, "give fewer children")
        missing, base, device = self._roll_back(token_ids), len(token_ids), self._scorer.device
        mask = torch.from_numpy(attention_mask(tree.parents)[1:, 1:])
        drafted = torch.zeros(tree.nodes, dtype=torch.long, device=device)
        logits, inner, above = self._sequence.read(torch.tensor(missing, device=device)).logits, [], [-1]
        for depth, level in enumerate(levels(tree.parents)):
            require_finite(logits, "the draft", ["being decoded"] * len(logits), base + depth)
            ranks = torch.tensor([tree.paths[node][-1] - 1 for node in level], device=device)
            rows = torch.tensor([above.index(tree.parents[node]) for node in level], device=device)
            drafted[level] = likeliest(logits, int(ranks.max()) + 1)[rows, ranks]
            above = [node for node in level if node in set(tree.parents)]
            if above:
                inner += above
                positions = torch.full((len(above),), base + depth, device=device)
                logits = self._sequence.extend(drafted[above], positions, mask[above][:, inner]).logits
        self._sequence.keep(base)
        self._cached += missing
        return Proposal(draft_token_ids=drafted, parents=torch.tensor(tree.parents))

    def _roll_back(self, token_ids: Sequence[int]) -> list[int]:
        """Keep what the cache shares with the sequence, all but the last token at most; what is missing."""
        shared = 0
        for cached, written in zip(self._cached, token_ids[:-1], strict=False):
            if cached != written:
                break
            shared += 1
        self._sequence.keep(shared)
        del self._cached[shared:]
        return list(token_ids[shared:])


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


def _evidence(row: Continuation, logits: Tensor) -> Evidence:
    written = torch.tensor(row.token_ids, device=logits.device)
    return Evidence(
        draft_logprobs=log_probabilities(logits, written, row.sampling).cpu().numpy().astype(np.float32),
        argmax_hits=(logits.argmax(-1) == written).cpu().numpy(),
        ranks=ranks_of(written, logits).cpu().numpy().astype(np.int32),
    )
