"""Configs as text, and preflight: every case that users ran into, with the right answer."""

import json
import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from spectune.checkpoints.facts import model_facts
from spectune.cli.app import run
from spectune.decide.plan import recommend
from spectune.decide.recommendation import BatchStep
from spectune.drafting_spec import draft_spec
from spectune.engines.catalogue import ENGINES, engine_named
from spectune.engines.config import EngineConfig, engine_config, recommended_config
from spectune.engines.speculation import Speculation
from spectune.errors import ConfigError
from tests.profiles import make_profile


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


def asked(draft: str | None, k: int = 4, **changes: object) -> Speculation:
    fields = {
        "target": "target", "draft": None if draft is None else draft_spec(draft), "num_speculative_tokens": k,
        "temperature": 0.0, "top_p": 1.0, "top_k": 0, "dtype": "bfloat16", "schedule": [],
        "lengths": {"greedy_draft": 2.5, "rejection": 2.5},
    }  # fmt: skip
    return Speculation(**{**fields, **changes})


def vllm_settings(config: EngineConfig) -> dict:
    words = shlex.split(config.text.replace("\\\n", " "))
    return json.loads(words[words.index("--speculative-config") + 1])


SCHEDULE = [BatchStep(batch=1, num_speculative_tokens=4), BatchStep(batch=8, num_speculative_tokens=2),
            BatchStep(batch=32, num_speculative_tokens=0)]  # fmt: skip


# ------------------------------------------------------------------------------------------------ configs


@pytest.mark.parametrize(
    ("draft", "wanted"),
    [
        ("small", {"method": "draft_model", "model": "small"}),
        ("ngram:min=2,max=3", {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 3}),
        ("suffix", {"method": "suffix"}),
        ("medusa:heads", {"method": "medusa", "model": "heads"}),
        ("eagle:head", {"method": "eagle", "model": "head"}),
        ("eagle3:head", {"method": "eagle3", "model": "head"}),
        ("mtp", {"method": "mtp"}),
    ],
)
def test_vllm_takes_every_method_it_has(draft, wanted) -> None:
    config = engine_config(asked(draft), "vllm@0.32")
    assert vllm_settings(config) == {**wanted, "num_speculative_tokens": 4}
    assert yaml.safe_load(config.files["vllm.yaml"])["speculative-config"] == vllm_settings(config)
    assert config.text.startswith("vllm serve target --dtype bfloat16 ")
    assert config.warnings == []


def test_the_batch_schedule_is_what_was_measured_and_nothing_in_between() -> None:
    """Batches between measured ones have the K of the next larger: no crossover is invented."""
    given = asked("small", schedule=SCHEDULE)
    settings = vllm_settings(engine_config(given, "vllm"))
    assert settings["num_speculative_tokens_per_batch_size"] == [[1, 1, 4], [2, 8, 2], [9, 32, 0]]
    assert settings["num_speculative_tokens"] == 4
    trt = yaml.safe_load(engine_config(given, "tensorrt-llm").files["trtllm.yaml"])["speculative_config"]
    assert trt["draft_len_schedule"] == {1: 4, 8: 2, 32: 0}
    assert trt["max_draft_len"] == 4
    sglang = engine_config(asked("eagle3:head", schedule=SCHEDULE), "sglang")
    tiers = json.loads(sglang.files["adaptive.json"])
    assert tiers == {str(b): {"candidate_steps": [k]} for b, k in ((1, 4), (2, 2), (8, 2), (9, 0), (32, 0))}
    assert "--speculative-adaptive-config adaptive.json" in sglang.text
    lookup = asked("ngram", schedule=SCHEDULE)
    older = (engine_config(asked("eagle3:h", schedule=SCHEDULE), "sglang@0.5.3"), engine_config(given, "vllm@0.11"))
    for config in (engine_config(given, "sglang"), engine_config(given, "llama.cpp"), engine_config(lookup, "trtllm"),
                   engine_config(given, "trtllm@1.0"), *older):  # fmt: skip
        assert any("no schedule by batch" in note for note in config.notes), config
        assert not any("schedule" in text or "adaptive" in text for text in (config.text, *config.files.values()))
    growing = asked(
        "small", schedule=[BatchStep(batch=1, num_speculative_tokens=2), BatchStep(batch=8, num_speculative_tokens=4)]
    )
    config = engine_config(growing, "trtllm")
    assert "draft_len_schedule" not in config.files["trtllm.yaml"]
    assert any("K would grow" in note for note in config.notes)
    one_k = asked("small", schedule=[BatchStep(batch=1, num_speculative_tokens=4)])
    assert "per_batch_size" not in engine_config(one_k, "vllm").text


