"""Text for serving engines: what to paste, checked against which version. No model runs here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """A setting as one engine takes it. Costs belong to an engine, so the speed-up does not carry over."""

    engine: str
    checked_against: str  # version whose public documentation or source the text was checked against
    language: str  # of `text`, for the code fence
    text: str
    acceptance_rule: str
    acceptance_length: float  # under that rule, bonus included
    notes: list[str]


SPEEDUP_NOT_MEASURED = "speed-up not measured here"
