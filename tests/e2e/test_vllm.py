"""Exported configs under vLLM's own parser and on its server for CPU; telemetry reads what it counts.

`make test-vllm` installs vLLM beside and sets SPECTUNE_VLLM_PYTHON.
"""

import json
import os
import re
import shlex
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spectune.decide.recommendation import BatchStep
from spectune.drafting_spec import draft_spec
from spectune.engines.config import engine_config
from spectune.engines.reading import read_telemetry
from spectune.engines.speculation import Speculation
from spectune.models.loading import load_model

PYTHON = os.environ.get("SPECTUNE_VLLM_PYTHON")
pytestmark = [pytest.mark.engine, pytest.mark.skipif(not PYTHON, reason="make test-vllm installs the engine")]

ENVIRONMENT = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
PARSE = """
import json, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.engine.arg_utils import AsyncEngineArgs
parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
args = parser.parse_args(sys.argv[1:])
config = AsyncEngineArgs.from_cli_args(args).create_engine_config().speculative_config
names = ("method", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max", "draft_sample_method",
         "num_speculative_tokens_per_batch_size")
print("PARSED", json.dumps({name: getattr(config, name, None) for name in names}))
"""
PROMPTS = [
    "Count: 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 1, 2, 3,",
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a",
    "Once upon a time there was a small village where",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """SmolLM2 as the folder that vLLM reads."""
    import torch

    model = load_model(None, device=torch.device("cpu"))
    path = tmp_path_factory.mktemp("model")
    model.network.save_pretrained(path)
    model.tokenizer.save_pretrained(path)
    return str(path)


def asked(folder: str, draft: str, k: int, **changes: object) -> Speculation:
    fields = {
        "target": folder, "draft": draft_spec(draft), "num_speculative_tokens": k, "temperature": 0.0, "top_p": 1.0,
        "top_k": 0, "dtype": "bfloat16", "schedule": [], "lengths": {"greedy_draft": 2.0, "rejection": 2.0},
    }  # fmt: skip
    return Speculation(**{**fields, **changes})


def options(asked_for: Speculation) -> list[str]:
    """What follows `vllm serve`, its model as the option that the server's module takes."""
    words = shlex.split(engine_config(asked_for, "vllm@0.32").text.replace("\\\n", " "))
    return ["--model", words[2], *words[3:], "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "32"]


def parsed(given: list[str]) -> dict:
    done = subprocess.run(
        [str(PYTHON), "-c", PARSE, *given], env=ENVIRONMENT, capture_output=True, text=True, timeout=600
    )
    found = re.search(r"^PARSED (.*)$", done.stdout, re.MULTILINE)
    assert found, done.stderr[-3000:]
    return json.loads(found[1])


def test_its_own_parser_reads_what_was_meant(folder, tmp_path) -> None:
    schedule = [BatchStep(batch=1, num_speculative_tokens=4), BatchStep(batch=8, num_speculative_tokens=2),
                BatchStep(batch=32, num_speculative_tokens=0)]  # fmt: skip
    seen = parsed(options(asked(folder, "ngram:min=2,max=3", 5)))
    assert (seen["method"], seen["num_speculative_tokens"]) == ("ngram", 5)
    assert (seen["prompt_lookup_min"], seen["prompt_lookup_max"]) == (2, 3)
    seen = parsed(options(asked(folder, folder, 4, schedule=schedule, lengths={"greedy_draft": 2.0, "rejection": 2.5})))
    assert (seen["method"], seen["num_speculative_tokens"], seen["draft_sample_method"]) == (
        "draft_model",
        4,
        "probabilistic",
    )
    assert seen["num_speculative_tokens_per_batch_size"] == [[1, 1, 4], [2, 8, 2], [9, 32, 0]]
    config = engine_config(asked(folder, "ngram:min=2,max=3", 5), "vllm@0.32")
    file = tmp_path / "vllm.yaml"
    file.write_text(config.files["vllm.yaml"])
    seen = parsed(["--config", str(file), "--enforce-eager", "--max-model-len", "1024"])
    assert (seen["method"], seen["num_speculative_tokens"], seen["prompt_lookup_max"]) == ("ngram", 5, 3)


@contextmanager
def served(given: list[str], log: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", *given, "--port", str(port)]
    with log.open("w") as written:
        process = subprocess.Popen(command, stdout=written, stderr=subprocess.STDOUT, env=ENVIRONMENT)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 400
    try:
        while True:
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def chunks(url: str, model: str, prompt: str) -> tuple[list[int], dict]:
    """Tokens in each chunk of a streamed answer, and what the last one says of speculation."""
    body = {"model": model, "prompt": prompt, "max_tokens": 48, "temperature": 0.0, "stream": True, "ignore_eos": True,
            "return_token_ids": True, "stream_options": {"include_usage": True}}  # fmt: skip
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    counts, told = [], {}
    with urllib.request.urlopen(request, timeout=300) as answered:
        for line in answered:
            text = line.decode().removeprefix("data: ").strip()
            if not text or text == "[DONE]":
                continue
            chunk = json.loads(text)
            told = chunk.get("metrics") or told
            counts += [len(choice["token_ids"]) for choice in chunk["choices"] if choice.get("token_ids")]
    return counts, told


@pytest.mark.parametrize(("draft", "k"), [("itself", 3), ("ngram:min=2,max=3", 5)], ids=["its own draft", "n-gram"])
def test_an_exported_config_starts_and_its_counters_agree_with_a_client(folder, draft, k, tmp_path) -> None:
    given = options(asked(folder, folder if draft == "itself" else draft, k))
    log = tmp_path / "log"
    with served([*given, "--per-request-spec-decode-metrics", "detailed"], log) as url:
        answers = [chunks(url, folder, prompt) for prompt in PROMPTS]
        time.sleep(12)  # it logs every ten seconds
        chunks(url, folder, PROMPTS[0])
        time.sleep(12)
        with urllib.request.urlopen(f"{url}/metrics") as page:
            metrics = page.read().decode()
    seen = read_telemetry(metrics)
    assert seen.engine == "vllm"
    assert len(seen.cumulative_acceptance_rate) == k  # the K it was given
    told = read_telemetry("\n".join(json.dumps(metrics) for _, metrics in answers if metrics))
    counted = [one for counts, _ in answers for one in counts[1:]]  # the first chunk comes from the prompt
    accepted = sum(one - 1 for one in counted)  # the last step of a text may accept more than is sent
    assert accepted > 0
    assert told.num_accepted_tokens == pytest.approx(accepted, abs=k * len(answers))
    if draft == "itself":
        assert seen.draft_acceptance_rate > 0.9
        assert told.acceptance_length == pytest.approx(sum(counted) / len(counted), rel=0.06)
    assert told.acceptance_length == pytest.approx(seen.acceptance_length, rel=0.2)
    assert told.num_accepted_tokens <= seen.num_accepted_tokens
    logged = read_telemetry(log.read_text())
    assert logged.engine == "vllm"
    assert logged.num_draft_tokens == seen.num_draft_tokens
    assert logged.num_accepted_tokens == seen.num_accepted_tokens
    assert logged.acceptance_length == pytest.approx(seen.acceptance_length, abs=0.02)
