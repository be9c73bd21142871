"""Configs as text: the setting that is asked for, in each engine's own words."""

import json
import shlex
import subprocess
from dataclasses import replace

import pytest
import yaml

from spectune.cli.app import run
from spectune.decide.plan import recommend
from spectune.decide.recommendation import BatchStep
from spectune.drafting_spec import draft_spec
from spectune.engines.catalogue import ENGINES, engine_named
from spectune.engines.config import EngineConfig, engine_config, recommended_config
from spectune.engines.speculation import Speculation
from spectune.errors import ConfigError
from tests.engines.pairs import doctor, model
from tests.profiles import make_profile


def setting(draft: str | None, k: int = 4, **changes: object) -> Speculation:
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
    config = engine_config(setting(draft), "vllm@0.32")
    assert vllm_settings(config) == {**wanted, "num_speculative_tokens": 4}
    assert yaml.safe_load(config.files["vllm.yaml"])["speculative-config"] == vllm_settings(config)
    assert config.text.startswith("vllm serve target --dtype bfloat16 ")
    assert config.warnings == []


def test_the_batch_schedule_is_what_was_measured_and_nothing_in_between() -> None:
    """Batches between measured ones have the K of the next larger: no crossover is invented."""
    given = setting("small", schedule=SCHEDULE)
    settings = vllm_settings(engine_config(given, "vllm"))
    assert settings["num_speculative_tokens_per_batch_size"] == [[1, 1, 4], [2, 8, 2], [9, 32, 0]]
    assert settings["num_speculative_tokens"] == 4
    trt = yaml.safe_load(engine_config(given, "tensorrt-llm").files["trtllm.yaml"])["speculative_config"]
    assert trt["draft_len_schedule"] == {1: 4, 8: 2, 32: 0}
    assert trt["max_draft_len"] == 4
    sglang = engine_config(setting("eagle3:head", schedule=SCHEDULE), "sglang")
    tiers = json.loads(sglang.files["adaptive.json"])
    assert tiers == {str(b): {"candidate_steps": [k]} for b, k in ((1, 4), (2, 2), (8, 2), (9, 0), (32, 0))}
    assert "--speculative-adaptive-config adaptive.json" in sglang.text
    lookup = setting("ngram", schedule=SCHEDULE)
    older = (engine_config(setting("eagle3:h", schedule=SCHEDULE), "sglang@0.5.3"), engine_config(given, "vllm@0.11"))
    for config in (engine_config(given, "sglang"), engine_config(given, "llama.cpp"), engine_config(lookup, "trtllm"),
                   engine_config(given, "trtllm@1.0"), *older):  # fmt: skip
        assert any("no schedule by batch" in note for note in config.notes), config
        assert not any("schedule" in text or "adaptive" in text for text in (config.text, *config.files.values()))
    growing = setting(
        "small", schedule=[BatchStep(batch=1, num_speculative_tokens=2), BatchStep(batch=8, num_speculative_tokens=4)]
    )
    config = engine_config(growing, "trtllm")
    assert "draft_len_schedule" not in config.files["trtllm.yaml"]
    assert any("K would grow" in note for note in config.notes)
    one_k = setting("small", schedule=[BatchStep(batch=1, num_speculative_tokens=4)])
    assert "per_batch_size" not in engine_config(one_k, "vllm").text


def test_sglang_verifies_the_root_too() -> None:
    text = engine_config(setting("small", 3), "sglang").text
    assert "--speculative-algorithm STANDALONE" in text
    assert "--speculative-num-steps 3" in text
    assert "--speculative-eagle-topk 1" in text
    assert "--speculative-num-draft-tokens 4" in text


def test_llama_cpp_and_tensorrt_llm_under_their_current_names() -> None:
    text = engine_config(setting("small.gguf", 16, target="big.gguf"), "llama.cpp").text
    assert "--spec-draft-n-max 16" in text
    assert "--draft-max" not in text
    assert "--spec-draft-model small.gguf" in text
    config = yaml.safe_load(engine_config(setting("small"), "trtllm").files["trtllm.yaml"])
    assert config["speculative_config"] == {
        "decoding_type": "Draft_Target",
        "max_draft_len": 4,
        "speculative_model": "small",
    }


def test_the_rule_and_its_length_stand_beside_each_config() -> None:
    """transformers samples its draft; the others take its argmax, unless sampling it is possible and pays."""
    given = setting("small", temperature=1.0, lengths={"greedy_draft": 2.0, "rejection": 2.5})
    for engine, rule in {"vllm": "rejection", "tensorrt-llm": "rejection", "transformers": "rejection",
                         "sglang": "greedy_draft", "llama.cpp": "greedy_draft"}.items():  # fmt: skip
        config = engine_config(given, engine)
        assert (config.acceptance_rule, config.acceptance_length) == (rule, given.lengths[rule]), engine
        assert "speed-up not measured here" in config.notes
    assert vllm_settings(engine_config(given, "vllm"))["draft_sample_method"] == "probabilistic"
    assert "use_rejection_sampling: true" in engine_config(given, "trtllm").files["trtllm.yaml"]


@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_draft_that_an_engine_has_not_is_said_and_plain_decoding_given(engine) -> None:
    config = engine_config(setting("layers:8" if engine != "transformers" else "suffix"), engine)
    assert "this is plain decoding" in config.warnings[0]
    assert (config.acceptance_rule, config.acceptance_length) == ("none", 1.0)
    assert "spec" not in config.text
    assert engine_config(setting(None), engine).text == config.text


