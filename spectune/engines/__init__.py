"""Text for serving engines. No model runs here; costs belong to an engine, so no speed-up carries over."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from spectune.drafting_spec import DraftSpec
from spectune.model_facts import ModelFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigText:
    """What an engine's own file writes; `files` are those that the command reads, or could, by name."""

    text: str
    rule: str  # of acceptance
    notes: list[str]
    language: str = "sh"  # of `text`, for the code fence
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """A setting as one engine takes it: a command or code, and the files it reads, by name."""

    engine: str
    version: str  # that was asked for
    checked_against: str  # whose public documentation, source or parser the text was checked against
    draft: str | None  # None: plain decoding
    num_speculative_tokens: int  # of a tree: its depth
    tree_width: int
    language: str  # of `text`, for the code fence
    text: str
    files: dict[str, str]
    acceptance_rule: str
    acceptance_length: float | None  # under that rule, bonus included; None where it is not known
    notes: list[str]
    warnings: list[str]


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


def first_difference(plan: Plan, from_id: int = 0, below_id: int | None = None) -> str | None:
    """The first token id in a range that the two tokenizers read as another text; None where all agree."""
    ours, theirs = plan.target.texts, plan.model.texts if plan.model else {}
    if not ours or not theirs:
        return None
    for token_id in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(token_id), theirs.get(token_id)
        if mine != other and token_id >= from_id and (below_id is None or token_id < below_id):
            mine, other = ("missing" if text is None else f'"{text}"' for text in (mine, other))
            sizes = "" if len(ours) == len(theirs) else f" ({len(ours)} tokens and {len(theirs)})"
            return f"the tokenizers differ{sizes}: id {token_id} is {mine} in the target, {other} in the draft"
    return None


def pair_findings(plan: Plan) -> list[Finding]:
    """What any engine meets: tokens that could not be compared, a draft that ends before the target does."""
    if plan.model is None:
        return []
    found = []
    unread = [one.name for one in (plan.target, plan.model) if not one.texts]
    if unread and plan.draft.method == "draft_model":
        message = f"no tokenizer.json in {' and '.join(unread)}: the tokens were not compared"
        found.append(warning("tokenizer", message, "save the tokenizers in the fast format, and ask again"))
    served = next((plan.settings[name] for name in _CONTEXT if is_count(plan.settings.get(name))), None)
    needed, own = served or plan.target.max_positions, plan.model.max_positions
    if own is not None and needed is not None and own < needed:  # type: ignore[operator]
        message = f"the draft has {own} positions, the target is served with {needed}: longer texts have no draft"
        found.append(warning("positions", message, f"serve with at most {own} tokens, or a draft with more positions"))
    return found


_CONTEXT = ("max_model_len", "context_length", "max_seq_len", "ctx_size", "c")  # as the engines call it


def mtp_findings(plan: Plan) -> list[Finding]:
    """A target that has nothing to predict with."""
    if plan.draft.method != "mtp" or plan.target.mtp_layers:
        return []
    return [error("mtp", f"{plan.target.name} has no heads of its own to predict with", "use another draft")]


def is_count(value: object) -> bool:
    """Whether it is a whole number, not below 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
