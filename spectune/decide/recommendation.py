"""The answer as values: everything that the skill and `--json` say."""

from dataclasses import dataclass

from spectune.choice import Choice, chain
from spectune.decide.confirmation import Confirmation, ConfirmedSetting
from spectune.decide.formula import FormulaFit
from spectune.decide.requests import WholeRequests
from spectune.decide.round_costs import Accuracy
from spectune.decide.selection import MIN_GAIN, Verdict
from spectune.drafting_spec import draft_spec
from spectune.profile.manifest import Notice
from spectune.stats import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureGate:
    """Of the measured temperatures: speculate up to one, decode plainly from the other; None where there is none."""

    speculate_up_to: float | None
    plain_from: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """Decode plainly when, over a window of finished requests, tokens per round stay below a threshold."""

    acceptance_length_below: float
    window_requests: int
    false_trip_rate: float  # at most, by window, of a stream like the profiled one
    windows_per_false_trip: int = 10_000  # at least about so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One draft, K and temperature. Times are means per round, in seconds."""

    draft: str
    num_speculative_tokens: int
    temperature: float
    verdict: Verdict
    speedup: Interval
    acceptance_length: Interval  # per complete round, as engines count it
    clock_acceptance_length: float  # what a clock sees: the last round of a text that ends is cut short
    draft_acceptance_rate: float | None  # None where nothing was proposed
    conditional_acceptance_rate: list[float | None]
    cumulative_acceptance_rate: list[float | None]
    plain_s: float
    draft_s: float
    verify_s: float
    overhead_s: float
    round_s: float
    round_in_plain_steps: float  # the tokens of a round at which nothing is gained
    break_even_alpha: float | None
    effective_prompts: float

    @property
    def tree_width(self) -> int:
        """The most proposals that may follow one token; 1 of a chain."""
        return min(draft_spec(self.draft).branches, self.num_speculative_tokens)

    @property
    def choice(self) -> Choice:
        """What it decodes with."""
        return Choice(self.draft, chain(self.num_speculative_tokens), self.temperature)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureAnswer:
    """The answer at one measured temperature; draft and K are None unless it is to speculate."""

    temperature: float
    verdict: Verdict
    draft: str | None
    num_speculative_tokens: int | None
    speedup: Interval
    best_candidate: Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What the profile said before a confirming run joined it."""

    verdict: Verdict
    draft: str
    num_speculative_tokens: int
    speedup: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryAnswer:
    """The best candidate's figures on one category of prompts."""

    category: str
    prompts: int
    acceptance_length: float | None  # as a clock sees it; None where no round was recorded
    speedup: Interval | None
    published: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAnswer:
    """The answer at one batch and context; larger batches are rounds in step, with the overhead of batch 1."""

    batch: int
    context_tokens: int
    verdict: Verdict
    draft: str
    num_speculative_tokens: int
    speedup: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStep:
    """What the best candidate's draft is worth at a measured batch: its own best K, 0 where it is not to speculate."""

    batch: int
    num_speculative_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliesTo:
    """What the answer was measured on."""

    target: str
    hardware: str
    device: str
    dtype: str
    threads: int
    batch: int
    context_tokens: int
    engine: str
    workload: str
    profiled_prompts: int
    confirmed_prompts: int
    max_new_tokens: int
    top_p: float
    top_k: int
    versions: dict[str, str]
    profile_created_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Everything the skill says, as values. Speed-ups are over plain decoding in `applies_to.engine`."""

    verdict: Verdict
    draft: str | None
    num_speculative_tokens: int | None
    tree_width: int = 1
    temperature: float
    temperature_gate: TemperatureGate
    speedup: Interval
    min_gain: float = MIN_GAIN
    break_even_alpha: float | None
    whole_requests: WholeRequests | None  # None where the profile does not tell what reading a prompt takes
    fallback: Fallback | None
    fallback_reason: str
    best_candidate: Candidate
    best_decoded: ConfirmedSetting | None  # None where that candidate was not decoded
    predicted: Predicted | None  # None where nothing was decoded
    by_temperature: list[TemperatureAnswer]
    by_category: list[CategoryAnswer]
    by_load: list[LoadAnswer]
    by_batch: list[BatchStep]
    candidates: list[Candidate]
    acceptance_length_by_rule: dict[str, float]
    padded_drafts: list[str]  # of the target's tokens, with another number of embedding rows, which some engines refuse
    formula: list[FormulaFit]
    accuracy: Accuracy
    confirmation: Confirmation | None
    reasons: list[str]
    warnings: list[Notice]
    applies_to: AppliesTo
    reproduce: str

    @property
    def refuted(self) -> bool:
        """Whether the profile alone said speculate, and no longer does with the confirming run."""
        return self.predicted is not None and self.predicted.verdict == "speculate" != self.verdict
