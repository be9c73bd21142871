"""A transformers KV cache that appends in place, so that a step does not copy what is already there."""

import inspect
from collections.abc import Callable
from functools import cache as once
from typing import Any

import torch
import transformers
from packaging import version
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

_ROOM_TOKENS = 64
_OWN_NAME = "cache" if version.parse(transformers.__version__) >= version.parse("5.24") else "past_key_values"


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values are views of buffers with room to grow; cropping only shortens the views.

    Layers with a sliding window use it too and keep everything, so that they can be rolled back; the model's
    own mask still applies the window.
    """

    _buffers: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append [batch, heads, n, dim] keys and values; all of them so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states[..., :0, :], value_states[..., :0, :]
        used, needed = self.keys.shape[-2], self.keys.shape[-2] + key_states.shape[-2]
        if not self._fits(needed):
            self._buffers = (_with_room(self.keys, needed), _with_room(self.values, needed))
        assert self._buffers is not None
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[..., used:needed, :] = new
        self.keys, self.values = (buffer[..., :needed, :] for buffer in self._buffers)
        return self.keys, self.values

    def _fits(self, needed: int) -> bool:
        """Whether the views still belong to the buffers (selecting rows makes copies) and there is room."""
        if self._buffers is None:
            return False
        room = self._buffers[0]
        return room.data_ptr() == self.keys.data_ptr() and len(room) == len(self.keys) and needed <= room.shape[-2]


def _with_room(used: Tensor, needed: int) -> Tensor:
    shape = list(used.shape)
    shape[-2] = needed + max(_ROOM_TOKENS, needed // 4)
    buffer = torch.empty(shape, dtype=used.dtype, device=used.device)
    buffer[..., : used.shape[-2], :] = used
    return buffer


def new_cache() -> Cache:
    """An empty cache for any number of layers."""
    return Cache(layer_class_to_replicate=RoomyLayer)


def cache_argument(network: Any, cache: Cache) -> dict[str, Cache]:
    """The cache under the name that the network's forward takes it by.

    That is `cache` from transformers 5.24 on and `past_key_values` before; a model with code of its own keeps the
    name that it was written with, and would swallow the other without a word.
    """
    return {_cache_name(type(network).forward): cache}


@once
def _cache_name(forward: Callable[..., Any]) -> str:
    """As its signature says; one that hides it, as wrappers do, is taken for one of the library's own."""
    named = inspect.signature(forward).parameters.keys() & {"cache", "past_key_values"}
    return "cache" if "cache" in (named or {_OWN_NAME}) else "past_key_values"


@torch.inference_mode()
def keep_entries(cache: Cache, length: int, path: Tensor) -> None:
    """Move the entries at `path`, [m] and ascending, counted from entry `length`, to where that begins."""
    for layer in cache.layers:
        for states in (layer.keys, layer.values):
            if states is not None:
                moved = states.index_select(-2, length + path.to(states.device))
                states[..., length : length + len(path), :] = moved
