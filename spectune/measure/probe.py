"""How long a model's forwards will take, before its weights are read: one and four of its layers are timed, made up."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from spectune.checkpoints.embedded import embedded_gguf
from spectune.checkpoints.files import model_path
from spectune.measure import SilentProgress
from spectune.measure.recording import record_tape
from spectune.measure.rounds import Stopwatch
from spectune.measure.tape import TapePrompt
from spectune.models.loading import LanguageModel, unpacked_folder, wrap_model
from spectune.models.sampling import Sampling
from spectune.models.scoring import repeatable_forwards

_LAYERS = (1, 4)
_CONTEXT_TOKENS, _TIMES, _WARM_UP = 64, 4, 1
_COLD_BYTES = 2**27  # more than caches hold
_LENGTHS = (1, 7)  # of recorded texts


def forwards_s(spec: str | None, device: torch.device, dtype: torch.dtype, sizes: Sequence[int]) -> list[float] | None:
    """Seconds of a forward over n tokens, for each n; None where the model's config does not tell its shape."""
    return _whole(spec, device, dtype, lambda model: [_forward_s(model, n) for n in sizes])


def recording_step_s(
    spec: str | None,
    device: torch.device,
    dtype: torch.dtype,
    prompts: int,
    cached_tokens: int,
    temperatures: Sequence[float],
) -> float | None:
    """Seconds of a step in which so many prompts are recorded at these temperatures; None as above."""
    samplings = [Sampling(temperature=t) for t in temperatures]
    step = _whole(spec, device, dtype, lambda model: [_recording_step_s(model, prompts, cached_tokens, samplings)])
    return None if step is None else step[0]


def _whole(
    spec: str | None, device: torch.device, dtype: torch.dtype, timed: Callable[[LanguageModel], list[float]]
) -> list[float] | None:
    """What a model of all its layers takes, from few and from more of them."""
    try:
        config = _config(spec)
        few, more = (timed(_made_up(config, layers, device, dtype)) for layers in _LAYERS)
        layers = int(config.get_text_config().num_hidden_layers)
    except Exception:  # noqa: BLE001 - whatever a config or a library does: the caller has another way
        return None
    share = (layers - _LAYERS[0]) / (_LAYERS[1] - _LAYERS[0])
    return [first + share * max(second - first, 0.0) for first, second in zip(few, more, strict=True)]


def _config(spec: str | None) -> Any:
    path = embedded_gguf() if spec is None else model_path(spec)
    folder: Path | str = unpacked_folder(path) if path.suffix == ".gguf" else path
    if path.suffix == ".gguf" and not (Path(folder) / "config.json").exists():
        raise FileNotFoundError(folder)
    return AutoConfig.from_pretrained(folder if Path(folder).exists() else str(spec))


def _made_up(config: Any, layers: int, device: torch.device, dtype: torch.dtype) -> LanguageModel:
    """A network of the config's shape with so many layers, all of its weights alike."""
    cut = copy.deepcopy(config)
    text = cut.get_text_config()
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:layers]
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(cut, dtype=dtype)
    network = network.to_empty(device=device)
    with torch.no_grad():
        for weights in (*network.parameters(), *network.buffers()):
            weights.fill_(0.01)
    return wrap_model(network)


def _forward_s(model: LanguageModel, tokens: int) -> float:
    stopwatch, cold = Stopwatch(model.device), torch.zeros(_COLD_BYTES, dtype=torch.int8, device=model.device)
    step, samples = repeatable_forwards(model, [1] * _CONTEXT_TOKENS, 1, [tokens])[tokens], []
    for _ in range(_TIMES):
        cold.add_(1)  # a whole model's weights do not stay in the caches from one step to the next
        samples.append(stopwatch.seconds(step.run))
        step.undo()
    return median(samples[_WARM_UP:])


def _recording_step_s(model: LanguageModel, prompts: int, cached_tokens: int, samplings: Sequence[Sampling]) -> float:
    texts = [TapePrompt(id=f"{n:064x}", category="", token_ids=[1] * cached_tokens) for n in range(prompts)]
    stopwatch, (few, more) = Stopwatch(model.device), _LENGTHS
    short, long = (partial(record_tape, model, texts, samplings, length, 0, SilentProgress()) for length in (few, more))
    samples = [stopwatch.seconds(long) - stopwatch.seconds(short) for _ in range(2)]
    return median(samples) / (more - few)
