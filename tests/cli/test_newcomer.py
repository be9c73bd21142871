"""What a new user meets: mistyped names, folders that cannot be written, runs that are not finished, wide intervals."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from spectune.cli import show as terminal
from spectune.cli.app import run
from spectune.decide.plan import recommend
from spectune.measure import SilentProgress
from spectune.measure.cost import CostSettings, cost_table
from spectune.measure.recording import rows_per_shard
from spectune.models.sampling import Sampling
from spectune.profile.manifest import Load
from spectune.profile.run import Run, differences
from spectune.profile.store import UNFINISHED_MARKER, unfinished_folder
from spectune.report.sections import fallback
from spectune.stats import Interval
from tests.checkpoints import WORDS, save_checkpoint
from tests.profiles import decoded, make_profile
from tests.toys import tiny_pair

WIDTH = 41


def drawn(low: float, estimate: float, high: float) -> str:
    return terminal._whisker(Interval(estimate=estimate, low=low, high=high), "●", 0.0, 2.0, WIDTH)


def test_an_interval_that_goes_on_beyond_the_axis_has_an_arrow_and_plain_decoding_a_line_in_every_row() -> None:
    assert drawn(1.2, 1.5, 1.8).count("│") == 1
    inside, right, both = drawn(0.5, 0.8, 1.5), drawn(0.5, 0.8, 2.9), drawn(-1.0, 0.8, 2.9)
    assert (inside[10], inside[30], right[40], both[0]) == ("├", "┤", "▸", "◂")
    assert [line[20] for line in (inside, right, both)] == ["┼"] * 3
    assert drawn(0.9, 1.0, 1.1)[20] == "●"


def test_the_terminal_has_an_axis_and_both_kinds_of_acceptance(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    profile = make_profile(tmp_path / "p", {0.0: 0.8})
    assert run(["show", str(tmp_path / "p")]) == 0
    out, best = capsys.readouterr().out, recommend(profile).best_candidate
    assert re.search(r"^ +\d\.\d\d +\d\.\d\d$", out, re.MULTILINE)
    rates = [best.conditional_acceptance_rate, best.cumulative_acceptance_rate]
    for place, (reached, of_all) in enumerate(zip(*rates, strict=True), start=1):
        assert f"\n{place} {reached:.2f}   {of_all:.2f} █" in out
    assert f"{best.draft}, K = {best.num_speculative_tokens}\n1 " in out


@pytest.mark.parametrize(
    ("options", "problem", "remedy"),
    [
        (["--draft", "ngrm"], "there is no model 'ngrm' here", "did you mean ngram?"),
        (["--draft", "eagle-3"], "there is no model 'eagle-3' here", "did you mean eagle3?"),
        (["--draft", "./nope"], "there is no folder or file './nope'", "check the path"),
        (["--target", "./nope"], "there is no folder or file './nope'", "check the path"),
        (["--target", "~nobody-of-that-name/x"], "'~nobody-of-that-name/x' cannot be looked up", "check the path"),
        (["--draft", "a" * 300], "cannot be looked up", "check the path"),
        (["--draft", "layers:99"], "layers", "give layers:1 to layers:1"),
        (["--draft", "foreign"], "the draft's tokenizer differs from the target's: id", "n-gram"),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
def test_what_cannot_be_profiled_is_refused_by_a_dry_run_too(
    tmp_path, capsys, monkeypatch, options, problem, remedy, dry
) -> None:
    monkeypatch.chdir(tmp_path)
    save_checkpoint(tmp_path / "target")
    save_checkpoint(tmp_path / "foreign", words=["other", "words"])
    code = run(["profile", "--target", "target", *options, "-o", "p", *(["--dry-run"] if dry else [])])
    said = capsys.readouterr().err
    assert code == 2
    assert problem in said
    assert remedy in said


def test_a_folder_may_have_a_methods_name(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("target", "ngrm"):
        save_checkpoint(tmp_path / name)
    assert run(["profile", "--target", "target", "--draft", "ngrm", "-o", "p", "--dry-run"]) == 0


def test_a_run_that_is_not_finished_is_told_with_its_command(tmp_path, capsys) -> None:
    folder = unfinished_folder(tmp_path / "p")
    folder.mkdir()
    (folder / UNFINISHED_MARKER).write_text('{"identity": {}, "command": "spectune profile -o p"}')
    assert run(["recommend", str(tmp_path / "p")]) == 2
    said = capsys.readouterr().err
    assert "is not finished" in said
    assert "run the same command again: spectune profile -o p" in said
    (folder / UNFINISHED_MARKER).write_text("[]")
    assert run(["recommend", str(tmp_path / "p")]) == 2
    assert "is not a profile" in capsys.readouterr().err


def test_the_verdict_is_told_where_nothing_can_be_written_too(tmp_path, capsys) -> None:
    make_profile(tmp_path / "p", {0.0: 0.8})
    (tmp_path / "file").write_text("")
    assert run(["recommend", str(tmp_path / "p"), "-o", str(tmp_path / "file" / "skill.md")]) == 2
    said = capsys.readouterr()
    assert said.out.startswith("Speculate with small")
    assert "wrote" not in said.out
    assert "cannot be written" in said.err


def test_what_was_decoded_for_real_is_told_with_its_interval(tmp_path, capsys) -> None:
    profile = decoded(make_profile(tmp_path / "p", {0.0: 0.85}), 4, 1.7)
    assert re.search(r"decoded for real: 1\.7\d× \[\d\.\d\d, \d\.\d\d\], predicted", _summary(profile, tmp_path))


def _summary(profile, folder) -> str:
    from spectune.cli.recommend import _summary as summary

    return summary(recommend(profile), folder)


def test_what_if_tells_what_it_takes_for_granted_and_what_it_cannot_use(capsys) -> None:
    for ratio in ("0.05", "0"):
        assert run(["what-if", "--alpha", "0.8", "--cost-ratio", ratio]) == 0
        assert "verifying K + 1 tokens is taken to cost one plain step" in capsys.readouterr().out
    times = ["what-if", "--alpha", "0.3", "--plain-s", "1", "--round-s", "3"]
    assert run(times) == 0
    said = capsys.readouterr().out
    assert "this round does not reach 1.0×" in said
    assert "is taken to cost" not in said
    assert run([*times, "--round-s", "4", "--max-k", "5"]) == 2
    assert "--max-k does not go with several --round-s" in capsys.readouterr().err


def test_other_work_is_told_before_anything_is_measured(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spectune.measure.environment._BUSY", 0.5)
    save_checkpoint(tmp_path / "target")
    dry = ["profile", "--target", "target", "-o", "p", "--dry-run"]
    for load, told in ((0.2 * os.cpu_count(), False), (3.0 * os.cpu_count(), True)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, load, load))
        assert run(dry) == 0
        assert (f"other work runs here (load {load:.1f} on" in capsys.readouterr().out) == told


def test_warming_up_has_a_name_and_costs_move_within_a_pass() -> None:
    heard: list[tuple[str, float]] = []

    class Heard(SilentProgress):
        def start(self, stage, total, unit) -> None:
            heard.append((stage, total))

        def advance(self, amount, note="") -> None:
            heard.append(("", amount))

    target, _ = tiny_pair("llama")
    load = Load(batch=1, context_tokens=8)
    settings = CostSettings(
        text_token_ids=list(range(1, 40)), loads=[load], max_k=2, samplings=[Sampling()], budget_s=0.2, seed=0
    )
    cost_table(target, {}, settings, Heard())
    stages = [place for place, (stage, _) in enumerate(heard) if stage]
    assert [heard[place][0] for place in stages] == ["warm-up", "costs"]
    warm_up, costs = heard[stages[0] : stages[1]], heard[stages[1] :]
    assert sum(amount for _, amount in warm_up[1:]) == warm_up[0][1] == len(warm_up) - 1
    assert sum(amount for _, amount in costs[1:]) == pytest.approx(costs[0][1])
    assert len(costs) > 6 * len(warm_up)  # after each piece of work of six passes or more


def test_a_profile_against_itself_differs_in_nothing_however_noisy(tmp_path, capsys) -> None:
    for name, noise in (("p", 0.6), ("q", 0.61)):
        make_profile(tmp_path / name, {0.0: 0.8}, noise=noise, prompts=14)
    assert run(["check", str(tmp_path / "p"), str(tmp_path / "p")]) == 0
    assert "One and the same profile, given twice: nothing can differ" in capsys.readouterr().out
    assert run(["check", str(tmp_path / "p"), str(tmp_path / "q")]) == 4
    noisy = capsys.readouterr().out.splitlines()[0]
    remedies = [part.split(": ", 1)[1] for part in noisy.removeprefix("Too noisy to tell: ").split("; ")]
    assert len(remedies) == len(set(remedies))


def test_an_unfinished_run_of_other_options_is_refused_before_anything_loads(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spectune.measure.pipeline.prepare", lambda *_: pytest.fail("loads"))
    folder = unfinished_folder(tmp_path / "p")
    folder.mkdir()
    left = {"run": differences(Run(), Run(max_k=3, seed=1)), "workload": "another"}
    marker = {"identity": left, "command": "spectune profile --max-k 3 --seed 1 -o p"}
    (folder / UNFINISHED_MARKER).write_text(json.dumps(marker))
    assert run(["profile", "--max-k", "4", "--seed", "1", "-o", "p"]) == 2
    said = capsys.readouterr().err
    assert "an unfinished run stands beside p, of another max_k\n" in said
    assert "go on with it: spectune profile --max-k 3 --seed 1 -o p; or discard it with --force" in said


def test_writing_is_tried_before_decoding(tmp_path, capsys, monkeypatch) -> None:
    make_profile(tmp_path / "p", {0.0: 0.8})
    monkeypatch.setattr("spectune.measure.confirm.load_model", lambda *_, **__: pytest.fail("loads"))
    whole = tempfile.TemporaryDirectory

    def refusing(**options) -> tempfile.TemporaryDirectory:
        if Path(options["dir"]) == tmp_path / "p":
            raise PermissionError(13, "no")
        return whole(**options)

    monkeypatch.setattr("tempfile.TemporaryDirectory", refusing)
    assert run(["confirm", str(tmp_path / "p")]) == 2
    assert f"nothing can be written in {tmp_path / 'p'}: permission denied" in capsys.readouterr().err


def test_a_scheduler_that_ends_a_run_is_told_what_is_kept(tmp_path) -> None:
    """SIGTERM is as Ctrl-C: in the middle of recording nothing whole is there yet."""
    target = save_checkpoint(tmp_path / "target")
    (tmp_path / "w.txt").write_text("\n".join(" ".join(WORDS[i : i + 6]) for i in range(16)))
    options = ["--target", target, "--draft", "ngram", "--workload", str(tmp_path / "w.txt"), "--dtype", "float32"]
    command = [sys.executable, "-m", "spectune", "profile", *options, "--budget-s", "600", "-o", str(tmp_path / "p")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ran:
        lines = iter(ran.stderr.readline, "")
        assert any("replay took" in line for line in lines)
        ran.terminate()
        rest = ran.stderr.read()
    assert ran.returncode == 130
    assert re.search(r"kept: texts in 1 file, evidence in \d files?", rest)
    assert rest.splitlines()[-2:] == [
        "error: interrupted",
        "try:   the same command again; a profile goes on from what is finished",
    ]


def test_rows_are_kept_more_often_where_texts_are_long_and_slow() -> None:
    rows = {length: rows_per_shard(torch.device("cpu"), length) for length in (48, 64, 128, 256, 4096)}
    assert rows == {48: 64, 64: 64, 128: 32, 256: 16, 4096: 16}
    assert rows_per_shard(torch.device("cuda"), 4096) == 64


def test_a_fallback_rule_is_of_this_loop_and_has_a_window_of_a_sane_size(tmp_path) -> None:
    profile = make_profile(tmp_path / "p", {0.0: 0.95}, end="limit")
    answer = recommend(profile)
    assert answer.fallback.window_requests >= 20
    text = fallback(answer)
    assert "spectune's own loop on cpu" in text
    assert "0.00000" not in text


def test_export_says_what_chose_k_and_leaves_the_type_to_the_checkpoint(tmp_path, capsys) -> None:
    make_profile(tmp_path / "p", {0.0: 0.85})
    assert run(["export", str(tmp_path / "p"), "--engine", "vllm"]) == 0
    said = capsys.readouterr().out
    assert "K was chosen by costs on cpu, float32; by acceptance alone K = 2 to 4 may suit the engine" in said
    assert "--dtype" not in said


def test_a_budget_that_cannot_hold_is_said_before(tmp_path, capsys, monkeypatch) -> None:
    target = save_checkpoint(tmp_path / "target")
    monkeypatch.setattr("spectune.measure.estimate.USUAL_WARM_UP_PASSES", 10**7)
    for budget, told in (("1", True), ("1e9", False)):
        assert run(["profile", "--target", target, "--budget-s", budget, "-o", str(tmp_path / "p"), "--dry-run"]) == 0
        assert ("costs take that long at least, whatever --budget-s" in capsys.readouterr().out) == told
