"""Record the target once: batched decoding of prompts × temperatures, with what replay needs of its law."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers.cache_utils import Cache

from spectune.drafting import Continuation
from spectune.errors import DeviceError
from spectune.measure import Progress
from spectune.models.kv_cache import new_cache
from spectune.models.loading import LanguageModel
from spectune.models.sampling import Sampling, log_probabilities, probabilities, sample, uniform_stream
from spectune.models.scoring import (
    left_padded,
    out_of_memory_as_device_error,
    positions,
    require_finite,
    teacher_forced_logits,
)
from spectune.profile.store import HELD_OUT_SCHEMA, TAPE_SCHEMA

REPEAT_TOKENS = 8
ROWS_PER_BATCH = 64
_SURPRISE_TOKENS = 64


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
    batch_rows: int | None = None
    prompt_nats: float | None = None
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
    rows_per_batch: int = ROWS_PER_BATCH,
) -> list[TapeRow]:
    """Continuations of every prompt under every sampling, in the order prompts × samplings.

    Each prompt is read once and its cache shared by the temperatures. The uniform of a step depends on
    (seed, prompt, step) only, so a row does not depend on which rows it is batched with.
    """
    found: dict[int, list[TapeRow]] = {}
    for chosen in batches(prompts, len(samplings), rows_per_batch):
        rows = _record_halving(model, [prompts[i] for i in chosen], samplings, max_new_tokens, seed, progress)
        for place, index in enumerate(chosen):
            found[index] = rows[place * len(samplings) : (place + 1) * len(samplings)]
    return [row for index in range(len(prompts)) for row in found[index]]


def batches(prompts: Sequence[TapePrompt], copies: int, rows_per_batch: int = ROWS_PER_BATCH) -> list[list[int]]:
    """Indices of prompts that are recorded side by side, the longest first: a matter of their lengths only."""
    per_batch = max(1, rows_per_batch // copies)
    by_length = sorted(range(len(prompts)), key=lambda index: -len(prompts[index].token_ids))
    return [by_length[first : first + per_batch] for first in range(0, len(by_length), per_batch)]


def _record_halving(
    model: LanguageModel,
    prompts: list[TapePrompt],
    samplings: Sequence[Sampling],
    max_new_tokens: int,
    seed: int,
    progress: Progress,
) -> list[TapeRow]:
    """Record side by side; where memory does not suffice, one half after the other."""
    counted = _Counted(progress)
    try:
        return _record_batch(model, prompts, samplings, max_new_tokens, seed, counted)
    except DeviceError:  # out of memory
        if len(prompts) == 1:
            raise
    progress.advance(-counted.amount)
    half = len(prompts) // 2
    progress.say(f"out of memory: recording {half * len(samplings)} texts at once from here, not twice as many")
    halves = (prompts[:half], prompts[half:])
    return [row for part in halves for row in _record_halving(model, part, samplings, max_new_tokens, seed, progress)]


class _Counted:
    """Progress that knows how much was passed on, so that it can be taken back."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self.amount = progress, 0.0

    def advance(self, amount: float) -> None:
        self.amount += amount
        self._progress.advance(amount)


@torch.inference_mode()
def _record_batch(
    model: LanguageModel,
    prompts: list[TapePrompt],
    samplings: Sequence[Sampling],
    max_new_tokens: int,
    seed: int,
    progress: _Counted,
) -> list[TapeRow]:
    with out_of_memory_as_device_error(model):
        batch = _Batch(model, prompts, len(samplings))
        count = len(prompts) * len(samplings)
        rows = [
            TapeRow(prompt=prompt, sampling=sampling, batch_rows=count, prompt_nats=nats)
            for prompt, nats in zip(prompts, batch.prompt_nats, strict=True)
            for sampling in samplings
        ]
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
    return [replace(row, end=ended.get(index, "cut")) for index, row in enumerate(rows)]


class _Batch:
    """Left-padded rows in one cache; rows that ended are dropped from it."""

    def __init__(self, model: LanguageModel, prompts: list[TapePrompt], copies: int) -> None:
        self._model = model
        _, mask = left_padded([prompt.token_ids for prompt in prompts], model.device)
        singles, logits, nats = zip(*(_read_prompt(model, prompt.token_ids) for prompt in prompts), strict=True)
        self.prompt_nats: tuple[float | None, ...] = nats
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


