"""Logits of new tokens given cached ones: a single sequence that can be rolled back, and padded batches."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from spectune.errors import ConfigError, DeviceError
from spectune.models.kv_cache import new_cache
from spectune.models.loading import LanguageModel

_CPU_ALLOCATOR = "DefaultCPUAllocator"  # names itself where memory runs out; its error has no type of its own


class CachedSequence(Protocol):
    """One sequence and its cache."""

    def extend(self, token_ids: Sequence[int]) -> Tensor:
        """Append tokens; logits after each, [n, vocab]."""
        ...

    def crop(self, length: int) -> None:
        """Forget everything from position `length` on."""
        ...

    def fork(self) -> "CachedSequence":
        """Another sequence that holds the same tokens."""
        ...


class Scorer(Protocol):
    """Anything that gives next-token logits: a language model, or a table in a test."""

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        ...

    def open(self) -> CachedSequence:
        """An empty sequence."""
        ...


class ModelScorer:
    """A LanguageModel as a Scorer."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self.model.vocab_size

    def open(self) -> "ModelSequence":
        """An empty sequence."""
        return ModelSequence(self.model)


class ModelSequence:
    """One sequence in a transformers KV cache; with `rows`, as many equal ones side by side."""

    def __init__(self, model: LanguageModel, rows: int = 1) -> None:
        self._model = model
        self._rows = rows
        self._cache = new_cache()
        self._length = 0

    def extend(self, token_ids: Sequence[int]) -> Tensor:
        """Append tokens; logits after each, [n, vocab]."""
        return self._forward(token_ids, len(token_ids))

    def read(self, token_ids: Sequence[int]) -> None:
        """Append tokens whose logits nobody asks for."""
        if token_ids:
            self._forward(token_ids, 1)

    @torch.inference_mode()
    def _forward(self, token_ids: Sequence[int], logits_to_keep: int) -> Tensor:
        input_ids = torch.tensor([token_ids] * self._rows, device=self._model.device)
        with out_of_memory_as_device_error(self._model):
            output = self._model.network(
                input_ids=input_ids, cache=self._cache, use_cache=True, logits_to_keep=logits_to_keep
            )
        self._length += len(token_ids)
        logits: Tensor = output.logits[0, :, : self._model.vocab_size]
        return logits

    def crop(self, length: int) -> None:
        """Forget everything from position `length` on."""
        if length < self._length:
            self._cache.crop(length - self._length)
            self._length = length

    def fork(self) -> "ModelSequence":
        """Another sequence that holds the same tokens, so that a prompt is read once."""
        twin = ModelSequence(self._model, self._rows)
        twin._length = self._length
        for index, layer in enumerate(self._cache.layers):
            if layer.keys is not None:
                twin._cache.update(layer.keys, layer.values, index)
        return twin


class out_of_memory_as_device_error:  # noqa: N801 - reads as a statement
    """Turn the allocator's error into one line with a remedy."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or _CPU_ALLOCATOR in str(error):
            problem = f"{self._model.name} ran out of memory on {self._model.device}"
            raise DeviceError(problem, "use shorter prompts, a smaller model or another device") from error


def require_finite(logits: Tensor, model_name: str, rows: Sequence[str], step: int) -> None:
    """Refuse NaN and infinity. logits is [rows, vocab]. Raises: ConfigError naming model, prompt and position."""
    if bool(torch.isfinite(logits.sum())):
        return
    bad = ~torch.isfinite(logits).all(-1)
    if bool(bad.any()):
        row = rows[int(bad.nonzero()[0])]
        problem = f"{model_name} gives non-finite logits on prompt {row[:12]} at position {step}"
        raise ConfigError(problem, "try --dtype float32, or check the checkpoint")


def left_padded(
    rows: Sequence[Sequence[int]], device: torch.device
) -> tuple[Tensor, Tensor]:  # token ids and attention mask, both [rows, longest]
    """Rows of different length in one batch, padded on the left with id 0 that the mask hides."""
    longest = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, longest - len(row) :] = torch.tensor(row)
        mask[index, longest - len(row) :] = 1
    return ids.to(device), mask.to(device)


def positions(mask: Tensor) -> Tensor:
    """Position of each token in its own row, [rows, length]; 0 at padding."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def teacher_forced_logits(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    continuations: Sequence[Sequence[int]],
) -> list[Tensor]:  # per row [len(continuation), vocab]
    """Logits that predict each continuation token, from one forward over all rows."""
    rows = [[*prompt, *tokens] for prompt, tokens in zip(prompts, continuations, strict=True)]
    longest = max(len(tokens) for tokens in continuations)
    ids, mask = left_padded(rows, model.device)
    with torch.inference_mode(), out_of_memory_as_device_error(model):
        output = model.network(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions(mask),
            use_cache=False,
            logits_to_keep=longest + 1,
        )
    logits = output.logits[..., : model.vocab_size]
    return [logits[i, -len(tokens) - 1 : -1] for i, tokens in enumerate(continuations)]
