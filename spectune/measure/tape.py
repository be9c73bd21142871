"""Record the target once: batched decoding of prompts × temperatures, with what replay needs of its law."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers.cache_utils import Cache

from spectune.drafting import Continuation
from spectune.kv_cache import new_cache
from spectune.measure import Progress
from spectune.models import LanguageModel
from spectune.profile import HELD_OUT_SCHEMA
from spectune.sampling import Sampling, log_probabilities, probabilities, sample, uniform_stream
from spectune.scoring import (
    left_padded,
    out_of_memory_as_device_error,
    positions,
    require_finite,
    teacher_forced_logits,
)

REPEAT_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TapePrompt:
    """A prompt as the target reads it."""

    id: str
    category: str
    token_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TapeRow:
    """One continuation, with log p(x) after the transform; entropy and top-1 are of the law at temperature 1."""

    prompt: TapePrompt
    sampling: Sampling
    end: str = "cut"
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    top1_probs: list[float] = field(default_factory=list)


def record_tape(
    model: LanguageModel,
    prompts: Sequence[TapePrompt],
    samplings: Sequence[Sampling],
    max_new_tokens: int,
    seed: int,
    progress: Progress,
    rows_per_batch: int = 64,
) -> list[TapeRow]:
    """Continuations of every prompt under every sampling, in the order prompts × samplings.

    Each prompt is read once and its cache shared by the temperatures. The uniform of a step depends on
    (seed, prompt, step) only, so a row does not depend on which rows it is batched with.
    """
    progress.start("record", len(prompts) * len(samplings) * max_new_tokens, "tokens")
    per_batch = max(1, rows_per_batch // len(samplings))
    by_length = sorted(range(len(prompts)), key=lambda index: -len(prompts[index].token_ids))
    found: dict[int, list[TapeRow]] = {}
    for first in range(0, len(by_length), per_batch):
        chosen = by_length[first : first + per_batch]
        rows = _record_batch(model, [prompts[i] for i in chosen], samplings, max_new_tokens, seed, progress)
        for place, index in enumerate(chosen):
            found[index] = rows[place * len(samplings) : (place + 1) * len(samplings)]
    return [row for index in range(len(prompts)) for row in found[index]]


@torch.inference_mode()
def _record_batch(
    model: LanguageModel,
    prompts: list[TapePrompt],
    samplings: Sequence[Sampling],
    max_new_tokens: int,
    seed: int,
    progress: Progress,
) -> list[TapeRow]:
    with out_of_memory_as_device_error(model):
        batch = _Batch(model, prompts, len(samplings))
        rows = [TapeRow(prompt=prompt, sampling=sampling) for prompt in prompts for sampling in samplings]
        streams = {prompt.id: uniform_stream(seed, prompt.id, max_new_tokens) for prompt in prompts}
        ended: dict[int, str] = {}
        alive = list(range(len(rows)))
        for step in range(max_new_tokens):
            live = [rows[index] for index in alive]
            uniforms = torch.tensor([streams[row.prompt.id][step] for row in live], dtype=torch.float64)
            require_finite(batch.logits, model.name, [row.prompt.id for row in live], step)
            token_ids = _write_step(live, batch.logits, uniforms)
            going = [place for place, token in enumerate(token_ids) if token not in model.eos_token_ids]
            ended.update({alive[place]: "eos" for place in set(range(len(alive))) - set(going)})
            progress.advance(len(alive) + (len(alive) - len(going)) * (max_new_tokens - step - 1))
            if not going or step == max_new_tokens - 1:
                break
            batch.step(token_ids, going)
            alive = [alive[place] for place in going]
    return [_with_end(row, ended.get(index, "cut")) for index, row in enumerate(rows)]


class _Batch:
    """Left-padded rows in one cache; rows that ended are dropped from it."""

    def __init__(self, model: LanguageModel, prompts: list[TapePrompt], copies: int) -> None:
        self._model = model
        _, mask = left_padded([prompt.token_ids for prompt in prompts], model.device)
        singles, logits = zip(*(_read_prompt(model, prompt.token_ids) for prompt in prompts), strict=True)
        self._cache = _joined(singles, mask.shape[1])
        self._cache.batch_repeat_interleave(copies)
        self._mask = mask.repeat_interleave(copies, 0)
        self.logits: Tensor = torch.cat(logits).repeat_interleave(copies, 0)

    def step(self, token_ids: list[int], going: list[int]) -> None:
        """Append one token to each row in `going`, forget the other rows."""
        if len(going) < len(token_ids):
            kept = torch.tensor(going, device=self._mask.device)
            self._cache.batch_select_indices(kept)
            self._mask = self._mask[kept]
        ids = torch.tensor([[token_ids[place]] for place in going], device=self._mask.device)
        self._mask = torch.cat([self._mask, torch.ones_like(ids)], 1)
        output = self._model.network(
            input_ids=ids,
            attention_mask=self._mask,
            position_ids=positions(self._mask)[:, -1:],
            cache=self._cache,
            use_cache=True,
        )
        self.logits = output.logits[:, -1, : self._model.vocab_size]


def _read_prompt(model: LanguageModel, token_ids: list[int]) -> tuple[Cache, Tensor]:
    """A prompt's cache and its last logits, [1, vocab]; read alone, so that no padding is computed."""
    cache = new_cache()
    ids = torch.tensor([token_ids], device=model.device)
    output = model.network(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
    return cache, output.logits[:, -1, : model.vocab_size]


def _joined(caches: Sequence[Cache], longest: int) -> Cache:
    """One cache of several rows, each padded on the left to `longest`."""
    joined = new_cache()
    for index, layers in enumerate(zip(*(cache.layers for cache in caches), strict=True)):
        keys, values = (
            torch.cat([torch.nn.functional.pad(part, (0, 0, longest - part.shape[-2], 0)) for part in parts])
            for parts in ([layer.keys for layer in layers], [layer.values for layer in layers])
        )
        joined.update(keys, values, index)
    return joined


def _write_step(rows: list[TapeRow], logits: Tensor, uniforms: Tensor) -> list[int]:
    """Draw a token for each row, write it down with its evidence."""
    token_ids = torch.empty(len(rows), dtype=torch.long, device=logits.device)
    logprobs = torch.empty(len(rows), dtype=torch.float64, device=logits.device)
    for sampling in {row.sampling for row in rows}:
        places = torch.tensor([i for i, row in enumerate(rows) if row.sampling == sampling], device=logits.device)
        law = probabilities(logits[places], sampling)
        token_ids[places] = sample(law, uniforms.to(logits.device)[places])
        logprobs[places] = log_probabilities(law, token_ids[places, None])
    entropies, top1_probs = _spread_of_law(logits)
    columns = [column.tolist() for column in (token_ids, logprobs, entropies, top1_probs)]
    for row, token_id, logprob, entropy, top1_prob in zip(rows, *columns, strict=True):
        row.token_ids.append(token_id)
        row.logprobs.append(logprob)
        row.entropies.append(entropy)
        row.top1_probs.append(top1_prob)
    return token_ids.tolist()


def teacher_forced_rows(
    model: LanguageModel, texts: Sequence[Continuation], categories: Mapping[str, str], rows_per_batch: int = 8
) -> list[TapeRow]:
    """Rows of a tape for text that was decoded elsewhere, in its order: the target's law from a pass over it."""
    rows: list[TapeRow] = []
    for first in range(0, len(texts), rows_per_batch):
        batch = texts[first : first + rows_per_batch]
        logits = teacher_forced_logits(
            model, [text.prompt_token_ids for text in batch], [text.token_ids for text in batch]
        )
        rows += [
            _teacher_forced_row(text, own, categories[text.prompt_id], model)
            for text, own in zip(batch, logits, strict=True)
        ]
    return rows


def _teacher_forced_row(text: Continuation, logits: Tensor, category: str, model: LanguageModel) -> TapeRow:
    written = torch.tensor(text.token_ids, device=logits.device)[:, None]
    entropies, top1_probs = _spread_of_law(logits)
    prompt = TapePrompt(id=text.prompt_id, category=category, token_ids=list(text.prompt_token_ids))
    return TapeRow(
        prompt=prompt,
        sampling=text.sampling,
        end="eos" if text.token_ids[-1] in model.eos_token_ids else "cut",
        token_ids=list(text.token_ids),
        logprobs=log_probabilities(probabilities(logits, text.sampling), written).tolist(),
        entropies=entropies.tolist(),
        top1_probs=top1_probs.tolist(),
    )


def _spread_of_law(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy and largest probability of each row's law at temperature 1."""
    plain = logits.double().log_softmax(-1)
    return -(plain.exp() * plain).sum(-1), plain.amax(-1).exp()


def _with_end(row: TapeRow, end: str) -> TapeRow:
    return TapeRow(
        prompt=row.prompt,
        sampling=row.sampling,
        end=end,
        token_ids=row.token_ids,
        logprobs=row.logprobs,
        entropies=row.entropies,
        top1_probs=row.top1_probs,
    )


def repeats_itself(token_ids: Sequence[int]) -> bool:
    """Whether some run of 8 tokens occurs twice: such text flatters n-gram drafts."""
    seen: set[tuple[int, ...]] = set()
    recent: deque[int] = deque(maxlen=REPEAT_TOKENS)
    for token_id in token_ids:
        recent.append(token_id)
        if len(recent) == REPEAT_TOKENS:
            if tuple(recent) in seen:
                return True
            seen.add(tuple(recent))
    return False


def repeating_rows(rows: Sequence[TapeRow]) -> dict[str, int]:
    """Continuations that repeat an 8-gram of their own, by temperature."""
    temperatures: Collection[float] = dict.fromkeys(row.sampling.temperature for row in rows)
    return {
        f"{temperature:g}": sum(
            repeats_itself(row.token_ids) for row in rows if row.sampling.temperature == temperature
        )
        for temperature in temperatures
    }


def continuations(rows: Sequence[TapeRow]) -> list[Continuation]:
    """The tape as drafts see it."""
    return [
        Continuation(
            prompt_id=row.prompt.id,
            prompt_token_ids=row.prompt.token_ids,
            token_ids=row.token_ids,
            sampling=row.sampling,
        )
        for row in rows
    ]


def held_out_table(prompts: Sequence[TapePrompt]) -> pd.DataFrame:
    """Prompts kept for confirming, as profile.HELD_OUT_SCHEMA has them."""
    records = [
        {"prompt_id": prompt.id, "category": prompt.category, "prompt_token_ids": prompt.token_ids}
        for prompt in prompts
    ]
    return pd.DataFrame.from_records(records, columns=HELD_OUT_SCHEMA.names)


def tape_table(rows: Sequence[TapeRow], limited: bool = False) -> pd.DataFrame:
    """The tape as profile.TAPE_SCHEMA has it; `limited`: the workload's own requests end where recording did."""
    records: list[dict[str, Any]] = [
        {
            "continuation": index,
            "prompt_id": row.prompt.id,
            "category": row.prompt.category,
            "temperature": row.sampling.temperature,
            "end": "limit" if limited and row.end == "cut" else row.end,
            "prompt_token_ids": row.prompt.token_ids,
            "token_ids": row.token_ids,
            "logprobs": np.array(row.logprobs, np.float32),
            "entropies": np.array(row.entropies, np.float32),
            "top1_probs": np.array(row.top1_probs, np.float32),
        }
        for index, row in enumerate(rows)
    ]
    return pd.DataFrame.from_records(records)
