"""SGLang: --speculative-… options, what it refuses or changes, and what it tells of itself.

Checked against the server arguments, their checks and the metrics in the package sglang 0.5.23
(srt/arg_groups/fields/spec.py, srt/arg_groups/speculative_hook.py, srt/speculative/adaptive_spec_params.py,
srt/speculative/standalone_worker_v2.py, srt/observability/metrics_collector.py).
"""

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence

from spectune.engines import (
    OTHER_VOCABULARY,
    ConfigText,
    Finding,
    Plan,
    error,
    first_difference,
    is_count,
    mtp_findings,
    pair_findings,
    warning,
)
from spectune.engines.speculation import FOLDER, Speculation
from spectune.errors import ConfigError
from spectune.served.telemetry import Counts, Series, mean, number, numbers_of, several, steps_by_accepted

NAME, CHECKED_AGAINST = "SGLang", "0.5.23"
_ALGORITHMS = {"draft_model": "STANDALONE", "eagle": "EAGLE", "eagle3": "EAGLE3", "mtp": "NEXTN", "ngram": "NGRAM"}
_NO_DP_ATTENTION = ("STANDALONE", "NGRAM", "DFLASH")
METHODS = tuple(_ALGORITHMS)
TREES = ("draft_model", "eagle", "eagle3", "mtp")  # methods whose proposals may branch


# ------------------------------------------------------------------------------------------------ config


def config(asked: Speculation) -> ConfigText:
    """`python -m sglang.launch_server` whose verified tokens count the root: K + 1 of a chain (topk 1).

    A schedule by batch is a file of adaptive tiers of one K each, which EAGLE and EAGLE-3 take.
    """
    draft, k, files = asked.draft, asked.num_speculative_tokens, {}
    options = [f"--model-path {shlex.quote(asked.target)}", f"--dtype {shlex.quote(asked.dtype)}"]
    notes, rule = [], "none"
    if draft is not None:
        rule = "greedy_draft"
        options.append(f"--speculative-algorithm {_ALGORITHMS[draft.method]}")
        if draft.model is not None:
            options.append(f"--speculative-draft-model-path {shlex.quote(draft.model)}")
        notes.append("speculation lowers --max-running-requests to 48 unless it is given: give plain decoding the same")
    if draft and draft.method == "ngram":
        options += [f"--speculative-num-draft-tokens {k + 1}", "--speculative-ngram-max-bfs-breadth 1"]
        notes.append("its n-grams come from a trie over all requests, not from the prompt alone: acceptance differs")
    elif draft:
        options += [
            f"--speculative-num-steps {k}",
            f"--speculative-eagle-topk {asked.tree_width}",
            f"--speculative-num-draft-tokens {asked.tree_nodes + 1}",
        ]
        if asked.varies and draft.method in ("eagle", "eagle3"):
            # the largest key below is taken, once the nearest: both ends of every range
            ends = {batch: k for first, last, k in asked.batches for batch in (first, last)}
            tiers = {str(batch): {"candidate_steps": [k]} for batch, k in ends.items()}
            files["adaptive.json"] = json.dumps(tiers, indent=2) + "\n"
            options += ["--speculative-adaptive", f"--speculative-adaptive-config {FOLDER}adaptive.json"]
        elif asked.varies:
            notes.append(f"no schedule by batch: adaptive mode is for EAGLE, so K = {k} stays at every batch")
    if draft and asked.tree_width > 1:
        notes.append(f"a tree needs --page-size 1, or attention by {', '.join(_TREE_BACKENDS)}")
    return ConfigText(
        text=" \\\n  ".join(["python -m sglang.launch_server", *options]), rule=rule, notes=notes, files=files
    )


# ------------------------------------------------------------------------------------------------ preflight


