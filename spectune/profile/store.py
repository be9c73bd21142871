"""The artefact: a directory of profile.json and parquet tables of raw evidence.

Raw samples and counts, never ratios or fits. Read strictly: unknown keys, other versions, NaN and infinity
are refused. Written under a temporary name, read back, then renamed.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from spectune.errors import ProfileError, reason_of
from spectune.profile.manifest import SCHEMA_VERSION, Load, Manifest
from spectune.profile.tables import labels, lengths, read_table, write_table

if TYPE_CHECKING:
    import pandas as pd

_MANIFEST = "profile.json"
_AGAIN = "run spectune profile again"

TAPE_SCHEMA = pa.schema(
    [
        pa.field("continuation", pa.int32(), nullable=False),
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("category", pa.string(), nullable=False),
        pa.field("temperature", pa.float64(), nullable=False),
        pa.field("end", pa.string(), nullable=False),  # eos, limit (the workload's) or cut (the tape's)
        pa.field("batch_rows", pa.int32()),  # texts decoded side by side with it; null where decoded elsewhere
        pa.field("prompt_tokens", pa.int32(), nullable=False),
        pa.field("prompt_nats", pa.float32()),  # surprise of the target at the prompt's last tokens, mean of each
        pa.field("prompt_token_ids", pa.list_(pa.int32())),  # null in a profile without text, as are the next
        pa.field("token_ids", pa.list_(pa.int32())),
        pa.field("logprobs", pa.list_(pa.float32()), nullable=False),  # nats, after the sampling transform
        pa.field("entropies", pa.list_(pa.float32()), nullable=False),  # nats, of the model's law at temperature 1
        pa.field("top1_probs", pa.list_(pa.float32()), nullable=False),  # of the model's law at temperature 1
    ]
)
ACCEPTANCE_SCHEMA = pa.schema(
    [
        pa.field("draft", pa.string(), nullable=False),
        pa.field("continuation", pa.int32(), nullable=False),
        pa.field("draft_logprobs", pa.list_(pa.float32())),  # nats, after the sampling transform
        pa.field("argmax_hits", pa.list_(pa.bool_())),  # the draft's likeliest token is the one written
        pa.field("ranks", pa.list_(pa.int32())),  # 1 = likeliest
        pa.field("overlaps", pa.list_(pa.float32())),  # Σ min(p, q)
        pa.field("proposed_tokens", pa.list_(pa.int16())),
        pa.field("matched_tokens", pa.list_(pa.int16())),
    ]
)
COSTS_SCHEMA = pa.schema(
    [
        pa.field("part", pa.string(), nullable=False),  # cost_p, cost_q, overhead, round (a whole one) or reference
        pa.field("draft", pa.string()),  # null where the part does not depend on it
        pa.field("temperature", pa.float64()),  # null where the part does not depend on it
        pa.field("tokens", pa.int32(), nullable=False),  # n for cost_p and cost_q, K for overhead and round
        pa.field("batch", pa.int32(), nullable=False),
        pa.field("context_tokens", pa.int32(), nullable=False),
        pa.field("measurement_pass", pa.int32(), nullable=False),  # cells of one pass ran next to each other
        pa.field("seconds", pa.float64(), nullable=False),
    ]
)
HELD_OUT_SCHEMA = pa.schema(
    [
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("category", pa.string(), nullable=False),
        pa.field("prompt_token_ids", pa.list_(pa.int32())),  # null in a profile without text
    ]
)
RUNS_SCHEMA = pa.schema(
    [
        pa.field("draft", pa.string()),  # null for plain decoding
        pa.field("num_speculative_tokens", pa.int32(), nullable=False),  # 0 for plain decoding
        pa.field("temperature", pa.float64(), nullable=False),
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("tokens", pa.int32(), nullable=False),  # kept: up to the end or the limit
        pa.field("rounds", pa.int32(), nullable=False),
        pa.field("accepted", pa.int32(), nullable=False),
        pa.field("proposed", pa.int32(), nullable=False),
        pa.field("seconds", pa.float64(), nullable=False),  # of the rounds; reading the prompt is left out
    ]
)
_TABLES = {"tape": TAPE_SCHEMA, "acceptance": ACCEPTANCE_SCHEMA, "costs": COSTS_SCHEMA, "held_out": HELD_OUT_SCHEMA}
_CONFIRMED_TABLES = {
    "confirmed_tape": TAPE_SCHEMA,
    "confirmed_acceptance": ACCEPTANCE_SCHEMA,
    "confirmed_runs": RUNS_SCHEMA,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """Real decoding of held-out prompts: the timed runs, plain decoding's own text, every draft's evidence on it."""

    tape: pa.Table
    acceptance: pa.Table
    runs: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Manifest and raw evidence; columns as in the schemas of this module."""

    manifest: Manifest
    tape: pa.Table
    acceptance: pa.Table
    costs: pa.Table
    held_out: pa.Table
    confirmed: Confirmed | None = None

    @property
    def main_load(self) -> Load:
        """Where every n and the loop's overhead were measured."""
        return self.manifest.settings.loads[0]


