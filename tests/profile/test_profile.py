"""The artefact: what is written is read back; anything else is refused with a remedy."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spectune.errors import ProfileError
from spectune.profile.store import load_profile, save_profile
from tests.profiles import make_profile, manifest


@pytest.fixture
def saved(tmp_path):
    make_profile(tmp_path / "p", {0.0: 0.7}, prompts=12)
    return tmp_path / "p"


def edit(directory, change) -> None:
    path = directory / "profile.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_a_profile_comes_back_as_it_was_written(saved) -> None:
    profile = load_profile(saved)
    again = make_profile(saved.with_name("q"), {0.0: 0.7}, prompts=12)
    assert profile.costs.equals(again.costs)
    assert profile.manifest == again.manifest
    assert (saved / "tape.parquet").read_bytes() == (saved.with_name("q") / "tape.parquet").read_bytes()
    assert not list(saved.parent.glob(".*"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda m: m.update(schema_version=6), "schema version 6"),
        (lambda m: m.update(schema_version=2), "older spectune: schema version 2"),
        (lambda m: m.update(schema_version=0), "schema_version"),
        (lambda m: m.update(extra=1), "extra"),
        (lambda m: m["settings"].update(max_k="4"), "settings.max_k"),
        (lambda m: m["settings"].update(max_k=1), "not those that the tables were measured with"),
        (lambda m: m["settings"].update(max_k=10**12), "settings.max_k"),
        (lambda m: m["settings"].update(temperatures=[]), "settings.temperatures"),
        (lambda m: m["settings"].update(temperatures=[0.0, 0.0]), "stands there twice"),
        (lambda m: m["settings"].update(temperatures=[0.0, 1.0]), "not those that the tables were measured with"),
        (lambda m: m["settings"].update(top_p=float("nan")), "NaN"),
        (lambda m: m["settings"].update(top_p=float("inf")), "Infinity"),
        (lambda m: m["workload"].update(hash="abc"), "workload.hash"),
        (lambda m: m["run"].update(max_q=1), "run.max_q"),
        (lambda m: m["run"].update(max_k="many"), "run.max_k"),
        (lambda m: m.pop("target"), "target"),
        (lambda m: m["tables"].update(tape="0" * 64), "cut short or was changed"),
    ],
)
def test_a_manifest_that_is_not_as_written_is_refused(saved, change, expected) -> None:
    edit(saved, change)
    with pytest.raises(ProfileError, match=expected) as caught:
        load_profile(saved)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["profile.json", "tape.parquet", "acceptance.parquet", "costs.parquet"])
@pytest.mark.parametrize("damage", ["missing", "empty", "half"])
def test_missing_and_truncated_files_are_refused(saved, name, damage) -> None:
    path = saved / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: 0 if damage == "empty" else path.stat().st_size // 2])
    with pytest.raises(ProfileError):
        load_profile(saved)


def rewrite(directory, table, change) -> None:
    """Change a table and its recorded digest, as a careless tool would."""
    profile = load_profile(directory)
    frame = change(getattr(profile, table).to_pandas())
    schema = pq.read_schema(directory / f"{table}.parquet")
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False, schema=schema), directory / f"{table}.parquet")
    import hashlib

    digest = hashlib.sha256((directory / f"{table}.parquet").read_bytes()).hexdigest()
    edit(directory, lambda m: m["tables"].update({table: digest}))


def test_nan_in_a_table_is_refused(saved) -> None:
    def spoil(frame):
        frame.loc[3, "seconds"] = np.inf
        return frame

    rewrite(saved, "costs", spoil)
    with pytest.raises(ProfileError, match="seconds holds NaN or infinity"):
        load_profile(saved)


def test_evidence_that_does_not_fit_the_tape_is_refused(saved) -> None:
    rewrite(saved, "acceptance", lambda frame: frame.iloc[1:])
    with pytest.raises(ProfileError, match="same continuations"):
        load_profile(saved)


def test_another_directory_is_never_overwritten(tmp_path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_text("cat")
    (tmp_path / "file").write_text("x")
    for name in ("photos", "file", "file/below"):
        with pytest.raises(ProfileError):
            save_profile({}, {}, tmp_path / name)
    assert (tmp_path / "photos" / "cat.png").read_text() == "cat"


def test_a_bad_profile_never_replaces_a_good_one(saved) -> None:
    profile = load_profile(saved)
    names = ("tape", "acceptance", "costs", "held_out")
    tables = {name: getattr(profile, name).to_pandas() for name in names}
    tables["acceptance"] = tables["acceptance"].iloc[1:]
    with pytest.raises(ProfileError):
        save_profile(manifest((0.0,), 4, [{"spec": "small", "method": "draft_model"}]), tables, saved)
    assert load_profile(saved).manifest == profile.manifest
    assert not list(saved.parent.glob(".*"))


def test_what_is_no_profile_is_said_to_be_none(tmp_path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ProfileError, match=r"no profile\.json"):
            load_profile(path)
    (tmp_path / "profile.json").mkdir()
    with pytest.raises(ProfileError, match="cannot be read"):
        load_profile(tmp_path)
    shutil.rmtree(tmp_path / "profile.json")
    (tmp_path / "profile.json").write_text("[]")
    with pytest.raises(ProfileError, match="not a JSON object"):
        load_profile(tmp_path)
