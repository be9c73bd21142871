"""`spectune profile` on tiny checkpoints: the whole line, and every way it must refuse."""

import json

import pytest
import torch

from spectune.cli.app import run
from spectune.profile.store import load_profile
from spectune.profile.tables import rows_where
from tests.checkpoints import WORDS, save_checkpoint
from tests.profiles import fitted_settings


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return save_checkpoint(folder / "target"), save_checkpoint(folder / "draft", seed=1)


@pytest.fixture
def workload(tmp_path):
    lines = [{"prompt": " ".join(WORDS[i : i + 5 + i % 7]), "category": "ab"[i % 2]} for i in range(20)]
    (tmp_path / "w.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return str(tmp_path / "w.jsonl")


def profile(models, workload, output, *options: str) -> int:
    return run(
        ["profile", "--target", models[0], "--workload", workload, "--max-k", "3", "--max-new-tokens", "12",
         "--budget-s", "0.5", "-o", str(output), *options]
    )  # fmt: skip


def test_profile_then_recommend(models, workload, tmp_path, capsys) -> None:
    output = tmp_path / "p"
    code = profile(models, workload, output, "--draft", models[1], "--draft", "ngram",
                   "--temperature", "0", "--temperature", "0.7")  # fmt: skip
    captured = capsys.readouterr()
    assert (code, captured.out) == (0, "")
    assert "next: spectune recommend" in captured.err
    saved = load_profile(output)
    assert len(saved.tape) == 2 * (20 - 2 * (10 // 4))
    assert [draft.spec for draft in saved.manifest.drafts] == [models[1], "ngram:min=1,max=4"]
    assert saved.manifest.target.digest
    assert saved.manifest.environment.dtype == "float32" or torch.cuda.is_available()
    assert "costs took" in (output / "run.log").read_text()
    assert len(fitted_settings(saved)) == 2 * 2 * 3
    assert run(["recommend", str(output), "-o", str(tmp_path / "s.md")]) in (0, 4)


def test_the_tape_is_the_same_twice(models, workload, tmp_path) -> None:
    for name in ("a", "b"):
        profile(models, workload, tmp_path / name, "--seed", "3")
    one, two = load_profile(tmp_path / "a"), load_profile(tmp_path / "b")
    assert (tmp_path / "a" / "tape.parquet").read_bytes() == (tmp_path / "b" / "tape.parquet").read_bytes()
    assert one.manifest.tables["acceptance"] == two.manifest.tables["acceptance"]
    profile(models, workload, tmp_path / "b", "--seed", "4", "--force")
    assert load_profile(tmp_path / "b").manifest.tables["tape"] != one.manifest.tables["tape"]


def test_costs_at_other_loads(models, workload, tmp_path, capsys) -> None:
    output = tmp_path / "p"
    options = ["--draft", models[1], "--temperature", "0", "--batch", "3", "--context", "40", "--limit-tokens", "12"]
    assert profile(models, workload, output, *options) == 0
    saved = load_profile(output)
    loads = [(load.batch, load.context_tokens) for load in saved.manifest.settings.loads]
    typical = loads[0][1]
    assert loads == [(1, typical), (1, 40), (3, typical), (3, 40)]
    forwards = rows_where(saved.costs, part="cost_p")
    assert set(zip(*(forwards[name].to_pylist() for name in ("batch", "context_tokens")), strict=True)) == set(loads)
    assert set(saved.tape["end"].to_pylist()) <= {"eos", "limit"}
    fitted = fitted_settings(saved, saved.manifest.settings.loads)
    assert {(s.load.batch, s.load.context_tokens) for s in fitted} == set(loads)
    assert run(["recommend", str(output), "-o", str(tmp_path / "s.md")]) in (0, 4)
    assert "| batch 3, context 40 |" in (tmp_path / "s.md").read_text()


@pytest.mark.parametrize(
    ("options", "code", "expected"),
    [
        (["--max-k", "0"], 2, "--max-k is 0"),
        (["--max-k", "65"], 2, "--max-k is 65"),
        (["--max-new-tokens", "3"], 2, "no complete round"),
        (["--budget-s", "nan"], 2, "--budget-s is nan"),
        (["--budget-s", "-1"], 2, "--budget-s is -1"),
        (["--temperature", "nan"], 2, "temperature is nan"),
        (["--temperature", "-1"], 2, "temperature is -1"),
        (["--temperature", "inf"], 2, "temperature is inf"),
        (["--seed", "-1"], 2, "--seed is -1"),
        (["--batch", "0"], 2, "--batch is 0"),
        (["--context", "-3"], 2, "--context is -3"),
        (["--context", "3"], 2, "--context 3 is not above --max-k 3"),
        (["--context", "300"], 2, "--context 300 does not fit"),
        (["--limit-tokens", "5"], 2, "--limit-tokens 5 is below --max-new-tokens 12"),
        (["--device", "cuda:99"], 3, "no device 'cuda:99'"),
        (["--dtype", "int4"], 2, "no dtype 'int4'"),
        (["--draft", "ngram:min=5,max=3"], 2, "5 to 3 tokens"),
        (["--draft", "ngram:min=x"], 2, "not understood"),
        (["--draft", "no-such/model"], 2, "no model 'no-such/model'"),
        (["--workload", "absent.jsonl"], 2, "absent.jsonl cannot be read"),
        (["--max-new-tokens", "300"], 2, "no prompt fits the context"),
    ],
)
def test_wrong_options_are_two_lines_and_leave_nothing(
    models, workload, tmp_path, capsys, monkeypatch, options, code, expected
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert profile(models, workload, tmp_path / "p", *options) == code
    captured = capsys.readouterr()
    error, remedy = captured.err.splitlines()[-2:]
    assert error.startswith("error: ")
    assert expected in error
    assert remedy.startswith("try: ")
    assert captured.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.jsonl"]


def test_another_tokenizer_is_refused(models, workload, tmp_path, capsys) -> None:
    other = save_checkpoint(tmp_path / "m", words=["cat", *WORDS[1:]])
    assert profile(models, workload, tmp_path / "p", "--draft", other) == 2
    assert 'id 4 is "w0" in the target, "cat" in the draft' in capsys.readouterr().err


def test_nan_weights_are_named_with_prompt_and_position(models, workload, tmp_path, capsys) -> None:
    from spectune.models.loading import load_model

    broken = load_model(models[0], device=torch.device("cpu"))
    broken.network.model.norm.weight.data[3] = float("nan")
    broken.network.save_pretrained(tmp_path / "nan")
    broken.tokenizer.save_pretrained(tmp_path / "nan")
    assert profile((str(tmp_path / "nan"),), workload, tmp_path / "p") == 2
    assert "gives non-finite logits on prompt" in capsys.readouterr().err
    assert profile(models, workload, tmp_path / "p", "--draft", str(tmp_path / "nan")) == 2
    assert "at position" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_a_profile_may_be_the_folder_one_stands_in_or_a_link(models, workload, tmp_path, monkeypatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "real")
    for place in (".", str(tmp_path / "link")):
        assert profile(models, workload, place, "--temperature", "0") == 0
        assert run(["confirm", place, "-k", "1"]) == 0
        assert load_profile(tmp_path / "real").confirmed is not None
    assert (tmp_path / "link").is_symlink()
    assert profile(models, workload, ".", "--temperature", "0", "--force") == 0
    assert not list((tmp_path / "real").glob("confirmed*"))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_of_nan_is_refused_while_decoding(models, temperature) -> None:
    from spectune import DraftModel, ModelScorer, load_model, speculative_decode
    from spectune.errors import ConfigError

    target, broken = (load_model(models[0], device=torch.device("cpu"), dtype="float32") for _ in range(2))
    broken.network.model.norm.weight.data[3] = float("nan")
    with pytest.raises(ConfigError, match="the draft gives non-finite logits"):
        speculative_decode(ModelScorer(target), DraftModel(broken), [4, 5], 2, temperature)


@pytest.mark.parametrize("width", [36, 72, 120])
def test_tables_fit_the_terminal(tmp_path, width) -> None:
    import io

    from rich.console import Console

    from spectune.cli.terminal import show_settings
    from spectune.decide.formula import fit_formula
    from tests.profiles import fitted_settings, make_profile

    settings = fitted_settings(make_profile(tmp_path / "p", {0.0: 0.8, 1.0: 0.5}, ngram_acceptance=0.4))
    console = Console(file=io.StringIO(), width=width, highlight=False)
    show_settings(console, settings, fit_formula(settings))
    text = console.file.getvalue()
    assert "…" not in text
    assert text.count("tokens/round") == 4
    assert "best" in text or "→" in text
