"""`spectune profile` from end to end: workload, tape, acceptance, costs, profile."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any

import pandas as pd

import spectune
from spectune.choice import chain
from spectune.errors import ProfileError
from spectune.measure import OWN_ENGINE, Progress
from spectune.measure.acceptance import acceptance_table
from spectune.measure.cost import CostSettings, cost_table
from spectune.measure.environment import environment, other_work
from spectune.measure.preparation import Prepared, ProfileRequest, check_run, prepare
from spectune.measure.recording import batches, rows_per_shard
from spectune.measure.shards import Shards, left_behind, require_same_run
from spectune.measure.tape import continuations, held_out_table, repeating_rows, tape_table, without_text
from spectune.profile import schemas
from spectune.profile.costs import KNOWN_WITHIN, CostCells
from spectune.profile.manifest import LASTING, DraftRecord, Environment, Load, ModelRecord, Notice
from spectune.profile.run import Run, differences
from spectune.profile.store import Profile, load_profile, save_profile
from spectune.profile.tables import to_arrow

log = logging.getLogger("spectune")

_MANY_REPEATS = 0.1
_RANDOM_NATS = 7.0  # a token of the prompt, to the target; text that people write has 2 to 5


def measure_profile(request: ProfileRequest, progress: Progress, run_log: Path | None = None) -> Profile:
    """Measure everything and save it; what an interrupted run of equal settings finished is not done again.

    A profile of equal settings is returned as it is, one of others stays. Raises: SpectuneError.
    """
    check_run(request)
    there = None if request.force else _there(request)
    if not request.force:
        require_same_run(request.output, differences(Run(), request.run))
    if line := other_work():
        progress.say(line)
    with _timed("load"):
        prepared = prepare(request.run, progress, _settled_dtype(there, request))
    recorded = load_profile(Path(request.run.tape)) if request.run.tape else None
    facts, machine = prepared.target.facts, environment(prepared.timed)
    identity = _identity(request.run, prepared.workload.hash, facts.record, prepared.records, machine, recorded)
    shards = Shards(request.output, identity, request.command, request.force or there is not None)
    if there is not None:
        _require_equal(there, identity, request)
        progress.say(f"{request.output} is measured with these settings already; --force measures anew")
        if shards.resumed:  # it was killed at its very end
            shards.discard()
        return there
    if shards.resumed:
        progress.say("going on with what an interrupted run of these settings has finished")
    try:
        tape, acceptance, settings, costs = _measured(request.run, prepared, shards, progress)
    except KeyboardInterrupt:
        progress.say(shards.told())
        raise
    manifest = _manifest(request, prepared, tape, settings, costs)
    tables = {"tape": tape, "acceptance": acceptance, "costs": costs, "held_out": held_out_table(prepared.held_out)}
    if request.run.no_text:
        tables = {name: without_text(table) for name, table in tables.items()}
    saved = save_profile(manifest, tables, request.output, run_log)
    shards.discard()
    return saved


def _measured(
    run: Run, prepared: Prepared, shards: Shards, progress: Progress
) -> tuple[pd.DataFrame, pd.DataFrame, CostSettings, pd.DataFrame]:
    """The tape, drafts' evidence on it, and costs with what they were measured at."""
    with _timed("record"):
        tape = _tape(run, prepared, shards, progress)
    with _timed("replay"):
        texts = continuations(tape, prepared.samplings)
        acceptance = acceptance_table(prepared.target, prepared.drafts, texts, chain(run.max_k), progress, shards)
    settings = _cost_settings(run, prepared, tape)
    with _timed("costs"):
        costs = shards.kept(
            "costs", schemas.COSTS, lambda: cost_table(prepared.timed, prepared.drafts, settings, progress)
        )
    return tape, acceptance, settings, costs


def _settled_dtype(there: Profile | None, request: ProfileRequest) -> str | None:
    """What `--dtype auto` came to in a run that is gone on with; None where there is none."""
    if there is not None:
        return there.manifest.environment.dtype
    machine = {} if request.force else left_behind(request.output).get("identity", {}).get("machine", {})
    dtype: str | None = machine.get("dtype")
    return dtype


def _there(request: ProfileRequest) -> Profile | None:
    """The profile that stands at the output. Raises: ProfileError where it is of other settings."""
    if not (request.output / "profile.json").exists():
        return None
    try:
        there = load_profile(request.output)
    except ProfileError as error:
        raise ProfileError(error.problem, "--force measures anew in its place; or choose another -o") from error
    other = differences(there.manifest.run, request.run)
    if other:
        problem = f"{request.output} holds a profile of other settings: {', '.join(other)}"
        raise ProfileError(problem, "--force measures anew in its place; or choose another -o")
    return there


