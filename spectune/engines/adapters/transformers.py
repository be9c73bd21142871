"""transformers: assisted generation and prompt lookup; what generate() refuses. Checked against 5.24, by running it."""

import json
from collections.abc import Iterator, Sequence

from spectune.engines import preflight
from spectune.engines.engine import ConfigText, Engine, for_draft_models
from spectune.engines.preflight import Finding, Plan, error, is_count, warning
from spectune.engines.speculation import Speculation

_METHODS = ("draft_model", "layer_skip", "ngram", "mtp")
_UNNOTICED = "with equal sizes transformers does not notice"


def config(speculation: Speculation) -> ConfigText:
    """The generate call, from loading on."""
    draft, k = speculation.draft, speculation.num_speculative_tokens
    if draft is None:
        return _call(speculation, "none", [])
    if draft.method == "layer_skip":  # which is its own assistant
        notes, options = ["some architectures refuse it in this version"], f"assistant_early_exit={draft.layers}, "
        return _call(speculation, "rejection", notes, options, _constant("model", k))
    if draft.method == "draft_model":
        notes = ["threshold and schedule are set because the defaults adapt K and persist across calls"]
        tokenizers = "tokenizer=tokenizer, assistant_tokenizer=assistant_tokenizer, " if speculation.padded else ""
        options = f"assistant_model=assistant, {tokenizers}"
        return _call(speculation, "rejection", notes, options, _assistant(str(draft.model), speculation))
    if draft.method == "ngram":
        note = f"prompt lookup here has no lower bound, so it proposes more often than {draft.text} does"
        options = f"prompt_lookup_num_tokens={k}, max_matching_ngram_size={draft.max_tokens}, "
        return _call(speculation, "greedy_draft", [note] if draft.min_tokens > 1 else [], options)
    return _call(speculation, "rejection", ["K is the number of heads that the model predicts with"], "use_mtp=True, ")


def _call(
    speculation: Speculation, rule: str, notes: list[str], options: str = "", setup: Sequence[str] = ()
) -> ConfigText:
    """Its code: the target is loaded, then what drafts is set up, then text generated with these options."""
    nucleus = f"top_p={speculation.top_p:g}, top_k={speculation.top_k}"
    sampled = f"do_sample=True, temperature={speculation.temperature:g}, {nucleus}"
    sampling = "do_sample=False" if speculation.temperature == 0.0 else sampled
    lines = [
        f"from transformers import AutoModelForCausalLM{', AutoTokenizer' if speculation.padded else ''}\n",
        _loaded("model", speculation.target, speculation.dtype),
        *setup,
        f"model.generate(**inputs, {options}{sampling})",
    ]
    notes = ["batch 1 only", *notes] if speculation.draft else notes
    return ConfigText(text="\n".join(lines), rule=rule, notes=notes, language="python")


def _quoted(name: str) -> str:
    """As formatters write a string."""
    return json.dumps(name, ensure_ascii=False)


def _loaded(variable: str, model: str, dtype: str) -> str:
    return f"{variable} = AutoModelForCausalLM.from_pretrained({_quoted(model)}, dtype={_quoted(dtype)})"


def _assistant(draft: str, speculation: Speculation) -> list[str]:
    """Other sizes of the embedding are taken for other tokenizers, even where padding alone differs."""
    named = {"tokenizer": speculation.target, "assistant_tokenizer": draft} if speculation.padded else {}
    return [
        *(f"{tokenizer} = AutoTokenizer.from_pretrained({_quoted(model)})" for tokenizer, model in named.items()),
        _loaded("assistant", draft, speculation.dtype),
        *_constant("assistant", speculation.num_speculative_tokens),
    ]


def _constant(model: str, k: int) -> list[str]:
    """The draft's own configuration holds K and what would change it."""
    return [
        f"{model}.generation_config.num_assistant_tokens = {k}",
        f'{model}.generation_config.num_assistant_tokens_schedule = "constant"',
        f"{model}.generation_config.assistant_confidence_threshold = 0.0",
    ]


def _call_findings(plan: Plan) -> Iterator[Finding]:
    """Of what is passed to generate()."""
    yield from preflight.method_findings(plan, "transformers", _METHODS, "use a draft model, n-gram or layers:N")
    settings = plan.settings
    if settings.get("use_cache") is False:
        yield error("cache", "assisted generation needs a cache", "leave use_cache out")
    if settings.get("num_return_sequences", 1) != 1:
        yield error("batch", "assisted generation returns one sequence", "leave num_return_sequences out")
    batch, beams = settings.get("batch_size", 1), settings.get("num_beams", 1)
    if is_count(batch) and batch > 1:
        message = f"assisted generation runs batch 1 only, not {batch}: acceptance may be used, no speed-up is claimed"
        yield error("batch", message, "serve larger batches with another engine")
    if settings.get("cache_implementation") not in (None, "dynamic", "dynamic_full"):
        message = f"assisted generation takes a dynamic cache only, not {settings['cache_implementation']}"
        yield error("cache", message, "leave cache_implementation out")
    if settings.get("assistant_ensemble_weight") is not None:
        message = "assistant_ensemble_weight mixes the draft into the target's law: the output is not the target's"
        yield error("lossy", message, "leave it out")
    if settings.get("num_assistant_tokens_schedule", "constant") != "constant":
        message = "this schedule adapts K, and some keep what they learnt across calls"
        yield warning("schedule", message, 'set num_assistant_tokens_schedule to "constant"')
    if is_count(beams) and beams > 1:
        yield warning("beams", "with beams transformers does not assist", "leave num_beams out")


def _draft_findings(plan: Plan) -> Iterator[Finding]:
    method, k = plan.draft.method, plan.num_speculative_tokens
    heads, depth = plan.target.mtp_layers, plan.target.layers
    if method == "mtp" and heads and k is not None and k != heads:
        message = f"transformers proposes what the model's {heads} heads predict, not K = {k}"
        yield warning("mtp", message, f"price K = {heads}")
    if method == "layer_skip" and depth is not None and plan.draft.layers >= depth:
        message = f"the first {plan.draft.layers} layers of {depth} are no shorter model"
        yield error("layers", message, f"give layers:1 to layers:{depth - 1}")


def _vocabulary_findings(plan: Plan) -> Iterator[Finding]:
    """It judges by sizes alone; other sizes take universal assisted generation, which needs both tokenizers."""
    difference = preflight.first_difference(plan)
    both = "pass tokenizer= and assistant_tokenizer= to generate (universal assisted generation)"
    if difference is None:
        yield from preflight.padding_findings(plan, both, "padding, taken for other tokenizers")
    elif plan.target.vocab_size != plan.drafting.vocab_size:
        yield warning("vocabulary", difference.message, both)
    elif difference.lacks:
        message = f"{difference.message}; {_UNNOTICED}: such ones are never accepted"
        yield warning("vocabulary", message, preflight.TOKENS_APART)
    else:
        yield error("vocabulary", f"{difference.message}; {_UNNOTICED}", "use another draft")


ENGINE = Engine(
    name="transformers", checked_against="5.24", methods=_METHODS, config=config,
    checks=(_call_findings, _draft_findings, for_draft_models(_vocabulary_findings), preflight.mtp_findings,
            preflight.pair_findings),
)  # fmt: skip
