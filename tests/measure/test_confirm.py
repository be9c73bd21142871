"""`spectune confirm` on tiny checkpoints: what was decoded, against replay, by count."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from spectune.cli.app import run
from spectune.decide.confirmation import confirmation
from spectune.decide.decoded import decoded_run
from spectune.decide.evidence import all_evidence, profiled_evidence, whole_texts, written_evidence
from spectune.decide.plan import recommend
from spectune.decide.reasons import machine_line
from spectune.profile import schemas
from spectune.profile.store import load_profile
from spectune.profile.tables import to_arrow
from tests.checkpoints import WORDS, save_checkpoint
from tests.profiles import decoded, fitted_settings, make_profile
from tests.report.test_skill import LITERALS, unexplained_numbers

TREE = "ngram:min=1,max=4,branches=3"
PROMISED = {
    "draft", "num_speculative_tokens", "temperature", "predicted_speedup", "predicted_low", "predicted_high",
    "replayed_speedup", "measured_speedup", "measured_low", "measured_high", "measured_tokens", "acceptance_length",
    "method_error", "inside_interval", "raw_speedup", "disturbed_rounds", "miss",
}  # fmt: skip


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("confirm")
    target, draft = save_checkpoint(folder / "target"), save_checkpoint(folder / "draft", seed=1)
    lines = [{"prompt": " ".join(WORDS[i : i + 5 + i % 7]), "category": "ab"[i % 2]} for i in range(48)]
    (folder / "w.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = [
        "--draft",
        draft,
        "--draft",
        "ngram",
        "--draft",
        TREE,
        "--temperature",
        "0",
        "--temperature",
        "0.7",
        "--max-k",
        "4",
    ]
    options += ["--workload", str(folder / "w.jsonl"), "--max-new-tokens", "24", "--budget-s", "0.5"]
    assert run(["profile", "--target", target, *options, "-o", str(folder / "p")]) == 0
    return folder / "p", draft


def confirmed(directory, capsys, *options: str) -> dict:
    assert run(["confirm", str(directory), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_real_decoding_takes_the_rounds_that_replay_says(profiled, capsys) -> None:
    directory, draft = profiled
    before = load_profile(directory).manifest.tables
    drafts = ["--draft", draft, "--draft", "ngram", "--draft", TREE]
    seen = confirmed(directory, capsys, *drafts, "-k", "1", "-k", "2", "-k", "4")
    profile = load_profile(directory)
    assert profile.manifest.tables == before
    assert {(s["draft"], s["num_speculative_tokens"], s["temperature"]) for s in seen["settings"]} == {
        (spec, k, t) for spec in (draft, "ngram:min=1,max=4", TREE) for k in (1, 2, 4) for t in (0.0, 0.7)
    }
    runs = with_rounds(profile)
    for spec in (draft, "ngram:min=1,max=4", TREE):
        for k in (1, 2, 4):
            own = runs[(runs["draft"] == spec) & (runs["depth"] == k) & (runs["temperature"] == 0)]
            rows, variance = whole_texts(written_evidence(profile, spec, own["continuation"].tolist(), 0.0), k, 24)
            assert rows.rounds.tolist() == own["rounds"].tolist()
            assert rows.emitted.tolist() == own["tokens"].tolist()
            assert not variance.any()


def with_rounds(profile) -> pd.DataFrame:
    """The runs, each with its rounds, seconds and tokens kept."""
    seen = profile.confirmed
    sums = seen.rounds.to_pandas().groupby("run").agg(rounds=("seconds", "size"), seconds=("seconds", "sum"))
    texts = seen.tape.to_pandas()[["continuation", "tokens"]]
    return seen.runs.to_pandas().merge(sums, on="run").merge(texts, on="continuation").sort_values("run")


def test_every_text_is_kept_once_and_every_draft_is_judged_on_plain_texts(profiled, capsys) -> None:
    directory, draft = profiled
    confirmed(directory, capsys, "--draft", draft, "-k", "2", "--prompts", "6")
    seen = load_profile(directory).confirmed
    runs, evidence = seen.runs.to_pandas(), seen.acceptance.to_pandas()
    tape = seen.tape.to_pandas()
    assert (
        not tape.assign(token_ids=tape["token_ids"].map(tuple))
        .duplicated(["prompt_id", "temperature", "token_ids"])
        .any()
    )
    greedy = runs[runs["temperature"] == 0].groupby("prompt_id")["continuation"].nunique()
    assert (greedy == 1).all()  # speculative decoding writes what plain decoding does
    plainly = set(seen.plain_continuations)
    assert len(plainly) == 12
    for spec in (draft, "ngram:min=1,max=4", TREE):
        own = {*plainly, *runs.loc[runs["draft"] == spec, "continuation"]}
        assert set(evidence.loc[evidence["draft"] == spec, "continuation"]) == own
    rounds = seen.rounds.to_pandas().merge(runs, on="run")
    assert (rounds.groupby(["cycle", "prompt_id", "temperature"]).size().groupby("cycle").size() == 1).all()
    assert (rounds["seconds"] > 0).all()


def test_all_prompts_judge_acceptance(profiled, capsys) -> None:
    directory, draft = profiled
    confirmed(directory, capsys, "--draft", draft, "--temperature", "0", "-k", "2", "--prompts", "6")
    profile = load_profile(directory)
    alone, joined = profiled_evidence(profile), all_evidence(profile)
    assert [len(e.written) for e in joined] == [len(e.written) + 6 * (e.temperature == 0) for e in alone]
    answer = recommend(profile, 0.0)
    assert (answer.applies_to.profiled_prompts, answer.applies_to.confirmed_prompts) == (36, 6)
    assert answer.predicted.draft in (draft, "ngram:min=1,max=4", TREE)


def test_rounds_that_replay_does_not_explain_are_named(profiled, capsys) -> None:
    """At T > 0 rounds are left to chance, given the text that was written: counted ones must be within it."""
    directory, draft = profiled
    confirmed(directory, capsys, "--draft", draft, "--temperature", "0.7", "-k", "2", "-k", "4")
    profile = load_profile(directory)
    fitted = fitted_settings(profile)
    for setting in confirmation(profile, decoded_run(profile, fitted), fitted).settings:
        assert abs(setting.miss.replay_z) < 4
    rounds = profile.confirmed.rounds
    twice = replace(profile, confirmed=replace(profile.confirmed, rounds=pa.concat_tables([rounds, rounds])))
    for setting in confirmation(twice, decoded_run(twice, fitted), fitted).settings:
        assert setting.miss.replay_z > 4
        assert setting.miss.part == "tokens a round"
        assert "which chance does not explain" in setting.miss.sentence


def test_the_machine_output_is_what_the_runs_say(profiled, capsys) -> None:
    directory, draft = profiled
    seen = confirmed(directory, capsys, "--draft", draft, "--temperature", "0.7", "-k", "2", "--prompts", "8")
    (one,) = seen["settings"]
    assert one.keys() >= PROMISED
    assert set(seen["null_errors"]) == {"always_one", "geometric"}
    runs = with_rounds(load_profile(directory))
    assert len(runs) == 16
    plain, mine = runs[runs["draft"].isna()], runs[runs["draft"] == draft]
    measured = mine["tokens"].sum() / mine["seconds"].sum() * plain["seconds"].sum() / plain["tokens"].sum()
    assert one["raw_speedup"] == pytest.approx(measured)
    assert one["method_error"] == pytest.approx(abs(one["replayed_speedup"] / one["measured_speedup"] - 1))
    assert one["measured_tokens"] == mine["tokens"].sum()
    assert one["always_one_error"] == pytest.approx(abs(1 / one["measured_speedup"] - 1))
    assert seen["max_method_error"] == seen["median_method_error"] == one["method_error"]
    assert one["predicted_low"] < one["predicted_speedup"] < one["predicted_high"]


def test_the_skill_shows_predicted_against_measured(profiled, capsys, tmp_path) -> None:
    directory, draft = profiled
    seen = confirmed(directory, capsys, "--draft", draft, "--temperature", "0", "-k", "4")
    capsys.readouterr()
    options = ["--temperature", "0", "--json", "-o", str(tmp_path / "s.md")]
    assert run(["recommend", str(directory), *options]) in (0, 4)
    markdown, machine = (tmp_path / "s.md").read_text(), json.loads(capsys.readouterr().out)
    assert set(unexplained_numbers(markdown, machine)) <= LITERALS
    assert "## Predicted against measured" in markdown
    assert f"{seen['settings'][0]['measured_speedup']:.2f}×" in markdown
    saved = load_profile(directory)
    fitted = fitted_settings(saved)
    again = confirmation(saved, decoded_run(saved, fitted), fitted)
    assert again.settings[0].measured_speedup == seen["settings"][0]["measured_speedup"]


def test_a_run_at_another_time_may_fall_further_off_where_the_machine_is_unsteady(tmp_path) -> None:
    profile = decoded(make_profile(tmp_path / "p", {0.0: 0.8}, noise=0.001, passes=30), 2, 1.2)
    costs = profile.costs.to_pandas()
    drift = np.array([0.1, -0.1, 0.0, 0.1, -0.1])[costs["measurement_pass"] // 6]
    longer = (costs["part"] == "cost_p") & (costs["tokens"] > 1)
    unsteady = costs.assign(seconds=costs["seconds"] * np.exp(np.where(longer, drift, 0.0)))
    (calm,), (wide,) = (
        recommend(one).confirmation.settings
        for one in (profile, replace(profile, costs=to_arrow(unsteady, schemas.COSTS)))
    )
    width, wider = (np.log(one.predicted_high / one.predicted_low) for one in (calm, wide))
    assert wider > width + 0.2
    assert wide.measured_speedup == pytest.approx(calm.measured_speedup, rel=1e-6)


def test_a_machine_that_changed_between_profile_and_run_is_told(tmp_path) -> None:
    profile = make_profile(tmp_path / "p", {0.0: 0.8}, plain_s=0.1, noise=0.0)
    for plain_s, told in ((0.101, False), (0.13, True), (0.07, True)):
        seen = recommend(decoded(profile, 2, 1.2, plain_s)).confirmation
        assert seen.plain_step_ratio == pytest.approx(plain_s / 0.101)  # the loop takes 1 ms beside the forward
        line = machine_line(seen)
        assert (seen.machine == "changed") == told
        assert (line is not None) == told
        assert line is None or f"took {plain_s / 0.101:.2f} times as long" in line


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--temperature", "0.3"], "temperature 0.3 was not measured; 0, 0.7 were"),
        (["--draft", "ngram:min=2,max=3"], "was not profiled"),
        (["-k", "9"], "K = 9 was not measured"),
        (["--max-new-tokens", "25"], "--max-new-tokens is 25; the profile recorded 24"),
        (["--max-new-tokens", "0"], "--max-new-tokens is 0"),
        (["--chosen-only", "-k", "1"], "exclude each other"),
        (["--prompts", "0"], "--prompts is 0"),
        (["--seed", "-1"], "--seed is -1"),
    ],
)
def test_wrong_options_leave_the_profile_alone(profiled, capsys, options, expected) -> None:
    directory, _ = profiled
    before = (directory / "profile.json").read_bytes()
    assert run(["confirm", str(directory), *options]) == 2
    error, remedy = capsys.readouterr().err.splitlines()[-2:]
    assert expected in error
    assert remedy.startswith("try: ")
    assert (directory / "profile.json").read_bytes() == before


def test_another_model_in_the_same_place_is_refused(profiled, capsys, tmp_path) -> None:
    import shutil

    directory, draft = profiled
    target = load_profile(directory).manifest.target.name
    shutil.move(target, tmp_path / "kept")
    try:
        save_checkpoint(directory.parent / "target", seed=9)
        assert run(["confirm", str(directory), "--draft", draft]) == 2
        assert "is not the model that was profiled" in capsys.readouterr().err
    finally:
        shutil.rmtree(target)
        shutil.move(tmp_path / "kept", target)


def test_the_variance_of_rounds_is_that_of_literal_rounds() -> None:
    from spectune.replay import rounds_variance, walk

    rng = np.random.default_rng(3)
    accept = rng.uniform(0.1, 0.9, size=(30, 3, 1))
    found = rounds_variance(walk(accept), np.array([30]), 2)[0]
    counts = []
    for _ in range(20_000):
        s = n = 0
        while s < 30:
            first, second = rng.random(2) < [accept[s, 0, 0], accept[s, 1, 0]]
            s, n = s + 1 + int(first) + int(first and second), n + 1
        counts.append(n)
    assert found == pytest.approx(np.var(counts), rel=0.05)


@pytest.mark.parametrize("width", [40, 80])
def test_what_is_printed_fits_the_terminal(profiled, capsys, monkeypatch, width) -> None:
    directory, _ = profiled
    monkeypatch.setenv("COLUMNS", str(width))
    assert run(["confirm", str(directory), "--draft", "ngram", "-k", "1", "-k", "4", "--temperature", "0"]) == 0
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert "method error" in printed
    table = printed.splitlines()[1:4]
    assert [line.split()[0] for line in table] == ["K", "1", "4"]
    assert max(map(len, table)) <= width


def test_a_run_too_short_to_tell_its_spread_leaves_the_costs_to_the_profile(profiled, capsys) -> None:
    directory, draft = profiled
    options = ["--draft", draft, "--temperature", "0", "-k", "2", "--prompts", "1", "--max-new-tokens", "4"]
    (one,) = confirmed(directory, capsys, *options)["settings"]
    assert (one["measured_low"], one["measured_high"]) == (None, None)
    profile = load_profile(directory)
    run = decoded_run(profile, fitted_settings(profile))
    assert all(run.nearest(choice) is None for choice in run.costs)
    assert np.isfinite(recommend(profile, 0.0).speedup.estimate)
