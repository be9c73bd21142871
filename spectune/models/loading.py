"""Load target and draft: hub id, local folder or GGUF; dtype, device, chat template, tokenizer match."""

import hashlib
import json
import os
import shutil
import socket
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

from spectune.checkpoints.embedded import EMBEDDED, embedded_gguf
from spectune.checkpoints.facts import OTHER_VOCABULARY, first_difference
from spectune.checkpoints.files import UnreadableError, file_digest, json_object, model_path
from spectune.checkpoints.size import hub_size, model_size
from spectune.errors import ConfigError, DeviceError, IncompatibleModelsError, SpectuneError
from spectune.models.devices import placement, refuse_offload, require_room, resolve_dtype
from spectune.workload.prompts import Message

_TEMPLATES = ("tokenizer_config.json", "chat_template.json")  # where a chat template may stand
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth", "model.pt")
_APPLIED_DEFAULTS = ("temperature", "top_p", "top_k", "do_sample")
_HARMLESS_DEFAULTS = (
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "use_cache", "transformers_version",
    "_from_model_config", "max_length", "max_new_tokens", "cache_implementation", "output_attentions",
    "output_hidden_states", "trust_remote_code",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModel:
    """A loaded causal language model; ids at or above `vocab_size` are padding and are never sampled."""

    name: str
    network: Any  # transformers.PreTrainedModel
    tokenizer: Any  # transformers tokenizer, or None for networks made in memory
    vocab_size: int
    max_positions: int
    revision: str | None = None
    digest: str | None = None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return torch.device(self.network.device)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        dtype: torch.dtype = self.network.dtype
        return dtype

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a continuation: generation_config's, else the tokenizer's."""
        ids = self.network.generation_config.eos_token_id
        if ids is None and self.tokenizer is not None:
            ids = self.tokenizer.eos_token_id
        return frozenset([] if ids is None else [ids] if isinstance(ids, int) else ids)

    @property
    def chat_template_digest(self) -> str | None:
        """SHA-256 of the chat template; None where prompts go in untemplated."""
        template = getattr(self.tokenizer, "chat_template", None)
        return None if template is None else hashlib.sha256(json.dumps(template).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """What the target's generation_config says of sampling; `not_applied` fields change the law elsewhere."""

    temperature: float | None
    top_p: float
    top_k: int
    not_applied: dict[str, Any]


def sampling_defaults(model: LanguageModel) -> SamplingDefaults:
    """Temperature, top-p and top-k as shipped, and every other field that would change the target's law."""
    config: GenerationConfig = model.network.generation_config
    fields = config.to_diff_dict()
    known = {*_APPLIED_DEFAULTS, *_HARMLESS_DEFAULTS}
    greedy = fields.get("do_sample") is False
    temperature = fields.get("temperature")
    if temperature is None and fields.get("do_sample"):
        temperature = 1.0
    return SamplingDefaults(
        temperature=0.0 if greedy else temperature,
        top_p=fields.get("top_p") or 1.0,
        top_k=fields.get("top_k") or 0,
        not_applied={
            key: value
            for key, value in fields.items()
            if key not in known and value is not None and not (key == "repetition_penalty" and value == 1.0)
        },
    )


def load_model(
    spec: str | None,
    *,
    device: torch.device,
    dtype: str = "auto",
    trust_remote_code: bool = False,
    say: Callable[[str], None] | None = None,
) -> LanguageModel:
    """Load a hub id, a local folder or a .gguf file; None is the embedded default target.

    `say(text)` hears of slow one-time work. Raises: ConfigError for what is unknown, unreadable or unsafe;
    DeviceError where it does not fit.
    """
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    name = spec or EMBEDDED
    path = embedded_gguf() if spec is None else model_path(spec)
    if path.suffix == ".gguf":
        path = _dequantised(path, say or (lambda _: None))
    folder = _checked_source(path, name, trust_remote_code)
    try:
        return _loaded(folder, name, device, dtype, trust_remote_code)
    except SpectuneError:
        raise
    except torch.OutOfMemoryError as error:
        raise DeviceError(f"{name} does not fit on {device}", "use a smaller model or another device") from error
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ConfigError(f"{name} cannot be loaded: {reason}", "check the checkpoint and its config.json") from error


def _loaded(folder: str, name: str, device: torch.device, dtype: str, trust: bool) -> LanguageModel:
    config, local = AutoConfig.from_pretrained(folder, trust_remote_code=trust), Path(folder)
    resolved = resolve_dtype(dtype, device, config.dtype)
    require_room(model_size(local) if local.is_dir() else hub_size(folder), name, resolved, device)
    network = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=resolved, use_safetensors=True, trust_remote_code=trust, **placement(device)
    )
    refuse_offload(network, name)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust)
    return wrap_model(
        network if placement(device) else network.to(device),
        tokenizer=tokenizer,
        name=name,
        revision=getattr(config, "_commit_hash", None),
        digest=folder_digest(local) if local.is_dir() else None,
    )


