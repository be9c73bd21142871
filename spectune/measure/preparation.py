"""Everything loaded and checked before anything is measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import spectune
from spectune.choice import LONGEST_MEASURED
from spectune.drafting import Drafter, open_draft
from spectune.drafting_spec import DEFAULT_DRAFT, draft_spec, measured_draft
from spectune.errors import ConfigError, ProfileError
from spectune.measure import Progress
from spectune.measure.dtype import fastest_in
from spectune.measure.environment import dtype_name, environment, model_record
from spectune.measure.source import LocalTarget, TextSource
from spectune.measure.tape import TapePrompt
from spectune.models.devices import resolve_device
from spectune.models.loading import LanguageModel, SamplingDefaults, load_model
from spectune.models.sampling import Sampling
from spectune.profile.manifest import DraftRecord, Notice
from spectune.profile.run import Run
from spectune.profile.store import load_profile, require_replaceable
from spectune.workload.prompts import Prompt, Workload, load_workload, too_few

_NAMED_PROMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """What to profile, where to save it, and whether another profile there may go."""

    run: Run
    output: Path
    command: str
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What texts come from, models in memory, prompts as tokens."""

    target: TextSource
    timed: LanguageModel  # whose forwards the costs are
    drafts: dict[str, Drafter]
    records: list[DraftRecord]
    samplings: list[Sampling]
    workload: Workload
    prompts: list[TapePrompt]
    held_out: list[TapePrompt]
    notices: list[Notice]
    skipped: int


def recorded_with(directory: Path) -> dict[str, Any]:
    """The options that a profile's texts depend on, as they were. Raises: ProfileError where it holds no texts."""
    manifest = load_profile(directory).manifest
    if manifest.run.no_text:
        raise ProfileError(f"{directory} holds no text to replay on", "give a profile made without --no-text")
    names = ("target", "workload", "max_new_tokens", "limit_tokens", "seed")
    settled = {"temperature": manifest.settings.temperatures, "dtype": manifest.environment.dtype}
    return {name: getattr(manifest.run, name) for name in names} | settled


def check_run(request: ProfileRequest) -> None:
    """Refuse what makes no sense before anything loads. Raises: ConfigError; ProfileError."""
    run = request.run
    if not 1 <= run.max_k <= LONGEST_MEASURED:
        raise ConfigError(f"--max-k is {run.max_k}", f"give a whole number from 1 to {LONGEST_MEASURED}")
    if run.max_new_tokens <= run.max_k:
        problem = f"--max-new-tokens {run.max_new_tokens} leaves no complete round at K = {run.max_k}"
        raise ConfigError(problem, f"give more than --max-k, best at least {8 * run.max_k}")
    if run.limit_tokens is not None and run.limit_tokens < run.max_new_tokens:
        problem = f"--limit-tokens {run.limit_tokens} is below --max-new-tokens {run.max_new_tokens}"
        raise ConfigError(problem, "requests end at the limit: record at most that many")
    for name, values in (("--batch", run.batch), ("--context", run.context)):
        if any(value < 1 for value in values):
            raise ConfigError(f"{name} is {min(values)}", "give whole numbers of at least 1")
    if any(context <= run.max_k for context in run.context):
        raise ConfigError(f"--context {min(run.context)} is not above --max-k {run.max_k}", "give more tokens")
    if not 0 < run.budget_s < float("inf"):
        raise ConfigError(f"--budget-s is {run.budget_s}", "give a positive number of seconds")
    if run.seed < 0:
        raise ConfigError(f"--seed is {run.seed}", "give a whole number of at least 0")
    for temperature in run.temperature:
        Sampling(temperature=temperature)
    require_replaceable(request.output)


