"""Whether a skill that was written earlier still follows from a profile: the skill it would give now is compared.

From the very profile it was written from, every line must follow; from a later one, what it advises must.
"""

import difflib
import re
from dataclasses import dataclass

from spectune.errors import ConfigError

_ADVICE = (
    "draft",
    "num_speculative_tokens (K)",
    "tree width",
    "speculate up to temperature",
    "decode plainly from temperature",
)
_FIGURES = ("speed-up", "tokens per round, bonus included")
_VERDICTS = {"Speculate": "speculate", "Decode": "plain", "Not": "insufficient data"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """`differences` of the advice, or of lines where both are of one profile; `figures` that a later profile moved."""

    follows: bool
    differences: list[str]
    figures: list[str]


def verification(
    written: str,  # a skill
    now: str,  # the one that the profile gives
) -> Verification:
    """Raises: ConfigError where the first is no skill."""
    before, after = _settings(written), _settings(now)
    if before["measured"] == after["measured"]:
        lines = difflib.unified_diff(written.splitlines(), now.splitlines(), "skill", "profile", n=0, lineterm="")
        return Verification(follows=written == now, differences=[one for one in lines if one[:2] != "@@"], figures=[])
    differences = _changes(before, after, ("target", "verdict", *_ADVICE))
    if not differences and after["verdict"] == "speculate" and _blocks(written) != _blocks(now):
        differences = ["the configs to paste"]
    return Verification(follows=not differences, differences=differences, figures=_changes(before, after, _FIGURES))


def engines_of(skill: str) -> list[str]:
    """The engines that it has configs for."""
    return re.findall(r"^### (.+) \(checked against ", skill, re.MULTILINE)


def _settings(skill: str) -> dict[str, str]:
    """The rows of its tables of two columns, its verdict and target."""
    rows = re.findall(r"^\| ((?:\\\||[^|\n])+?) \| ((?:\\\||[^|\n])*?) \|$", skill, re.MULTILINE)
    verdict = re.search(r"^\*\*(\w+) ", skill, re.MULTILINE)
    found = {**dict(rows), "verdict": _VERDICTS.get(verdict[1], "") if verdict else ""}
    for name in ("target", "measured", "verdict", *_ADVICE, *_FIGURES):
        if not found.get(name):
            raise ConfigError(f"the skill names no {name}", "give a skill that spectune recommend wrote")
    return found


def _changes(before: dict[str, str], after: dict[str, str], names: tuple[str, ...]) -> list[str]:
    return [f"{name}: {before[name]}, now {after[name]}" for name in names if before[name] != after[name]]


def _blocks(skill: str) -> list[str]:
    """What its configs say to paste: all but the last block, which tells how to profile."""
    return re.findall(r"^```\w*\n(.*?)^```$", skill, re.MULTILINE | re.DOTALL)[:-1]
