"""Real rounds with the time spent in their forwards known: what is left is the loop around them."""

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from spectune.choice import Shape
from spectune.decoding.decode import read_prompt, speculative_rounds
from spectune.drafting import Drafter, Drafting, Proposal
from spectune.models.loading import LanguageModel
from spectune.models.sampling import Sampling
from spectune.models.scoring import CachedSequence, Forward, ModelScorer, Scorer
from spectune.tree import bushy


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

    def __init__(
        self, target: LanguageModel, drafter: Drafter | None, context: list[int], seed: int, branching: bool = False
    ) -> None:
        """Without a drafter, proposals cost nothing; they may branch."""
        self._context, self._rng = context, np.random.default_rng(seed)
        self._clock = _ForwardClock(Stopwatch(target.device))
        self._drafting: Drafting = (
            _Scripted(branching) if drafter is None else drafter.through(self._clock.timed).open(self._rng)
        )
        layers = () if drafter is None else drafter.layers
        self._sequence = read_prompt(self._clock.timed(ModelScorer(target)), [self._drafting], context, layers)

    def seconds(self, shape: Shape, sampling: Sampling) -> tuple[float, float]:
        """Seconds of one round outside its forwards, and of the whole round."""
        self._clock.spent_s = 0.0
        token_ids = list(self._context)
        rounds = speculative_rounds(self._sequence, self._drafting, token_ids, shape, sampling, self._rng)
        began = perf_counter()
        next(rounds)
        seconds = perf_counter() - began
        self._sequence.keep(len(self._context) - 1)
        return seconds - self._clock.spent_s, seconds


class _ForwardClock:
    """What forwards of all scorers passed through it have taken."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        self.spent_s = 0.0

    def timed(self, scorer: Scorer) -> Scorer:
        return _TimedScorer(scorer, self)

    def forward(self, work: Callable[[], Forward]) -> Forward:
        forwards: list[Forward] = []
        self.spent_s += self._stopwatch.seconds(lambda: forwards.append(work()))
        return forwards[0]


class _TimedScorer:
    def __init__(self, scorer: Scorer, clock: _ForwardClock) -> None:
        self._scorer, self._clock = scorer, clock
        self.vocab_size, self.device = scorer.vocab_size, scorer.device

    def open(self, layers: Sequence[int] = ()) -> CachedSequence:
        return _TimedSequence(self._scorer.open(layers), self._clock)


class _TimedSequence:
    def __init__(self, sequence: CachedSequence, clock: _ForwardClock) -> None:
        self._sequence, self._clock = sequence, clock

    def extend(self, token_ids: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Forward:
        return self._clock.forward(lambda: self._sequence.extend(token_ids, positions, mask))

    def read(self, token_ids: Tensor) -> Forward:
        return self._clock.forward(lambda: self._sequence.read(token_ids))

    def keep(self, length: int, path: Tensor | None = None) -> None:
        self._sequence.keep(length, path)

    def fork(self) -> CachedSequence:
        return _TimedSequence(self._sequence.fork(), self._clock)


class _Scripted:
    """Proposes as many tokens as asked, at once: what is left of a round is the loop's own time."""

    def __init__(self, branching: bool) -> None:
        self._branching = branching

    def propose(self, token_ids: Sequence[int], shape: Shape, sampling: Sampling) -> Proposal:
        del sampling
        parents = torch.tensor(bushy(shape.nodes)) if self._branching and shape.nodes > 1 else None
        return Proposal(draft_token_ids=torch.tensor(token_ids[: shape.nodes]), parents=parents)

    def observe(self, committed: Forward) -> None:
        pass

    def fork(self, rng: np.random.Generator) -> Drafting:
        del rng
        return self
