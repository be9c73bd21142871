"""What a server says of its speculative decoding, on one scale, whatever the engine calls it.

Counts are pooled and ratios taken once, at the end. Nothing drafted is no data, neither 0 nor 1. A bonus token is part
of the acceptance length always: τ = 1 + accepted / drafts.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, zip_longest

from spectune.errors import ConfigError

MOST = 1e15
"""Beyond it no server has counted."""
_ENOUGH_TO_BE_DEAD = 50  # proposals
_AS_WRITTEN = "give the engine's log as it was written"
_LIKELY = (
    "likely another tokenizer, chat template or weights than the target's, a draft left at random weights, or heads of "
    "another model: no K helps"
)
_LAST_ONLY = "the source gives averages without counts, which cannot be pooled: the last one is shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What was counted; None where the source does not say. Its own ratios stand in for missing counts."""

    drafts: float | None = None  # rounds in which something was proposed
    rounds: float | None = None  # all of them
    proposed: float | None = None  # tokens
    accepted: float | None = None  # tokens, as are
    by_position: tuple[float, ...] = ()
    length: float | None = None  # tokens of a round, bonus included
    rate: float | None = None  # accepted of proposed
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

    @property
    def nothing_drafted(self) -> bool:
        """Whether there is no data."""
        return 0 in (self.num_drafts, self.num_draft_tokens)


def telemetry(engine: str, counts: Counts) -> Telemetry:
    """Ratios of the counts. Raises: ConfigError for counts that cannot be."""
    if impossible := next(_impossible(counts), None):
        raise ConfigError(f"the figures cannot be: {impossible}", "give the engine's own output, unedited")
    drafts, proposed, accepted, kept = counts.drafts, counts.proposed, counts.accepted, counts.by_position
    nothing, length, rate, rounds = 0 in (drafts, proposed), counts.length, counts.rate, drafts or counts.rounds
    if accepted is not None:
        length, rate = 1 + accepted / rounds if rounds else length, accepted / proposed if proposed else rate
    return Telemetry(
        engine=engine,
        acceptance_length=None if nothing else length,
        draft_acceptance_rate=None if nothing else rate,
        cumulative_acceptance_rate=[so_far / drafts for so_far in kept] if drafts and kept else None,
        conditional_acceptance_rate=_conditional(drafts, kept) if drafts and kept else None,
        num_drafts=drafts,
        num_draft_tokens=proposed,
        num_accepted_tokens=accepted,
        warnings=list(dict.fromkeys([*counts.warnings, *_doubts(counts)])),
    )


def _conditional(drafts: float, kept: Sequence[float]) -> list[float | None]:
    """Of the drafts accepted up to each position, those that were accepted at it too; above 1 by rounding only."""
    return [min(accepted / before, 1.0) if before else None for before, accepted in pairwise([drafts, *kept])]


def pooled(parts: Sequence[Counts]) -> Counts:
    """The sum of counts; a ratio of which no counts are known is that of the last part, and said to be."""
    if len(parts) == 1:
        return parts[0]
    parts = _with_drafts(parts)
    totals = {
        name: _sum(getattr(part, name) for part in parts) for name in ("drafts", "rounds", "proposed", "accepted")
    }
    warnings = tuple(dict.fromkeys(text for part in parts for text in part.warnings))
    summed = Counts(by_position=_by_position(parts), warnings=warnings, **totals)
    last = next((part for part in reversed(parts) if part.length is not None), parts[-1])
    if summed.drafts is None and summed.rounds is None and last.length is not None:
        summed = replace(summed, length=last.length, warnings=(*summed.warnings, _LAST_ONLY))
    if summed.proposed is None and last.rate is not None:
        summed = replace(summed, rate=last.rate)
    return summed


def _sum(values: Iterable[float | None]) -> float | None:
    """None where one is not known."""
    known = list(values)
    return None if None in known else math.fsum(value for value in known if value is not None)


def _by_position(parts: Sequence[Counts]) -> tuple[float, ...]:
    """Nothing where a part accepted some and does not tell where."""
    if not all(part.by_position or part.accepted == 0 for part in parts):
        return ()
    return tuple(map(math.fsum, zip_longest(*(part.by_position for part in parts), fillvalue=0.0)))