def wrap_model(
    network: Any, *, tokenizer: Any = None, name: str = "model", revision: str | None = None, digest: str | None = None
) -> LanguageModel:
    """A network already in memory as spectune sees it, in inference mode."""
    network.eval()
    text = network.config.get_text_config()
    known = text.vocab_size if tokenizer is None else max(tokenizer.get_vocab().values()) + 1
    return LanguageModel(
        name=name,
        network=network,
        tokenizer=tokenizer,
        vocab_size=min(known, text.vocab_size),
        max_positions=int(getattr(text, "max_position_embeddings", 0) or 2**31),
        revision=revision,
        digest=digest,
    )


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/spectune, by default ~/.cache/spectune."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spectune"


def unpacked_folder(path: Path) -> Path:
    """Where a .gguf file is unpacked, once for its content."""
    return cache_folder() / "gguf" / file_digest(path)[:16]


def local_files(spec: str | None) -> str:
    """Where a model's config and tokenizer are: a folder, or a hub id whose files the cache may hold.

    Raises: FileNotFoundError for a .gguf file that was not unpacked yet.
    """
    path = embedded_gguf() if spec is None else model_path(spec)
    if path.suffix != ".gguf":
        return str(path if path.exists() else spec)
    if not (unpacked_folder(path) / "config.json").exists():
        raise FileNotFoundError(path)
    return str(unpacked_folder(path))


def _dequantised(path: Path, say: Callable[[str], None]) -> Path:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", "check the path")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ConfigError(f"{path} is not a GGUF file", "check that the download is complete")
    folder = unpacked_folder(path)
    if not (folder / "config.json").is_file():
        _dequantise_into(folder, path, say)
    return folder


def _dequantise_into(folder: Path, path: Path, say: Callable[[str], None]) -> None:
    say(f"unpacking {path.name} once into {folder}")
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    try:
        network = AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
        )
        network.save_pretrained(partial)
        AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name).save_pretrained(partial)
    except Exception as error:  # the libraries that read checkpoints raise whatever they like
        raise ConfigError(f"{path} cannot be unpacked: {error}", "check that the download is complete") from error
    else:
        size = sum(file.stat().st_size for file in partial.iterdir())
        partial.rename(folder)
        say(f"unpacked: {size / 1e6:,.0f} MB")
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _checked_source(path: Path, name: str, trust_remote_code: bool) -> str:
    if not path.exists():
        return _cached_or_hub(name, trust_remote_code)
    if not path.is_dir():
        raise ConfigError(f"{path} is neither a model folder nor a .gguf file", "give one of these, or a hub id")
    if not (path / "config.json").is_file():
        raise ConfigError(f"{path} has no config.json", "give the folder of a transformers checkpoint, or a .gguf file")
    if not any(path.glob("*.safetensors")):
        pickled = [file for file in _PICKLED if (path / file).exists()]
        if pickled:
            problem = f"{path} holds pickled weights only ({pickled[0]}), which can run code when loaded"
            raise ConfigError(problem, "convert them to safetensors (save_pretrained does)")
        raise ConfigError(f"{path} has no weights (*.safetensors)", "download the checkpoint whole")
    _refuse_remote_code(_config_of(path), name, trust_remote_code)
    return str(path)


