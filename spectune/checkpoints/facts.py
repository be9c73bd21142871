"""What a model's config and tokenizer say, before any weight is read: what engines hold two models against."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spectune.checkpoints.files import UnreadableError, count, flag, folder_reader, hub_reader, text, text_part
from spectune.checkpoints.gguf import gguf_header
from spectune.errors import ConfigError, may_hold_secrets

_MTP_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers", "n_predict")
PADDING = re.compile(r"\[PAD\d+\]")  # how GGUF files fill up a vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Of a model, from its config and tokenizer; None where they do not tell."""

    name: str
    model_type: str | None = None  # its architecture
    vocab_size: int | None = None  # rows of the embedding
    max_positions: int | None = None
    mtp_layers: int | None = None  # tokens its own heads predict in a pass
    texts: Mapping[int, str] = field(default_factory=dict)  # of the tokenizer, by id
    tokenizer_kind: str | None = None  # as GGUF files name it
    add_bos: bool | None = None
    add_eos: bool | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    layers: int | None = None
    hidden_size: int | None = None
    head: str | None = None  # its architecture, where that is one of a head
    target_hidden_size: int | None = None  # that a head is for, where it tells
    medusa_heads: int | None = None


def model_facts(name: str) -> ModelFacts:
    """Of a folder, a .gguf file or a model on the hub.

    Raises: ConfigError where there is no config to read.
    """
    if may_hold_secrets(name):
        raise ConfigError("a model's name looks like a URL with credentials", "give a name or path")
    try:
        if not name:
            raise ValueError
        path = Path(name).expanduser()
        is_gguf, here = path.suffix.lower() == ".gguf", path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # no such user, a path that may not be searched or is too long
        raise ConfigError(f"{name[:200]!r} cannot be looked up", "check the path") from error
    if is_gguf:
        return _of_gguf(name, path)
    read = folder_reader(path) if here else hub_reader(name)
    config = read("config.json")
    if config is None:
        raise ConfigError(f"{name} has no config.json to read", "give a model's folder, .gguf file or hub name")
    tokenizer, more = read("tokenizer.json") or {}, read("tokenizer_config.json") or {}
    inner = text_part(config)
    try:
        texts = _texts(tokenizer)
    except (AttributeError, TypeError, KeyError, ValueError, IndexError, OverflowError) as error:
        raise ConfigError(f"the tokenizer.json of {name} is none", "check the file") from error
    return ModelFacts(
        name=name,
        model_type=text(config, "model_type"),
        vocab_size=count(inner, "vocab_size"),
        max_positions=count(inner, "max_position_embeddings", "n_positions"),
        mtp_layers=count(inner, *_MTP_LAYERS),
        texts=texts,
        add_bos=flag(more, "add_bos_token"),
        add_eos=flag(more, "add_eos_token"),
        bos_id=count(inner, "bos_token_id"),
        eos_id=count(inner, "eos_token_id"),
        layers=count(inner, "num_hidden_layers", "n_layer"),
        hidden_size=count(inner, "hidden_size", "n_embd"),
        head=_head(config),
        target_hidden_size=count(inner, "target_hidden_size"),
        medusa_heads=count(config, "medusa_num_heads"),
    )


def _head(config: Mapping[str, Any]) -> str | None:
    names = config.get("architectures")
    architectures = [str(name) for name in names] if isinstance(names, list) else []
    return next((name for name in architectures if re.search("eagle|medusa", name, re.IGNORECASE)), None)


def _texts(tokenizer: Mapping[str, Any]) -> dict[int, str]:
    """Tokens by id, from the vocabulary (a map, or pairs in order) and what was added to it."""
    vocabulary = (tokenizer.get("model") or {}).get("vocab") or {}
    if isinstance(vocabulary, list):
        texts = {place: str(pair[0]) for place, pair in enumerate(vocabulary)}
    else:
        texts = {int(token_id): str(text) for text, token_id in vocabulary.items()}
    return texts | {int(one["id"]): str(one["content"]) for one in tokenizer.get("added_tokens") or []}


def _of_gguf(name: str, path: Path) -> ModelFacts:
    try:
        header = gguf_header(path)
        tokens = header.tokens
    except UnreadableError as error:
        raise ConfigError(f"{name} cannot be read as GGUF", "check the file") from error
    kind, fields = header.architecture, header.fields
    return ModelFacts(
        name=name,
        model_type=kind,
        vocab_size=len(tokens) or None,
        max_positions=count(fields, f"{kind}.context_length"),
        mtp_layers=count(fields, f"{kind}.nextn_predict_layers"),
        texts={token_id: token.decode("utf-8", errors="replace") for token_id, token in enumerate(tokens)},
        tokenizer_kind=text(fields, "tokenizer.ggml.model"),
        add_bos=flag(fields, "tokenizer.ggml.add_bos_token"),
        add_eos=flag(fields, "tokenizer.ggml.add_eos_token"),
        bos_id=count(fields, "tokenizer.ggml.bos_token_id"),
        eos_id=count(fields, "tokenizer.ggml.eos_token_id"),
        layers=count(fields, f"{kind}.block_count"),
        hidden_size=count(fields, f"{kind}.embedding_length"),
    )
