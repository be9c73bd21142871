"""What only a CUDA device can show; skipped where there is none. Of `make gpu`, a rehearsal on the CPU."""

import json

import pytest
import torch

from spectune.cli.app import run
from spectune.decoding.decode import speculative_decode
from spectune.drafting.draft_model import DraftModel
from spectune.models.loading import load_model
from spectune.models.scoring import ModelScorer
from spectune.profile.store import load_profile
from tests.checkpoints import WORDS, save_checkpoint
from tests.gpu import SMALL, rehearse

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


def test_the_prepared_script_runs(tmp_path) -> None:
    summary = rehearse(tmp_path, "cpu", SMALL, "0.3", max_k=2)
    assert load_profile(tmp_path / "first").confirmed is not None
    assert summary["cost_repeatability"] < 10


@pytest.mark.gpu
@on_cuda
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_decoding_on_cuda_is_that_of_plain_decoding(tmp_path, temperature) -> None:
    target = load_model(save_checkpoint(tmp_path / "t"), device=torch.device("cuda"), dtype="float32")
    draft = load_model(save_checkpoint(tmp_path / "d", seed=1), device=torch.device("cuda"), dtype="float32")
    plain, speculative = (
        speculative_decode(ModelScorer(target), DraftModel(draft), [4, 5, 6], k, temperature, max_new_tokens=40)
        for k in (0, 3)
    )
    assert len(speculative.token_ids) == 40
    if temperature == 0.0:
        assert plain.token_ids == speculative.token_ids


@pytest.mark.gpu
@on_cuda
def test_a_profile_on_cuda_is_timed_by_its_own_clock(tmp_path) -> None:
    target = save_checkpoint(tmp_path / "t")
    workload = tmp_path / "w.jsonl"
    workload.write_text("\n".join(json.dumps({"prompt": " ".join(WORDS[i : i + 9])}) for i in range(16)))
    options = ["--workload", str(workload), "--max-new-tokens", "24", "--budget-s", "5", "-o", str(tmp_path / "p")]
    assert run(["profile", "--target", target, "--device", "cuda", *options]) == 0
    assert "cuda" in load_profile(tmp_path / "p").manifest.environment.device
    assert run(["profile", "--target", target, "--device", "cuda", *options]) == 0  # equal settings: the same profile
