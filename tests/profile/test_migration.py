"""Profiles of earlier schema versions are read as this one's: the stored one of each version, and what is refused."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from spectune.errors import ProfileError
from spectune.profile import schemas
from spectune.profile.migration import LEFT_OUT, STEPS
from spectune.profile.store import load_profile, save_confirmation

STORED = Path(__file__).parent / "stored"


def manifest(directory: Path) -> dict:
    return json.loads((directory / "profile.json").read_text())


@pytest.mark.parametrize("version", STEPS)
def test_every_version_that_can_be_read_is_stored(version) -> None:
    assert manifest(STORED / f"schema-{version}")["schema_version"] == version
    profile = load_profile(STORED / f"schema-{version}")
    assert profile.manifest.schema_version == schemas.SCHEMA_VERSION
    for name, schema in schemas.MEASURED.items():
        assert getattr(profile, name).schema.equals(schema)


def test_of_schema_3_rounds_get_their_steps_and_tokens_and_nothing_else_changes() -> None:
    """Against the tables as they are stored, read without the product's own reader."""
    import pyarrow.parquet as pq

    before = {name: pq.read_table(STORED / "schema-3" / f"{name}.parquet").to_pandas() for name in schemas.MEASURED}
    after = load_profile(STORED / "schema-3")
    costs = after.costs.to_pandas()
    whole = before["costs"]["part"].isin(["overhead", "round"])
    assert (costs.loc[whole, "draft_steps"] == before["costs"].loc[whole, "tokens"]).all()
    assert (costs.loc[whole, "tokens"] == before["costs"].loc[whole, "tokens"] + 1).all()
    assert (costs.loc[~whole, "tokens"] == before["costs"].loc[~whole, "tokens"]).all()
    assert costs.loc[~whole, "draft_steps"].isna().all()
    assert set(zip(costs["engine"], costs["mode"], strict=True)) == {("spectune", "eager")}
    assert (costs["seconds"] == before["costs"]["seconds"]).all()
    assert after.tape["tokens"].to_pylist() == [len(ids) for ids in before["tape"]["token_ids"]]
    for name in ("logprobs", "token_ids", "prompt_token_ids"):
        assert after.tape[name].to_pylist() == [list(row) for row in before["tape"][name]]
    assert [draft.spec for draft in after.manifest.drafts] == ["draft", "ngram:min=1,max=4", "layers:1"]


@pytest.mark.parametrize("version", [3, 4])
def test_a_confirming_run_without_the_seconds_of_its_rounds_is_left_out_and_told(version) -> None:
    directory = STORED / f"schema-{version}"
    assert manifest(directory)["confirmation"]
    profile = load_profile(directory)
    assert (profile.confirmed, profile.manifest.confirmation) == (None, None)
    (told,) = (notice for notice in profile.manifest.warnings if notice.code == LEFT_OUT)
    assert told.advice == "run spectune confirm again"


def copied(tmp_path, version: int = 3) -> Path:
    return Path(shutil.copytree(STORED / f"schema-{version}", tmp_path / "p"))


@pytest.mark.parametrize("version", STEPS)
def test_confirming_writes_it_as_this_version(tmp_path, version) -> None:
    directory = copied(tmp_path, version)
    before, stored = load_profile(directory), manifest(directory)
    draft = before.manifest.drafts[0].spec
    run = {"run": 0, "draft": None, "depth": 0, "nodes": 0, "temperature": 0.0, "engine": "spectune", "mode": "eager"}
    tape = before.tape.to_pandas().head(1)
    runs = pd.DataFrame([{**run, "prompt_id": tape["prompt_id"][0], "continuation": tape["continuation"][0]}])
    evidence = before.acceptance.to_pandas()
    tables = {
        "confirmed_tape": tape,
        "confirmed_acceptance": evidence[evidence["continuation"] == tape["continuation"][0]],
        "confirmed_runs": pd.concat([runs, runs.assign(run=1, draft=draft, depth=1, nodes=1)]),
        "confirmed_rounds": pd.DataFrame({"run": [0, 1], "cycle": 0, "proposed": 0, "accepted": 0, "seconds": 1.0}),
    }
    after = save_confirmation(directory, {**stored["confirmation"], "seed": 5}, tables)
    assert manifest(directory)["schema_version"] == schemas.SCHEMA_VERSION
    assert after.manifest.confirmation.seed == 5
    assert LEFT_OUT not in {notice.code for notice in after.manifest.warnings}
    for name in schemas.MEASURED:
        assert getattr(after, name).equals(getattr(before, name))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda m: m.pop("drafts"), "drafts"),
        (lambda m: m.pop("tables"), "tables"),
        (lambda m: m.update(settings=3), "profile.json"),
        (lambda m: m.update(drafts=["ngram"]), "profile.json"),
        (lambda m: m["drafts"][0].update(method="magic"), "method"),
        (lambda m: m["settings"].update(max_k=2), "not those that the tables were measured with"),
        (lambda m: m.update(extra=1), "extra"),
        (lambda m: m.update(schema_version=True), "schema version True"),
        (lambda m: m.update(schema_version=4), "other columns"),
        (lambda m: m["confirmation"].pop("tables"), "tables"),
        (lambda m: m.update(confirmation=[1]), "profile.json"),
    ],
)
def test_what_is_not_as_schema_3_was_written_is_refused(tmp_path, change, expected) -> None:
    directory = copied(tmp_path)
    value = manifest(directory)
    change(value)
    (directory / "profile.json").write_text(json.dumps(value))
    with pytest.raises(ProfileError, match=expected) as caught:
        load_profile(directory)
    assert caught.value.exit_code == 2
