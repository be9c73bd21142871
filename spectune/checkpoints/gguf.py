"""The header of a GGUF file: its fields and its tensors' shapes, whatever stands in it.

The library's own reader makes two arrays of every token and believes every count; this one reads each byte once and
stops at bounds that no model reaches. Source: the GGUF specification, versions 2 and 3.
"""

import math
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from spectune.checkpoints.files import UnreadableError

_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32
_MOST_BYTES = 1 << 26  # of a header; a quarter of a million tokens take 16 MB
_MOST_TEXT_BYTES = 1 << 24
_MOST_ITEMS = 1 << 22  # of all arrays together; those of a quarter of a million tokens have 1.3 million
_MOST_FIELDS = 1 << 12
_MOST_TENSORS = 1 << 17
_MOST_DIMENSIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """Fields by name (numbers, flags, texts; arrays as tuples, of bytes where they hold texts), and all weights."""

    fields: Mapping[str, Any]
    parameters: int

    @property
    def architecture(self) -> str:
        """Which the names of most other fields begin with."""
        return str(self.fields.get("general.architecture"))

    @property
    def tokens(self) -> tuple[bytes, ...]:
        """Of its tokenizer, by id. Raises: UnreadableError where they are no texts."""
        tokens = self.fields.get("tokenizer.ggml.tokens", ())
        if not isinstance(tokens, tuple) or not all(isinstance(token, bytes) for token in tokens):
            raise UnreadableError("has tokens that are no texts")
        return tokens


def gguf_header(path: Path) -> GgufHeader:
    """Of a file that holds all that its header promises. Raises: UnreadableError for any other."""
    try:
        if not path.is_file():
            raise UnreadableError("is no file")
        with path.open("rb") as file:
            return _header(_Reader(file))
    except (OSError, struct.error) as error:
        raise UnreadableError("cannot be read as GGUF") from error


class _Reader:
    """Reads on within a file and within bounds."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.size = os.fstat(file.fileno()).st_size
        self.order = "<"
        self._bytes_left = min(self.size, _MOST_BYTES)
        self._items_left = _MOST_ITEMS

    def take(self, size: int) -> bytes:
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise UnreadableError("ends before its header does, or has too long a one")
        data = self.file.read(size)
        if len(data) < size:
            raise UnreadableError("ends before its header does")
        return data

    def number(self, kind: str) -> Any:
        """One number or flag of a kind that struct knows."""
        return struct.unpack(self.order + kind, self.take(struct.calcsize("<" + kind)))[0]

    def count(self, most: int) -> int:
        value = int.from_bytes(self.take(8), "little" if self.order == "<" else "big")
        if value > most:
            raise UnreadableError(f"counts {value:,} where no model has so many")
        return value

    def text(self) -> bytes:
        return self.take(self.count(_MOST_TEXT_BYTES))

    def name(self) -> str:
        try:
            return self.text().decode("utf-8")
        except UnicodeDecodeError as error:
            raise UnreadableError("has a name that is no text") from error

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text().decode("utf-8", errors="replace")
        if kind == _ARRAY:
            return self._array(self.number("I"))
        return self.number(_scalar(kind))

    def _array(self, kind: int) -> tuple[Any, ...]:
        length = self.count(self._items_left)
        self._items_left -= length
        if kind == _TEXT:
            return tuple([self.text() for _ in range(length)])
        items = f"{self.order}{length}{_scalar(kind)}"
        return struct.unpack(items, self.take(struct.calcsize(items)))


def _scalar(kind: int) -> str:
    if kind not in _SCALARS:
        raise UnreadableError(f"has a value of the unknown kind {kind}")
    return _SCALARS[kind]


def _header(reader: _Reader) -> GgufHeader:
    if reader.take(4) != b"GGUF":
        raise UnreadableError("is not a GGUF file")
    version = reader.number("I")
    if version & 0xFFFF == 0:  # written on a machine of the other byte order
        reader.order, version = ">", int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in _VERSIONS:
        raise UnreadableError(f"is GGUF of version {version}, which is not known")
    tensors, entries = reader.count(_MOST_TENSORS), reader.count(_MOST_FIELDS)
    fields = _unique((reader.name(), reader.value(reader.number("I"))) for _ in range(entries))
    extents = _unique(_tensor(reader) for _ in range(tensors))
    alignment = fields.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise UnreadableError("has an alignment that is no power of two")
    begin = -(-reader.file.tell() // alignment) * alignment
    if any(begin + end > reader.size for _, end in extents.values()):
        raise UnreadableError("ends before its weights do")
    return GgufHeader(fields=fields, parameters=sum(weights for weights, _ in extents.values()))


def _tensor(reader: _Reader) -> tuple[str, tuple[int, int]]:
    """A tensor's name, how many weights it has, and where it ends, in bytes behind the header."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    name, dimensions = reader.name(), reader.number("I")
    if dimensions > _MOST_DIMENSIONS:
        raise UnreadableError(f"has a tensor of {dimensions:,} dimensions")
    weights = math.prod(reader.number("Q") for _ in range(dimensions))
    kind, offset = reader.number("I"), reader.number("Q")
    try:
        block_weights, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except (KeyError, ValueError) as error:
        raise UnreadableError(f"has weights of the unknown kind {kind}") from error
    return name, (weights, offset + int(weights * block_bytes // block_weights))


def _unique(entries: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in entries:
        if name in values:
            raise UnreadableError(f"has {name[:60]!r} twice")
        values[name] = value
    return values
