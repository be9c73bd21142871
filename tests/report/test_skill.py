"""The skill and the machine output: one says what the other holds."""

import json
import re
from dataclasses import replace

import pytest
import yaml

from spectune.cli.app import run
from spectune.decide.plan import recommend
from spectune.engines.config import recommended_config
from spectune.report.skill import skill_markdown
from tests.profiles import decoded, make_profile


def both(directory, capsys, *options: str) -> tuple[dict, str, int]:
    skill = directory.with_name(f"{directory.name}.md")
    code = run(["recommend", str(directory), "--json", "-o", str(skill), *options])
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out), skill.read_text(), code


def leaves(value) -> list:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def unexplained_numbers(markdown: str, machine: dict) -> list[str]:
    """Numbers of the Markdown that neither a string of the JSON holds nor a number of it rounds to."""
    found = leaves(machine)
    strings = " ".join(leaf for leaf in found if isinstance(leaf, str)) + " ".join(
        re.findall(r'"([^"]+)":', json.dumps(machine))
    )
    numbers = [leaf for leaf in found if isinstance(leaf, int | float) and not isinstance(leaf, bool)]
    missing = []
    for text in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?", markdown):
        decimals = len(text.partition(".")[2])
        if text not in re.findall(r"\d+(?:\.\d+)?", strings) and not any(f"{n:.{decimals}f}" == text for n in numbers):
            missing.append(text)
    return missing


LITERALS = {"95", "1"}  # [95%] of the headers, and the 1 of (1 − α^(K+1))/(1 − α)


@pytest.fixture
def fast(tmp_path):
    make_profile(tmp_path / "fast", {0.0: 0.85, 1.0: 0.8, 1.5: 0.2}, ngram_acceptance=0.3)
    return tmp_path / "fast"


@pytest.fixture
def slow(tmp_path):
    make_profile(tmp_path / "slow", {0.0: 0.5, 1.0: 0.3}, verify_s=0.25, draft_s=0.05)
    return tmp_path / "slow"


def test_every_number_of_the_skill_is_in_the_json(fast, slow, capsys) -> None:
    for directory in (fast, slow):
        machine, markdown, _ = both(directory, capsys)
        assert set(unexplained_numbers(markdown, machine)) <= LITERALS
        spoiled = markdown.replace(f"{machine['speedup']['estimate']:.2f}×", "7.77×", 1)
        assert "7.77" in unexplained_numbers(spoiled, machine)


def test_different_profiles_give_different_skills(fast, slow, capsys) -> None:
    (one, text_one, code_one), (two, text_two, code_two) = both(fast, capsys), both(slow, capsys)
    assert (one["verdict"], two["verdict"], code_one, code_two) == ("speculate", "plain", 0, 0)
    for key in ("draft", "num_speculative_tokens", "reasons", "temperature_gate", "fallback"):
        assert one[key] != two[key], key
    assert "Speculate with small, K = 4" in text_one
    assert "Decode plainly" in text_two


def test_the_skill_is_a_valid_agent_skill_with_the_sections_in_order(fast, capsys) -> None:
    _, markdown, _ = both(fast, capsys)
    _, front, body = markdown.split("---\n", 2)
    fields = yaml.safe_load(front)
    assert fields["name"] == "speculative-tuning"
    assert 20 < len(fields["description"]) < 1024
    sections = re.findall(r"^## (.+)$", body, re.M)
    assert sections == [
        "Settings",
        "Configs to paste",
        "Why",
        "Where it differs",
        "What was tried, the fastest",
        "How sure",
    ]
    assert fields.keys() == {"name", "description", "metadata"}
    assert all(isinstance(text, str) for pair in fields["metadata"].items() for text in pair)
    assert (fields["metadata"]["draft"], fields["metadata"]["num_speculative_tokens"]) == ("small", "4")


