"""vLLM: --speculative-config, what it refuses, and what it tells of itself.

Checked against vLLM 0.32: its configuration and metrics sources, and its own argument parser (tests/e2e/test_vllm.py).
"""

import json
import math
import re
import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from spectune.drafting_spec import DraftSpec
from spectune.engines import (
    ConfigText,
    Finding,
    Plan,
    error,
    is_count,
    mtp_findings,
    pair_findings,
    vocabulary_finding,
    warning,
)
from spectune.engines.speculation import Speculation
from spectune.errors import ConfigError
from spectune.served.telemetry import Counts, Series, by_position, number, numbers_of, several, steps_by_accepted, total

NAME, CHECKED_AGAINST = "vLLM", "0.32"
METHODS = ("draft_model", "ngram", "suffix", "medusa", "eagle", "eagle3", "mtp")
TREES = ()  # it verifies chains only


# ------------------------------------------------------------------------------------------------ config


def config(asked: Speculation) -> ConfigText:
    """`vllm serve` with its speculative config.

    Draft models propose their argmax by default; where sampling them is worth more than 1% of tokens a round,
    `draft_sample_method` says so.
    """
    if asked.draft is None:
        return _config(asked, {}, "none", [])
    settings, rule, notes = _method(asked.draft), "greedy_draft", []
    if asked.padded:
        settings["use_heterogeneous_vocab"] = True
        notes.append("the embeddings differ in padding, which vLLM takes for another vocabulary: drafts greedily only")
    elif asked.draft.method == "draft_model" and asked.worth_sampling:
        rule, settings["draft_sample_method"] = "rejection", "probabilistic"
    settings["num_speculative_tokens"] = asked.num_speculative_tokens
    if asked.varies:
        settings["num_speculative_tokens"] = max(k for _, _, k in asked.batches)
        settings["num_speculative_tokens_per_batch_size"] = [list(one) for one in asked.batches]
        notes += [
            "a batch that was not measured has the K of the next larger one that was, beyond the largest its K holds",
            "the schedule is ignored under data parallelism",
        ]
    notes.append("requests with min_p or logit_bias are refused under speculation")
    return _config(asked, settings, rule, notes)


def _method(draft: DraftSpec) -> dict[str, Any]:
    if draft.method == "ngram":
        return {"method": "ngram", "prompt_lookup_min": draft.min_tokens, "prompt_lookup_max": draft.max_tokens}
    return {"method": draft.method} if draft.model is None else {"method": draft.method, "model": draft.model}


def _config(asked: Speculation, settings: dict[str, Any], rule: str, notes: list[str]) -> ConfigText:
    dtype = "" if asked.dtype in ("auto", "") else f" --dtype {shlex.quote(asked.dtype)}"
    value = f" \\\n  --speculative-config {shlex.quote(json.dumps(settings))}" if settings else ""
    served: dict[str, Any] = {"model": asked.target, **({"dtype": asked.dtype} if dtype else {})}
    served |= {"speculative-config": settings} if settings else {}
    return ConfigText(
        text=f"vllm serve {shlex.quote(asked.target)}{dtype}{value}",
        rule=rule,
        notes=notes,
        files={"vllm.yaml": yaml.safe_dump(served, sort_keys=False)},
    )


# ------------------------------------------------------------------------------------------------ preflight

_GONE = ("speculative_token_tree", "disable_by_batch_size", "speculative_disable_by_batch_size")


def findings(plan: Plan) -> list[Finding]:
    """What vLLM would refuse, ignore or read otherwise."""
    found = [*_draft_findings(plan), *_lookup_findings(plan), *_mtp_findings(plan), *_gone_findings(plan)]
    settings, parallel = plan.settings, plan.settings.get("tensor_parallel_size")
    if "speculative_config.tensor_parallel_size" in settings:
        message = "speculative_config has no tensor_parallel_size"
        found.append(error("tensor-parallel", message, "write draft_tensor_parallel_size"))
    own = settings.get("draft_tensor_parallel_size")
    if own is not None and own not in (1, parallel or 1):
        found.append(
            error("tensor-parallel", f"vLLM runs a draft on 1 or on the target's {parallel or 1} devices, not on {own}",
                  f"set draft_tensor_parallel_size to 1{f' or {parallel}' if parallel else ''}")
        )  # fmt: skip
    if settings.get("rejection_sample_method") == "synthetic" or any("synthetic" in name for name in settings):
        message = "synthetic acceptance keeps proposals at random: the output is not the target's"
        found.append(error("lossy", message, "leave rejection_sample_method at standard, or block"))
    if settings.get("use_heterogeneous_vocab") and plan.draft.method != "draft_model":
        message = "use_heterogeneous_vocab is for draft models only"
        found.append(error("vocabulary", message, "leave it out"))
    for name in ("min_p", "logit_bias"):
        if settings.get(name):
            found.append(error("sampling", f"vLLM refuses requests with {name} under speculation", f"drop {name}"))
    if schedule := settings.get("num_speculative_tokens_per_batch_size"):
        found += _schedule_findings(schedule, plan)
    return found


