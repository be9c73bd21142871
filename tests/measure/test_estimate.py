"""Before anything loads: sizes from headers, a refusal of what cannot fit, what a run will take."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from spectune.checkpoints.embedded import embedded_gguf
from spectune.checkpoints.size import ModelSize, model_size
from spectune.cli.app import run
from spectune.errors import ConfigError, DeviceError
from spectune.measure.estimate import estimate_run
from spectune.models.devices import require_room
from spectune.models.kv_cache import cache_argument, new_cache
from spectune.profile.run import Run
from tests.checkpoints import WORDS, save_checkpoint
from tests.drafting.test_layer_skip import LAYOUTS

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", list(LAYOUTS))
def test_the_size_of_a_folder_is_that_of_the_network(tmp_path, kind) -> None:
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **LAYOUTS[kind])).eval()
    network.save_pretrained(tmp_path, max_shard_size="4KB")
    size = model_size(tmp_path)
    assert size is not None
    assert (size.parameters, size.vocab_size) == (network.num_parameters(), 50)
    assert size.stored_bytes == 4 * network.num_parameters()
    cache = new_cache()
    network(input_ids=torch.tensor([[1, 2, 3]]), use_cache=True, **cache_argument(network, cache))
    assert size.cached_values * 3 == sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)


def test_the_size_of_a_gguf_file_is_read_from_its_header() -> None:
    size = model_size(embedded_gguf())
    assert size == ModelSize(
        parameters=134_515_008, stored_bytes=4 * 134_515_008, vocab_size=49_152, cached_values=2 * 30 * 3 * 64
    )


def test_files_that_do_not_tell_have_no_size(tmp_path) -> None:
    assert model_size(tmp_path) is None
    (tmp_path / "a.safetensors").write_bytes(b"\x04\x00\x00\x00\x00\x00\x00\x00nope")
    (tmp_path / "config.json").write_text("{}")
    assert model_size(tmp_path) is None
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert model_size(tmp_path / "m.gguf") is None


def test_weights_that_cannot_fit_are_refused_before_they_are_read(tmp_path, monkeypatch, capsys) -> None:
    target = save_checkpoint(tmp_path / "target")

    def read(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("spectune.models.devices.free_bytes", lambda _: 5000.0)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", read)
    assert run(["profile", "--target", target, "-o", str(tmp_path / "p")]) == 3
    assert "GB for its weights alone" in capsys.readouterr().err
    require_room(ModelSize(parameters=1000, stored_bytes=4000, vocab_size=1, cached_values=1), "m", torch.bfloat16, CPU)
    with pytest.raises(DeviceError):
        require_room(
            ModelSize(parameters=3000, stored_bytes=12000, vocab_size=1, cached_values=1),
            "m",
            torch.bfloat16,
            torch.device("cpu"),
        )
    require_room(None, "m", torch.bfloat16, CPU)  # a size that is not known is tried


def test_a_dry_run_tells_and_touches_nothing(tmp_path, monkeypatch, capsys) -> None:
    target, draft = save_checkpoint(tmp_path / "target"), save_checkpoint(tmp_path / "draft", seed=1)
    (tmp_path / "w.txt").write_text("\n".join(" ".join(WORDS[i : i + 6]) for i in range(16)))

    def read(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", read)
    before = sorted(tmp_path.iterdir())
    options = ["--target", target, "--draft", draft, "--draft", "layers:1", "--workload", str(tmp_path / "w.txt")]
    assert run(["profile", *options, "--budget-s", "7", "-o", str(tmp_path / "p"), "--dry-run"]) == 0
    told = {line.split()[0]: float(line.split()[1].replace(",", "")) for line in capsys.readouterr().out.splitlines()}
    assert list(told) == ["load", "record", "replay", "costs", "total", "memory", "disk"]
    assert told["costs"] == 7
    assert told["total"] == pytest.approx(sum(told[stage] for stage in ("load", "record", "replay", "costs")), abs=2)
    assert 0.5 < told["memory"] < 2
    assert sorted(tmp_path.iterdir()) == before
    assert run(["profile", *options, "--max-k", "0", "-o", str(tmp_path / "p"), "--dry-run"]) == 2


def test_more_work_takes_longer_and_more_memory(tmp_path) -> None:
    target = save_checkpoint(tmp_path / "target")
    config = json.loads((tmp_path / "target" / "config.json").read_text())
    assert config["vocab_size"] == 65
    one, more = (
        estimate_run(Run(target=target, draft=["ngram"], max_new_tokens=tokens, temperature=temperatures))
        for tokens, temperatures in ((64, [0.0]), (512, [0.0, 0.5, 1.0]))
    )
    assert more.seconds["record"] > 2 * one.seconds["record"]
    assert more.memory_bytes > one.memory_bytes
    assert more.disk_bytes > one.disk_bytes
    with pytest.raises(ConfigError, match="the size of"):
        estimate_run(Run(target=str(tmp_path)))
