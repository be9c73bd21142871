"""Hostile surroundings: full disks, read-only folders, files where folders belong, closed pipes, narrow terminals."""

import errno
import json
import os
import shutil
import subprocess
import sys

import pytest

from spectune.cli.app import run
from spectune.cli.terminal import TerminalProgress
from spectune.errors import reason_of
from spectune.profile.store import load_profile
from tests.checkpoints import WORDS, save_checkpoint
from tests.profiles import make_profile


@pytest.fixture
def target(tmp_path) -> str:
    return save_checkpoint(tmp_path / "models" / "target")


@pytest.fixture
def workload(tmp_path) -> str:
    path = tmp_path / "models" / "w.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": " ".join(WORDS[i : i + 9])}) for i in range(16)))
    return str(path)


def profile(target, workload, output, *options: str) -> list[str]:
    return ["profile", "--target", target, "--workload", workload, "--max-new-tokens", "12", "--max-k", "2",
            "--budget-s", "0.3", "--temperature", "0", "-o", str(output), *options]  # fmt: skip


def two_lines(capsys, expected: str) -> None:
    captured = capsys.readouterr()
    error, remedy = captured.err.splitlines()[-2:]
    assert error.startswith("error: ")
    assert expected in error
    assert remedy.startswith("try: ")
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("stage", ["spectune.measure.shards.write_table", "spectune.profile.store.write_table"])
def test_a_full_disk_is_told_and_what_stood_there_stays(tmp_path, target, workload, monkeypatch, capsys, stage) -> None:
    output = tmp_path / "p"
    assert run(profile(target, workload, output)) == 0
    before = load_profile(output).manifest

    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(stage, full)
        assert run(profile(target, workload, output, "--force")) == 2
        two_lines(capsys, "cannot be written: no space left on device")
    assert load_profile(output).manifest == before
    assert not list(tmp_path.glob(".*.partial"))


@pytest.mark.parametrize("place", ["file", "file/below", "full"])
def test_outputs_that_are_no_place_for_a_profile(tmp_path, target, workload, capsys, place) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert run(profile(target, workload, tmp_path / place)) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert (tmp_path / "file").read_text() == (tmp_path / "full" / "mine.txt").read_text() == "mine"


def test_a_skill_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch, capsys) -> None:
    make_profile(tmp_path / "p", {0.0: 0.8})
    skill = tmp_path / "s.md"
    skill.write_text("old")
    (tmp_path / "folder.md").mkdir()
    assert run(["recommend", str(tmp_path / "p"), "-o", str(tmp_path / "folder.md")]) == 2
    two_lines(capsys, "cannot be written")
    damaged = tmp_path / "p" / "costs.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-40])
    assert run(["recommend", str(tmp_path / "p"), "-o", str(skill)]) == 2
    two_lines(capsys, "is cut short or was changed")
    assert skill.read_text() == "old"


def test_prompts_that_are_too_long_are_named(tmp_path, target, capsys) -> None:
    path = tmp_path / "w.jsonl"
    long = " ".join(WORDS * 5)
    lines = [{"prompt": f"{long} {WORDS[i]}" if i in (3, 7) else " ".join(WORDS[i : i + 9])} for i in range(16)]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert run(profile(target, str(path), tmp_path / "p")) == 0
    (notice,) = (one for one in load_profile(tmp_path / "p").manifest.warnings if one.code == "context")
    assert "w.jsonl line 4 (" in notice.message
    assert "w.jsonl line 8 (" in notice.message
    assert notice.message.startswith("prompts longer than the 241 tokens that fit, skipped: 2: ")


def test_too_few_prompts_for_a_verdict_are_told_before_and_after(tmp_path, target, workload, capsys) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text("\n".join(json.dumps({"prompt": " ".join(WORDS[i : i + 9])}) for i in range(14)))
    line = "11 prompts are profiled, the others kept for confirming: a verdict needs 12; give 16 prompts or more"
    assert run([*profile(target, str(few), tmp_path / "p"), "--dry-run"]) == 0
    assert line in capsys.readouterr().out
    assert run(profile(target, str(few), tmp_path / "p")) == 0
    assert line in capsys.readouterr().err
    assert run(["recommend", str(tmp_path / "p"), "-o", str(tmp_path / "s.md")]) == 4
    assert "effective prompts are fewer than the 12 that a verdict takes" in capsys.readouterr().out
    assert "## Configs not to serve with yet" in (tmp_path / "s.md").read_text()
    assert run([*profile(target, workload, tmp_path / "q"), "--dry-run"]) == 0
    assert "a verdict takes" not in capsys.readouterr().out


def test_a_long_stage_on_a_pipe_says_now_and_then_how_far_it_is(monkeypatch, capsys) -> None:
    monkeypatch.setattr("spectune.cli.terminal._SAY_EVERY_S", -1.0)
    progress = TerminalProgress()
    progress.start("record", 200, "tokens")
    progress.advance(50)
    progress.advance(100)
    progress.start("costs", 10, "s")
    progress.__exit__(KeyboardInterrupt)  # nothing took the time that it was stopped after
    assert capsys.readouterr().err.splitlines() == ["record 25%", "record 75%", "record took 0 s"]


def test_prompts_that_look_random_to_the_target_are_counted(tmp_path, target, workload, monkeypatch) -> None:
    """A random network finds everything as surprising as noise over its few words: ln 65 = 4.2 nats."""
    monkeypatch.setattr("spectune.measure.pipeline._RANDOM_NATS", 3.0)
    assert run(profile(target, workload, tmp_path / "p")) == 0
    saved = load_profile(tmp_path / "p")
    assert all(3.5 < nats < 5.5 for nats in saved.tape["prompt_nats"].to_pylist())
    assert "12 of 12 prompts look random" in " ".join(one.message for one in saved.manifest.warnings)


def test_a_model_that_is_not_the_profiled_one_is_not_confirmed(tmp_path, target, workload, capsys) -> None:
    assert run(profile(target, workload, tmp_path / "p")) == 0
    save_checkpoint(tmp_path / "models" / "target", seed=9)
    assert run(["confirm", str(tmp_path / "p"), "-k", "1"]) == 2
    two_lines(capsys, "is not the model that was profiled")


@pytest.mark.parametrize("columns", ["40", "200"])
def test_no_terminal_no_colour_and_forty_columns(tmp_path, columns) -> None:
    make_profile(tmp_path / "p", {0.0: 0.8, 1.0: 0.4})
    environment = {**os.environ, "COLUMNS": columns, "NO_COLOR": "1", "FORCE_COLOR": ""}
    for arguments in (["recommend", "p"], ["show", "p"], ["--help"]):
        done = subprocess.run(
            [sys.executable, "-m", "spectune", *arguments],
            cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode in (0, 4), done.stderr
        assert "\x1b[" not in done.stdout + done.stderr
    closed = subprocess.run(
        f"{sys.executable} -m spectune show p | head -1", shell=True, cwd=tmp_path, capture_output=True, text=True
    , check=False)  # fmt: skip
    assert "Traceback" not in closed.stderr
    assert "Exception" not in closed.stderr


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "whatever a library says"), "no space left on device"),
        (shutil.Error([("a", "b", "[Errno 28] No space left on device: 'a' -> 'b'")]), "no space left on device"),
        (FileNotFoundError(errno.ENOENT, "x", "file"), "no such file or directory"),
        (OSError("odd: nobody knows"), "odd"),
    ],
)
def test_why_the_system_refused_is_said_in_its_own_words(error, expected) -> None:
    assert reason_of(error) == expected