def _config_of(folder: Path) -> dict[str, Any]:
    try:
        return json_object(folder / "config.json")
    except UnreadableError as error:
        problem = f"{folder / 'config.json'} is not JSON, or holds no object"
        raise ConfigError(problem, "download the checkpoint again") from error


def _refuse_remote_code(config: dict[str, Any], name: str, trust_remote_code: bool) -> None:
    if config.get("auto_map") and not trust_remote_code:
        raise ConfigError(f"{name} needs code from its own repository", "read that code, then give --trust-remote-code")


def _cached_or_hub(name: str, trust_remote_code: bool) -> str:
    if not _cached(name) and not _hub_answers():
        problem = f"there is no model {name!r}: not a local folder, not in the cache, and the hub cannot be reached"
        raise ConfigError(problem, "check the path, or the network")
    try:
        config = transformers.PreTrainedConfig.get_config_dict(name)[0]
    except Exception as error:
        problem = f"there is no model {name!r}: not a local folder, and not found on the hub"
        raise ConfigError(problem, "check the name and the network; private models need a login") from error
    _refuse_remote_code(config, name, trust_remote_code)
    return name


def _cached(name: str) -> bool:
    try:
        return isinstance(huggingface_hub.try_to_load_from_cache(name, "config.json"), str)
    except ValueError:  # no name that a repository could have
        return False


def _hub_answers() -> bool:
    """A quick look, because the hub's client retries for long; behind a proxy only the client can tell."""
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return False
    if urllib.request.getproxies():
        return True
    host = urllib.parse.urlsplit(huggingface_hub.constants.ENDPOINT)
    try:
        socket.create_connection((host.hostname or "", host.port or 443), timeout=5).close()
    except OSError:
        return False
    return True


def folder_digest(folder: Path) -> str:
    """SHA-256 over the digests of a checkpoint's config, tokenizer and weights; its chat template stands apart."""
    files = sorted(
        file for file in folder.iterdir() if file.suffix in {".json", ".safetensors"} and file.name not in _TEMPLATES
    )
    lines = [f"{file.name} {file_digest(file)}" for file in files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def prompt_token_ids(model: LanguageModel, messages: Sequence[Message]) -> list[int]:
    """Token ids of a request. Raises: ConfigError as chat_token_ids."""
    return chat_token_ids(model.tokenizer, messages, model.name)


def chat_token_ids(tokenizer: Any, messages: Sequence[Message], name: str) -> list[int]:
    """Token ids of a request to a model of that name, through its chat template where it has one.

    Raises: ConfigError where the template refuses the messages or nothing is left to condition on.
    """
    if getattr(tokenizer, "chat_template", None):
        chat = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        except Exception as error:
            raise ConfigError(f"{name}'s chat template refuses a prompt: {error}", "change its messages") from error
        ids = tokenizer.encode(text, add_special_tokens=False)
    else:
        ids = tokenizer.encode("\n\n".join(message.content for message in messages))
    if not ids:
        raise ConfigError(f"a prompt has no tokens under {name}'s tokenizer", "remove it from the workload")
    return list(ids)


def require_same_tokenizer(target: LanguageModel, draft: LanguageModel) -> None:
    """Prove two tokenizers equal, id by id. Raises: IncompatibleModelsError naming the first difference."""
    ours, theirs = (
        {token_id: text for text, token_id in model.tokenizer.get_vocab().items()} for model in (target, draft)
    )
    if differs := first_difference(ours, theirs):
        raise IncompatibleModelsError(f"the draft's tokenizer differs from the target's: {differs}", OTHER_VOCABULARY)
    if draft.vocab_size != target.vocab_size:
        problem = f"the draft embeds {draft.vocab_size} of the tokenizer's ids, the target {target.vocab_size}"
        raise IncompatibleModelsError(problem, "use a draft whose embedding covers the tokenizer")
