"""The figures that a check compares: of what part each is, what a reader calls it, and which of them decide."""

from dataclasses import dataclass
from typing import Literal

Part = Literal["acceptance", "cost_p", "cost_q", "overhead", "speedup"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure; those that do not decide explain one that does."""

    part: Part
    name: str  # {n} stands for what a round verifies
    decides: bool = True


METRICS = {
    "acceptance_length": Metric("acceptance", "tokens per round"),
    "cost_p_1": Metric("cost_p", "cost_p(1)"),
    "cost_p_verify": Metric("cost_p", "cost_p({n})"),
    "cost_q": Metric("cost_q", "cost_q"),
    "speedup": Metric("speedup", "predicted speed-up"),
    "conditional_acceptance_rate": Metric("acceptance", "acceptance", decides=False),
    "overhead": Metric("overhead", "overhead", decides=False),
}
"""By their names in the machine output. Between machines costs are in plain steps, cost_p(1)."""

HEADLINES = tuple(name for name, metric in METRICS.items() if metric.decides)
PARTS = tuple(dict.fromkeys(METRICS[name].part for name in HEADLINES))