def test_sglang_verifies_the_root_too() -> None:
    text = engine_config(asked("small", 3), "sglang").text
    assert "--speculative-algorithm STANDALONE" in text
    assert "--speculative-num-steps 3" in text
    assert "--speculative-eagle-topk 1" in text
    assert "--speculative-num-draft-tokens 4" in text


def test_llama_cpp_and_tensorrt_llm_under_their_current_names() -> None:
    text = engine_config(asked("small.gguf", 16, target="big.gguf"), "llama.cpp").text
    assert "--spec-draft-n-max 16" in text
    assert "--draft-max" not in text
    assert "--spec-draft-model small.gguf" in text
    config = yaml.safe_load(engine_config(asked("small"), "trtllm").files["trtllm.yaml"])
    assert config["speculative_config"] == {
        "decoding_type": "Draft_Target",
        "max_draft_len": 4,
        "speculative_model": "small",
    }


def test_the_rule_and_its_length_stand_beside_each_config() -> None:
    """transformers samples its draft; the others take its argmax, unless sampling it is possible and pays."""
    given = asked("small", temperature=1.0, lengths={"greedy_draft": 2.0, "rejection": 2.5})
    for engine, rule in {"vllm": "rejection", "tensorrt-llm": "rejection", "transformers": "rejection",
                         "sglang": "greedy_draft", "llama.cpp": "greedy_draft"}.items():  # fmt: skip
        config = engine_config(given, engine)
        assert (config.acceptance_rule, config.acceptance_length) == (rule, given.lengths[rule]), engine
        assert "speed-up not measured here" in config.notes
    assert vllm_settings(engine_config(given, "vllm"))["draft_sample_method"] == "probabilistic"
    assert "use_rejection_sampling: true" in engine_config(given, "trtllm").files["trtllm.yaml"]


@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_draft_that_an_engine_has_not_is_said_and_plain_decoding_given(engine) -> None:
    config = engine_config(asked("layers:8" if engine != "transformers" else "suffix"), engine)
    assert "this is plain decoding" in config.warnings[0]
    assert (config.acceptance_rule, config.acceptance_length) == ("none", 1.0)
    assert "spec" not in config.text
    assert engine_config(asked(None), engine).text == config.text


def test_names_are_quoted_and_code_compiles() -> None:
    config = engine_config(asked("a model's", target="my target"), "vllm")
    assert shlex.split(config.text.replace("\\\n", " "))[2] == "my target"
    assert vllm_settings(config)["model"] == "a model's"
    for draft in ("a'b\"c", "ngram:min=2,max=3", "layers:4", None):
        compile(engine_config(asked(draft), "transformers").text, "config", "exec")


def test_versions_and_engines_that_are_not_known() -> None:
    assert engine_config(asked("small"), "vllm@0.32.1").warnings == []
    assert "not checked against vLLM 0.11, only against 0.32" in engine_config(asked("small"), "vllm@0.11").warnings[0]
    with pytest.raises(ConfigError, match="engine 'tgi' is not known"):
        engine_named("tgi")