def _draft_findings(plan: Plan) -> list[Finding]:
    method, asked, found = plan.draft.method, plan.settings.get("method"), pair_findings(plan)
    if method == "layer_skip":
        message = "vLLM does not draft with the first layers of a target"
        found.append(error("method", message, "use n-gram or a draft model"))
    elif plan.num_speculative_tokens is None and method not in ("mtp", "suffix"):
        message = f"vLLM needs a K for {method}"
        found.append(error("num-speculative-tokens", message, "give --num-speculative-tokens"))
    if asked is not None and asked != method and not (method == "mtp" and str(asked).endswith("_mtp")):
        message = f"the settings say method {asked}, the draft is read as {method}"
        found.append(warning("method", message, "give the draft that is meant, as in --draft eagle3:MODEL"))
    if method == "suffix":
        message = "vLLM's suffix decoding needs the package arctic-inference"
        found.append(warning("package", message, "install it there"))
    return [*found, *(_vocabulary_findings(plan) if method == "draft_model" and plan.model else [])]


def _vocabulary_findings(plan: Plan) -> list[Finding]:
    """VLLM compares the rows of the embeddings, and nothing else."""
    draft = plan.model
    assert draft is not None, "a draft model has facts"
    found = []
    mapped = plan.settings.get("use_heterogeneous_vocab") is True
    if mapped and plan.settings.get("draft_sample_method", "greedy") != "greedy":
        message = "use_heterogeneous_vocab drafts greedily only"
        found.append(error("vocabulary", message, "leave draft_sample_method at greedy"))
    if mapped:
        return found
    differing = vocabulary_finding(plan, NAME)
    sizes = plan.target.vocab_size, draft.vocab_size
    if differing:
        found.append(differing)
    if (differing is None or differing.level == "warning") and None not in sizes and sizes[0] != sizes[1]:
        though = "though the tokens are the same" if differing is None else "whatever their tokens"
        message = f"vLLM's draft_model refuses embeddings of {sizes[0]} and {sizes[1]} rows, {though}"
        found.append(error("padding", message, "pad the draft to the target's size, or set use_heterogeneous_vocab"))
    return found


def _lookup_findings(plan: Plan) -> list[Finding]:
    low, high = plan.settings.get("prompt_lookup_min"), plan.settings.get("prompt_lookup_max")
    if low is None and high is None:
        return []
    given, value = ("prompt_lookup_max", high) if low is None else ("prompt_lookup_min", low)
    if low is None or high is None:
        message = f"with {given} = {value} alone, vLLM takes {value} for both"
        return [
            warning("prompt-lookup", message, f"write prompt_lookup_min and prompt_lookup_max, both {value} or apart")
        ]
    if is_count(low) and is_count(high) and low > high:  # type: ignore[operator]
        message = f"prompt_lookup_min {low} is above prompt_lookup_max {high}"
        return [error("prompt-lookup", message, "give min ≤ max")]
    return []


def _mtp_findings(plan: Plan) -> list[Finding]:
    heads, k = plan.model or plan.target, plan.num_speculative_tokens
    layers = heads.mtp_layers
    if plan.draft.method == "mtp" and layers and k is not None and k > layers and k % layers:
        message = f"K = {k} does not fit the {layers} tokens that {heads.name} predicts in a pass"
        return [error("mtp", message, f"K must be at most {layers} or a multiple of {layers}")]
    return mtp_findings(plan)


def _gone_findings(plan: Plan) -> list[Finding]:
    found = []
    for name in _GONE:
        if name not in plan.settings:
            continue
        if name == "speculative_token_tree":
            found.append(error("gone", "vLLM dropped speculative_token_tree: it verifies chains only", "drop it"))
            continue
        size, k = plan.settings[name], plan.num_speculative_tokens or 1
        ranges = [[1, size - 1, k], [size, size, 0]] if is_count(size) and size > 1 else [[1, 1, 0]]  # type: ignore[operator]
        found.append(
            error("gone", f"vLLM dropped {name}", f"write num_speculative_tokens_per_batch_size: {json.dumps(ranges)}")
        )
    return found


