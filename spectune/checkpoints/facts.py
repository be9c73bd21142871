"""What a model's config and tokenizer say, before any weight is read: what engines hold two models against."""

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spectune.errors import ConfigError, may_hold_secrets, reason_of

_MTP_LAYERS = (
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "num_mtp_modules",
    "num_mtp_layers",
    "n_predict",
)
_MOST = 1 << 48
_MOST_BYTES = 1 << 28
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
    read = _in_folder(path) if here else _on_hub(name)
    config = read("config.json")
    if config is None:
        raise ConfigError(f"{name} has no config.json to read", "give a model's folder, .gguf file or hub name")
    tokenizer, more = read("tokenizer.json") or {}, read("tokenizer_config.json") or {}
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, dict) else config
    try:
        texts = _texts(tokenizer)
    except (AttributeError, TypeError, KeyError, ValueError, IndexError, OverflowError) as error:
        raise ConfigError(f"the tokenizer.json of {name} is none", "check the file") from error
    return ModelFacts(
        name=name,
        model_type=_text(config, "model_type"),
        vocab_size=_count(text, "vocab_size"),
        max_positions=_count(text, "max_position_embeddings", "n_positions"),
        mtp_layers=_count(text, *_MTP_LAYERS),
        texts=texts,
        add_bos=_flag(more, "add_bos_token"),
        add_eos=_flag(more, "add_eos_token"),
        bos_id=_count(text, "bos_token_id"),
        eos_id=_count(text, "eos_token_id"),
        layers=_count(text, "num_hidden_layers", "n_layer"),
        hidden_size=_count(text, "hidden_size", "n_embd"),
        head=_head(config),
        target_hidden_size=_count(text, "target_hidden_size"),
        medusa_heads=_count(config, "medusa_num_heads"),
    )


def _head(config: Mapping[str, Any]) -> str | None:
    names = config.get("architectures")
    architectures = [str(name) for name in names] if isinstance(names, list) else []
    return next((name for name in architectures if re.search("eagle|medusa", name, re.IGNORECASE)), None)


def _text(config: Mapping[str, Any], name: str) -> str | None:
    value = config.get(name)
    return value if isinstance(value, str) else None


def _count(config: Mapping[str, Any], *names: str) -> int | None:
    values = (config.get(name) for name in names)
    counts = (value for value in values if isinstance(value, int) and not isinstance(value, bool))
    return next((value for value in counts if 0 <= value < _MOST), None)


def _flag(config: Mapping[str, Any], name: str) -> bool | None:
    value = config.get(name)
    return value if isinstance(value, bool) else None


def _texts(tokenizer: Mapping[str, Any]) -> dict[int, str]:
    """Tokens by id, from the vocabulary (a map, or pairs in order) and what was added to it."""
    vocabulary = (tokenizer.get("model") or {}).get("vocab") or {}
    if isinstance(vocabulary, list):
        texts = {place: str(pair[0]) for place, pair in enumerate(vocabulary)}
    else:
        texts = {int(token_id): str(text) for text, token_id in vocabulary.items()}
    return texts | {int(one["id"]): str(one["content"]) for one in tokenizer.get("added_tokens") or []}


def _in_folder(folder: Path) -> Callable[[str], dict[str, Any] | None]:
    def read(file: str) -> dict[str, Any] | None:
        try:
            there = (folder / file).exists()
        except OSError as error:
            raise ConfigError(f"{folder / file} cannot be read: {reason_of(error)}", "check the folder") from error
        return _json(folder / file) if there else None

    return read


def _on_hub(name: str) -> Callable[[str], dict[str, Any] | None]:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # its retries, which name the hub's whole URL

    def read(file: str) -> dict[str, Any] | None:
        try:
            return _json(Path(hf_hub_download(name, file)))
        except LocalEntryNotFoundError as error:
            if file != "config.json":  # not among what was kept of it
                return None
            raise ConfigError(f"{name} is no folder here, and the hub cannot be reached", "give a folder") from error
        except EntryNotFoundError:
            return None
        except (HfHubHTTPError, HFValidationError) as error:
            raise ConfigError(f"{name} is neither a folder here nor a model on the hub", "check the name") from error
        except OSError as error:  # of the cache, or of the way there
            problem = f"{name} cannot be fetched: {reason_of(error)}"
            raise ConfigError(problem, "check the disk, or give a folder") from error
        except Exception as error:  # a hub that answers otherwise than one, or breaks off
            raise ConfigError(f"{name} cannot be fetched from the hub", "try again, or give a folder") from error

    return read


def _json(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            raise ValueError("no file, or too large for one of these")
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as JSON", "check the file") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no object", "check the file")
    return found


def _of_gguf(name: str, path: Path) -> ModelFacts:
    try:
        return _gguf_facts(name, path)
    except Exception as error:  # its reader meets hostile files with any error
        raise ConfigError(f"{name} cannot be read as GGUF", "check the file") from error


def _gguf_facts(name: str, path: Path) -> ModelFacts:
    from gguf import GGUFReader

    if not path.is_file():
        raise ValueError("no file")

    class Bounded(GGUFReader):  # type: ignore[misc]
        """Reads nothing beyond the file's end, however many entries it claims to have."""

        def _get(self, offset: Any, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
            if int(offset) + int(count) > len(self.data):
                raise ValueError("the file ends early")
            return super()._get(offset, dtype, count, override_order)

    reader = Bounded(path)

    def value(field: str) -> Any:
        found = reader.get_field(field)
        return None if found is None else found.contents()

    kind, tokens = str(value("general.architecture")), reader.get_field("tokenizer.ggml.tokens")
    read = {
        "context": value(f"{kind}.context_length"),
        "layers": value(f"{kind}.block_count"),
        "width": value(f"{kind}.embedding_length"),
        "heads": value(f"{kind}.nextn_predict_layers"),
        "bos": value("tokenizer.ggml.bos_token_id"),
        "eos": value("tokenizer.ggml.eos_token_id"),
        "add_bos": value("tokenizer.ggml.add_bos_token"),
        "add_eos": value("tokenizer.ggml.add_eos_token"),
        "tokenizer": value("tokenizer.ggml.model"),
    }
    parts = [] if tokens is None else [tokens.parts[place] for place in tokens.data]
    texts = {token_id: part.tobytes().decode("utf-8", errors="replace") for token_id, part in enumerate(parts)}
    return ModelFacts(
        name=name,
        model_type=kind,
        vocab_size=len(texts) or None,
        max_positions=_count(read, "context"),
        mtp_layers=_count(read, "heads"),
        texts=texts,
        tokenizer_kind=_text(read, "tokenizer"),
        add_bos=_flag(read, "add_bos"),
        add_eos=_flag(read, "add_eos"),
        bos_id=_count(read, "bos"),
        eos_id=_count(read, "eos"),
        layers=_count(read, "layers"),
        hidden_size=_count(read, "width"),
    )
