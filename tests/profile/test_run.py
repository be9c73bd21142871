"""Run files: everything the options can say; what is misspelt is refused with the nearest name."""

from dataclasses import fields
from pathlib import Path

import pytest

from spectune.cli.app import run
from spectune.errors import ConfigError
from spectune.profile.run import Run, differences, read_run
from spectune.profile.store import load_profile
from tests.checkpoints import WORDS, save_checkpoint


def test_options_come_before_the_file_and_the_file_before_the_defaults(tmp_path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("max-k: 4\ntemperature: 0.5\ndraft: [ngram, other]\nbudget_s: 30\nno_text: true\n")
    read = read_run(path, {"max_k": 5, "seed": 2})
    assert read == Run(max_k=5, temperature=[0.5], draft=["ngram", "other"], budget_s=30.0, no_text=True, seed=2)
    assert read_run(None, {}) == Run()


@pytest.mark.parametrize(
    ("text", "problem", "remedy"),
    [
        ("temperatur: 1", "unknown key 'temperatur'", "did you mean temperature?"),
        ("frobnicate: 1", "unknown key 'frobnicate'", "known keys: target"),
        ("max_k: many", "max_k: input should be a valid integer", ""),
        ("max_k: 1.5", "max_k: input should be a valid integer", ""),
        ("temperature: [a]", "temperature.0: input should be a valid number", ""),
        ("target: [a]", "target: input should be a valid string", ""),
        ("- a", "holds no keys", ""),
        ("", "holds no keys", ""),
        ("a: [", "is not YAML", ""),
    ],
)
def test_what_is_no_run_file_is_refused(tmp_path, text, problem, remedy) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_run(tmp_path / "r.yaml", {})
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy


def test_a_missing_run_file_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_run(tmp_path / "none.yaml", {})


def test_every_option_is_a_key_and_every_key_an_option(capsys) -> None:
    assert run(["profile", "--help"]) == 0
    text = capsys.readouterr().out
    for one in fields(Run):
        if one.name == "max_regression":  # for spectune check --run
            continue
        assert f"--{one.name.replace('_', '-')}" in text


def test_differences_are_named_and_places_are_none() -> None:
    assert differences(Run(draft=["a"], output="x"), Run(draft=["b"], output="y", max_k=3)) == [
        "draft (a, now b)",
        "max_k (8, now 3)",
    ]


def test_a_run_file_is_run_and_stored(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    save_checkpoint(tmp_path / "target")
    (tmp_path / "w.txt").write_text("\n".join(" ".join(WORDS[i : i + 6]) for i in range(16)))
    (tmp_path / "r.yaml").write_text(
        "target: target\nworkload: w.txt\noutput: out\nmax_k: 3\nmax_new_tokens: 12\nbudget_s: 0.5\ntemperature: 0\n"
    )
    assert run(["profile", "--run", "r.yaml", "--max-k", "2"]) == 0
    saved = load_profile(tmp_path / "out")
    assert (saved.manifest.run.max_k, saved.manifest.run.workload) == (2, "w.txt")
    assert run(["profile", "--target", "target"]) == 2
    assert "there is no directory to save in" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(Path("profiles").glob("*.yaml")), ids=str)
def test_the_run_files_of_this_repository_are_valid(path) -> None:
    assert read_run(path, {}).output
