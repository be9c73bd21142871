"""vLLM: --speculative-config, what it refuses, and what it tells of itself.

Checked against vLLM 0.32: its configuration and metrics sources, and its own argument parser (tests/e2e/test_vllm.py).
"""

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import yaml

from spectune.engines import preflight
from spectune.engines.engine import ConfigText, Engine, for_draft_models
from spectune.engines.preflight import Finding, Plan, error, is_count, warning
from spectune.engines.speculation import Speculation
from spectune.served.exposition import Series, several, spec_decode_counts
from spectune.served.telemetry import Counts, number, numbers_of, steps_by_accepted, unreadable

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_TELLING_RATE = 0.02
_ROUNDED = "drafts and positions follow from rounded rates in the log"
_NO_BONUS = "this version prints a mean acceptance length without the bonus token; it is included here"
_BETWEEN = "a batch that was not measured has the K of the next larger one that was, beyond the largest its K holds"
_SCHEDULE = "num_speculative_tokens_per_batch_size"


def config(speculation: Speculation) -> ConfigText:
    """`vllm serve`; its draft models propose their argmax unless sampling is worth more than 1% of tokens a round."""
    draft = speculation.draft
    if draft is None:
        return _command(speculation, {}, "none", [])
    lookup = {"prompt_lookup_min": draft.min_tokens, "prompt_lookup_max": draft.max_tokens}
    told = {"method": draft.method, "model": draft.model, **lookup}
    settings: dict[str, Any] = {name: value for name, value in told.items() if value}
    rule, notes = "greedy_draft", []
    if speculation.padded:
        settings["use_heterogeneous_vocab"] = True
        notes.append("the embeddings differ in padding, which vLLM takes for another vocabulary: drafts greedily only")
    elif draft.method == "draft_model" and speculation.worth_sampling:
        rule, settings["draft_sample_method"] = "rejection", "probabilistic"
    settings["num_speculative_tokens"] = speculation.num_speculative_tokens
    if speculation.varies:
        settings["num_speculative_tokens"] = max(k for _, _, k in speculation.batches)
        settings[_SCHEDULE] = [list(step) for step in speculation.batches]
        notes += [_BETWEEN, "the schedule is ignored under data parallelism"]
    notes.append("requests with min_p or logit_bias are refused under speculation")
    return _command(speculation, settings, rule, notes)


def _command(speculation: Speculation, settings: dict[str, Any], rule: str, notes: list[str]) -> ConfigText:
    target, dtype = speculation.target, speculation.dtype if speculation.dtype != "auto" else ""
    text = f"vllm serve {shlex.quote(target)}{f' --dtype {shlex.quote(dtype)}' if dtype else ''}"
    served: dict[str, Any] = {"model": target, **({"dtype": dtype} if dtype else {})}
    if settings:
        text += f" \\\n  --speculative-config {shlex.quote(json.dumps(settings))}"
        served["speculative-config"] = settings
    return ConfigText(text=text, rule=rule, notes=notes, files={"vllm.yaml": yaml.safe_dump(served, sort_keys=False)})


def _method_findings(plan: Plan) -> Iterator[Finding]:
    method, given = plan.draft.method, plan.settings.get("method")
    if method == "layer_skip":
        yield error("method", "vLLM does not draft with the first layers of a target", "use n-gram or a draft model")
    elif plan.num_speculative_tokens is None and method not in ("mtp", "suffix"):
        yield error("num-speculative-tokens", f"vLLM needs a K for {method}", "give --num-speculative-tokens")
    if given is not None and given != method and not (method == "mtp" and str(given).endswith("_mtp")):
        message = f"the settings say method {given}, the draft is read as {method}"
        yield warning("method", message, "give the draft that is meant, as in --draft eagle3:MODEL")
    if method == "suffix":
        yield warning("package", "vLLM's suffix decoding needs the package arctic-inference", "install it there")


def _vocabulary_findings(plan: Plan) -> Iterator[Finding]:
    """VLLM compares the rows of the embeddings, and nothing else."""
    if plan.settings.get("use_heterogeneous_vocab") is True:
        if plan.settings.get("draft_sample_method", "greedy") != "greedy":
            message = "use_heterogeneous_vocab drafts greedily only"
            yield error("vocabulary", message, "leave draft_sample_method at greedy")
        return
    difference, rows = preflight.vocabulary_finding(plan, "vLLM"), plan.unequal_rows
    if difference:
        yield difference
    if rows and (difference is None or difference.level == "warning"):
        though = "though the tokens are the same" if difference is None else "whatever their tokens"
        message = f"vLLM's draft_model refuses embeddings of {rows[0]} and {rows[1]} rows, {though}"
        yield error("padding", message, "pad the draft to the target's size, or set use_heterogeneous_vocab")


