"""Whole requests: the prompt is read as well, by the target either way, by the draft on top of it."""

from dataclasses import dataclass

import numpy as np

from spectune.decide.fit import Setting
from spectune.profile.costs import CellKey, CostCells
from spectune.profile.manifest import Load
from spectune.profile.tables import integers, labels
from spectune.replay import Floats
from spectune.stats import Interval

_EMPTY = Load(batch=1, context_tokens=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRequests:
    """From the prompt to the last token, at batch 1; means over requests. Times in seconds."""

    prompt_tokens: float
    answer_tokens: float
    read_s: float  # by the target
    draft_read_s: float  # by the draft, on top
    speedup: Interval
    pays_from_tokens: int | None  # answers from which speculation gains anything; None: none do
    goes_on_share: float  # of answers, those that go on beyond what was recorded: acceptance there was not seen

    @property
    def turned(self) -> bool:
        """Whether decoding alone promises a gain that requests of this length do not see."""
        return self.pays_from_tokens is not None and self.answer_tokens < self.pays_from_tokens


def whole_requests(
    cells: CostCells, setting: Setting, decoding: Interval, answer_tokens: int | None = None
) -> WholeRequests | None:
    """At the workload's own prompts and answers, or at answers of that length; None where no prompt was timed.

    `decoding` is the speed-up of decoding alone, whose ends become those of requests.
    """
    if not cells.sizes("read_p", _EMPTY):
        return None
    texts, plain_s = setting.evidence.texts, setting.round.plain_s
    prompts, written = integers(texts["prompt_tokens"]), setting.evidence.written
    answers = written if answer_tokens is None else np.full(len(written), answer_tokens)
    read_s = _read_s(cells, "read_p", None, prompts)
    step_s = float(setting.costs.draft_s[0, 1])  # the first proposal, which the first round has too
    draft_read_s = np.maximum(_read_s(cells, "read_q", setting.draft, prompts) - step_s, 0.0)
    plainly, tokens_s = float(read_s.sum()), float(answers.sum() * plain_s)

    def of_requests(speedup: float | None) -> float | None:
        return None if speedup is None else (plainly + tokens_s) / (plainly + draft_read_s.sum() + tokens_s / speedup)

    estimate, low, high = (of_requests(value) for value in (decoding.estimate, decoding.low, decoding.high))
    assert estimate is not None, "of a decoding speed-up that is known"
    return WholeRequests(
        prompt_tokens=float(prompts.mean()),
        answer_tokens=float(answers.mean()),
        read_s=float(read_s.mean()),
        draft_read_s=float(draft_read_s.mean()),
        speedup=Interval(estimate=estimate, low=low, high=high),
        pays_from_tokens=_pays_from(float(draft_read_s.mean()), plain_s, decoding.estimate),
        goes_on_share=float(np.mean(labels(texts["end"]) == "cut")),
    )


def _read_s(cells: CostCells, part: str, draft: str | None, prompts: np.ndarray) -> Floats:
    """[prompts] seconds, on straight lines between the lengths that were timed; beyond them in proportion."""
    sizes = cells.sizes(part, _EMPTY, draft)
    seconds = [cells.resampled(CellKey(part=part, tokens=n, load=_EMPTY, draft=draft))[0] for n in sizes]
    inside = np.interp(prompts, sizes, seconds)
    return np.asarray(inside * np.maximum(prompts / sizes[-1], 1.0))


def _pays_from(draft_read_s: float, plain_s: float, speedup: float) -> int | None:
    """Tokens whose gain makes up for the draft's reading."""
    if speedup <= 1.0:
        return None
    return max(1, int(np.ceil(draft_read_s / (plain_s * (1 - 1 / speedup)))))
