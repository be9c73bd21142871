"""What doctor finds of a pair: every case that users ran into, with the right answer."""

import json
import os
from pathlib import Path

import pytest

from spectune.checkpoints.facts import model_facts
from spectune.cli.app import run
from spectune.engines.catalogue import ENGINES
from tests.engines.pairs import doctor, model, only


@pytest.mark.parametrize(
    ("engine", "level", "said"),
    [
        ("vllm", "error", "152064 and 151936 rows, though the tokens are the same"),
        ("sglang", "error", "STANDALONE refuses embeddings of 152064 and 151936 rows"),
        ("llama.cpp", "info", "padding only"),
        ("tensorrt-llm", "info", "padding only"),
        ("transformers", "info", "assistant_tokenizer"),
    ],
)
def test_padded_vocabularies_of_one_tokenizer(tmp_path, capsys, engine, level, said) -> None:
    target, draft = model(tmp_path / "t", 152064), model(tmp_path / "d", 151936)
    code, findings = doctor(capsys, target, draft, engine, "-k", "4")
    assert code == (2 if level == "error" else 0)
    assert said in only(findings, "padding", level)


def test_vllm_maps_padded_vocabularies_when_told(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t", 152064), model(tmp_path / "d", 151936)
    assert doctor(capsys, target, draft, "vllm", "-k", "4", "--set", "use_heterogeneous_vocab=true") == (0, [])


def test_vocabularies_of_two_families(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t", 152064, 900), model(tmp_path / "d", 32002, 500)
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        code, findings = doctor(capsys, target, draft, engine, "-k", "4")
        assert code == 2
        said = only(findings, "vocabulary")
        assert "use_heterogeneous_vocab" in said
        assert "universal assisted generation" in said
    code, findings = doctor(capsys, target, draft, "transformers", "-k", "4")
    assert code == 0
    assert "assistant_tokenizer" in only(findings, "vocabulary", "warning")
    code, findings = doctor(capsys, target, draft, "llama.cpp", "-k", "4")
    assert code == 2
    assert any("152064 and 32002: over 128 apart" in f["message"] for f in findings)
    options = ("-k", "4", "--set", "use_heterogeneous_vocab=true", "--set", "draft_sample_method=probabilistic")
    code, findings = doctor(capsys, target, draft, "vllm", *options)
    assert code == 2
    assert "greedily only" in only(findings, "vocabulary")


@pytest.mark.parametrize("engine", list(ENGINES))
def test_one_token_with_another_text(tmp_path, capsys, engine) -> None:
    target = model(tmp_path / "t", changed={17: "▁cat"})
    draft = model(tmp_path / "d", changed={17: "▁dog"})
    code, findings = doctor(capsys, target, draft, engine, "-k", "4")
    assert code == 2
    assert 'id 17 is "▁cat" in the target, "▁dog" in the draft' in only(findings, "vocabulary")


def test_a_token_that_one_model_lacks_is_never_accepted_and_no_more(tmp_path, capsys) -> None:
    """151668 and 151665 tokens of one family in embeddings of one size: only SGLang and llama.cpp compare them all."""
    target, draft = model(tmp_path / "t", 128, 93), model(tmp_path / "d", 128, 90, changed={})
    for folder, last in ((target, 93), (draft, 90)):  # no token in the way of the others
        written = json.loads(Path(folder, "tokenizer.json").read_text())
        written["added_tokens"] = []
        written["model"]["vocab"][f"word{last}"] = last
        Path(folder, "tokenizer.json").write_text(json.dumps(written))
    for engine, expected in {"vllm": 0, "tensorrt-llm": 0, "transformers": 0, "sglang": 2, "llama.cpp": 2}.items():
        code, findings = doctor(capsys, target, draft, engine, "-k", "4")
        assert code == expected, engine
        level = "error" if expected else "warning"
        assert "word91" in only(findings, "vocabulary", level), engine
    assert "[PAD91]" in only(findings, "vocabulary")  # as the converter to GGUF fills up


def test_texts_that_a_terminal_cannot_show_are_escaped(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t", changed={17: "\x1b[2J\ud800"}), model(tmp_path / "d")
    for engine in ("vllm", "llama.cpp"):
        assert run(["doctor", "--target", target, "--draft", draft, "--engine", engine, "-k", "4"]) == 2
        said = capsys.readouterr().out
        assert "\x1b" not in said or engine == "llama.cpp"
        assert "\\x1b[2J\\ud800" in said


def test_llama_cpp_compares_texts_from_id_five_on(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d", changed={4: "other"})
    code, findings = doctor(capsys, target, draft, "llama.cpp", "-k", "4")
    assert code == 0
    assert "compares ids 5 to" in only(findings, "vocabulary", "warning")
    assert doctor(capsys, target, model(tmp_path / "e", changed={5: "other"}), "llama.cpp", "-k", "4")[0] == 2
    begins = model(tmp_path / "b")
    (tmp_path / "b" / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    (tmp_path / "t" / "tokenizer_config.json").write_text('{"add_bos_token": false}')
    code, findings = doctor(capsys, target, begins, "llama.cpp", "-k", "4")
    assert code == 2
    assert "adds a bos token" in only(findings, "vocabulary")


def test_tensor_parallel_of_a_draft(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d")
    sets = ("-k", "4", "--set", "tensor-parallel-size=4", "--set")
    code, findings = doctor(capsys, target, draft, "vllm", *sets, "draft_tensor_parallel_size=2")
    assert code == 2
    assert "to 1 or 4" in only(findings, "tensor-parallel")
    for size in (1, 4):
        assert doctor(capsys, target, draft, "vllm", *sets, f"draft_tensor_parallel_size={size}")[0] == 0


def test_mtp_and_its_k(tmp_path, capsys) -> None:
    target = model(tmp_path / "t", num_nextn_predict_layers=3)
    code, findings = doctor(capsys, target, "mtp", "vllm", "-k", "4")
    assert code == 2
    assert "K must be at most 3 or a multiple of 3" in only(findings, "mtp")
    for k in ("2", "3", "6"):
        assert doctor(capsys, target, "mtp", "vllm", "-k", k)[0] == 0
    for engine in ("vllm", "llama.cpp"):
        assert "no heads of its own" in only(
            doctor(capsys, model(tmp_path / engine), "mtp", engine, "-k", "1")[1], "mtp"
        )
    untold = model(tmp_path / "untold", model_type="qwen3_next")
    code, findings = doctor(capsys, untold, "mtp", "vllm", "-k", "1")
    assert code == 0
    assert "does not tell" in only(findings, "mtp", "warning")
    inner = model(tmp_path / "inner", text_config={"hidden_size": 8}, mtp_num_hidden_layers=1)
    assert doctor(capsys, inner, "mtp", "vllm", "-k", "2") == (0, [])
    code, findings = doctor(capsys, target, "mtp", "transformers", "-k", "2")
    assert "what the model's 3 heads predict, not K = 2" in only(findings, "mtp", "warning")
    heads = model(tmp_path / "heads", num_nextn_predict_layers=2)
    assert doctor(capsys, untold, f"mtp:{heads}", "vllm", "-k", "4") == (0, [])
    assert "at most 2 or a multiple of 2" in only(doctor(capsys, untold, f"mtp:{heads}", "vllm", "-k", "3")[1], "mtp")


def test_settings_are_found_however_they_are_given(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d")
    whole = 'speculative_config={"num_speculative_tokens": 4, "draft_tensor_parallel_size": 3, "method": "ngram"}'
    code, findings = doctor(capsys, target, draft, "vllm", "--set", whole)
    assert code == 2
    assert "to 1" in only(findings, "tensor-parallel")
    assert "the settings say method ngram" in only(findings, "method", "warning")
    short = ("-k", "4", "--set", "-tp=4", "--set", "draft_tensor_parallel_size=4")
    assert doctor(capsys, target, draft, "vllm", *short) == (0, [])
    inner = ("-k", "4", "--set", "speculative_config.tensor_parallel_size=2")
    assert "draft_tensor_parallel_size" in only(doctor(capsys, target, draft, "vllm", *inner)[1], "tensor-parallel")
    code, findings = doctor(capsys, target, draft, "vllm", "-k", "4", "--set", "draft_tensor_paralel_size=3")
    assert code == 0
    assert "draft_tensor_paralel_size" in only(findings, "unknown-setting", "info")
    flags = ("-k", "4", "--set", "--enforce-eager", "--set", "-tp 4", "--set", "sc.draft_tensor_parallel_size=4")
    code, findings = doctor(capsys, target, draft, "vllm", *flags)
    assert code == 0
    assert "enforce_eager" in only(findings, "unknown-setting", "info")
    assert run(["doctor", "--target", target, "--draft", draft, "--engine", "vllm", "-k", "4", "--set",
                "num_speculative_tokens=8"]) == 2  # fmt: skip
    assert "K is given twice" in capsys.readouterr().err
    bomb = "a=[" + ", ".join(["&b0 [1, 1]", *(f"&b{i} [*b{i - 1}, *b{i - 1}]" for i in range(1, 40))]) + "]"
    for hostile in ("a=!!int ''", "a=!!bool x", "a=!!timestamp x", "a=[1, 2", "a=" + "[" * 5000, "=3", bomb,
                    "a=&a [*a]", "a=0x" + "f" * 5000, "a=.inf", 'a="\\ud800"',
                    "num_speculative_tokens=true"):  # fmt: skip
        assert run(["doctor", "--target", target, "--draft", draft, "--engine", "vllm", "--set", hostile]) == 2
        assert capsys.readouterr().err.count("\n") == 2


def test_paths_that_cannot_be_looked_up_are_one_line(tmp_path, monkeypatch, capsys) -> None:
    target = model(tmp_path / "t")
    (tmp_path / "folder.gguf").mkdir()
    (tmp_path / "empty.gguf").touch()
    os.mkfifo(tmp_path / "fifo.gguf")
    (tmp_path / "odd").mkdir()
    os.mkfifo(tmp_path / "odd" / "config.json")
    names = ("~nosuchuser/m", "m" * 300, "a\0b", "", "odd", "folder.gguf", "empty.gguf", "fifo.gguf", "none.GGUF")
    monkeypatch.chdir(tmp_path)
    for name in names:
        assert run(["doctor", "--target", target, "--draft", name, "--engine", "vllm", "-k", "4"]) == 2
        assert capsys.readouterr().err.count("\n") == 2


@pytest.mark.parametrize(
    "spec", ["eagle3", "medusa:", "suffix:4", "mtp:", "", "-x", "dflash:x", "layers:0", "layers:" + "9" * 5000, "a\nb"]
)
def test_drafts_that_name_too_little_or_too_much_are_refused(spec, capsys) -> None:
    assert run(["doctor", "--target", "t", "--draft", spec, "--engine", "vllm"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: draft ")
    assert said.count("\n") == 2


def test_a_head_of_fewer_positions_than_the_target_is_told(tmp_path, capsys) -> None:
    target, head = model(tmp_path / "t"), model(tmp_path / "d", max_position_embeddings=2048)
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        code, findings = doctor(capsys, target, f"eagle3:{head}", engine, "-k", "3")
        stops = engine == "sglang"  # which gives the draft the target's context and refuses what it derives
        assert code == (2 if stops else 0)
        assert "2048 positions" in only(findings, "positions", "error" if stops else "warning"), engine
    assert doctor(capsys, target, f"eagle3:{head}", "sglang", "--set", "context-length=2048")[0] == 0


def test_heads_and_models_are_not_taken_for_each_other(tmp_path, capsys) -> None:
    target = model(tmp_path / "t", hidden_size=4096, num_hidden_layers=36)
    head = model(tmp_path / "h", hidden_size=5120, num_hidden_layers=1, architectures=["LlamaForCausalLMEagle3"])
    whole = model(tmp_path / "w", hidden_size=1024, num_hidden_layers=28, architectures=["Qwen3ForCausalLM"])
    medusa = model(tmp_path / "m", medusa_num_heads=5, architectures=["MedusaModel"])
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text("{}")
    assert "is for a hidden size of 5120, the target's is 4096" in only(
        doctor(capsys, target, f"eagle3:{head}", "vllm", "-k", "3")[1], "hidden-size"
    )
    assert "give it as a head" in only(doctor(capsys, target, head, "vllm", "-k", "3")[1], "method")
    assert "no head" in only(doctor(capsys, target, f"eagle3:{whole}", "vllm", "-k", "3")[1], "method", "warning")
    code, findings = doctor(capsys, target, f"medusa:{medusa}", "vllm", "-k", "7")
    assert (code, "5 heads" in only(findings, "num-speculative-tokens", "warning")) == (0, True)
    assert "sizes were not compared" in only(
        doctor(capsys, target, str(bare), "vllm", "-k", "3")[1], "vocabulary-size", "warning"
    )
    assert "layers:1 to layers:35" in only(doctor(capsys, target, "layers:36", "transformers")[1], "layers")
    assert doctor(capsys, target, "layers:20", "transformers") == (0, [])


def test_prompt_lookup_bounds_of_vllm(tmp_path, capsys) -> None:
    target = model(tmp_path / "t")
    for given in ("prompt_lookup_max", "prompt_lookup_min"):
        code, findings = doctor(capsys, target, "ngram", "vllm", "-k", "4", "--set", f"{given}=4")
        assert code == 0
        said = only(findings, "prompt-lookup", "warning")
        assert "takes 4 for both" in said
        assert "write prompt_lookup_min and prompt_lookup_max" in said
    sets = ("--set", "prompt_lookup_min=5", "--set", "prompt_lookup_max=3")
    code, findings = doctor(capsys, target, "ngram", "vllm", "-k", "4", *sets)
    assert code == 2
    assert "min ≤ max" in only(findings, "prompt-lookup")


def test_settings_that_vllm_dropped(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d")
    code, findings = doctor(capsys, target, draft, "vllm", "-k", "4", "--set", "disable_by_batch_size=16")
    assert code == 2
    assert "num_speculative_tokens_per_batch_size: [[1, 15, 4], [16, 16, 0]]" in only(findings, "gone")
    code, findings = doctor(capsys, target, draft, "vllm", "-k", "4", "--set", "speculative_token_tree=[[0],[1]]")
    assert code == 2
    assert "chains only" in only(findings, "gone")


def test_other_refusals_of_vllm(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d")
    for setting, code in {"min_p=0.1": "sampling", "logit_bias={3: 1}": "sampling",
                          "rejection_sample_method=synthetic": "lossy",
                          "num_speculative_tokens_per_batch_size=[[2, 8, 4]]": "schedule",
                          "num_speculative_tokens_per_batch_size=[[1, 8, 4], [8, 9, 1]]": "schedule",
                          "num_speculative_tokens_per_batch_size=many": "schedule"}.items():  # fmt: skip
        exit_code, findings = doctor(capsys, target, draft, "vllm", "-k", "4", "--set", setting)
        assert exit_code == 2
        only(findings, code)
    fine = "num_speculative_tokens_per_batch_size=[[1, 8, 4], [16, 32, 0]]"
    assert doctor(capsys, target, draft, "vllm", "-k", "4", "--set", fine) == (0, [])
    code, findings = doctor(capsys, target, draft, "vllm", "-k", "4", "--set", fine, "--set", "data_parallel_size=2")
    assert code == 0
    assert "ignores" in only(findings, "schedule", "warning")
    assert "needs a K" in only(doctor(capsys, target, draft, "vllm")[1], "num-speculative-tokens")
    assert "first layers" in only(doctor(capsys, target, "layers:4", "vllm", "-k", "4")[1], "method")
    assert "arctic-inference" in only(doctor(capsys, target, "suffix", "vllm")[1], "package", "warning")


def test_the_shape_of_sglang(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d")
    steps, topk = ("--set", "speculative-num-steps=3"), ("--set", "speculative-eagle-topk=1")
    code, findings = doctor(capsys, target, draft, "sglang", *steps, *topk)
    assert code == 2
    assert "num-draft-tokens must be 4" in only(findings, "tree-shape")
    code, findings = doctor(capsys, target, draft, "sglang", *steps, *topk, "--set", "speculative-num-draft-tokens=3")
    assert code == 0
    assert "must be 4, the root counts: SGLang sets it so" in only(findings, "tree-shape", "warning")
    assert doctor(capsys, target, f"eagle:{draft}", "sglang", *steps, "--set", "speculative-adaptive=true")[0] == 0
    tree = (*steps, "--set", "speculative-eagle-topk=2", "--set", "speculative-num-draft-tokens=7", "--set")
    for setting, expected in {"attention-backend=trtllm_mha": 2, "page-size=64": 0,
                              "speculative-use-rejection-sampling=true": 2}.items():  # fmt: skip
        assert doctor(capsys, target, f"eagle:{draft}", "sglang", *tree, setting)[0] == expected
    paged = (*tree, "page-size=64", "--set", "attention-backend=flashmla")
    assert "chains" not in only(doctor(capsys, target, f"eagle:{draft}", "sglang", *paged)[1], "tree-shape")
    assert doctor(capsys, target, draft, "sglang", *steps, *topk, "--set", "speculative-num-draft-tokens=4")[0] == 0
    code, findings = doctor(capsys, target, draft, "sglang", *steps)
    assert code == 2
    assert "together or not at all" in only(findings, "tree-shape")


def test_other_refusals_of_sglang(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d")
    for setting in ("speculative-accept-threshold-single=0.9", "speculative-accept-threshold-acc=0.5"):
        code, findings = doctor(capsys, target, draft, "sglang", "--set", setting)
        assert code == 2
        assert "not the target's" in only(findings, "lossy")
    for spec in (draft, "ngram"):
        assert "refuses" in only(
            doctor(capsys, target, spec, "sglang", "--set", "enable-dp-attention=true")[1], "dp-attention"
        )
    assert doctor(capsys, target, f"eagle:{draft}", "sglang", "--set", "enable-dp-attention=true")[0] == 0
    assert "48" in only(doctor(capsys, target, "ngram", "sglang")[1], "max-running-requests", "warning")
    assert doctor(capsys, target, "ngram", "sglang", "--set", "max-running-requests=256") == (0, [])
    assert "no suffix drafting" in only(doctor(capsys, target, "suffix", "sglang")[1], "method")


def test_the_schedule_and_trees_of_tensorrt_llm(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d")
    length = ("--set", "max_draft_len=4", "--set")
    code, findings = doctor(capsys, target, draft, "trtllm", *length, "draft_len_schedule={4: 3}")
    assert code == 2
    assert "the smallest key must equal max_draft_len" in only(findings, "schedule")
    assert doctor(capsys, target, draft, "trtllm", *length, "draft_len_schedule={4: 4, 8: 2}") == (0, [])
    assert doctor(capsys, target, f"eagle3:{draft}", "trtllm", *length, "use_dynamic_tree=true")[0] == 2
    heads = model(tmp_path / "m", num_nextn_predict_layers=1)
    assert doctor(capsys, heads, "mtp", "trtllm", "--set", "draft_len_schedule={4: 1, 8: 0}") == (0, [])
    for schedule in ("draft_len_schedule={4: 4, 8: 6}", "draft_len_schedule=4", "draft_len_schedule={0: 4}"):
        assert doctor(capsys, target, draft, "trtllm", *length, schedule)[0] == 2
    both = ("draft_len_schedule={4: 4}", "--set", "max_concurrency=8")
    assert "exclude each other" in only(doctor(capsys, target, draft, "trtllm", *length, *both)[1], "schedule")
    tree = ("use_dynamic_tree=true", "--set", "dynamic_tree_max_topK=3", "--set")
    for nodes, expected in ((3, 2), (4, 0), (12, 0), (13, 2)):
        options = (*length, *tree, f"max_total_draft_tokens={nodes}")
        assert doctor(capsys, target, f"eagle3:{draft}", "trtllm", *options)[0] == expected
    assert "not on the PyTorch backend" in only(
        doctor(capsys, target, f"medusa:{draft}", "trtllm", "-k", "4")[1], "backend"
    )
    relaxed = (*length, "use_relaxed_acceptance_for_thinking=true")
    assert "not the target's" in only(doctor(capsys, target, draft, "trtllm", *relaxed)[1], "lossy")
    assert "max_draft_len is missing" in only(doctor(capsys, target, "ngram", "trtllm")[1], "num-speculative-tokens")


def test_flags_that_llama_cpp_removed(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d")
    code, findings = doctor(capsys, target, draft, "llama.cpp", "--set", "--draft-max=16")
    assert code == 2
    assert "write --spec-draft-n-max 16" in only(findings, "gone")
    assert "no suffix drafting" in only(doctor(capsys, target, "suffix", "llama.cpp")[1], "method")


def test_what_transformers_refuses(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d")
    code, findings = doctor(capsys, target, draft, "transformers", "-k", "4", "--set", "batch_size=2")
    assert code == 2
    assert "acceptance may be used, no speed-up is claimed" in only(findings, "batch")
    code, findings = doctor(capsys, target, draft, "transformers", "-k", "4", "--set", "cache_implementation=static")
    assert code == 2
    only(findings, "cache")
    assert "not the target's" in only(
        doctor(capsys, target, draft, "transformers", "--set", "assistant_ensemble_weight=0.5")[1], "lossy"
    )
    only(
        doctor(capsys, target, draft, "transformers", "--set", "num_assistant_tokens_schedule=heuristic")[1],
        "schedule",
        "warning",
    )
    only(doctor(capsys, target, "suffix", "transformers")[1], "method")
    only(doctor(capsys, target, "mtp", "transformers")[1], "mtp")
    assert doctor(capsys, target, draft, "transformers", "--set", "num_return_sequences=2")[0] == 2
    assert doctor(capsys, target, draft, "transformers", "--set", "use_cache=false")[0] == 2


@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_draft_with_fewer_positions_is_said(tmp_path, capsys, engine) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d", max_position_embeddings=2048)
    _, findings = doctor(capsys, target, draft, engine, "-k", "4")
    assert "2048 positions, the target is served with 8192" in only(
        findings, "positions", "error" if engine == "sglang" else "warning"
    )
    _, findings = doctor(capsys, target, draft, engine, "-k", "4", "--set", "max_model_len=2048")
    assert not [f for f in findings if f["code"] == "positions"]


def test_what_cannot_be_asked_is_one_line(tmp_path, capsys) -> None:
    target = model(tmp_path / "t")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF....")
    for options in (
        ["--target", target, "--draft", "ngram", "--engine", "tgi"],
        ["--target", target, "--draft", "ngram", "--engine", "vllm", "--set", "=3"],
        ["--target", target, "--draft", "ngram", "--engine", "vllm", "--set", "a=[1"],
        ["--target", target, "--draft", "ngram", "--engine", "vllm", "-k", "0"],
        ["--target", target, "--draft", "ngram", "--engine", "vllm", "-k", "1001"],
        ["--target", target, "--draft", "eagle:", "--engine", "vllm"],
        *(
            ["--target", str(tmp_path / name), "--draft", "ngram", "--engine", "vllm"]
            for name in ("empty", "broken", "bad.gguf")
        ),
    ):
        assert run(["doctor", *options]) == 2
        assert capsys.readouterr().err.count("\n") == 2
    assert run(["doctor", "--target", target, "--draft", "ngram", "--engine", "vllm@0.9", "-k", "3"]) == 0
    assert "not checked against vLLM 0.9" in capsys.readouterr().out
    assert run(["profile", "--draft", "mtp", "-o", str(tmp_path / "p")]) == 2
    assert "cannot be profiled" in capsys.readouterr().err


def test_facts_of_a_gguf_are_those_of_its_header() -> None:
    from spectune.checkpoints.embedded import embedded_gguf

    facts = model_facts(str(embedded_gguf()))
    assert (facts.vocab_size, facts.max_positions, facts.mtp_layers) == (49152, 8192, None)
    assert facts.texts[0] == "<|endoftext|>"
