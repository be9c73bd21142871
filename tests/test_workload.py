"""Prompts in: the built-in set keeps its promises; files are read or refused with the line."""

import json
import statistics

import pytest

from spectune.errors import ConfigError
from spectune.workload import BUILTIN, Message, Prompt, Workload, load_workload


def opening(prompt: Prompt) -> tuple[str, ...]:
    first = next(message for message in prompt.messages if message.role == "user")
    return tuple(first.content.lower().split()[:6])


def test_the_builtin_set_is_as_large_and_varied_as_promised() -> None:
    workload = load_workload()
    assert len(workload.prompts) >= 72
    assert set(workload.categories) == {"code", "chat", "summarise", "extract", "maths", "creative"}
    assert min(workload.categories.values()) >= 12
    openings = [opening(prompt) for prompt in workload.prompts]
    assert len(set(openings)) == len(openings)


def test_builtin_lengths_range_from_short_to_long() -> None:
    lengths = [sum(len(m.content) for m in prompt.messages) / 4.3 for prompt in load_workload().prompts]
    assert min(lengths) > 15
    assert 1200 < max(lengths) < 1600
    assert 60 < statistics.median(lengths) < 400


def test_summarise_and_extract_carry_their_source() -> None:
    for prompt in load_workload().prompts:
        if prompt.category in ("summarise", "extract"):
            assert len(prompt.messages[-1].content.split()) > 50


def test_the_held_out_quarter_is_the_lowest_hashes_of_each_category() -> None:
    workload = load_workload()
    for category, count in workload.categories.items():
        ids = sorted(p.id for p in workload.prompts if p.category == category)
        assert sorted(p.id for p in workload.held_out if p.category == category) == ids[: count // 4]
    assert set(workload.held_out).isdisjoint(workload.profiled)
    assert len(workload.held_out) + len(workload.profiled) == len(workload.prompts)


def test_the_hash_sees_text_and_labels_but_not_order() -> None:
    a, b = (Prompt(category="x", messages=(Message(role="user", content=text),)) for text in "ab")
    relabelled = Prompt(category="y", messages=a.messages)
    both = Workload(name="1", prompts=(a, b)).hash
    assert Workload(name="2", prompts=(b, a)).hash == both
    assert Workload(name="1", prompts=(relabelled, b)).hash != both
    assert Workload(name="1", prompts=(a,)).hash != both


def test_prompt_messages_and_turns_are_read(tmp_path) -> None:
    path = tmp_path / "w.jsonl"
    lines = [
        {"prompt": "one", "category": "a"},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "two"}]},
        {"turns": ["three", "later"], "category": "b"},
    ]
    path.write_text("\ufeff" + "\n\n".join(json.dumps(line) for line in lines))
    workload = load_workload(str(path))
    assert [prompt.messages[-1].content for prompt in workload.prompts] == ["one", "two", "three"]
    assert workload.prompts[1].messages[0] == Message(role="system", content="s")
    assert workload.categories == {"a": 1, "uncategorised": 1, "b": 1}
    assert "1 prompts have later turns" in workload.notes[0]


def test_json_and_jsonl_of_the_same_prompts_are_the_same_workload(tmp_path) -> None:
    items = [{"prompt": "one"}, {"prompt": "two"}]
    (tmp_path / "w.json").write_text(json.dumps(items, indent=1))
    (tmp_path / "w.jsonl").write_text("\n".join(map(json.dumps, items)))
    assert load_workload(str(tmp_path / "w.json")).hash == load_workload(str(tmp_path / "w.jsonl")).hash


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("w.jsonl", "", "no prompts"),
        ("w.jsonl", '{"prompt": "a"}\n{"prompt": ', "line 2"),
        ("w.jsonl", '{"prompt": "a"}\n\n[1]', "line 3 is not an object"),
        ("w.jsonl", '{"text": "a"}', "line 1 has none of"),
        ("w.jsonl", '{"prompt": "a", "turns": ["b"]}', "prompt and turns"),
        ("w.jsonl", '{"prompt": "  "}', "line 1: prompt is empty"),
        ("w.jsonl", '{"prompt": 3}', "line 1: prompt is empty or not text"),
        ("w.jsonl", '{"turns": []}', "turns is empty"),
        ("w.jsonl", '{"messages": [{"role": "robot", "content": "x"}]}', "no known role"),
        ("w.jsonl", '{"messages": [{"role": "user", "content": [1]}]}', "content is empty"),
        ("w.jsonl", '{"messages": "x"}', "messages is not a list"),
        ("w.jsonl", '{"prompt": "a", "category": 1}', "category is not a name"),
        ("w.jsonl", '{"prompt": "\\ud800"}', "half a surrogate"),
        ("w.json", '{"prompt": "a"}', "not a JSON list"),
        ("w.json", '[{"prompt": "a"}, 4]', "item 2 is not an object"),
        ("w.json", "[\n\n}", "line 3 is not JSON"),
        ("w.jsonl", "[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_workload_is_refused_in_place(tmp_path, name, content, expected) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=expected) as caught:
        load_workload(str(tmp_path / name))
    assert caught.value.remedy


def test_missing_folder_and_bytes_are_refused(tmp_path) -> None:
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "caf\xe9"}')
    for source in (tmp_path / "none.jsonl", tmp_path, tmp_path / "latin.jsonl"):
        with pytest.raises(ConfigError):
            load_workload(str(source))
    assert load_workload(BUILTIN).name == BUILTIN
