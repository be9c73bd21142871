"""A made-up drafting method: always the same tokens, whatever was said."""

import numpy as np
import torch

from spectune.drafting import Evidence, Proposal
from spectune.drafting_spec import DraftSpec, Method
from spectune.models.scoring import Repeatable

TOKENS = [7, 9]


def read(spec: str, rest: str) -> DraftSpec:
    return DraftSpec(method="fixed", text="fixed")


def open_fixed(draft, target, load) -> "Fixed":
    return Fixed()


ROW = Method(
    prefix="fixed", rule="greedy_draft", evidence="start", cost="round", simplicity=9, weights="none",
    opener="tests.drafting.fixed:open_fixed", read=read,
)  # fmt: skip


class Fixed:
    model, layers = None, ()

    def open(self, rng):
        return self

    def fork(self, rng):
        return self

    def through(self, wrap):
        return self

    def observe(self, committed) -> None:
        pass

    def propose(self, token_ids, shape, sampling) -> Proposal:
        return Proposal(draft_token_ids=torch.tensor(TOKENS[: shape.depth]))

    def work(self, context, rows, shape, sampling):
        return {1: Repeatable(run=lambda: self.propose(context, shape, sampling))}

    def evidence(self, continuations, scored, largest) -> list[Evidence]:
        return [self._evidence(list(continuation.token_ids), TOKENS[: largest.depth]) for continuation in continuations]

    def _evidence(self, written: list[int], proposed: list[int]) -> Evidence:
        matched = np.zeros(len(written), np.int16)
        for start in range(len(written)):
            while matched[start] < len(proposed) and written[start:][: (n := matched[start] + 1)] == proposed[:n]:
                matched[start] += 1
        return Evidence(proposed_tokens=np.full(len(written), len(proposed), np.int16), matched_tokens=matched)
