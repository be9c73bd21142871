"""`spectune confirm` on tiny checkpoints: what was decoded, against replay, by count."""

import json
from dataclasses import replace

import numpy as np
import pytest

from spectune.cli.app import run
from spectune.decide.confirmation import confirmation
from spectune.decide.evidence import confirmed_evidence, whole_texts
from spectune.decide.plan import recommend
from spectune.profile import schemas
from spectune.profile.store import load_profile
from spectune.profile.tables import to_arrow
from spectune.report.skill import machine_change
from tests.checkpoints import WORDS, save_checkpoint
from tests.profiles import decoded, fitted_settings, make_profile
from tests.report.test_skill import LITERALS, unexplained_numbers

PROMISED = {
    "draft", "num_speculative_tokens", "temperature", "predicted_speedup", "predicted_low", "predicted_high",
    "replayed_speedup", "measured_speedup", "measured_low", "measured_high", "measured_tokens", "acceptance_length",
    "method_error", "inside_interval",
}  # fmt: skip


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("confirm")
    target, draft = save_checkpoint(folder / "target"), save_checkpoint(folder / "draft", seed=1)
    lines = [{"prompt": " ".join(WORDS[i : i + 5 + i % 7]), "category": "ab"[i % 2]} for i in range(48)]
    (folder / "w.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = ["--draft", draft, "--draft", "ngram", "--temperature", "0", "--temperature", "0.7", "--max-k", "4"]
    options += ["--workload", str(folder / "w.jsonl"), "--max-new-tokens", "24", "--budget-s", "0.5"]
    assert run(["profile", "--target", target, *options, "-o", str(folder / "p")]) == 0
    return folder / "p", draft


def confirmed(directory, capsys, *options: str) -> dict:
    assert run(["confirm", str(directory), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_real_decoding_takes_the_rounds_that_replay_says(profiled, capsys) -> None:
    directory, draft = profiled
    before = load_profile(directory).manifest.tables
    seen = confirmed(directory, capsys, "--draft", draft, "--draft", "ngram", "-k", "1", "-k", "2", "-k", "4")
    profile = load_profile(directory)
    assert profile.manifest.tables == before
    assert {(s["draft"], s["num_speculative_tokens"], s["temperature"]) for s in seen["settings"]} == {
        (spec, k, t) for spec in (draft, "ngram:min=1,max=4") for k in (1, 2, 4) for t in (0.0, 0.7)
    }
    runs = profile.confirmed.runs.to_pandas()
    for spec in (draft, "ngram:min=1,max=4"):
        for k in (1, 2, 4):
            own = runs[(runs["draft"] == spec) & (runs["depth"] == k) & (runs["temperature"] == 0)]
            rows, variance = whole_texts(confirmed_evidence(profile)[spec, 0.0], k, 24)
            assert rows.rounds.tolist() == own["rounds"].tolist()
            assert rows.emitted.tolist() == own["tokens"].tolist()
            assert not variance.any()


def test_the_machine_output_is_what_the_runs_say(profiled, capsys) -> None:
    directory, draft = profiled
    seen = confirmed(directory, capsys, "--draft", draft, "--temperature", "0.7", "-k", "2", "--prompts", "8")
    (one,) = seen["settings"]
    assert one.keys() >= PROMISED
    assert set(seen["null_errors"]) == {"always_one", "geometric"}
    runs = load_profile(directory).confirmed.runs.to_pandas()
    assert len(runs) == 16
    plain, mine = runs[runs["draft"].isna()], runs[runs["draft"] == draft]
    measured = mine["tokens"].sum() / mine["seconds"].sum() * plain["seconds"].sum() / plain["tokens"].sum()
    assert one["measured_speedup"] == pytest.approx(measured)
    assert one["method_error"] == pytest.approx(abs(one["replayed_speedup"] / measured - 1))
    assert one["measured_tokens"] == mine["tokens"].sum()
    assert one["always_one_error"] == pytest.approx(abs(1 / measured - 1))
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
    again = confirmation(saved, fitted_settings(saved))
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
    assert wide.measured_speedup == calm.measured_speedup


def test_a_machine_that_changed_between_profile_and_run_is_told(tmp_path) -> None:
    profile = make_profile(tmp_path / "p", {0.0: 0.8}, plain_s=0.1, noise=0.0)
    for plain_s, told in ((0.101, False), (0.13, True), (0.07, True)):
        seen = recommend(decoded(profile, 2, 1.2, plain_s)).confirmation
        assert seen.plain_step_ratio == pytest.approx(plain_s / 0.101)  # the loop takes 1 ms beside the forward
        line = machine_change(seen)
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
