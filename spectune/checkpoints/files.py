"""Files of a checkpoint, in a folder or on the hub, read within bounds: they come from strangers."""

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from spectune.errors import ConfigError, reason_of

_MOST = 1 << 48
_MOST_BYTES = 1 << 28
_Kind = TypeVar("_Kind", str, bool)


class UnreadableError(ValueError):
    """A file that is broken or hostile; the text goes on where a sentence begins with its name."""


def json_object(path: Path) -> dict[str, Any]:
    """What a JSON file holds. Raises: UnreadableError for anything else than an object."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            raise ValueError("no file, or too large for one of these")
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnreadableError("cannot be read as JSON") from error
    if not isinstance(value, dict):
        raise UnreadableError("holds no object")
    return value


def model_path(name: str) -> Path:
    """Where a model of that name would be; one that is not there may be on the hub, unless it is written as a path.

    Raises: ConfigError for a path with nothing there, or that cannot be looked up.
    """
    try:
        path = Path(name).expanduser()
        there = bool(name) and path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, may not be searched, no such user, no text
        raise ConfigError(f"{name[:200]!r} cannot be looked up", "check the path") from error
    if not there and (not name or name.startswith((".", "/", "~")) or path.suffix.lower() == ".gguf"):
        raise ConfigError(f"there is no folder or file {name[:200]!r}", "check the path")
    return path


def folder_json(folder: Path, file: str) -> dict[str, Any] | None:
    """What a JSON file of a folder holds; None where there is none. Raises: ConfigError for what cannot be read."""
    try:
        there = (folder / file).exists()
    except OSError as error:
        raise ConfigError(f"{folder / file} cannot be read: {reason_of(error)}", "check the folder") from error
    return _checked(folder / file) if there else None


def hub_json(name: str, file: str) -> dict[str, Any] | None:
    """The same of a model on the hub, or of what is kept of it here."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # its retries, which name the hub's whole URL
    try:
        path = Path(hf_hub_download(name, file))
    except LocalEntryNotFoundError as error:
        if file != "config.json":  # not among what was kept of it
            return None
        raise ConfigError(f"{name} is no folder here, and the hub cannot be reached", "give a folder") from error
    except EntryNotFoundError:
        return None
    except (HfHubHTTPError, HFValidationError) as error:
        raise ConfigError(f"{name} is neither a folder here nor a model on the hub", "check the name") from error
    except OSError as error:  # of the cache, or of the way there
        raise ConfigError(
            f"{name} cannot be fetched: {reason_of(error)}", "check the disk, or give a folder"
        ) from error
    except Exception as error:  # a hub that answers otherwise than one, or breaks off
        raise ConfigError(f"{name} cannot be fetched from the hub", "try again, or give a folder") from error
    return _checked(path)


def _checked(path: Path) -> dict[str, Any]:
    try:
        return json_object(path)
    except UnreadableError as error:
        raise ConfigError(f"{path} {error}", "check the file") from error


def text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as that of its language model, where it holds more than one."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else dict(config)


def of_type(kind: type[_Kind], config: Mapping[str, Any], name: str) -> _Kind | None:
    """A value that is a text, or a flag; None for any other."""
    value = config.get(name)
    return value if isinstance(value, kind) else None


def count(config: Mapping[str, Any], *names: str) -> int | None:
    """The first value that is a count, and one that a model can have."""
    values = (config.get(name) for name in names)
    counts = (value for value in values if isinstance(value, int) and not isinstance(value, bool))
    return next((value for value in counts if 0 <= value < _MOST), None)


def file_digest(path: Path) -> str:
    """SHA-256 of a file, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
