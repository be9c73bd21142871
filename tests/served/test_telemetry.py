"""What servers tell of themselves, by engine and version, on one scale; hostile text ends in one line."""

import json
import random
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from time import perf_counter

import pytest

from spectune.checkpoints.facts import model_facts
from spectune.cli.app import run
from spectune.decide.served_depth import served_depth
from spectune.engines.reading import read_telemetry
from spectune.errors import ConfigError, EngineError, InsufficientDataError, SpectuneError
from spectune.served.pages import fetched, shown
from spectune.served.telemetry import Telemetry
from tests.profiles import make_profile


def vllm_page(drafts: float, proposed: float, accepted: list[float], suffix: str = "_total", model: str = "m") -> str:
    labels = f'engine="0",model_name="{model}"'
    lines = [
        "# HELP vllm:spec_decode_num_drafts Number of spec decoding drafts.",
        "# TYPE vllm:spec_decode_num_drafts counter",
        f"vllm:spec_decode_num_drafts{suffix}{{{labels}}} {drafts}",
        f"vllm:spec_decode_num_drafts_created{{{labels}}} 1.7e9",
        f"vllm:spec_decode_num_draft_tokens{suffix}{{{labels}}} {proposed}",
        f"vllm:spec_decode_num_accepted_tokens{suffix}{{{labels}}} {sum(accepted)}",
        *(
            f'vllm:spec_decode_num_accepted_tokens_per_pos{suffix}{{{labels},position="{j}"}} {value}'
            for j, value in enumerate(accepted)
        ),
        'vllm:num_requests_running{model_name="m"} 3.0',
        "process_start_time_seconds 1.7e9",
    ]
    return "\n".join(lines) + "\n"


def close(figures: Telemetry, length: float | None, rate: float | None) -> None:
    assert figures.acceptance_length == (None if length is None else pytest.approx(length, abs=0.006))
    assert figures.draft_acceptance_rate == (None if rate is None else pytest.approx(rate, abs=0.006))


@pytest.mark.parametrize("suffix", ["_total", ""])
def test_positions_of_vllm_are_cumulative_and_conditional_ones_follow(suffix) -> None:
    figures = read_telemetry(vllm_page(100, 300, [80, 60, 30], suffix))
    assert figures.engine == "vllm"
    close(figures, 2.7, 170 / 300)
    assert figures.cumulative_acceptance_rate == pytest.approx([0.8, 0.6, 0.3])
    assert figures.conditional_acceptance_rate == pytest.approx([0.8, 0.75, 0.5])
    assert (figures.num_drafts, figures.num_draft_tokens, figures.num_accepted_tokens) == (100, 300, 170)
    assert figures.warnings == []


def test_two_scrapes_give_what_lies_between_and_pool_counts_not_ratios() -> None:
    figures = read_telemetry(vllm_page(300, 900, [200, 100, 60]), vllm_page(100, 300, [80, 60, 30]))
    assert (figures.num_drafts, figures.num_accepted_tokens) == (200, 190)
    close(figures, 1 + 190 / 200, 190 / 600)
    both = vllm_page(100, 100, [90]) + vllm_page(300, 300, [30], model="other")
    both = both.replace("process_start_time_seconds 1.7e9\n", "", 1)
    figures = read_telemetry(both)
    close(figures, 1 + 120 / 400, 120 / 400)
    assert "pooled over 2 values of model_name" in figures.warnings[0]


