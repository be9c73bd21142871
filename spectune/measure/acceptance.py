"""Evidence of every draft on the tape."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial

import pandas as pd

from spectune.choice import Shape
from spectune.drafting import Continuation, Drafter, Scored
from spectune.measure import Progress
from spectune.measure.shards import Shards
from spectune.measure.source import TextSource
from spectune.profile import schemas

_CHUNK = 16


def acceptance_table(
    target: TextSource,
    drafts: Mapping[str, Drafter],
    continuations: Sequence[Continuation],
    largest: Shape,
    progress: Progress,
    shards: Shards | None = None,
    wanted: Mapping[str, Collection[int]] | None = None,
) -> pd.DataFrame:
    """Evidence as schemas.ACCEPTANCE has it: a row for each draft and continuation, or those wanted of a draft.

    With shards, what an earlier run has collected is read from there.
    """
    every = dict.fromkeys(drafts, range(len(continuations))) if wanted is None else wanted
    progress.start("replay", sum(len(numbers) for numbers in every.values()), "continuations")
    parts = []
    for number, (spec, drafter) in enumerate(drafts.items()):
        by_length = sorted(every[spec], key=lambda index: len(continuations[index].prompt_token_ids))
        for first in range(0, len(by_length), _CHUNK):
            chosen = {index: continuations[index] for index in by_length[first : first + _CHUNK]}
            collect = partial(_evidence_table, target, spec, drafter, chosen, largest)
            name = f"evidence-{number:02d}-{first:05d}"
            parts.append(shards.kept(name, schemas.ACCEPTANCE, collect) if shards else collect())
            progress.advance(len(chosen))
    return pd.concat(parts).sort_values(["draft", "continuation"], ignore_index=True)


def _evidence_table(
    target: TextSource, spec: str, drafter: Drafter, chosen: Mapping[int, Continuation], largest: Shape
) -> pd.DataFrame:
    """The target's own pass over the texts is made for drafts that look into it, a chunk at a time: states of a whole
    tape are larger than memory.
    """
    texts = list(chosen.values())
    scored = target.scored(texts, drafter.layers) if drafter.layers else [Scored(logprobs=None)] * len(texts)
    records = [
        {"draft": spec, "continuation": index, **asdict(evidence)}
        for index, evidence in zip(chosen, drafter.evidence(texts, scored, largest), strict=True)
    ]
    return pd.DataFrame.from_records(records, columns=schemas.ACCEPTANCE.names)