def save_profile(
    manifest: Mapping[str, Any],
    tables: Mapping[str, "pd.DataFrame"],
    directory: Path,
    log: Path | None = None,
) -> Profile:
    """Write, read back, rename; an earlier profile at `directory` gives way only to a whole one.

    `manifest` lacks `tables`, whose digests are computed here. Raises: ProfileError where the target is
    something else than a profile, or cannot be written.
    """
    require_replaceable(directory)
    with _replacing(directory, "choose another directory with -o") as partial:
        partial.mkdir(parents=True)
        digests = _write_tables(tables, _TABLES, partial)
        _write_manifest({**manifest, "tables": digests}, partial)
        if log is not None:
            shutil.copyfile(log, partial / "run.log")
    return load_profile(directory)


def save_confirmation(
    directory: Path, confirmation: Mapping[str, Any], tables: Mapping[str, "pd.DataFrame"]
) -> Profile:
    """Add a confirmation to the profile at `directory`, in place of an earlier one; the rest stays as it is.

    `confirmation` is a ConfirmationRecord without its `tables`, which are confirmed_tape, confirmed_acceptance and
    confirmed_runs. Raises: ProfileError where it cannot be written.
    """
    manifest = _manifest_object(directory)
    with _replacing(directory, "copy the profile to where you may write") as partial:
        shutil.copytree(directory, partial)
        digests = _write_tables(tables, _CONFIRMED_TABLES, partial)
        _write_manifest({**manifest, "confirmation": {**confirmation, "tables": digests}}, partial)
    return load_profile(directory)


@contextmanager
def _replacing(directory: Path, remedy: str) -> Iterator[Path]:
    """A folder to write a profile in; read back whole, it takes the place of `directory`, else nothing does."""
    directory = directory.resolve()
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        yield partial
        load_profile(partial)
        _put_in_place(partial, directory)
    except OSError as error:
        problem = f"{directory} cannot be written: {reason_of(error)}"
        raise ProfileError(problem, remedy) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put_in_place(partial: Path, directory: Path) -> None:
    """Move a whole profile to where it belongs; a folder that is there already stays the same folder, since
    someone may stand in it. Its manifest comes last: with other tables beside it, it is refused.
    """
    if not directory.exists():
        partial.rename(directory)
        return
    files = sorted(partial.iterdir(), key=lambda file: file.name == _MANIFEST)
    for file in files:
        file.replace(directory / file.name)
    for table in directory.glob("*.parquet"):
        if table.name not in {file.name for file in files}:
            table.unlink()


def _write_tables(
    tables: Mapping[str, "pd.DataFrame"], schemas: Mapping[str, pa.Schema], folder: Path
) -> dict[str, str]:
    return {name: write_table(tables[name], schema, folder / f"{name}.parquet") for name, schema in schemas.items()}


def _write_manifest(manifest: Mapping[str, Any], folder: Path) -> None:
    text = json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False)
    (folder / _MANIFEST).write_text(text + "\n", "utf-8")


def require_replaceable(directory: Path) -> None:
    """Raises: ProfileError where `directory` cannot be written, or is anything but absent, empty or a profile."""
    if directory.exists() and not directory.is_dir():
        raise ProfileError(f"{directory} is a file", "choose a directory with -o")
    if directory.is_dir() and any(directory.iterdir()) and not (directory / _MANIFEST).is_file():
        raise ProfileError(f"{directory} holds something else than a profile", "choose another directory with -o")
    parent = next(folder for folder in directory.absolute().parents if folder.exists())
    try:
        tempfile.TemporaryDirectory(dir=parent).cleanup()
    except OSError as error:
        reason = reason_of(error)
        raise ProfileError(
            f"nothing can be written in {parent}: {reason}", "choose another directory with -o"
        ) from error


