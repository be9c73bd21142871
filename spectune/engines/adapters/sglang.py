"""SGLang: --speculative-… options, what it refuses or changes, and what it tells of itself.

Checked against the server arguments, their checks and the metrics in the package sglang 0.5.23
(srt/arg_groups/fields/spec.py, srt/arg_groups/speculative_hook.py, srt/speculative/adaptive_spec_params.py,
srt/speculative/standalone_worker_v2.py, srt/observability/metrics_collector.py).
"""

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from spectune.checkpoints.facts import OTHER_VOCABULARY
from spectune.choice import LONGEST
from spectune.drafting_spec import DraftSpec
from spectune.engines import preflight
from spectune.engines.engine import ConfigText, Engine, for_draft_models
from spectune.engines.preflight import Finding, Plan, error, is_count, warning
from spectune.engines.speculation import FOLDER, Speculation
from spectune.served.exposition import Series, several
from spectune.served.telemetry import Counts, number, numbers_of, steps_by_accepted, unreadable

_ALGORITHMS = {"draft_model": "STANDALONE", "eagle": "EAGLE", "eagle3": "EAGLE3", "mtp": "NEXTN", "ngram": "NGRAM"}
_ADAPTIVE = ("eagle", "eagle3")  # methods that take a schedule by batch
_TREES = ("draft_model", "eagle", "eagle3", "mtp")  # methods whose proposals may branch
_JOINED = " \\\n  "
_SHAPE = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
_TREE_BACKENDS = ("flashinfer", "fa3", "triton")
_NO_REJECTION = "drop --speculative-use-rejection-sampling"
_CALLS = "sglang:spec_verify_calls_total"
_WHOLE_REQUESTS = "accepted tokens follow from generated ones, counted when requests end, those at K = 0 included"
_HALF_A_DIGIT = 0.005
_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")  # by version, newest first
_PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")


def config(speculation: Speculation) -> ConfigText:
    """`python -m sglang.launch_server` and, where EAGLE or EAGLE-3 has a schedule, its tiers of one K each."""
    draft = speculation.draft
    target, dtype = shlex.quote(speculation.target), shlex.quote(speculation.dtype)
    lines = ["python -m sglang.launch_server", f"--model-path {target}", f"--dtype {dtype}"]
    if draft is None:
        return ConfigText(text=_JOINED.join(lines), rule="none", notes=[])
    model = [] if draft.model is None else [f"--speculative-draft-model-path {shlex.quote(draft.model)}"]
    lines += [f"--speculative-algorithm {_ALGORITHMS[draft.method]}", *model, *_shape(draft, speculation)]
    files = {}
    if speculation.varies and draft.method in _ADAPTIVE:
        files["adaptive.json"] = _tiers(speculation.batches)
        lines += ["--speculative-adaptive", f"--speculative-adaptive-config {FOLDER}adaptive.json"]
    return ConfigText(text=_JOINED.join(lines), rule="greedy_draft", notes=_notes(draft, speculation), files=files)


def _notes(draft: DraftSpec, speculation: Speculation) -> list[str]:
    notes = ["speculation lowers --max-running-requests to 48 unless it is given: give plain decoding the same"]
    if draft.method == "ngram":
        notes.append("its n-grams come from a trie over all requests, not from the prompt alone: acceptance differs")
    elif speculation.varies and draft.method not in _ADAPTIVE:
        k = speculation.num_speculative_tokens
        notes.append(f"no schedule by batch: adaptive mode is for EAGLE, so K = {k} stays at every batch")
    if speculation.tree_width > 1:
        notes.append(f"a tree needs --page-size 1, or attention by {', '.join(_TREE_BACKENDS)}")
    return notes


def _shape(draft: DraftSpec, speculation: Speculation) -> list[str]:
    """Whose verified tokens count the root: K + 1 of a chain (topk 1)."""
    k = speculation.num_speculative_tokens
    if draft.method == "ngram":
        return [f"--speculative-num-draft-tokens {k + 1}", "--speculative-ngram-max-bfs-breadth 1"]
    return [
        f"--speculative-num-steps {k}",
        f"--speculative-eagle-topk {speculation.tree_width}",
        f"--speculative-num-draft-tokens {speculation.tree_nodes + 1}",
    ]


def _tiers(batches: list[tuple[int, int, int]]) -> str:
    """The largest key below is taken, once the nearest: both ends of every range."""
    ends = {batch: k for first, last, k in batches for batch in (first, last)}
    return json.dumps({str(batch): {"candidate_steps": [k]} for batch, k in ends.items()}, indent=2) + "\n"


def _algorithm(plan: Plan) -> str:
    """As it is set, or follows from the draft; empty where there is none."""
    return str(plan.settings.get("speculative_algorithm") or _ALGORITHMS.get(plan.draft.method, "")).upper()


def _method_findings(plan: Plan) -> Iterator[Finding]:
    if not _algorithm(plan):
        yield error("method", f"SGLang has no {plan.draft.method} drafting", "use a draft model, n-gram, EAGLE or MTP")


