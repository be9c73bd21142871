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
from spectune.models.scoring import Forward, teacher_forced
from spectune.profile.manifest import ModelRecord
from spectune.workload.prompts import Message

_ROWS_AT_ONCE = 8


class TextSource(Protocol):
    """A target as far as its texts go: a model in memory; one behind a server, or its logs, can be another."""

    @property
    def record(self) -> ModelRecord:
        """Which weights; null what it does not tell."""
        ...

    @property
    def defaults(self) -> SamplingDefaults:
        """How it samples where nobody says."""
        ...

    @property
    def chat_template_digest(self) -> str | None:
        """SHA-256 of its chat template; None where prompts go in untemplated, or it is not known."""
        ...

    @property
    def eos_token_ids(self) -> Collection[int]:
        """Tokens that end a continuation."""
        ...

    def prompt_token_ids(self, messages: Sequence[Message]) -> list[int]:
        """A request as it reads it."""
        ...

    def continued(
        self,
        prompts: Sequence[TapePrompt],
        samplings: Sequence[Sampling],
        max_new_tokens: int,
        seed: int,
        progress: Progress,
    ) -> list[TapeRow]:
        """Its own texts for every prompt under every sampling, in the order prompts × samplings."""
        ...

    def scored(self, texts: Sequence[Continuation], layers: Sequence[int] = ()) -> list[Scored]:
        """What it says of given texts."""
        ...


@dataclass(frozen=True, slots=True)
class LocalTarget:
    """A language model in memory."""

    model: LanguageModel

    @property
    def record(self) -> ModelRecord:
        """Which weights."""
        return model_record(self.model)

    @property
    def defaults(self) -> SamplingDefaults:
        """Of its generation_config."""
        return sampling_defaults(self.model)

    @property
    def chat_template_digest(self) -> str | None:
        """Of its tokenizer."""
        return self.model.chat_template_digest

    @property
    def eos_token_ids(self) -> Collection[int]:
        """Of its generation_config, else its tokenizer."""
        return self.model.eos_token_ids

    def prompt_token_ids(self, messages: Sequence[Message]) -> list[int]:
        """Through its chat template."""
        return prompt_token_ids(self.model, messages)

    def continued(
        self,
        prompts: Sequence[TapePrompt],
        samplings: Sequence[Sampling],
        max_new_tokens: int,
        seed: int,
        progress: Progress,
    ) -> list[TapeRow]:
        """Decoded side by side."""
        return record_tape(self.model, prompts, samplings, max_new_tokens, seed, progress)

    def scored(self, texts: Sequence[Continuation], layers: Sequence[int] = ()) -> list[Scored]:
        """From passes over prompt and text."""
        scored: list[Scored] = []
        for first in range(0, len(texts), _ROWS_AT_ONCE):
            batch = texts[first : first + _ROWS_AT_ONCE]
            prompts, written = [text.prompt_token_ids for text in batch], [text.token_ids for text in batch]
            passes = teacher_forced(self.model, prompts, written, layers)
            scored += [_scored(text, forward) for text, forward in zip(batch, passes, strict=True)]
        return scored


def _scored(text: Continuation, forward: Forward) -> Scored:
    written = torch.tensor(text.token_ids, device=forward.logits.device)
    logprobs = log_probabilities(forward.logits, written, text.sampling)
    return Scored(logprobs=logprobs.cpu().numpy(), features=forward.features)