def _require_equal(there: Profile, identity: Mapping[str, Any], request: ProfileRequest) -> None:
    manifest = there.manifest
    before = _identity(
        manifest.run, manifest.workload.hash, manifest.target, manifest.drafts, manifest.environment, there
    )
    before |= {"spectune version": manifest.spectune_version}
    other = [name for name in identity if identity[name] != before[name]]
    if other:
        problem = f"{request.output} holds a profile of another {' and '.join(other)}"
        raise ProfileError(problem, "--force measures anew in its place; or choose another -o")


def _identity(
    run: Run,
    workload_hash: str,
    target: ModelRecord,
    drafts: Sequence[DraftRecord],
    machine: Environment,
    recorded: Profile | None,  # whose texts are replayed on, where they are another profile's
) -> dict[str, Any]:
    """What must be equal for a tape to be the same, byte by byte."""
    return {
        "run": differences(Run(), run),
        "spectune version": spectune.__version__,
        "workload": workload_hash,
        "target": target.model_dump(),
        "draft": [draft.model_dump() for draft in drafts],
        "machine": machine.model_dump(include=set(LASTING)),
        # no two texts have the same log p, which a profile without text has too
        "tape": sha256(repr(recorded.tape["logprobs"].to_pylist()).encode()).hexdigest()
        if recorded and run.tape
        else None,
    }


def _tape(run: Run, prepared: Prepared, shards: Shards, progress: Progress) -> pd.DataFrame:
    """Recorded batch by batch, each a shard; in the order prompts × temperatures."""
    if run.tape is not None:
        return _recorded_before(Path(run.tape), run, prepared)
    copies, prompts = len(prepared.samplings), prepared.prompts
    progress.start("record", len(prompts) * copies * run.max_new_tokens, "tokens")
    limited = run.max_new_tokens == run.limit_tokens
    parts = []
    for number, chosen in enumerate(batches(prompts, copies, _rows(prepared, run))):
        name = f"tape-{number:05d}"
        if shards.has(name):
            progress.advance(len(chosen) * copies * run.max_new_tokens)
        rows = [index * copies + place for index in chosen for place in range(copies)]
        mine = [prompts[index] for index in chosen]
        parts.append(
            shards.kept(
                name,
                schemas.TAPE,
                lambda mine=mine, rows=rows: tape_table(  # type: ignore[misc]
                    prepared.target.continued(mine, prepared.samplings, run.max_new_tokens, run.seed, progress),
                    limited,
                    rows,
                ),
            )
        )
    return pd.concat(parts).sort_values("continuation", ignore_index=True)


def _rows(prepared: Prepared, run: Run) -> int:
    return rows_per_shard(prepared.timed.device, run.max_new_tokens)


def _recorded_before(directory: Path, run: Run, prepared: Prepared) -> pd.DataFrame:
    """The tape of another profile, which must be of this target on these prompts.

    Raises: ProfileError naming what differs.
    """
    there = load_profile(directory)
    settings, target = there.manifest.settings, prepared.target.facts.record
    defaults = prepared.target.facts.defaults
    tape: pd.DataFrame = there.tape.to_pandas()
    prompts = [prompt for prompt in prepared.prompts for _ in prepared.samplings]
    same = {
        "target": target.model_dump(exclude={"name"}) == there.manifest.target.model_dump(exclude={"name"}),
        "temperatures": [sampling.temperature for sampling in prepared.samplings] == settings.temperatures,
        "top_p or top_k": (defaults.top_p, defaults.top_k) == (settings.top_p, settings.top_k),
        "length of texts": run.max_new_tokens == settings.max_new_tokens,
        "prompts": [prompt.id for prompt in prompts] == tape["prompt_id"].tolist(),
    }
    for name, equal in same.items():
        if not equal:
            raise ProfileError(f"{directory} was recorded with other {name}", "record anew, without --tape")
    if any(list(ids) != prompt.token_ids for ids, prompt in zip(tape["prompt_token_ids"], prompts, strict=True)):
        problem = f"the target reads the prompts of {directory} as other tokens now; did its chat template change?"
        raise ProfileError(problem, "record anew, without --tape")
    return tape


@contextmanager
def _timed(stage: str) -> Iterator[None]:
    began = perf_counter()
    log.info("%s begins", stage)
    yield
    log.info("%s took %.1f s", stage, perf_counter() - began)


