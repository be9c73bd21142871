"""How long a model's forwards will take, before its weights are read: layers of its shape are timed, made up."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from spectune.measure import SilentProgress
from spectune.measure.recording import record_tape
from spectune.measure.rounds import Stopwatch
from spectune.measure.tape import TapePrompt
from spectune.models.devices import free_bytes
from spectune.models.loading import LanguageModel, chat_token_ids, local_files, wrap_model
from spectune.models.sampling import Sampling
from spectune.models.scoring import repeatable_forwards
from spectune.workload.prompts import Prompt

_MADE_UP_BYTES = 3e9  # of weights; of a larger model, what the rest takes follows from networks of fewer layers
_SHARE_OF_FREE = 0.25  # of memory
_FEWEST_LAYERS = (1, 2)
_CONTEXT_TOKENS, _TIMES, _WARM_UP, _LIMIT_S = 64, 4, 1, 2.0
_COLD_BYTES = 2**27  # more than caches hold
_RECORDED_TOKENS, _RECORDED_WARM_UP = 6, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A model that is known by its config; answers are None where that does not tell its shape."""

    spec: str | None
    device: torch.device
    dtype: torch.dtype

    def forwards_s(self, sizes: Sequence[int]) -> list[float] | None:
        """Seconds of a forward over n tokens, for each n."""
        return self._whole(lambda model: [_forward_s(model, n) for n in sizes])

    def recording_s(self, prompt_tokens: int, temperatures: Sequence[float]) -> tuple[float, float] | None:
        """Seconds of reading a prompt, and of a step in which texts at these temperatures are recorded behind it."""
        samplings = [Sampling(temperature=t) for t in temperatures]
        seconds = self._whole(lambda model: _recording_s(model, prompt_tokens, samplings))
        return None if seconds is None else (seconds[0], seconds[1])

    def _whole(self, timed: Callable[[LanguageModel], list[float]]) -> list[float] | None:
        """What a model of all its layers takes: timed, or drawn through what few and more of them take."""
        try:
            config = AutoConfig.from_pretrained(local_files(self.spec))
            layers, most = int(config.get_text_config().num_hidden_layers), self._most_layers(config)
            more = timed(self._made_up(config, most))
            if most == layers:
                return more
            few = timed(self._made_up(config, 1))
        except Exception:  # noqa: BLE001 - whatever a config or a library does: the caller has another way
            return None
        share = (layers - most) / (most - 1)
        return [second + share * max(second - first, 0.0) for first, second in zip(few, more, strict=True)]

    def _most_layers(self, config: Any) -> int:
        one, two = (_network(config, n, self.dtype).num_parameters() for n in _FEWEST_LAYERS)
        room = min(_MADE_UP_BYTES, _SHARE_OF_FREE * free_bytes(self.device)) / self.dtype.itemsize
        fitting = 1 + int((room - one) // (two - one))
        return int(min(config.get_text_config().num_hidden_layers, max(2, fitting)))

    def _made_up(self, config: Any, layers: int) -> LanguageModel:
        """A network of so many layers, all of its weights alike."""
        network = _network(config, layers, self.dtype).to_empty(device=self.device)
        with torch.no_grad():
            for weights in (*network.parameters(), *network.buffers()):
                weights.fill_(0.01)
        network.generation_config.eos_token_id = None  # its tokens mean nothing
        return wrap_model(network)


def read_tokens(spec: str | None, prompts: Sequence[Prompt]) -> list[int] | None:
    """Of each prompt, as the model's own tokenizer and template read it; None where these are not here."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(local_files(spec))
        return [len(chat_token_ids(tokenizer, prompt.messages, str(spec))) for prompt in prompts]
    except Exception:  # noqa: BLE001 - as above
        return None


def _network(config: Any, layers: int, dtype: torch.dtype) -> Any:
    """Without memory for its weights yet."""
    cut = copy.deepcopy(config)
    text = cut.get_text_config()
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:layers]
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(cut, dtype=dtype)


def _forward_s(model: LanguageModel, tokens: int) -> float:
    stopwatch, cold = Stopwatch(model.device), torch.zeros(_COLD_BYTES, dtype=torch.int8, device=model.device)
    step, samples = repeatable_forwards(model, [1] * max(_CONTEXT_TOKENS, tokens), 1, [tokens])[tokens], [0.0]
    while len(samples) <= _WARM_UP or (len(samples) < _TIMES and sum(samples) < _LIMIT_S):
        cold.add_(1)  # a whole model's weights do not stay in the caches from one step to the next
        samples.append(stopwatch.seconds(step.run))
        step.undo()
    return median(samples[1 + _WARM_UP :])


@dataclass
class _Moments(SilentProgress):
    """When each step was done."""

    moments: list[float] = field(default_factory=list)

    def advance(self, amount: float, note: str = "") -> None:
        del amount, note
        self.moments.append(perf_counter())


def _recording_s(model: LanguageModel, prompt_tokens: int, samplings: Sequence[Sampling]) -> list[float]:
    """Of one prompt under so many samplings, since only steps depend on how many texts there are."""
    prompt, progress = TapePrompt(id="0" * 64, category="", token_ids=[1] * prompt_tokens), _Moments()
    record = partial(record_tape, model, [prompt], samplings, seed=0, progress=progress, rows_per_batch=len(samplings))
    record(max_new_tokens=1)  # the first forward is slow
    began = perf_counter()
    record(max_new_tokens=_RECORDED_TOKENS)
    _, read, *steps = progress.moments
    taken = [after - before for before, after in zip((read, *steps), steps, strict=False)]
    return [read - began, median(taken[_RECORDED_WARM_UP:])]
