"""Interrupted is not lost: the same command goes on, and ends where an uninterrupted run ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from spectune.cli.app import run
from spectune.profile.store import load_profile, save_profile
from tests.checkpoints import WORDS, save_checkpoint

TABLES = ("tape.parquet", "acceptance.parquet", "held_out.parquet")


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return save_checkpoint(folder / "target"), save_checkpoint(folder / "draft", seed=1)


def prompts(folder: Path, count: int) -> str:
    path = folder / "w.jsonl"
    lines = [{"prompt": " ".join([*WORDS[i % 40 : i % 40 + 5 + i % 7], WORDS[i // 40]])} for i in range(count)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


@pytest.fixture(scope="module")
def workload(tmp_path_factory) -> str:
    return prompts(tmp_path_factory.mktemp("workload"), 160)


@pytest.fixture(scope="module")
def few(tmp_path_factory) -> str:
    return prompts(tmp_path_factory.mktemp("few"), 32)


def arguments(models, workload, output, *options: str) -> list[str]:
    return ["profile", "--target", models[0], "--draft", models[1], "--draft", "ngram", "--workload", workload,
            "--max-k", "3", "--max-new-tokens", "40", "--budget-s", "0.5", "-o", str(output), *options]  # fmt: skip


def started(command: list[str]) -> subprocess.Popen[str]:
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background job would ignore it
    return subprocess.Popen(
        [sys.executable, "-m", "spectune", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heard,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def unfinished(output: Path) -> Path:
    return output.with_name(f".{output.name}.unfinished")


def stopped(command: list[str], output: Path, shards: int, with_signal: int) -> tuple[int, str]:
    """Run until so many parts are finished, then strike; exit code and what was said."""
    process = started(command)
    while len(list(unfinished(output).glob("*.parquet"))) < shards and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(with_signal)
    _, said = process.communicate(timeout=120)
    return process.returncode, said


@pytest.fixture(scope="module")
def whole(models, workload, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("whole") / "p"
    process = started(arguments(models, workload, output))
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert not unfinished(output).exists()
    return output


def test_killed_at_any_moment_the_same_command_ends_at_the_same_tape(models, workload, whole, tmp_path) -> None:
    output = tmp_path / "p"
    command = arguments(models, workload, output)
    for shards in (1, 9):
        stopped(command, output, shards, signal.SIGKILL)
    torn = next(unfinished(output).glob("*.parquet"))  # as a machine without power can leave it
    torn.write_bytes(torn.read_bytes()[: torn.stat().st_size // 2])
    process = started(command)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "going on with what an interrupted run" in said
    for table in TABLES:
        assert (output / table).read_bytes() == (whole / table).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p"]


def test_an_interrupt_is_one_clear_ending(models, few, tmp_path) -> None:
    output = tmp_path / "p"
    code, said = stopped(arguments(models, few, output), output, 2, signal.SIGINT)
    assert code == 130
    assert said.splitlines()[-2:] == ["error: interrupted", "try:   the same command again; a profile goes on from "
                                      "what is finished"]  # fmt: skip
    assert "Traceback" not in said
    assert not output.exists()


def test_what_was_finished_is_not_done_again(models, few, tmp_path, monkeypatch, capsys) -> None:
    output = tmp_path / "p"
    command = arguments(models, few, output)

    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("spectune.measure.pipeline.cost_table", broken)
        assert run(command) == 130
    with monkeypatch.context() as patch:
        patch.setattr("spectune.measure.source.record_tape", broken)
        patch.setattr("spectune.drafting.draft_model.DraftModel.evidence", broken)
        assert run([*command, "--seed", "1"]) == 2  # other settings do not go on from it, and do not discard it
        assert "an unfinished run stands beside" in capsys.readouterr().err
        assert run(command) == 0
    assert load_profile(output).manifest.run.seed == 0
    with monkeypatch.context() as patch:
        patch.setattr("spectune.measure.pipeline.cost_table", broken)
        assert run([*command, "--force"]) == 130
    with monkeypatch.context() as patch:
        patch.setattr("spectune.measure.source.record_tape", broken)
        assert run([*command, "--force"]) == 0  # a forced run goes on too
    assert not unfinished(output).exists()
    with monkeypatch.context() as patch:
        patch.setattr("spectune.measure.shards.Shards.discard", lambda _: None)
        assert run([*command, "--force"]) == 0  # killed at its very end
    assert run([*command, "--seed", "1"]) == run([*command, "--seed", "1", "--draft", "ngram:min=2"]) == 2
    assert unfinished(output).exists()
    assert run(command) == 0
    assert not unfinished(output).exists()


def test_a_profile_of_other_settings_stays_unless_forced(models, few, tmp_path, capsys) -> None:
    output = tmp_path / "p"
    command = arguments(models, few, output, "--temperature", "0")
    assert run(command) == 0
    before = (output / "costs.parquet").read_bytes()
    assert run(command) == 0
    assert "is measured with these settings already" in capsys.readouterr().err
    assert (output / "costs.parquet").read_bytes() == before
    assert run([*command, "--max-k", "2", "--seed", "5"]) == 2
    error = capsys.readouterr().err
    assert "holds a profile of other settings: max_k (3, now 2), seed (0, now 5)" in error
    assert "--force" in error
    again = arguments((models[1], models[0]), few, output, "--temperature", "0")
    assert run(again) == 2
    assert (output / "costs.parquet").read_bytes() == before
    assert run([*command, "--max-k", "2", "--force"]) == 0
    assert load_profile(output).manifest.settings.max_k == 2
    (output / "tape.parquet").write_bytes(b"")
    assert run([*command, "--max-k", "2"]) == 2
    assert "--force measures anew" in capsys.readouterr().err


def test_a_tape_that_was_replaced_meanwhile_is_another_tape(
    models, workload, whole, tmp_path, capsys, monkeypatch
) -> None:
    output, source = tmp_path / "p", tmp_path / "source"
    shutil.copytree(whole, source)
    command = [
        "profile",
        "--tape",
        str(source),
        "--draft",
        "ngram",
        "--max-k",
        "2",
        "--budget-s",
        "1",
        "-o",
        str(output),
    ]

    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("spectune.measure.pipeline.cost_table", broken)
        assert run(command) == 130
    tables = {
        name: getattr(load_profile(source), name).to_pandas() for name in ("tape", "acceptance", "costs", "held_out")
    }
    before = tables["tape"].copy()
    tables["tape"]["logprobs"] = [logprobs - 0.5 for logprobs in before["logprobs"]]
    manifest = json.loads((source / "profile.json").read_text())
    save_profile(manifest, tables, source)
    assert run(command) == 2
    assert "of another tape" in capsys.readouterr().err
    save_profile(manifest, {**tables, "tape": before}, source)
    assert run(command) == run(command) == 0
    save_profile(manifest, tables, source)
    assert run(command) == 2
    assert "holds a profile of another tape" in capsys.readouterr().err


def scarce(monkeypatch, rows: int) -> None:
    """Memory for so many texts at once."""
    from transformers import LlamaForCausalLM

    forward = LlamaForCausalLM.forward

    def bounded(self, *args, input_ids, **options):
        if len(input_ids) > rows:
            raise torch.OutOfMemoryError("out of memory")
        return forward(self, *args, input_ids=input_ids, **options)

    monkeypatch.setattr(LlamaForCausalLM, "forward", bounded)


def test_out_of_memory_halves_the_batch_and_is_told(models, workload, tmp_path, monkeypatch, capsys) -> None:
    options = ("--draft", "ngram", "--temperature", "0", "--dtype", "float32")
    command = arguments((models[0], "ngram:min=2"), workload, tmp_path / "plenty", *options)
    assert run(command) == 0
    capsys.readouterr()
    with monkeypatch.context() as patch:
        scarce(patch, 20)
        assert run([*command, "-o", str(tmp_path / "scarce")]) == 0
    assert "out of memory: recording 32 texts at once from here" in capsys.readouterr().err
    plenty, little = (load_profile(tmp_path / name) for name in ("plenty", "scarce"))
    assert max(little.tape["batch_rows"].to_pylist()) <= 20 < max(plenty.tape["batch_rows"].to_pylist())
    assert little.tape["token_ids"].to_pylist() == plenty.tape["token_ids"].to_pylist()
    assert "memory" in {notice.code for notice in little.manifest.warnings}
    assert "memory" not in {notice.code for notice in plenty.manifest.warnings}
    with monkeypatch.context() as patch:
        scarce(patch, 0)
        assert run([*command, "-o", str(tmp_path / "none")]) == 3
    assert "ran out of memory on cpu" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_without_text_everything_downstream_still_works(models, few, tmp_path, capsys) -> None:
    answers = {}
    for name, options in (("text", ()), ("none", ("--no-text",))):
        output = tmp_path / name
        assert run(arguments(models, few, output, "--temperature", "0", "--temperature", "0.8", *options)) == 0
        saved = load_profile(output)
        texts = [saved.tape["token_ids"], saved.tape["prompt_token_ids"], saved.held_out["prompt_token_ids"]]
        assert [text.null_count for text in texts] == [len(text) if name == "none" else 0 for text in texts]
        capsys.readouterr()
        assert run(["recommend", str(output), "--json", "-o", str(tmp_path / "s.md")]) in (0, 4)
        answers[name] = json.loads(capsys.readouterr().out)
        assert run(["confirm", str(output), "--temperature", "0", "-k", "2", "--prompts", "3"]) == 0
        text = load_profile(output).confirmed.tape["token_ids"]
        assert text.null_count == (len(text) if name == "none" else 0)
    lengths = [[one["acceptance_length"] for one in answer["candidates"]] for answer in answers.values()]
    assert lengths[0] == lengths[1]
    for name in ("profile.json", "run.log"):
        assert WORDS[7] not in (tmp_path / "none" / name).read_text()
    other = tmp_path / "other.txt"
    other.write_text("nothing of that")
    capsys.readouterr()
    assert run(["confirm", str(tmp_path / "none"), "--prompts", "3", "--workload", str(other)]) == 2
    assert "the profile holds no text, and 3 of its held-out prompts are not in" in capsys.readouterr().err
