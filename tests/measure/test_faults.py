"""Faults put into a target, a draft, the loop or the prompts, profiled for real: `check` finds each and says where."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from spectune.cli.app import run
from spectune.decide.check import Check, check
from spectune.decoding import decode
from spectune.decoding.verify import Verified
from spectune.measure import cost, rounds
from spectune.measure.cost import Cell, CostSettings
from spectune.models.scoring import Forward, ModelSequence
from spectune.profile.store import load_profile
from tests.checkpoints import WORDS, save_checkpoint

K = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A target, and a draft that mostly agrees with it."""
    folder = tmp_path_factory.mktemp("faults")
    save_checkpoint(folder / "target", seed=3)
    with_noise(folder / "target", folder / "draft", 0.03)
    lines = [{"prompt": " ".join(WORDS[i % 40 : i % 40 + 5 + i % 9]), "category": "abc"[i % 3]} for i in range(96)]
    (folder / "w.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def with_noise(model: Path, to: Path, share: float) -> None:
    """The model with normal noise on every weight, as large as a share of their own spread."""
    shutil.copytree(model, to)
    torch.manual_seed(0)
    weights = load_file(model / "model.safetensors")
    for name, weight in weights.items():
        weights[name] = weight + share * weight.std() * torch.randn_like(weight)
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})


class VirtualClock:
    """A machine of known speed: time passes in forwards, and in the loop where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.target_s, self.draft_s, self.token_s, self.loop_s = 0.004, 0.001, 0.0002, 0.0001
        self.rng = np.random.default_rng(0)

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now

    def passes(self, seconds: float) -> float:
        took = seconds * float(np.exp(self.rng.normal(0, 0.01)))
        self.now += took
        return took


@pytest.fixture
def clock(monkeypatch) -> VirtualClock:
    clock, forward, greedy = VirtualClock(), ModelSequence._forward, decode.verify_greedy

    def timed(self: ModelSequence, token_ids: torch.Tensor, *options: object) -> Forward:
        target = self._model.name.endswith("target")
        clock.passes(clock.target_s + clock.token_s * len(token_ids) if target else clock.draft_s)
        return forward(self, token_ids, *options)

    def verified(drafted: torch.Tensor, choices: torch.Tensor) -> Verified:
        clock.passes(clock.loop_s if len(drafted) else 0.0001)
        return greedy(drafted, choices)

    def reference(target: object, settings: CostSettings) -> list[Cell]:
        load = settings.loads[0]
        return [Cell(parts=("reference",), tokens=n, load=load, run=lambda: (clock.passes(0.005),)) for n in (1, K + 1)]

    monkeypatch.setattr(ModelSequence, "_forward", timed)
    monkeypatch.setattr(decode, "verify_greedy", verified)
    monkeypatch.setattr(cost, "_reference_cells", reference)
    monkeypatch.setattr(cost, "perf_counter", clock)
    monkeypatch.setattr(rounds, "perf_counter", clock)
    return clock


def profiled(folder: Path, output: Path, *options: str) -> Path:
    models = ["--target", str(folder / "target"), "--draft", str(folder / "draft"), "--device", "cpu"]
    sizes = ["--max-k", str(K), "--max-new-tokens", "16", "--budget-s", "2", "--temperature", "0"]
    assert run(["profile", *models, *sizes, "--workload", str(folder / "w.jsonl"), "-o", str(output), *options]) == 0
    return output


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def baseline(folder, kept, clock) -> Path:
    return kept / "base" if (kept / "base").exists() else profiled(folder, kept / "base")


def compared(baseline: Path, candidate: Path) -> Check:
    return check(load_profile(baseline), load_profile(candidate))


def regressed(seen: Check) -> set[str]:
    return {one.metric for one in seen.findings if one.headline and one.status == "regressed"}


def test_nothing_changed(folder, baseline, tmp_path) -> None:
    seen = compared(baseline, profiled(folder, tmp_path / "p"))
    assert regressed(seen) == set()
    assert {one.change for one in seen.findings if one.part == "acceptance"} == {0.0}


def test_noise_on_the_weights_of_the_draft_is_acceptance(folder, baseline, tmp_path) -> None:
    """On the baseline's own texts: the same SPEC, other weights."""
    copy = tmp_path / "models"
    copy.mkdir()
    for name in ("target", "w.jsonl"):
        (shutil.copytree if (folder / name).is_dir() else shutil.copy)(folder / name, copy / name)
    good = folder / "draft"
    with_noise(good, tmp_path / "noisy", 0.5)
    aside = tmp_path / "aside"
    shutil.move(good, aside)
    shutil.move(tmp_path / "noisy", good)
    try:
        seen = compared(baseline, profiled(folder, tmp_path / "p", "--tape", str(baseline)))
    finally:
        shutil.rmtree(good)
        shutil.move(aside, good)
    assert "acceptance_length" in regressed(seen)
    assert not {"cost_p_1", "cost_p_verify", "cost_q"} & regressed(seen)
    assert seen.causes[0] == "acceptance"
    assert any(difference.startswith("weights of ") for difference in seen.differences)


