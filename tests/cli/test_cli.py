"""What the commands print and how they end."""

import json
import subprocess
import sys

import pytest

from spectune.cli.app import run
from spectune.speedup import expected_tokens


def what_if(capsys, *options: str) -> dict:
    assert run(["what-if", *options, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_if_prices_a_cost_ratio(capsys) -> None:
    result = what_if(capsys, "--alpha", "0.8", "--cost-ratio", "0.05", "--max-k", "12")
    assert [row["num_speculative_tokens"] for row in result["rows"]] == list(range(1, 13))
    for row in result["rows"]:
        k = row["num_speculative_tokens"]
        assert row["expected_tokens"] == pytest.approx(sum(0.8**i for i in range(k + 1)))
        assert row["speedup"] == pytest.approx(row["expected_tokens"] / (1 + 0.05 * k))
    best = max(result["rows"], key=lambda row: row["speedup"])
    assert result["best"] == {key: best[key] for key in ("num_speculative_tokens", "speedup")}
    k = best["num_speculative_tokens"]
    assert expected_tokens(result["break_even_alpha"], k) == pytest.approx(1 + 0.05 * k)


def test_what_if_prices_measured_times(capsys) -> None:
    result = what_if(capsys, "--alpha", "0.86", "--plain-s", "0.051", "--round-s", "0.112")
    assert [round(row["speedup"], 2) for row in result["rows"]] == [0.85]
    assert result["best"] == {"num_speculative_tokens": 0, "speedup": 1.0}
    assert result["break_even_alpha"] is None
    four = what_if(capsys, "--alpha", "0.8", "--plain-s", "0.258", "--round-s", "0.196", "--max-k", "4")
    assert four["rows"][0]["num_speculative_tokens"] == 4
    two = what_if(capsys, "--alpha", "0.8", "--plain-s", "1", "--round-s", "1.1", "--round-s", "1.2")
    assert [row["num_speculative_tokens"] for row in two["rows"]] == [1, 2]


@pytest.mark.parametrize(
    "options",
    [
        ["--alpha", "nan", "--cost-ratio", "0.1"],
        ["--alpha", "1.1", "--cost-ratio", "0.1"],
        ["--alpha", "-0.1", "--cost-ratio", "0.1"],
        ["--alpha", "0.5", "--cost-ratio", "nan"],
        ["--alpha", "0.5", "--cost-ratio", "-1"],
        ["--alpha", "0.5", "--cost-ratio", "inf"],
        ["--alpha", "0.5", "--cost-ratio", "0.1", "--max-k", "0"],
        ["--alpha", "0.5"],
        ["--alpha", "0.5", "--plain-s", "1"],
        ["--alpha", "0.5", "--round-s", "1"],
        ["--alpha", "0.5", "--plain-s", "0", "--round-s", "1"],
        ["--alpha", "0.5", "--plain-s", "1", "--round-s", "nan"],
        ["--alpha", "0.5", "--cost-ratio", "0.1", "--plain-s", "1", "--round-s", "1"],
        ["--alpha", "half", "--cost-ratio", "0.1"],
        ["--cost-ratio", "0.1"],
    ],
)
def test_what_if_refuses_nonsense_in_two_lines(capsys, options) -> None:
    assert run(["what-if", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    first, second = captured.err.splitlines()
    assert first.startswith("error: ")
    assert second.startswith("try: ")


def test_unknown_command_option_and_profile_are_refused(capsys, tmp_path) -> None:
    for arguments in (["fly"], ["profile"], ["recommend", str(tmp_path), "--fast"], ["recommend", str(tmp_path)]):
        assert run(arguments) == 2
        assert len(capsys.readouterr().err.splitlines()) == 2


def test_version_and_help(capsys) -> None:
    from spectune import __version__

    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"spectune {__version__}\n"
    assert run(["--help"]) == 0
    assert "recommend" in capsys.readouterr().out


def test_help_and_recommend_never_import_torch_nor_pandas(tmp_path) -> None:
    from tests.profiles import make_profile

    make_profile(tmp_path / "p", {0.0: 0.8, 1.0: 0.7}, ngram_acceptance=0.5)
    for arguments in (["--help"], ["recommend", str(tmp_path / "p"), "-o", str(tmp_path / "s.md")]):
        code = (
            f"import sys; from spectune.cli.app import run; code = run({arguments!r}); "
            "sys.exit(code or any(name in sys.modules for name in ('torch', 'transformers', 'pandas')))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_a_closed_pipe_is_quiet(tmp_path) -> None:
    command = f"{sys.executable} -m spectune what-if --alpha 0.5 --cost-ratio 0.1 --max-k 1000 | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_what_if_prices_a_tree_beside_its_chain_and_the_best_of_as_many_nodes(capsys) -> None:
    ranks = ["--rank-acceptance", "0.6,0.15,0.08,0.04"]
    tree, chain, best = what_if(capsys, "--tree", "4,2,2", *ranks, "--cost-ratio", "0.1")["rows"]
    first, two = 0.6 + 0.15 + 0.08 + 0.04, 0.6 + 0.15
    assert tree["expected_tokens"] == pytest.approx(1 + first + first * two + first * two * two)
    assert tree["speedup"] == pytest.approx(tree["expected_tokens"] / 1.3)
    assert chain["expected_tokens"] == pytest.approx(1 + 0.6 + 0.36 + 0.216)
    assert (best["nodes"], best["depth"]) == (28, 3)
    assert best["expected_tokens"] > tree["expected_tokens"]
    by_depth = ["--rank-acceptance", "0.6,0.2", "--rank-acceptance", "0.5,0.3"]
    tree, chain, _ = what_if(capsys, "--tree", "2,1", *by_depth, "--plain-s", "0.1", "--round-s", "0.12")["rows"]
    assert tree["expected_tokens"] == pytest.approx(1 + 0.8 + 0.8 * 0.5)
    assert tree["speedup"] == pytest.approx(tree["expected_tokens"] / 1.2)
    assert chain["speedup"] is None  # its round was not timed


@pytest.mark.parametrize(("options", "words"), [
    (["--tree", "2,2"], "no --alpha"),
    (["--rank-acceptance", "0.5"], "no --alpha"),
    (["--tree", "2,2", "--rank-acceptance", "0.6,0.2", "--alpha", "0.5"], "no --alpha"),
    (["--tree", "2,2", "--rank-acceptance", "0.6", "--cost-ratio", "0.1"], "takes 2 ranks"),
    (["--tree", "2,2", "--rank-acceptance", "0.9,0.2", "--cost-ratio", "0.1"], "no chances"),
    (["--tree", "2,2", "--rank-acceptance", "0.9,x", "--cost-ratio", "0.1"], "not understood"),
    (["--tree", "2,0", "--rank-acceptance", "0.9,0.1", "--cost-ratio", "0.1"], "0 children"),
    (["--tree", "1;1", "--rank-acceptance", "0.9,0.1", "--cost-ratio", "0.1"], "given twice"),
    (["--tree", "1.1;1", "--rank-acceptance", "0.9,0.1", "--cost-ratio", "0.1"], "before its parent"),
    (["--tree", "2,2", "--rank-acceptance", "0.6,0.2"], "one price"),
])  # fmt: skip
def test_what_if_refuses_what_is_no_tree_in_two_lines(capsys, options, words) -> None:
    assert run(["what-if", *options]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 2
