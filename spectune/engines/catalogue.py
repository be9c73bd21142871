"""All engines: choosing one by name and version, and finding out whose output a text is."""

import json
import re
import shlex
from collections import UserDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from spectune.decide.recommendation import Recommendation
from spectune.engines import (
    CONTEXT,
    ConfigText,
    EngineConfig,
    Finding,
    Plan,
    info,
    llama_cpp,
    sglang,
    tensorrt_llm,
    transformers,
    vllm,
    warning,
)
from spectune.engines.speculation import FOLDER, Speculation, best_speculation, named_speculation
from spectune.errors import ConfigError
from spectune.served.telemetry import Counts, Series, Telemetry, exposition, lines_of, pooled, since, telemetry

ENGINES: dict[str, ModuleType] = {
    "vllm": vllm,
    "sglang": sglang,
    "tensorrt-llm": tensorrt_llm,
    "llama.cpp": llama_cpp,
    "transformers": transformers,
}
_SERVERS = {name: module for name, module in ENGINES.items() if module is not transformers}  # a library counts nothing
_SPEEDUP_NOT_MEASURED = "speed-up not measured here"
_ALSO = {"trtllm": "tensorrt-llm", "trt-llm": "tensorrt-llm", "llamacpp": "llama.cpp", "hf": "transformers"}
_DEPTH = 12  # of JSON
_JSON = re.compile(r"\{|data:|\[\s*[\[{\]]")  # a log line may begin with a bracket, around its time
_HTML = re.compile(r"<(?:!doctype|html|head|body|\?xml)", re.IGNORECASE)
_STREAM = re.compile(r"(?:event|id|retry|):.*?^data:", re.MULTILINE | re.DOTALL)
_SAMPLE = re.compile(
    r"^# (?:HELP|TYPE) |^(?:vllm:|sglang:|llamacpp:|trtllm_)[\w:]+(?:\{.*\})?[ \t]+[-+\dNI]", re.MULTILINE
)


def engine_named(asked: str) -> tuple[ModuleType, str]:
    """The engine and version of `vllm@0.32`; without a version, the one it was checked against.

    Raises: ConfigError for an engine that is not known.
    """
    name, _, version = asked.partition("@")
    known = _ALSO.get(name.lower(), name.lower())
    if known not in ENGINES:
        raise ConfigError(f"engine {name!r} is not known", f"give one of {', '.join(ENGINES)}, as in vllm@0.32")
    engine = ENGINES[known]
    return engine, version or engine.CHECKED_AGAINST


def engine_config(asked: Speculation, engine: str, folder: Path | None = None) -> EngineConfig:
    """What to paste there, its files in a folder; a version that it was not checked against is a warning.

    Raises: ConfigError.
    """
    module, version = engine_named(engine)
    draft, notes = asked.draft, [_SPEEDUP_NOT_MEASURED, *asked.notes]
    warnings = [_unchecked(module, version)] if _differs(module, version) else []
    if draft is None:
        notes.append("plain decoding")
    elif draft.method not in module.METHODS:
        warnings.append(f"{module.NAME} has no {draft.method.replace('_', ' ')} drafting; this is plain decoding")
        asked = replace(asked, draft=None)
    elif asked.instead_of:
        warnings.append(f"{module.NAME} has no {asked.instead_of}; {draft.text} is the best here that it has")
    if asked.draft and asked.varies and _differs(module, version):
        notes.append(f"no schedule by batch: what {module.NAME} {version} makes of one was not checked")
        asked = replace(asked, schedule=[])
    if asked.draft and asked.tree_width > 1 and asked.draft.method not in module.TREES:
        warnings.append(f"{module.NAME} verifies chains of {asked.draft.method} drafts, no trees; this is a chain")
        asked = replace(asked, tree_width=1)
    written: ConfigText = module.config(asked)
    return EngineConfig(
        engine=module.NAME,
        version=version,
        checked_against=module.CHECKED_AGAINST,
        draft=asked.draft.text if asked.draft else None,
        num_speculative_tokens=asked.num_speculative_tokens if asked.draft else 0,
        tree_width=asked.tree_width,
        language=written.language,
        text=written.text.replace(FOLDER, "" if folder is None else shlex.quote(f"{folder}/")),
        files=written.files,
        acceptance_rule=written.rule,
        acceptance_length=asked.length(written.rule),
        notes=[*notes, *written.notes],
        warnings=warnings,
    )


def recommended_config(recommendation: Recommendation, engine: str, folder: Path | None = None) -> EngineConfig:
    """For the best candidate that the engine can run. Raises: ConfigError."""
    return engine_config(best_speculation(recommendation, engine_named(engine)[0].METHODS), engine, folder)


def named_config(
    recommendation: Recommendation,
    engine: str,
    draft: str | None,
    num_speculative_tokens: int | None,
    tree_width: int,
    folder: Path | None = None,
) -> EngineConfig:
    """For what the user names; where the engine has no such method, for the best measured that it has.

    Raises: ConfigError.
    """
    asked = named_speculation(recommendation, draft, num_speculative_tokens, tree_width)
    methods = engine_named(engine)[0].METHODS
    if asked.draft and asked.draft.method not in methods:
        able = best_speculation(recommendation, methods)
        if able.draft and able.draft.method in methods:
            verdict = f"the profile's verdict is {recommendation.verdict}"
            asked = replace(able, instead_of=asked.draft.text, notes=[verdict, *able.notes])
    return engine_config(asked, engine, folder)


