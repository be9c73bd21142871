"""Time what a round is made of: target forwards, draft steps, and the loop around them.

Cells are timed in shuffled passes, so that a drift of the machine touches all alike; raw samples are kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from spectune.decode import speculative_rounds
from spectune.drafting import Drafter, Drafting, Proposal
from spectune.drafting.draft_model import DraftModel
from spectune.measure import Progress
from spectune.models import LanguageModel
from spectune.sampling import Sampling
from spectune.scoring import CachedSequence, ModelScorer, Scorer
from spectune.stats import median_half_width

KNOWN_WITHIN = 0.03
_FEWEST_PASSES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Something to time: `run` does it once and returns its seconds."""

    part: str
    tokens: int
    run: Callable[[], float]
    draft: str | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSettings:
    """What to measure at: one sequence whose cache holds `context_token_ids`."""

    context_token_ids: list[int]
    max_k: int
    samplings: Sequence[Sampling]
    budget_s: float
    seed: int


def cost_table(
    target: LanguageModel, drafts: dict[str, Drafter], settings: CostSettings, progress: Progress
) -> pd.DataFrame:
    """Raw samples as profile.COSTS_SCHEMA has them.

    Passes go on until every median is known within ±3% or the budget ends.
    """
    progress.start("costs", settings.budget_s, "s")
    began = perf_counter()
    cells = _cells(target, drafts, settings)
    rng = np.random.default_rng(settings.seed)
    samples: dict[int, list[float]] = {index: [] for index in range(len(cells))}
    _one_pass(cells, rng, None)  # warm-up
    passes, spent = 0, 0.0
    while passes < _FEWEST_PASSES or (spent < settings.budget_s and _noise(cells, samples) > KNOWN_WITHIN):
        _one_pass(cells, rng, samples)
        passes += 1
        progress.advance(min(perf_counter() - began, settings.budget_s) - spent, f"±{_noise(cells, samples):.1%}")
        spent = perf_counter() - began
    progress.advance(max(settings.budget_s - spent, 0.0))
    return _table(cells, samples, len(settings.context_token_ids))


def noisiest(costs: pd.DataFrame) -> tuple[str, float]:
    """The cell whose median is known worst, and its half-width relative to a plain step or itself, the longer."""
    keys = ["part", "draft", "temperature", "tokens"]
    plain_s = float(costs[(costs["part"] == "cost_p") & (costs["tokens"] == 1)]["seconds"].median())
    worst = ("", 0.0)
    for key, group in costs.groupby(keys, dropna=False):
        width = _relative_noise(group["seconds"].to_numpy(), plain_s)
        if width > worst[1]:
            name = {"cost_p": "verify n", "cost_q": "draft n", "overhead": "overhead K"}[str(key[0])]
            worst = (f"{name} = {key[3]}", width)
    return worst


def _relative_noise(samples: np.ndarray, plain_s: float) -> float:
    median = float(np.median(samples))
    return median_half_width(samples) * abs(median) / max(median, plain_s) if median else 0.0


def _noise(cells: list[Cell], samples: dict[int, list[float]]) -> float:
    plain = next(index for index, cell in enumerate(cells) if (cell.part, cell.tokens) == ("cost_p", 1))
    plain_s = float(np.median(samples[plain])) if samples[plain] else 1.0
    return max(_relative_noise(np.array(values), plain_s) if values else np.inf for values in samples.values())


def _one_pass(cells: list[Cell], rng: np.random.Generator, samples: dict[int, list[float]] | None) -> None:
    for index in rng.permutation(len(cells)):
        seconds = cells[index].run()
        if samples is not None:
            samples[int(index)].append(seconds)


def _table(cells: list[Cell], samples: dict[int, list[float]], context_tokens: int) -> pd.DataFrame:
    return pd.DataFrame.from_records(
        [
            {
                "part": cell.part,
                "draft": cell.draft,
                "temperature": cell.temperature,
                "tokens": cell.tokens,
                "batch": 1,
                "context_tokens": context_tokens,
                "measurement_pass": number,
                "seconds": seconds,
            }
            for index, cell in enumerate(cells)
            for number, seconds in enumerate(samples[index])
        ]
    )


