"""TensorRT-LLM (PyTorch backend): speculative_config of `trtllm-serve --config`, its refusals, and its metrics.

Checked against tensorrt_llm/llmapi/llm_args.py and tensorrt_llm/metrics/collector.py of NVIDIA/TensorRT-LLM 1.3.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from spectune.drafting_spec import DraftSpec
from spectune.engines.engine import ConfigText, Engine
from spectune.engines.preflight import (
    Finding,
    Plan,
    error,
    is_count,
    method_findings,
    mtp_findings,
    padding_findings,
    pair_findings,
    vocabulary_finding,
    warning,
)
from spectune.engines.speculation import FOLDER, Speculation
from spectune.served.exposition import Series, by_position, total
from spectune.served.numbers import numbers_of
from spectune.served.telemetry import Counts

_NAME = "TensorRT-LLM"
_TYPES = {"draft_model": "Draft_Target", "ngram": "NGram", "eagle3": "Eagle3", "mtp": "MTP", "suffix": "SA"}
_NOT_ON_PYTORCH = ("Medusa", "Lookahead")


# ------------------------------------------------------------------------------------------------ config


def config(speculation: Speculation) -> ConfigText:
    """`trtllm-serve` and the YAML it reads; a schedule has upper bounds as keys, beyond the last it is plain."""
    command = f"trtllm-serve {shlex.quote(speculation.target)}"
    if speculation.draft is None:
        return ConfigText(text=command, rule="none", notes=[])
    settings, notes = _method(speculation.draft, speculation)
    rule = "greedy_draft"
    if speculation.draft.model is not None and speculation.worth_sampling:
        settings["use_rejection_sampling"], rule = True, "rejection"
        notes.append("rejection sampling needs FlashInfer there; without it drop use_rejection_sampling")
    if speculation.varies:
        schedule, note = _schedule(speculation.draft, speculation.batches)
        settings |= schedule
        notes.append(note)
    text = yaml.safe_dump({"speculative_config": settings}, sort_keys=False)
    files = {"trtllm.yaml": text}
    return ConfigText(text=f"{command} --config {FOLDER}trtllm.yaml", rule=rule, notes=notes, files=files)


def _method(draft: DraftSpec, speculation: Speculation) -> tuple[dict[str, Any], list[str]]:
    """Settings, and what is to be said of them."""
    settings: dict[str, Any] = {
        "decoding_type": _TYPES[draft.method],
        "max_draft_len": speculation.num_speculative_tokens,
        **({} if draft.model is None else {"speculative_model": draft.model}),
    }
    if speculation.tree_width > 1:
        settings |= {"use_dynamic_tree": True, "dynamic_tree_max_topK": speculation.tree_width}
        settings["max_total_draft_tokens"] = speculation.tree_nodes
    if draft.method != "ngram":
        return settings, []
    settings["max_matching_ngram_size"] = draft.max_tokens
    note = f"its n-gram lookup has no lower bound, so it proposes more often than {draft.text} does"
    return settings, [note] if draft.min_tokens > 1 else []


def _schedule(draft: DraftSpec, batches: list[tuple[int, int, int]]) -> tuple[dict[str, Any], str]:
    """The smallest key must have max_draft_len; K that grows with the batch cannot be said. N-gram takes none."""
    if draft.method == "ngram":
        return {}, "no schedule by batch: n-gram drafting takes none there"
    if batches[0][2] != max(k for _, _, k in batches):
        return {}, "no schedule by batch: K would grow with it, which its schedule cannot say"
    schedule = {last: k for _, last, k in batches}
    note = (
        "keys of the schedule are the largest batches, beyond the last it decodes plainly; older versions read them as "
        "the smallest"
    )
    return {"max_draft_len": batches[0][2], "draft_len_schedule": schedule}, note


# ------------------------------------------------------------------------------------------------ preflight


def findings(plan: Plan) -> Iterator[Finding]:
    """What TensorRT-LLM would refuse, ignore or do inexactly."""
    settings, method = plan.settings, plan.draft.method
    yield from _kind_findings(plan)
    length = settings.get("max_draft_len", plan.num_speculative_tokens)
    if length is None and method != "mtp":
        yield error("num-speculative-tokens", "max_draft_len is missing", "give --num-speculative-tokens")
    yield from _schedule_findings(settings, length)
    yield from _tree_findings(settings, length)
    yield from mtp_findings(plan)
    if settings.get("use_relaxed_acceptance_for_thinking"):
        message = "relaxed acceptance keeps tokens that the target would not: the output is not the target's"
        yield error("lossy", message, "leave use_relaxed_acceptance_for_thinking out")
    if method == "draft_model":
        yield from _vocabulary_findings(plan)
    yield from pair_findings(plan)


def _kind_findings(plan: Plan) -> Iterator[Finding]:
    """Of decoding_type, as it is set or follows from the draft."""
    given, method = plan.settings.get("decoding_type"), plan.draft.method
    kind = str(given or _TYPES.get(method) or method.capitalize())
    if kind in _NOT_ON_PYTORCH:
        message = f"{kind} is not on the PyTorch backend"
        yield error("backend", message, "use Eagle3, MTP, NGram or Draft_Target")
    elif "decoding_type" not in plan.settings:
        yield from method_findings(plan, _NAME, _TYPES, "use a draft model, n-gram, EAGLE-3 or MTP")


def _vocabulary_findings(plan: Plan) -> Iterator[Finding]:
    finding = vocabulary_finding(plan, _NAME)
    if finding:
        yield finding
    else:
        remedy = "whether TensorRT-LLM takes such a pair is not documented: a start tells"
        yield from padding_findings(plan, remedy)


def _schedule_findings(settings: Mapping[str, object], length: object) -> Iterator[Finding]:
    schedule = settings.get("draft_len_schedule")
    if isinstance(schedule, dict):  # JSON has names only, which are read as numbers
        schedule = {int(k) if isinstance(k, str) and k.isdecimal() else k: v for k, v in schedule.items()}
    if schedule is None:
        return
    if not isinstance(schedule, dict) or not schedule or not all(map(is_count, (*schedule, *schedule.values()))):
        yield error("schedule", "draft_len_schedule is no map of batch to length", "write {4: 4, 8: 2}")
    elif min(schedule) < 1:
        yield error("schedule", "draft_len_schedule has a batch of 0", "count batches from 1")
    elif is_count(length):
        yield from _length_findings(schedule, length)
        if settings.get("max_concurrency") is not None:
            message = "max_concurrency and draft_len_schedule exclude each other"
            yield error("schedule", message, "keep the schedule alone")
    elif length is not None:
        yield error("schedule", f"max_draft_len is {length}, no number", "give a whole number")


def _length_findings(schedule: Mapping[int, int], length: int) -> Iterator[Finding]:
    """Of a schedule against max_draft_len."""
    smallest = min(schedule)
    first = schedule[smallest]
    if first != length:
        message = f"the smallest key of draft_len_schedule, {smallest}, has {first}; max_draft_len is {length}"
        yield error("schedule", message, f"the smallest key must equal max_draft_len: {{{smallest}: {length}}}")
    if max(schedule.values()) > length:
        yield error("schedule", f"draft_len_schedule goes above max_draft_len {length}", "raise max_draft_len")


def _tree_findings(settings: Mapping[str, object], length: object) -> Iterator[Finding]:
    topk, nodes = settings.get("dynamic_tree_max_topK"), settings.get("max_total_draft_tokens")
    branches = settings.get("use_dynamic_tree")
    if topk is not None and not branches:
        yield warning("tree-shape", "dynamic_tree_max_topK does nothing without use_dynamic_tree", "set both")
    elif branches and not (is_count(topk) and topk and is_count(length) and length):
        missing = "max_draft_len" if is_count(topk) and topk else "dynamic_tree_max_topK"
        yield error("tree-shape", f"use_dynamic_tree needs {missing}", f"set {missing} to 1 or more")
    elif is_count(topk) and is_count(nodes) and is_count(length) and not length <= nodes <= topk * length:
        most = topk * length
        message = f"max_total_draft_tokens {nodes} is not between max_draft_len {length} and topK times it, {most}"
        yield error("tree-shape", message, f"give {length} to {most}")


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


def counts_of_object(body: Mapping[str, object]) -> Counts | None:
    """From specDecodingStats of an iteration, or /perf_metrics of a request."""
    if "numDraftTokens" in body:
        known = numbers_of(body, "numDraftTokens", "numAcceptedTokens", "numRequestsWithDraftTokens")
        return Counts(
            num_drafts=known.get("numRequestsWithDraftTokens"),
            num_draft_tokens=known.get("numDraftTokens"),
            num_accepted_tokens=known.get("numAcceptedTokens"),
        )
    if "total_accepted_draft_tokens" not in body:
        return None
    known = numbers_of(body, "total_draft_tokens", "total_accepted_draft_tokens")
    return Counts(
        num_draft_tokens=known.get("total_draft_tokens"), num_accepted_tokens=known.get("total_accepted_draft_tokens")
    )


ENGINE = Engine(
    name=_NAME,
    checked_against="1.3",
    methods=tuple(_TYPES),
    trees=("eagle3",),
    config=config,
    findings=findings,
    counts_of_series=counts_of_series,
    counts_of_object=counts_of_object,
)
