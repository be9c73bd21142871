"""Where people keep prompts: files, standard input, datasets. Each is read as items with their place."""

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from spectune.errors import ConfigError, reason_of

STDIN = "-"
ACCEPTED = (
    'objects with "prompt", "question", "messages", "turns", "conversations" or an OpenAI batch "body", and "category" '
    "if you have one"
)
_DATASET = "hf:"
_GZIP = b"\x1f\x8b"
_KINDS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".txt": "text"}
_SEPARATORS = {"csv": ",", "tsv": "\t"}
_LONGEST_FIELD = 2**31 - 1

Item = tuple[str, Any]  # where it stands, as an error says it; an object, or text


def read_items(source: str) -> tuple[str, list[Item]]:
    """The source's name and its items.

    `source` is FILE or FILE:COLUMN (.jsonl, .json, .csv, .tsv, .txt, also with .gz), - for standard input, or
    hf:DATASET:SPLIT:COLUMN. With a column, an item's text stands there. Raises: ConfigError with the place.
    """
    if source.startswith(_DATASET):
        return source, list(_dataset_items(source))
    path, column = _file_and_column(source)
    data = sys.stdin.buffer.read() if source == STDIN else _file_bytes(path)
    name = "standard input" if source == STDIN else path.name
    items = list(_items(_text(_unpacked(data, name), name), _kind(path), name))
    return name, [(where, _of_column(item, column, where)) for where, item in items]


def _file_and_column(source: str) -> tuple[Path, str | None]:
    path, _, column = source.rpartition(":")
    if path and column and not Path(source).exists() and Path(path).exists():
        return Path(path), column
    return Path(source), None


def _kind(path: Path) -> str | None:
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    return _KINDS.get(suffix.lower())


def _file_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = reason_of(error)
        raise ConfigError(
            f"workload {path} cannot be read: {reason}", "give builtin, a file, or - for stdin"
        ) from error


def _unpacked(data: bytes, name: str) -> bytes:
    if not data.startswith(_GZIP):
        return data
    try:
        return gzip.decompress(data)
    except EOFError as error:
        raise ConfigError(f"workload {name}: its gzip ends early", "download it again, whole") from error
    except (OSError, zlib.error) as error:
        raise ConfigError(f"workload {name}: its gzip is damaged", "download it again") from error


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"workload {name} is not UTF-8 at byte {error.start}", "save it as UTF-8") from error


def _items(text: str, kind: str | None, name: str) -> Iterable[Item]:
    """By the file's suffix; without a known one, by the first character."""
    opening = text.lstrip()[:1]
    if kind is None:
        kind = {"[": "json", "{": "jsonl"}.get(opening, "text")
    if kind in _SEPARATORS:
        return _csv_rows(text, _SEPARATORS[kind], name)
    return {"json": _json_list, "jsonl": _json_lines, "text": _text_lines}[kind](text, name)


def _text_lines(text: str, name: str) -> Iterator[Item]:
    """A prompt on each line."""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield f"{name} line {number}", line


def _json_lines(text: str, name: str) -> Iterator[Item]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{name} line {number}", _parsed(line, f"{name} line {number}")


def _json_list(text: str, name: str) -> Iterable[Item]:
    items = _parsed(text, name)
    if not isinstance(items, list):
        raise ConfigError(f"workload {name} is not a JSON list", "make it a list of objects, or use .jsonl")
    return [(f"{name} item {number}", item) for number, item in enumerate(items, start=1)]


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        line = f" line {error.lineno}" if isinstance(error, json.JSONDecodeError) and "\n" in text.strip() else ""
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise ConfigError(f"workload {where}{line} is not JSON: {reason}", f"expected {ACCEPTED}") from error


def _csv_rows(text: str, delimiter: str, name: str) -> Iterator[Item]:
    """Rows as objects under the header's names; a row may span lines."""
    csv.field_size_limit(_LONGEST_FIELD)
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for row in rows:
            where = f"{name} line {rows.line_num}"
            if None in row or None in row.values():
                problem = f"workload {where} has not as many fields as the header"
                raise ConfigError(problem, "quote fields that hold the separator or a line break")
            yield where, row
    except csv.Error as error:
        raise ConfigError(
            f"workload {name} line {rows.line_num} is not CSV: {error}", "save it as CSV again"
        ) from error


def _of_column(item: Any, column: str | None, where: str) -> Any:
    """The item with the text of its column as the prompt."""
    if column is None:
        return item
    if not isinstance(item, dict):
        raise ConfigError(f"workload {where} has no columns", "leave the :COLUMN away")
    if column not in item:
        raise ConfigError(f"workload {where} has no column {column!r}", f"give one of: {', '.join(map(str, item))}")
    return {"prompt": item[column], **({"category": item["category"]} if item.get("category") else {})}


def _dataset_items(source: str) -> Iterator[Item]:
    name, split, column = _dataset_parts(source)
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ConfigError("hf: needs the datasets package", "pip install 'spectune[datasets]'") from error
    try:
        rows = load_dataset(name, split=split)
    except Exception as error:  # the library raises whatever it likes
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ConfigError(f"dataset {name}, split {split}, cannot be loaded: {reason}", "check both names") from error
    for number, row in enumerate(rows, start=1):
        where = f"{name} row {number}"
        yield where, _of_column(dict(row), column, where)


def _dataset_parts(source: str) -> tuple[str, str, str]:
    parts = source.removeprefix(_DATASET).split(":")
    if len(parts) != 3 or not all(parts):
        raise ConfigError(f"{source!r} names no dataset, split and column", "write hf:openai/gsm8k:test:question")
    name, split, column = parts
    return name, split, column