def _lookup_findings(plan: Plan) -> Iterator[Finding]:
    low, high = plan.settings.get("prompt_lookup_min"), plan.settings.get("prompt_lookup_max")
    if (low is None) != (high is None):
        given, value = ("prompt_lookup_max", high) if low is None else ("prompt_lookup_min", low)
        message = f"with {given} = {value} alone, vLLM takes {value} for both"
        yield warning("prompt-lookup", message, f"write prompt_lookup_min and prompt_lookup_max, both {value} or apart")
    elif is_count(low) and is_count(high) and low > high:
        yield error("prompt-lookup", f"prompt_lookup_min {low} is above prompt_lookup_max {high}", "give min ≤ max")


def _mtp_findings(plan: Plan) -> Iterator[Finding]:
    heads, k = plan.drafting.mtp_layers, plan.num_speculative_tokens
    if plan.draft.method == "mtp" and heads and k is not None and k > heads and k % heads:
        message = f"K = {k} does not fit the {heads} tokens that {plan.drafting.name} predicts in a pass"
        yield error("mtp", message, f"K must be at most {heads} or a multiple of {heads}")


def _gone_findings(plan: Plan) -> Iterator[Finding]:
    """Of settings that vLLM dropped, or does not take from a draft."""
    k = plan.num_speculative_tokens or 1
    if "speculative_token_tree" in plan.settings:
        yield error("gone", "vLLM dropped speculative_token_tree: it verifies chains only", "drop it")
    for name in ("disable_by_batch_size", "speculative_disable_by_batch_size"):
        if name in plan.settings:
            size = plan.settings[name]
            ranges = [[1, size - 1, k], [size, size, 0]] if is_count(size) and size > 1 else [[1, 1, 0]]
            yield error("gone", f"vLLM dropped {name}", f"write {_SCHEDULE}: {json.dumps(ranges)}")
    devices, own = plan.settings.get("tensor_parallel_size"), plan.settings.get("draft_tensor_parallel_size")
    if "speculative_config.tensor_parallel_size" in plan.settings:
        missing = "speculative_config has no tensor_parallel_size"
        yield error("tensor-parallel", missing, "write draft_tensor_parallel_size")
    if own is not None and own not in (1, devices or 1):
        message = f"vLLM runs a draft on 1 or on the target's {devices or 1} devices, not on {own}"
        remedy = f"set draft_tensor_parallel_size to 1{f' or {devices}' if devices else ''}"
        yield error("tensor-parallel", message, remedy)


def _sampling_findings(plan: Plan) -> Iterator[Finding]:
    settings = plan.settings
    if settings.get("rejection_sample_method") == "synthetic" or any("synthetic" in name for name in settings):
        message = "synthetic acceptance keeps proposals at random: the output is not the target's"
        yield error("lossy", message, "leave rejection_sample_method at standard, or block")
    if settings.get("use_heterogeneous_vocab") and plan.draft.method != "draft_model":
        yield error("vocabulary", "use_heterogeneous_vocab is for draft models only", "leave it out")
    for name in ("min_p", "logit_bias"):
        if settings.get(name):
            yield error("sampling", f"vLLM refuses requests with {name} under speculation", f"drop {name}")


def _schedule_findings(plan: Plan) -> Iterator[Finding]:
    remedy = "write ranges [first, last, K] from batch 1 up, without overlap, as in [[1, 8, 4], [9, 32, 0]]"
    schedule, k = plan.settings.get(_SCHEDULE), plan.num_speculative_tokens
    ranges = schedule if isinstance(schedule, list) else []
    if not schedule:
        return
    if not ranges or not all(isinstance(r, list) and len(r) == 3 and all(map(is_count, r)) for r in ranges):
        yield error("schedule", f"{_SCHEDULE} is no list of ranges", remedy)
    elif wrong := _wrong_range(ranges):
        yield error("schedule", f"the range {wrong[0]} to {wrong[1]} of {_SCHEDULE} starts or ends wrongly", remedy)
    else:
        if k is not None and max(longest for _, _, longest in ranges) > k:
            message = f"K above {k} in {_SCHEDULE} is cut to {k}"
            yield warning("schedule", message, "give the largest of them as num_speculative_tokens")
        if is_count(devices := plan.settings.get("data_parallel_size")) and devices > 1:
            message = f"under data parallelism vLLM ignores {_SCHEDULE}"
            yield warning("schedule", message, "serve without data parallelism, or with one K")