def _schedule_findings(schedule: object, plan: Plan) -> list[Finding]:
    remedy = "write ranges [first, last, K] from batch 1 up, without overlap, as in [[1, 8, 4], [9, 32, 0]]"
    entries = schedule if isinstance(schedule, list) else []
    if not entries or not all(isinstance(e, list) and len(e) == 3 and all(map(is_count, e)) for e in entries):
        return [error("schedule", "num_speculative_tokens_per_batch_size is no list of ranges", remedy)]
    entries, end = sorted(entries), 0
    for first, last, _ in entries:
        if first <= end or first > last or (end == 0 and first != 1):
            message = f"the range {first} to {last} of num_speculative_tokens_per_batch_size starts or ends wrongly"
            return [error("schedule", message, remedy)]
        end = last
    found, k = [], plan.num_speculative_tokens
    if k is not None and max(one[2] for one in entries) > k:
        message = f"K above {k} in num_speculative_tokens_per_batch_size is cut to {k}"
        found.append(warning("schedule", message, "give the largest of them as num_speculative_tokens"))
    parallel = plan.settings.get("data_parallel_size")
    if is_count(parallel) and parallel > 1:  # type: ignore[operator]
        message = "under data parallelism vLLM ignores num_speculative_tokens_per_batch_size"
        found.append(warning("schedule", message, "serve without data parallelism, or with one K"))
    return found


# ------------------------------------------------------------------------------------------------ telemetry

_PREFIX = "vllm:spec_decode_"
_COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_TELLING_RATE = 0.02


def counts_of_series(series: Series) -> Counts | None:
    """From /metrics. Positions are counted over all drafts: cumulative."""
    named = {name: total(series, f"{_PREFIX}{name}_total", f"{_PREFIX}{name}") for name in _COUNTERS}
    if all(value is None for value in named.values()):
        return None
    positions = f"{_PREFIX}num_accepted_tokens_per_pos"
    return Counts(
        **named,
        accepted_by_position=by_position(series, f"{positions}_total" if f"{positions}_total" in series else positions),
        warnings=tuple(several(series, f"{_PREFIX}num_accepted_tokens_total", "model_name")),
    )


def counts_of_object(found: Mapping[str, object]) -> Counts | None:
    """From metrics.speculative_decoding of a response: a histogram of steps by accepted tokens.

    Steps in which nothing was proposed are not in it.
    """
    histogram = found.get("acceptance_histogram")
    if "num_spec_steps" not in found or not isinstance(histogram, list):
        return None
    steps, at_least = steps_by_accepted(histogram)
    named = numbers_of(found, "num_draft_tokens", "num_accepted_draft_tokens")
    return Counts(
        num_drafts=steps,
        num_draft_tokens=named.get("num_draft_tokens"),
        num_accepted_tokens=named.get("num_accepted_draft_tokens", math.fsum(at_least)),
        accepted_by_position=at_least,
    )


def counts_of_line(line: str) -> Counts | None:
    """From `SpecDecoding metrics:` of the log, whose order of figures differs by version.

    Drafts follow from the rates by position, accepted tokens over drafts each: they sum to the mean length without
    the bonus, which some versions leave out of the mean they print.
    """
    if "SpecDecoding metrics:" not in line:
        return None
    accepted, proposed, mean = (_figure(line, name) for name in ("Accepted", "Drafted", "Mean acceptance length"))
    listed = re.search(rf"Per-position acceptance rate: ({_NUMBER}(?:, {_NUMBER})*)(?![0-9.]|,[0-9])", line)
    if accepted is not None and proposed is not None and listed is None and "Per-position" not in line:
        return Counts(num_draft_tokens=proposed, num_accepted_tokens=accepted)
    if accepted is None or proposed is None or listed is None:
        raise ConfigError(
            f"the log line cannot be read: {line.strip()[:120]}", "give the engine's log as it was written"
        )
    rates = [number(rate) for rate in listed[1].split(", ")]
    total_rate = math.fsum(rates)
    at_least = math.ceil(proposed / len(rates))
    told = total_rate > _TELLING_RATE * len(rates)  # well above its rounding
    drafts = float(max(at_least, round(min(accepted / total_rate, proposed)) if told else 0))
    without = mean is not None and accepted > 0 and abs(mean - total_rate) < abs(mean - 1 - total_rate)
    return Counts(
        num_drafts=drafts,
        num_draft_tokens=proposed,
        num_accepted_tokens=accepted,
        accepted_by_position=tuple(rate * drafts for rate in rates),
        warnings=(_ROUNDED, *((_NO_BONUS,) if without else ())),
    )


_ROUNDED = "drafts and positions follow from rounded rates in the log"
_NO_BONUS = "this version prints a mean acceptance length without the bonus token; it is included here"


def _figure(line: str, name: str) -> float | None:
    found = re.search(rf"\b{name}: {_NUMBER}(?![0-9,.]*,[0-9])", line)
    return number(found[1]) if found else None
