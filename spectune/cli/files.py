"""Files that commands write."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from spectune.errors import ConfigError, reason_of


def write_whole(path: Path, content: str | bytes, remedy: str = "give another file with -o") -> None:
    """Write a file or leave the old one. Raises: ConfigError where it cannot be written."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(None, "is a directory")
        with partial.open("xb") as file:  # never what stands there, or where a link leads
            file.write(content if isinstance(content, bytes) else content.encode())
        os.replace(partial, path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise ConfigError(f"{path} cannot be written: {reason_of(error)}", remedy) from error
