"""Logits of new tokens given cached ones, and the states behind them: a sequence that can be rolled back, and batches.

Ids, logits and features take leading row axes; a `ModelSequence` has one row, or as many equal ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from spectune.errors import ConfigError, DeviceError
from spectune.models.kv_cache import cache_argument, keep_entries, new_cache
from spectune.models.loading import LanguageModel
from spectune.tree import attention_mask, bushy

_CPU_ALLOCATOR = "DefaultCPUAllocator"  # names itself where memory runs out; its error has no type of its own


Features = Mapping[int, Tensor]
"""Hidden states by layer, [..., n, hidden] each; 0 is what enters the first layer."""


@dataclass(frozen=True, slots=True)
class Forward:
    """What a pass over n tokens gives: logits after each, and hidden states of the layers that were asked for."""

    logits: Tensor  # [..., n, vocab]
    features: Features = field(default_factory=dict)

    def at(self, places: slice | Tensor) -> "Forward":
        """The same of some of the tokens."""
        features = {layer: states[..., places, :] for layer, states in self.features.items()}
        return Forward(self.logits[..., places, :], features)


class CachedSequence(Protocol):
    """One sequence and its cache."""

    def extend(self, token_ids: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Forward:
        """Append tokens, [n]; the forward over them.

        Of a tree, `positions`, [n], are their places in the text, and `mask`, [n, m + n], tells which of the last m
        cached entries and of the others each may attend to (True); all of them see what is cached before. By default
        each follows the one before.
        """

    def read(self, token_ids: Tensor) -> Forward:
        """As extend, with the logits after the last token only."""

    def keep(self, length: int, path: Tensor | None = None) -> None:
        """Forget everything from entry `length` on, but for those at `path`, [m], counted from there."""

    def fork(self) -> "CachedSequence":
        """Another sequence that holds the same tokens."""


class Scorer(Protocol):
    """Anything that gives next-token logits: a language model, or a table in a test."""

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""

    @property
    def device(self) -> torch.device:
        """Where its logits are."""

    def open(self, layers: Sequence[int] = ()) -> CachedSequence:
        """An empty sequence; its forwards have the hidden states of `layers`, 0 being the embedding."""


class ModelScorer:
    """A LanguageModel as a Scorer."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self.model.vocab_size

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    def open(self, layers: Sequence[int] = ()) -> "ModelSequence":
        """An empty sequence."""
        return ModelSequence(self.model, layers=layers)