def findings(plan: Plan) -> list[Finding]:
    """What SGLang would refuse, change by itself, or do inexactly."""
    settings, method = plan.settings, plan.draft.method
    algorithm = str(settings.get("speculative_algorithm") or _ALGORITHMS.get(method, "")).upper()
    found = []
    if not algorithm:
        found.append(error("method", f"SGLang has no {method} drafting", "use a draft model, n-gram, EAGLE or MTP"))
    found += [*_shape_findings(plan), *mtp_findings(plan)]
    for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
        value = settings.get(name)
        if _below_one(value):
            message = f"{name} {value} keeps tokens that the target would not: the output is not the target's"
            found.append(error("lossy", message, "leave it at 1"))
    if settings.get("enable_dp_attention") and algorithm in _NO_DP_ATTENTION:
        message = f"SGLang refuses {algorithm} with attention data parallelism"
        found.append(error("dp-attention", message, "drop --enable-dp-attention, or draft with EAGLE"))
    if algorithm and "max_running_requests" not in settings:
        message = "under speculation SGLang serves at most 48 requests at once unless --max-running-requests is given"
        found.append(warning("max-running-requests", message, "give it, the same for plain decoding"))
    found += _sampling_findings(settings, algorithm)
    if settings.get("speculative_adaptive") is True and (
        algorithm not in ("EAGLE", "EAGLE3") or settings.get("enable_dp_attention")
    ):
        message = "SGLang turns adaptive mode off: it is for EAGLE and EAGLE-3 without attention data parallelism"
        found.append(warning("schedule", message, "leave --speculative-adaptive out"))
    found += _vocabulary_findings(plan) if method == "draft_model" else []
    return [*found, *(_stricter(one) for one in pair_findings(plan))]


def _stricter(found: Finding) -> Finding:
    """A draft of fewer positions is served only where the environment allows it."""
    if found.code != "positions":
        return found
    remedy = "give --context-length, as many as the draft has, or set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
    return error("positions", f"{found.message}; SGLang does not start so", remedy)


def _below_one(value: object) -> bool:
    try:
        return value is not None and float(str(value)) < 1
    except ValueError:
        return False


def _shape_findings(plan: Plan) -> list[Finding]:
    """Steps, topk and verified tokens: all or none; a chain verifies its root too."""
    names = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    settings = dict(plan.settings)
    if plan.num_speculative_tokens is not None and any(name in settings for name in names):
        settings.setdefault(names[0], plan.num_speculative_tokens)
    steps, topk, tokens = (plan.settings.get(name, settings.get(name)) for name in names)
    given = [name for name in names if name in settings]
    adaptive = plan.settings.get("speculative_adaptive") is True  # which takes topk 1, and tokens from the steps
    if given and len(given) < 3 and plan.draft.method in TREES and not adaptive:
        missing = ", ".join(f"--{name.replace('_', '-')}" for name in names if name not in given)
        example = f": with topk 1, {steps + 1}" if is_count(steps) and topk == 1 else ""  # type: ignore[operator]
        message = f"steps, topk and draft tokens are set together or not at all: {missing} is missing"
        if is_count(steps) and topk == 1:
            message += f"; num-draft-tokens must be {steps + 1}, the root counts"  # type: ignore[operator]
        return [error("tree-shape", message, f"give {missing}{example}")]
    if is_count(steps) and topk == 1 and is_count(tokens) and tokens != steps + 1:  # type: ignore[operator]
        message = (
            f"with topk 1 and {steps} steps, num-draft-tokens must be {steps + 1}, the root counts: SGLang sets it so"  # type: ignore[operator]
        )
        return [warning("tree-shape", message, f"give --speculative-num-draft-tokens {steps + 1}")]  # type: ignore[operator]
    return _tree_findings(plan.settings, topk) if is_count(topk) and topk > 1 else []  # type: ignore[operator]


_TREE_BACKENDS = ("flashinfer", "fa3", "triton")


