"""The embedded default target, for real: profile, recommend, and what replay says against what decoding does."""

import json
import subprocess
import sys

import pytest
import torch

from spectune.checkpoints.embedded import embedded_gguf
from spectune.choice import chain
from spectune.errors import ConfigError
from spectune.models.loading import load_model

pytestmark = pytest.mark.filterwarnings("default")


def spectune(*arguments: str, folder, timeout: int = 600) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spectune", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module")
def target():
    try:
        embedded_gguf()
    except ConfigError as error:
        pytest.skip(error.problem)
    return load_model(None, device=torch.device("cpu"), dtype="float32")


@pytest.fixture(scope="module")
def workload(tmp_path_factory):
    from spectune.workload.prompts import load_workload

    short = [p for p in load_workload().prompts if len(p.messages) == 1 and len(p.messages[0].content) < 350][:8]
    lines = [{"prompt": p.messages[0].content, "category": "short"} for p in short]
    path = tmp_path_factory.mktemp("workload") / "short.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_profile_and_recommend_on_the_embedded_target(target, workload, tmp_path) -> None:
    options = ["--workload", str(workload), "--max-k", "3", "--max-new-tokens", "12", "--budget-s", "1"]
    done = spectune("profile", *options, "-o", "prof", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "n-gram needs no second model" in done.stderr
    done = spectune("recommend", "prof", "--json", folder=tmp_path)
    assert done.returncode in (0, 4), done.stderr
    answer = json.loads(done.stdout)
    assert answer["applies_to"]["target"] == "SmolLM2-135M-Instruct"
    assert {candidate["temperature"] for candidate in answer["candidates"]} == {0.0, 1.0}
    skill = (tmp_path / "outputs" / "skill-speculative-tuning.md").read_text()
    assert skill.startswith("---\nname: speculative-tuning\n")
    assert "speed-up not measured here" in skill


def test_replayed_rounds_are_the_rounds_of_real_decoding(target, workload, tmp_path) -> None:
    import numpy as np

    from spectune import ModelScorer, NgramDrafter, speculative_decode
    from spectune.drafting import Continuation, Scored
    from spectune.models.loading import prompt_token_ids
    from spectune.models.sampling import Sampling
    from spectune.replay import replay
    from spectune.workload.prompts import load_workload

    drafter, length, k = NgramDrafter(), 24, 4
    for prompt in load_workload(str(workload)).prompts[:2]:
        ids = prompt_token_ids(target, prompt.messages)
        plain = speculative_decode(ModelScorer(target), drafter, ids, 0, 0.0, max_new_tokens=length)
        decoded = speculative_decode(ModelScorer(target), drafter, ids, k, 0.0, max_new_tokens=length)
        assert decoded.token_ids == plain.token_ids
        row = Continuation(prompt_id="0", prompt_token_ids=ids, token_ids=plain.token_ids, sampling=Sampling())
        evidence = drafter.evidence([row], [Scored(logprobs=None)], chain(k))[0]
        accept = (np.arange(k)[None, :] < evidence.matched_tokens[:, None]).astype(float)[:, :, None]
        replayed = replay(accept, np.array([length]), evidence.proposed_tokens[:, None].astype(int))
        assert np.flatnonzero(replayed.starts[k - 1, :, 0]).tolist() == [r.start for r in decoded.rounds]
