"""TensorRT-LLM (PyTorch backend): speculative_config of `trtllm-serve --config`, its refusals, and its metrics.

Checked against tensorrt_llm/llmapi/llm_args.py and tensorrt_llm/metrics/collector.py of NVIDIA/TensorRT-LLM 1.3.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from spectune.drafting_spec import DraftSpec
from spectune.engines import preflight
from spectune.engines.engine import ConfigText, Engine, for_draft_models
from spectune.engines.preflight import Finding, Plan, error, is_count, warning
from spectune.engines.speculation import FOLDER, Speculation
from spectune.served.exposition import Series, by_position, total
from spectune.served.telemetry import Counts, numbers_of

_NAME = "TensorRT-LLM"
_TYPES = {"draft_model": "Draft_Target", "ngram": "NGram", "eagle3": "Eagle3", "mtp": "MTP", "suffix": "SA"}
_UNDOCUMENTED = "whether TensorRT-LLM takes such a pair is not documented: a start tells"
_NO_ROUNDS = "no counter of rounds here: tokens per round need counters by position (return_perf_metrics: true)"
_PREFIX = "trtllm_spec_decode_"


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
        notes.append(_scheduled(settings, speculation.draft, speculation.batches))
    files = {"trtllm.yaml": yaml.safe_dump({"speculative_config": settings}, sort_keys=False)}
    return ConfigText(text=f"{command} --config {FOLDER}trtllm.yaml", rule=rule, notes=notes, files=files)


def _method(draft: DraftSpec, speculation: Speculation) -> tuple[dict[str, Any], list[str]]:
    """Settings, and what is to be said of them."""
    settings: dict[str, Any] = {"decoding_type": _TYPES[draft.method]}
    settings["max_draft_len"] = speculation.num_speculative_tokens
    settings |= {} if draft.model is None else {"speculative_model": draft.model}
    if speculation.tree_width > 1:
        settings |= {"use_dynamic_tree": True, "dynamic_tree_max_topK": speculation.tree_width}
        settings["max_total_draft_tokens"] = speculation.tree_nodes
    if draft.method != "ngram":
        return settings, []
    settings["max_matching_ngram_size"] = draft.max_tokens
    note = f"its n-gram lookup has no lower bound, so it proposes more often than {draft.text} does"
    return settings, [note] if draft.min_tokens > 1 else []


def _scheduled(settings: dict[str, Any], draft: DraftSpec, batches: list[tuple[int, int, int]]) -> str:
    """A schedule among the settings, where it can be said: its smallest key must have max_draft_len; and a note."""
    if draft.method == "ngram":
        return "no schedule by batch: n-gram drafting takes none there"
    if batches[0][2] != max(k for _, _, k in batches):
        return "no schedule by batch: K would grow with it, which its schedule cannot say"
    settings |= {"max_draft_len": batches[0][2], "draft_len_schedule": {last: k for _, last, k in batches}}
    return (
        "keys of the schedule are the largest batches, beyond the last it decodes plainly; older versions read them as "
        "the smallest"
    )


def _shape_findings(plan: Plan) -> Iterator[Finding]:
    length = plan.settings.get("max_draft_len", plan.num_speculative_tokens)
    if length is None and plan.draft.method != "mtp":
        yield error("num-speculative-tokens", "max_draft_len is missing", "give --num-speculative-tokens")
    yield from _schedule_findings(plan.settings, length)
    yield from _tree_findings(plan.settings, length)


def _lossy_findings(plan: Plan) -> Iterator[Finding]:
    if plan.settings.get("use_relaxed_acceptance_for_thinking"):
        message = "relaxed acceptance keeps tokens that the target would not: the output is not the target's"
        yield error("lossy", message, "leave use_relaxed_acceptance_for_thinking out")


def _vocabulary_findings(plan: Plan) -> Iterator[Finding]:
    different = preflight.vocabulary_finding(plan, _NAME)
    yield from [different] if different else preflight.padding_findings(plan, _UNDOCUMENTED)


def _kind_findings(plan: Plan) -> Iterator[Finding]:
    """Of decoding_type, as it is set or follows from the draft."""
    given, method = plan.settings.get("decoding_type"), plan.draft.method
    kind = str(given or _TYPES.get(method) or method.capitalize())
    if kind in ("Medusa", "Lookahead"):
        yield error("backend", f"{kind} is not on the PyTorch backend", "use Eagle3, MTP, NGram or Draft_Target")
    elif "decoding_type" not in plan.settings:
        yield from preflight.method_findings(plan, _NAME, _TYPES, "use a draft model, n-gram, EAGLE-3 or MTP")


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
        smallest, first = min(schedule.items())
        if first != length:
            message = f"the smallest key of draft_len_schedule, {smallest}, has {first}; max_draft_len is {length}"
            yield error("schedule", message, f"the smallest key must equal max_draft_len: {{{smallest}: {length}}}")
        if max(schedule.values()) > length:
            yield error("schedule", f"draft_len_schedule goes above max_draft_len {length}", "raise max_draft_len")
        if settings.get("max_concurrency") is not None:
            both = "max_concurrency and draft_len_schedule exclude each other"
            yield error("schedule", both, "keep the schedule alone")
    elif length is not None:
        yield error("schedule", f"max_draft_len is {length}, no number", "give a whole number")


def _tree_findings(settings: Mapping[str, object], length: object) -> Iterator[Finding]:
    topk, nodes = settings.get("dynamic_tree_max_topK"), settings.get("max_total_draft_tokens")
    branches = settings.get("use_dynamic_tree")
    if topk is not None and not branches:
        yield warning("tree-shape", "dynamic_tree_max_topK does nothing without use_dynamic_tree", "set both")
    elif branches and not (is_count(topk) and topk and is_count(length) and length):
        missing = "max_draft_len" if is_count(topk) and topk else "dynamic_tree_max_topK"
        yield error("tree-shape", f"use_dynamic_tree needs {missing}", f"set {missing} to 1 or more")
    elif is_count(topk) and is_count(nodes) and is_count(length) and not length <= nodes <= topk * length:
        bounds = f"max_draft_len {length} and topK times it, {topk * length}"
        message = f"max_total_draft_tokens {nodes} is not between {bounds}"
        yield error("tree-shape", message, f"give {length} to {topk * length}")


def counts_of_series(series: Series) -> Counts | None:
    """From /prometheus/metrics. Rounds are told only by the newer counters by position: those of position 0."""
    proposed, accepted = (total(series, f"{_PREFIX}num_{kind}_tokens_total") for kind in ("draft", "accepted"))
    drafted = by_position(series, f"{_PREFIX}drafted_tokens_total", "token_position")
    kept = by_position(series, f"{_PREFIX}accepted_tokens_total", "token_position")
    if drafted:
        every = (*kept, *[0.0] * (len(drafted) - len(kept)))
        return Counts(drafts=drafted[0], proposed=sum(drafted), accepted=sum(kept), by_position=every)
    return None if proposed is None else Counts(proposed=proposed, accepted=accepted, warnings=(_NO_ROUNDS,))


def counts_of_object(body: Mapping[str, object]) -> Counts | None:
    """From specDecodingStats of an iteration, or /perf_metrics of a request."""
    if "numDraftTokens" in body:
        names = ("numDraftTokens", "numAcceptedTokens", "numRequestsWithDraftTokens")
    elif "total_accepted_draft_tokens" in body:
        names = ("total_draft_tokens", "total_accepted_draft_tokens", "")
    else:
        return None
    proposed, accepted, drafts = map(numbers_of(body, *filter(None, names)).get, names)
    return Counts(drafts=drafts, proposed=proposed, accepted=accepted)


ENGINE = Engine(
    name=_NAME, checked_against="1.3", methods=tuple(_TYPES), trees=("eagle3",), config=config,
    checks=(_kind_findings, _shape_findings, preflight.mtp_findings, _lossy_findings,
            for_draft_models(_vocabulary_findings), preflight.pair_findings),
    counts_of_series=counts_of_series, counts_of_object=counts_of_object,
)  # fmt: skip