def _tree_findings(settings: Mapping[str, object], topk: object) -> list[Finding]:
    backend, page = settings.get("attention_backend"), settings.get("page_size", 1)
    found = []
    if backend == "trtllm_mha":
        found.append(error("tree-shape", f"trtllm_mha verifies chains only, not topk {topk}", "give topk 1"))
    elif is_count(page) and page > 1 and backend is not None and backend not in _TREE_BACKENDS:  # type: ignore[operator]
        message = f"topk {topk} with pages of {page} tokens runs on {', '.join(_TREE_BACKENDS)} only, not on {backend}"
        found.append(error("tree-shape", message, "give --page-size 1, or one of these backends"))
    if settings.get("speculative_adaptive") is True:
        message = f"SGLang turns adaptive mode off with topk {topk}"
        found.append(warning("schedule", message, "give topk 1, or leave --speculative-adaptive out"))
    return found


def _sampling_findings(settings: Mapping[str, object], algorithm: str) -> list[Finding]:
    """Rejection sampling is for chains of EAGLE's kind."""
    if settings.get("speculative_use_rejection_sampling") is not True:
        return []
    if algorithm not in ("EAGLE", "EAGLE3", "NEXTN"):
        message = f"SGLang has no rejection sampling for {algorithm}"
        return [error("sampling", message, "drop --speculative-use-rejection-sampling")]
    if settings.get("speculative_eagle_topk", 1) != 1:
        message = "SGLang's rejection sampling is for chains"
        return [error("sampling", message, "give --speculative-eagle-topk 1")]
    return []


def _vocabulary_findings(plan: Plan) -> list[Finding]:
    """STANDALONE compares sizes, then every token."""
    differing, sizes = first_difference(plan), (plan.target.vocab_size, plan.model.vocab_size if plan.model else None)
    if differing:
        return [error("vocabulary", differing.message, OTHER_VOCABULARY)]
    if None not in sizes and sizes[0] != sizes[1]:
        message = f"STANDALONE refuses embeddings of {sizes[0]} and {sizes[1]} rows, though the tokens are the same"
        return [error("padding", message, "pad the draft to the target's size, or use llama.cpp or transformers")]
    return []


# ------------------------------------------------------------------------------------------------ telemetry


def counts_of_series(series: Series) -> Counts | None:
    """From /metrics: newer versions count verify steps; the gauges are of the last log interval.

    A text's first token comes from its prompt. Workers that verified nothing lately are left out of the mean.
    """
    calls = "sglang:spec_verify_calls_total"
    models = {dict(labels).get("model_name") for labels in series.get(calls, {})}
    mine = {name: {labels: value for labels, value in series.get(name, {}).items()
                   if dict(labels).get("model_name") in models}
            for name in (calls, "sglang:generation_tokens_total", "sglang:num_requests_total")}  # fmt: skip
    steps, tokens, first = (math.fsum(values.values()) if values else None for values in mine.values())
    if steps is not None and tokens is not None:
        if steps == 0:
            return Counts(num_drafts=0.0)
        accepted = max(tokens - (first or 0.0) - steps, 0.0)
        pooled = several(series, calls, "model_name")
        return Counts(num_drafts=steps, num_accepted_tokens=accepted, warnings=(_WHOLE_REQUESTS, *pooled))
    names = ("sglang:spec_accept_length", "sglang:spec_accept_rate", "sglang:spec_num_draft_tokens")
    if not any(name in series for name in names[:2]):
        return None
    lengths = series.get(names[0], {})
    busy = {labels for labels, value in lengths.items() if value >= 1} or lengths.keys()
    length, rate, slots = (mean(series, name, busy or series.get(name, {})) for name in names)
    return _averages(length, rate, slots, [f"the mean over {len(busy)} workers"] if len(busy) > 1 else [])


_WHOLE_REQUESTS = "accepted tokens follow from generated ones, counted when requests end, those at K = 0 included"
_HALF_A_DIGIT = 0.005
_LONGEST = 1000  # tokens in a draft


