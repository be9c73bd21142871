"""How large a model is, from the headers of its files, before any weight is read."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    except (OSError, LookupError, ValueError, TypeError, StopIteration, AttributeError):
        return None


def hub_size(name: str) -> ModelSize | None:
    """Of a model on the hub, without downloading it; None where it does not tell, or cannot be reached."""
    from huggingface_hub import get_safetensors_metadata
    from transformers import PreTrainedConfig

    try:
        counts = get_safetensors_metadata(name).parameter_count
        config = PreTrainedConfig.get_config_dict(name)[0]
        return _size(
            sum(counts.values()), sum(count * _ITEMSIZES.get(kind, 4) for kind, count in counts.items()), config
        )
    except Exception:  # no network, no such repository, no safetensors: loading will say which
        return None


def _folder_size(folder: Path) -> ModelSize:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError("no safetensors")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    tensors = [tensor for file in files for tensor in _tensors(file)]
    stored = sum(tensor["data_offsets"][1] - tensor["data_offsets"][0] for tensor in tensors)
    return _size(sum(math.prod(tensor["shape"]) for tensor in tensors), stored, config)


def _tensors(file: Path) -> list[dict[str, Any]]:
    """From the header: its length in eight bytes, then JSON."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
    return [entry for name, entry in header.items() if name != "__metadata__"]


def _size(parameters: int, stored_bytes: int, config: Mapping[str, Any]) -> ModelSize:
    text = config.get("text_config") or config

    def first(*names: str) -> int:
        return int(next(text[name] for name in names if text.get(name)))

    hidden, heads = first("hidden_size", "n_embd"), first("num_attention_heads", "n_head")
    head_size = int(text.get("head_dim") or hidden // heads)
    cached_heads = int(text.get("num_key_value_heads") or heads)
    layers = first("num_hidden_layers", "n_layer")
    return ModelSize(
        parameters=parameters,
        stored_bytes=stored_bytes,
        vocab_size=first("vocab_size"),
        cached_values=2 * layers * cached_heads * head_size,
    )


def _gguf_size(file: Path) -> ModelSize:
    from gguf import GGUFReader

    reader = GGUFReader(file)

    def number(name: str) -> int:
        return int(reader.get_field(name).contents())

    kind = str(reader.get_field("general.architecture").contents())
    heads = number(f"{kind}.attention.head_count")
    cached_heads, hidden = number(f"{kind}.attention.head_count_kv"), number(f"{kind}.embedding_length")
    tokens = reader.get_field("tokenizer.ggml.tokens")
    parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
    return ModelSize(
        parameters=parameters,
        stored_bytes=4 * parameters,  # unpacked once into float32
        vocab_size=len(tokens.data),
        cached_values=2 * number(f"{kind}.block_count") * cached_heads * (hidden // heads),
    )
