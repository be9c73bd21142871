"""The target's first layers as a draft: the same network that was built with fewer layers from the start."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from spectune.cli.app import run
from spectune.decoding.decode import speculative_decode
from spectune.drafting.draft_model import DraftModel
from spectune.drafting.layer_skip import first_layers
from spectune.drafting_spec import draft_spec
from spectune.errors import ConfigError
from spectune.models.loading import wrap_model
from spectune.models.scoring import ModelScorer
from spectune.profile.store import load_profile
from tests.checkpoints import WORDS, save_checkpoint

SMALL = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2}
HEADS = {"num_key_value_heads": 1, "head_dim": 8}
LAYOUTS = {
    "llama": SMALL,
    "qwen2": SMALL | {"num_key_value_heads": 1},
    "qwen3": SMALL | HEADS,
    "gemma2": SMALL | HEADS | {"sliding_window": 4},
    "gemma3_text": SMALL | HEADS | {"sliding_window": 4},
    "gpt2": {"vocab_size": 50, "n_embd": 16, "n_layer": 4, "n_head": 2, "n_positions": 64},
}


def network(kind: str, **changes):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**LAYOUTS[kind], **changes})).eval()


def logits(model, ids) -> torch.Tensor:
    sequence = ModelScorer(model).open()
    sequence.extend(torch.tensor(ids[:5]))
    sequence.keep(3)
    return sequence.extend(torch.tensor(ids[3:])).logits


@pytest.mark.parametrize("kind", list(LAYOUTS))
def test_it_is_the_network_with_fewer_layers(kind) -> None:
    whole = wrap_model(network(kind))
    ids = torch.arange(12).tolist()
    before = logits(whole, ids)
    cut = first_layers(whole, 2)
    fewer = network(kind, **{"n_layer" if kind == "gpt2" else "num_hidden_layers": 2})
    fewer.load_state_dict({key: whole.network.state_dict()[key] for key in fewer.state_dict()})
    assert torch.equal(logits(cut, ids), logits(wrap_model(fewer), ids))
    assert torch.equal(logits(whole, ids), before)  # the target is as it was
    assert not torch.equal(logits(cut, ids), before[:, : cut.vocab_size])
    shared = {parameter.data_ptr() for parameter in whole.network.parameters()}
    assert {parameter.data_ptr() for parameter in cut.network.parameters()} < shared


def test_decoding_with_it_is_exact() -> None:
    whole = wrap_model(network("llama"))
    plain, speculative = (
        speculative_decode(ModelScorer(whole), DraftModel(first_layers(whole, 3)), [1, 2, 3], k, 0.0, max_new_tokens=20)
        for k in (0, 4)
    )
    assert plain.token_ids == speculative.token_ids


def test_what_cannot_be_cut_is_refused() -> None:
    whole = wrap_model(network("llama"), name="m")
    for layers in (0, 4):
        with pytest.raises(ConfigError, match=f"layers:{layers} does not cut m, which has 4 layers"):
            first_layers(whole, layers)
    odd = wrap_model(network("llama"), name="odd")
    odd.network.model.layers = None
    with pytest.raises(ConfigError, match="in a place that is not known"):
        first_layers(odd, 2)


def test_it_is_profiled_confirmed_and_told(tmp_path, capsys) -> None:
    target = save_checkpoint(tmp_path / "target")
    workload, output = tmp_path / "w.jsonl", tmp_path / "p"
    workload.write_text("\n".join(json.dumps({"prompt": " ".join(WORDS[i : i + 9])}) for i in range(16)))
    options = [
        "--workload",
        str(workload),
        "--max-new-tokens",
        "20",
        "--max-k",
        "2",
        "--budget-s",
        "1",
        "-o",
        str(output),
    ]
    assert run(["profile", "--target", target, "--draft", "layers:1", "--temperature", "0", *options]) == 0
    (record,) = load_profile(output).manifest.drafts
    assert (record.method, draft_spec(record.spec).layers) == ("layer_skip", 1)
    assert record.model.name.endswith("first 1 layers")
    assert run(["confirm", str(output), "--prompts", "2", "-k", "2"]) == 0
    capsys.readouterr()
    assert run(["recommend", str(output), "--json", "-o", str(tmp_path / "s.md")]) in (0, 4)
    texts = {config["engine"]: config["text"] for config in json.loads(capsys.readouterr().out)["configs"]}
    assert "speculative-config" not in texts["vLLM"]
    assert "assistant_early_exit=1" in texts["transformers"]
    assert run(["profile", "--target", target, "--draft", "layers:2", "--force", *options]) == 2
    assert "does not cut" in capsys.readouterr().err
    assert run(["profile", "--target", target, "--draft", "layers:x", *options]) == 2