def test_the_longest_skill_is_read_in_a_minute(tmp_path) -> None:
    """Many temperatures, drafts and loads, a confirming run, every warning."""
    temperatures = {0.0: 0.85, 0.5: 0.8, 1.0: 0.6, 1.5: 0.2}
    profile = make_profile(tmp_path / "p", temperatures, ngram_acceptance=0.3, max_k=8)
    answer = recommend(decoded(profile, 4, 1.3, slow=0.3))
    answer = replace(
        answer,
        warnings=answer.warnings * 5,
        by_load=answer.by_load * 9,
        by_category=answer.by_category * 9,
        reasons=answer.reasons + answer.reasons[:4],
        confirmation=replace(answer.confirmation, settings=answer.confirmation.settings * 9),
    )
    pictures = dict.fromkeys(("speedup", "acceptance", "round", "category"), "picture.svg")
    configs = [recommended_config(answer, engine) for engine in ("vllm", "transformers")]
    assert len(skill_markdown(answer, configs, pictures).splitlines()) <= 120


def test_machine_output_has_the_promised_keys(fast, capsys) -> None:
    machine, _, _ = both(fast, capsys)
    promised = (
        "verdict draft num_speculative_tokens tree_width temperature_gate speedup break_even_alpha fallback "
        "by_temperature candidates reasons warnings"
    )
    assert set(promised.split()) <= machine.keys()
    assert set(machine["temperature_gate"]) == {"speculate_up_to", "plain_from"}
    assert set(machine["speedup"]) == {"estimate", "low", "high"}
    assert set(machine["fallback"]) == {
        "acceptance_length_below", "window_requests", "false_trip_rate", "windows_per_false_trip"
    }  # fmt: skip
    assert machine["tree_width"] == 1
    assert machine["temperature_gate"] == {"speculate_up_to": 1.0, "plain_from": 1.5}


def test_configs_carry_the_setting_and_disclaim_the_speedup(fast, capsys) -> None:
    machine, markdown, _ = both(fast, capsys)
    vllm, transformers = machine["configs"]
    setting = json.loads(re.search(r"'(\{.*\})'", vllm["text"]).group(1))
    assert setting == {"method": "draft_model", "model": "small", "num_speculative_tokens": 4}
    assert "num_assistant_tokens = 4" in transformers["text"]
    assert markdown.count("speed-up not measured here") == 2
    compile(transformers["text"], "config", "exec")


def test_a_sampled_draft_is_written_out_for_vllm_where_it_pays(tmp_path, capsys) -> None:
    make_profile(tmp_path / "p", {1.0: 0.8})
    machine, _, _ = both(tmp_path / "p", capsys)
    pays = machine["configs"][0]["acceptance_rule"] == "rejection"
    assert ("probabilistic" in machine["configs"][0]["text"]) == pays
    lengths = machine["acceptance_length_by_rule"]
    assert set(lengths) == {"rejection", "greedy_draft", "exact_match", "block"}
    assert lengths["block"] >= lengths["rejection"] > lengths["exact_match"]
    assert pays == (lengths["rejection"] > 1.01 * lengths["greedy_draft"])


def test_ngram_configs_write_both_bounds(tmp_path, capsys) -> None:
    make_profile(tmp_path / "n", {0.0: 0.1}, ngram_acceptance=0.9)
    machine, _, _ = both(tmp_path / "n", capsys)
    assert '"prompt_lookup_min": 1, "prompt_lookup_max": 4' in machine["configs"][0]["text"]
    assert "max_matching_ngram_size=4" in machine["configs"][1]["text"]


def test_undecided_exits_with_four_and_still_writes(tmp_path, capsys) -> None:
    make_profile(tmp_path / "few", {0.0: 0.85}, prompts=9)
    machine, markdown, code = both(tmp_path / "few", capsys)
    assert (machine["verdict"], code) == ("insufficient-data", 4)
    assert "Not enough data to decide" in markdown


def test_a_failed_recommend_leaves_the_old_skill(fast, tmp_path, capsys) -> None:
    skill = tmp_path / "old.md"
    skill.write_text("old")
    assert run(["recommend", str(fast), "--temperature", "0.3", "-o", str(skill)]) == 2
    assert skill.read_text() == "old"
    assert run(["recommend", str(fast), "-o", str(tmp_path)]) == 2
    assert "is a directory" in capsys.readouterr().err
    assert not list(tmp_path.glob(".*"))


def test_the_answer_does_not_depend_on_when_it_is_asked(fast) -> None:
    from spectune.profile.store import load_profile

    assert recommend(load_profile(fast)) == recommend(load_profile(fast))