def test_export_prints_what_to_paste_and_writes_its_files(tmp_path, capsys) -> None:
    make_profile(tmp_path / "p", {0.0: 0.85})
    assert run(["export", str(tmp_path / "p"), "--engine", "vllm@0.32", "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert "vllm serve toy --dtype float32" in said.out
    assert said.err == ""
    written = (tmp_path / "out" / "vllm.yaml").read_text()
    assert f"# wrote {tmp_path / 'out' / 'vllm.yaml'}\n" in said.out
    assert yaml.safe_load(written)["speculative-config"]["num_speculative_tokens"] == 4
    assert run(["export", str(tmp_path / "p"), "--engine", "trtllm", "-o", str(tmp_path / "out")]) == 0
    assert f"--config {tmp_path / 'out' / 'trtllm.yaml'}" in capsys.readouterr().out
    (tmp_path / "file").touch()
    assert run(["export", str(tmp_path / "p"), "--engine", "vllm", "-o", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.count("\n") == 2
    assert run(["export", str(tmp_path / "p"), "--engine", "vllm@9", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["version"] == "9"
    assert "warning: not checked against vLLM 9" in said.err
    make_profile(tmp_path / "slow", {0.0: 0.5}, verify_s=0.25, draft_s=0.05)
    assert run(["export", str(tmp_path / "slow"), "--engine", "vllm"]) == 0
    said = capsys.readouterr().out
    assert "--speculative-config" not in said
    assert said.startswith("# the profile's verdict is plain\n")


@pytest.mark.parametrize(
    ("engine", "draft", "wanted"),
    [
        ("sglang", "eagle3:head", ["--speculative-num-steps 3", "--speculative-eagle-topk 2",
                                   "--speculative-num-draft-tokens 7"]),
        ("trtllm", "eagle3:head", ["max_draft_len: 3", "use_dynamic_tree: true", "dynamic_tree_max_topK: 2",
                                   "max_total_draft_tokens: 6"]),
        ("trtllm", "mtp", ["max_draft_len: 3"]),
        ("vllm", "eagle3:head", ['"num_speculative_tokens": 3']),
        ("llama.cpp", "small.gguf", ["--spec-draft-n-max 3"]),
        ("transformers", "small", ["num_assistant_tokens = 3"]),
    ],
)  # fmt: skip
def test_trees_where_the_engine_has_them_and_chains_elsewhere(tmp_path, capsys, engine, draft, wanted) -> None:
    """Asked for by hand: spectune measures chains, so no acceptance length stands beside a tree."""
    make_profile(tmp_path / "p", {0.0: 0.85})
    options = ["--draft", draft, "-k", "3", "--tree-width", "2", "--json"]
    assert run(["export", str(tmp_path / "p"), "--engine", engine, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    text = found["text"] + "".join(found["files"].values())
    assert all(part in text for part in wanted), text
    branches = engine == "sglang" or (engine, draft) == ("trtllm", "eagle3:head")
    assert found["tree_width"] == (2 if branches else 1)
    assert any("this is a chain" in text for text in found["warnings"]) != branches
    assert "tree" not in text or branches
    assert any(f"{draft} at K = 3 in a tree of width 2 was not measured" in note for note in found["notes"])
    assert found["acceptance_length"] is None
    if branches:  # and what was written passes our own preflight
        sets = {"trtllm": yaml.safe_load(found["files"].get("trtllm.yaml", "{}")).get("speculative_config", {})}
        pairs = [f"{key}={value}" for key, value in sets.get(engine, {}).items()] or [
            option.removeprefix("--").replace(" ", "=") for option in wanted
        ]
        head = f"eagle3:{model(tmp_path / 'd')}"
        given = [part for pair in pairs for part in ("--set", pair)]
        assert not any(f["level"] == "error" for f in doctor(capsys, model(tmp_path / "t"), head, engine, *given)[1])


def test_what_is_printed_can_be_saved_and_run(tmp_path, capsys) -> None:
    """Notes are comments, a file that the command needs is written first, names with spaces stay whole."""
    make_profile(tmp_path / "p", {0.0: 0.85})
    assert run(["export", str(tmp_path / "p"), "--engine", "trtllm@1.0", "--draft", "my trtllm.yaml", "-k", "2"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# warning: not checked against TensorRT-LLM 1.0")
    script = tmp_path / "run.sh"
    script.write_text('trtllm-serve() { for one in "$@"; do echo "$one"; done; }\n' + text)
    done = subprocess.run(["bash", str(script)], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == ["toy", "--config", "trtllm.yaml"]
    settings = yaml.safe_load((tmp_path / "trtllm.yaml").read_text())["speculative_config"]
    assert settings["speculative_model"] == "my trtllm.yaml"
    folder = tmp_path / "a folder"
    options = ["--draft", "my trtllm.yaml", "-k", "2", "-o", str(folder)]
    assert run(["export", str(tmp_path / "p"), "--engine", "trtllm", *options]) == 0
    assert shlex.split(capsys.readouterr().out, comments=True)[-1] == str(folder / "trtllm.yaml")
    victim = tmp_path / "victim"
    (folder / ".trtllm.yaml.partial").symlink_to(victim)
    assert run(["export", str(tmp_path / "p"), "--engine", "trtllm", *options]) == 0
    assert not victim.exists()


def test_a_method_that_the_engine_lacks_is_replaced_by_the_best_it_has(tmp_path, capsys) -> None:
    make_profile(tmp_path / "p", {0.0: 0.85})
    options = ["export", str(tmp_path / "p"), "--engine", "sglang", "--draft", "medusa:x", "-k", "3", "--json"]
    assert run(options) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["draft"] is not None
    assert found["num_speculative_tokens"] > 0
    assert f"SGLang has no medusa:x; {found['draft']} is the best here that it has" in said.err
    assert "the profile's verdict is speculate" in found["notes"]


def test_another_measured_setting_keeps_its_own_acceptance(tmp_path, capsys) -> None:
    decided = recommend(make_profile(tmp_path / "p", {0.0: 0.5}, verify_s=0.25, draft_s=0.05, ngram_acceptance=0.4))
    assert decided.verdict == "plain"
    base = ["export", str(tmp_path / "p"), "--engine", "vllm", "--json"]
    assert run([*base, "-k", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    draft = decided.best_candidate.draft
    candidate = next(c for c in decided.candidates if (c.draft, c.num_speculative_tokens) == (draft, 2))
    assert (found["draft"], found["num_speculative_tokens"]) == (draft, 2)
    assert found["acceptance_length"] == candidate.acceptance_length.estimate
    assert any("the profile's verdict is plain, its best" in note for note in found["notes"])
    other = next(c.draft for c in decided.candidates if c.draft != draft)
    assert run([*base, "--draft", other]) == 0
    found = json.loads(capsys.readouterr().out)
    best = max((c for c in decided.candidates if c.draft == other), key=lambda c: c.speedup.estimate)
    assert (found["draft"], found["num_speculative_tokens"]) == (other, best.num_speculative_tokens)
    for wrong, said in [("-k 0", "count from 1"), ("--tree-width 0", "count from 1"), ("-k 5000", "at most"),
                        ("--draft mtp", "give -k"),
                        ("--draft eagle3:", "names no checkpoint")]:  # fmt: skip
        assert run([*base, *wrong.split()]) == 2
        assert said in capsys.readouterr().err


def test_recommend_puts_engines_into_the_skill(tmp_path, capsys) -> None:
    make_profile(tmp_path / "p", {0.0: 0.85})
    skill = tmp_path / "s.md"
    assert run(["recommend", str(tmp_path / "p"), "--engine", "sglang", "--engine", "trtllm", "-o", str(skill)]) == 0
    text = skill.read_text()
    assert "### SGLang" in text
    assert "`trtllm.yaml`:\n\n```yaml\nspeculative_config:" in text
    assert "### vLLM" not in text
    assert run(["recommend", str(tmp_path / "p"), "--engine", "tgi", "-o", str(skill)]) == 2
    assert skill.read_text() == text


def test_the_best_draft_that_an_engine_has_stands_in(tmp_path) -> None:
    """Layer skip wins here, n-gram gains too: vLLM gets n-gram, and says what it stands in for."""
    decided = recommend(make_profile(tmp_path / "p", {0.0: 0.85}, ngram_acceptance=0.8))
    skip = replace(decided.best_candidate, draft="layers:8")
    candidates = [replace(one, draft="layers:8") if one.draft == "small" else one for one in decided.candidates]
    decided = replace(decided, best_candidate=skip, candidates=candidates)
    config = recommended_config(decided, "vllm")
    assert vllm_settings(config)["method"] == "ngram"
    assert config.warnings == ["vLLM has no layers:8; ngram:min=1,max=4 is the best here that it has"]
    loads = replace(decided, by_batch=SCHEDULE)
    assert any(
        "no schedule by batch: it was decided for layers:8" in note for note in recommended_config(loads, "vllm").notes
    )
    assert "assistant_early_exit=8" in recommended_config(decided, "transformers").text
    alone = replace(decided, candidates=[one for one in candidates if one.draft == "layers:8"])
    assert "this is plain decoding" in recommended_config(alone, "vllm").warnings[0]


def test_padded_embeddings_get_what_each_engine_needs() -> None:
    given = asked("small", padded=True, lengths={"greedy_draft": 2.0, "rejection": 2.5})
    settings = vllm_settings(engine_config(given, "vllm"))
    assert settings["use_heterogeneous_vocab"] is True
    assert "draft_sample_method" not in settings
    text = engine_config(given, "transformers").text
    assert "tokenizer=tokenizer, assistant_tokenizer=assistant_tokenizer" in text
    compile(text, "config", "exec")


def test_each_measured_batch_has_its_own_k(tmp_path) -> None:
    decided = recommend(make_profile(tmp_path / "p", {0.0: 0.85}))
    assert decided.by_batch == [BatchStep(batch=1, num_speculative_tokens=decided.num_speculative_tokens)]


# ------------------------------------------------------------------------------------------------ preflight


def doctor(capsys, target: str, draft: str, engine: str, *options: str) -> tuple[int, list[dict]]:
    code = run(["doctor", "--target", target, "--draft", draft, "--engine", engine, "--json", *options])
    said = capsys.readouterr()
    assert said.err == ""
    found = json.loads(said.out)
    assert (found["verdict"] == "impossible") == (code == 2)
    return code, found["findings"]


def one(findings: list[dict], code: str, level: str = "error") -> str:
    mine = [f for f in findings if f["code"] == code]
    assert len(mine) == 1, findings
    assert mine[0]["level"] == level
    return f"{mine[0]['message']} · {mine[0]['remedy']}"


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
    code, found = doctor(capsys, target, draft, engine, "-k", "4")
    assert code == (2 if level == "error" else 0)
    assert said in one(found, "padding", level)


def test_vllm_maps_padded_vocabularies_when_told(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t", 152064), model(tmp_path / "d", 151936)
    assert doctor(capsys, target, draft, "vllm", "-k", "4", "--set", "use_heterogeneous_vocab=true") == (0, [])


def test_vocabularies_of_two_families(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t", 152064, 900), model(tmp_path / "d", 32002, 500)
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        code, found = doctor(capsys, target, draft, engine, "-k", "4")
        assert code == 2
        said = one(found, "vocabulary")
        assert "use_heterogeneous_vocab" in said
        assert "universal assisted generation" in said
    code, found = doctor(capsys, target, draft, "transformers", "-k", "4")
    assert code == 0
    assert "assistant_tokenizer" in one(found, "vocabulary", "warning")
    code, found = doctor(capsys, target, draft, "llama.cpp", "-k", "4")
    assert code == 2
    assert any("152064 and 32002: over 128 apart" in f["message"] for f in found)
    options = ("-k", "4", "--set", "use_heterogeneous_vocab=true", "--set", "draft_sample_method=probabilistic")
    code, found = doctor(capsys, target, draft, "vllm", *options)
    assert code == 2
    assert "greedily only" in one(found, "vocabulary")


@pytest.mark.parametrize("engine", list(ENGINES))
def test_one_token_with_another_text(tmp_path, capsys, engine) -> None:
    target = model(tmp_path / "t", changed={17: "▁cat"})
    draft = model(tmp_path / "d", changed={17: "▁dog"})
    code, found = doctor(capsys, target, draft, engine, "-k", "4")
    assert code == 2
    assert 'id 17 is "▁cat" in the target, "▁dog" in the draft' in one(found, "vocabulary")


def test_a_token_that_one_model_lacks_is_never_accepted_and_no_more(tmp_path, capsys) -> None:
    """151668 and 151665 tokens of one family in embeddings of one size: only SGLang and llama.cpp compare them all."""
    target, draft = model(tmp_path / "t", 128, 93), model(tmp_path / "d", 128, 90, changed={})
    for folder, last in ((target, 93), (draft, 90)):  # no token in the way of the others
        written = json.loads(Path(folder, "tokenizer.json").read_text())
        written["added_tokens"] = []
        written["model"]["vocab"][f"word{last}"] = last
        Path(folder, "tokenizer.json").write_text(json.dumps(written))
    for engine, expected in {"vllm": 0, "tensorrt-llm": 0, "transformers": 0, "sglang": 2, "llama.cpp": 2}.items():
        code, found = doctor(capsys, target, draft, engine, "-k", "4")
        assert code == expected, engine
        level = "error" if expected else "warning"
        assert "word91" in one(found, "vocabulary", level), engine
    assert "[PAD91]" in one(found, "vocabulary")  # as the converter to GGUF fills up


def test_texts_that_a_terminal_cannot_show_are_escaped(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t", changed={17: "\x1b[2J\ud800"}), model(tmp_path / "d")
    for engine in ("vllm", "llama.cpp"):
        assert run(["doctor", "--target", target, "--draft", draft, "--engine", engine, "-k", "4"]) == 2
        said = capsys.readouterr().out
        assert "\x1b" not in said or engine == "llama.cpp"
        assert "\\x1b[2J\\ud800" in said


def test_llama_cpp_compares_texts_from_id_five_on(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d", changed={4: "other"})
    code, found = doctor(capsys, target, draft, "llama.cpp", "-k", "4")
    assert code == 0
    assert "compares ids 5 to" in one(found, "vocabulary", "warning")
    assert doctor(capsys, target, model(tmp_path / "e", changed={5: "other"}), "llama.cpp", "-k", "4")[0] == 2
    begins = model(tmp_path / "b")
    (tmp_path / "b" / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    (tmp_path / "t" / "tokenizer_config.json").write_text('{"add_bos_token": false}')
    code, found = doctor(capsys, target, begins, "llama.cpp", "-k", "4")
    assert code == 2
    assert "adds a bos token" in one(found, "vocabulary")


def test_tensor_parallel_of_a_draft(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d")
    sets = ("-k", "4", "--set", "tensor-parallel-size=4", "--set")
    code, found = doctor(capsys, target, draft, "vllm", *sets, "draft_tensor_parallel_size=2")
    assert code == 2
    assert "to 1 or 4" in one(found, "tensor-parallel")
    for size in (1, 4):
        assert doctor(capsys, target, draft, "vllm", *sets, f"draft_tensor_parallel_size={size}")[0] == 0


def test_mtp_and_its_k(tmp_path, capsys) -> None:
    target = model(tmp_path / "t", num_nextn_predict_layers=3)
    code, found = doctor(capsys, target, "mtp", "vllm", "-k", "4")
    assert code == 2
    assert "K must be at most 3 or a multiple of 3" in one(found, "mtp")
    for k in ("2", "3", "6"):
        assert doctor(capsys, target, "mtp", "vllm", "-k", k)[0] == 0
    for engine in ("vllm", "llama.cpp"):
        assert "no heads of its own" in one(
            doctor(capsys, model(tmp_path / engine), "mtp", engine, "-k", "1")[1], "mtp"
        )
    untold = model(tmp_path / "untold", model_type="qwen3_next")
    code, found = doctor(capsys, untold, "mtp", "vllm", "-k", "1")
    assert code == 0
    assert "does not tell" in one(found, "mtp", "warning")
    inner = model(tmp_path / "inner", text_config={"hidden_size": 8}, mtp_num_hidden_layers=1)
    assert doctor(capsys, inner, "mtp", "vllm", "-k", "2") == (0, [])
    code, found = doctor(capsys, target, "mtp", "transformers", "-k", "2")
    assert "what the model's 3 heads predict, not K = 2" in one(found, "mtp", "warning")
    heads = model(tmp_path / "heads", num_nextn_predict_layers=2)
    assert doctor(capsys, untold, f"mtp:{heads}", "vllm", "-k", "4") == (0, [])
    assert "at most 2 or a multiple of 2" in one(doctor(capsys, untold, f"mtp:{heads}", "vllm", "-k", "3")[1], "mtp")


def test_settings_are_found_however_they_are_given(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d")
    whole = 'speculative_config={"num_speculative_tokens": 4, "draft_tensor_parallel_size": 3, "method": "ngram"}'
    code, found = doctor(capsys, target, draft, "vllm", "--set", whole)
    assert code == 2
    assert "to 1" in one(found, "tensor-parallel")
    assert "the settings say method ngram" in one(found, "method", "warning")
    short = ("-k", "4", "--set", "-tp=4", "--set", "draft_tensor_parallel_size=4")
    assert doctor(capsys, target, draft, "vllm", *short) == (0, [])
    inner = ("-k", "4", "--set", "speculative_config.tensor_parallel_size=2")
    assert "draft_tensor_parallel_size" in one(doctor(capsys, target, draft, "vllm", *inner)[1], "tensor-parallel")
    code, found = doctor(capsys, target, draft, "vllm", "-k", "4", "--set", "draft_tensor_paralel_size=3")
    assert code == 0
    assert "draft_tensor_paralel_size" in one(found, "unknown-setting", "info")
    flags = ("-k", "4", "--set", "--enforce-eager", "--set", "-tp 4", "--set", "sc.draft_tensor_parallel_size=4")
    code, found = doctor(capsys, target, draft, "vllm", *flags)
    assert code == 0
    assert "enforce_eager" in one(found, "unknown-setting", "info")
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
        code, found = doctor(capsys, target, f"eagle3:{head}", engine, "-k", "3")
        stops = engine == "sglang"  # which gives the draft the target's context and refuses what it derives
        assert code == (2 if stops else 0)
        assert "2048 positions" in one(found, "positions", "error" if stops else "warning"), engine
    assert doctor(capsys, target, f"eagle3:{head}", "sglang", "--set", "context-length=2048")[0] == 0


def test_heads_and_models_are_not_taken_for_each_other(tmp_path, capsys) -> None:
    target = model(tmp_path / "t", hidden_size=4096, num_hidden_layers=36)
    head = model(tmp_path / "h", hidden_size=5120, num_hidden_layers=1, architectures=["LlamaForCausalLMEagle3"])
    whole = model(tmp_path / "w", hidden_size=1024, num_hidden_layers=28, architectures=["Qwen3ForCausalLM"])
    medusa = model(tmp_path / "m", medusa_num_heads=5, architectures=["MedusaModel"])
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text("{}")
    assert "is for a hidden size of 5120, the target's is 4096" in one(
        doctor(capsys, target, f"eagle3:{head}", "vllm", "-k", "3")[1], "hidden-size"
    )
    assert "give it as a head" in one(doctor(capsys, target, head, "vllm", "-k", "3")[1], "method")
    assert "no head" in one(doctor(capsys, target, f"eagle3:{whole}", "vllm", "-k", "3")[1], "method", "warning")
    code, found = doctor(capsys, target, f"medusa:{medusa}", "vllm", "-k", "7")
    assert (code, "5 heads" in one(found, "num-speculative-tokens", "warning")) == (0, True)
    assert "sizes were not compared" in one(
        doctor(capsys, target, str(bare), "vllm", "-k", "3")[1], "vocabulary-size", "warning"
    )
    assert "layers:1 to layers:35" in one(doctor(capsys, target, "layers:36", "transformers")[1], "layers")
    assert doctor(capsys, target, "layers:20", "transformers") == (0, [])


def test_prompt_lookup_bounds_of_vllm(tmp_path, capsys) -> None:
    target = model(tmp_path / "t")
    for given in ("prompt_lookup_max", "prompt_lookup_min"):
        code, found = doctor(capsys, target, "ngram", "vllm", "-k", "4", "--set", f"{given}=4")
        assert code == 0
        said = one(found, "prompt-lookup", "warning")
        assert "takes 4 for both" in said
        assert "write prompt_lookup_min and prompt_lookup_max" in said
    sets = ("--set", "prompt_lookup_min=5", "--set", "prompt_lookup_max=3")
    code, found = doctor(capsys, target, "ngram", "vllm", "-k", "4", *sets)
    assert code == 2
    assert "min ≤ max" in one(found, "prompt-lookup")


def test_settings_that_vllm_dropped(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d")
    code, found = doctor(capsys, target, draft, "vllm", "-k", "4", "--set", "disable_by_batch_size=16")
    assert code == 2
    assert "num_speculative_tokens_per_batch_size: [[1, 15, 4], [16, 16, 0]]" in one(found, "gone")
    code, found = doctor(capsys, target, draft, "vllm", "-k", "4", "--set", "speculative_token_tree=[[0],[1]]")
    assert code == 2
    assert "chains only" in one(found, "gone")


def test_other_refusals_of_vllm(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d")
    for setting, code in {"min_p=0.1": "sampling", "logit_bias={3: 1}": "sampling",
                          "rejection_sample_method=synthetic": "lossy",
                          "num_speculative_tokens_per_batch_size=[[2, 8, 4]]": "schedule",
                          "num_speculative_tokens_per_batch_size=[[1, 8, 4], [8, 9, 1]]": "schedule",
                          "num_speculative_tokens_per_batch_size=many": "schedule"}.items():  # fmt: skip
        exit_code, found = doctor(capsys, target, draft, "vllm", "-k", "4", "--set", setting)
        assert exit_code == 2
        one(found, code)
    fine = "num_speculative_tokens_per_batch_size=[[1, 8, 4], [16, 32, 0]]"
    assert doctor(capsys, target, draft, "vllm", "-k", "4", "--set", fine) == (0, [])
    code, found = doctor(capsys, target, draft, "vllm", "-k", "4", "--set", fine, "--set", "data_parallel_size=2")
    assert code == 0
    assert "ignores" in one(found, "schedule", "warning")
    assert "needs a K" in one(doctor(capsys, target, draft, "vllm")[1], "num-speculative-tokens")
    assert "first layers" in one(doctor(capsys, target, "layers:4", "vllm", "-k", "4")[1], "method")
    assert "arctic-inference" in one(doctor(capsys, target, "suffix", "vllm")[1], "package", "warning")


def test_the_shape_of_sglang(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d")
    steps, topk = ("--set", "speculative-num-steps=3"), ("--set", "speculative-eagle-topk=1")
    code, found = doctor(capsys, target, draft, "sglang", *steps, *topk)
    assert code == 2
    assert "num-draft-tokens must be 4" in one(found, "tree-shape")
    code, found = doctor(capsys, target, draft, "sglang", *steps, *topk, "--set", "speculative-num-draft-tokens=3")
    assert code == 0
    assert "must be 4, the root counts: SGLang sets it so" in one(found, "tree-shape", "warning")
    assert doctor(capsys, target, f"eagle:{draft}", "sglang", *steps, "--set", "speculative-adaptive=true")[0] == 0
    tree = (*steps, "--set", "speculative-eagle-topk=2", "--set", "speculative-num-draft-tokens=7", "--set")
    for setting, expected in {"attention-backend=trtllm_mha": 2, "page-size=64": 0,
                              "speculative-use-rejection-sampling=true": 2}.items():  # fmt: skip
        assert doctor(capsys, target, f"eagle:{draft}", "sglang", *tree, setting)[0] == expected
    paged = (*tree, "page-size=64", "--set", "attention-backend=flashmla")
    assert "chains" not in one(doctor(capsys, target, f"eagle:{draft}", "sglang", *paged)[1], "tree-shape")
    assert doctor(capsys, target, draft, "sglang", *steps, *topk, "--set", "speculative-num-draft-tokens=4")[0] == 0
    code, found = doctor(capsys, target, draft, "sglang", *steps)
    assert code == 2
    assert "together or not at all" in one(found, "tree-shape")


def test_other_refusals_of_sglang(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d")
    for setting in ("speculative-accept-threshold-single=0.9", "speculative-accept-threshold-acc=0.5"):
        code, found = doctor(capsys, target, draft, "sglang", "--set", setting)
        assert code == 2
        assert "not the target's" in one(found, "lossy")
    for spec in (draft, "ngram"):
        assert "refuses" in one(
            doctor(capsys, target, spec, "sglang", "--set", "enable-dp-attention=true")[1], "dp-attention"
        )
    assert doctor(capsys, target, f"eagle:{draft}", "sglang", "--set", "enable-dp-attention=true")[0] == 0
    assert "48" in one(doctor(capsys, target, "ngram", "sglang")[1], "max-running-requests", "warning")
    assert doctor(capsys, target, "ngram", "sglang", "--set", "max-running-requests=256") == (0, [])
    assert "no suffix drafting" in one(doctor(capsys, target, "suffix", "sglang")[1], "method")


def test_the_schedule_and_trees_of_tensorrt_llm(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d")
    length = ("--set", "max_draft_len=4", "--set")
    code, found = doctor(capsys, target, draft, "trtllm", *length, "draft_len_schedule={4: 3}")
    assert code == 2
    assert "the smallest key must equal max_draft_len" in one(found, "schedule")
    assert doctor(capsys, target, draft, "trtllm", *length, "draft_len_schedule={4: 4, 8: 2}") == (0, [])
    assert doctor(capsys, target, f"eagle3:{draft}", "trtllm", *length, "use_dynamic_tree=true")[0] == 2
    heads = model(tmp_path / "m", num_nextn_predict_layers=1)
    assert doctor(capsys, heads, "mtp", "trtllm", "--set", "draft_len_schedule={4: 1, 8: 0}") == (0, [])
    for schedule in ("draft_len_schedule={4: 4, 8: 6}", "draft_len_schedule=4", "draft_len_schedule={0: 4}"):
        assert doctor(capsys, target, draft, "trtllm", *length, schedule)[0] == 2
    both = ("draft_len_schedule={4: 4}", "--set", "max_concurrency=8")
    assert "exclude each other" in one(doctor(capsys, target, draft, "trtllm", *length, *both)[1], "schedule")
    tree = ("use_dynamic_tree=true", "--set", "dynamic_tree_max_topK=3", "--set")
    for nodes, expected in ((3, 2), (4, 0), (12, 0), (13, 2)):
        options = (*length, *tree, f"max_total_draft_tokens={nodes}")
        assert doctor(capsys, target, f"eagle3:{draft}", "trtllm", *options)[0] == expected
    assert "not on the PyTorch backend" in one(
        doctor(capsys, target, f"medusa:{draft}", "trtllm", "-k", "4")[1], "backend"
    )
    relaxed = (*length, "use_relaxed_acceptance_for_thinking=true")
    assert "not the target's" in one(doctor(capsys, target, draft, "trtllm", *relaxed)[1], "lossy")
    assert "max_draft_len is missing" in one(doctor(capsys, target, "ngram", "trtllm")[1], "num-speculative-tokens")


def test_flags_that_llama_cpp_removed(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d")
    code, found = doctor(capsys, target, draft, "llama.cpp", "--set", "--draft-max=16")
    assert code == 2
    assert "write --spec-draft-n-max 16" in one(found, "gone")
    assert "no suffix drafting" in one(doctor(capsys, target, "suffix", "llama.cpp")[1], "method")


def test_what_transformers_refuses(tmp_path, capsys) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d")
    code, found = doctor(capsys, target, draft, "transformers", "-k", "4", "--set", "batch_size=2")
    assert code == 2
    assert "acceptance may be used, no speed-up is claimed" in one(found, "batch")
    code, found = doctor(capsys, target, draft, "transformers", "-k", "4", "--set", "cache_implementation=static")
    assert code == 2
    one(found, "cache")
    assert "not the target's" in one(
        doctor(capsys, target, draft, "transformers", "--set", "assistant_ensemble_weight=0.5")[1], "lossy"
    )
    one(
        doctor(capsys, target, draft, "transformers", "--set", "num_assistant_tokens_schedule=heuristic")[1],
        "schedule",
        "warning",
    )
    one(doctor(capsys, target, "suffix", "transformers")[1], "method")
    one(doctor(capsys, target, "mtp", "transformers")[1], "mtp")
    assert doctor(capsys, target, draft, "transformers", "--set", "num_return_sequences=2")[0] == 2
    assert doctor(capsys, target, draft, "transformers", "--set", "use_cache=false")[0] == 2


@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_draft_with_fewer_positions_is_said(tmp_path, capsys, engine) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d", max_position_embeddings=2048)
    _, found = doctor(capsys, target, draft, engine, "-k", "4")
    assert "2048 positions, the target is served with 8192" in one(
        found, "positions", "error" if engine == "sglang" else "warning"
    )
    _, found = doctor(capsys, target, draft, engine, "-k", "4", "--set", "max_model_len=2048")
    assert not [f for f in found if f["code"] == "positions"]


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
    from spectune.models.loading import embedded_gguf

    facts = model_facts(str(embedded_gguf()))
    assert (facts.vocab_size, facts.max_positions, facts.mtp_layers) == (49152, 8192, None)
    assert facts.texts[0] == "<|endoftext|>"
