"""transformers: assisted generation and prompt lookup; what generate() refuses. Checked against 5.24, by running it."""

import json

from spectune.engines import (
    ConfigText,
    Finding,
    Plan,
    error,
    first_difference,
    info,
    is_count,
    mtp_findings,
    pair_findings,
    warning,
)
from spectune.engines.speculation import Speculation

NAME, CHECKED_AGAINST = "transformers", "5.24"
METHODS = ("draft_model", "layer_skip", "ngram", "mtp")
TREES = ()  # it verifies chains only


# ------------------------------------------------------------------------------------------------ config


def config(asked: Speculation) -> ConfigText:
    """The generate call, from loading on."""
    draft, k, sampling = asked.draft, asked.num_speculative_tokens, _sampling(asked)
    notes = ["batch 1 only"] if draft else []
    lines = _loading(asked)
    if draft is not None and draft.method == "layer_skip":
        rule = "rejection"
        lines += _constant("model", k)  # which is its own assistant
        lines.append(f"model.generate(**inputs, assistant_early_exit={draft.layers}, {sampling})")
        notes.append("some architectures refuse it in this version")
    elif draft is not None and draft.method == "draft_model":
        rule = "rejection"
        lines += _assisted(str(draft.model), k, asked)
        both = "tokenizer=tokenizer, assistant_tokenizer=assistant_tokenizer, " if asked.padded else ""
        lines.append(f"model.generate(**inputs, assistant_model=assistant, {both}{sampling})")
        notes.append("threshold and schedule are set because the defaults adapt K and persist across calls")
    elif draft is not None and draft.method == "ngram":
        rule = "greedy_draft"
        lines.append(
            f"model.generate(**inputs, prompt_lookup_num_tokens={k}, max_matching_ngram_size={draft.max_tokens}, "
            f"{sampling})"
        )
        if draft.min_tokens > 1:
            notes.append(f"prompt lookup here has no lower bound, so it proposes more often than {draft.text} does")
    elif draft is not None and draft.method == "mtp":
        rule = "rejection"
        lines.append(f"model.generate(**inputs, use_mtp=True, {sampling})")
        notes.append("K is the number of heads that the model predicts with")
    else:
        rule = "none"
        lines.append(f"model.generate(**inputs, {sampling})")
    return ConfigText(text="\n".join(lines), rule=rule, notes=notes, language="python")


def _sampling(asked: Speculation) -> str:
    if asked.temperature == 0.0:
        return "do_sample=False"
    return f"do_sample=True, temperature={asked.temperature:g}, top_p={asked.top_p:g}, top_k={asked.top_k}"


def _quoted(name: str) -> str:
    """As formatters write a string."""
    return json.dumps(name, ensure_ascii=False)


def _loading(asked: Speculation) -> list[str]:
    return [
        f"from transformers import AutoModelForCausalLM{', AutoTokenizer' if asked.padded else ''}",
        "",
        f"model = AutoModelForCausalLM.from_pretrained({_quoted(asked.target)}, dtype={_quoted(asked.dtype)})",
    ]


def _assisted(draft: str, k: int, asked: Speculation) -> list[str]:
    """Other sizes of the embedding are taken for other tokenizers, even where padding alone differs."""
    tokenizers = [
        f"tokenizer = AutoTokenizer.from_pretrained({_quoted(asked.target)})",
        f"assistant_tokenizer = AutoTokenizer.from_pretrained({_quoted(draft)})",
    ]
    return [
        *(tokenizers if asked.padded else []),
        f"assistant = AutoModelForCausalLM.from_pretrained({_quoted(draft)}, dtype={_quoted(asked.dtype)})",
        *_constant("assistant", k),
    ]


def _constant(model: str, k: int) -> list[str]:
    """The draft's own configuration holds K and what would change it."""
    return [
        f"{model}.generation_config.num_assistant_tokens = {k}",
        f'{model}.generation_config.num_assistant_tokens_schedule = "constant"',
        f"{model}.generation_config.assistant_confidence_threshold = 0.0",
    ]


