"""A change of speed-up by the part that made it: tokens a round, a plain step, or a round."""

from dataclasses import dataclass
from math import log
from typing import Literal

MissedPart = Literal["tokens a round", "a plain step", "a round"]

_BEYOND_CHANCE = 3.0  # standard errors
_TOO_SMALL = 0.03  # changes of speed-up below it are not explained


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Each part over what it was or was said to be: speed-up goes with the first two, against the third."""

    tokens: float  # tokens a round
    plain_step: float  # seconds
    round: float  # seconds
    replay_z: float | None = None  # rounds counted less replayed on the same text, in standard errors; None: no chance

    @property
    def speedup(self) -> float:
        """How many times as large it is."""
        return self.tokens * self.plain_step / self.round

    @property
    def part(self) -> MissedPart | None:
        """The one that changed most; None where speed-up is as it was."""
        if abs(log(self.speedup)) < _TOO_SMALL:
            return None
        changes: dict[MissedPart, float] = {
            "tokens a round": self.tokens,
            "a plain step": self.plain_step,
            "a round": self.round,
        }
        return max(changes, key=lambda name: abs(log(changes[name])))

    @property
    def sentence(self) -> str | None:
        """Names the part; None where there is none to name."""
        if self.part is None:
            return None
        if self.part != "tokens a round":
            ratio = self.plain_step if self.part == "a plain step" else self.round
            return f"most of it is {self.part}, which takes {ratio:.2f} times as long"
        doubt = ""
        if self.replay_z is not None:
            sure = abs(self.replay_z) > _BEYOND_CHANCE
            doubt = ", which chance does not explain" if sure else ", as other texts by chance have"
        return f"most of it is tokens a round, {self.tokens:.2f} times as many{doubt}"
