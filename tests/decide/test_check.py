"""`spectune check`: what changed is found and attributed, noise is not, and what cannot be compared is refused."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from spectune.cli.app import run
from spectune.decide.check import Check, Finding, check
from spectune.errors import ProfileError
from spectune.profile import schemas
from spectune.profile.run import read_run
from spectune.profile.store import Profile, load_profile, save_profile
from spectune.profile.tables import to_arrow
from spectune.report.ci import status_text
from tests.profiles import NGRAM, make_profile

SPECS = ("small", NGRAM)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("check")


@pytest.fixture(scope="module")
def baseline(folder) -> Profile:
    return make_profile(
        folder / "base", {0.0: 0.8, 1.0: 0.7}, ngram_acceptance=0.5, prompts=54, passes=30, verify_s=0.12
    )


def with_costs(profile: Profile, change: Callable[[pd.DataFrame], pd.Series], seed: int | None = None) -> Profile:
    """The profile with its seconds times what `change` makes of each row; measured anew with noise where seeded."""
    costs = profile.costs.to_pandas()
    factor = change(costs)
    if seed is not None:
        factor = factor * np.exp(np.random.default_rng(seed).normal(0, 0.01, len(costs)))
    return replace(profile, costs=to_arrow(costs.assign(seconds=costs["seconds"] * factor), schemas.COSTS))


def where(costs: pd.DataFrame, factor: float, **values: object) -> pd.Series:
    chosen = pd.Series(True, index=costs.index)
    for name, value in values.items():
        chosen &= costs[name].isin(value) if isinstance(value, list) else costs[name] == value
    return pd.Series(np.where(chosen, factor, 1.0), index=costs.index)


def with_evidence(profile: Profile, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Profile:
    return replace(profile, acceptance=to_arrow(change(profile.acceptance.to_pandas()), schemas.ACCEPTANCE))


def statuses(seen: Check) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for one in seen.findings:
        if one.headline:
            found.setdefault(one.metric, set()).add(one.status)
    return found


def finding(seen: Check, metric: str, draft: str = "small", temperature: float = 0.0, place=None) -> Finding:
    (one,) = (
        f for f in seen.findings
        if (f.metric, f.draft, f.temperature, f.place) == (metric, draft, temperature, place)
    )  # fmt: skip
    return one


def test_the_same_profile_has_not_changed(baseline) -> None:
    seen = check(baseline, baseline)
    assert seen.verdict == "ok"
    assert seen.causes == seen.differences == []
    assert {one.change for one in seen.findings} == {0.0}
    assert len([one for one in seen.findings if one.headline]) == 5 * 2 * 2


def test_a_machine_that_is_slower_as_a_whole_is_no_regression(baseline) -> None:
    slower = with_costs(baseline, lambda costs: where(costs, 1.4, part=["cost_p", "cost_q", "reference"]))
    seen = check(baseline, slower)
    assert seen.verdict == "ok"
    assert abs(finding(seen, "cost_p_1").change) < 1e-9


@pytest.mark.parametrize(
    ("change", "metrics", "causes"),
    [
        (lambda costs: where(costs, 1.2, part="cost_p"), {"cost_p_1", "cost_p_verify"}, {"cost_p"}),
        (lambda costs: where(costs, 1.2, part="cost_p", tokens=[2, 3, 4, 5]), {"cost_p_verify", "speedup"},
         {"cost_p", "speedup"}),
        (lambda costs: where(costs, 4.0, part="cost_q", draft="small"), {"cost_q", "speedup"}, {"cost_q", "speedup"}),
        (lambda costs: where(costs, 12.0, part="overhead", draft_steps=[1, 2, 4]), {"speedup"},
         {"speedup", "overhead"}),
    ],
)  # fmt: skip
def test_a_cost_that_grew_is_found_and_attributed(baseline, change, metrics, causes) -> None:
    seen = check(baseline, with_costs(baseline, change, seed=1))
    assert seen.verdict == "regressed"
    assert {metric for metric, found in statuses(seen).items() if "regressed" in found} == metrics
    assert set(seen.causes) == causes
    if "speedup" in metrics:
        told = finding(seen, "speedup")
        assert told.split.part == "a round"
        assert "most of it is a round, which takes" in status_text(told)
        assert told.split.speedup == pytest.approx(1 + told.change, rel=0.01)


def test_a_slower_target_is_not_praised_for_a_cheaper_draft(baseline) -> None:
    seen = check(baseline, with_costs(baseline, lambda costs: where(costs, 1.3, part="cost_p"), seed=1))
    assert finding(seen, "cost_q").status == "ok"
    assert finding(seen, "cost_p_1").status == finding(seen, "cost_p_verify").status == "regressed"
    assert seen.causes[0] == "cost_p"


def test_faster_is_improved_and_passes(baseline) -> None:
    seen = check(baseline, with_costs(baseline, lambda costs: where(costs, 0.8, part="cost_p"), seed=1))
    assert seen.verdict == "ok"
    assert finding(seen, "cost_p_1").status == "improved"


def worse(row: pd.Series, share: float, rng: np.random.Generator) -> object:
    if row["draft"] != "small":
        return row["argmax_hits"]
    return np.asarray(row["argmax_hits"]) & (rng.random(len(row["argmax_hits"])) > share)


def test_a_drop_of_acceptance_is_found_on_a_shared_tape_only_where_it_is(baseline) -> None:
    rng = np.random.default_rng(0)
    fallen = with_evidence(baseline, lambda e: e.assign(argmax_hits=[worse(row, 0.1, rng) for _, row in e.iterrows()]))
    seen = check(baseline, fallen)
    assert seen.verdict == "regressed"
    assert finding(seen, "acceptance_length").status == "regressed"
    assert finding(seen, "acceptance_length", NGRAM).change == 0.0
    assert finding(seen, "acceptance_length", temperature=1.0).change == 0.0  # its hits do not count there
    places = [one.place for one in seen.findings if one.status == "regressed" and not one.headline]
    assert {"code", "chat", "creative"} <= set(places)
    one = finding(seen, "acceptance_length")
    assert one.low < one.change < one.high < 0
    assert finding(seen, "speedup").split.part == "tokens a round"


def test_a_cliff_stands_at_its_position(baseline) -> None:
    """A draft broken from the second position on."""
    broken = with_evidence(
        baseline,
        lambda e: e.assign(
            matched_tokens=[matched if matched is None else np.minimum(matched, 1) for matched in e["matched_tokens"]]
        ),
    )
    seen = check(baseline, broken)
    assert finding(seen, "acceptance_length", NGRAM).status == "regressed"
    by_place = {
        one.place: one for one in seen.findings
        if one.metric == "conditional_acceptance_rate" and (one.draft, one.temperature) == (NGRAM, 0.0)
    }  # fmt: skip
    assert by_place["position 1"].status == "ok"
    assert (by_place["position 2"].status, by_place["position 2"].change) == ("regressed", -1.0)


def test_paired_prompts_are_told_apart_where_unpaired_ones_are_not(baseline, folder) -> None:
    rng = np.random.default_rng(0)
    fallen = with_evidence(baseline, lambda e: e.assign(argmax_hits=[worse(row, 0.03, rng) for _, row in e.iterrows()]))
    tape = fallen.tape.to_pandas()
    others = replace(
        fallen, tape=to_arrow(tape.assign(prompt_id=tape["prompt_id"].str.replace("00", "ff")), fallen.tape.schema)
    )
    paired, unpaired = (finding(check(baseline, one), "acceptance_length") for one in (fallen, others))
    assert paired.change == unpaired.change
    assert paired.high - paired.low < 0.5 * (unpaired.high - unpaired.low)


def test_other_machines_are_compared_by_ratios(baseline) -> None:
    other = replace(
        with_costs(baseline, lambda costs: where(costs, 3.0, part=["cost_p", "cost_q", "overhead"])),
        manifest=baseline.manifest.model_copy(
            update={"environment": baseline.manifest.environment.model_copy(update={"hardware": "another cpu"})}
        ),
    )
    seen = check(baseline, other)
    assert seen.verdict == "ok"
    assert seen.differences == ["hardware: toy cpu, now another cpu"]
    found = statuses(seen)
    assert found["cost_p_1"] == found["speedup"] == {"not-comparable"}
    assert found["cost_p_verify"] == found["cost_q"] == found["acceptance_length"] == {"ok"}
    dearer = with_costs(other, lambda costs: where(costs, 1.6, part="cost_p", tokens=[2, 3, 4, 5]))
    assert statuses(check(baseline, dearer))["cost_p_verify"] == {"regressed"}


def test_noise_is_no_verdict_and_says_how_much_more_would_be_one(baseline, folder) -> None:
    few = make_profile(folder / "few", {0.0: 0.8}, prompts=14, noise=0.3, passes=8)
    many = make_profile(folder / "few2", {0.0: 0.8}, prompts=14, noise=0.3, passes=9)
    seen = check(few, many)
    assert seen.verdict == "too-noisy"
    one = finding(seen, "cost_p_1")
    assert one.status == "too-noisy"
    assert one.more == pytest.approx(((one.high - one.low) / 2 / 0.05) ** 2)


def test_each_figure_may_be_allowed_another_change(baseline) -> None:
    grown = with_costs(baseline, lambda costs: where(costs, 1.2, part="cost_p", tokens=[1]), seed=1)
    assert check(baseline, grown).verdict == "regressed"
    assert finding(check(baseline, grown, by_metric={"cost_p_1": 0.3}), "cost_p_1").status == "ok"
    assert check(baseline, grown, parts=["acceptance"]).verdict == "ok"


def simulated(baseline: Profile, seed: int, cost: float = 1.0) -> Profile:
    """Another run of the same on the same machine: its own samples, its own speed, what no run shows of itself."""
    rng = np.random.default_rng(seed)
    costs = baseline.costs.to_pandas()
    cells = costs.groupby(["part", "draft", "temperature", "tokens"], dropna=False).ngroup().to_numpy()
    medians = costs.groupby(cells)["seconds"].transform("median")
    speed = np.exp(rng.normal(0, 0.13))
    fifth = (costs["measurement_pass"] * 5 // (costs["measurement_pass"].max() + 1)).to_numpy()
    felt = np.exp(rng.normal(0, 0.02) + rng.normal(0, 0.02, 5))[fifth]  # by all but the reference
    noise = np.exp(rng.normal(0, 0.04, len(costs)))
    changed = where(costs, cost, part="cost_p", tokens=[2, 3, 4, 5])
    seconds = medians * speed * np.where(costs["part"] == "reference", 1.0, felt) * noise * changed
    return replace(baseline, costs=to_arrow(costs.assign(seconds=seconds), schemas.COSTS))


def test_runs_of_the_same_raise_few_alarms_and_dearer_verifying_is_found(baseline) -> None:
    """More pairs are in docs/log.md; here enough to see an allowance that is broken."""
    one = replace(baseline, manifest=baseline.manifest.model_copy(update={"drafts": baseline.manifest.drafts[:1]}))
    pairs = [(simulated(one, 2 * n), 2 * n + 1) for n in range(12)]
    alarms = [check(before, simulated(one, seed)).verdict for before, seed in pairs]
    assert alarms.count("regressed") <= 1
    found = [check(before, simulated(one, seed, cost=1.4)) for before, seed in pairs]
    assert sum("speedup" in seen.causes for seen in found) >= 11


def test_runs_show_how_much_runs_differ_and_more_of_them_settle_what_one_leaves_open(baseline) -> None:
    """Where runs differ by more than their fifths tell, four and more show it; a dearer cost stands out of twelve."""
    one = replace(baseline, manifest=baseline.manifest.model_copy(update={"drafts": baseline.manifest.drafts[:1]}))

    def runs(seed: int, cost: float = 1.0) -> list[Profile]:
        rng = np.random.default_rng(seed)
        felt = np.exp(rng.normal(0, 0.045, 12))
        return [with_costs(one, lambda c, f=f: where(c, f, part="cost_p") * where(c, cost, part="cost_p"), seed=seed)
                for f in felt]  # fmt: skip

    before, after, dearer = runs(1), runs(2), runs(3, 1.1)
    same = check(before[0], after[0], also_baseline=before[1:], also_candidate=after[1:])
    assert same.verdict != "regressed"
    logs = [[np.log(np.median(p.costs.to_pandas().query("part == 'cost_p' and tokens == 1")["seconds"])) for p in side]
            for side in (before, after)]  # fmt: skip
    error = np.sqrt(sum(np.var(side, ddof=1) / 12 for side in logs))
    seen = finding(same, "cost_p_1")
    assert np.log1p(seen.change) == pytest.approx(np.mean(logs[1]) - np.mean(logs[0]), abs=0.004)
    assert np.log1p(seen.high) - np.log1p(seen.low) == pytest.approx(2 * 2.07 * error, rel=0.15)
    seen = check(before[0], dearer[0], also_baseline=before[1:], also_candidate=dearer[1:])
    assert finding(seen, "cost_p_1").status == finding(seen, "cost_p_verify").status == "regressed"


def test_a_further_run_of_something_else_is_refused(baseline, saved, folder, capsys) -> None:
    other = baseline.manifest.environment.model_copy(update={"hardware": "another"})
    elsewhere = replace(baseline, manifest=baseline.manifest.model_copy(update={"environment": other}))
    with pytest.raises(ProfileError, match="not one of the same: hardware"):
        check(baseline, baseline, also_baseline=[elsewhere])
    assert run(["check", str(saved["base"]), str(saved["base"]), "--also-candidate", str(saved["base"])]) == 2
    assert "the same costs are given twice" in capsys.readouterr().err
    assert run(["check", str(saved["base"]), str(saved["base"]), "--also-candidate", str(folder / "absent")]) == 2


# ------------------------------------------------------------------------------------------------ the command line


@pytest.fixture(scope="module")
def saved(folder, baseline) -> dict[str, Path]:
    """Profiles on disk: the baseline and a candidate whose verifying got dearer."""
    manifest = {**json.loads((folder / "base" / "profile.json").read_text())}
    costs = with_costs(baseline, lambda costs: where(costs, 1.3, part="cost_p", tokens=[2, 3, 4, 5]), seed=2)
    tables = {name: getattr(costs, name).to_pandas() for name in ("tape", "acceptance", "costs", "held_out")}
    save_profile(manifest, tables, folder / "dear")
    return {"base": folder / "base", "dear": folder / "dear"}


def test_the_exit_code_and_json_tell_a_machine(saved, capsys) -> None:
    assert run(["check", str(saved["base"]), str(saved["base"]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "ok"
    assert run(["check", str(saved["base"]), str(saved["dear"]), "--json"]) == 1
    seen = json.loads(capsys.readouterr().out)
    assert seen["verdict"] == "regressed"
    assert all(
        {"metric", "part", "draft", "temperature", "status", "change", "low", "high"} <= set(one)
        for one in seen["findings"]
    )
    assert run(["check", str(saved["base"]), str(saved["dear"]), "--only", "acceptance"]) == 0


def test_a_person_reads_what_and_how_much(saved, capsys) -> None:
    assert run(["check", str(saved["base"]), str(saved["dear"])]) == 1
    out = capsys.readouterr().out
    assert out.startswith("Regressed (cost_p, speedup): cost_p(5) +")
    assert "regressed" in out
    assert "T = 0 · small · K = 4" in out


def test_junit_and_the_github_job_say_the_same(saved, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    assert run(["check", str(saved["base"]), str(saved["dear"]), "--json", "--junit", str(tmp_path / "j.xml")]) == 1
    captured = capsys.readouterr()
    seen = json.loads(captured.out)
    regressed = [one for one in seen["findings"] if one["headline"] and one["status"] == "regressed"]
    suite = ElementTree.parse(tmp_path / "j.xml").getroot()
    assert int(suite.get("failures")) == len(suite.findall("testcase/failure")) == len(regressed)
    assert int(suite.get("tests")) == sum(one["headline"] for one in seen["findings"])
    errors = [
        line for line in captured.err.splitlines() if line.startswith("::error title=spectune check%3A regressed::")
    ]
    assert len(errors) == len(regressed)
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("### spectune check: regressed\n")
    assert "| cost_p(5) |" in summary


def changed(directory: Path, to: Path, change: Callable[[dict], None]) -> Path:
    import shutil

    shutil.copytree(directory, to)
    value = json.loads((to / "profile.json").read_text())
    change(value)
    (to / "profile.json").write_text(json.dumps(value))
    return to


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda m: m["workload"].update(hash="1" * 64), "another workload, 000000000000 and 111111111111"),
        (lambda m: m["target"].update(digest="2" * 64), "another target"),
        (lambda m: m["environment"].update(dtype="bfloat16"), "another dtype, float32 and bfloat16"),
        (lambda m: m.update(schema_version=2), "older spectune"),
        (lambda m: m["tables"].update(tape="3" * 64), "cut short or was changed"),
    ],
)
def test_what_cannot_be_compared_is_one_clear_line(saved, tmp_path, capsys, change, expected) -> None:
    other = changed(saved["base"], tmp_path / "other", change)
    assert run(["check", str(saved["base"]), str(other), "--json"]) == 2
    captured = capsys.readouterr()
    problem, remedy = captured.err.splitlines()
    assert problem.startswith("error: ")
    assert expected in problem
    assert remedy.startswith("try: ")
    assert json.loads(captured.out)["verdict"] == "not-comparable"


@pytest.mark.parametrize(
    ("acceptance", "max_k", "expected"),
    [
        ({0.0: 0.8}, 4, "another temperatures, 0 1 and 0"),
        ({0.0: 0.8, 1.0: 0.7}, 3, "measured up to K = 3, the baseline up to 4"),
    ],
)
def test_profiles_of_other_settings_are_not_compared(saved, tmp_path, capsys, acceptance, max_k, expected) -> None:
    make_profile(tmp_path / "other", acceptance, ngram_acceptance=0.5, prompts=54, max_k=max_k)
    assert run(["check", str(saved["base"]), str(tmp_path / "other")]) == 2
    assert expected in capsys.readouterr().err


def test_a_draft_or_a_table_that_is_missing_is_named(saved, folder, tmp_path, capsys) -> None:
    make_profile(tmp_path / "one", {0.0: 0.8, 1.0: 0.7}, prompts=54)
    assert run(["check", str(saved["base"]), str(tmp_path / "one")]) == 2
    assert f"the candidate lacks the draft {NGRAM}" in capsys.readouterr().err
    (tmp_path / "one" / "costs.parquet").unlink()
    assert run(["check", str(saved["base"]), str(tmp_path / "one")]) == 2
    assert "lacks costs.parquet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--max-regression", "0"], "--max-regression is 0"),
        (["--max-regression", "nan"], "--max-regression is nan"),
        (["--only", "speed"], "--only speed is no part"),
    ],
)
def test_wrong_options_are_refused(saved, capsys, options, expected) -> None:
    assert run(["check", str(saved["base"]), str(saved["base"]), *options]) == 2
    assert expected in capsys.readouterr().err


def test_the_run_file_allows_by_figure_and_only_known_ones(saved, tmp_path, capsys) -> None:
    (tmp_path / "run.yaml").write_text("max_regression: {cost_p_verify: 0.5, speedup: 0.5}\n")
    options = ["check", str(saved["base"]), str(saved["dear"]), "--run", str(tmp_path / "run.yaml")]
    assert run(options) == 0
    (tmp_path / "run.yaml").write_text("max_regression: {cost_r: 0.5}\n")
    assert run(options) == 2
    assert "unknown figure 'cost_r'" in capsys.readouterr().err


def test_a_skill_is_verified_against_its_profile(saved, tmp_path, capsys) -> None:
    skill = tmp_path / "skill.md"
    assert run(["recommend", str(saved["base"]), "-o", str(skill)]) == 0
    assert run(["recommend", str(saved["base"]), "--verify", str(skill)]) == 0
    before = skill.read_text()
    capsys.readouterr()
    assert run(["recommend", str(saved["dear"]), "--verify", str(skill)]) == 1
    said = capsys.readouterr().out
    assert "does not follow from the profile\n" in said
    assert re.search(r"^speedup: \S+ \[.*\], now ", said, re.MULTILINE)  # as it was, and as it follows
    assert skill.read_text() == before
    assert run(["recommend", str(saved["base"]), "--verify", str(tmp_path / "absent.md")]) == 2
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".md") == ["skill.md"]


@pytest.fixture(scope="module")
def later(folder, saved) -> dict[str, Path]:
    """The same evidence as the baseline's and the dear candidate's, of another day."""
    found = {}
    for name, directory in saved.items():
        found[name] = folder / f"later-{name}"
        shutil.copytree(directory, found[name])
        manifest = json.loads((directory / "profile.json").read_text())
        (found[name] / "profile.json").write_text(json.dumps({**manifest, "created_at": "2027-01-01T00:00:00+00:00"}))
    return found


def test_from_a_later_profile_the_advice_must_follow_and_figures_may_move(saved, later, tmp_path, capsys) -> None:
    skill = tmp_path / "skill.md"
    assert run(["recommend", str(saved["base"]), "-o", str(skill)]) == 0
    written = skill.read_text()
    assert "**Speculate with " in written
    verify = ["recommend", str(later["base"]), "--verify", str(skill)]
    assert run(verify) == 0
    capsys.readouterr()
    skill.write_text(re.sub(r"(speedup:) .*", r"\1 9.99 [9.98, 10.00]", written))
    assert run(verify) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{skill} follows from the profile\nspeedup: 9.99 [9.98, 10.00], now ")
    skill.write_text(re.sub(r"sha256_\w+", "sha256_0", written))
    assert skill.read_text() != written
    assert run(verify) == 1
    assert "the configs to paste" in capsys.readouterr().out
    skill.write_text(written.replace("num_speculative_tokens: '4'", "num_speculative_tokens: '6'"))
    assert run(verify) == 1
    assert "does not follow from the profile\nnum_speculative_tokens: 6, now 4" in capsys.readouterr().out
    skill.write_text("# Notes\n\n| draft | none |\n")
    assert run(verify) == 2
    assert "the skill has no metadata in its front matter" in capsys.readouterr().err
    skill.write_text(re.sub(r"  draft: .*\n", "", written))
    assert run(verify) == 2
    assert "the skill names no draft" in capsys.readouterr().err


def test_the_same_evidence_is_the_same_bytes(saved, folder, baseline) -> None:
    tables = {name: getattr(baseline, name).to_pandas() for name in ("tape", "acceptance", "costs", "held_out")}
    manifest = {**json.loads((folder / "base" / "profile.json").read_text())}
    save_profile(manifest, tables, folder / "again")
    for file in (folder / "base").iterdir():
        assert file.read_bytes() == (folder / "again" / file.name).read_bytes()
    assert load_profile(folder / "again").manifest == baseline.manifest


def test_the_reference_of_our_own_ci_is_small_and_current() -> None:
    """`make guard` compares with it; one of another schema or without its drafts would guard nothing."""
    folder = Path(__file__).parents[2] / "profiles" / "reference"
    assert sum(file.stat().st_size for file in folder.iterdir()) < 1e6
    reference = load_profile(folder)
    assert check(reference, reference, parts=["acceptance"]).verdict == "ok"
    assert reference.manifest.run == replace(read_run(folder.with_name("ci.yaml"), {}), output="profiles/reference")
