"""Time what a round is made of: target forwards, draft steps, and the loop around them.

Cells are timed in shuffled passes, so that a drift of the machine touches all alike; raw samples are kept.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from spectune.choice import Shape, chain
from spectune.drafting import Drafter
from spectune.drafting_spec import method_of
from spectune.measure import EAGER, OWN_ENGINE, Progress
from spectune.measure.rounds import Stopwatch, TimedRounds
from spectune.models.loading import LanguageModel
from spectune.models.sampling import Sampling
from spectune.models.scoring import ModelScorer, Repeatable, repeatable_forwards, repeatable_trees
from spectune.profile import schemas
from spectune.profile.costs import FORWARDS, KNOWN_WITHIN, READING
from spectune.profile.manifest import Load
from spectune.stats import median_half_width, steady_seconds

FEWEST_PASSES = 6  # below six samples the median has no interval
USUAL_WARM_UP_PASSES = 4
_MOST_WARM_UP_PASSES = 5
READING_PASSES = 3  # that prompts are read in
_OFTEN = 4  # times in each pass
_BURST = 2  # plain steps timed after one another, behind one that is not
_REFERENCE_WIDTH = 4096  # 64 MiB in float32: more than caches hold
PLAIN_STEPS_OF_A_PASS = _OFTEN // _BURST * (1 + _BURST)


def verify_sizes(max_k: int, main: bool) -> list[int]:
    """The n at which a target's forward is timed: every one at the main load, few at others."""
    sizes = range(1, max_k + 2)
    return list(sizes) if main else sorted({1, 2, 3, 5, max_k + 1} & set(sizes))


def tree_sizes(max_k: int) -> list[int]:
    """The n at which forwards over trees are timed; two tokens beside the root are the fewest that branch."""
    return sorted({3, 5, 9, 17, 33, max_k + 1} & set(range(3, max_k + 2)))


