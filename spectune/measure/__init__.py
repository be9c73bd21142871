"""Everything that touches the hardware: environment, tape, acceptance, cost."""

from typing import Protocol

OWN_ENGINE, EAGER = "spectune", "eager"
"""What costs and rounds are measured in: our own loop, without captured graphs."""


class Progress(Protocol):
    """Hears how far a long step is; the CLI draws it."""

    def start(self, stage: str, total: float, unit: str) -> None:
        """A stage begins."""

    def advance(self, amount: float, note: str = "") -> None:
        """Part of the current stage is done."""

    def say(self, text: str) -> None:
        """A line worth reading."""


class SilentProgress:
    """A Progress that nobody watches."""

    def start(self, stage: str, total: float, unit: str) -> None:
        """Nothing is drawn."""

    def advance(self, amount: float, note: str = "") -> None:
        """Nothing moves."""

    def say(self, text: str) -> None:
        """Nothing is said."""
