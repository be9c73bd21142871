"""Figures in the text of servers, each checked to be one."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from spectune.errors import ConfigError

MOST = 1e15
"""Beyond it no server has counted."""

_AS_WRITTEN = "give the engine's log as it was written"


def lines_of(text: str) -> list[str]:
    """What stands between line feeds; other separators of Unicode are parts of texts."""
    return [line.rstrip("\r") for line in text.split("\n")]


def unreadable(line: str) -> ConfigError:
    """Of a log line that should tell more than it does."""
    return ConfigError(f"the log line cannot be read: {line.strip()[:120]}", _AS_WRITTEN)


def number(text: str) -> float:
    """Of a log line. Raises: ConfigError for what is no count or ratio."""
    try:
        value = float(text)
    except ValueError as error:
        raise ConfigError(f"{text[:40]!r} is no number", _AS_WRITTEN) from error
    if not 0 <= value < MOST:
        raise ConfigError(f"{text[:40]} is no count", _AS_WRITTEN)
    return value


def numbers_of(body: Mapping[str, object], *names: str) -> dict[str, float]:
    """The named figures of an object, else all. Raises: ConfigError for what is no number of a count or ratio."""
    values = {}
    for name in names or body:
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MOST:
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
