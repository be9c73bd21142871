"""`spectune show`: the pictures of a profile, in the terminal."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from spectune.cli.options import argument, option

if TYPE_CHECKING:
    from spectune.decide.recommendation import Recommendation
    from spectune.stats import Interval


def show(
    directory: Annotated[Path, argument("DIR", "Directory of a profile.")],
    temperature: Annotated[
        float | None, option("T", "Temperature to show. Default: the target's own, else the lowest.")
    ] = None,
) -> None:
    """Draw speed-up against K, acceptance by position and the time of a round, as text."""
    from rich.console import Console

    from spectune.decide.plan import recommend
    from spectune.profile.store import load_profile

    answer = recommend(load_profile(directory), temperature)
    console = Console(highlight=False, markup=False)
    width = max(console.width - 14, 10)  # what is left by the columns before a bar: K and its figure
    for title, lines in (
        (f"speed-up at T = {answer.temperature:g}, 95% intervals; │ is plain decoding", _speedups(answer, width)),
        ("acceptance by position: once reached, and of all rounds, as engines print it", _acceptances(answer, width)),
        (f"a round of {answer.best_candidate.draft} in ms: █ verify ▒ draft ░ overhead", _rounds(answer, width)),
    ):
        console.print(title, style="bold", soft_wrap=True)
        console.print(*lines, "", sep="\n", soft_wrap=True)


def _speedups(answer: "Recommendation", width: int) -> Iterator[str]:
    from spectune.report.figures import by_draft, speedup_span

    low, high = speedup_span(answer)
    yield _row("", "", f"{low:<{width - 4}.2f}{high:.2f}")
    for draft, series in by_draft(answer).items():
        yield draft
        for candidate in series:
            decoded = answer.confirmation.of(candidate.choice) if answer.confirmation else None
            shown = [(f"K = {candidate.num_speculative_tokens}", candidate.speedup, "●")]
            shown += [("real", decoded.measured, "◇")] if decoded else []
            for label, interval, mark in shown:
                yield _row(label, f"{interval.estimate:.2f}×", _whisker(interval, mark, low, high, width))


def _row(label: str, figure: str, bar: str) -> str:
    return f"{label:<6} {figure:>6} {bar}".rstrip()


def _whisker(interval: "Interval", mark: str, low: float, high: float, width: int) -> str:
    """├──●──┤ on a line from low to high, an arrow where it goes on beyond, with │ at 1."""

    def column(value: float) -> int:
        return round((min(max(value, low), high) - low) / (high - low) * (width - 1))

    cells, plain = [" "] * width, column(1.0)
    if interval.low is not None and interval.high is not None:
        first, last = column(interval.low), column(interval.high)
        cells[first : last + 1] = "─" * (last - first + 1)
        if last > first:
            cells[first], cells[last] = "◂" if interval.low < low else "├", "▸" if interval.high > high else "┤"
    cells[plain] = {" ": "│", "─": "┼"}.get(cells[plain], cells[plain])
    cells[column(interval.estimate)] = mark
    return "".join(cells).rstrip()


def _acceptances(answer: "Recommendation", width: int) -> Iterator[str]:
    from spectune.report.figures import by_draft, deepest

    for draft, series in by_draft(answer).items():
        longest = deepest(series)
        yield f"{draft}, K = {longest.num_speculative_tokens}"
        rates = zip(longest.conditional_acceptance_rate, longest.cumulative_acceptance_rate, strict=True)
        for place, (rate, of_all) in enumerate(rates, start=1):
            figures = ["never" if value is None else f"{value:.2f}" for value in (rate, of_all)]
            yield _row(f"{place:<2}{figures[0]}", figures[1], "█" * round((rate or 0.0) * width))


def _rounds(answer: "Recommendation", width: int) -> Iterator[str]:
    from spectune.report.figures import by_draft

    best = answer.best_candidate
    rounds = {c.num_speculative_tokens: (c.verify_s, c.draft_s, c.overhead_s) for c in by_draft(answer)[best.draft]}
    longest = max(*map(sum, rounds.values()), best.plain_s)

    def bar(*parts: float) -> str:
        text, until = "", 0.0
        for mark, seconds in zip("█▒░", parts, strict=False):
            until += seconds
            text += mark * (round(until / longest * width) - len(text))
        return text

    yield _row("plain", f"{best.plain_s * 1e3:.1f}", bar(best.plain_s))
    for k, parts in rounds.items():
        yield _row(f"K = {k}", f"{1e3 * sum(parts):.1f}", bar(*parts))
