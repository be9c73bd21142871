"""All engines: choosing one by name and version, and finding out whose output a text is."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import ModuleType

from spectune.engines import (
    ConfigText,
    EngineConfig,
    Finding,
    Plan,
    llama_cpp,
    sglang,
    tensorrt_llm,
    transformers,
    vllm,
    warning,
)
from spectune.engines.speculation import Speculation, best_speculation
from spectune.errors import ConfigError
from spectune.recommendation import Recommendation
from spectune.telemetry import Counts, Series, Telemetry, exposition, pooled, since, telemetry

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
_SAMPLE = re.compile(
    r"^# (?:HELP|TYPE) |^[a-zA-Z_:][\w:]*(?:\{.*\})? [-+]?(?:[0-9][0-9.eE+-]*|NaN|Inf)(?: -?[0-9]+)?$", re.MULTILINE
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


def engine_config(asked: Speculation, engine: str) -> EngineConfig:
    """What to paste there; a version that it was not checked against is a warning. Raises: ConfigError."""
    module, version = engine_named(engine)
    draft, notes = asked.draft, [_SPEEDUP_NOT_MEASURED, *asked.notes]
    if draft is None:
        notes.append("plain decoding")
    elif draft.method not in module.METHODS:
        notes.append(f"{module.NAME} has no {draft.method} drafting; this is plain decoding")
        asked = replace(asked, draft=None)
    elif asked.instead_of:
        notes.append(f"{module.NAME} has no {asked.instead_of}, the best here; {draft.text} is the best it has")
    if asked.draft and asked.tree_width > 1 and asked.draft.method not in module.TREES:
        notes.append(f"{module.NAME} verifies chains of {asked.draft.method} drafts, no trees; this is a chain")
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
        text=written.text,
        files=written.files,
        acceptance_rule=written.rule,
        acceptance_length=asked.length(written.rule),
        notes=[*notes, *written.notes],
        warnings=[_unchecked(module, version)] if _differs(module, version) else [],
    )


def recommended_config(recommendation: Recommendation, engine: str) -> EngineConfig:
    """For the best candidate that the engine can run. Raises: ConfigError."""
    return engine_config(best_speculation(recommendation, engine_named(engine)[0].METHODS), engine)


def engine_findings(plan: Plan, engine: str) -> list[Finding]:
    """What a preflight finds there. Raises: ConfigError."""
    module, version = engine_named(engine)
    found: list[Finding] = module.findings(plan)
    if _differs(module, version):
        found = [warning("version", _unchecked(module, version), "read its release notes for what changed"), *found]
    return found


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
    before = _read(earlier)
    if now.series is None or before.series is None:
        raise ConfigError("an interval needs two /metrics pages", "give one file of responses or log lines")
    grown = _of_series(since(before.series, now.series))
    return telemetry(grown.engine, grown.counts)


def _read(text: str) -> _Read:
    stripped = text.strip().lstrip("\ufeff")
    remedy = "give a /metrics page, the JSON of responses, or log lines"
    if not stripped:
        raise ConfigError("there is nothing to read", remedy)
    if stripped.startswith("<"):
        raise ConfigError("this is HTML, no metrics", remedy)
    if _JSON.match(stripped):
        return _of_parts(_objects(stripped), "counts_of_object", "the JSON", remedy)
    if _SAMPLE.search(stripped):
        return _of_series(exposition(stripped))
    return _of_parts(iter(stripped.splitlines()), "counts_of_line", "the text", remedy)


def _of_series(series: Series) -> _Read:
    for name, engine in _SERVERS.items():
        counts = engine.counts_of_series(series)
        if counts is not None:
            return _Read(series=series, engine=name, counts=counts)
    raise ConfigError(
        "the metrics tell nothing of speculative decoding", "serve with speculation on, and with metrics enabled"
    )


def _of_parts(parts: "Iterator[str] | Iterator[Mapping[str, object]]", reader: str, what: str, remedy: str) -> _Read:
    """All parts that one engine understands, pooled; the first that understands any is it."""
    found: list[Counts] = []
    its: str | None = None
    for part in parts:
        for name in [its] if its else _SERVERS:
            counts = getattr(_SERVERS[name], reader)(part)
            if counts is not None:
                found.append(counts)
                its = name
                break
    if its is None:
        raise ConfigError(f"{what} tells nothing of speculative decoding", remedy)
    return _Read(series=None, engine=its, counts=pooled(found))


def _objects(text: str) -> Iterator[Mapping[str, object]]:
    """Every object of JSON, of JSON lines, or of a stream's `data:` lines."""
    for found in _parsed(text):
        yield from _inside(found, 0)


def _parsed(text: str) -> list[object]:
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        pass
    lines = [line.strip().removeprefix("data:").strip() for line in text.splitlines()]
    found = []
    for number, line in enumerate(lines, 1):
        if line and line != "[DONE]":
            try:
                found.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"line {number} is no JSON", "give whole responses, one a line") from error
    return found


def _inside(found: object, depth: int) -> Iterator[Mapping[str, object]]:
    if depth > _DEPTH:
        return
    if isinstance(found, dict):
        yield found
    inner = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
    for one in inner:
        if isinstance(one, dict | list):
            yield from _inside(one, depth + 1)
