"""Real rounds with the time spent in their forwards known: what is left is the loop around them."""

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from spectune.decoding.decode import speculative_rounds
from spectune.drafting import Drafting, Proposal
from spectune.drafting.draft_model import DraftModel
from spectune.models.loading import LanguageModel
from spectune.models.sampling import Sampling
from spectune.models.scoring import CachedSequence, ModelScorer, Scorer


class Stopwatch:
    """Seconds of a call on a device: CUDA events on a GPU, the wall clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def seconds(self, work: Callable[[], object]) -> float:
        """Run `work` once and wait for it."""
        if self._device.type != "cuda":
            began = perf_counter()
            work()
            return perf_counter() - began
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(self._device)
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


class TimedRounds:
    """Real rounds from one context, with the time spent in forwards known."""

    def __init__(self, target: LanguageModel, drafter: DraftModel | None, context: list[int], seed: int) -> None:
        self._context = context
        self._rng = np.random.default_rng(seed)
        self._forwards = _ForwardClock(Stopwatch(target.device))
        self._sequence = _TimedSequence(ModelScorer(target).open(), self._forwards)
        self._sequence.extend(self._context[:-1])
        self._drafting: Drafting = _Scripted()
        if drafter is not None:
            self._drafting = DraftModel(_TimedScorer(drafter.scorer, self._forwards)).open(self._rng)

    def seconds(self, num_speculative_tokens: int, sampling: Sampling) -> tuple[float, float]:
        """Seconds of one round outside its forwards, and of the whole round."""
        self._forwards.spent_s = 0.0
        token_ids = list(self._context)
        rounds = speculative_rounds(
            self._sequence, self._drafting, token_ids, num_speculative_tokens, sampling, self._rng
        )
        began = perf_counter()
        next(rounds)
        seconds = perf_counter() - began
        self._sequence.crop(len(self._context) - 1)
        return seconds - self._forwards.spent_s, seconds


class _ForwardClock:
    def __init__(self, stopwatch: Stopwatch) -> None:
        self.stopwatch = stopwatch
        self.spent_s = 0.0


class _TimedSequence:
    def __init__(self, sequence: CachedSequence, clock: _ForwardClock) -> None:
        self._sequence = sequence
        self._clock = clock

    def extend(self, token_ids: Sequence[int]) -> Tensor:
        result: list[Tensor] = []
        self._clock.spent_s += self._clock.stopwatch.seconds(lambda: result.append(self._sequence.extend(token_ids)))
        return result[0]

    def crop(self, length: int) -> None:
        self._sequence.crop(length)

    def fork(self) -> CachedSequence:
        return _TimedSequence(self._sequence.fork(), self._clock)


class _TimedScorer:
    def __init__(self, scorer: Scorer, clock: _ForwardClock) -> None:
        self._scorer = scorer
        self._clock = clock
        self.vocab_size = scorer.vocab_size

    def open(self) -> CachedSequence:
        return _TimedSequence(self._scorer.open(), self._clock)


class _Scripted:
    """Proposes as many tokens as asked, at once: what is left of a round is the loop's own time."""

    def propose(self, token_ids: Sequence[int], max_tokens: int, sampling: Sampling) -> Proposal:
        del sampling
        return Proposal(draft_token_ids=list(token_ids[:max_tokens]))

    def fork(self, rng: np.random.Generator) -> Drafting:
        del rng
        return self