def _wrong_range(ranges: list[list[int]]) -> list[int] | None:
    """The first that overlaps, is empty or leaves out batch 1."""
    end = 0
    for batches in sorted(ranges):
        first, last, _ = batches
        if first <= end or first > last or (end == 0 and first != 1):
            return batches
        end = last
    return None


def counts_of_series(series: Series) -> Counts | None:
    """From /metrics. Positions are counted over all drafts: cumulative."""
    counts = spec_decode_counts(series, "vllm", "_total", "")
    if counts.drafts is counts.proposed is counts.accepted is None:
        return None
    warnings = several(series, "vllm:spec_decode_num_accepted_tokens_total", "model_name")
    return replace(counts, warnings=tuple(warnings))


def counts_of_object(body: Mapping[str, object]) -> Counts | None:
    """From metrics.speculative_decoding of a response: a histogram of steps that proposed, by accepted tokens."""
    histogram = body.get("acceptance_histogram")
    if "num_spec_steps" not in body or not isinstance(histogram, list):
        return None
    steps, at_least = steps_by_accepted(histogram)
    known = numbers_of(body, "num_draft_tokens", "num_accepted_draft_tokens")
    accepted = known.get("num_accepted_draft_tokens", math.fsum(at_least))
    return Counts(drafts=steps, proposed=known.get("num_draft_tokens"), accepted=accepted, by_position=at_least)


def counts_of_line(line: str) -> Counts | None:
    """From `SpecDecoding metrics:` of the log, whose order of figures differs by version."""
    if "SpecDecoding metrics:" not in line:
        return None
    accepted, proposed, mean = (_figure(line, name) for name in ("Accepted", "Drafted", "Mean acceptance length"))
    listed = re.search(rf"Per-position acceptance rate: ({_NUMBER}(?:, {_NUMBER})*)(?![0-9.]|,[0-9])", line)
    if accepted is None or proposed is None or (listed is None and "Per-position" in line):
        raise unreadable(line)
    if listed is None:
        return Counts(proposed=proposed, accepted=accepted)
    rates = [number(rate) for rate in listed[1].split(", ")]
    return _counts_of_rates(rates, proposed, accepted, mean)


def _counts_of_rates(rates: list[float], proposed: float, accepted: float, mean: float | None) -> Counts:
    """Drafts follow from the rates by position, which sum to the mean length without the bonus."""
    total_rate, at_least = math.fsum(rates), math.ceil(proposed / len(rates))
    told = total_rate > _TELLING_RATE * len(rates)  # well above its rounding
    drafts = float(max(at_least, round(min(accepted / total_rate, proposed)) if told else 0))
    without = mean is not None and accepted > 0 and abs(mean - total_rate) < abs(mean - 1 - total_rate)
    kept, warnings = tuple(rate * drafts for rate in rates), (_ROUNDED, _NO_BONUS) if without else (_ROUNDED,)
    return Counts(drafts=drafts, proposed=proposed, accepted=accepted, by_position=kept, warnings=warnings)


def _figure(line: str, name: str) -> float | None:
    told = re.search(rf"\b{name}: {_NUMBER}(?![0-9,.]*,[0-9])", line)
    return number(told[1]) if told else None


ENGINE = Engine(
    name="vLLM", checked_against="0.32",
    methods=("draft_model", "ngram", "suffix", "medusa", "eagle", "eagle3", "mtp"),
    in_full={"tp": "tensor_parallel_size", "tp_size": "tensor_parallel_size", "dp": "data_parallel_size",
             "dp_size": "data_parallel_size"},
    config=config,
    checks=(preflight.pair_findings, _method_findings, for_draft_models(_vocabulary_findings), _lookup_findings,
            _mtp_findings, preflight.mtp_findings, _gone_findings, _sampling_findings, _schedule_findings),
    counts_of_series=counts_of_series, counts_of_object=counts_of_object, counts_of_line=counts_of_line,
)  # fmt: skip