@pytest.mark.parametrize(
    ("later", "said"),
    [
        (vllm_page(90, 270, [80, 60, 30]), "vllm:spec_decode_num_drafts_total fell from 100 to 90"),
        (vllm_page(200, 600, [81, 61, 31]).replace("seconds 1.7e9", "seconds 1.8e9"), "its process is another"),
        (vllm_page(200, 600, [81, 61, 31]).replace("} 1.7e9", "} 1.8e9"), "num_drafts_created changed"),
        (vllm_page(200, 600, [81, 61, 31], model="n"), "lacks a series"),
    ],
)
def test_a_server_that_restarted_between_two_scrapes_is_refused(later, said, tmp_path, capsys) -> None:
    (tmp_path / "a").write_text(vllm_page(100, 300, [80, 60, 30]))
    (tmp_path / "b").write_text(later)
    assert run(["telemetry", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "restarted" in error or "lacks a series" in error


def test_a_counter_that_appears_with_its_first_increment_counted_from_zero() -> None:
    """TensorRT-LLM's labelled counters are not on the page of a server that has drafted nothing yet."""
    fresh = "# TYPE trtllm_request_success counter\nprocess_start_time_seconds 1.7e9\n"
    later = (
        'trtllm_spec_decode_num_draft_tokens_total{model_name="m"} 300\n'
        'trtllm_spec_decode_num_accepted_tokens_total{model_name="m"} 170\nprocess_start_time_seconds 1.7e9\n'
    )
    figures = read_telemetry(later, fresh)
    assert (figures.num_draft_tokens, figures.num_accepted_tokens) == (300, 170)
    with pytest.raises(ConfigError, match="two /metrics pages"):
        read_telemetry(later, "Decode batch, accept len: 2.0")


def test_nothing_drafted_is_no_data(tmp_path, capsys) -> None:
    page = tmp_path / "page"
    page.write_text(vllm_page(0, 0, [0, 0]))
    assert run(["telemetry", str(page), "--json"]) == 4
    figures = json.loads(capsys.readouterr().out)
    assert figures["acceptance_length"] is figures["draft_acceptance_rate"] is None
    assert figures["cumulative_acceptance_rate"] is figures["conditional_acceptance_rate"] is None
    assert figures["warnings"] == ["nothing was drafted: no data"]


def test_a_dead_draft_is_named_with_likely_causes() -> None:
    figures = read_telemetry(vllm_page(346, 692, [0, 0]))
    close(figures, 1.0, 0.0)
    assert "dead draft: 0 accepted of 692 proposed" in figures.warnings[0]
    assert "tokenizer" in figures.warnings[0]


def test_drafts_of_varying_length_are_said_to_bias_late_positions() -> None:
    figures = read_telemetry(vllm_page(100, 210, [80, 60, 30]))
    assert any("2.10 tokens in the mean" in text for text in figures.warnings)


LOGS = {
    "vllm now": (
        "INFO 11-30 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 2.53, Accepted throughput: 2.60 "
        "tokens/s, Drafted throughput: 5.10 tokens/s, Accepted: 26 tokens, Drafted: 51 tokens, Per-position acceptance "
        "rate: 0.824, 0.471, 0.235, Avg Draft acceptance rate: 51.0%",
        "vllm", 17, 2.53, 26 / 51,
    ),
    "vllm 0.9": (
        "SpecDecoding metrics: Draft acceptance rate: 51.0%, Mean acceptance length: 2.53, Accepted: 26 tokens, "
        "Drafted: 51 tokens, Per-position acceptance rate: 0.824, 0.471, 0.235",
        "vllm", 17, 2.53, 26 / 51,
    ),
    "vllm, a mean without the bonus": (
        "SpecDecoding metrics: Draft acceptance rate: 51.0%, Mean acceptance length: 1.53, Accepted: 26 tokens, "
        "Drafted: 51 tokens, Per-position acceptance rate: 0.824, 0.471, 0.235",
        "vllm", 17, 2.53, 26 / 51,
    ),
    "vllm, first": (
        "SpecDecoding metrics: Draft acceptance rate: 51.0%, Accepted: 26 tokens, Drafted: 51 tokens",
        "vllm", None, None, 26 / 51,
    ),
    "sglang": (
        "[2026-11-30] Decode batch, #running-req: 1, #token: 512, accept len: 2.17, accept rate: 0.54, "
        "cuda graph: True, gen throughput (token/s): 201.2, #queue-req: 0",
        "sglang", None, 2.17, 0.39,
    ),
    "sglang, oldest": (
        "Decode batch. #running-req: 1, #token: 512, accept len: 2.17, gen throughput (token/s): 201, "
        "#queue-req: 0",
        "sglang", None, 2.17, None,
    ),
    "llama.cpp": (
        "slot print_timing: id  1 | draft acceptance = 0.64479 (  167 accepted /   259 generated), mean len =  2.92",
        "llama.cpp", 87, 2.92, 0.64479,
    ),
    "llama.cpp, summer 2026": (
        "draft acceptance = 0.64479 (  167 accepted /   259 generated), mean acceptance length =  2.92, acceptance "
        "rate per position = (0.805, 0.632, 0.483)",
        "llama.cpp", 87, 2.92, 0.64479,
    ),
    "llama.cpp, older": (
        "draft acceptance rate = 0.57576 (  171 accepted /   297 generated)", "llama.cpp", None, None, 0.57576,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(LOGS))
def test_log_lines_of_each_version_say_the_same(name) -> None:
    line, engine, drafts, length, rate = LOGS[name]
    figures = read_telemetry(f"{line}\nsomething else\n")
    assert (figures.engine, figures.num_drafts) == (engine, drafts)
    close(figures, length, rate)
    if "bonus" in name:
        assert any("without the bonus" in text for text in figures.warnings)
    if engine == "vllm" and drafts:
        assert figures.conditional_acceptance_rate == pytest.approx([14 / 17, 8 / 14, 4 / 8], abs=0.01)
        assert any("without the bonus" in text for text in figures.warnings) == ("bonus" in name)


def test_several_log_lines_are_pooled_by_their_counts() -> None:
    lines = [
        f"draft acceptance = {a / p:.5f} ({a} accepted / {p} generated), mean len = {1 + a / d:.2f}"
        for a, p, d in ((90, 100, 50), (10, 300, 200))
    ]
    figures = read_telemetry("\n".join(lines) + "\n")
    close(figures, 1 + 100 / 250, 100 / 400)  # the mean of the ratios would be 0.467
    figures = read_telemetry(
        "Decode batch, accept len: 3.0, accept rate: 0.67\nDecode batch, accept len: 2.4, accept rate: 0.47\n"
    )
    close(figures, 2.4, 0.47)
    assert any("cannot be pooled" in text for text in figures.warnings)


def test_rounding_of_a_log_never_makes_counts_that_cannot_be() -> None:
    line = "SpecDecoding metrics: Mean acceptance length: 1.33, Accepted: 3334 tokens, Drafted: 10000 tokens, "
    assert read_telemetry(line + "Per-position acceptance rate: 0.333").num_drafts == 10000
    line = "draft acceptance = 0.60400 (  604 accepted /  1000 generated), mean len =  1.60"
    assert read_telemetry(line).num_drafts == 1000
    none = "draft acceptance = 0.00000 (    0 accepted /   100 generated), mean len =  1.00"
    figures = read_telemetry(f"{line}\n{none}\n")
    assert (figures.num_drafts, figures.num_accepted_tokens) == (1100, 604)
    assert any("do not tell their drafts" in text for text in figures.warnings)


def test_rates_of_older_sglang_are_brought_to_accepted_of_proposed() -> None:
    page = "sglang:spec_accept_length 2.0\nsglang:spec_accept_rate {}\nsglang:spec_num_draft_tokens 5.0\n"
    for rate in (0.4, 0.25):  # (1 + 1)/(4 + 1) before April 2026, 1/4 since
        figures = read_telemetry(page.format(rate))
        close(figures, 2.0, 0.25)
        assert any("(accepted + 1)" in text for text in figures.warnings) == (rate == 0.4)
    two = page.format(0.25).replace(" ", '{dp_rank="0"} ') + page.format(0.25).replace(" ", '{dp_rank="1"} ')
    close(read_telemetry(two), 2.0, 0.25)
    close(read_telemetry(page.format(0.4), page.format(0.4).replace("5.0", "9.0")), 2.0, 0.25)  # K fell: no restart
    close(read_telemetry("Decode batch, accept len: 2.5, accept rate: 0.5"), 2.5, None)  # 1.5 of 3, or 2.5 of 5
    close(read_telemetry("Decode batch, accept len: 3.6, accept rate: 1.2"), 3.6, 2.6 / 3)  # (2.6 + 1)/3
    close(read_telemetry(page.format(0.5)), 2.0, 0.25)  # (1 + 1)/4, as 5 tokens are verified
    for equal in ("1.00, accept rate: 1.00", "1.50, accept rate: 1.50", "2.00, accept rate: 0.00"):
        assert read_telemetry(f"Decode batch, accept len: {equal}").acceptance_length == float(equal[:4])
    assert read_telemetry("sglang:spec_accept_length 2.0\nsglang:spec_accept_rate 1e-320\n").acceptance_length == 2.0
    counted = 'sglang:spec_verify_calls_total{a="1"} 100\nsglang:generation_tokens_total{a="1"} 260\n'
    counted += 'sglang:num_requests_total{a="1"} 10\n'  # whose first tokens come from the prompt
    assert read_telemetry(counted + page.format(0.4)).acceptance_length == 2.5
    told = read_telemetry(json.dumps({"internal_states": [{"avg_spec_accept_length": 2.5}]}))
    assert (told.engine, told.acceptance_length) == ("sglang", 2.5)


def test_idle_workers_and_idle_moments_of_sglang_are_no_data() -> None:
    rank = 'sglang:spec_accept_length{{dp_rank="{0}"}} {1}\nsglang:spec_accept_rate{{dp_rank="{0}"}} {2}\n'
    figures = read_telemetry(rank.format(0, 2.5, 0.375) + rank.format(1, 0.0, 0.0) + rank.format(2, 0.0, 0.0))
    close(figures, 2.5, 0.375)
    figures = read_telemetry("Decode batch, accept len: 2.17, accept rate: 0.39\nDecode batch, accept len: 0.00\n")
    close(figures, 2.17, 0.39)


def test_tensorrt_llm_counts_rounds_by_position_only() -> None:
    page = "trtllm_spec_decode_num_draft_tokens_total 300\ntrtllm_spec_decode_num_accepted_tokens_total 170\n"
    figures = read_telemetry(page)
    assert figures.engine == "tensorrt-llm"
    close(figures, None, 170 / 300)
    assert "no counter of rounds" in figures.warnings[0]
    positions = "".join(
        f'trtllm_spec_decode_{kind}_tokens_total{{token_position="{j}"}} {value}\n'
        for kind, values in (("drafted", (100, 100, 100)), ("accepted", (80, 60, 30)))
        for j, value in enumerate(values)
    )
    close(read_telemetry(page + positions), 2.7, 170 / 300)
    stats = {
        "iter": 1,
        "specDecodingStats": {"numDraftTokens": 300, "numAcceptedTokens": 170, "numRequestsWithDraftTokens": 100},
    }
    close(read_telemetry(json.dumps([stats, stats])), 2.7, 170 / 300)


def test_counters_of_llama_cpp() -> None:
    page = "\n".join(
        [
            "llamacpp:spec_decode_num_drafts_total 100",
            "llamacpp:spec_decode_num_draft_tokens_total 300",
            "llamacpp:spec_decode_num_accepted_tokens_total 170",
            *(
                f'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="{j}"}} {v}'
                for j, v in enumerate((80, 60, 30))
            ),
        ]
    )
    figures = read_telemetry(page + "\n")
    assert figures.engine == "llama.cpp"
    close(figures, 2.7, 170 / 300)
    assert figures.cumulative_acceptance_rate == [0.8, 0.6, 0.3]


RESPONSES = {
    "vllm": {
        "id": "r", "metrics": {"speculative_decoding": {
            "mean_acceptance_length": 2.7, "draft_acceptance_rate": 0.5667, "acceptance_histogram": [20, 20, 30, 30],
            "num_spec_steps": 100, "num_accepted_draft_tokens": 170, "num_draft_tokens": 300, "num_spec_tokens": 3,
        }},
    },
    "sglang": {"meta_info": {
        "spec_verify_ct": 100, "spec_accept_length": 2.7, "spec_accept_rate": 0.5667, "spec_num_correct_drafts": 170,
        "spec_num_proposed_drafts": 300, "spec_correct_drafts_histogram": [20, 20, 30, 30],
    }},
    "sglang, older": {"meta_info": {
        "spec_verify_ct": 100, "spec_accept_length": 2.7, "spec_accept_token_num": 170, "spec_draft_token_num": 300,
    }},
    "llama.cpp": {"content": "x", "timings": {"predicted_n": 271, "draft_n": 300, "draft_n_accepted": 170}},
    "tensorrt-llm": {"p": {"acceptance_rate": 0.5667, "total_accepted_draft_tokens": 170, "total_draft_tokens": 300}},
}  # fmt: skip


@pytest.mark.parametrize("name", list(RESPONSES))
def test_responses_of_each_engine(name) -> None:
    line = json.dumps(RESPONSES[name])
    for text in (
        line,
        f"{line}\n{line}\n",
        f"data: {{}}\n\ndata: {line}\n\ndata: [DONE]\n",
        json.dumps([RESPONSES[name]]),
    ):
        figures = read_telemetry(text)
        assert figures.engine == name.split(",")[0]
        close(figures, None if name == "tensorrt-llm" else 2.7, 170 / 300)
        if figures.cumulative_acceptance_rate:
            assert figures.cumulative_acceptance_rate == pytest.approx([0.8, 0.6, 0.3])


def test_chunks_of_one_stream_hold_running_totals() -> None:
    def chunks(key: str, totals: tuple[tuple[int, int, int], ...]) -> str:
        timings = [{"predicted_n": n, "draft_n": d, "draft_n_accepted": a} for n, d, a in totals]
        bodies = [json.dumps({**({"id": key} if key else {}), "stop": t is timings[-1], "timings": t}) for t in timings]
        return "".join(f"event: message\n: ping\ndata: {body}\n\n" for body in bodies)

    first, second = ((10, 9, 6), (200, 180, 100), (271, 300, 170)), ((5, 6, 2), (28, 30, 17))
    for name, other in (("a", "b"), ("", "")):
        figures = read_telemetry(chunks(name, first) + chunks(other, second) + "data: [DONE]\n")
        assert (figures.num_draft_tokens, figures.num_accepted_tokens) == (330, 187)


def test_what_a_text_is_does_not_hang_on_stray_lines() -> None:
    line = LOGS["vllm now"][0]
    for text in (
        f"port: 8000\nversion 0.32.0\n{line}\n",
        json.dumps({"log": line + "\n", "stream": "stderr"}) + "\n" + json.dumps({"log": "bye\n"}),
        f"\x1b[32mINFO\x1b[0m {line}",
    ):
        close(read_telemetry(text), 2.53, 26 / 51)
    bare = "".join(line + "\r\n" for line in vllm_page(100, 300, [80, 60, 30]).splitlines() if line[0] != "#")
    close(read_telemetry(bare), 2.7, 170 / 300)
    page = vllm_page(100, 300, [80, 60, 30])
    with pytest.raises(ConfigError, match="60 accepted at a position after"):
        read_telemetry(page.replace('position="0"} 80', 'position="0"} 1e-320'))


def test_a_log_with_bytes_that_are_no_text_is_read_all_the_same(tmp_path, capsys) -> None:
    (tmp_path / "log").write_bytes(b"half a character: \xe2\x82\n" + LOGS["llama.cpp"][0].encode() + b"\n")
    assert run(["telemetry", str(tmp_path / "log")]) == 0
    assert "2.92 tokens per round" in capsys.readouterr().out
    (tmp_path / "log").write_bytes(vllm_page(1, 3, [1]).encode("utf-16"))
    assert run(["telemetry", str(tmp_path / "log")]) == 2
    assert "is no text" in capsys.readouterr().err


def test_a_last_line_that_was_cut_is_left_out_and_said() -> None:
    line = LOGS["vllm now"][0]
    for text in (f"{line}\n{line[: line.index(', 0.235') - 2]}", f"{line}\n{line}"):
        figures = read_telemetry(text)
        close(figures, 2.53, 26 / 51)
        assert (figures.num_drafts, figures.num_draft_tokens) == (17, 51)
        assert any("last line does not end" in warning for warning in figures.warnings)
    page = vllm_page(100, 300, [80, 60, 30]) + "vllm:spec_decode_num_accepted_tokens_total{} 15"
    close(read_telemetry(page), 2.7, 170 / 300)


def test_logs_of_weak_drafts_tell_k_from_what_was_proposed(tmp_path) -> None:
    """Rates near 0 say nothing about the number of drafts; proposals over positions do."""
    profile = make_profile(tmp_path / "p", {0.0: 0.8}, verify_s=0.105, draft_s=0.02)
    weak = (
        "draft acceptance = 0.00917 (   11 accepted /  1200 generated), mean len =  1.04, acceptance rate per position "
    )
    weak += "= (0.027, 0.007, 0.003, 0.000)"
    worse = (
        "SpecDecoding metrics: Mean acceptance length: 1.00, Accepted: 1 tokens, Drafted: 6000 tokens, Per-position "
    )
    worse += "acceptance rate: 0.001, 0.000, 0.000, 0.000"
    for line, drafts in ((weak, 300), (worse, 1500)):
        figures = read_telemetry(line)
        assert figures.num_drafts == drafts
        assert served_depth(profile, figures, 0.0).num_speculative_tokens == 4


def test_other_metrics_and_separators_are_no_trouble() -> None:
    page = vllm_page(100, 300, [80, 60, 30], model="spec-8b")
    page += 'vllm:estimated_flops_per_gpu_total{model_name="spec-8b"} 3.2e+18\nvllm:x{path="/spec"} NaN\n'
    close(read_telemetry(page), 2.7, 170 / 300)
    close(read_telemetry(page.replace("} ", "}\t").replace("# ", "#")), 2.7, 170 / 300)
    response = {"timings": {"predicted_n": 271, "draft_n": 300, "draft_n_accepted": 170}, "content": "a\u2028b\x85c"}
    line = json.dumps(response, ensure_ascii=False)
    for text in (f"{line}\n{line}\n", f"data: {line}\n\n", f"\ufeff\n{line}"):
        close(read_telemetry(text), 2.7, 170 / 300)
    with pytest.raises(ConfigError, match="HTML"):
        read_telemetry("<html>")
    close(read_telemetry(f"<14>Jan 1 host: {LOGS['vllm now'][0]}\n"), 2.53, 26 / 51)


def test_sglang_counts_those_models_that_verify() -> None:
    page = 'sglang:spec_verify_calls_total{model_name="a"} 10\nsglang:generation_tokens_total{model_name="a"} 25\n'
    page += 'sglang:generation_tokens_total{model_name="plain"} 600\n'
    assert read_telemetry(page).acceptance_length == 2.5
    none = read_telemetry(page.replace("} 10", "} 0"))
    assert (none.num_drafts, none.num_accepted_tokens) == (0, None)
    older = {"meta_info": {"spec_verify_ct": 48, "completion_tokens": 121}}
    assert read_telemetry(json.dumps(older)).acceptance_length == 2.5
    with pytest.raises(ConfigError, match="gaps"):
        read_telemetry(json.dumps({"num_spec_steps": 7, "acceptance_histogram": [4, None, 3]}))
    running = [{"meta_info": {"id": "r", "spec_verify_ct": n, "spec_num_correct_drafts": 2 * n}} for n in (1, 5, 10)]
    assert read_telemetry("\n".join(map(json.dumps, running))).num_drafts == 10
    long = {"num_spec_steps": 1, "acceptance_histogram": [1] * 200_000}
    began = perf_counter()
    read_telemetry(json.dumps(long))
    assert perf_counter() - began < 10


def test_terminals_are_not_steered_by_a_page(tmp_path, capsys) -> None:
    both = vllm_page(100, 100, [90]) + vllm_page(300, 300, [30], model="b\x1b]0;pwn\x07")
    (tmp_path / "page").write_text(both.replace("process_start_time_seconds 1.7e9\n", "", 1))
    assert run(["telemetry", str(tmp_path / "page")]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\\x1b]0;pwn" in said


def test_a_response_of_llama_cpp_without_drafts_is_no_data() -> None:
    figures = read_telemetry(json.dumps({"timings": {"predicted_n": 20, "predicted_ms": 800.0}}))
    assert figures.acceptance_length is None
    assert figures.warnings[-1] == "nothing was drafted: no data"


# ------------------------------------------------------------------------------------------------ K


@pytest.mark.parametrize(
    ("accepted", "verdict"),
    [
        ([90.0, 80.0, 70.0, 60.0], "right"),
        ([70.0, 2.0, 0.0, 0.0], "too long"),
        ([1.0, 0.0, 0.0, 0.0], "plain is faster"),
        ([95.0], "too short"),
    ],
)
def test_the_k_in_use_is_judged_by_the_profiles_costs(tmp_path, capsys, accepted, verdict) -> None:
    profile = make_profile(tmp_path / "p", {0.0: 0.8}, verify_s=0.105, draft_s=0.02)
    figures = read_telemetry(vllm_page(100, 100 * len(accepted), accepted))
    depth = served_depth(profile, figures, 0.0)
    assert depth.verdict == verdict
    (tmp_path / "page").write_text(vllm_page(100, 100 * len(accepted), accepted))
    assert run(["telemetry", str(tmp_path / "page"), "--profile", str(tmp_path / "p"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["depth"]["verdict"] == verdict
    assert run(["telemetry", str(tmp_path / "page"), "--profile", str(tmp_path / "p")]) == 0
    assert f"K = {len(accepted)} is " in capsys.readouterr().out


def test_positions_without_an_accepted_token_belong_to_k(tmp_path, capsys) -> None:
    """SGLang's histogram ends at the largest count that occurred: K = 4 that never got beyond 1 is no K = 1."""
    meta = {"spec_verify_ct": 100, "spec_num_correct_drafts": 90, "spec_num_proposed_drafts": 400,
            "spec_correct_drafts_histogram": [10, 90]}  # fmt: skip
    profile = make_profile(tmp_path / "p", {0.0: 0.8}, verify_s=0.105, draft_s=0.02)
    depth = served_depth(profile, read_telemetry(json.dumps({"meta_info": meta})), 0.0)
    assert (depth.num_speculative_tokens, depth.verdict) == (4, "too long")
    (tmp_path / "log").write_text("Decode batch, accept len: 2.0")
    assert run(["telemetry", str(tmp_path / "log"), "--profile", str(tmp_path / "p")]) == 4
    said = capsys.readouterr().out
    assert "2.00 tokens per round" in said
    assert "K cannot be judged" in said


def test_a_k_beyond_the_profile_is_refused(tmp_path) -> None:
    profile = make_profile(tmp_path / "p", {0.0: 0.8})
    with pytest.raises(InsufficientDataError, match="K = 6, the profile goes up to 4"):
        served_depth(profile, read_telemetry(vllm_page(100, 600, [50.0] * 6)), 0.0)
    with pytest.raises(SpectuneError, match="without acceptance by position"):
        served_depth(profile, read_telemetry("Decode batch, accept len: 2.0"), 0.0)


# ------------------------------------------------------------------------------------------------ hostile text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   \n",
        "<!DOCTYPE html><html><body>spec_decode 502 Bad Gateway</body></html>",
        '{"metrics": {"speculative_decoding": {"num_spec_steps": 3, "acceptance_histogram": [1, 2',
        '{"meta_info": {"spec_verify_ct": -4}}',
        '{"meta_info": {"spec_verify_ct": 1e400}}',
        '{"meta_info": {"spec_verify_ct": NaN}}',
        '{"meta_info": {"spec_verify_ct": "12"}}',
        '{"timings": {"predicted_n": true, "draft_n": 3}}',
        "[" * 100_000,
        '{"a":' * 5000 + "1" + "}" * 5000,
        vllm_page(100, 300, [80]).replace("} 100", "} -100"),
        vllm_page(100, 300, [80]).replace("} 100", "} 1e300"),
        vllm_page(100, 300, [80]).replace("} 100", "} NaN"),
        vllm_page(100, 300, [80]).replace("} 100", "} 1,5"),
        vllm_page(100, 300, [80]).replace('position="0"', 'position="one"'),
        vllm_page(100, 300, [80]).replace('position="0"', 'position="7"'),
        vllm_page(100, 300, [80]).replace('position="0"', f'position="{"9" * 5000}"'),
        vllm_page(100, 300, [80]) * 2,
        vllm_page(100, 30, [80]),
        "SpecDecoding metrics: Mean acceptance length: 2,53, Accepted: 26 tokens, Drafted: 51 tokens, "
        "Per-position acceptance rate: 0,8, 0,5, Avg Draft acceptance rate: 51,0%",
        "Decode batch, #running-req: 1, accept len: 2,17, accept rate: 0,54, #queue-req: 0",
        "hello\nworld\n",
        "# TYPE a counter\na 3\n",
    ],
)  # fmt: skip
def test_hostile_text_ends_in_one_clear_line(text, tmp_path, capsys) -> None:
    (tmp_path / "page").write_text(text)
    assert run(["telemetry", str(tmp_path / "page")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 2
    assert error.startswith("error: ")
    assert len(error) < 600


def fuzzed(seeds: list[str], rng: random.Random) -> Iterator[bytes]:
    """A million bytes of them, spoilt in one to six places each."""
    spent = 0
    while spent < 1_000_000:
        text = bytearray(rng.choice(seeds).encode())
        for _ in range(rng.randint(1, 6)):
            place = rng.randrange(len(text))
            match rng.randrange(4):
                case 0:
                    text[place] = rng.randrange(256)
                case 1:
                    del text[place : place + rng.randrange(1, 20)]
                case 2:
                    more = [b"9" * 400, b"-", b"e999", b"\n", b'"', b"{", b"\x00", b"nan", b",", b"0.", b"null", b"[]"]
                    text[place:place] = rng.choice(more)
                case _:
                    del text[place:]
            text = text or bytearray(b"x")
        spent += len(text)
        yield bytes(text)


SEEDS = {
    "metrics": [
        vllm_page(100, 300, [80, 60, 30]),
        "sglang:spec_accept_length 2.0\nsglang:spec_accept_rate 0.4\nsglang:spec_num_draft_tokens 5.0\n",
        'trtllm_spec_decode_drafted_tokens_total{token_position="0"} 3\ntrtllm_spec_decode_num_draft_tokens_total 9\n',
        "llamacpp:spec_decode_num_drafts_total 100\nllamacpp:spec_decode_num_draft_tokens_total 300\n",
    ],
    "logs": [line for line, *_ in LOGS.values()],
    "responses": list(map(json.dumps, RESPONSES.values())),
}


@pytest.mark.parametrize("kind", list(SEEDS))
def test_a_million_fuzzed_bytes_never_end_in_a_traceback(kind) -> None:
    read, told = 0, []
    for text in fuzzed(SEEDS[kind], random.Random(0)):
        try:
            json.dumps(asdict(read_telemetry(text.decode("utf-8", errors="replace"))), allow_nan=False)
            read += 1
        except SpectuneError as error:
            told.append(error.problem)
    assert read > 50
    assert len(told) > 50
    assert not [problem for problem in told if not problem or "\n" in problem]


def gguf_file(path: Path) -> bytes:
    """A vocabulary without weights."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"w{i}" for i in range(9)])
    writer.add_bos_token_id(1)
    writer.add_add_bos_token(True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path.read_bytes()


def test_a_million_fuzzed_bytes_of_gguf_never_end_in_a_traceback(tmp_path) -> None:
    whole = gguf_file(tmp_path / "m.gguf")
    facts = model_facts(str(tmp_path / "m.gguf"))
    assert (facts.max_positions, facts.vocab_size, facts.add_bos, facts.bos_id) == (64, 9, True, 1)
    rng, spent, read, told = random.Random(0), 0, 0, 0
    while spent < 1_000_000:
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        data = data[: rng.choice([len(data), rng.randrange(1, len(data))])]
        spent += len(data)
        (tmp_path / "m.gguf").write_bytes(data)
        try:
            model_facts(str(tmp_path / "m.gguf"))
            read += 1
        except SpectuneError:
            told += 1
    assert read > 50
    assert told > 50


def test_fuzzed_configs_and_tokenizers_never_end_in_a_traceback(tmp_path) -> None:
    vocabulary = {f"w{i}": i for i in range(9)}
    tokenizer = {"model": {"type": "BPE", "vocab": vocabulary}, "added_tokens": [{"id": 9, "content": "<end>"}]}
    config = {"model_type": "llama", "vocab_size": 10, "text_config": {"max_position_embeddings": 64}}
    rng, read, told = random.Random(0), 0, 0
    files = {"config.json": json.dumps(config), "tokenizer.json": json.dumps(tokenizer)}
    for name, seed in files.items():
        for other, text in files.items():
            (tmp_path / other).write_text(text)
        for text in islice(fuzzed([seed], rng), 2000):
            (tmp_path / name).write_bytes(text)
            try:
                model_facts(str(tmp_path))
                read += 1
            except SpectuneError:
                told += 1
    assert read > 50
    assert told > 50


# ------------------------------------------------------------------------------------------------ servers


class _Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        page = vllm_page(100, 300, [80, 60, 30]).encode()
        if self.path.startswith("/private") and not self.headers.get("Authorization"):
            self.send_response(401)
            self.end_headers()
            return
        if self.path.startswith("/away"):
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/echo")
            self.end_headers()
            return
        if self.path.startswith("/headers-for-ever"):
            for number in range(40):
                self.wfile.write(b"HTTP/1.1 200 OK\r\n" if number == 0 else b"X-%d: 1\r\n" % number)
                threading.Event().wait(0.2)
            return
        self.send_response(500 if self.path.startswith("/broken") else 200)
        if self.path.startswith("/midway"):
            self.send_header("Content-Length", str(len(page) + 500))
        self.end_headers()
        if self.path.startswith("/echo"):
            page = str(self.headers.get("Authorization")).encode()
        self.wfile.write(b"<html>hello</html>" if self.path.startswith("/html") else page)
        if self.path.startswith("/slow"):
            for _ in range(40):
                threading.Event().wait(0.1)
                self.wfile.write(b"# more\n")
                self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        with suppress(ConnectionError):
            super().handle()


@pytest.fixture
def server() -> Iterator[str]:
    served = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{served.server_address[1]}"
    served.shutdown()
    thread.join()
    served.server_close()


def test_a_server_is_read_and_its_credentials_are_in_no_message(server, capsys) -> None:
    url = f"http://user:hunter2@{server}/private?token=hunter3"
    assert run(["telemetry", url]) == 0
    assert "hunter" not in "".join(capsys.readouterr())
    assert run(["telemetry", url.replace("user:hunter2@", "")]) == 3
    error = capsys.readouterr().err
    assert "status 401" in error
    assert "hunter" not in error
    assert "Basic" in fetched(f"http://user:hunter2@{server}/echo")
    assert fetched(f"http://user:hunter2@{server}/away") == "None"  # another host is told nothing


@pytest.mark.parametrize("path", ["html", "broken", "midway"])
def test_a_server_that_fails_exits_with_three(server, path, capsys) -> None:
    assert run(["telemetry", f"http://u:hunter2@{server}/{path}"]) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 2
    assert "hunter" not in error


def test_missing_slow_and_untrusted_servers_exit_with_three(server, capsys) -> None:
    for url in (
        "http://u:hunter2@127.0.0.1:9/metrics",
        f"https://u:hunter2@{server}/metrics",
        "http://u:hunter2@nowhere.invalid/",
    ):
        assert run(["telemetry", url]) == 3
        assert "hunter" not in capsys.readouterr().err
    for path in ("slow", "headers-for-ever"):
        began = perf_counter()
        with pytest.raises(EngineError, match="has not answered whole after"):
            fetched(f"http://{server}/{path}", timeout_s=0.5)
        assert perf_counter() - began < 5
    with pytest.raises(ConfigError):
        shown("http://[::1")
    for url in ("http://", "http://[::1", "http://a:b:c@d:e/", "http://a..b/m"):
        assert run(["telemetry", url]) in (2, 3)
        assert capsys.readouterr().err.count("\n") == 2


def test_an_environment_that_spoils_requests_is_one_line(server, monkeypatch, capsys) -> None:
    for name, value in (("ALL_PROXY", "socks4://127.0.0.1:1"), ("SSL_CERT_FILE", "/missing.pem")):
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            code = run(["telemetry", f"http://{server}/metrics"])
            said = capsys.readouterr()
            assert code in (0, 3)
            assert code == 0 or said.err.count("\n") == 2


def test_credentials_are_in_no_message_however_they_are_mistyped(capsys) -> None:
    for arguments in (
        ["telemetry", "user:hunter2@localhost:8000/metrics"],
        ["telemetry", "ftp://user:hunter2@localhost/metrics"],
        ["telemetry", "a", "b", "http://user:hunter2@localhost/metrics"],
        ["telemetry", "http://user:12/hunter2@127.0.0.1:9/metrics"],
        ["telemetry", "http://user:12#hunter2@127.0.0.1:9/metrics"],
        ["telemetry", "http://user:12?hunter2@127.0.0.1:9/metrics"],
        ["telemetry", " http://user:my hunter2@127.0.0.1:9/"],
        ["telemetry", "ftp://user:my hunter2@localhost/metrics"],
        ["telemetry", ":hunter2@localhost/metrics"],
        ["telemetry", "u%3Ahunter2@localhost/metrics"],
        ["telemetry", "localhost:80/metrics?token=hunter2"],
        ["telemetry", "user:p@hunter2@localhost:8000/metrics"],
        ["telemetry", "a", "b", "http://user:my hunter2@localhost/metrics"],
        ["doctor", "--target", "https://user:hunter2@localhost/m", "--draft", "ngram", "--engine", "vllm"],
        ["doctor", "--target", "user:p@hunter2@localhost/m", "--draft", "ngram", "--engine", "vllm"],
        ["doctor", "--target", "m", "--draft", "eagle3:https://u:hunter2@localhost/m", "--engine", "vllm"],
        ["doctor", "--target", "m", "--draft", "mtp", "--engine", "vllm", "--set", "method=https://u:p@hunter2@h/x"],
        ["doctor", "--target", "m", "--draft", "mtp", "--engine", "vllm", "--set", "https://u:p@hunter2@h/x=1"],
        ["profile", "--draft", "eagle3:https://user:hunter2@localhost/m"],
        ["export", "p@hunter2:x@h", "--engine", "vllm"],
    ):
        assert run(arguments) in (2, 3)
        said = capsys.readouterr()
        assert "hunter" not in said.err + said.out, arguments


def test_a_hub_that_breaks_off_is_one_line(monkeypatch, tmp_path, capsys) -> None:
    import huggingface_hub

    def broken(*_: object) -> str:
        raise RuntimeError("peer closed connection without sending complete message body")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", broken)
    assert run(["doctor", "--target", "x/y", "--draft", "mtp", "--engine", "vllm"]) == 2
    said = capsys.readouterr().err
    assert "x/y cannot be fetched from the hub" in said
    assert said.count("\n") == 2


def test_what_cannot_be_written_is_one_line(tmp_path) -> None:
    make_profile(tmp_path / "p", {0.0: 0.8})
    command = [sys.executable, "-m", "spectune", "export", str(tmp_path / "p"), "--engine", "vllm"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 2)
    piped = f"{shlex.join(command)} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", piped], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode in (0, 141)
    assert done.stderr == ""
    closed = f"{shlex.quote(sys.executable)} -m spectune telemetry - <&-"
    done = subprocess.run(["bash", "-c", closed], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 2)


def test_files_that_are_absent_or_no_text(tmp_path: Path, capsys) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name in ("bytes", "absent", "."):
        assert run(["telemetry", str(tmp_path / name)]) == 2
        assert capsys.readouterr().err.count("\n") == 2
