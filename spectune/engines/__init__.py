"""Text for serving engines. No model runs here; costs belong to an engine, so no speed-up carries over."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from spectune.checkpoints.facts import PADDING, ModelFacts
from spectune.drafting_spec import DraftSpec
from spectune.errors import printable


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where two tokenizers part; `lacks` where one only has tokens more than the other, a tenth at most."""

    message: str
    lacks: bool


_MORE_TOKENS = 1.1


def first_difference(plan: Plan) -> Difference | None:
    """The first token id that the two tokenizers read as another text, else the first that one lacks.

    None where all agree, and where one of them is not known. Tokens that only fill up a vocabulary are none.
    """
    ours, theirs = ({i: t for i, t in one.texts.items() if not PADDING.fullmatch(t)} for one in _models(plan))
    if not ours or not theirs:
        return None
    common = sorted(ours.keys() & theirs.keys())
    other_text = next((token_id for token_id in common if ours[token_id] != theirs[token_id]), None)
    lacking = min(ours.keys() ^ theirs.keys(), default=None)
    first = lacking if other_text is None else other_text
    if first is None:
        return None
    sizes = "" if len(ours) == len(theirs) else f" ({len(ours)} tokens and {len(theirs)})"
    message = f"the tokenizers differ{sizes}: {texts_at(first, ours.get(first), theirs.get(first))}"
    few, many = sorted((len(ours), len(theirs)))
    return Difference(message=message, lacks=other_text is None and many <= _MORE_TOKENS * few)


def texts_at(token_id: int, ours: str | None, theirs: str | None) -> str:
    """What an id is in the target and in the draft, in printable text."""
    mine, other = ("missing" if text is None else f'"{printable(text)}"' for text in (ours, theirs))
    return f"id {token_id} is {mine} in the target, {other} in the draft"


def _models(plan: Plan) -> tuple[ModelFacts, ModelFacts]:
    return plan.target, plan.model or plan.target


def vocabulary_finding(plan: Plan, engine: str) -> Finding | None:
    """For engines that compare nothing themselves, or sizes only: another text for an id is fatal, a lack is not."""
    differing = first_difference(plan)
    if differing is None:
        return None
    if not differing.lacks:
        return error("vocabulary", differing.message, OTHER_VOCABULARY)
    message = f"{differing.message}; {engine} does not compare tokens: such ones are never accepted"
    return warning("vocabulary", message, "check that such tokens do not occur in your texts")


def pair_findings(plan: Plan) -> list[Finding]:
    """What any engine meets: tokens that could not be compared, a draft that ends before the target does."""
    if plan.model is None:
        return []
    found = _head_findings(plan, plan.model)
    unread = [one.name for one in (plan.target, plan.model) if not one.texts]
    if unread and plan.draft.method == "draft_model":
        message = f"no tokenizer.json in {' and '.join(unread)}: the tokens were not compared"
        found.append(warning("tokenizer", message, "save the tokenizers in the fast format, and ask again"))
    served = next((plan.settings[name] for name in CONTEXT if is_count(plan.settings.get(name))), None)
    needed, own = served or plan.target.max_positions, plan.model.max_positions
    if own is not None and needed is not None and own < needed:  # type: ignore[operator]
        message = f"the draft has {own} positions, the target is served with {needed}: longer texts have no draft"
        found.append(warning("positions", message, f"serve with at most {own} tokens, or a draft with more positions"))
    return found


CONTEXT = ("max_model_len", "context_length", "max_seq_len", "ctx_size", "c")  # as the engines call it


def _head_findings(plan: Plan, model: ModelFacts) -> list[Finding]:
    """Whether what is given as a head is one, and of this target; whether a draft model is none."""
    method, found = plan.draft.method, []
    if method == "draft_model" and model.head:
        message = f"{model.name} is a head by its config ({model.head}), no draft model"
        found.append(error("method", message, f"give it as a head: eagle3:{plan.draft.model}, or eagle:, medusa:"))
    elif method in ("eagle", "eagle3", "medusa") and not model.head and (model.layers or 0) > _HEAD_LAYERS:
        message = f"{model.name} has {model.layers} layers and is no head by its config"
        found.append(warning("method", message, f"give it as a draft model: {plan.draft.model}"))
    sizes = plan.target.hidden_size, model.target_hidden_size or model.hidden_size
    if method in ("eagle", "eagle3") and model.head and None not in sizes and sizes[0] != sizes[1]:
        message = f"the head is for a hidden size of {sizes[1]}, the target's is {sizes[0]}"
        found.append(error("hidden-size", message, "use a head that was trained for this target"))
    k = plan.num_speculative_tokens
    if method == "medusa" and model.medusa_heads and k is not None and k > model.medusa_heads:
        message = f"{model.name} has {model.medusa_heads} heads: it proposes no more tokens than that"
        found.append(warning("num-speculative-tokens", message, f"give K up to {model.medusa_heads}"))
    if method == "draft_model" and None in (plan.target.vocab_size, model.vocab_size):
        unknown = [one.name for one in (plan.target, model) if one.vocab_size is None]
        message = f"the config of {' and '.join(unknown)} tells no vocab_size: sizes were not compared"
        found.append(warning("vocabulary-size", message, "check the file"))
    return found


_HEAD_LAYERS = 4


def mtp_findings(plan: Plan) -> list[Finding]:
    """A target that has nothing to predict with. Some architectures have heads that their config does not tell of."""
    facts = plan.model or plan.target
    if plan.draft.method != "mtp" or facts.mtp_layers:
        return []
    if facts.mtp_layers is None and (facts.model_type or "").startswith(_MAY_HAVE_HEADS):
        message = f"the config of {facts.name} does not tell how many tokens its own heads predict in a pass"
        return [warning("mtp", message, "check that the engine knows its architecture's heads")]
    return [error("mtp", f"{facts.name} has no heads of its own to predict with", "use another draft")]


# model_type of what vLLM 0.32 serves with heads of its own (vllm/config/speculative.py)
_MAY_HAVE_HEADS = (
    "bailing", "deepseek", "dots3", "ernie", "exaone", "gemma4", "glm", "hy_v", "inkling", "kimi", "longcat", "mimo",
    "minimax", "nemotron", "pangu", "qwen3_5", "qwen3_next", "qwen4", "step3",
)  # fmt: skip


def is_count(value: object) -> bool:
    """Whether it is a whole number, not below 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
