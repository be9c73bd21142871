"""Pairs of models without weights, and what is found of them."""

import json
from pathlib import Path

from spectune.cli.app import run


def model(folder: Path, vocab_size: int = 100, texts: int = 90, **config: object) -> str:
    """A folder with a config and a tokenizer, and no weights."""
    folder.mkdir(parents=True)
    changed = config.pop("changed", {})
    fields = {"model_type": "llama", "vocab_size": vocab_size, "max_position_embeddings": 8192, **config}
    (folder / "config.json").write_text(json.dumps(fields))
    vocabulary = {changed.get(i, f"word{i}"): i for i in range(texts)}
    added = [{"id": texts, "content": "<end>", "special": True}]
    (folder / "tokenizer.json").write_text(
        json.dumps({"model": {"type": "BPE", "vocab": vocabulary}, "added_tokens": added})
    )
    return str(folder)


def doctor(capsys, target: str, draft: str, engine: str, *options: str) -> tuple[int, list[dict]]:
    code = run(["doctor", "--target", target, "--draft", draft, "--engine", engine, "--json", *options])
    said = capsys.readouterr()
    assert said.err == ""
    printed = json.loads(said.out)
    assert (printed["verdict"] == "impossible") == (code == 2)
    return code, printed["findings"]


def only(findings: list[dict], code: str, level: str = "error") -> str:
    coded = [finding for finding in findings if finding["code"] == code]
    assert len(coded) == 1, findings
    assert coded[0]["level"] == level
    return f"{coded[0]['message']} · {coded[0]['remedy']}"