def round_shapes(max_k: int) -> list[Shape]:
    """The rounds that are timed whole: the overhead is taken from K = 1 and 4, the others judge it."""
    return [chain(k) for k in sorted({1, 2, 4, max_k}) if k <= max_k]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Something to time: `run` does it once and returns the seconds of each of its parts."""

    parts: tuple[str, ...]
    tokens: int  # n of the forward, of a round those that the target verifies
    run: Callable[[], tuple[float, ...]]
    load: Load
    draft: str | None = None
    temperature: float | None = None
    draft_steps: int | None = None  # of a round

    @property
    def forward(self) -> bool:
        """Whether it times known work; else a real round, or the reading of a prompt."""
        return self.parts[0] in FORWARDS

    @property
    def reading(self) -> bool:
        """Whether a whole prompt is read."""
        return self.parts[0] in READING

    def due(self, number: int, half_width: float) -> bool:
        """Whether it is timed in a pass, its median being known so well."""
        if self.reading:
            return number < READING_PASSES
        return self.forward or number < FEWEST_PASSES or half_width > KNOWN_WITHIN


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSettings:
    """What to measure at. `text_token_ids` is a recorded sequence; caches hold as much of it as a load says."""

    text_token_ids: list[int]
    loads: Sequence[Load]  # the first is the main one, where every n and the loop's overhead are measured
    max_k: int
    samplings: Sequence[Sampling]
    budget_s: float
    seed: int
    prompt_tokens: Sequence[int] = ()  # lengths that a prompt is read at

    def context(self, load: Load) -> list[int]:
        """The cached tokens at a load; the text starts over where it is too short."""
        repeats = -(-load.context_tokens // len(self.text_token_ids))
        return (self.text_token_ids * repeats)[: load.context_tokens]


def cost_table(
    target: LanguageModel, drafts: Mapping[str, Drafter], settings: CostSettings, progress: Progress
) -> pd.DataFrame:
    """Raw samples as schemas.COSTS has them.

    Passes go on until every median is known within ±3% or the budget ends; a real round drops out as soon as
    its overhead is known.
    """
    began, cells = perf_counter(), _cells(target, drafts, settings)
    samples = _Samples(cells, settings.seed)
    progress.start("warm-up", len(cells), "kinds of work")
    samples.warm_up(lambda: progress.advance(1))
    progress.start("costs", settings.budget_s, "s")
    passes, due, shown, noise = 0, 0, 0.0, float("inf")

    def moved() -> None:
        nonlocal shown
        before, shown = shown, min(perf_counter() - began, settings.budget_s)
        progress.advance(shown - before, f"±{noise:.1%}" if noise < 1 else "")

    while passes < FEWEST_PASSES or (shown < settings.budget_s and noise > KNOWN_WITHIN):
        samples.one_pass(passes, moved)
        passes += 1
        if passes >= due:  # judging takes time of its own where passes are short
            noise, due = samples.noise(), passes + max(1, passes // 8)
    progress.advance(settings.budget_s - shown)
    return samples.table()


class _Samples:
    """The seconds so far, and how well each cell's median is known."""

    def __init__(self, cells: list[Cell], seed: int) -> None:
        self._cells = cells
        self._rng = np.random.default_rng(seed)
        self._rows: list[tuple[int, int, tuple[float, ...]]] = []  # cell, pass, seconds of its parts
        self._widths = [float("inf")] * len(cells)

    def warm_up(self, done: Callable[[], None]) -> None:
        """Run everything, telling after each, then the forwards until they no longer get more than a tenth faster."""
        for cell in self._cells:
            cell.run()
            done()
        before = float("inf")
        for _ in range(_MOST_WARM_UP_PASSES):
            took = sum(cell.run()[0] for cell in self._cells if cell.forward)
            if took > 0.9 * before:
                break
            before = took

    def one_pass(self, number: int, done: Callable[[], None]) -> None:
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
            if cell.due(number, self._widths[index]):
                for _ in range(_BURST if _plain(cell) else 1):
                    self._rows.append((int(index), number, cell.run()))
            done()

    def noise(self) -> float:
        """Half-width of the worst known median."""
        cells, passes = (np.array([row[place] for row in self._rows]) for place in (0, 1))
        seconds = np.array([row[2][0] for row in self._rows])
        forwards = np.array([cell.forward for cell in self._cells])
        steady = steady_seconds(seconds, cells, passes, forwards[cells])
        plain = {cell.load: steady[cells == index] for index, cell in enumerate(self._cells) if _plain(cell)}
        self._widths = [
            median_half_width(steady[cells == index], float(np.median(plain[cell.load]))) if not cell.reading else 0.0
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
                    "engine": OWN_ENGINE,
                    "mode": EAGER,
                    "draft_steps": cell.draft_steps,
                    "tokens": cell.tokens,
                    "batch": cell.load.batch,
                    "context_tokens": cell.load.context_tokens,
                    "measurement_pass": number,
                    "seconds": seconds,
                }
                for index, number, values in sorted(self._rows, key=lambda row: (row[0], row[1]))
                for cell in [self._cells[index]]
                for part, seconds in zip(cell.parts, values, strict=True)
            ],
            columns=schemas.COSTS.names,
        ).astype({"draft_steps": "Int32"})


def _bursts(cell: Cell) -> int:
    """How many in a pass."""
    return _OFTEN // _BURST if _plain(cell) else _OFTEN if cell.parts == ("reference",) else 1


def _plain(cell: Cell) -> bool:
    return cell.parts[0] == "cost_p" and cell.tokens == 1