def _averages(length: float | None, rate: float | None, slots: float | None = None, more: Sequence[str] = ()) -> Counts:
    warnings = [*more, "averages over the last log interval: no counts, no interval of time"]
    if length is not None and length < 1:
        return Counts(num_drafts=0.0)
    if length and rate:
        rate, note = _accepted_of_proposed(length, rate, slots)
        warnings += [note] if note else []
    return Counts(acceptance_length=length, draft_acceptance_rate=rate, warnings=tuple(warnings))


def _accepted_of_proposed(length: float, rate: float, slots: float | None) -> tuple[float | None, str | None]:
    """Rates were (accepted + 1)/proposed first, above 1 where all went well, then (accepted + 1)/(proposed + 1) from
    October 2025 on, and are accepted/proposed since April 2026: told by which makes K a whole number, or that of the
    tokens verified.
    """
    k = None if slots is None else slots - 1
    above_one = rate > 1 + _HALF_A_DIGIT
    new, old = _is_count(length - 1, rate, k, 1), not above_one and _is_count(length, rate, slots, 2)
    oldest = (above_one or k is not None) and _is_count(length, rate, k, 1)
    if [new, old, oldest].count(True) != 1:
        return None, "whether this version's rate counts the bonus is not told: left out"
    if new:
        return rate, None
    proposed = round(length / rate) - (1 if old else 0)
    form = "(accepted + 1)/(proposed + 1)" if old else "(accepted + 1)/proposed"
    return (length - 1) / proposed, f"this version's rate was {form}; it is accepted/proposed here"


def _is_count(tokens: float, rate: float, wanted: float | None, least: int) -> bool:
    """Whether tokens/rate is what is wanted, else any whole number, as far as two decimals of each tell."""
    found = tokens / rate
    if not found < _LONGEST:
        return False
    whole = round(found) if wanted is None else wanted
    off = found * _HALF_A_DIGIT / rate + _HALF_A_DIGIT / rate
    return whole >= least and abs(found - whole) <= off


def counts_of_object(found: Mapping[str, object]) -> Counts | None:
    """From meta_info of a response, under the names of any version, or what /server_info tells of all of them."""
    if "avg_spec_accept_length" in found:
        length = numbers_of(found, "avg_spec_accept_length").get("avg_spec_accept_length")
        if not length:
            return Counts(num_drafts=0.0)
        return Counts(acceptance_length=length, warnings=("the mean since the server started",))
    if "spec_verify_ct" not in found:
        return None
    names = {
        "accepted": ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"),
        "proposed": ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"),
    }
    known = numbers_of(found, "spec_verify_ct", "spec_accept_length", *names["accepted"], *names["proposed"])
    accepted, proposed = (next((known[n] for n in names[part] if n in known), None) for part in names)
    steps, emitted = known.get("spec_verify_ct"), numbers_of(found, "completion_tokens").get("completion_tokens")
    if accepted is None and steps and emitted and "spec_accept_length" not in known:
        accepted = max(emitted - 1 - steps, 0.0)  # the first token comes from the prompt
    histogram = found.get("spec_correct_drafts_histogram", found.get("spec_accept_histogram"))
    _, at_least = steps_by_accepted(histogram if isinstance(histogram, list) else [])
    return Counts(
        num_drafts=steps,
        num_draft_tokens=proposed,
        num_accepted_tokens=math.fsum(at_least) if accepted is None and at_least else accepted,
        accepted_by_position=at_least,
        acceptance_length=known.get("spec_accept_length"),
    )


def counts_of_line(line: str) -> Counts | None:
    """From `Decode batch` of the log; fields come in the order of the version."""
    if "Decode batch" not in line or "accept len:" not in line:
        return None
    length, rate = (
        re.search(rf"accept {name}: ([0-9]+(?:\.[0-9]+)?)(?![0-9]|,[0-9])", line) for name in ("len", "rate")
    )
    if length is None:
        raise ConfigError(
            f"the log line cannot be read: {line.strip()[:120]}", "give the engine's log as it was written"
        )
    return _averages(number(length[1]), number(rate[1]) if rate else None)