class ModelSequence:
    """One sequence in a transformers KV cache; with `rows`, as many equal ones side by side."""

    def __init__(self, model: LanguageModel, rows: int = 1, layers: Sequence[int] = ()) -> None:
        self._model, self._rows, self._layers = model, rows, tuple(layers)
        self._cache = new_cache()
        self._length = 0
        self._positions = torch.empty(0, dtype=torch.long)  # of what is cached

    def extend(self, token_ids: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Forward:
        """Append tokens; the forward over them."""
        follow = torch.arange(self._length, self._length + len(token_ids)) if positions is None else positions
        self._positions = torch.cat([self._positions, follow.to(self._positions)])
        tree: dict[str, Any] = {}
        if positions is not None:
            tree["position_ids"] = positions.to(self._model.device).expand(self._rows, -1)
        if mask is not None:
            tree["attention_mask"] = self._additive(mask)
        return self._forward(token_ids, len(token_ids), tree)

    def read(self, token_ids: Tensor) -> Forward:
        """Append tokens of whose logits only the last are asked for."""
        self._positions = torch.arange(self._length + len(token_ids))
        return self._forward(token_ids, 1, {})

    @torch.inference_mode()
    def _forward(self, token_ids: Tensor, logits_to_keep: int, tree: Mapping[str, Tensor]) -> Forward:
        with out_of_memory_as_device_error(self._model):
            output = self._model.network(
                input_ids=token_ids.to(self._model.device).expand(self._rows, -1),
                use_cache=True,
                logits_to_keep=logits_to_keep,
                **cache_argument(self._model.network, self._cache),
                **tree,
                **_asking(self._layers),
            )
        self._length += len(token_ids)
        features = {layer: output.hidden_states[layer][0] for layer in self._layers}
        return Forward(output.logits[0, :, : self._model.vocab_size], features)

    def _additive(self, mask: Tensor) -> Tensor | dict[str, Tensor]:  # [rows, 1, n, cached + n], by kind of layer
        """What the mask does not tell of is seen, as far as a layer's window goes; a float mask, since a bool one is
        read otherwise by some attention code.
        """
        count, told = mask.shape
        seen = torch.ones(count, self._length + count, dtype=torch.bool, device=mask.device)
        seen[:, -told:] = mask
        kinds, window = _attention_kinds(self._model)
        if kinds == {_FULL}:
            return self._floats(seen)
        near = self._positions[None, :] > self._positions[-count:, None] - window
        windowed = self._floats(seen & near.to(seen.device))
        return {_FULL: self._floats(seen), _SLIDING: windowed} if kinds else windowed

    def _floats(self, seen: Tensor) -> Tensor:
        dtype = self._model.dtype
        hidden = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
        hidden.masked_fill_(~seen, torch.finfo(dtype).min)
        return hidden.to(self._model.device).expand(self._rows, 1, -1, -1)

    def keep(self, length: int, path: Tensor | None = None) -> None:
        """Forget everything from entry `length` on, but for those at `path`, counted from there."""
        kept = length if path is None else length + len(path)
        if path is not None and len(path):
            keep_entries(self._cache, length, path)
        self._positions = torch.arange(kept)
        if kept < self._length:
            self._cache.crop(kept - self._length)
            self._length = kept

    def fork(self) -> "ModelSequence":
        """Another sequence that holds the same tokens, so that a prompt is read once."""
        twin = ModelSequence(self._model, self._rows, self._layers)
        twin._length, twin._positions = self._length, self._positions
        for index, layer in enumerate(self._cache.layers):
            if layer.keys is not None:
                twin._cache.update(layer.keys, layer.values, index)
        return twin


_FULL, _SLIDING = "full_attention", "sliding_attention"


def _attention_kinds(model: LanguageModel) -> tuple[set[str], int]:
    """The kinds of layers that a model tells apart, none where all have a window; and that window.

    Raises: ConfigError for layers that look at the text in another way.
    """
    config = model.network.config.get_text_config()
    window, kinds = getattr(config, "sliding_window", None), set(getattr(config, "layer_types", None) or ())
    if other := kinds - {_FULL, _SLIDING}:
        problem = f"{model.name} has layers of {', '.join(sorted(other))}, which cannot verify a tree"
        raise ConfigError(problem, "use a chain")
    if not window or kinds == {_FULL}:
        return {_FULL}, 0
    return kinds, int(window)


def _asking(layers: Sequence[int]) -> dict[str, bool]:
    return {"output_hidden_states": True} if layers else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeatable:
    """Work that can be timed over and over: `undo` brings back what it started from."""

    run: Callable[[], object]
    undo: Callable[[], object] = int


def repeatable_forwards(
    model: LanguageModel, context: Sequence[int], rows: int, sizes: Sequence[int], last_only: bool = False
) -> dict[int, Repeatable]:
    """Forwards over n tokens for each of the sizes, all behind the same cached context; with logits after each token,
    or after the last only.
    """
    sequence, token_ids = ModelSequence(model, rows), torch.tensor(context, device=model.device)
    sequence.read(token_ids)
    forward, undo = sequence.read if last_only else sequence.extend, partial(sequence.keep, len(context))
    return {n: Repeatable(run=partial(forward, token_ids[:n]), undo=undo) for n in sizes}


def repeatable_trees(
    model: LanguageModel, context: Sequence[int], rows: int, sizes: Sequence[int]
) -> dict[int, Repeatable]:
    """Forwards over trees of n tokens, the root among them, behind the same cached context."""
    sequence, token_ids = ModelSequence(model, rows), torch.tensor(context, device=model.device)
    sequence.read(token_ids)

    masks = {n: torch.from_numpy(attention_mask(bushy(n - 1))) for n in sizes}  # which a round's overhead has already
    undo = partial(sequence.keep, len(context))
    return {
        n: Repeatable(run=partial(sequence.extend, token_ids[:n], len(context) - 1 + mask.sum(-1), mask), undo=undo)
        for n, mask in masks.items()
    }


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


def teacher_forced(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    continuations: Sequence[Sequence[int]],
    layers: Sequence[int] = (),
) -> list[Forward]:
    """One pass over all rows: per row the logits that predict its continuation, [T, vocab], and the features of the
    whole of it, prompt and continuation, [length, hidden].
    """
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
            **_asking(layers),
        )
    logits = output.logits[..., : model.vocab_size]
    return [
        Forward(
            logits[index, -len(tokens) - 1 : -1],
            {layer: output.hidden_states[layer][index, -len(rows[index]) :] for layer in layers},
        )
        for index, tokens in enumerate(continuations)
    ]