@pytest.mark.parametrize(
    ("fault", "expected", "cause"),
    [
        ({"token_s": 0.0012}, {"cost_p_1", "cost_p_verify"}, "cost_p"),  # a target slowed in proportion to tokens
        ({"draft_s": 0.0015}, {"cost_q"}, "cost_q"),
    ],
)
def test_slower_forwards_are_the_cost_of_their_model(folder, baseline, clock, tmp_path, fault, expected, cause) -> None:
    for name, seconds in fault.items():
        setattr(clock, name, seconds)
    seen = compared(baseline, profiled(folder, tmp_path / "p"))
    assert expected <= regressed(seen)
    assert seen.causes[0] == cause
    assert {one.change for one in seen.findings if one.part == "acceptance"} == {0.0}
    others = {"cost_p", "cost_q", "acceptance"} - {cause}
    assert not others & set(seen.causes)


def test_a_slower_loop_is_the_overhead(folder, baseline, clock, tmp_path) -> None:
    clock.loop_s = 0.004
    seen = compared(baseline, profiled(folder, tmp_path / "p"))
    assert regressed(seen) == {"speedup"}
    assert set(seen.causes) == {"speedup", "overhead"}


def test_another_chat_template_is_acceptance_in_every_category(folder, baseline, tmp_path) -> None:
    """The target goes on from other tokens, so that its texts, and what the draft guesses of them, are others."""
    path = folder / "target" / "chat_template.jinja"
    before = path.read_text()
    path.write_text("{% for m in messages %}{{ m['content'] }} {% endfor %}w7 w7 w7 w7 assistant ")
    try:
        seen = compared(baseline, profiled(folder, tmp_path / "p"))
    finally:
        path.write_text(before)
    assert any(difference.startswith("chat template: ") for difference in seen.differences)
    places = {one.place for one in seen.findings if one.part == "acceptance" and one.change != 0 and one.place}
    assert {"a", "b", "c"} <= places
    assert not {"cost_p", "cost_q"} & set(seen.causes)


def test_a_tape_is_only_replayed_by_the_target_that_wrote_it(folder, baseline, tmp_path, capsys) -> None:
    common = ["profile", "--tape", str(baseline), "-o", str(tmp_path / "p"), "--draft", "ngram", "--max-k", str(K)]
    assert run([*common, "--target", str(folder / "draft")]) == 2
    assert "was recorded with other target" in capsys.readouterr().err
    assert run([*common, "--temperature", "0.5"]) == 2
    assert "was recorded with other temperatures" in capsys.readouterr().err
    assert run([*common, "--max-new-tokens", "12"]) == 2
    assert "was recorded with other length of texts" in capsys.readouterr().err
    assert run([*common, "--budget-s", "0.3"]) == 0
    assert (tmp_path / "p" / "tape.parquet").read_bytes() == (baseline / "tape.parquet").read_bytes()