def _cost_settings(run: Run, prepared: Prepared, tape: pd.DataFrame) -> CostSettings:
    """Costs are taken on the recorded sequence of median length; the main context is a typical one of the tape."""
    written = tape["tokens"]
    middle = tape.loc[(tape["prompt_tokens"] + written).sort_values(kind="stable").index[len(tape) // 2]]
    text = [int(token) for token in (*middle["prompt_token_ids"], *middle["token_ids"])]
    # tokens that a step finds cached, on average over all steps of the tape
    cached = float((written * (tape["prompt_tokens"] + written / 2)).sum() / written.sum())
    typical = max(round(cached), run.max_k + 1)
    loads = [
        Load(batch=batch, context_tokens=context)
        for batch in dict.fromkeys([1, *run.batch])
        for context in dict.fromkeys([typical, *run.context])
    ]
    return CostSettings(
        text_token_ids=text,
        loads=loads,
        max_k=run.max_k,
        samplings=prepared.samplings,
        budget_s=run.budget_s,
        seed=run.seed,
        prompt_tokens=sorted({int(tape["prompt_tokens"].quantile(q, "nearest")) for q in (0, 0.5, 1)}),
    )


def _manifest(
    request: ProfileRequest, prepared: Prepared, tape: pd.DataFrame, cost_settings: CostSettings, costs: pd.DataFrame
) -> dict[str, Any]:
    repeating = repeating_rows(tape)
    workload, run, defaults = prepared.workload, request.run, prepared.target.facts.defaults
    return {
        "schema_version": schemas.SCHEMA_VERSION,
        "spectune_version": spectune.__version__,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": run.seed,
        "environment": environment(prepared.timed).model_dump(),
        "workload": {
            "name": workload.name,
            "hash": workload.hash,
            "prompts": len(workload.prompts),
            "held_out": len(workload.held_out),
            "categories": workload.categories,
            "chat_template_digest": prepared.target.facts.chat_template_digest,
        },
        "target": prepared.target.facts.record.model_dump(),
        "drafts": [record.model_dump() for record in prepared.records],
        "settings": {
            "temperatures": [sampling.temperature for sampling in prepared.samplings],
            "default_temperature": defaults.temperature,
            "top_p": defaults.top_p,
            "top_k": defaults.top_k,
            "max_k": run.max_k,
            "max_new_tokens": run.max_new_tokens,
            "limit_tokens": run.limit_tokens,
            "loads": [load.model_dump() for load in cost_settings.loads],
            "budget_s": run.budget_s,
            "engine": OWN_ENGINE,
            "command": request.command,
        },
        "counts": {
            "continuations": len(tape),
            "tokens": int(tape["tokens"].sum()),
            "skipped_prompts": prepared.skipped,
            "ended": int((tape["end"] == "eos").sum()),
            "repeating": repeating,
        },
        "run": asdict(run),
        "warnings": [notice.model_dump() for notice in _notices(prepared, tape, repeating, costs, run)],
    }


def _notices(
    prepared: Prepared, tape: pd.DataFrame, repeating: dict[str, int], costs: pd.DataFrame, run: Run
) -> list[Notice]:
    per_temperature = len(tape) // len(prepared.samplings)
    found = [*prepared.workload.notices, *prepared.notices, *_random_looking(tape), *_halved(tape, prepared, run)]
    for temperature, count in repeating.items():
        if count > _MANY_REPEATS * per_temperature:
            message = f"{count} of {per_temperature} continuations at T = {temperature} repeat an 8-gram"
            advice = "n-gram looks better here than on varied text"
            found.append(Notice(code="repeats", message=message, advice=advice))
    cells = CostCells.of(to_arrow(costs, schemas.COSTS))
    cell, width = cells.noisiest
    if width > KNOWN_WITHIN:
        known = f"within ±{width:.1%} only" if width < float("inf") else "too few times to tell its spread"
        noisy = sum(one > KNOWN_WITHIN for one in cells.half_widths.values())
        which = f"{noisy} of {len(cells.half_widths)} timings are not known within ±{KNOWN_WITHIN:.0%}"
        message = f"{which}; the worst, {cell}, {known}"
        advice = f"a longer --budget-s than {run.budget_s:g} settles it, on a quiet machine"
        found.append(Notice(code="noise", message=message, advice=advice))
    for name, value in prepared.target.facts.defaults.not_applied.items():
        message = f"the target's generation_config sets {name} = {value}, which was not applied"
        found.append(Notice(code="sampling", message=message, advice="engines that apply it sample from another law"))
    return found


def _random_looking(tape: pd.DataFrame) -> list[Notice]:
    """Prompts that the target itself finds as surprising as noise."""
    prompts = tape.drop_duplicates("prompt_id")
    count = int((prompts["prompt_nats"] > _RANDOM_NATS).sum())
    if not count:
        return []
    message = f"{count} of {len(prompts)} prompts look random to the target: over {_RANDOM_NATS:g} nats a token"
    return [Notice(code="random", message=message, advice="profile with text that your users send")]


def _halved(tape: pd.DataFrame, prepared: Prepared, run: Run) -> list[Notice]:
    """Texts that were recorded in smaller batches than meant."""
    copies = len(prepared.samplings)
    together = batches(prepared.prompts, copies, _rows(prepared, run))
    meant = {index: len(chosen) * copies for chosen in together for index in chosen}
    count = int((tape["batch_rows"] < (tape["continuation"] // copies).map(meant)).sum())
    if not count:
        return []
    message = f"memory ran out while recording; {count} texts were recorded in smaller batches"
    return [Notice(code="memory", message=message, advice="a machine with more memory records faster")]