def engine_findings(plan: Plan, engine: str) -> list[Finding]:
    """What a preflight finds there. Raises: ConfigError."""
    module, version = engine_named(engine)
    settings = _Watched(plan.settings)
    found: list[Finding] = module.findings(replace(plan, settings=settings))
    if unread := sorted(plan.settings.keys() - settings.read - set(CONTEXT)):
        message = f"not looked at: {', '.join(unread)}"
        found.append(info("unknown-setting", message, "nothing to do, unless it is misspelt"))
    if _differs(module, version):
        found.append(warning("version", _unchecked(module, version), "read its release notes for what changed"))
    found.sort(key=lambda one: ("error", "warning", "info").index(one.level))
    return found


class _Watched(UserDict[str, object]):
    """Settings that remember which of them were asked for."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        super().__init__(settings)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> object:
        self.read.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return super().__contains__(name)


def _differs(module: ModuleType, version: str) -> bool:
    """In the numbers that both give, or where it gives none of the first two."""
    mine, theirs = (re.findall(r"\d+", text) for text in (version, module.CHECKED_AGAINST))
    given = min(len(mine), len(theirs))
    return given < min(2, len(theirs)) or mine[:given] != theirs[:given]


def _unchecked(module: ModuleType, version: str) -> str:
    return f"not checked against {module.NAME} {version}, only against {module.CHECKED_AGAINST}"


# ------------------------------------------------------------------------------------------------ telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    series: Series | None
    engine: str
    counts: Counts


def read_telemetry(text: str, earlier: str | None = None) -> Telemetry:
    """Of a /metrics page, response JSON or log; with an earlier page, of the time between the two.

    Raises: ConfigError for text that is none of these, or says nothing of speculative decoding.
    """
    now = _read(text)
    if earlier is None:
        return telemetry(now.engine, now.counts)
    before, _ = _whole_lines(_bare(earlier))
    if now.series is None or not _is_page(before):
        raise ConfigError("an interval needs two /metrics pages", "give one file of responses or log lines")
    grown = _of_series(since(exposition(before), now.series))
    return telemetry(grown.engine, grown.counts)


def _read(text: str) -> _Read:
    bare = _bare(text)
    if _is_json(bare):
        objects = _objects(bare)
        read = _of_parts(objects, "counts_of_object") or _of_parts(_logged(objects), "counts_of_line")
        if read is None:
            raise ConfigError("the JSON tells nothing of speculative decoding", _REMEDY)
        return read
    whole, left_out = _whole_lines(bare)
    read = _of_series(exposition(whole)) if _is_page(whole) else _of_parts(enumerate(lines_of(whole)), "counts_of_line")
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
    for name, engine in _SERVERS.items():
        counts = engine.counts_of_series(series)
        if counts is not None:
            return _Read(series=series, engine=name, counts=counts)
    raise ConfigError(
        "the metrics tell nothing of speculative decoding", "serve with speculation on, and with metrics enabled"
    )


def _of_parts(parts: Iterable[tuple[Hashable, object]], reader: str) -> _Read | None:
    """All parts that one engine understands, pooled; the first that understands any is it.

    Of parts with equal keys, which are those of one stream, the last counts: they are running totals.
    """
    found: dict[Hashable, Counts] = {}
    its: str | None = None
    for key, part in parts:
        for name in [its] if its else _SERVERS:
            counts = getattr(_SERVERS[name], reader)(part)
            if counts is not None:
                found[key] = counts
                its = name
                break
    return None if its is None else _Read(series=None, engine=its, counts=pooled(list(found.values())))


def _objects(text: str) -> list[tuple[Hashable, Mapping[str, object]]]:
    """Every object of JSON, of JSON lines, or of a stream's `data:` lines, with a key of its own or its stream's."""
    found: list[tuple[Hashable, Mapping[str, object]]] = []
    for stream, document in _parsed(text):
        found += [
            (len(found) + place if stream is None else stream, one) for place, one in enumerate(_inside(document, 0))
        ]
    return found


def _parsed(text: str) -> Iterator[tuple[Hashable, object]]:
    """Documents, each with the stream that it is a chunk of."""
    try:
        yield None, json.loads(text)
        return
    except (ValueError, RecursionError):
        pass
    lines, stream = [line.strip() for line in lines_of(text)], 1
    streamed = any(line.startswith("data:") for line in lines)
    for number, line in enumerate(lines, 1):
        body = line.removeprefix("data:").strip() if line.startswith("data:") or not streamed else ""
        if body == "[DONE]":
            stream += 1
        elif body:
            try:
                document = json.loads(body)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"line {number} is no JSON", "give whole responses, one a line") from error
            yield _stream(document, stream if streamed else None), document
            stream += isinstance(document, dict) and document.get("stop") is True


def _stream(document: object, number: int | None) -> Hashable:
    """The response that a chunk is of: by its id, else by its place between ends of streams."""
    inner = document.get("meta_info") if isinstance(document, dict) else None
    ids = (one.get("id") for one in (document, inner) if isinstance(one, dict))
    return next((one for one in ids if isinstance(one, str) and one), number and f"stream {number}")


def _inside(found: object, depth: int) -> Iterator[Mapping[str, object]]:
    if depth > _DEPTH:
        return
    if isinstance(found, dict):
        yield found
    inner = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
    for one in inner:
        if isinstance(one, dict | list):
            yield from _inside(one, depth + 1)


def _logged(objects: Sequence[tuple[Hashable, Mapping[str, object]]]) -> Iterator[tuple[Hashable, str]]:
    """Lines of a log that was written as JSON."""
    texts = [value for _, one in objects for value in one.values() if isinstance(value, str)]
    return enumerate(line for text in texts for line in lines_of(text))


_REMEDY = "give a /metrics page, the JSON of responses, or log lines"
