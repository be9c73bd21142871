"""Profiles of earlier schema versions as this one has them: a step for each, tested by a stored profile each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spectune.profile import schemas

Object = dict[str, Any]
_EAGER = "eager"
LEFT_OUT = "confirmation"  # the notice of a confirming run that this version cannot use


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """From one version to the next: the tables it had, and how they and profile.json become the next one's."""

    measured: Mapping[str, pa.Schema]
    confirmed: Mapping[str, pa.Schema]
    manifest: Callable[[Object], Object]
    table: Callable[[str, pa.Table, Object], pa.Table]  # its name, itself, the manifest as it was


def _without(schema: pa.Schema, *names: str) -> list[pa.Field]:
    return [field for field in schema if field.name not in names]


_RUNS_4 = pa.schema(
    [
        *_without(schemas.RUNS, "run", "continuation"),
        *(pa.field(name, pa.int32(), nullable=False) for name in ("tokens", "rounds", "accepted", "proposed")),
        pa.field("seconds", pa.float64(), nullable=False),
    ]
)
_CONFIRMED_4 = {"confirmed_tape": schemas.TAPE, "confirmed_acceptance": schemas.ACCEPTANCE, "confirmed_runs": _RUNS_4}

# ------------------------------------------------------------------------------------------------ 3 to 4

_TAPE_3 = pa.schema(
    [
        *_without(schemas.TAPE, "tokens", "logprobs"),
        schemas.TAPE.field("logprobs").with_nullable(False),
        pa.field("entropies", pa.list_(pa.float32()), nullable=False),
        pa.field("top1_probs", pa.list_(pa.float32()), nullable=False),
    ]
)
_ACCEPTANCE_3 = pa.schema(
    [
        *_without(schemas.ACCEPTANCE, "proposed_tokens", "matched_tokens", "start_ranks"),
        pa.field("overlaps", pa.list_(pa.float32())),
        *(schemas.ACCEPTANCE.field(name) for name in ("proposed_tokens", "matched_tokens")),
    ]
)
_COSTS_3 = pa.schema(_without(schemas.COSTS, "engine", "mode", "draft_steps"))
_RUNS_3 = pa.schema(
    [
        _RUNS_4.field("draft"),
        pa.field("num_speculative_tokens", pa.int32(), nullable=False),
        *_without(_RUNS_4, "draft", "depth", "nodes", "engine", "mode"),
    ]
)
_ROUNDS_3 = ("overhead", "round")  # whose tokens were K


def _manifest_of_3(raw: Object) -> Object:
    drafts = [{name: draft[name] for name in ("spec", "method", "model")} for draft in raw["drafts"]]
    run = {name: value for name, value in raw["run"].items() if name != "overlap"}
    return {**raw, "schema_version": 4, "drafts": drafts, "run": run}


def _table_of_3(name: str, table: pa.Table, raw: Object) -> pa.Table:
    count, engine = table.num_rows, raw["settings"]["engine"]
    if name.endswith("tape"):
        return _as(schemas.TAPE, table, tokens=pc.list_value_length(table["logprobs"]))
    if name.endswith("acceptance"):
        return _as(schemas.ACCEPTANCE, table, start_ranks=[None] * count)
    added = {"engine": [engine] * count, "mode": [_EAGER] * count}
    if name == "costs":
        k, whole = table["tokens"], pc.is_in(table["part"], pa.array(_ROUNDS_3))
        steps, tokens = pc.if_else(whole, k, None), pc.add(k, pc.cast(whole, k.type))
        return _as(schemas.COSTS, table, **added, draft_steps=steps, tokens=tokens)
    if name.endswith("runs"):
        depth = table["num_speculative_tokens"]
        return _as(_RUNS_4, table, **added, depth=depth, nodes=depth)
    return table


# ------------------------------------------------------------------------------------------------ 4 to 5


def _manifest_of_4(raw: Object) -> Object:
    """Its confirming run, of which sums alone were kept, is left behind."""
    if not raw.get("confirmation"):
        return {**raw, "schema_version": 5}
    message = "the confirming run is of an older spectune, which did not keep the seconds of its rounds: left out"
    notice = {"code": LEFT_OUT, "message": message, "advice": "run spectune confirm again"}
    return {**raw, "schema_version": 5, "confirmation": None, "warnings": [*raw["warnings"], notice]}


def _table_of_4(name: str, table: pa.Table, raw: Object) -> pa.Table:
    del name, raw
    return table


def _as(schema: pa.Schema, table: pa.Table, **columns: Any) -> pa.Table:
    """The table's columns under a schema, with these in place of, or beside, its own."""
    every = dict(zip(table.column_names, table.columns, strict=True)) | columns
    return pa.Table.from_pydict({name: every[name] for name in schema.names}, schema=schema)


STEPS: Mapping[int, Step] = {
    3: Step(
        measured={"tape": _TAPE_3, "acceptance": _ACCEPTANCE_3, "costs": _COSTS_3, "held_out": schemas.HELD_OUT},
        confirmed={"confirmed_tape": _TAPE_3, "confirmed_acceptance": _ACCEPTANCE_3, "confirmed_runs": _RUNS_3},
        manifest=_manifest_of_3,
        table=_table_of_3,
    ),
    4: Step(measured=schemas.MEASURED, confirmed=_CONFIRMED_4, manifest=_manifest_of_4, table=_table_of_4),
}


def earlier(version: object) -> bool:
    """Whether a profile of that version can be brought to this one."""
    return version in STEPS


def stored_schemas(version: int) -> tuple[Mapping[str, pa.Schema], Mapping[str, pa.Schema]]:
    """The tables of a version: those that were measured, those of a confirming run."""
    step = STEPS.get(version)
    return (step.measured, step.confirmed) if step else (schemas.MEASURED, schemas.CONFIRMED)


def migrated(raw: Object, tables: Mapping[str, pa.Table]) -> tuple[Object, dict[str, pa.Table]]:
    """profile.json and tables of any version known, as this version has them."""
    tables = dict(tables)
    while raw["schema_version"] in STEPS:
        step = STEPS[raw["schema_version"]]
        tables = {name: step.table(name, table, raw) for name, table in tables.items()}
        raw = step.manifest(raw)
    return raw, tables