def load_profile(directory: Path) -> Profile:
    """Read a profile, strictly. Raises: ProfileError with the remedy for whatever is not as written."""
    raw = _manifest_object(directory)
    version = raw.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        problem = f"{directory} has schema version {version}; this spectune reads {SCHEMA_VERSION}"
        raise ProfileError(problem, "upgrade spectune")
    if isinstance(version, int) and 1 <= version < SCHEMA_VERSION:
        problem = f"{directory} is of an older spectune: schema version {version}, this one reads {SCHEMA_VERSION}"
        raise ProfileError(problem, _AGAIN)
    try:
        manifest = Manifest.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ProfileError(f"{directory}/{_MANIFEST}: {where}: {first['msg'].lower()}", _AGAIN) from error
    tables = _read_tables(directory, _TABLES, manifest.tables)
    _require_consistent(directory, {draft.spec for draft in manifest.drafts}, tables["tape"], tables["acceptance"])
    _require_as_set(directory, manifest, tables)
    return Profile(manifest=manifest, **tables, confirmed=_confirmed(directory, manifest))


def _confirmed(directory: Path, manifest: Manifest) -> Confirmed | None:
    if manifest.confirmation is None:
        return None
    tables = _read_tables(directory, _CONFIRMED_TABLES, manifest.confirmation.tables)
    tape, acceptance, runs = tables.values()
    _require_consistent(directory, set(runs["draft"].drop_null().to_pylist()), tape, acceptance)
    return Confirmed(tape=tape, acceptance=acceptance, runs=runs)


def _read_tables(directory: Path, schemas: Mapping[str, pa.Schema], digests: Mapping[str, str]) -> dict[str, pa.Table]:
    return {
        name: read_table(directory / f"{name}.parquet", schema, digests.get(name)) for name, schema in schemas.items()
    }


def _manifest_object(directory: Path) -> dict[str, Any]:
    path = directory / _MANIFEST
    try:
        value = json.loads(path.read_text("utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError as error:
        raise ProfileError(
            f"{directory} is not a profile: no {_MANIFEST}", "give the directory of a profile"
        ) from error
    except OSError as error:
        problem = f"{path} cannot be read: {reason_of(error)}"
        raise ProfileError(problem, "give the directory of a profile") from error
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{path} is not valid JSON (cut short?): {error}", _AGAIN) from error
    if not isinstance(value, dict):
        raise ProfileError(f"{path} is not a JSON object", _AGAIN)
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _require_as_set(directory: Path, manifest: Manifest, tables: Mapping[str, pa.Table]) -> None:
    """Settings that no digest covers are those that were measured with."""
    settings, costs = manifest.settings, tables["costs"]
    tokens = labels(costs["tokens"])[labels(costs["part"]) == "cost_p"]
    deepest = max(tokens, default=0) - 1
    recorded = set(tables["tape"]["temperature"].unique().to_pylist())
    if recorded != set(settings.temperatures) or deepest != settings.max_k:
        problem = f"{directory}/{_MANIFEST}: its settings are not those that the tables were measured with"
        raise ProfileError(problem, _AGAIN)


def _require_consistent(directory: Path, drafts: set[str], tape: pa.Table, evidence: pa.Table) -> None:
    """Every continuation has its evidence for every draft, of the same length."""
    continuations, specs, rows = (
        labels(column) for column in (tape["continuation"], evidence["draft"], evidence["continuation"])
    )
    written = dict(zip(continuations, lengths(tape["logprobs"]), strict=True))
    expected = {(draft, continuation) for draft in drafts for continuation in written}
    if set(zip(specs, rows, strict=True)) != expected or evidence.num_rows != len(expected):
        raise ProfileError(f"{directory}: tape and acceptance do not hold the same continuations", _AGAIN)
    whole = np.array([written[continuation] for continuation in rows])
    for name in ("draft_logprobs", "argmax_hits", "ranks", "proposed_tokens"):
        there = labels(evidence[name].is_valid()).astype(np.bool_)
        wrong = there & (lengths(evidence[name]) != whole)
        if wrong.any():
            raise ProfileError(f"{directory}: {name} of continuation {rows[wrong][0]} has another length", _AGAIN)
