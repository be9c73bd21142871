"""TensorRT-LLM (PyTorch backend): speculative_config of `trtllm-serve --config`, its refusals, and its metrics.

Checked against tensorrt_llm/llmapi/llm_args.py and tensorrt_llm/metrics/collector.py of NVIDIA/TensorRT-LLM 1.3.
"""

import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from spectune.engines import (
    ConfigText,
    Finding,
    Plan,
    error,
    info,
    is_count,
    mtp_findings,
    pair_findings,
    vocabulary_finding,
    warning,
)
from spectune.engines.speculation import FOLDER, Speculation
from spectune.served.telemetry import Counts, Series, by_position, numbers_of, total

NAME, CHECKED_AGAINST = "TensorRT-LLM", "1.3"
_TYPES = {"draft_model": "Draft_Target", "ngram": "NGram", "eagle3": "Eagle3", "mtp": "MTP", "suffix": "SA"}
METHODS = tuple(_TYPES)
TREES = ("eagle3",)  # methods whose proposals may branch
_NOT_ON_PYTORCH = ("Medusa", "Lookahead")


# ------------------------------------------------------------------------------------------------ config


def config(asked: Speculation) -> ConfigText:
    """`trtllm-serve` and the YAML it reads; a schedule has upper bounds as keys, beyond the last it is plain."""
    draft = asked.draft
    settings: dict[str, Any] = {}
    rule, notes = "none", []
    if draft is not None:
        rule = "greedy_draft"
        settings = {"decoding_type": _TYPES[draft.method], "max_draft_len": asked.num_speculative_tokens}
        if draft.model is not None:
            settings["speculative_model"] = draft.model
        if asked.tree_width > 1:
            settings |= {"use_dynamic_tree": True, "dynamic_tree_max_topK": asked.tree_width}
            settings["max_total_draft_tokens"] = asked.tree_nodes
        if draft.method == "ngram":
            settings["max_matching_ngram_size"] = draft.max_tokens
            if draft.min_tokens > 1:
                notes.append(f"its n-gram lookup has no lower bound, so it proposes more often than {draft.text} does")
        if draft.model is not None and asked.worth_sampling:
            settings["use_rejection_sampling"], rule = True, "rejection"
            notes.append("rejection sampling needs FlashInfer there; without it drop use_rejection_sampling")
        if asked.varies:
            _add_schedule(asked, settings, notes)
    text = yaml.safe_dump({"speculative_config": settings}, sort_keys=False)
    return ConfigText(
        text=f"trtllm-serve {shlex.quote(asked.target)}{f' --config {FOLDER}trtllm.yaml' if settings else ''}",
        rule=rule,
        notes=notes,
        files={"trtllm.yaml": text} if settings else {},
    )


def _add_schedule(asked: Speculation, settings: dict[str, Any], notes: list[str]) -> None:
    """The smallest key must have max_draft_len; K that grows with the batch cannot be said. N-gram takes none."""
    ranges = asked.batches
    if asked.draft and asked.draft.method == "ngram":
        notes.append("no schedule by batch: n-gram drafting takes none there")
        return
    if ranges[0][2] != max(k for _, _, k in ranges):
        notes.append("no schedule by batch: K would grow with it, which its schedule cannot say")
        return
    settings["max_draft_len"] = ranges[0][2]
    settings["draft_len_schedule"] = {last: k for _, last, k in ranges}
    notes.append(
        "keys of the schedule are the largest batches, beyond the last it decodes plainly; older versions read them as "
        "the smallest"
    )


# ------------------------------------------------------------------------------------------------ preflight


def findings(plan: Plan) -> list[Finding]:
    """What TensorRT-LLM would refuse, ignore or do inexactly."""
    settings, method = plan.settings, plan.draft.method
    kind = str(settings.get("decoding_type") or _TYPES.get(method) or method.capitalize())
    found = []
    if kind in _NOT_ON_PYTORCH:
        found.append(
            error("backend", f"{kind} is not on the PyTorch backend", "use Eagle3, MTP, NGram or Draft_Target")
        )
    elif "decoding_type" not in settings and method not in _TYPES:
        found.append(
            error("method", f"TensorRT-LLM has no {method} drafting", "use a draft model, n-gram, EAGLE-3 or MTP")
        )
    length = settings.get("max_draft_len", plan.num_speculative_tokens)
    if length is None and method != "mtp":
        found.append(error("num-speculative-tokens", "max_draft_len is missing", "give --num-speculative-tokens"))
    found += _schedule_findings(settings, length)
    found += [*_tree_findings(settings, length), *mtp_findings(plan)]
    if settings.get("use_relaxed_acceptance_for_thinking"):
        message = "relaxed acceptance keeps tokens that the target would not: the output is not the target's"
        found.append(error("lossy", message, "leave use_relaxed_acceptance_for_thinking out"))
    if method == "draft_model":
        found += _vocabulary_findings(plan)
    return [*found, *pair_findings(plan)]