def _read_prompt(model: LanguageModel, token_ids: list[int]) -> tuple[Cache, Tensor, float | None]:
    """A prompt's cache, its last logits, [1, vocab], and how surprising its last tokens are, in nats a token.

    Read alone, so that no padding is computed.
    """
    cache, judged = new_cache(), min(len(token_ids) - 1, _SURPRISE_TOKENS)
    ids = torch.tensor([token_ids], device=model.device)
    output = model.network(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=judged + 1)
    logits = output.logits[0, :, : model.vocab_size]
    if judged < 1:
        return cache, logits[-1:], None
    given = ids[0, -judged:, None].clamp(max=model.vocab_size - 1)
    nats = -logits[:-1].double().log_softmax(-1).gather(-1, given).mean()
    return cache, logits[-1:], float(nats) if bool(nats.isfinite()) else None


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


def repeating_rows(tape: pd.DataFrame) -> dict[str, int]:
    """Continuations that repeat an 8-gram of their own, by temperature."""
    repeating = tape["token_ids"].map(lambda token_ids: repeats_itself(list(token_ids)))
    counts = repeating.groupby(tape["temperature"], sort=False).sum()
    return {f"{temperature:g}": int(count) for temperature, count in counts.items()}


def continuations(tape: pd.DataFrame, samplings: Sequence[Sampling]) -> list[Continuation]:
    """The tape as drafts see it."""
    by_temperature = {sampling.temperature: sampling for sampling in samplings}
    columns = (tape[name].tolist() for name in ("prompt_id", "temperature", "prompt_token_ids", "token_ids"))
    return [
        Continuation(
            prompt_id=prompt_id,
            prompt_token_ids=[int(token) for token in prompt],
            token_ids=[int(token) for token in written],
            sampling=by_temperature[temperature],
        )
        for prompt_id, temperature, prompt, written in zip(*columns, strict=True)
    ]


def held_out_table(prompts: Sequence[TapePrompt]) -> pd.DataFrame:
    """Prompts kept for confirming, as profile.HELD_OUT_SCHEMA has them."""
    records = [
        {"prompt_id": prompt.id, "category": prompt.category, "prompt_token_ids": prompt.token_ids}
        for prompt in prompts
    ]
    return pd.DataFrame.from_records(records, columns=HELD_OUT_SCHEMA.names)


def tape_table(rows: Sequence[TapeRow], limited: bool = False, numbers: Sequence[int] | None = None) -> pd.DataFrame:
    """The tape as profile.TAPE_SCHEMA has it; `limited`: the workload's own requests end where recording did.

    `numbers` are the rows' places in the whole tape, where these are a part of it.
    """
    records: list[dict[str, Any]] = [
        {
            "continuation": index,
            "prompt_id": row.prompt.id,
            "category": row.prompt.category,
            "temperature": row.sampling.temperature,
            "end": "limit" if limited and row.end == "cut" else row.end,
            "batch_rows": row.batch_rows,
            "prompt_tokens": len(row.prompt.token_ids),
            "prompt_nats": row.prompt_nats,
            "prompt_token_ids": row.prompt.token_ids,
            "token_ids": row.token_ids,
            "logprobs": np.array(row.logprobs, np.float32),
            "entropies": np.array(row.entropies, np.float32),
            "top1_probs": np.array(row.top1_probs, np.float32),
        }
        for index, row in zip(numbers if numbers is not None else range(len(rows)), rows, strict=True)
    ]
    frame = pd.DataFrame.from_records(records, columns=TAPE_SCHEMA.names)
    return frame.astype({"batch_rows": "Int32"})


def without_text(table: pd.DataFrame) -> pd.DataFrame:
    """A tape or held-out table that keeps hashes, counts and evidence only."""
    columns = [name for name in ("prompt_token_ids", "token_ids") if name in table]
    return table.assign(**dict.fromkeys(columns, None))
