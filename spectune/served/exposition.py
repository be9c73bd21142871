"""Prometheus text of a server: samples that tell of speculation, what grew between two scrapes, sums of them."""

import math
import re

from spectune.errors import ConfigError, printable
from spectune.served.telemetry import MOST, Counts, lines_of

Labels = tuple[tuple[str, str], ...]
Series = dict[str, dict[Labels, float]]
"""Prometheus samples: name → labels → value."""

_START = "process_start_time_seconds"
_SAME_START_S = 1.0
_RESTARTED = "the server restarted between the two scrapes"
_ONE_RUN = "take both scrapes from one run of the server, and give the earlier one first"
_MADE = "_created"  # when a counter began
_TELLING = re.compile(
    rf"(?:vllm|sglang|llamacpp):spec_|trtllm_spec_|{_START}\b|sglang:(?:generation_tokens|num_requests)_total\b"
)


def exposition(text: str) -> Series:
    """Samples that tell of speculation, and when the process started. Raises: ConfigError where they cannot be read."""
    from prometheus_client.parser import text_string_to_metric_families

    told, series = "".join(f"{line}\n" for line in lines_of(text) if _TELLING.match(line)), Series()
    try:
        samples = [sample for family in text_string_to_metric_families(told or "\n") for sample in family.samples]
    except Exception as error:  # its parser meets hostile text with any error
        reason = str(error).split("\n")[0][:120]
        raise ConfigError(f"the metrics cannot be parsed: {reason}", "give the text of a /metrics page") from error
    for sample in samples:
        labels, values = tuple(sorted(sample.labels.items())), series.setdefault(sample.name, {})
        if labels in values:
            raise ConfigError(f"the metrics hold {sample.name} twice, with equal labels", "scrape one server at a time")
        if not 0 <= sample.value < MOST:
            value = str(sample.value)[:20]
            raise ConfigError(f"the metrics hold {sample.name} = {value}, which is no count", "scrape anew")
        values[labels] = float(sample.value)
    return series


def since(before: Series, after: Series) -> Series:
    """What was counted between two scrapes, series by series; one that the earlier lacks counted from 0.

    Raises: ConfigError where the server restarted: a counter fell, vanished, or began anew, or the process did.
    """
    starts = [sorted(series.get(_START, {}).values()) for series in (before, after)]
    if any(abs(earlier - later) > _SAME_START_S for earlier, later in zip(*starts, strict=False)):
        raise ConfigError(f"{_RESTARTED}: its process is another", _ONE_RUN)
    grown = {
        name: {labels: _grown(name, before.get(name, {}).get(labels, 0.0), value) for labels, value in values.items()}
        for name, values in after.items()
    }
    gone = [name for name, values in before.items() if _is_counter(name) and values.keys() - after.get(name, {}).keys()]
    if gone:
        raise ConfigError(f"the second scrape lacks a series of {gone[0]} that the first has", _ONE_RUN)
    return grown


def _grown(name: str, earlier: float, value: float) -> float:
    """Of a counter what came in between, of a gauge its value now."""
    if name.endswith(_MADE) and earlier and abs(value - earlier) > _SAME_START_S:
        raise ConfigError(f"{_RESTARTED}: {name} changed", _ONE_RUN)
    if not _is_counter(name):
        return value
    if value < earlier:
        raise ConfigError(f"{_RESTARTED}: {name} fell from {earlier:g} to {value:g}", _ONE_RUN)
    return value - earlier


def _is_counter(name: str) -> bool:
    """Whether a metric only grows: counters end in _total, but for older ones of vLLM."""
    return name.endswith("_total") or (name.startswith("vllm:spec_decode_num_") and not name.endswith(_MADE))


def total(series: Series, *names: str) -> float | None:
    """The sum over all series of the first of these names that is there."""
    return next((math.fsum(series[name].values()) for name in names if name in series), None)


def spec_decode_counts(series: Series, engine: str, *suffixes: str) -> Counts:
    """Of counters under the names that vLLM gave them, which llama.cpp took over."""
    counted = f"{engine}:spec_decode_num_"
    drafts, proposed, accepted = (
        total(series, *(f"{counted}{what}{suffix}" for suffix in suffixes))
        for what in ("drafts", "draft_tokens", "accepted_tokens")
    )
    positions = [f"{counted}accepted_tokens_per_pos{suffix}" for suffix in suffixes]
    kept = by_position(series, next((name for name in positions if name in series), ""))
    return Counts(drafts=drafts, proposed=proposed, accepted=accepted, by_position=kept)


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


def several(series: Series, name: str, label: str) -> list[str]:
    """A warning where one label has several values, which are pooled."""
    values = sorted({printable(dict(labels)[label]) for labels in series.get(name, {}) if label in dict(labels)})
    return [f"pooled over {len(values)} values of {label}: {', '.join(values[:5])}"] if len(values) > 1 else []
