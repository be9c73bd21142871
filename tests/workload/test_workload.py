"""Prompts in: the built-in set keeps its promises; files are read or refused with the line."""

import gzip
import io
import json
import statistics
import sys
import types

import pytest

from spectune.errors import ConfigError
from spectune.workload.prompts import BUILTIN, Message, Prompt, Workload, load_workload


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
    assert [notice.message for notice in workload.notices] == ["prompts with later turns that are not used: 1"]


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
        ("w.jsonl", '{"prompt": "  "}', "empty prompts only"),
        ("w.jsonl", '{"prompt": 3}', "line 1: prompt is not text"),
        ("w.jsonl", '{"turns": []}', "turns is no list, or an empty one"),
        ("w.jsonl", '{"body": {"input": "x"}}', "body holds neither"),
        ("w.jsonl", '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "more than text"),
        ("w.csv", "prompt,answer\na\n", "line 2 has not as many fields"),
        ("w.csv", 'prompt\n"a', "is not CSV"),
        ("w.csv", "text\na\n", "line 2 has none of prompt"),
        ("w.jsonl", '{"messages": [{"role": "robot", "content": "x"}]}', "no known role"),
        ("w.jsonl", '{"messages": [{"role": "user", "content": [1]}]}', "content is not text"),
        ("w.jsonl", '{"messages": "x"}', "messages is no list"),
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


@pytest.mark.parametrize(
    ("name", "content", "column", "expected"),
    [
        ("latin.jsonl", b'{"prompt": "caf\xe9"}', "", "not UTF-8 at byte 15"),
        ("short.jsonl.gz", gzip.compress(b'{"prompt": "a"}' * 99, mtime=0)[:-9], "", "gzip ends early"),
        ("torn.jsonl.gz", b"\x1f\x8bnonsense", "", "gzip is damaged"),
        ("w.csv", b"ask,category\na,b\n", ":prompt", "line 2 has no column 'prompt'"),
        ("w.jsonl", b'{"ask": "a"}\n{"b": 1}', ":ask", "line 2 has no column 'ask'"),
        ("w.txt", b"a", ":ask", "line 1 has no columns"),
    ],
)
def test_bytes_that_are_no_text_and_columns_that_are_not_there(tmp_path, name, content, column, expected) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=expected):
        load_workload(str(tmp_path / name) + column)


HUMAN = {"from": "human", "value": "one"}
CHAT = [{"role": "user", "content": "one"}]


@pytest.mark.parametrize(
    ("name", "text", "asked"),
    [
        ("w.json", json.dumps([{"id": "1", "conversations": [HUMAN, {"from": "gpt", "value": "x"}, HUMAN]}]), ["one"]),
        ("w.json", json.dumps([{"conversations": [{"from": "system", "value": "s"}, HUMAN]}]), ["s", "one"]),
        ("w.jsonl", json.dumps({"custom_id": "1", "url": "/v1/chat/completions", "body": {"messages": CHAT}}), ["one"]),
        ("w.jsonl", json.dumps({"url": "/v1/completions", "body": {"model": "m", "prompt": "one"}}), ["one"]),
        ("w.jsonl", json.dumps({"question_id": 81, "question": "one", "answer": "x"}), ["one"]),
        ("w.jsonl", json.dumps({"task_id": "HumanEval/0", "prompt": "one", "entry_point": "f"}), ["one"]),
        (
            "w.jsonl",
            json.dumps({"messages": [*CHAT, {"role": "assistant", "content": "a"}, *CHAT]}),
            ["one", "a", "one"],
        ),
        ("w.jsonl", json.dumps({"messages": [*CHAT, {"role": "assistant", "content": "a"}]}), ["one"]),
        (
            "w.jsonl",
            json.dumps({"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}]}]}),
            ["one"],
        ),
        ("w.csv", 'id,prompt\n1,"one,\ntwo"\n', ["one,\ntwo"]),
        ("w.csv:ask", "ask,prompt\none,other\n", ["one"]),
        ("w.tsv", "id\tprompt\n1\tone\n", ["one"]),
        ("w.txt", "one\n\n", ["one"]),
        ("w.jsonl:text", json.dumps({"text": "one"}), ["one"]),
    ],
)
def test_the_forms_that_people_have(tmp_path, name, text, asked) -> None:
    file, _, column = name.partition(":")
    (tmp_path / file).write_text(text)
    (tmp_path / f"{file}.gz").write_bytes(gzip.compress(text.encode()))
    for path in (file, f"{file}.gz"):
        source = f"{tmp_path / path}:{column}" if column else str(tmp_path / path)
        (prompt,) = load_workload(source).prompts
        assert [message.content for message in prompt.messages] == asked
        assert prompt.messages[-1].role == "user"


@pytest.mark.parametrize(
    "text", ["one\ntwo\n", '{"prompt": "one"}\n{"question": "two"}', '[{"prompt": "one"}, {"prompt": "two"}]']
)
def test_standard_input_may_be_lines_or_json(monkeypatch, text) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    workload = load_workload("-")
    assert [prompt.messages[0].content for prompt in workload.prompts] == ["one", "two"]
    assert workload.name == "standard input"


def test_a_column_of_a_dataset(monkeypatch) -> None:
    rows = [{"question": "one", "answer": 1}, {"question": "two", "answer": 2}]
    asked = []
    package = types.SimpleNamespace(load_dataset=lambda name, split: asked.append((name, split)) or rows)
    monkeypatch.setitem(sys.modules, "datasets", package)
    workload = load_workload("hf:openai/gsm8k:test:question")
    assert asked == [("openai/gsm8k", "test")]
    assert [prompt.messages[0].content for prompt in workload.prompts] == ["one", "two"]
    with pytest.raises(ConfigError, match="row 1 has no column 'ask'"):
        load_workload("hf:openai/gsm8k:test:ask")
    with pytest.raises(ConfigError, match="names no dataset"):
        load_workload("hf:openai/gsm8k")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match="needs the datasets package"):
        load_workload("hf:openai/gsm8k:test:question")


def test_empty_and_repeated_prompts_are_counted_and_left_out(tmp_path) -> None:
    items = [{"prompt": "a"}, {"prompt": " "}, {"prompt": None}, {"prompt": "a"}, {"prompt": "a", "category": "b"}]
    (tmp_path / "w.json").write_text(json.dumps(items))
    workload = load_workload(str(tmp_path / "w.json"))
    assert len(workload.prompts) == 2
    assert [notice.message for notice in workload.notices] == [
        "prompts with no text, left out: 2",
        "prompts with the text of an earlier one, left out: 1",
    ]


def test_missing_files_and_folders_are_refused(tmp_path) -> None:
    for source in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            load_workload(str(source))
    assert load_workload(BUILTIN).name == BUILTIN
