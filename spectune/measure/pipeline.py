"""`spectune profile` from end to end: workload, tape, acceptance, costs, profile."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import pandas as pd
import torch

import spectune
from spectune.costs import KNOWN_WITHIN, CostCells
from spectune.drafting import Drafter
from spectune.drafting.draft_model import DraftModel
from spectune.drafting.layer_skip import first_layers
from spectune.drafting.ngram import NgramDrafter
from spectune.drafting_spec import DEFAULT_DRAFT, canonical_spec, layer_count, ngram_bounds
from spectune.errors import ConfigError
from spectune.manifest import SCHEMA_VERSION, DraftRecord, Load, Notice
from spectune.measure import Progress
from spectune.measure.acceptance import acceptance_table
from spectune.measure.cost import CostSettings, cost_table
from spectune.measure.environment import environment, model_record
from spectune.measure.tape import (
    TapePrompt,
    TapeRow,
    continuations,
    held_out_table,
    record_tape,
    repeating_rows,
    tape_table,
)
from spectune.models import (
    LanguageModel,
    SamplingDefaults,
    load_model,
    prompt_token_ids,
    require_same_tokenizer,
    resolve_device,
    sampling_defaults,
)
from spectune.profile import Profile, require_replaceable, save_profile
from spectune.sampling import Sampling
from spectune.workload import Prompt, Workload, load_workload

log = logging.getLogger("spectune")

ENGINE = "spectune"
_MANY_REPEATS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """What to profile; the defaults are the command line's."""

    output: Path
    command: str
    target: str | None = None
    drafts: Sequence[str] = field(default_factory=tuple)
    workload: str = "builtin"
    temperatures: Sequence[float] = field(default_factory=tuple)
    max_k: int = 8
    max_new_tokens: int = 64
    limit_tokens: int | None = None
    batches: Sequence[int] = field(default_factory=tuple)
    contexts: Sequence[int] = field(default_factory=tuple)
    budget_s: float = 60.0
    device: str = "auto"
    dtype: str = "auto"
    seed: int = 0
    trust_remote_code: bool = False
    overlap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    target: LanguageModel
    drafts: dict[str, Drafter]
    records: list[DraftRecord]
    defaults: SamplingDefaults
    samplings: list[Sampling]
    workload: Workload
    prompts: list[TapePrompt]
    held_out: list[TapePrompt]
    skipped: int


def measure_profile(request: ProfileRequest, progress: Progress, run_log: Path | None = None) -> Profile:
    """Measure everything and save it. Raises: SpectuneError; nothing is left behind then."""
    _check(request)
    prepared = _prepare(request, progress)
    with _timed("record"):
        rows = record_tape(
            prepared.target, prepared.prompts, prepared.samplings, request.max_new_tokens, request.seed, progress
        )
    with _timed("replay"):
        acceptance = acceptance_table(prepared.drafts, continuations(rows), request.max_k, progress)
    settings = _cost_settings(request, prepared, rows)
    with _timed("costs"):
        costs = cost_table(prepared.target, prepared.drafts, settings, progress)
    manifest = _manifest(request, prepared, rows, settings, costs)
    tables = {
        "tape": tape_table(rows, request.max_new_tokens == request.limit_tokens),
        "acceptance": acceptance,
        "costs": costs,
        "held_out": held_out_table(prepared.held_out),
    }
    return save_profile(manifest, tables, request.output, run_log)


class _timed:  # noqa: N801 - reads as a statement
    def __init__(self, stage: str) -> None:
        self._stage = stage

    def __enter__(self) -> None:
        self._began = perf_counter()
        log.info("%s begins", self._stage)

    def __exit__(self, *_: object) -> None:
        log.info("%s took %.1f s", self._stage, perf_counter() - self._began)


def _check(request: ProfileRequest) -> None:
    if not 1 <= request.max_k <= 64:
        raise ConfigError(f"--max-k is {request.max_k}", "give a whole number from 1 to 64")
    if request.max_new_tokens <= request.max_k:
        problem = f"--max-new-tokens {request.max_new_tokens} leaves no complete round at K = {request.max_k}"
        raise ConfigError(problem, f"give more than --max-k, best at least {8 * request.max_k}")
    if request.limit_tokens is not None and request.limit_tokens < request.max_new_tokens:
        problem = f"--limit-tokens {request.limit_tokens} is below --max-new-tokens {request.max_new_tokens}"
        raise ConfigError(problem, "requests end at the limit: record at most that many")
    for name, values in (("--batch", request.batches), ("--context", request.contexts)):
        if any(value < 1 for value in values):
            raise ConfigError(f"{name} is {min(values)}", "give whole numbers of at least 1")
    if any(context <= request.max_k for context in request.contexts):
        raise ConfigError(f"--context {min(request.contexts)} is not above --max-k {request.max_k}", "give more tokens")
    if not 0 < request.budget_s < float("inf"):
        raise ConfigError(f"--budget-s is {request.budget_s}", "give a positive number of seconds")
    if request.seed < 0:
        raise ConfigError(f"--seed is {request.seed}", "give a whole number of at least 0")
    for temperature in request.temperatures:
        Sampling(temperature=temperature)
    require_replaceable(request.output)


