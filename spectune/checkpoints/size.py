"""How large a model is, from the headers of its files, before any weight is read."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spectune.checkpoints.files import UnreadableError, count, hub_json, json_object, text_part
from spectune.checkpoints.gguf import gguf_header

_ITEMSIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Parameters, the bytes that they are read from, and what a token leaves in the cache."""

    parameters: int
    stored_bytes: int
    vocab_size: int
    cached_values: int  # keys and values of one token over all layers


def model_size(path: Path) -> ModelSize | None:
    """Of a .gguf file or a folder with safetensors; None where the headers do not tell."""
    try:
        return _gguf_size(path) if path.suffix == ".gguf" else _folder_size(path)
    except (OSError, UnreadableError):
        return None


def hub_size(name: str) -> ModelSize | None:
    """Of a model on the hub, without downloading it; None where it does not tell, or cannot be reached."""
    from huggingface_hub import get_safetensors_metadata

    try:
        counts = get_safetensors_metadata(name).parameter_count
        return _size([(weights, kind) for kind, weights in counts.items()], hub_json(name, "config.json") or {})
    except Exception:  # no network, no such repository, no safetensors: loading will say which
        return None


def _folder_size(folder: Path) -> ModelSize:
    from safetensors import SafetensorError, safe_open

    files, weights = sorted(folder.glob("*.safetensors")), []
    if not files:
        raise UnreadableError("has no safetensors")
    config = json_object(folder / "config.json")
    for file in files:
        try:
            with safe_open(file, framework="np") as opened:
                slices = [opened.get_slice(name) for name in opened.keys()]  # noqa: SIM118 - no mapping
                weights += [(math.prod(part.get_shape()), part.get_dtype()) for part in slices]
        except (SafetensorError, OSError) as error:
            raise UnreadableError("has no header of safetensors") from error
    return _size(weights, config)


def _size(weights: Sequence[tuple[int, str]], config: Mapping[str, Any]) -> ModelSize:
    """Of so many weights of each type."""
    told = text_part(config)
    hidden, heads = _positive(told, "hidden_size", "n_embd"), _positive(told, "num_attention_heads", "n_head")
    head_size = count(told, "head_dim") or hidden // heads
    cached_heads = count(told, "num_key_value_heads") or heads
    layers = _positive(told, "num_hidden_layers", "n_layer")
    return ModelSize(
        parameters=sum(number for number, _ in weights),
        stored_bytes=sum(number * _ITEMSIZES.get(kind, 4) for number, kind in weights),
        vocab_size=_positive(told, "vocab_size"),
        cached_values=2 * layers * cached_heads * head_size,
    )


def _positive(fields: Mapping[str, Any], *names: str) -> int:
    """The first count above zero. Raises: UnreadableError where there is none."""
    value = next((value for name in names if (value := count(fields, name))), None)
    if value is None:
        raise UnreadableError(f"does not tell {names[0]}")
    return value


def _gguf_size(file: Path) -> ModelSize:
    header = gguf_header(file)
    names = ("block_count", "attention.head_count_kv", "embedding_length", "attention.head_count")
    counts = (_positive(header.fields, f"{header.architecture}.{name}") for name in names)
    layers, cached_heads, hidden, heads = counts
    return ModelSize(
        parameters=header.parameters,
        stored_bytes=4 * header.parameters,  # unpacked once into float32
        vocab_size=len(header.tokens),
        cached_values=2 * layers * cached_heads * (hidden // heads),
    )
