"""Whose output a text is, and what it tells: a /metrics page, responses as JSON, or a log."""

import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from spectune.engines.catalogue import ENGINES
from spectune.errors import ConfigError
from spectune.served.exposition import Series, exposition, since
from spectune.served.telemetry import Counts, Telemetry, lines_of, pooled, telemetry

_DEPTH = 12  # of JSON
_JSON = re.compile(r"\{|data:|\[\s*[\[{\]]")  # a log line may begin with a bracket, around its time
_HTML = re.compile(r"<(?:!doctype|html|head|body|\?xml)", re.IGNORECASE)
_STREAM = re.compile(r"(?:event|id|retry|):.*?^data:", re.MULTILINE | re.DOTALL)
_SAMPLE = re.compile(r"(?m)^# (?:HELP|TYPE) |^(?:vllm:|sglang:|llamacpp:|trtllm_)[\w:]+(?:\{.*\})?[ \t]+[-+\dNI]")
_REMEDY = "give a /metrics page, the JSON of responses, or log lines"

_Part = TypeVar("_Part")  # of a text: an object of JSON, or a line
_Counters = Mapping[str, Callable[[_Part], Counts | None]]

_OF_SERIES: _Counters[Series] = {n: e.counts_of_series for n, e in ENGINES.items() if e.counts_of_series}
_OF_OBJECT: _Counters[Mapping[str, object]] = {n: e.counts_of_object for n, e in ENGINES.items() if e.counts_of_object}
_OF_LINE: _Counters[str] = {n: e.counts_of_line for n, e in ENGINES.items() if e.counts_of_line}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    series: Series | None = None  # of a /metrics page
    engine: str
    counts: Counts


def read_telemetry(text: str, earlier: str | None = None) -> Telemetry:
    """Of a /metrics page, response JSON or log, or of the time since an earlier page. Raises: ConfigError."""
    read = _read(text)
    if earlier is not None:
        before, _ = _whole_lines(_bare(earlier))
        if read.series is None or not _is_page(before):
            raise ConfigError("an interval needs two /metrics pages", "give one file of responses or log lines")
        read = _of_series(since(exposition(before), read.series))
    return telemetry(read.engine, read.counts)


def _read(text: str) -> _Read:
    bare = _bare(text)
    if _is_json(bare):
        objects = _objects(bare)
        read = _of_parts(objects, _OF_OBJECT) or _of_parts(_logged(objects), _OF_LINE)
        if read is None:
            raise ConfigError("the JSON tells nothing of speculative decoding", _REMEDY)
        return read
    whole, left_out = _whole_lines(bare)
    read = _of_series(exposition(whole)) if _is_page(whole) else _of_parts(enumerate(lines_of(whole)), _OF_LINE)
    if read is None:
        raise ConfigError("the text tells nothing of speculative decoding", _REMEDY)
    return replace(read, counts=replace(read.counts, warnings=(*read.counts.warnings, *left_out)))


def _whole_lines(text: str) -> tuple[str, list[str]]:
    """Without a last line that does not end, which may have been cut, and a note of it; a single line is whole."""
    whole, newline, cut = text.rpartition("\n")
    if not newline or not cut.strip():
        return text, []
    return f"{whole}\n", ["the last line does not end, and was left out"]


def _bare(text: str) -> str:
    """Raises: ConfigError for nothing, and for a web page."""
    bare = text.lstrip("\ufeff").lstrip()
    if not bare or _HTML.match(bare):
        raise ConfigError("this is HTML, no metrics" if bare else "there is nothing to read", _REMEDY)
    return bare


def _is_json(text: str) -> bool:
    return bool(_JSON.match(text) or _STREAM.match(text))


def _is_page(text: str) -> bool:
    return not _is_json(text) and _SAMPLE.search(text) is not None


def _of_series(series: Series) -> _Read:
    read = _of_parts([(0, series)], _OF_SERIES)
    if read is None:
        remedy = "serve with speculation on, and with metrics enabled"
        raise ConfigError("the metrics tell nothing of speculative decoding", remedy)
    return replace(read, series=series)


def _of_parts(parts: Iterable[tuple[Hashable, _Part]], counters: _Counters[_Part]) -> _Read | None:
    """All parts that the first engine to understand one understands; of a stream, whose totals run, the last part."""
    counted: dict[Hashable, Counts] = {}
    engines = list(counters)
    for key, part in parts:
        understood = ((engine, counts) for engine in engines if (counts := counters[engine](part)) is not None)
        for engine, counts in islice(understood, 1):
            engines, counted[key] = [engine], counts
    return _Read(engine=engines[0], counts=pooled(list(counted.values()))) if counted else None


def _objects(text: str) -> list[tuple[Hashable, Mapping[str, object]]]:
    """Every object of JSON, of JSON lines, or of a stream's `data:` lines, with a key of its own or its stream's."""
    objects = ((stream, inner) for stream, document in _documents(text) for inner in _inside(document, 0))
    return [(place if stream is None else stream, inner) for place, (stream, inner) in enumerate(objects)]


def _documents(text: str) -> Iterator[tuple[Hashable, object]]:
    """Documents, each with the stream that it is a chunk of."""
    with suppress(ValueError, RecursionError):
        yield None, json.loads(text)
        return
    lines, stream = [line.strip() for line in lines_of(text)], 1
    streamed = any(line.startswith("data:") for line in lines)
    for number, line in enumerate(lines, 1):
        body = line.removeprefix("data:").strip() if line.startswith("data:") or not streamed else ""
        if body == "[DONE]":
            stream += 1
        elif body:
            document = _parsed(body, number)
            yield _stream(document, stream if streamed else None), document
            stream += isinstance(document, dict) and document.get("stop") is True


def _parsed(line: str, number: int) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"line {number} is no JSON", "give whole responses, one a line") from error


def _stream(document: object, number: int | None) -> Hashable:
    """The response that a chunk is of: by its id, else by its place between ends of streams."""
    inner = document.get("meta_info") if isinstance(document, dict) else None
    ids = (body.get("id") for body in (document, inner) if isinstance(body, dict))
    return next((name for name in ids if isinstance(name, str) and name), number and f"stream {number}")


def _inside(value: object, depth: int) -> Iterator[Mapping[str, object]]:
    if depth > _DEPTH:
        return
    if isinstance(value, dict):
        yield value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        if isinstance(part, dict | list):
            yield from _inside(part, depth + 1)


def _logged(objects: Sequence[tuple[Hashable, Mapping[str, object]]]) -> Iterator[tuple[Hashable, str]]:
    """Lines of a log that was written as JSON."""
    texts = [value for _, body in objects for value in body.values() if isinstance(value, str)]
    return enumerate(line for text in texts for line in lines_of(text))
