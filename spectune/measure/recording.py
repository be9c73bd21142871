"""Record the target once: batched decoding of prompts × temperatures, with what replay needs of its law."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from spectune.errors import DeviceError
from spectune.measure import Progress
from spectune.measure.tape import TapePrompt, TapeRow
from spectune.models.kv_cache import cache_argument, new_cache
from spectune.models.loading import LanguageModel
from spectune.models.sampling import Sampling, drawn, uniform_stream
from spectune.models.scoring import left_padded, out_of_memory_as_device_error, positions, require_finite

ROWS_PER_BATCH = 64
_SURPRISE_TOKENS = 64
_SHARD_TOKENS, _FEWEST_ROWS = 4096, 16


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


def rows_per_shard(device: torch.device, max_new_tokens: int) -> int:
    """Rows recorded before they are kept: on a CPU fewer of long texts, which take long there either way."""
    if device.type != "cpu":
        return ROWS_PER_BATCH
    return min(ROWS_PER_BATCH, max(_FEWEST_ROWS, _SHARD_TOKENS // max_new_tokens))


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
            use_cache=True,
            **cache_argument(self._model.network, self._cache),
        )
        self.logits = output.logits[:, -1, : self._model.vocab_size]


def _read_prompt(model: LanguageModel, token_ids: list[int]) -> tuple[Cache, Tensor, float | None]:
    """A prompt's cache, its last logits, [1, vocab], and how surprising its last tokens are, in nats a token.

    Read alone, so that no padding is computed.
    """
    cache, judged = new_cache(), min(len(token_ids) - 1, _SURPRISE_TOKENS)
    ids = torch.tensor([token_ids], device=model.device)
    output = model.network(
        input_ids=ids, use_cache=True, logits_to_keep=judged + 1, **cache_argument(model.network, cache)
    )
    logits = output.logits[0, :, : model.vocab_size]
    if judged < 1:
        return cache, logits[-1:], None
    given = ids[0, -judged:].clamp(max=model.vocab_size - 1)
    nats = torch.nn.functional.cross_entropy(logits[:-1].float(), given)
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
    """Draw a token for each row and write it down."""
    token_ids = torch.empty(len(rows), dtype=torch.long, device=logits.device)
    logprobs = torch.empty(len(rows), dtype=torch.float64, device=logits.device)
    for sampling in {row.sampling for row in rows}:
        places = torch.tensor([i for i, row in enumerate(rows) if row.sampling == sampling], device=logits.device)
        law_of = logits if len(places) == len(rows) else logits[places]
        token_ids[places], logprobs[places] = drawn(law_of, sampling, uniforms.to(logits.device)[places])
    written = token_ids.tolist()
    for row, token_id, logprob in zip(rows, written, logprobs.tolist(), strict=True):
        row.token_ids.append(token_id)
        if row.logprobs is not None:
            row.logprobs.append(logprob)
    return [int(token_id) for token_id in written]
