"""Whether a skill that was written earlier still follows from a profile: the skill it would give now is compared.

From the very profile it was written from, every line must follow; from a later one, what it advises must.
"""

import difflib

from spectune.errors import ConfigError
from spectune.report.labels import ADVICE, FIGURES, MEASURED, TARGET, headlined_verdict
from spectune.report.markdown import blocks, pairs


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
    settings = {**pairs(skill), "verdict": headlined_verdict(skill)}
    for name in (TARGET, MEASURED, "verdict", *ADVICE, *FIGURES):
        if not settings.get(name):
            raise ConfigError(f"the skill names no {name}", "give a skill that spectune recommend wrote")
    return settings


def _changes(before: dict[str, str], after: dict[str, str], names: tuple[str, ...]) -> list[str]:
    return [f"{name}: {before[name]}, now {after[name]}" for name in names if before[name] != after[name]]
