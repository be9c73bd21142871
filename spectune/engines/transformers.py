"""transformers: assisted generation and prompt lookup. Source: transformers documentation, 5.24."""

from spectune.drafting_spec import layer_count, ngram_bounds
from spectune.engines import SPEEDUP_NOT_MEASURED, EngineConfig
from spectune.recommendation import Recommendation

CHECKED_AGAINST = "5.24"


def config(recommendation: Recommendation) -> EngineConfig:
    """The generate call for the recommendation's best candidate."""
    best = recommendation.best_candidate
    bounds, layers = ngram_bounds(best.draft), layer_count(best.draft)
    sampling = _sampling(recommendation)
    notes = [SPEEDUP_NOT_MEASURED, "batch 1 only"]
    if layers is not None:
        rule, text = "rejection", _early_exit(layers, best.num_speculative_tokens, sampling)
        notes.append("some architectures refuse it in this version")
    elif bounds is None:
        rule, text = "rejection", _assisted(best.draft, best.num_speculative_tokens, sampling)
        notes.append("threshold and schedule are set because the defaults adapt K and persist across calls")
    else:
        rule, text = "greedy_draft", _prompt_lookup(bounds[1], best.num_speculative_tokens, sampling)
        if bounds[0] > 1:
            notes.append("prompt lookup here has no lower bound, so it proposes more often than was measured")
    return EngineConfig(
        engine="transformers",
        checked_against=CHECKED_AGAINST,
        language="python",
        text=text,
        acceptance_rule=rule,
        acceptance_length=recommendation.acceptance_length_by_rule[rule],
        notes=notes,
    )


def _sampling(recommendation: Recommendation) -> str:
    if recommendation.temperature == 0.0:
        return "do_sample=False"
    applies = recommendation.applies_to
    return f"do_sample=True, temperature={recommendation.temperature:g}, top_p={applies.top_p:g}, top_k={applies.top_k}"


def _assisted(draft: str, num_speculative_tokens: int, sampling: str) -> str:
    return (
        f"assistant = AutoModelForCausalLM.from_pretrained({draft!r})\n"
        f"assistant.generation_config.num_assistant_tokens = {num_speculative_tokens}\n"
        'assistant.generation_config.num_assistant_tokens_schedule = "constant"\n'
        "assistant.generation_config.assistant_confidence_threshold = 0.0\n"
        f"model.generate(**inputs, assistant_model=assistant, {sampling})"
    )


def _early_exit(layers: int, num_speculative_tokens: int, sampling: str) -> str:
    return (
        f"model.generate(**inputs, assistant_early_exit={layers}, num_assistant_tokens={num_speculative_tokens}, "
        f'num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0, {sampling})'
    )


def _prompt_lookup(longest: int, num_speculative_tokens: int, sampling: str) -> str:
    return (
        f"model.generate(**inputs, prompt_lookup_num_tokens={num_speculative_tokens}, "
        f"max_matching_ngram_size={longest}, {sampling})"
    )