def _vocabulary_findings(plan: Plan) -> list[Finding]:
    differing, sizes = vocabulary_finding(plan, NAME), (plan.target.vocab_size, plan.model and plan.model.vocab_size)
    if differing is None and None not in sizes and sizes[0] != sizes[1]:
        message = f"embeddings of {sizes[0]} and {sizes[1]} rows with the same tokens: padding only"
        return [info("padding", message, "whether TensorRT-LLM takes such a pair is not documented: a start tells")]
    return [differing] if differing else []


def _schedule_findings(settings: Mapping[str, object], length: object) -> list[Finding]:
    schedule = settings.get("draft_len_schedule")
    if schedule is None:
        return []
    if isinstance(schedule, dict):  # JSON has names only, which are read as numbers
        schedule = {int(k) if isinstance(k, str) and k.isdecimal() else k: v for k, v in schedule.items()}
    if not isinstance(schedule, dict) or not schedule or not all(map(is_count, (*schedule, *schedule.values()))):
        return [error("schedule", "draft_len_schedule is no map of batch to length", "write {4: 4, 8: 2}")]
    if min(schedule) < 1:
        return [error("schedule", "draft_len_schedule has a batch of 0", "count batches from 1")]
    if length is None:
        return []
    if not is_count(length):
        return [error("schedule", f"max_draft_len is {length}, no number", "give a whole number")]
    found, smallest = [], min(schedule)
    if schedule[smallest] != length:
        message = (
            f"the smallest key of draft_len_schedule, {smallest}, has {schedule[smallest]}; max_draft_len is {length}"
        )
        found.append(error("schedule", message, f"the smallest key must equal max_draft_len: {{{smallest}: {length}}}"))
    if any(value > length for value in schedule.values()):
        found.append(error("schedule", f"draft_len_schedule goes above max_draft_len {length}", "raise max_draft_len"))
    if settings.get("max_concurrency") is not None:
        message = "max_concurrency and draft_len_schedule exclude each other"
        found.append(error("schedule", message, "keep the schedule alone"))
    return found


def _tree_findings(settings: Mapping[str, object], length: object) -> list[Finding]:
    topk, nodes = settings.get("dynamic_tree_max_topK"), settings.get("max_total_draft_tokens")
    if topk is not None and not settings.get("use_dynamic_tree"):
        return [warning("tree-shape", "dynamic_tree_max_topK does nothing without use_dynamic_tree", "set both")]
    if settings.get("use_dynamic_tree") and not (is_count(topk) and topk and is_count(length) and length):
        missing = "max_draft_len" if is_count(topk) and topk else "dynamic_tree_max_topK"
        return [error("tree-shape", f"use_dynamic_tree needs {missing}", f"set {missing} to 1 or more")]
    if not (is_count(topk) and is_count(nodes) and is_count(length)):
        return []
    if not length <= nodes <= topk * length:  # type: ignore[operator]
        message = (
            f"max_total_draft_tokens {nodes} is not between max_draft_len {length} and topK times it, {topk * length}"  # type: ignore[operator]
        )
        return [error("tree-shape", message, f"give {length} to {topk * length}")]  # type: ignore[operator]
    return []


# ------------------------------------------------------------------------------------------------ telemetry

_PREFIX = "trtllm_spec_decode_"


def counts_of_series(series: Series) -> Counts | None:
    """From /prometheus/metrics. Rounds are told only by the newer counters by position: those of position 0."""
    proposed, accepted = (total(series, f"{_PREFIX}num_{kind}_tokens_total") for kind in ("draft", "accepted"))
    drafted, kept = (
        by_position(series, f"{_PREFIX}{kind}_tokens_total", "token_position") for kind in ("drafted", "accepted")
    )
    if proposed is None and not drafted:
        return None
    if drafted:
        return Counts(
            num_drafts=drafted[0],
            num_draft_tokens=sum(drafted),
            num_accepted_tokens=sum(kept),
            accepted_by_position=(*kept, *[0.0] * (len(drafted) - len(kept))),
        )
    note = "no counter of rounds here: tokens per round need counters by position (return_perf_metrics: true)"
    return Counts(num_draft_tokens=proposed, num_accepted_tokens=accepted, warnings=(note,))


def counts_of_object(found: Mapping[str, object]) -> Counts | None:
    """From specDecodingStats of an iteration, or /perf_metrics of a request."""
    if "numDraftTokens" in found:
        known = numbers_of(found, "numDraftTokens", "numAcceptedTokens", "numRequestsWithDraftTokens")
        return Counts(
            num_drafts=known.get("numRequestsWithDraftTokens"),
            num_draft_tokens=known.get("numDraftTokens"),
            num_accepted_tokens=known.get("numAcceptedTokens"),
        )
    if "total_accepted_draft_tokens" not in found:
        return None
    known = numbers_of(found, "total_draft_tokens", "total_accepted_draft_tokens")
    return Counts(
        num_draft_tokens=known.get("total_draft_tokens"), num_accepted_tokens=known.get("total_accepted_draft_tokens")
    )


def counts_of_line(line: str) -> Counts | None:  # noqa: ARG001 - one signature for all engines
    """Its log tells nothing of acceptance."""
    return None
