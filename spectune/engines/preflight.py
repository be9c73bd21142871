"""What engines hold a target and a draft against before any weight loads, and what they find there."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeGuard

from spectune.checkpoints.facts import OTHER_VOCABULARY, ModelFacts, texts_at
from spectune.drafting_spec import DraftSpec

CONTEXT = ("max_model_len", "context_length", "max_seq_len", "ctx_size", "c")  # as the engines call it
TOKENS_APART = "check that such tokens do not occur in your texts"
_HEAD_LAYERS = 4
# model_type of what vLLM 0.32 serves with heads of its own (vllm/config/speculative.py)
_MAY_HAVE_HEADS = (
    "bailing", "deepseek", "dots3", "ernie", "exaone", "gemma4", "glm", "hy_v", "inkling", "kimi", "longcat", "mimo",
    "minimax", "nemotron", "pangu", "qwen3_5", "qwen3_next", "qwen4", "step3",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a preflight is asked about: settings are the engine's own, as the user would give them."""

    target: ModelFacts
    draft: DraftSpec
    model: ModelFacts | None  # of the draft, where it loads one
    num_speculative_tokens: int | None
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def drafting(self) -> ModelFacts:
        """Of the model that drafts, which is the target where the draft loads none."""
        return self.model or self.target

    @property
    def unequal_rows(self) -> tuple[int, int] | None:
        """Rows of the embeddings of target and draft, where they are known and differ."""
        ours, theirs = self.target.vocab_size, self.drafting.vocab_size
        return None if ours is None or theirs is None or ours == theirs else (ours, theirs)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a preflight found: `error` is impossible or not exact, `warning` works otherwise than one may think."""

    level: Literal["error", "warning", "info"]
    code: str
    message: str
    remedy: str


error, warning, info = partial(Finding, "error"), partial(Finding, "warning"), partial(Finding, "info")


def is_count(value: object) -> TypeGuard[int]:
    """Whether it is a whole number, not below 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two tokenizers part; `lacks` where one only has tokens more than the other, a tenth at most."""

    message: str
    lacks: bool


def first_difference(plan: Plan) -> Difference | None:
    """The first token id that the two tokenizers read as another text, else the first that one lacks.

    None where all agree, and where one of them is not known. Tokens that only fill up a vocabulary are none.
    """
    ours, theirs = plan.target.words, plan.drafting.words
    other_texts = [token_id for token_id in ours.keys() & theirs.keys() if ours[token_id] != theirs[token_id]]
    first = min(other_texts or ours.keys() ^ theirs.keys(), default=None)
    if not ours or not theirs or first is None:
        return None
    sizes = "" if len(ours) == len(theirs) else f" ({len(ours)} tokens and {len(theirs)})"
    message = f"the tokenizers differ{sizes}: {texts_at(first, ours.get(first), theirs.get(first))}"
    few, many = sorted((len(ours), len(theirs)))
    return Difference(message, lacks=not other_texts and many <= 1.1 * few)


def vocabulary_finding(plan: Plan, engine: str) -> Finding | None:
    """For engines that compare nothing themselves, or sizes only: another text for an id is fatal, a lack is not."""
    difference = first_difference(plan)
    if difference is None:
        return None
    if not difference.lacks:
        return error("vocabulary", difference.message, OTHER_VOCABULARY)
    message = f"{difference.message}; {engine} does not compare tokens: such ones are never accepted"
    return warning("vocabulary", message, TOKENS_APART)


def padding_findings(plan: Plan, remedy: str, taken_for: str = "padding only") -> Iterator[Finding]:
    """For engines that bear embeddings of other sizes."""
    if plan.unequal_rows:
        ours, theirs = plan.unequal_rows
        yield info("padding", f"embeddings of {ours} and {theirs} rows with the same tokens: {taken_for}", remedy)


def method_findings(plan: Plan, engine: str, methods: Container[str], remedy: str) -> Iterator[Finding]:
    """Whether it has that way to draft."""
    if plan.draft.method not in methods:
        yield error("method", f"{engine} has no {plan.draft.method} drafting", remedy)


def pair_findings(plan: Plan) -> Iterator[Finding]:
    """What any engine meets: tokens that could not be compared, a draft that ends before the target does."""
    if plan.model is not None:
        yield from _head_findings(plan, plan.model)
        if plan.draft.method == "draft_model":
            yield from _untold_findings(plan.target, plan.model)
        yield from _positions_findings(plan, plan.model)


def _head_findings(plan: Plan, model: ModelFacts) -> Iterator[Finding]:
    """Whether what is given as a head is one, of this target, and predicts as much as is asked; a draft model none."""
    method, k, heads = plan.draft.method, plan.num_speculative_tokens, model.medusa_heads
    size, wanted = plan.target.hidden_size, model.target_hidden_size or model.hidden_size
    if method == "draft_model" and model.head:
        message = f"{model.name} is a head by its config ({model.head}), no draft model"
        yield error("method", message, f"give it as a head: eagle3:{plan.draft.model}, or eagle:, medusa:")
    elif method in ("eagle", "eagle3", "medusa") and not model.head and (model.layers or 0) > _HEAD_LAYERS:
        message = f"{model.name} has {model.layers} layers and is no head by its config"
        yield warning("method", message, f"give it as a draft model: {plan.draft.model}")
    if method in ("eagle", "eagle3") and model.head and None not in (size, wanted) and size != wanted:
        message = f"the head is for a hidden size of {wanted}, the target's is {size}"
        yield error("hidden-size", message, "use a head that was trained for this target")
    if method == "medusa" and heads and k is not None and k > heads:
        message = f"{model.name} has {heads} heads: it proposes no more tokens than that"
        yield warning("num-speculative-tokens", message, f"give K up to {heads}")


def _untold_findings(target: ModelFacts, draft: ModelFacts) -> Iterator[Finding]:
    if untold := [model.name for model in (target, draft) if model.vocab_size is None]:
        message = f"the config of {' and '.join(untold)} tells no vocab_size: sizes were not compared"
        yield warning("vocabulary-size", message, "check the file")
    if unread := [model.name for model in (target, draft) if not model.texts]:
        message = f"no tokenizer.json in {' and '.join(unread)}: the tokens were not compared"
        yield warning("tokenizer", message, "save the tokenizers in the fast format, and ask again")


def _positions_findings(plan: Plan, model: ModelFacts) -> Iterator[Finding]:
    lengths = (plan.settings.get(name) for name in CONTEXT)
    served = next((length for length in lengths if is_count(length)), None) or plan.target.max_positions
    own = model.max_positions
    if own is not None and served is not None and own < served:
        message = f"the draft has {own} positions, the target is served with {served}: longer texts have no draft"
        yield warning("positions", message, f"serve with at most {own} tokens, or a draft with more positions")


def mtp_findings(plan: Plan) -> Iterator[Finding]:
    """A target that has nothing to predict with. Some architectures have heads that their config does not tell of."""
    facts = plan.drafting
    if plan.draft.method != "mtp" or facts.mtp_layers:
        return
    if facts.mtp_layers is None and (facts.model_type or "").startswith(_MAY_HAVE_HEADS):
        message = f"the config of {facts.name} does not tell how many tokens its own heads predict in a pass"
        yield warning("mtp", message, "check that the engine knows its architecture's heads")
    else:
        yield error("mtp", f"{facts.name} has no heads of its own to predict with", "use another draft")
