"""A skill read back: its fixed words, and whether it still follows from a profile: against what it gives now.

From the very profile it was written from, every line must follow; from a later one, what it advises must.
"""

import difflib
import re

from spectune.errors import ConfigError
from spectune.report.markdown import blocks, pairs

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
_OPEN = "insufficient data"
VERDICTS = {SPECULATE: "speculate", DECODE_PLAINLY: "plain", NOT_CONFIRMED: _OPEN, UNDECIDED: _OPEN}
"""By how the headline begins."""

_CHECKED = " (checked against "


def config_heading(engine: str, checked_against: str) -> str:
    """Above the config of an engine."""
    return f"### {engine}{_CHECKED}{checked_against})"


def headed_engines(skill: str) -> list[str]:
    """The engines that it has configs for."""
    return re.findall(rf"^### (.+){re.escape(_CHECKED)}", skill, re.MULTILINE)


def verification(written: str, now: str) -> tuple[bool, list[str]]:  # a skill, and the one that the profile gives
    """Whether it follows, and what differs, figures that moved too. Raises: ConfigError for what is no skill."""
    before, after = _settings(written), _settings(now)
    if before[MEASURED] == after[MEASURED]:
        lines = difflib.unified_diff(written.splitlines(), now.splitlines(), "skill", "profile", n=0, lineterm="")
        return written == now, [line for line in lines if line[:2] != "@@"]
    differences = _changes(before, after, (TARGET, "verdict", *ADVICE))
    if not differences and after["verdict"] == "speculate" and blocks(written)[:-1] != blocks(now)[:-1]:
        differences = ["the configs to paste"]  # the last block tells how to profile
    return not differences, differences + _changes(before, after, FIGURES)


def _settings(skill: str) -> dict[str, str]:
    """The rows of its tables of two columns, and its verdict."""
    headline = re.search(rf"^\*\*(?:({'|'.join(VERDICTS)})|.)", skill, re.MULTILINE)
    settings = {**pairs(skill), "verdict": VERDICTS.get(headline[1], "") if headline else ""}
    for name in (TARGET, MEASURED, "verdict", *ADVICE, *FIGURES):
        if not settings.get(name):
            raise ConfigError(f"the skill names no {name}", "give a skill that spectune recommend wrote")
    return settings


def _changes(before: dict[str, str], after: dict[str, str], names: tuple[str, ...]) -> list[str]:
    return [f"{name}: {before[name]}, now {after[name]}" for name in names if before[name] != after[name]]
