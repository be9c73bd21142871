"""The fixed words of a skill, for its writer and for the one who reads it back."""

import re

ADVICE = (
    "draft",
    "num_speculative_tokens (K)",
    "tree width",
    "speculate up to temperature",
    "decode plainly from temperature",
)
"""Settings that a later profile must still give."""
FIGURES = ("speed-up", "tokens per round, bonus included")
"""Settings that a later profile may move."""
TARGET, MEASURED = "target", "measured"

SPECULATE, DECODE_PLAINLY = "Speculate", "Decode plainly"
NOT_CONFIRMED, UNDECIDED = "Not confirmed", "Not enough data to decide"
VERDICTS = {
    SPECULATE: "speculate",
    DECODE_PLAINLY: "plain",
    NOT_CONFIRMED: "insufficient data",
    UNDECIDED: "insufficient data",
}
"""By how the headline begins."""

_CHECKED = " (checked against "


def config_heading(engine: str, checked_against: str) -> str:
    """Above the config of an engine."""
    return f"### {engine}{_CHECKED}{checked_against})"


def headed_engines(skill: str) -> list[str]:
    """The engines that it has configs for."""
    return re.findall(rf"^### (.+){re.escape(_CHECKED)}", skill, re.MULTILINE)


def headlined_verdict(skill: str) -> str:
    """Of its headline; empty where it has none."""
    headline = re.search(r"^\*\*(.+)", skill, re.MULTILINE)
    text = headline[1] if headline else ""
    return next((verdict for opening, verdict in VERDICTS.items() if text.startswith(opening)), "")