def _prepare(request: ProfileRequest, progress: Progress) -> _Prepared:
    workload = load_workload(request.workload)
    specs = list(dict.fromkeys(canonical_spec(spec) for spec in request.drafts or [DEFAULT_DRAFT]))
    device = resolve_device(request.device)
    with _timed("load"):
        target = _load(request.target, device, request, progress)
        drafts, records = _open_drafts(specs, target, request, progress)
    defaults = sampling_defaults(target)
    chosen = request.temperatures or sorted({0.0, 1.0, *([defaults.temperature] if defaults.temperature else [])})
    samplings = [
        Sampling(temperature=temperature, top_p=defaults.top_p, top_k=defaults.top_k)
        for temperature in dict.fromkeys(chosen)
    ]
    limit = min([target.max_positions, *(record.model.max_positions for record in records if record.model)])
    if request.contexts and max(request.contexts) + request.max_k + 1 > limit:
        raise ConfigError(f"--context {max(request.contexts)} does not fit the models' {limit} positions", "give less")
    room = limit - request.max_new_tokens - request.max_k - 1
    prompts = _fitting(workload.profiled, target, room)
    if not prompts:
        problem = f"no prompt fits the context: {max(room, 0)} tokens are left for it"
        raise ConfigError(problem, "use shorter prompts, or models with more positions")
    progress.say(_headline(target, workload, samplings, request, specs))
    return _Prepared(
        target=target,
        drafts=drafts,
        records=records,
        defaults=defaults,
        samplings=samplings,
        workload=workload,
        prompts=prompts,
        held_out=_fitting(workload.held_out, target, room),
        skipped=len(workload.profiled) - len(prompts),
    )


def _load(spec: str | None, device: torch.device, request: ProfileRequest, progress: Progress) -> LanguageModel:
    return load_model(
        spec, device=device, dtype=request.dtype, trust_remote_code=request.trust_remote_code, say=progress.say
    )


def _open_drafts(
    specs: list[str], target: LanguageModel, request: ProfileRequest, progress: Progress
) -> tuple[dict[str, Drafter], list[DraftRecord]]:
    drafts: dict[str, Drafter] = {}
    records: list[DraftRecord] = []
    for spec in specs:
        bounds, layers = ngram_bounds(spec), layer_count(spec)
        if bounds is not None:
            drafts[spec] = NgramDrafter(min_tokens=bounds[0], max_tokens=bounds[1])
            records.append(
                DraftRecord(spec=spec, method="ngram", model=None, min_tokens=bounds[0], max_tokens=bounds[1])
            )
            continue
        if layers is not None:
            model = first_layers(target, layers)
            records.append(DraftRecord(spec=spec, method="layer_skip", model=model_record(model), layers=layers))
        else:
            model = _load(spec, target.device, request, progress)
            require_same_tokenizer(target, model)
            records.append(DraftRecord(spec=spec, method="draft_model", model=model_record(model)))
        drafts[spec] = DraftModel(model, target if request.overlap else None)
    return drafts, records


def _fitting(prompts: Sequence[Prompt], target: LanguageModel, room: int) -> list[TapePrompt]:
    encoded = [
        TapePrompt(id=prompt.id, category=prompt.category, token_ids=prompt_token_ids(target, prompt.messages))
        for prompt in prompts
    ]
    return [prompt for prompt in encoded if len(prompt.token_ids) <= room]


def _headline(
    target: LanguageModel, workload: Workload, samplings: list[Sampling], request: ProfileRequest, specs: list[str]
) -> str:
    env = environment(target)
    held_out, temperatures = len(workload.held_out), ", ".join(f"{s.temperature:g}" for s in samplings)
    return (
        f"spectune {spectune.__version__} · {env.device}, {env.threads} threads, {env.dtype} · {target.name}\n"
        f"workload {workload.name}, {len(workload.prompts)} prompts in {len(workload.categories)} categories "
        f"({held_out} held out) · T = {temperatures} · K up to {request.max_k}\n"
        f"drafts {', '.join(specs)}{'' if request.drafts else ' (none given; n-gram needs no second model)'}"
    )


