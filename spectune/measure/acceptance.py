"""Evidence of every draft on the tape."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import pandas as pd

from spectune.drafting import Continuation, Drafter
from spectune.measure import Progress
from spectune.measure.shards import Shards
from spectune.profile.store import ACCEPTANCE_SCHEMA

_CHUNK = 16


def acceptance_table(
    drafts: dict[str, Drafter],
    continuations: Sequence[Continuation],
    max_k: int,
    progress: Progress,
    shards: Shards | None = None,
) -> pd.DataFrame:
    """Evidence as profile.ACCEPTANCE_SCHEMA has it: a row for each draft and continuation.

    With shards, what an earlier run has found is read from there.
    """
    progress.start("replay", len(drafts) * len(continuations), "continuations")
    by_length = sorted(range(len(continuations)), key=lambda index: len(continuations[index].prompt_token_ids))
    parts = []
    for number, (spec, drafter) in enumerate(drafts.items()):
        for first in range(0, len(by_length), _CHUNK):
            chosen = by_length[first : first + _CHUNK]
            find = partial(_evidence_table, spec, drafter, chosen, continuations, max_k)
            name = f"evidence-{number:02d}-{first:05d}"
            parts.append(shards.kept(name, ACCEPTANCE_SCHEMA, find) if shards else find())
            progress.advance(len(chosen))
    return pd.concat(parts).sort_values(["draft", "continuation"], ignore_index=True)


def _evidence_table(
    spec: str, drafter: Drafter, chosen: list[int], continuations: Sequence[Continuation], max_k: int
) -> pd.DataFrame:
    evidence = drafter.evidence([continuations[index] for index in chosen], max_k)
    records = [
        {"draft": spec, "continuation": index, **asdict(one)} for index, one in zip(chosen, evidence, strict=True)
    ]
    return pd.DataFrame.from_records(records, columns=ACCEPTANCE_SCHEMA.names)
