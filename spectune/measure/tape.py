"""The tape: what the target was given and what it wrote, as rows, as a table, and as drafts see it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from spectune.drafting import Continuation, Scored
from spectune.models.sampling import Sampling
from spectune.profile import schemas

REPEAT_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TapePrompt:
    """A prompt as the target reads it."""

    id: str
    category: str
    token_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TapeRow:
    """One continuation, with log p(x) after the transform."""

    prompt: TapePrompt
    sampling: Sampling
    end: str = "cut"
    batch_rows: int | None = None
    prompt_nats: float | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)  # None where the target tells none


def scored_rows(
    texts: Sequence[Continuation],
    scored: Sequence[Scored],
    categories: Mapping[str, str],
    eos_token_ids: Collection[int],
) -> list[TapeRow]:
    """Rows of a tape for texts that were decoded elsewhere, in their order, with what the target says of them."""
    return [
        TapeRow(
            prompt=TapePrompt(
                id=text.prompt_id, category=categories[text.prompt_id], token_ids=list(text.prompt_token_ids)
            ),
            sampling=text.sampling,
            end="eos" if text.token_ids[-1] in eos_token_ids else "cut",
            token_ids=list(text.token_ids),
            logprobs=None if own.logprobs is None else own.logprobs.tolist(),
        )
        for text, own in zip(texts, scored, strict=True)
    ]


def repeats_itself(token_ids: Sequence[int]) -> bool:
    """Whether some run of 8 tokens occurs twice: such text flatters n-gram drafts."""
    firsts = range(len(token_ids) - REPEAT_TOKENS + 1)
    return len({tuple(token_ids[first : first + REPEAT_TOKENS]) for first in firsts}) < len(firsts)


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
    """Prompts kept for confirming, as schemas.HELD_OUT has them."""
    records = [
        {"prompt_id": prompt.id, "category": prompt.category, "prompt_token_ids": prompt.token_ids}
        for prompt in prompts
    ]
    return pd.DataFrame.from_records(records, columns=schemas.HELD_OUT.names)


def tape_table(rows: Sequence[TapeRow], limited: bool = False, numbers: Sequence[int] | None = None) -> pd.DataFrame:
    """The tape as schemas.TAPE has it; `limited`: the workload's own requests end where recording did.

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
            "tokens": len(row.token_ids),
            "prompt_token_ids": row.prompt.token_ids,
            "token_ids": row.token_ids,
            "logprobs": None if row.logprobs is None else np.array(row.logprobs, np.float32),
        }
        for index, row in zip(numbers if numbers is not None else range(len(rows)), rows, strict=True)
    ]
    frame = pd.DataFrame.from_records(records, columns=schemas.TAPE.names)
    return frame.astype({"batch_rows": "Int32"})


def without_text(table: pd.DataFrame) -> pd.DataFrame:
    """A tape or held-out table that keeps hashes, counts and evidence only."""
    columns = [name for name in ("prompt_token_ids", "token_ids") if name in table]
    return table.assign(**dict.fromkeys(columns, None))
