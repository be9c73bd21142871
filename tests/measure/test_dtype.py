"""`--dtype auto` on a CPU: settled by timing, told in a line, and kept by whatever goes on from there."""

import json
from types import SimpleNamespace

import pytest
import torch

from spectune.cli.app import run
from spectune.errors import DeviceError
from spectune.measure import dtype as settling
from spectune.measure import preparation
from spectune.measure.preparation import recorded_with
from spectune.models.devices import resolve_dtype
from spectune.models.loading import load_model
from spectune.profile.store import load_profile
from tests.checkpoints import WORDS, save_checkpoint


@pytest.mark.parametrize(
    ("checkpoint", "seconds", "chosen", "says"),
    [
        (torch.float32, (1.31, 1.0), "bfloat16", "bfloat16, 1.31 times as fast here as float32, the checkpoint's"),
        (torch.float32, (1.29, 1.0), "float32", "bfloat16 is 1.29 times as fast here, which is not worth it"),
        (torch.bfloat16, (2.0, 1.0), "float32", "float32, 2.00 times as fast here as bfloat16"),
        (torch.bfloat16, (0.5, 1.0), "bfloat16", "float32 is 0.50 times as fast"),
    ],
)
def test_another_type_is_taken_where_it_is_much_faster(monkeypatch, checkpoint, seconds, chosen, says) -> None:
    told = []
    monkeypatch.setattr(settling, "_steps_s", lambda models, max_k: seconds)

    def load(name: str):
        return SimpleNamespace(dtype=checkpoint if name == "auto" else getattr(torch, name))

    assert str(settling.fastest_in(load, 4, told.append).dtype) == f"torch.{chosen}"
    assert len(told) == 1
    assert says in told[0]


def test_where_both_do_not_fit_it_is_the_checkpoints() -> None:
    def load(name: str):
        if name != "auto":
            raise DeviceError("no room", "none")
        return SimpleNamespace(dtype=torch.float32)

    told = []
    assert settling.fastest_in(load, 4, told.append).dtype == torch.float32
    assert "no room to try bfloat16" in told[0]


def test_a_plain_step_and_one_over_more_tokens_are_timed(tmp_path) -> None:
    folder = save_checkpoint(tmp_path / "t")
    models = tuple(load_model(folder, device=torch.device("cpu"), dtype=name) for name in ("float32", "bfloat16"))
    assert all(0 < seconds < 1 for seconds in settling._steps_s(models, 4))


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32), (torch.float16, torch.float32),
     (None, torch.float32)],
)  # fmt: skip
def test_without_timing_a_cpu_takes_what_the_checkpoint_is_in(checkpoint, expected) -> None:
    assert resolve_dtype("auto", torch.device("cpu"), checkpoint) == expected


def test_what_was_settled_is_kept(tmp_path, monkeypatch, capsys) -> None:
    """By the same command again, by an unfinished run, by another profile on the same tape."""
    lines = [{"prompt": " ".join(WORDS[i : i + 5])} for i in range(8)]
    (tmp_path / "w.jsonl").write_text("\n".join(map(json.dumps, lines)))
    target = save_checkpoint(tmp_path / "t")
    options = ["--workload", str(tmp_path / "w.jsonl"), "--max-new-tokens", "12", "--max-k", "2", "--budget-s", "0.1"]
    command = ["profile", "--target", target, *options, "--draft", "ngram", "-o", str(tmp_path / "p")]
    monkeypatch.setattr(preparation, "fastest_in", lambda load, max_k, say: load("bfloat16"))

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("spectune.measure.pipeline.cost_table", interrupted)
        assert run(command) == 130
        assert "kept: texts in 1 file, evidence in 1 file" in capsys.readouterr().err
    monkeypatch.setattr(preparation, "fastest_in", interrupted)  # from here on nothing may be timed anew
    assert run(command) == 0
    assert "going on with what an interrupted run" in capsys.readouterr().err
    assert load_profile(tmp_path / "p").manifest.environment.dtype == "bfloat16"
    assert run(command) == 0
    assert "measured with these settings already" in capsys.readouterr().err
    assert recorded_with(tmp_path / "p")["dtype"] == "bfloat16"
    again = ["profile", "--tape", str(tmp_path / "p"), "--max-k", "2", "--budget-s", "0.1", "-o", str(tmp_path / "q")]
    assert run(again) == 0
    assert load_profile(tmp_path / "q").manifest.environment.dtype == "bfloat16"
