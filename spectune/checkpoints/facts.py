"""What a model's config and tokenizer say, before any weight is read: what engines hold two models against."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from spectune.checkpoints.files import UnreadableError, count, folder_json, hub_json, model_path, of_type, text_part
from spectune.checkpoints.gguf import gguf_header
from spectune.errors import ConfigError, may_hold_secrets, printable

_COUNTS: dict[str, tuple[str | None, list[str]]] = {  # as a GGUF file calls them, {} its architecture; as configs do
    "vocab_size": (None, ["vocab_size"]),
    "max_positions": ("{}.context_length", ["max_position_embeddings", "n_positions"]),
    "mtp_layers": ("{}.nextn_predict_layers", ["num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules",
                                               "num_mtp_layers", "n_predict"]),
    "bos_id": ("tokenizer.ggml.bos_token_id", ["bos_token_id"]),
    "eos_id": ("tokenizer.ggml.eos_token_id", ["eos_token_id"]),
    "layers": ("{}.block_count", ["num_hidden_layers", "n_layer"]),
    "hidden_size": ("{}.embedding_length", ["hidden_size", "n_embd"]),
    "target_hidden_size": (None, ["target_hidden_size"]),
}  # fmt: skip
OTHER_VOCABULARY = (
    "use a draft of the target's family, or n-gram; vLLM (use_heterogeneous_vocab, greedy drafting) and transformers "
    "(universal assisted generation) can map vocabularies"
)
_PADDING = re.compile(r"\[PAD\d+\]")  # how GGUF files fill up a vocabulary


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

    @property
    def words(self) -> dict[int, str]:
        """Its tokens but those that only fill up a vocabulary."""
        return {token_id: text for token_id, text in self.texts.items() if not _PADDING.fullmatch(text)}


def first_difference(ours: Mapping[int, str], theirs: Mapping[int, str]) -> str | None:
    """The first id that two tokenizers read otherwise or that one lacks, and what it is in each; None: all agree."""
    differing = (token_id for token_id in ours.keys() | theirs.keys() if ours.get(token_id) != theirs.get(token_id))
    first = min(differing, default=None)
    return None if first is None else texts_at(first, ours.get(first), theirs.get(first))


def texts_at(token_id: int, ours: str | None, theirs: str | None) -> str:
    """What an id is in the target and in the draft, in printable text."""
    target, draft = ("missing" if text is None else f'"{printable(text)}"' for text in (ours, theirs))
    return f"id {token_id} is {target} in the target, {draft} in the draft"


def model_facts(name: str) -> ModelFacts:
    """Of a folder, a .gguf file or a model on the hub.

    Raises: ConfigError where there is no config to read.
    """
    if may_hold_secrets(name):
        raise ConfigError("a model's name looks like a URL with credentials", "give a name or path")
    path = model_path(name)
    if path.suffix.lower() == ".gguf":
        return _of_gguf(name, path)
    read = partial(folder_json, path) if path.is_dir() else partial(hub_json, name)
    config = read("config.json")
    if config is None:
        raise ConfigError(f"{name} has no config.json to read", "give a model's folder, .gguf file or hub name")
    tokenizer, more = read("tokenizer.json") or {}, read("tokenizer_config.json") or {}
    inner = text_part(config)
    counts: dict[str, Any] = {fact: count(inner, *names) for fact, (_, names) in _COUNTS.items()}
    try:
        texts = _texts(tokenizer)
    except (AttributeError, TypeError, KeyError, ValueError, IndexError, OverflowError) as error:
        raise ConfigError(f"the tokenizer.json of {name} is none", "check the file") from error
    return ModelFacts(
        name=name,
        model_type=of_type(str, config, "model_type"),
        texts=texts,
        add_bos=of_type(bool, more, "add_bos_token"),
        add_eos=of_type(bool, more, "add_eos_token"),
        head=_head(config),
        medusa_heads=count(config, "medusa_num_heads"),
        **counts,
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
    counts: dict[str, Any] = {fact: count(fields, name.format(kind)) for fact, (name, _) in _COUNTS.items() if name}
    return ModelFacts(
        name=name,
        model_type=kind,
        vocab_size=len(tokens) or None,
        texts={token_id: token.decode("utf-8", errors="replace") for token_id, token in enumerate(tokens)},
        tokenizer_kind=of_type(str, fields, "tokenizer.ggml.model"),
        add_bos=of_type(bool, fields, "tokenizer.ggml.add_bos_token"),
        add_eos=of_type(bool, fields, "tokenizer.ggml.add_eos_token"),
        **counts,
    )
