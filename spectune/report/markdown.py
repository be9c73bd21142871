"""Markdown that several reports share, written and read back."""

import re
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells may hold anything but line breaks."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def pairs(markdown: str) -> dict[str, str]:
    """The rows of its tables of two columns, as written."""
    return dict(re.findall(r"^\| ((?:\\\||[^|\n])+?) \| ((?:\\\||[^|\n])*?) \|$", markdown, re.MULTILINE))


def block(text: str, language: str) -> str:
    """Code to paste."""
    return f"```{language}\n{text}\n```"


def blocks(markdown: str) -> list[str]:
    """What its blocks hold, in their order."""
    return re.findall(r"^```\w*\n(.*?)^```$", markdown, re.MULTILINE | re.DOTALL)