def _cells(target: LanguageModel, drafts: dict[str, Drafter], settings: CostSettings) -> list[Cell]:
    scorer, stopwatch = ModelScorer(target), Stopwatch(target.device)
    verify = _forward_cells("cost_p", None, scorer, range(1, settings.max_k + 2), settings, stopwatch)
    plain = _overhead_cells(None, None, target, [0], settings)
    depths = sorted({1, min(4, settings.max_k), settings.max_k})
    cells = [*verify, *plain]
    for spec, drafter in drafts.items():
        if isinstance(drafter, DraftModel):
            # two tokens at once: what a step costs after a round whose proposals were all accepted
            cells += _forward_cells("cost_q", spec, drafter.scorer, (1, 2), settings, stopwatch)
            cells += _overhead_cells(spec, drafter, target, depths, settings)
        else:
            cells.append(_lookup_cell(spec, drafter, settings))
            cells += _overhead_cells(spec, None, target, depths, settings)
    return cells


def _forward_cells(
    part: str, draft: str | None, scorer: Scorer, sizes: Sequence[int], settings: CostSettings, stopwatch: "Stopwatch"
) -> list[Cell]:
    context = settings.context_token_ids
    sequence = scorer.open()
    sequence.extend(context)

    def run(size: int) -> float:
        seconds = stopwatch.seconds(lambda: sequence.extend(context[:size]))
        sequence.crop(len(context))
        return seconds

    return [Cell(part=part, draft=draft, tokens=n, run=lambda n=n: run(n)) for n in sizes]  # type: ignore[misc]


def _lookup_cell(spec: str, drafter: Drafter, settings: CostSettings) -> Cell:
    drafting = drafter.open(np.random.default_rng(settings.seed))

    def run() -> float:
        began = perf_counter()
        drafting.propose(settings.context_token_ids, settings.max_k, settings.samplings[0])
        return perf_counter() - began

    return Cell(part="cost_q", draft=spec, tokens=1, run=run)


def _overhead_cells(
    spec: str | None, drafter: DraftModel | None, target: LanguageModel, depths: Sequence[int], settings: CostSettings
) -> list[Cell]:
    """A real round less its forwards, greedy and (where asked for) sampled."""
    measured = {sampling.greedy: sampling for sampling in reversed(settings.samplings)}
    rounds = _TimedRounds(target, drafter, settings)
    return [
        Cell(
            part="overhead",
            draft=spec,
            temperature=sampling.temperature,
            tokens=k,
            run=lambda k=k, sampling=sampling: rounds.overhead_s(k, sampling),  # type: ignore[misc]
        )
        for sampling in measured.values()
        for k in depths
    ]


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


class _TimedRounds:
    """Real rounds from one context, with the time spent in forwards known."""

    def __init__(self, target: LanguageModel, drafter: DraftModel | None, settings: CostSettings) -> None:
        self._context = settings.context_token_ids
        self._rng = np.random.default_rng(settings.seed)
        self._forwards = _ForwardClock(Stopwatch(target.device))
        self._sequence = _TimedSequence(ModelScorer(target).open(), self._forwards)
        self._sequence.extend(self._context[:-1])
        self._drafting: Drafting = _Scripted()
        if drafter is not None:
            self._drafting = DraftModel(_TimedScorer(drafter.scorer, self._forwards)).open(self._rng)

    def overhead_s(self, num_speculative_tokens: int, sampling: Sampling) -> float:
        """Seconds of one round outside its forwards."""
        self._forwards.spent_s = 0.0
        token_ids = list(self._context)
        rounds = speculative_rounds(
            self._sequence, self._drafting, token_ids, num_speculative_tokens, sampling, self._rng
        )
        began = perf_counter()
        next(rounds)
        seconds = perf_counter() - began
        self._sequence.crop(len(self._context) - 1)
        return seconds - self._forwards.spent_s


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