# ------------------------------------------------------------------------------------------------ preflight


def findings(plan: Plan) -> list[Finding]:
    """What generate() would refuse, or do otherwise."""
    found, settings = [], plan.settings
    if plan.draft.method not in METHODS:
        message = f"transformers has no {plan.draft.method} drafting"
        found.append(error("method", message, "use a draft model, n-gram or layers:N"))
    if settings.get("use_cache") is False:
        found.append(error("cache", "assisted generation needs a cache", "leave use_cache out"))
    if settings.get("num_return_sequences", 1) != 1:
        message = "assisted generation returns one sequence"
        found.append(error("batch", message, "leave num_return_sequences out"))
    batch = settings.get("batch_size", 1)
    if is_count(batch) and batch > 1:  # type: ignore[operator]
        message = f"assisted generation runs batch 1 only, not {batch}: acceptance may be used, no speed-up is claimed"
        found.append(error("batch", message, "serve larger batches with another engine"))
    if settings.get("cache_implementation") not in (None, "dynamic", "dynamic_full"):
        message = f"assisted generation takes a dynamic cache only, not {settings['cache_implementation']}"
        found.append(error("cache", message, "leave cache_implementation out"))
    if settings.get("assistant_ensemble_weight") is not None:
        message = "assistant_ensemble_weight mixes the draft into the target's law: the output is not the target's"
        found.append(error("lossy", message, "leave it out"))
    if settings.get("num_assistant_tokens_schedule", "constant") != "constant":
        message = "this schedule adapts K, and some keep what they learnt across calls"
        found.append(warning("schedule", message, 'set num_assistant_tokens_schedule to "constant"'))
    beams = settings.get("num_beams", 1)
    if is_count(beams) and beams > 1:  # type: ignore[operator]
        message = "with beams transformers does not assist"
        found.append(warning("beams", message, "leave num_beams out"))
    return [*found, *_draft_findings(plan), *mtp_findings(plan), *pair_findings(plan)]


def _draft_findings(plan: Plan) -> list[Finding]:
    method, k = plan.draft.method, plan.num_speculative_tokens
    heads, depth = plan.target.mtp_layers, plan.target.layers
    if method == "mtp" and heads and k is not None and k != heads:
        message = f"transformers proposes what the model's {heads} heads predict, not K = {k}"
        return [warning("mtp", message, f"price K = {heads}")]
    if method == "layer_skip" and depth is not None and plan.draft.layers >= depth:
        message = f"the first {plan.draft.layers} layers of {depth} are no shorter model"
        return [error("layers", message, f"give layers:1 to layers:{depth - 1}")]
    return _vocabulary_findings(plan) if method == "draft_model" and plan.model else []


def _vocabulary_findings(plan: Plan) -> list[Finding]:
    """It judges by sizes alone; other sizes take universal assisted generation, which needs both tokenizers."""
    draft = plan.model
    assert draft is not None, "a draft model has facts"
    sizes, differing = (plan.target.vocab_size, draft.vocab_size), first_difference(plan)
    both = "pass tokenizer= and assistant_tokenizer= to generate (universal assisted generation)"
    if differing and sizes[0] == sizes[1] and not differing.lacks:
        message = f"{differing.message}; with equal sizes transformers does not notice"
        return [error("vocabulary", message, "use another draft")]
    if differing and sizes[0] == sizes[1]:
        message = f"{differing.message}; with equal sizes transformers does not notice: such ones are never accepted"
        return [warning("vocabulary", message, "check that such tokens do not occur in your texts")]
    if differing:
        return [warning("vocabulary", differing.message, both)]
    if None not in sizes and sizes[0] != sizes[1]:
        message = (
            f"embeddings of {sizes[0]} and {sizes[1]} rows with the same tokens: padding, taken for other tokenizers"
        )
        return [info("padding", message, both)]
    return []
