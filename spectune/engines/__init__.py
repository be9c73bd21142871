"""Text for serving engines. No model runs here; costs belong to an engine, so no speed-up carries over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from spectune.drafting_spec import DraftSpec, draft_spec
from spectune.model_facts import ModelFacts
from spectune.recommendation import BatchStep, Recommendation

SPEEDUP_NOT_MEASURED = "speed-up not measured here"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """A setting as one engine takes it: a command or code, and the files it reads, by name."""

    engine: str
    version: str  # that was asked for
    checked_against: str  # whose public documentation, source or parser the text was checked against
    language: str  # of `text`, for the code fence
    text: str
    files: dict[str, str]
    acceptance_rule: str
    acceptance_length: float  # under that rule, bonus included
    notes: list[str]
    warnings: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """What is asked of an engine; `draft` None is plain decoding, `schedule` K by batch, 0 being plain."""

    target: str
    draft: DraftSpec | None
    num_speculative_tokens: int
    temperature: float
    top_p: float
    top_k: int
    dtype: str
    schedule: Sequence[BatchStep]
    lengths: Mapping[str, float]  # acceptance length by rule

    @property
    def batches(self) -> list[tuple[int, int, int]]:
        """(first, last, K) without gaps: a batch that was not measured has the K of the next larger one that was."""
        ends = [step.batch for step in self.schedule]
        ks = [step.num_speculative_tokens for step in self.schedule]
        starts = [1, *(end + 1 for end in ends[:-1])]
        return [(first, last, k) for first, last, k in zip(starts, ends, ks, strict=True)]

    @property
    def varies(self) -> bool:
        """Whether K is another at another batch."""
        return any(one.num_speculative_tokens != other.num_speculative_tokens for one, other in pairwise(self.schedule))


def speculation(recommendation: Recommendation) -> Speculation:
    """The recommendation's best candidate."""
    best, applies = recommendation.best_candidate, recommendation.applies_to
    speculate = recommendation.verdict == "speculate"
    return Speculation(
        target=applies.target,
        draft=draft_spec(best.draft),
        num_speculative_tokens=best.num_speculative_tokens,
        temperature=recommendation.temperature,
        top_p=applies.top_p,
        top_k=applies.top_k,
        dtype=applies.dtype,
        schedule=recommendation.by_batch if speculate else [],
        lengths=recommendation.acceptance_length_by_rule,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a preflight found: `error` is impossible or not exact, `warning` works otherwise than one may think."""

    level: Literal["error", "warning", "info"]
    code: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a preflight is asked about: settings are the engine's own, as the user would give them."""

    target: ModelFacts
    draft: DraftSpec
    model: ModelFacts | None  # of the draft, where it loads one
    num_speculative_tokens: int | None
    settings: Mapping[str, object] = field(default_factory=dict)


def error(code: str, message: str, remedy: str) -> Finding:
    """Impossible there, or not exact."""
    return Finding(level="error", code=code, message=message, remedy=remedy)


def warning(code: str, message: str, remedy: str) -> Finding:
    """Works, otherwise than one may think."""
    return Finding(level="warning", code=code, message=message, remedy=remedy)


def info(code: str, message: str, remedy: str) -> Finding:
    """Works, and why."""
    return Finding(level="info", code=code, message=message, remedy=remedy)


OTHER_VOCABULARY = (
    "use a draft of the target's family, or n-gram; vLLM (use_heterogeneous_vocab, greedy drafting) and transformers "
    "(universal assisted generation) can map vocabularies"
)


def first_difference(plan: Plan, from_id: int = 0) -> str | None:
    """The first token id that the two tokenizers read as another text, from an id on; None where all agree."""
    ours, theirs = plan.target.texts, plan.model.texts if plan.model else {}
    if not ours or not theirs:
        return None
    for token_id in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(token_id), theirs.get(token_id)
        if mine != other and token_id >= from_id:
            mine, other = ("missing" if text is None else f'"{text}"' for text in (mine, other))
            sizes = "" if len(ours) == len(theirs) else f" ({len(ours)} tokens and {len(theirs)})"
            return f"the tokenizers differ{sizes}: id {token_id} is {mine} in the target, {other} in the draft"
    return None


def positions_findings(plan: Plan) -> list[Finding]:
    """A draft that ends before the target does."""
    mine, other = plan.target.max_positions, plan.model.max_positions if plan.model else None
    served = plan.settings.get("max_model_len")
    needed = served if is_count(served) else mine
    if other is None or needed is None or other >= needed:  # type: ignore[operator]
        return []
    message = f"the draft has {other} positions, the target is served with {needed}: longer texts have no draft"
    return [warning("positions", message, f"serve with at most {other} tokens, or take a draft with more positions")]


def is_count(value: object) -> bool:
    """Whether it is a whole number, not below 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
