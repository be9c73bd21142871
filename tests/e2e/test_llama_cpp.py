"""Exported configs on a real llama.cpp server: it starts, drafts as told, and telemetry reads what it counts.

`make test-llamacpp` installs the server beside and sets SPECTUNE_LLAMA_CPP_PYTHON.
"""

import json
import os
import re
import shlex
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spectune.checkpoints.embedded import embedded_gguf
from spectune.drafting_spec import draft_spec
from spectune.engines.config import engine_config
from spectune.engines.reading import read_telemetry
from spectune.engines.speculation import Speculation

PYTHON = os.environ.get("SPECTUNE_LLAMA_CPP_PYTHON")
pytestmark = [pytest.mark.engine, pytest.mark.skipif(not PYTHON, reason="make test-llamacpp installs the server")]

PROMPTS = [
    "Count: 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 1, 2, 3,",
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a",
    "Once upon a time there was a small village where",
]


def asked(draft: str | None, k: int) -> Speculation:
    return Speculation(
        target=str(embedded_gguf()),
        draft=None if draft is None else draft_spec(draft),
        num_speculative_tokens=k,
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        dtype="auto",
        schedule=[],
        lengths={"greedy_draft": 2.0},
    )


@contextmanager
def served(options: list[str], log: Path) -> Iterator[str]:
    """The server's address."""
    runner = Path(__file__).with_name("llama_cpp_server.py")
    with log.open("w") as written:
        process = subprocess.Popen([str(PYTHON), str(runner), *options], stdout=written, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 120
        while not (found := re.search(r"^listening on (\S+)$", log.read_text(errors="replace"), re.MULTILINE)):
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield found[1]
    finally:
        process.terminate()
        process.wait(30)


def answer(url: str, prompt: str) -> dict:
    body = json.dumps({"prompt": prompt, "n_predict": 48, "temperature": 0.0, "cache_prompt": False}).encode()
    request = urllib.request.Request(f"{url}/completion", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answered:
        return json.load(answered)


@pytest.mark.parametrize(
    ("draft", "k"), [(None, 1), ("ngram:min=3,max=3", 6), ("itself", 3)], ids=["plain", "n-gram", "its own draft"]
)
def test_an_exported_config_starts_and_its_counters_agree_with_a_client(draft, k, tmp_path) -> None:
    config = engine_config(asked(str(embedded_gguf()) if draft == "itself" else draft, k), "llama.cpp")
    options = shlex.split(config.text.replace("\\\n", " "))[1:]
    log = tmp_path / "log"
    with served(options, log) as url:
        timings = [answer(url, prompt)["timings"] for prompt in PROMPTS]
        with urllib.request.urlopen(f"{url}/metrics") as page:
            metrics = page.read().decode()
        drafted, deadline = sum("draft_n" in one for one in timings), time.monotonic() + 10
        while log.read_text(errors="replace").count("draft acceptance") < drafted and time.monotonic() < deadline:
            time.sleep(0.1)  # it logs after it answers
    proposed = sum(one.get("draft_n", 0) for one in timings)
    accepted = sum(one.get("draft_n_accepted", 0) for one in timings)
    if draft is None:
        assert proposed == 0
        assert read_telemetry(json.dumps(timings)).acceptance_length is None
        return
    assert proposed > 0
    seen = read_telemetry(metrics)
    assert (seen.engine, seen.num_draft_tokens, seen.num_accepted_tokens) == ("llama.cpp", proposed, accepted)
    assert len(seen.cumulative_acceptance_rate) <= k
    assert seen.num_draft_tokens <= k * seen.num_drafts
    logged = read_telemetry(log.read_text(errors="replace"))
    assert (logged.num_draft_tokens, logged.num_accepted_tokens) == (proposed, accepted)
    assert logged.acceptance_length == pytest.approx(seen.acceptance_length, abs=0.06)
    if draft == "itself":
        assert len(seen.cumulative_acceptance_rate) == k  # the K it was given
        assert seen.draft_acceptance_rate > 0.9
        emitted = sum(one["predicted_n"] for one in timings)
        rounds = emitted - len(timings) - accepted
        assert seen.num_drafts == pytest.approx(rounds, abs=len(timings))
        assert read_telemetry(json.dumps(timings)).acceptance_length == pytest.approx(seen.acceptance_length, rel=0.1)
