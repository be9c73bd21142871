"""Loading: what is refused and why, what is defaulted and how."""

import pytest
import torch

from spectune.errors import ConfigError, DeviceError, IncompatibleModelsError
from spectune.models.devices import resolve_device, resolve_dtype
from spectune.models.loading import load_model, prompt_token_ids, require_same_tokenizer, sampling_defaults, wrap_model
from spectune.workload.prompts import Message
from tests.checkpoints import WORDS, save_checkpoint, tiny_llama

CPU = torch.device("cpu")


def load(path: str, **options):
    return load_model(path, device=CPU, **options)


def test_a_folder_loads_in_the_stated_dtype_with_digests(tmp_path) -> None:
    model = load(save_checkpoint(tmp_path / "a"), dtype="float32")
    again = load(save_checkpoint(tmp_path / "b"), dtype="float32")
    other = load(save_checkpoint(tmp_path / "c", seed=1), dtype="bfloat16")
    assert (model.dtype, other.dtype) == (torch.float32, torch.bfloat16)
    assert model.digest == again.digest != other.digest
    assert model.eos_token_ids == {1}
    assert model.vocab_size == 65


def test_padding_ids_are_never_in_the_logits(tmp_path) -> None:
    target = load(save_checkpoint(tmp_path / "a", padding_ids=63))
    draft = load(save_checkpoint(tmp_path / "b", padding_ids=11))
    require_same_tokenizer(target, draft)
    assert target.vocab_size == draft.vocab_size == 65


def test_another_token_text_is_named_with_its_id(tmp_path) -> None:
    target = load(save_checkpoint(tmp_path / "a"))
    renamed = load(save_checkpoint(tmp_path / "b", words=[*WORDS[:10], "dog", *WORDS[11:]]))
    with pytest.raises(IncompatibleModelsError, match='id 14 is "w10" in the target, "dog" in the draft') as caught:
        require_same_tokenizer(target, renamed)
    assert caught.value.exit_code == 2
    shorter = load(save_checkpoint(tmp_path / "c", words=WORDS[:-1]))
    with pytest.raises(IncompatibleModelsError, match='id 64 is "w60" in the target, missing in the draft'):
        require_same_tokenizer(target, shorter)


@pytest.mark.parametrize(("weights", "expected"), [("none", "no weights"), ("pickle", "pickled weights only")])
def test_folders_without_safetensors_are_refused(tmp_path, weights, expected) -> None:
    with pytest.raises(ConfigError, match=expected):
        load(save_checkpoint(tmp_path / "a", weights=weights))


def test_unknown_models_and_broken_folders_are_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.gguf").write_bytes(b"nothing")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF" + bytes(20))
    (tmp_path / "notes.txt").write_text("x")
    for name in ("empty", "bad.gguf", "cut.gguf", "notes.txt", "absent.gguf"):
        with pytest.raises(ConfigError):
            load(str(tmp_path / name))
    with pytest.raises(ConfigError, match="there is no model 'no-such/model'"):
        load("no-such/model")


def test_broken_weights_and_config_are_refused(tmp_path) -> None:
    path = tmp_path / "a"
    save_checkpoint(path)
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load(str(path))
    (path / "model.safetensors").write_bytes(whole)
    (path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        load(str(path))
    (path / "config.json").write_text('{"model_type": "llama", "auto_map": {"AutoModel": "x.Y"}}')
    with pytest.raises(ConfigError, match="needs code from its own repository"):
        load(str(path))


def test_devices_and_dtypes() -> None:
    assert resolve_device("cpu") == CPU
    for name in ("cuda:99", "tpu", "cpu:x"):
        with pytest.raises(DeviceError) as caught:
            resolve_device(name)
        assert caught.value.exit_code == 3
    assert resolve_dtype("auto", torch.device("cuda"), torch.float16) == torch.float16
    with pytest.raises(ConfigError):
        resolve_dtype("int4", CPU, None)


def test_shipped_sampling_is_applied_or_named() -> None:
    network = tiny_llama(65, 0)
    network.generation_config.update(
        do_sample=True, temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.1, eos_token_id=1
    )
    defaults = sampling_defaults(wrap_model(network))
    assert (defaults.temperature, defaults.top_p, defaults.top_k) == (0.7, 0.8, 20)
    assert defaults.not_applied == {"repetition_penalty": 1.1}
    bare = sampling_defaults(wrap_model(tiny_llama(65, 0)))
    assert (bare.temperature, bare.top_p, bare.top_k, bare.not_applied) == (None, 1.0, 0, {})


def test_prompts_go_through_the_chat_template(tmp_path) -> None:
    model = load(save_checkpoint(tmp_path / "a"))
    assert prompt_token_ids(model, [Message(role="user", content="w0 w1")]) == [2, 4, 5, 3]
    model.tokenizer.chat_template = "{{ raise_exception('no') }}"
    with pytest.raises(ConfigError, match="template refuses"):
        prompt_token_ids(model, [Message(role="user", content="w0")])
    model.tokenizer.chat_template = None
    assert prompt_token_ids(model, [Message(role="user", content="w0 w1")]) == [4, 5]
    with pytest.raises(ConfigError, match="no tokens"):
        prompt_token_ids(model, [Message(role="user", content=" ")])


def test_what_does_not_fit_on_the_gpus_is_refused_not_offloaded() -> None:
    from types import SimpleNamespace

    from spectune.models.devices import placement, refuse_offload

    assert placement(torch.device("cuda")) == {"device_map": "sequential"}
    assert placement(torch.device("cuda:1")) == placement(torch.device("cpu")) == {}
    refuse_offload(SimpleNamespace(hf_device_map={"model": 0, "lm_head": 1}), "m")
    refuse_offload(SimpleNamespace(), "m")
    with pytest.raises(DeviceError, match="m does not fit"):
        refuse_offload(SimpleNamespace(hf_device_map={"model": 0, "lm_head": "cpu"}), "m")
