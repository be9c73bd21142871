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

from spectune.drafting import Drafter
from spectune.drafting.draft_model import DraftModel
from spectune.measure import Progress
from spectune.measure.rounds import Stopwatch, TimedRounds
from spectune.models.loading import LanguageModel
from spectune.models.sampling import Sampling
from spectune.models.scoring import ModelSequence
from spectune.profile.costs import FORWARDS, KNOWN_WITHIN
from spectune.profile.manifest import Load
from spectune.stats import median_half_width, steady_seconds

ROUND_DEPTHS = (1, 2, 4)  # and the largest K: the overhead is taken from 1 and 4, the others judge it
FEWEST_PASSES = 6  # below six samples the median has no interval
_MOST_WARM_UP_PASSES = 5
_OFTEN = 4  # times in each pass
_BURST = 2  # plain steps timed after one another, behind one that is not
_REFERENCE_WIDTH = 4096  # 64 MiB in float32: more than caches hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Something to time: `run` does it once and returns the seconds of each of its parts."""

    parts: tuple[str, ...]
    tokens: int
    run: Callable[[], tuple[float, ...]]
    load: Load
    draft: str | None = None
    temperature: float | None = None

    @property
    def forward(self) -> bool:
        """Whether it times known work; else a real round."""
        return self.parts[0] in FORWARDS


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSettings:
    """What to measure at. `text_token_ids` is a recorded sequence; caches hold as much of it as a load says."""

    text_token_ids: list[int]
    loads: Sequence[Load]  # the first is the main one, where every n and the loop's overhead are measured
    max_k: int
    samplings: Sequence[Sampling]
    budget_s: float
    seed: int

    def context(self, load: Load) -> list[int]:
        """The cached tokens at a load; the text starts over where it is too short."""
        repeats = -(-load.context_tokens // len(self.text_token_ids))
        return (self.text_token_ids * repeats)[: load.context_tokens]


def cost_table(
    target: LanguageModel, drafts: dict[str, Drafter], settings: CostSettings, progress: Progress
) -> pd.DataFrame:
    """Raw samples as profile.COSTS_SCHEMA has them.

    Passes go on until every median is known within ±3% or the budget ends; a real round drops out as soon as
    its overhead is known.
    """
    progress.start("costs", settings.budget_s, "s")
    began = perf_counter()
    samples = _Samples(_cells(target, drafts, settings), settings.seed)
    samples.warm_up()
    passes, due, spent, noise = 0, 0, 0.0, float("inf")
    while passes < FEWEST_PASSES or (spent < settings.budget_s and noise > KNOWN_WITHIN):
        samples.one_pass(passes)
        passes += 1
        if passes >= due:  # judging takes time of its own where passes are short
            noise, due = samples.noise(), passes + max(1, passes // 8)
        shown, spent = min(spent, settings.budget_s), perf_counter() - began
        progress.advance(min(spent, settings.budget_s) - shown, f"±{noise:.1%}")
    progress.advance(max(settings.budget_s - spent, 0.0))
    return samples.table()


class _Samples:
    """The seconds so far, and how well each cell's median is known."""

    def __init__(self, cells: list[Cell], seed: int) -> None:
        self._cells = cells
        self._rng = np.random.default_rng(seed)
        self._rows: list[tuple[int, int, tuple[float, ...]]] = []  # cell, pass, seconds of its parts
        self._widths = [float("inf")] * len(cells)

    def warm_up(self) -> None:
        """Run everything, then the forwards until they no longer get more than a tenth faster."""
        for cell in self._cells:
            cell.run()
        before = float("inf")
        for _ in range(_MOST_WARM_UP_PASSES):
            took = sum(cell.run()[0] for cell in self._cells if cell.forward)
            if took > 0.9 * before:
                break
            before = took

    def one_pass(self, number: int) -> None:
        """Time every cell that is still to be known better, in a fresh order; plain steps, which every ratio
        rests on, and the reference, which every comparison rests on, several times.

        A plain step is timed as plain decoding runs it, behind another: after other work it takes some percent longer,
        which a round, all of whose forwards follow others, does not.
        """
        times = [_bursts(cell) for cell in self._cells]
        for index in self._rng.permutation(np.repeat(np.arange(len(self._cells)), times)):
            cell = self._cells[index]
            if _plain(cell):
                cell.run()
            if cell.forward or number < FEWEST_PASSES or self._widths[index] > KNOWN_WITHIN:
                for _ in range(_BURST if _plain(cell) else 1):
                    self._rows.append((int(index), number, cell.run()))

    def noise(self) -> float:
        """Half-width of the worst known median."""
        cells, passes = (np.array([row[place] for row in self._rows]) for place in (0, 1))
        seconds = np.array([row[2][0] for row in self._rows])
        forwards = np.array([cell.forward for cell in self._cells])
        steady = steady_seconds(seconds, cells, passes, forwards[cells])
        plain = {cell.load: steady[cells == index] for index, cell in enumerate(self._cells) if _plain(cell)}
        self._widths = [
            median_half_width(steady[cells == index], float(np.median(plain[cell.load])))
            for index, cell in enumerate(self._cells)
        ]
        return max(self._widths)

    def table(self) -> pd.DataFrame:
        return pd.DataFrame.from_records(
            [
                {
                    "part": part,
                    "draft": cell.draft,
                    "temperature": cell.temperature,
                    "tokens": cell.tokens,
                    "batch": cell.load.batch,
                    "context_tokens": cell.load.context_tokens,
                    "measurement_pass": number,
                    "seconds": seconds,
                }
                for index, number, values in sorted(self._rows, key=lambda row: (row[0], row[1]))
                for cell in [self._cells[index]]
                for part, seconds in zip(cell.parts, values, strict=True)
            ]
        )


def _bursts(cell: Cell) -> int:
    """How many in a pass."""
    return _OFTEN // _BURST if _plain(cell) else _OFTEN if cell.parts == ("reference",) else 1


def _plain(cell: Cell) -> bool:
    return cell.parts[0] == "cost_p" and cell.tokens == 1


def _cells(target: LanguageModel, drafts: dict[str, Drafter], settings: CostSettings) -> list[Cell]:
    main, *others = settings.loads
    cells = _cells_at(main, range(1, settings.max_k + 2), target, drafts, settings)
    cells += _reference_cells(target, settings)
    cells += _round_cells(None, None, target, [0], settings)
    depths = sorted({*ROUND_DEPTHS, settings.max_k} & set(range(1, settings.max_k + 1)))
    for spec, drafter in drafts.items():
        cells += _round_cells(spec, drafter if isinstance(drafter, DraftModel) else None, target, depths, settings)
    sizes = sorted({1, 2, 3, 5, settings.max_k + 1} & set(range(1, settings.max_k + 2)))
    for load in others:
        cells += _cells_at(load, sizes, target, drafts, settings)
    return cells


def _cells_at(
    load: Load, sizes: Sequence[int], target: LanguageModel, drafts: dict[str, Drafter], settings: CostSettings
) -> list[Cell]:
    cells = _forward_cells("cost_p", None, target, sizes, load, settings)
    for spec, drafter in drafts.items():
        if isinstance(drafter, DraftModel):
            # two tokens at once: what a step costs after a round whose proposals were all accepted
            cells += _forward_cells("cost_q", spec, drafter.model, (1, 2), load, settings)
        else:
            cells.append(_lookup_cell(spec, drafter, load, settings))
    return cells


def _forward_cells(
    part: str, draft: str | None, model: LanguageModel, sizes: Sequence[int], load: Load, settings: CostSettings
) -> list[Cell]:
    context, stopwatch = settings.context(load), Stopwatch(model.device)
    sequence = ModelSequence(model, rows=load.batch)
    sequence.read(context)

    def run(size: int) -> tuple[float]:
        seconds = stopwatch.seconds(lambda: sequence.extend(context[:size]))
        sequence.crop(len(context))
        return (seconds,)

    return [
        Cell(parts=(part,), draft=draft, tokens=n, load=load, run=lambda n=n: run(n))  # type: ignore[misc]
        for n in sizes
    ]


def _reference_cells(target: LanguageModel, settings: CostSettings) -> list[Cell]:
    """A product that no model and no code of ours takes part in, over as many rows as a plain step and a round have:
    how fast the machine itself was, so that two profiles of it can be compared.
    """
    stopwatch, main = Stopwatch(target.device), settings.loads[0]
    weight = torch.ones(_REFERENCE_WIDTH, _REFERENCE_WIDTH, dtype=target.dtype, device=target.device)

    def run(count: int) -> tuple[float]:
        rows: Tensor = weight[:count]
        return (stopwatch.seconds(lambda: torch.nn.functional.linear(rows, weight)),)

    return [
        Cell(parts=("reference",), tokens=n, load=main, run=lambda n=n: run(n))  # type: ignore[misc]
        for n in sorted({1, settings.max_k + 1})
    ]


def _lookup_cell(spec: str, drafter: Drafter, load: Load, settings: CostSettings) -> Cell:
    drafting = drafter.open(np.random.default_rng(settings.seed))
    context = settings.context(load)

    def run() -> tuple[float]:
        began = perf_counter()
        for _ in range(load.batch):
            drafting.propose(context, settings.max_k, settings.samplings[0])
        return (perf_counter() - began,)

    return Cell(parts=("cost_q",), draft=spec, tokens=1, load=load, run=run)


def _round_cells(
    spec: str | None, drafter: DraftModel | None, target: LanguageModel, depths: Sequence[int], settings: CostSettings
) -> list[Cell]:
    """Real rounds at the main load, greedy and (where asked for) sampled: what their forwards leave, and the whole."""
    measured = {sampling.greedy: sampling for sampling in reversed(settings.samplings)}
    main = settings.loads[0]
    rounds = TimedRounds(target, drafter, settings.context(main), settings.seed)
    return [
        Cell(
            parts=("overhead", "round"),
            draft=spec,
            temperature=sampling.temperature,
            tokens=k,
            load=main,
            run=lambda k=k, sampling=sampling: rounds.seconds(k, sampling),  # type: ignore[misc]
        )
        for sampling in measured.values()
        for k in depths
    ]