def test_names_are_quoted_and_code_compiles() -> None:
    config = engine_config(setting("a model's", target="my target"), "vllm")
    assert shlex.split(config.text.replace("\\\n", " "))[2] == "my target"
    assert vllm_settings(config)["model"] == "a model's"
    for draft in ("a'b\"c", "ngram:min=2,max=3", "layers:4", None):
        compile(engine_config(setting(draft), "transformers").text, "config", "exec")


def test_versions_and_engines_that_are_not_known() -> None:
    assert engine_config(setting("small"), "vllm@0.32.1").warnings == []
    assert (
        "not checked against vLLM 0.11, only against 0.32" in engine_config(setting("small"), "vllm@0.11").warnings[0]
    )
    with pytest.raises(ConfigError, match="engine 'tgi' is not known"):
        engine_named("tgi")


def test_export_prints_what_to_paste_and_writes_its_files(tmp_path, capsys) -> None:
    make_profile(tmp_path / "p", {0.0: 0.85})
    assert run(["export", str(tmp_path / "p"), "--engine", "vllm@0.32", "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert "vllm serve toy \\\n" in said.out  # a CPU's type is its own
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
    printed = json.loads(capsys.readouterr().out)
    text = printed["text"] + "".join(printed["files"].values())
    assert all(part in text for part in wanted), text
    branches = engine == "sglang" or (engine, draft) == ("trtllm", "eagle3:head")
    assert printed["tree_width"] == (2 if branches else 1)
    assert any("this is a chain" in text for text in printed["warnings"]) != branches
    assert "tree" not in text or branches
    assert any(f"{draft} at K = 3 in a tree of width 2 was not measured" in note for note in printed["notes"])
    assert printed["acceptance_length"] is None
    if branches:  # and what was written passes our own preflight
        sets = {"trtllm": yaml.safe_load(printed["files"].get("trtllm.yaml", "{}")).get("speculative_config", {})}
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
    printed = json.loads(said.out)
    assert printed["draft"] is not None
    assert printed["num_speculative_tokens"] > 0
    assert f"SGLang has no medusa:x; {printed['draft']} is the best here that it has" in said.err
    assert "the profile's verdict is speculate" in printed["notes"]


def test_another_measured_setting_keeps_its_own_acceptance(tmp_path, capsys) -> None:
    decided = recommend(make_profile(tmp_path / "p", {0.0: 0.5}, verify_s=0.25, draft_s=0.05, ngram_acceptance=0.4))
    assert decided.verdict == "plain"
    base = ["export", str(tmp_path / "p"), "--engine", "vllm", "--json"]
    assert run([*base, "-k", "2"]) == 0
    printed = json.loads(capsys.readouterr().out)
    draft = decided.best_candidate.draft
    candidate = next(c for c in decided.candidates if (c.draft, c.num_speculative_tokens) == (draft, 2))
    assert (printed["draft"], printed["num_speculative_tokens"]) == (draft, 2)
    assert printed["acceptance_length"] == candidate.acceptance_length.estimate
    assert any("the profile's verdict is plain, its best" in note for note in printed["notes"])
    other = next(c.draft for c in decided.candidates if c.draft != draft)
    assert run([*base, "--draft", other]) == 0
    printed = json.loads(capsys.readouterr().out)
    best = max((c for c in decided.candidates if c.draft == other), key=lambda c: c.speedup.estimate)
    assert (printed["draft"], printed["num_speculative_tokens"]) == (other, best.num_speculative_tokens)
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
    candidates = [
        replace(candidate, draft="layers:8") if candidate.draft == "small" else candidate
        for candidate in decided.candidates
    ]
    decided = replace(decided, best_candidate=skip, candidates=candidates)
    config = recommended_config(decided, "vllm")
    assert vllm_settings(config)["method"] == "ngram"
    assert config.warnings == ["vLLM has no layers:8; ngram:min=1,max=4 is the best here that it has"]
    loads = replace(decided, by_batch=SCHEDULE)
    assert any(
        "no schedule by batch: it was decided for layers:8" in note for note in recommended_config(loads, "vllm").notes
    )
    assert "assistant_early_exit=8" in recommended_config(decided, "transformers").text
    alone = replace(decided, candidates=[candidate for candidate in candidates if candidate.draft == "layers:8"])
    assert "this is plain decoding" in recommended_config(alone, "vllm").warnings[0]


def test_padded_embeddings_get_what_each_engine_needs() -> None:
    given = setting("small", padded=True, lengths={"greedy_draft": 2.0, "rejection": 2.5})
    settings = vllm_settings(engine_config(given, "vllm"))
    assert settings["use_heterogeneous_vocab"] is True
    assert "draft_sample_method" not in settings
    text = engine_config(given, "transformers").text
    assert "tokenizer=tokenizer, assistant_tokenizer=assistant_tokenizer" in text
    compile(text, "config", "exec")


def test_each_measured_batch_has_its_own_k(tmp_path) -> None:
    decided = recommend(make_profile(tmp_path / "p", {0.0: 0.85}))
    assert decided.by_batch == [BatchStep(batch=1, num_speculative_tokens=decided.num_speculative_tokens)]
