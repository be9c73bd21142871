"""Evidence of every draft on the tape."""

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from spectune.drafting import Continuation, Drafter
from spectune.measure import Progress
from spectune.profile import ACCEPTANCE_SCHEMA

_CHUNK = 16


def acceptance_table(
    drafts: dict[str, Drafter],
    continuations: Sequence[Continuation],
    max_k: int,
    progress: Progress,
) -> pd.DataFrame:
    """Evidence as profile.ACCEPTANCE_SCHEMA has it: a row for each draft and continuation."""
    progress.start("replay", len(drafts) * len(continuations), "continuations")
    by_length = sorted(range(len(continuations)), key=lambda index: len(continuations[index].prompt_token_ids))
    records = []
    for spec, drafter in drafts.items():
        for first in range(0, len(by_length), _CHUNK):
            chosen = by_length[first : first + _CHUNK]
            evidence = drafter.evidence([continuations[index] for index in chosen], max_k)
            records += [
                {"draft": spec, "continuation": index, **asdict(one)}
                for index, one in zip(chosen, evidence, strict=True)
            ]
            progress.advance(len(chosen))
    frame = pd.DataFrame.from_records(records, columns=ACCEPTANCE_SCHEMA.names)
    return frame.sort_values(["draft", "continuation"], ignore_index=True)