def prepare(run: Run, progress: Progress, dtype: str | None = None) -> Prepared:
    """Load the models, read the workload, say what will be measured; `dtype` is what an earlier run settled on.

    Raises: SpectuneError.
    """
    workload = load_workload(run.workload)
    specs = list(dict.fromkeys(measured_draft(spec).text for spec in run.draft or [DEFAULT_DRAFT]))
    device, trusted = resolve_device(run.device), run.trust_remote_code
    load = partial(load_model, device=device, trust_remote_code=trusted, say=progress.say)
    dtype = dtype or run.dtype
    if dtype == "auto" and device.type == "cpu":
        model = fastest_in(lambda name: load(run.target, dtype=name), run.max_k, progress.say)
        dtype = dtype_name(model)
    else:
        model = load(run.target, dtype=dtype)
    load = partial(load, dtype=dtype)
    drafts = {spec: open_draft(draft_spec(spec), model, load) for spec in specs}
    target = LocalTarget(model)
    samplings = _samplings(run, target.facts.defaults)
    limit = min(one.max_positions for one in [model, *(draft.model for draft in drafts.values() if draft.model)])
    if run.context and max(run.context) + run.max_k + 1 > limit:
        raise ConfigError(f"--context {max(run.context)} does not fit the models' {limit} positions", "give less")
    room = limit - run.max_new_tokens - run.max_k - 1
    prompts, too_long = _fitting(workload.profiled, target, room)
    held_out, held_out_too_long = _fitting(workload.held_out, target, room)
    if not prompts:
        problem = f"no prompt fits the context: {max(room, 0)} tokens are left for it"
        raise ConfigError(problem, "use shorter prompts, or models with more positions")
    progress.say(_headline(model, workload, samplings, run, specs))
    if line := too_few(len(prompts)):
        progress.say(line)
    return Prepared(
        target=target,
        timed=model,
        drafts=drafts,
        records=[_record(spec, draft) for spec, draft in drafts.items()],
        samplings=samplings,
        workload=workload,
        prompts=prompts,
        held_out=held_out,
        notices=_too_long([*too_long, *held_out_too_long], room),
        skipped=len(too_long) + len(held_out_too_long),
    )


def _record(spec: str, draft: Drafter) -> DraftRecord:
    return DraftRecord(
        spec=spec, method=draft_spec(spec).method, model=None if draft.model is None else model_record(draft.model)
    )


def _samplings(run: Run, defaults: SamplingDefaults) -> list[Sampling]:
    """The temperatures asked for, by default greedy, 1 and the target's own; top-p and top-k as it ships them."""
    temperatures = run.temperature or sorted({0.0, 1.0, *([defaults.temperature] if defaults.temperature else [])})
    return [
        Sampling(temperature=temperature, top_p=defaults.top_p, top_k=defaults.top_k)
        for temperature in dict.fromkeys(temperatures)
    ]


def _fitting(
    prompts: Sequence[Prompt], target: TextSource, room: int
) -> tuple[list[TapePrompt], list[tuple[str, int]]]:
    """Prompts as tokens, and where those stand that are too long, with their tokens."""
    fitting, too_long = [], []
    for prompt in prompts:
        token_ids = target.prompt_token_ids(prompt.messages)
        if len(token_ids) <= room:
            fitting.append(TapePrompt(id=prompt.id, category=prompt.category, token_ids=token_ids))
        else:
            too_long.append((prompt.place, len(token_ids)))
    return fitting, too_long


def _too_long(places: Sequence[tuple[str, int]], room: int) -> list[Notice]:
    if not places:
        return []
    named = ", ".join(f"{place} ({tokens:,})" for place, tokens in places[:_NAMED_PROMPTS])
    more = f" and {len(places) - _NAMED_PROMPTS} more" if len(places) > _NAMED_PROMPTS else ""
    message = f"prompts longer than the {room:,} tokens that fit, skipped: {len(places)}: {named}{more}"
    return [Notice(code="context", message=message, advice="use models with more positions, or shorter prompts")]


def _headline(target: LanguageModel, workload: Workload, samplings: list[Sampling], run: Run, specs: list[str]) -> str:
    env = environment(target)
    held_out, temperatures = len(workload.held_out), ", ".join(f"{s.temperature:g}" for s in samplings)
    categories = f"{len(workload.categories)} categor{'y' if len(workload.categories) == 1 else 'ies'}"
    return (
        f"spectune {spectune.__version__} · {env.device}, {env.threads} threads, {env.dtype} · {target.name}\n"
        f"workload {workload.name}, {len(workload.prompts)} prompts in {categories} "
        f"({held_out} held out) · T = {temperatures} · K up to {run.max_k}\n"
        f"drafts {', '.join(specs)}{'' if run.draft else ' (none given; n-gram needs no second model)'}"
    )
