"""Markdown that several reports share."""

from collections.abc import Iterable, Sequence

from spectune.stats import Interval


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]], note: str = "") -> str:
    """A section, if it has a title; cells may hold anything but line breaks, intervals are of speed-ups."""
    lines = [header, ["---"] * len(header), *([cell_text(value) for value in row] for row in rows)]
    text = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return "\n\n".join([*([f"## {title}"] if title else []), *([note] if note else []), text])


def cell_text(value: object) -> str:
    """As a table shows it: numbers to two places, intervals of speed-ups, what is not known in words."""
    if isinstance(value, float):
        return f"{value:.2f}"
    return interval_text(value, "×") if isinstance(value, Interval) else "no data" if value is None else str(value)


def interval_text(interval: Interval, unit: str = "") -> str:
    """`1.19× [1.10, 1.29]`; without an interval, the point alone."""
    if interval.low is None or interval.high is None:
        return f"{interval.estimate:.2f}{unit} [no interval]"
    return f"{interval.estimate:.2f}{unit} [{interval.low:.2f}, {interval.high:.2f}]"


def bullets(title: str, lines: Iterable[str]) -> str:
    """A section of points."""
    return f"## {title}\n\n" + "\n".join(f"- {line}" for line in lines)


def block(text: str, language: str) -> str:
    """Code to paste."""
    return f"```{language}\n{text}\n```"
