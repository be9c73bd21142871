"""What the documents tell to type works: README and tutorial, on small models under the same names."""

import json
import re
import shlex
from pathlib import Path

import pytest

from spectune.cli.app import run
from tests.checkpoints import WORDS, save_checkpoint
from tests.served.test_telemetry import vllm_page

ROOT = Path(__file__).parents[2]
MODELS = ("my-model", "my-draft", "Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B")


def commands(document: str) -> list[list[str]]:
    """Every spectune command of a document, in order, without its path."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / document).read_text("utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith(".venv/bin/spectune")]


@pytest.fixture
def workplace(tmp_path, monkeypatch) -> Path:
    for seed, name in enumerate(MODELS):
        save_checkpoint(tmp_path / name, seed=seed)
    lines = [{"prompt": " ".join(WORDS[i : i + 9]), "category": "ab"[i % 2]} for i in range(24)]
    for name, drafts in (("before.txt", 100), ("after.txt", 300)):
        (tmp_path / name).write_text(vllm_page(drafts, drafts * 3, [drafts * 0.8, drafts * 0.6, drafts * 0.3]))
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("document", ["README.md", "docs/tutorial.md"])
def test_documented_commands_run(workplace, document, capsys) -> None:
    found = commands(document)
    assert len(found) >= 5
    for command in found:
        if command[0] == "profile":  # quicker than a reader's
            command += ["--max-new-tokens", "16"]
            command += [] if "--budget-s" in command else ["--budget-s", "0.3"]
        if "builtin" in command or ("--workload" not in command and command[0] == "profile"):
            command += ["--workload", "prompts.jsonl"]
        fine = (0, 1, 4) if command[0] == "check" or "--verify" in command else (0, 4)
        assert run(command) in fine, (command, capsys.readouterr().err)


@pytest.mark.parametrize("document", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(document) -> None:
    text = (ROOT / document).read_text("utf-8")
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert ((ROOT / document).parent / link).exists(), link