def _cells(target: LanguageModel, drafts: Mapping[str, Drafter], settings: CostSettings) -> list[Cell]:
    cells = _reference_cells(target, settings) + _round_cells(None, None, target, [chain(0)], settings)
    for place, load in enumerate(settings.loads):
        context = settings.context(load)
        forwards = repeatable_forwards(target, context, load.batch, verify_sizes(settings.max_k, place == 0))
        cells += _forward_cells("cost_p", None, forwards, load, target)
        if any(method_of(spec).evidence == "tree" for spec in drafts):
            trees = repeatable_trees(target, context, load.batch, tree_sizes(settings.max_k))
            cells += _forward_cells("cost_p_tree", None, trees, load, target)
        for spec, drafter in drafts.items():
            proposing = drafter.work(context, load.batch, chain(settings.max_k), settings.samplings[0])
            cells += _forward_cells("cost_q", spec, proposing, load, target)
    cells += _reading_cells(target, drafts, settings)
    for spec, drafter in drafts.items():
        method, shapes = method_of(spec), round_shapes(settings.max_k)
        proposing_in_rounds = drafter if method.cost == "step" else None
        cells += _round_cells(spec, proposing_in_rounds, target, shapes, settings, method.evidence == "tree")
    return cells


def _forward_cells(
    part: str, draft: str | None, work: Mapping[int, Repeatable], load: Load, target: LanguageModel
) -> list[Cell]:
    stopwatch = Stopwatch(target.device)

    def run(timed: Repeatable) -> tuple[float]:
        seconds = stopwatch.seconds(timed.run)
        timed.undo()
        return (seconds,)

    return [Cell(parts=(part,), draft=draft, tokens=n, load=load, run=partial(run, timed)) for n, timed in work.items()]


def _reading_cells(target: LanguageModel, drafts: Mapping[str, Drafter], settings: CostSettings) -> list[Cell]:
    """Whole prompts, nothing being cached: by the target, and by each draft together with its first proposal."""
    load, text = Load(batch=1, context_tokens=0), settings.text_token_ids
    prompts = {n: (text * -(-n // len(text)))[:n] for n in settings.prompt_tokens}
    scorer, idle = ModelScorer(target), np.random.default_rng(settings.seed)
    by_target = {n: Repeatable(run=partial(_read, scorer, prompt)) for n, prompt in prompts.items()}
    cells = _forward_cells("read_p", None, by_target, load, target)
    for spec, drafter in drafts.items():
        by_draft = {n: Repeatable(run=partial(_propose, drafter, idle, prompt)) for n, prompt in prompts.items()}
        cells += _forward_cells("read_q", spec, by_draft, load, target)
    return cells


def _read(scorer: ModelScorer, prompt: list[int]) -> None:
    scorer.open().read(torch.tensor(prompt))


def _propose(drafter: Drafter, rng: np.random.Generator, prompt: list[int]) -> None:
    drafter.open(rng).propose(prompt, chain(1), Sampling())


def _reference_cells(target: LanguageModel, settings: CostSettings) -> list[Cell]:
    """A product that no model and no code of ours takes part in, over as many rows as a plain step and a round have:
    how fast the machine itself was, so that two profiles of it can be compared.
    """
    weight = torch.ones(_REFERENCE_WIDTH, _REFERENCE_WIDTH, dtype=target.dtype, device=target.device)

    def product(rows: Tensor) -> Tensor:
        return torch.nn.functional.linear(rows, weight)

    work = {n: Repeatable(run=partial(product, weight[:n])) for n in sorted({1, settings.max_k + 1})}
    return _forward_cells("reference", None, work, settings.loads[0], target)


def _round_cells(
    spec: str | None,
    drafter: Drafter | None,
    target: LanguageModel,
    shapes: Sequence[Shape],
    settings: CostSettings,
    branching: bool = False,
) -> list[Cell]:
    """Real rounds at the main load, greedy and (where asked for) sampled: what their forwards leave, and the whole."""
    measured = {sampling.greedy: sampling for sampling in reversed(settings.samplings)}
    main = settings.loads[0]
    rounds = TimedRounds(target, drafter, settings.context(main), settings.seed, branching)
    return [
        Cell(
            parts=("overhead", "round"),
            draft=spec,
            temperature=sampling.temperature,
            draft_steps=shape.depth,
            tokens=shape.verified_tokens,
            load=main,
            run=partial(rounds.seconds, shape, sampling),
        )
        for sampling in measured.values()
        for shape in shapes
    ]
