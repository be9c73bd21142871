"""What a server says of its speculative decoding, on one scale, whatever the engine calls it.

Counts are pooled and ratios taken once, at the end. Nothing drafted is no data, neither 0 nor 1. A bonus token is part
of the acceptance length always: τ = 1 + accepted / drafts.
"""

import math
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from spectune.errors import ConfigError, printable

Labels = tuple[tuple[str, str], ...]
Series = dict[str, dict[Labels, float]]
"""Prometheus samples: name → labels → value."""

_MOST = 1e15  # beyond it no server has counted
_START = "process_start_time_seconds"
_SAME_START_S = 1.0
_MADE = "_created"  # when a counter began
_ENOUGH_TO_BE_DEAD = 50  # proposals
_TELLING = re.compile(
    rf"(?:vllm|sglang|llamacpp):spec_|trtllm_spec_|{_START}\b|sglang:(?:generation_tokens|num_requests)_total\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What was counted; None where the source does not say.

    `num_drafts` are rounds in which something was proposed, `num_rounds` all of them. An engine's own ratios stand in
    for missing counts.
    """

    num_drafts: float | None = None
    num_rounds: float | None = None
    num_draft_tokens: float | None = None
    num_accepted_tokens: float | None = None
    accepted_by_position: tuple[float, ...] = ()
    acceptance_length: float | None = None  # bonus included
    draft_acceptance_rate: float | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """One engine's figures as docs/glossary.md defines them; null where the source does not say."""

    engine: str
    acceptance_length: float | None
    draft_acceptance_rate: float | None
    cumulative_acceptance_rate: list[float] | None
    conditional_acceptance_rate: list[float | None] | None
    num_drafts: float | None
    num_draft_tokens: float | None
    num_accepted_tokens: float | None
    warnings: list[str]


def telemetry(engine: str, counts: Counts) -> Telemetry:
    """Ratios of the counts. Raises: ConfigError for counts that cannot be."""
    _require_possible(counts)
    drafts, proposed, accepted = counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens
    warnings = [*counts.warnings, *_doubts(counts)]
    nothing = drafts == 0 or proposed == 0
    kept = counts.accepted_by_position if drafts else ()
    return Telemetry(
        engine=engine,
        acceptance_length=None if nothing else _length(counts),
        draft_acceptance_rate=None if nothing else _rate(counts),
        cumulative_acceptance_rate=[one / drafts for one in kept] if drafts and kept else None,
        conditional_acceptance_rate=[
            min(one / before, 1.0) if before else None  # above by rounding only
            for one, before in zip(kept, [drafts or 0.0, *kept], strict=False)
        ]
        if kept
        else None,
        num_drafts=drafts,
        num_draft_tokens=proposed,
        num_accepted_tokens=accepted,
        warnings=list(dict.fromkeys(warnings)),
    )


def pooled(parts: Sequence[Counts]) -> Counts:
    """The sum of counts; a ratio of which no counts are known is that of the last part, and said to be."""
    if len(parts) == 1:
        return parts[0]

    parts = _with_drafts(parts)

    def summed_up(name: str) -> float | None:
        values = [getattr(part, name) for part in parts]
        return None if any(value is None for value in values) else math.fsum(values)

    longest = max((len(part.accepted_by_position) for part in parts), default=0)
    everywhere = all(part.accepted_by_position or part.num_accepted_tokens == 0 for part in parts)
    by_position = [
        math.fsum(part.accepted_by_position[j] for part in parts if j < len(part.accepted_by_position))
        for j in range(longest if everywhere else 0)
    ]
    summed = Counts(
        num_drafts=summed_up("num_drafts"),
        num_rounds=summed_up("num_rounds"),
        num_draft_tokens=summed_up("num_draft_tokens"),
        num_accepted_tokens=summed_up("num_accepted_tokens"),
        accepted_by_position=tuple(by_position),
        warnings=tuple(dict.fromkeys(text for part in parts for text in part.warnings)),
    )
    last = next((part for part in reversed(parts) if part.acceptance_length is not None), parts[-1])
    if summed.num_drafts is None and summed.num_rounds is None and last.acceptance_length is not None:
        summed = replace(summed, acceptance_length=last.acceptance_length, warnings=(*summed.warnings, _LAST_ONLY))
    if summed.num_draft_tokens is None and last.draft_acceptance_rate is not None:
        summed = replace(summed, draft_acceptance_rate=last.draft_acceptance_rate)
    return summed


def _with_drafts(parts: Sequence[Counts]) -> Sequence[Counts]:
    """Where some parts do not tell their drafts, as long as the others' in the mean."""
    known = [part for part in parts if part.num_drafts and part.num_draft_tokens is not None]
    per_draft = math.fsum(p.num_draft_tokens or 0.0 for p in known) / math.fsum(
        p.num_drafts or 0.0 for p in known or [_ONE]
    )
    missing = [part for part in parts if part.num_drafts is None and part.num_draft_tokens is not None]
    if not known or not missing or not per_draft or len(known) + len(missing) < len(parts):
        return parts
    note = f"{len(missing)} of {len(parts)} parts do not tell their drafts: taken to be as long as the others'"
    return [
        replace(part, num_drafts=(part.num_draft_tokens or 0.0) / per_draft, warnings=(*part.warnings, note))
        if part.num_drafts is None
        else part
        for part in parts
    ]


_ONE = Counts(num_drafts=1.0)
_LAST_ONLY = "the source gives averages without counts, which cannot be pooled: the last one is shown"


def lines_of(text: str) -> list[str]:
    """What stands between line feeds; other separators of Unicode are parts of texts."""
    return [line.rstrip("\r") for line in text.split("\n")]


def exposition(text: str) -> Series:
    """Samples of Prometheus text whose name tells of speculation, and when the process started.

    Raises: ConfigError for text that is no exposition, a series given twice, or a value that is no count.
    """
    from prometheus_client.parser import text_string_to_metric_families

    lines = [line for line in lines_of(text) if _TELLING.match(line)]
    series: Series = {}
    try:
        families = list(text_string_to_metric_families("\n".join(lines) + "\n"))
    except Exception as error:  # its parser meets hostile text with any error
        reason = str(error).split("\n")[0][:120]
        raise ConfigError(f"the metrics cannot be parsed: {reason}", "give the text of a /metrics page") from error
    for sample in (sample for family in families for sample in family.samples):
        labels, values = tuple(sorted(sample.labels.items())), series.setdefault(sample.name, {})
        if labels in values:
            raise ConfigError(f"the metrics hold {sample.name} twice, with equal labels", "scrape one server at a time")
        if not 0 <= sample.value < _MOST:
            value = str(sample.value)[:20]
            raise ConfigError(f"the metrics hold {sample.name} = {value}, which is no count", "scrape anew")
        values[labels] = float(sample.value)
    return series


def since(before: Series, after: Series) -> Series:
    """What was counted between two scrapes, series by series.

    A series that the earlier one lacks counted from 0: some servers show a counter from its first increment on.

    Raises: ConfigError where a counter fell, vanished, or was made anew, or the process started in between: the server
    restarted.
    """
    remedy = "take both scrapes from one run of the server, and give the earlier one first"
    starts = [sorted(series.get(_START, {}).values()) for series in (before, after)]
    if any(abs(one - other) > _SAME_START_S for one, other in zip(*starts, strict=False)):
        raise ConfigError("the server restarted between the two scrapes: its process is another", remedy)
    grown: Series = {}
    for name, values in after.items():
        for labels, value in values.items():
            earlier = before.get(name, {}).get(labels, 0.0)
            if name.endswith(_MADE) and earlier and abs(value - earlier) > _SAME_START_S:
                raise ConfigError(f"the server restarted between the two scrapes: {name} changed", remedy)
            if value < earlier and is_counter(name):
                fell = f"{name} fell from {earlier:g} to {value:g}"
                raise ConfigError(f"the server restarted between the two scrapes: {fell}", remedy)
            grown.setdefault(name, {})[labels] = value - earlier if is_counter(name) else value
    gone = [name for name, values in before.items() if is_counter(name) and values.keys() - after.get(name, {}).keys()]
    if gone:
        raise ConfigError(f"the second scrape lacks a series of {gone[0]} that the first has", remedy)
    return grown


def is_counter(name: str) -> bool:
    """Whether a metric only grows: counters end in _total, but for older ones of vLLM."""
    return name.endswith("_total") or (name.startswith("vllm:spec_decode_num_") and not name.endswith(_MADE))


def total(series: Series, *names: str) -> float | None:
    """The sum over all series of the first of these names that is there."""
    return next((math.fsum(series[name].values()) for name in names if name in series), None)


def by_position(series: Series, name: str, label: str = "position") -> tuple[float, ...]:
    """Sums by position, 0 and up. Raises: ConfigError for positions that are no numbers, or leave gaps."""
    sums: dict[int, float] = {}
    for labels, value in series.get(name, {}).items():
        place = dict(labels).get(label, "")
        if not place.isdecimal() or len(place) > 4:
            raise ConfigError(f"{name} has {label} = {place[:20]!r}", "scrape anew")
        sums[int(place)] = sums.get(int(place), 0.0) + value
    if sorted(sums) != list(range(len(sums))):
        raise ConfigError(f"{name} lacks a {label}: it has {', '.join(map(str, sorted(sums)[:9]))}", "scrape anew")
    return tuple(sums[place] for place in range(len(sums)))


def mean(series: Series, name: str, among: Container[Labels]) -> float | None:
    """Over the series of a gauge with these labels; None where there is none."""
    values = [value for labels, value in series.get(name, {}).items() if labels in among]
    return math.fsum(values) / len(values) if values else None


def several(series: Series, name: str, label: str) -> list[str]:
    """A warning where one label has several values, which are pooled."""
    values = sorted({printable(dict(labels)[label]) for labels in series.get(name, {}) if label in dict(labels)})
    return [f"pooled over {len(values)} values of {label}: {', '.join(values[:5])}"] if len(values) > 1 else []


def number(text: str) -> float:
    """Of a log line. Raises: ConfigError for what is no count or ratio."""
    try:
        value = float(text)
    except ValueError as error:
        raise ConfigError(f"{text[:40]!r} is no number", "give the engine's log as it was written") from error
    if not 0 <= value < _MOST:
        raise ConfigError(f"{text[:40]} is no count", "give the engine's log as it was written")
    return value


def numbers_of(found: Mapping[str, object], *names: str) -> dict[str, float]:
    """The named figures of an object, else all. Raises: ConfigError for what is no number of a count or ratio."""
    values = {}
    for name in names or found:
        value = found.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST:
            raise ConfigError(f"{name} is {str(value)[:40]}, which is no count", "give the engine's own output")
        values[name] = float(value)
    return values


def steps_by_accepted(histogram: Sequence[object]) -> tuple[float, tuple[float, ...]]:
    """Of a histogram of steps by accepted tokens: all steps, and by position those that accepted so far."""
    steps = list(numbers_of({str(place): count for place, count in enumerate(histogram)}).values())
    if len(steps) < len(histogram):
        raise ConfigError("the histogram of accepted tokens has gaps", "give the engine's own output")
    at_least = list(accumulate(reversed(steps)))[::-1]
    return at_least[0] if at_least else 0.0, tuple(at_least[1:])


def _length(counts: Counts) -> float | None:
    if counts.num_drafts and counts.num_accepted_tokens is not None:
        return 1 + counts.num_accepted_tokens / counts.num_drafts
    if counts.num_rounds and counts.num_accepted_tokens is not None:
        return 1 + counts.num_accepted_tokens / counts.num_rounds
    return counts.acceptance_length


def _rate(counts: Counts) -> float | None:
    if counts.num_draft_tokens and counts.num_accepted_tokens is not None:
        return counts.num_accepted_tokens / counts.num_draft_tokens
    return counts.draft_acceptance_rate


def _require_possible(counts: Counts) -> None:
    proposed, accepted, drafts = counts.num_draft_tokens, counts.num_accepted_tokens, counts.num_drafts
    impossible = next((f"a count of {one:g}" for one in (proposed, accepted, drafts) if one and one < 1), None)
    if impossible:
        pass
    elif proposed is not None and accepted is not None and accepted > proposed:
        impossible = f"{accepted:g} tokens accepted of {proposed:g} proposed"
    elif proposed is not None and drafts is not None and drafts > proposed:
        impossible = f"{drafts:g} drafts with {proposed:g} tokens"
    elif drafts is not None and max(counts.accepted_by_position, default=0.0) > 1.01 * drafts + 1:
        impossible = f"{max(counts.accepted_by_position):g} accepted at a position in {drafts:g} drafts"
    elif rising := next((p for p in pairwise(counts.accepted_by_position) if p[1] > 1.01 * p[0] + 1), None):
        impossible = f"{rising[1]:g} accepted at a position after {rising[0]:g}"
    elif counts.draft_acceptance_rate is not None and counts.draft_acceptance_rate > 1:
        impossible = f"an acceptance rate of {counts.draft_acceptance_rate:g}"
    elif counts.acceptance_length is not None and 0 < counts.acceptance_length < 1:
        impossible = f"an acceptance length of {counts.acceptance_length:g}, bonus included"
    if impossible:
        raise ConfigError(f"the figures cannot be: {impossible}", "give the engine's own output, unedited")


def _doubts(counts: Counts) -> list[str]:
    """What a reader must know before trusting the ratios."""
    drafts, proposed, accepted = counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens
    found = []
    if drafts == 0 or proposed == 0:
        return ["nothing was drafted: no data"]
    if proposed and proposed >= _ENOUGH_TO_BE_DEAD and accepted == 0:
        found.append(
            f"dead draft: 0 accepted of {proposed:g} proposed; likely another tokenizer, chat template or weights than "
            "the target's, a draft left at random weights, or heads of another model: no K helps"
        )
    positions = counts.accepted_by_position
    if drafts and proposed and positions and proposed < drafts * len(positions) * 0.999:
        found.append(
            f"drafts had {proposed / drafts:.2f} tokens in the mean, up to {len(positions)}: rates at later positions "
            "are over all drafts, and conditional ones are lower ends"
        )
    if positions and accepted is not None and abs(math.fsum(positions) - accepted) > 0.01 * max(accepted, 1.0):
        found.append(f"positions add up to {math.fsum(positions):g} accepted tokens, not {accepted:g}")
    return found
