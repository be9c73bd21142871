"""The artefact: a directory of profile.json and parquet tables of raw evidence.

Raw samples and counts, never ratios or fits. Read strictly: unknown keys, other versions, NaN and infinity
are refused. Written under a temporary name, read back, then renamed.
"""

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import ValidationError

from spectune.choice import chain
from spectune.errors import ProfileError, reason_of
from spectune.profile import schemas
from spectune.profile.manifest import Load, Manifest
from spectune.profile.migration import LEFT_OUT, earlier, migrated, stored_schemas
from spectune.profile.tables import AGAIN, integers, labels, lengths, read_table, store, write_table

if TYPE_CHECKING:
    import pandas as pd

_MANIFEST = "profile.json"
UNFINISHED_MARKER = "run.json"
_Frames = Mapping[str, "pd.DataFrame"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """Real decoding of held-out prompts: what was written, drafts' evidence on it, the runs and each of their rounds.

    Every draft's evidence is on plain decoding's texts; on what a speculative run wrote, its own draft's alone.
    """

    tape: pa.Table
    acceptance: pa.Table
    runs: pa.Table
    rounds: pa.Table

    @property
    def plain_continuations(self) -> list[int]:
        """Of the tape: plain decoding's."""
        rows = zip(self.runs["continuation"].to_pylist(), self.runs["draft"].to_pylist(), strict=True)
        return list(dict.fromkeys(continuation for continuation, draft in rows if draft is None))


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


def save_profile(manifest: Mapping[str, Any], tables: _Frames, directory: Path, log: Path | None = None) -> Profile:
    """Write, read back, rename; an earlier profile at `directory` gives way only to a whole one.

    `manifest` lacks `tables`, whose digests are computed here. Raises: ProfileError where the target is
    something else than a profile, or cannot be written.
    """
    require_replaceable(directory)
    with _replacing(directory, "choose another directory with -o") as partial:
        partial.mkdir(parents=True)
        _write_manifest({**manifest, "tables": _write_tables(tables, schemas.MEASURED, partial)}, partial)
        if log is not None:
            shutil.copyfile(log, partial / "run.log")
    return load_profile(directory)


def save_confirmation(directory: Path, confirmation: Mapping[str, Any], tables: _Frames) -> Profile:
    """Add a confirmation to the profile at `directory`, in place of an earlier one; the rest stays as it is.

    `confirmation` is a ConfirmationRecord without its `tables`, which are those of schemas.CONFIRMED. A profile of an
    earlier schema version is written anew. Raises: ProfileError where it cannot be.
    """
    stored, profile = _manifest_object(directory), load_profile(directory)
    manifest = profile.manifest.model_dump(mode="json")
    manifest["warnings"] = [notice for notice in manifest["warnings"] if notice["code"] != LEFT_OUT]
    with _replacing(directory, "copy the profile to where you may write") as partial:
        shutil.copytree(directory, partial)
        if earlier(stored["schema_version"]):
            paths = {name: partial / f"{name}.parquet" for name in schemas.MEASURED}
            manifest["tables"] = {name: store(getattr(profile, name), path) for name, path in paths.items()}
        digests = _write_tables(tables, schemas.CONFIRMED, partial)
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
        raise ProfileError(f"{directory} cannot be written: {reason_of(error)}", remedy) from error
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


def _write_tables(tables: _Frames, schemas: Mapping[str, pa.Schema], folder: Path) -> dict[str, str]:
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
    for folder in (parent, *([directory] if directory.is_dir() else [])):
        try:
            tempfile.TemporaryDirectory(dir=folder).cleanup()
        except OSError as error:
            problem = f"nothing can be written in {folder}: {reason_of(error)}"
            raise ProfileError(problem, "choose another directory with -o") from error


def load_profile(directory: Path) -> Profile:
    """Read a profile, strictly; one of an earlier schema version as this one has it.

    Raises: ProfileError with the remedy for whatever is not as written.
    """
    stored = _manifest_object(directory)
    measured, confirmed = stored_schemas(_known_version(stored.get("schema_version"), directory))
    with _as_profile_errors(directory):
        record = stored.get("confirmation") or {}
        tables = _read_tables(directory, measured, stored["tables"])
        tables |= _read_tables(directory, confirmed, record["tables"]) if record else {}
        raw, tables = migrated(stored, tables)
        manifest = Manifest.model_validate(raw)
    seen = (
        Confirmed(**{key.removeprefix("confirmed_"): tables[key] for key in schemas.CONFIRMED})
        if manifest.confirmation
        else None
    )
    profile = Profile(manifest=manifest, confirmed=seen, **{name: tables[name] for name in schemas.MEASURED})
    specs = [draft.spec for draft in manifest.drafts]
    expected = set(product(specs, profile.tape["continuation"].to_pylist()))
    _require_consistent(directory, expected, profile.tape, profile.acceptance)
    if seen:
        runs = zip(seen.runs["draft"].to_pylist(), seen.runs["continuation"].to_pylist(), strict=True)
        expected = {*product(specs, seen.plain_continuations), *(run for run in runs if run[0] is not None)}
        _require_consistent(directory, expected, seen.tape, seen.acceptance)
        if set(seen.rounds["run"].to_pylist()) != set(seen.runs["run"].to_pylist()):
            raise ProfileError(f"{directory}: confirmed runs and rounds do not go together", AGAIN)
    _require_as_set(directory, profile)
    return profile


def _known_version(version: object, directory: Path) -> int:
    current = schemas.SCHEMA_VERSION
    if not isinstance(version, int) or version < 1:
        raise ProfileError(f"{directory}/{_MANIFEST}: schema_version: {version!r} is none", AGAIN)
    if version > current:
        problem = f"{directory} has schema version {version}; this spectune reads {current}"
        raise ProfileError(problem, "upgrade spectune")
    if version < current and not earlier(version):
        problem = f"{directory} is of an older spectune: schema version {version}, this one reads {current}"
        raise ProfileError(problem, AGAIN)
    return version


@contextmanager
def _as_profile_errors(directory: Path) -> Iterator[None]:
    """What is not as a manifest is written, in one line."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ProfileError(f"{directory}/{_MANIFEST}: {where}: {first['msg'].lower()}", AGAIN) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ProfileError(f"{directory}/{_MANIFEST} lacks what belongs there: {error}", AGAIN) from error


def _read_tables(folder: Path, tables: Mapping[str, pa.Schema], digests: Mapping[str, str]) -> dict[str, pa.Table]:
    return {name: read_table(folder / f"{name}.parquet", schema, digests.get(name)) for name, schema in tables.items()}


def _manifest_object(directory: Path) -> dict[str, Any]:
    path = directory / _MANIFEST
    try:
        value = json.loads(path.read_text("utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError as error:
        if command := _command_to_finish(directory):
            raise ProfileError(f"{directory} is not finished", f"run the same command again: {command}") from error
        problem = f"{directory} is not a profile: no {_MANIFEST}"
        raise ProfileError(problem, "give the directory of a profile") from error
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {reason_of(error)}", "give the directory of a profile") from error
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{path} is not valid JSON (cut short?): {error}", AGAIN) from error
    if not isinstance(value, dict):
        raise ProfileError(f"{path} is not a JSON object", AGAIN)
    return value


def unfinished_folder(directory: Path) -> Path:
    """Where the parts of a profile-to-be wait for the rest."""
    directory = directory.resolve()
    return directory.with_name(f".{directory.name}.unfinished")


def _command_to_finish(directory: Path) -> str | None:
    try:
        return str(json.loads((unfinished_folder(directory) / UNFINISHED_MARKER).read_text("utf-8"))["command"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _require_as_set(directory: Path, profile: Profile) -> None:
    """Settings that no digest covers are those that were measured with."""
    settings, costs = profile.manifest.settings, profile.costs
    verified = integers(costs["tokens"])[labels(costs["part"]) == "cost_p"]
    recorded = set(profile.tape["temperature"].unique().to_pylist())
    if recorded != set(settings.temperatures) or max(verified, default=0) != chain(settings.max_k).verified_tokens:
        problem = f"{directory}/{_MANIFEST}: its settings are not those that the tables were measured with"
        raise ProfileError(problem, AGAIN)


def _require_consistent(directory: Path, expected: set[tuple[str, int]], tape: pa.Table, evidence: pa.Table) -> None:
    """There is evidence for these drafts on these continuations, of the same length."""
    specs, rows = labels(evidence["draft"]), labels(evidence["continuation"])
    written = dict(zip(labels(tape["continuation"]), integers(tape["tokens"]).tolist(), strict=True))
    told = list(zip(specs, rows, strict=True))
    if set(told) != expected or len(told) != len(expected) or not {row for _, row in expected} <= written.keys():
        raise ProfileError(f"{directory}: tape and acceptance do not hold the same continuations", AGAIN)
    _require_whole(directory, tape, ("token_ids", "logprobs"), integers(tape["tokens"]))
    names = ("draft_logprobs", "argmax_hits", "ranks", "proposed_tokens", "matched_tokens", "start_ranks")
    _require_whole(directory, evidence, names, np.array([written[continuation] for continuation in rows]))


def _require_whole(directory: Path, table: pa.Table, names: Iterable[str], tokens: NDArray[np.int64]) -> None:
    for name in names:
        wrong = labels(table[name].is_valid()).astype(np.bool_) & (lengths(table[name]) != tokens)
        if wrong.any():
            row = labels(table["continuation"])[wrong][0]
            raise ProfileError(f"{directory}: {name} of continuation {row} has another length", AGAIN)