def _with_drafts(parts: Sequence[Counts]) -> Sequence[Counts]:
    """Where some parts do not tell their drafts, as long as the others' in the mean."""
    known = [part for part in parts if part.drafts and part.proposed is not None]
    missing = [part for part in parts if part.drafts is None and part.proposed is not None]
    proposed = math.fsum(part.proposed or 0.0 for part in known)
    if not proposed or not missing or len(known) + len(missing) < len(parts):
        return parts
    per_draft = proposed / math.fsum(part.drafts or 0.0 for part in known)
    note = f"{len(missing)} of {len(parts)} parts do not tell their drafts: taken to be as long as the others'"
    told = [replace(part, drafts=(part.proposed or 0.0) / per_draft, warnings=(*part.warnings, note)) for part in parts]
    return [whole if part.drafts is None else part for part, whole in zip(parts, told, strict=True)]


def _impossible(counts: Counts) -> Iterator[str]:
    """What no server can have counted."""
    drafts, proposed, accepted, kept = counts.drafts, counts.proposed, counts.accepted, counts.by_position
    yield from (f"a count of {count:g}" for count in (proposed, accepted, drafts) if count and count < 1)
    if proposed is not None and accepted is not None and accepted > proposed:
        yield f"{accepted:g} tokens accepted of {proposed:g} proposed"
    if proposed is not None and drafts is not None and drafts > proposed:
        yield f"{drafts:g} drafts with {proposed:g} tokens"
    if drafts is not None and max(kept, default=0.0) > 1.01 * drafts + 1:  # counts may follow from rounded rates
        yield f"{max(kept):g} accepted at a position in {drafts:g} drafts"
    rises = ((before, after) for before, after in pairwise(kept) if after > 1.01 * before + 1)
    yield from (f"{after:g} accepted at a position after {before:g}" for before, after in rises)
    if counts.rate is not None and counts.rate > 1:
        yield f"an acceptance rate of {counts.rate:g}"
    if counts.length is not None and 0 < counts.length < 1:
        yield f"an acceptance length of {counts.length:g}, bonus included"


def _doubts(counts: Counts) -> Iterator[str]:
    """What a reader must know before trusting the ratios."""
    drafts, proposed, accepted, kept = counts.drafts, counts.proposed, counts.accepted, counts.by_position
    if 0 in (drafts, proposed):
        yield "nothing was drafted: no data"
        return
    if proposed and proposed >= _ENOUGH_TO_BE_DEAD and accepted == 0:
        yield f"dead draft: 0 accepted of {proposed:g} proposed; {_LIKELY}"
    if drafts and proposed and kept and proposed < drafts * len(kept) * 0.999:
        means = "rates at later positions are over all drafts, and conditional ones are lower ends"
        yield f"drafts had {proposed / drafts:.2f} tokens in the mean, up to {len(kept)}: {means}"
    if kept and accepted is not None and abs(math.fsum(kept) - accepted) > 0.01 * max(accepted, 1.0):
        yield f"positions add up to {math.fsum(kept):g} accepted tokens, not {accepted:g}"


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
    """The named figures of an object, where it has them. Raises: ConfigError for what is no count or ratio."""
    values: dict[str, float] = {}
    for name in names:
        value = body.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float | None) or not 0 <= (value or 0) < MOST:
            raise ConfigError(f"{name} is {str(value)[:40]}, which is no count", "give the engine's own output")
        if value is not None:
            values[name] = float(value)
    return values


def steps_by_accepted(histogram: Sequence[object]) -> tuple[float, tuple[float, ...]]:
    """Of a histogram of steps by accepted tokens: all steps, and by position those that accepted so far."""
    by_accepted = {str(place): steps for place, steps in enumerate(histogram)}
    steps = list(numbers_of(by_accepted, *by_accepted).values())
    if len(steps) < len(histogram):
        raise ConfigError("the histogram of accepted tokens has gaps", "give the engine's own output")
    at_least = list(accumulate(reversed(steps)))[::-1]
    return at_least[0] if at_least else 0.0, tuple(at_least[1:])
