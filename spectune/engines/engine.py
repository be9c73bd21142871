"""What an adapter gives: an engine as a record of what it takes, what it refuses and how it counts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from spectune.engines.preflight import Finding, Plan
from spectune.engines.speculation import Speculation
from spectune.served.exposition import Series
from spectune.served.telemetry import Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigText:
    """A setting as one engine takes it; `files` are those that the command reads, or could, by name."""

    text: str
    rule: str  # of acceptance
    notes: list[str]
    language: str = "sh"  # of `text`, for the code fence
    files: dict[str, str] = field(default_factory=dict)


Check = Callable[[Plan], Iterator[Finding]]


def for_draft_models(check: Check) -> Check:
    """A check that goes for draft models only."""
    return lambda plan: check(plan) if plan.draft.method == "draft_model" else iter(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A serving engine. Those without any of the counters are libraries, which tell nothing of themselves."""

    name: str
    checked_against: str  # the version whose public documentation, source or parser the adapter was held against
    methods: Sequence[str]  # of drafting, that it has
    trees: Sequence[str] = ()  # methods whose proposals may branch; all others are verified as chains
    in_full: Mapping[str, str] = field(default_factory=dict)  # its short names of settings, and what they stand for
    config: Callable[[Speculation], ConfigText]
    checks: Sequence[Check]  # of a preflight: what it would refuse, change by itself, or do inexactly
    counts_of_series: Callable[[Series], Counts | None] | None = None
    counts_of_object: Callable[[Mapping[str, object]], Counts | None] | None = None
    counts_of_line: Callable[[str], Counts | None] | None = None