def _serving_findings(plan: Plan) -> Iterator[Finding]:
    settings, algorithm = plan.settings, _algorithm(plan)
    for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
        if _below_one(value := settings.get(name)):
            message = f"{name} {value} keeps tokens that the target would not: the output is not the target's"
            yield error("lossy", message, "leave it at 1")
    if settings.get("enable_dp_attention") and algorithm in ("STANDALONE", "NGRAM", "DFLASH"):
        message = f"SGLang refuses {algorithm} with attention data parallelism"
        yield error("dp-attention", message, "drop --enable-dp-attention, or draft with EAGLE")
    if algorithm and "max_running_requests" not in settings:
        message = "under speculation SGLang serves at most 48 requests at once unless --max-running-requests is given"
        yield warning("max-running-requests", message, "give it, the same for plain decoding")


def _pair_findings(plan: Plan) -> Iterator[Finding]:
    """A draft of fewer positions is served only where the environment allows it."""
    remedy = "give --context-length, as many as the draft has, or set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
    for found in preflight.pair_findings(plan):
        stops = error(found.code, f"{found.message}; SGLang does not start so", remedy)
        yield stops if found.code == "positions" else found


def _below_one(value: object) -> bool:
    try:
        return value is not None and float(str(value)) < 1
    except ValueError:
        return False


def _shape_findings(plan: Plan) -> Iterator[Finding]:
    """Steps, topk and verified tokens: all or none; a chain verifies its root too."""
    settings = dict(plan.settings)
    if plan.num_speculative_tokens is not None and any(name in settings for name in _SHAPE):
        settings.setdefault(_SHAPE[0], plan.num_speculative_tokens)
    steps, topk, tokens = (settings.get(name) for name in _SHAPE)
    missing = [f"--{name.replace('_', '-')}" for name in _SHAPE if name not in settings]
    adaptive = settings.get("speculative_adaptive") is True  # which takes topk 1, and tokens from the steps
    chain = steps + 1 if is_count(steps) and topk == 1 else None
    must = f"num-draft-tokens must be {chain}, the root counts"
    if 0 < len(missing) < len(_SHAPE) and plan.draft.method in _TREES and not adaptive:
        wanted = ", ".join(missing)
        message = f"steps, topk and draft tokens are set together or not at all: {wanted} is missing"
        more, how = (f"; {must}", f": with topk 1, {chain}") if chain else ("", "")
        yield error("tree-shape", message + more, f"give {wanted}{how}")
    elif chain and is_count(tokens) and tokens != chain:
        message = f"with topk 1 and {steps} steps, {must}: SGLang sets it so"
        yield warning("tree-shape", message, f"give --speculative-num-draft-tokens {chain}")
    elif is_count(topk) and topk > 1:
        yield from _tree_findings(plan.settings, topk)


def _tree_findings(settings: Mapping[str, object], topk: int) -> Iterator[Finding]:
    backend, page = settings.get("attention_backend"), settings.get("page_size", 1)
    if backend == "trtllm_mha":
        yield error("tree-shape", f"trtllm_mha verifies chains only, not topk {topk}", "give topk 1")
    elif is_count(page) and page > 1 and backend is not None and backend not in _TREE_BACKENDS:
        message = f"topk {topk} with pages of {page} tokens runs on {', '.join(_TREE_BACKENDS)} only, not on {backend}"
        yield error("tree-shape", message, "give --page-size 1, or one of these backends")
    if settings.get("speculative_adaptive") is True:
        message = f"SGLang turns adaptive mode off with topk {topk}"
        yield warning("schedule", message, "give topk 1, or leave --speculative-adaptive out")


def _sampling_findings(plan: Plan) -> Iterator[Finding]:
    """Rejection sampling is for chains of EAGLE's kind, adaptive mode for EAGLE and EAGLE-3."""
    settings, algorithm = plan.settings, _algorithm(plan)
    rejection = settings.get("speculative_use_rejection_sampling") is True
    if rejection and algorithm not in ("EAGLE", "EAGLE3", "NEXTN"):
        yield error("sampling", f"SGLang has no rejection sampling for {algorithm}", _NO_REJECTION)
    elif rejection and settings.get("speculative_eagle_topk", 1) != 1:
        yield error("sampling", "SGLang's rejection sampling is for chains", "give --speculative-eagle-topk 1")
    fits = algorithm in ("EAGLE", "EAGLE3") and not settings.get("enable_dp_attention")
    if settings.get("speculative_adaptive") is True and not fits:
        message = "SGLang turns adaptive mode off: it is for EAGLE and EAGLE-3 without attention data parallelism"
        yield warning("schedule", message, "leave --speculative-adaptive out")


def _vocabulary_findings(plan: Plan) -> Iterator[Finding]:
    """STANDALONE compares sizes, then every token."""
    difference, rows = preflight.first_difference(plan), plan.unequal_rows
    if difference:
        yield error("vocabulary", difference.message, OTHER_VOCABULARY)
    elif rows:
        message = f"STANDALONE refuses embeddings of {rows[0]} and {rows[1]} rows, though the tokens are the same"
        yield error("padding", message, "pad the draft to the target's size, or use llama.cpp or transformers")


