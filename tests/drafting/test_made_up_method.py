"""A drafting method is one file and one row: a made-up one is profiled, priced, chosen, decoded and exported."""

import json

import pytest

from spectune import drafting_spec
from spectune.cli.app import run
from spectune.decide.evidence import confirmed_evidence, whole_texts
from spectune.profile.store import load_profile
from tests.checkpoints import WORDS, save_checkpoint
from tests.drafting import fixed


@pytest.fixture
def output(tmp_path, monkeypatch) -> str:
    monkeypatch.setitem(drafting_spec.METHODS, "fixed", fixed.ROW)
    workload = tmp_path / "w.jsonl"
    workload.write_text("\n".join(json.dumps({"prompt": " ".join(WORDS[i : i + 7])}) for i in range(20)))
    target, output = save_checkpoint(tmp_path / "target"), str(tmp_path / "p")
    options = ["--temperature", "0", "--max-k", "2", "--max-new-tokens", "16", "--budget-s", "0.5", "-o", output]
    assert run(["profile", "--target", target, "--draft", "fixed", "--workload", str(workload), *options]) == 0
    return output


def test_it_goes_all_the_way(output, tmp_path, capsys) -> None:
    evidence = load_profile(output_path := tmp_path / "p").acceptance
    assert set(evidence["draft"].to_pylist()) == {"fixed"}
    assert run(["confirm", output, "--prompts", "2", "--max-new-tokens", "8"]) == 0
    rounds = rounds_of(load_profile(output_path))
    assert (rounds.loc[rounds["draft"] == "fixed", "proposed"] > 0).all()
    capsys.readouterr()
    assert run(["recommend", output, "-o", str(tmp_path / "skill.md"), "--json"]) in (0, 4)
    answer = json.loads(capsys.readouterr().out)
    assert answer["best_candidate"]["draft"] == "fixed"
    assert set(answer["acceptance_length_by_rule"]) == {"greedy_draft"}
    assert run(["export", output, "--engine", "vllm", "--draft", "fixed", "-k", "2"]) == 0
    assert "vLLM has no fixed drafting" in capsys.readouterr().out


def rounds_of(profile):
    return profile.confirmed.rounds.to_pandas().merge(profile.confirmed.runs.to_pandas(), on="run")


def test_replay_takes_the_rounds_of_real_decoding(output, tmp_path) -> None:
    assert run(["confirm", output, "--temperature", "0", "-k", "1", "-k", "2"]) == 0
    profile = load_profile(tmp_path / "p")
    evidence, rounds = confirmed_evidence(profile)["fixed", 0.0], rounds_of(profile)
    for k in (1, 2):
        own = rounds[(rounds["draft"] == "fixed") & (rounds["depth"] == k)]
        assert whole_texts(evidence, k, 16)[0].rounds.tolist() == own.groupby("run").size().tolist()
        assert (own["proposed"] == k).all()
