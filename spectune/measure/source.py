"""Where text comes from: what continues prompts and scores given tokens."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from spectune.drafting import Continuation, Scored
from spectune.measure import Progress
from spectune.measure.environment import model_record
from spectune.measure.recording import record_tape
from spectune.measure.tape import TapePrompt, TapeRow
from spectune.models.loading import LanguageModel, SamplingDefaults, prompt_token_ids, sampling_defaults
from spectune.models.sampling import Sampling, log_probabilities
from spectune.models.scoring import teacher_forced
from spectune.profile.manifest import ModelRecord
from spectune.workload.prompts import Message

_ROWS_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """What a target says of itself."""

    record: ModelRecord  # null in it what it does not tell
    defaults: SamplingDefaults  # how it samples where nobody says
    eos_token_ids: Collection[int]
    chat_template_digest: str | None  # None where prompts go in untemplated, or it is not known


class TextSource(Protocol):
    """A target as far as its texts go: a model in memory; one behind a server, or its logs, can be another."""

    @property
    def facts(self) -> SourceFacts:
        """What it says of itself."""

    def prompt_token_ids(self, messages: Sequence[Message]) -> list[int]:
        """A request as it reads it."""

    def continued(
        self, prompts: Sequence[TapePrompt], samplings: Sequence[Sampling], length: int, seed: int, progress: Progress
    ) -> list[TapeRow]:
        """Its own texts of at most `length` tokens for every prompt under every sampling, prompts × samplings."""

    def scored(self, texts: Sequence[Continuation], layers: Sequence[int] = ()) -> list[Scored]:
        """What it says of given texts."""


class LocalTarget:
    """A language model in memory."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.facts = SourceFacts(
            record=model_record(model),
            defaults=sampling_defaults(model),
            eos_token_ids=model.eos_token_ids,
            chat_template_digest=model.chat_template_digest,
        )

    def prompt_token_ids(self, messages: Sequence[Message]) -> list[int]:
        """Through its chat template."""
        return prompt_token_ids(self._model, messages)

    def continued(
        self, prompts: Sequence[TapePrompt], samplings: Sequence[Sampling], length: int, seed: int, progress: Progress
    ) -> list[TapeRow]:
        """Decoded side by side."""
        return record_tape(self._model, prompts, samplings, length, seed, progress)

    def scored(self, texts: Sequence[Continuation], layers: Sequence[int] = ()) -> list[Scored]:
        """From passes over prompt and text."""
        scored: list[Scored] = []
        for first in range(0, len(texts), _ROWS_AT_ONCE):
            batch = texts[first : first + _ROWS_AT_ONCE]
            both = [text.prompt_token_ids for text in batch], [text.token_ids for text in batch]
            passes = teacher_forced(self._model, *both, layers)
            for text, forward in zip(batch, passes, strict=True):
                written = torch.tensor(text.token_ids, device=forward.logits.device)
                logprobs = log_probabilities(forward.logits, written, text.sampling)
                scored.append(Scored(logprobs=logprobs.cpu().numpy(), features=forward.features))
        return scored