def counts_of_series(series: Series) -> Counts | None:
    """From /metrics: newer versions count verify steps; the gauges are of the last log interval."""
    names = (_CALLS, "sglang:generation_tokens_total", "sglang:num_requests_total")
    steps, tokens, requests = (_of_speculating_models(series, name) for name in names)
    if steps is None or tokens is None:
        return _of_gauges(series)
    if steps == 0:
        return Counts(drafts=0.0)
    accepted = max(tokens - (requests or 0.0) - steps, 0.0)  # a text's first token comes from its prompt
    warnings = (_WHOLE_REQUESTS, *several(series, _CALLS, "model_name"))
    return Counts(drafts=steps, accepted=accepted, warnings=warnings)


def _of_speculating_models(series: Series, name: str) -> float | None:
    """A counter summed over those that verify; None where there is none of them."""
    models = {dict(labels).get("model_name") for labels in series.get(_CALLS, {})}
    values = [value for labels, value in series.get(name, {}).items() if dict(labels).get("model_name") in models]
    return math.fsum(values) if values else None


def _of_gauges(series: Series) -> Counts | None:
    """Workers that verified nothing lately are left out of the mean."""
    gauges = [series.get(f"sglang:spec_{name}", {}) for name in ("accept_length", "accept_rate", "num_draft_tokens")]
    if not gauges[0] and not gauges[1]:
        return None
    busy = {labels for labels, length in gauges[0].items() if length >= 1} or gauges[0].keys()
    told = [[gauge[labels] for labels in gauge if not busy or labels in busy] for gauge in gauges]
    length, rate, slots = (fmean(values) if values else None for values in told)
    return _averages(length, rate, slots, [f"the mean over {len(busy)} workers"] if len(busy) > 1 else [])


def _averages(length: float | None, rate: float | None, slots: float | None = None, more: Sequence[str] = ()) -> Counts:
    warnings = [*more, "averages over the last log interval: no counts, no interval of time"]
    if length is not None and length < 1:
        return Counts(drafts=0.0)
    if length and rate:
        rate, note = _accepted_of_proposed(length, rate, slots)
        warnings += [note] if note else []
    return Counts(length=length, rate=rate, warnings=tuple(warnings))


def _accepted_of_proposed(length: float, rate: float, slots: float | None) -> tuple[float | None, str | None]:
    """Of three forms that rates had, that which makes K a whole number, or that of the tokens verified.

    (accepted + 1)/proposed first, above 1 where all went well, (accepted + 1)/(proposed + 1) from October 2025 on,
    accepted/proposed since April 2026.
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
    proposed = tokens / rate
    if not proposed < LONGEST:
        return False
    whole = round(proposed) if wanted is None else wanted
    off = proposed * _HALF_A_DIGIT / rate + _HALF_A_DIGIT / rate
    return whole >= least and abs(proposed - whole) <= off


def counts_of_object(body: Mapping[str, object]) -> Counts | None:
    """From meta_info of a response, under the names of any version, or what /server_info tells of all of them."""
    if "avg_spec_accept_length" in body:
        length = numbers_of(body, "avg_spec_accept_length").get("avg_spec_accept_length")
        if not length:
            return Counts(drafts=0.0)
        return Counts(length=length, warnings=("the mean since the server started",))
    if "spec_verify_ct" not in body:
        return None
    known = numbers_of(body, "spec_verify_ct", "spec_accept_length", *_ACCEPTED, *_PROPOSED)
    accepted, proposed = (next((known[n] for n in names if n in known), None) for names in (_ACCEPTED, _PROPOSED))
    steps, emitted = known.get("spec_verify_ct"), numbers_of(body, "completion_tokens").get("completion_tokens")
    if accepted is None and steps and emitted and "spec_accept_length" not in known:
        accepted = max(emitted - 1 - steps, 0.0)  # the first token comes from the prompt
    histogram = body.get("spec_correct_drafts_histogram", body.get("spec_accept_histogram"))
    _, at_least = steps_by_accepted(histogram if isinstance(histogram, list) else [])
    accepted = math.fsum(at_least) if accepted is None and at_least else accepted
    length = known.get("spec_accept_length")
    return Counts(drafts=steps, proposed=proposed, accepted=accepted, by_position=at_least, length=length)


def counts_of_line(line: str) -> Counts | None:
    """From `Decode batch` of the log; fields come in the order of the version."""
    if "Decode batch" not in line or "accept len:" not in line:
        return None
    figure = r"([0-9]+(?:\.[0-9]+)?)(?![0-9]|,[0-9])"
    length, rate = (re.search(f"accept {name}: {figure}", line) for name in ("len", "rate"))
    if length is None:
        raise unreadable(line)
    return _averages(number(length[1]), number(rate[1]) if rate else None)


ENGINE = Engine(
    name="SGLang", checked_against="0.5.23", methods=tuple(_ALGORITHMS), trees=_TREES, config=config,
    checks=(_method_findings, _shape_findings, preflight.mtp_findings, _serving_findings, _sampling_findings,
            for_draft_models(_vocabulary_findings), _pair_findings),
    counts_of_series=counts_of_series, counts_of_object=counts_of_object, counts_of_line=counts_of_line,
)  # fmt: skip