def _cost_settings(request: ProfileRequest, prepared: _Prepared, rows: list[TapeRow]) -> CostSettings:
    """Costs are taken on the recorded sequence of median length; the main context is a typical one of the tape."""
    by_length = sorted(rows, key=lambda row: len(row.prompt.token_ids) + len(row.token_ids))
    middle = by_length[len(by_length) // 2]
    text = [*middle.prompt.token_ids, *middle.token_ids]
    # tokens that a step finds cached, on average over all steps of the tape
    steps = sum(len(row.token_ids) for row in rows)
    cached = sum(len(row.token_ids) * (len(row.prompt.token_ids) + len(row.token_ids) / 2) for row in rows) / steps
    typical = max(round(cached), request.max_k + 1)
    loads = [
        Load(batch=batch, context_tokens=context)
        for batch in dict.fromkeys([1, *request.batches])
        for context in dict.fromkeys([typical, *request.contexts])
    ]
    return CostSettings(
        text_token_ids=text,
        loads=loads,
        max_k=request.max_k,
        samplings=prepared.samplings,
        budget_s=request.budget_s,
        seed=request.seed,
    )


def _manifest(
    request: ProfileRequest, prepared: _Prepared, rows: list[TapeRow], cost_settings: CostSettings, costs: pd.DataFrame
) -> dict[str, Any]:
    repeating = repeating_rows(rows)
    workload = prepared.workload
    return {
        "schema_version": SCHEMA_VERSION,
        "spectune_version": spectune.__version__,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": request.seed,
        "environment": environment(prepared.target).model_dump(),
        "workload": {
            "name": workload.name,
            "hash": workload.hash,
            "prompts": len(workload.prompts),
            "held_out": len(workload.held_out),
            "categories": workload.categories,
            "chat_template_digest": prepared.target.chat_template_digest,
        },
        "target": model_record(prepared.target).model_dump(),
        "drafts": [record.model_dump() for record in prepared.records],
        "settings": {
            "temperatures": [sampling.temperature for sampling in prepared.samplings],
            "default_temperature": prepared.defaults.temperature,
            "top_p": prepared.defaults.top_p,
            "top_k": prepared.defaults.top_k,
            "max_k": request.max_k,
            "max_new_tokens": request.max_new_tokens,
            "limit_tokens": request.limit_tokens,
            "loads": [load.model_dump() for load in cost_settings.loads],
            "budget_s": request.budget_s,
            "engine": ENGINE,
            "command": request.command,
        },
        "counts": {
            "continuations": len(rows),
            "tokens": sum(len(row.token_ids) for row in rows),
            "skipped_prompts": prepared.skipped,
            "ended": sum(row.end == "eos" for row in rows),
            "repeating": repeating,
        },
        "warnings": [notice.model_dump() for notice in _notices(prepared, rows, repeating, costs, request)],
    }


def _notices(
    prepared: _Prepared,
    rows: list[TapeRow],
    repeating: dict[str, int],
    costs: pd.DataFrame,
    request: ProfileRequest,
) -> list[Notice]:
    per_temperature = len(rows) // len(prepared.samplings)
    found = [*prepared.workload.notices]
    if prepared.skipped:
        message = f"{prepared.skipped} prompts are longer than the context and were skipped"
        found.append(Notice(code="context", message=message, advice="use models with more positions"))
    for temperature, count in repeating.items():
        if count > _MANY_REPEATS * per_temperature:
            message = f"{count} of {per_temperature} continuations at T = {temperature} repeat an 8-gram"
            advice = "n-gram looks better here than on varied text"
            found.append(Notice(code="repeats", message=message, advice=advice))
    cells = CostCells(costs)
    cell, width = cells.noisiest
    if width > KNOWN_WITHIN:
        known = f"within ±{width:.1%} only" if width < float("inf") else "too few times to tell its spread"
        noisy = sum(one > KNOWN_WITHIN for one in cells.half_widths.values())
        which = f"{noisy} of {len(cells.half_widths)} timings are not known within ±{KNOWN_WITHIN:.0%}"
        message = f"{which}; the worst, {cell}, {known}"
        advice = f"a longer --budget-s than {request.budget_s:g} settles it, on a quiet machine"
        found.append(Notice(code="noise", message=message, advice=advice))
    for name, value in prepared.defaults.not_applied.items():
        message = f"the target's generation_config sets {name} = {value}, which was not applied"
        found.append(Notice(code="sampling", message=message, advice="engines that apply it sample from another law"))
    return found
