"""Files that commands write."""

import os
from contextlib import suppress
from pathlib import Path

from spectune.errors import ConfigError, reason_of


def write_whole(path: Path, text: str, option: str = "-o") -> None:
    """Write a file or leave the old one. Raises: ConfigError where it cannot be written."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(None, "is a directory")
        partial.write_text(text, "utf-8")
        os.replace(partial, path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        problem = f"{path} cannot be written: {reason_of(error)}"
        raise ConfigError(problem, f"give another file with {option}") from error
