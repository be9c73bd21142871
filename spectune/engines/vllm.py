"""vLLM: --speculative-config. Source: vLLM documentation, speculative decoding, 0.32."""

import json
import shlex
from typing import Any

from spectune.drafting_spec import layer_count, ngram_bounds
from spectune.engines import SPEEDUP_NOT_MEASURED, EngineConfig
from spectune.recommendation import Recommendation

CHECKED_AGAINST = "0.32"
_WORTH_SAMPLING = 1.01


def config(recommendation: Recommendation) -> EngineConfig:
    """The command line for the recommendation's best candidate.

    Draft models propose their argmax by default; where sampling them is worth more than 1% of tokens a
    round at the recommended temperature, `draft_sample_method` says so.
    """
    best, target = recommendation.best_candidate, shlex.quote(recommendation.applies_to.target)
    if layer_count(best.draft) is not None:
        return _plain(target)
    lengths = recommendation.acceptance_length_by_rule
    settings: dict[str, Any]
    bounds = ngram_bounds(best.draft)
    rule = "greedy_draft"
    if bounds is not None:
        settings = {"method": "ngram", "prompt_lookup_min": bounds[0], "prompt_lookup_max": bounds[1]}
    else:
        settings = {"method": "draft_model", "model": best.draft}
        if lengths["rejection"] > _WORTH_SAMPLING * lengths["greedy_draft"]:
            rule = "rejection"
            settings["draft_sample_method"] = "probabilistic"
    settings["num_speculative_tokens"] = best.num_speculative_tokens
    value = shlex.quote(json.dumps(settings))
    return EngineConfig(
        engine="vLLM",
        checked_against=CHECKED_AGAINST,
        language="sh",
        text=f"vllm serve {target} \\\n  --speculative-config {value}",
        acceptance_rule=rule,
        acceptance_length=lengths[rule],
        notes=[SPEEDUP_NOT_MEASURED, "requests with min_p or logit_bias are refused under speculation"],
    )


def _plain(target: str) -> EngineConfig:
    return EngineConfig(
        engine="vLLM",
        checked_against=CHECKED_AGAINST,
        language="sh",
        text=f"vllm serve {target}",
        acceptance_rule="none",
        acceptance_length=1.0,
        notes=["vLLM does not draft with the first layers of a target; this is plain decoding"],
    )
