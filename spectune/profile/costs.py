"""The cost table as cells: medians with the machine's drift divided out, how well each is known, what lies between."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spectune.errors import ProfileError
from spectune.profile.manifest import Load
from spectune.profile.tables import AGAIN, labels, numbers
from spectune.stats import Floats, median_half_width, steady_seconds

RESAMPLES = 2000
FOLDS = 5
FORWARDS = ("cost_p", "cost_p_tree", "cost_q", "reference")
"""Parts of known work, which tell how fast the machine was in a pass; the others are real rounds, or whole prompts."""
READING = ("read_p", "read_q")
"""A prompt read by the target, and by a draft: long, hence few samples, and no part of a round."""
KNOWN_WITHIN = 0.03
_KEYS = ["part", "draft", "temperature", "draft_steps", "tokens", "batch", "context_tokens"]
_FORWARD_NAMES = {
    "cost_p": "verify n",
    "cost_p_tree": "verify a tree, n",
    "cost_q": "draft n",
    "reference": "reference product n",
    "read_p": "prompt of n",
    "read_q": "prompt of n, draft,",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CellKey:
    """One cell: `tokens` is n of a forward, of a round what the target verifies, which has `draft_steps` too.

    `greedy` tells T = 0 from any T > 0, None where alike.
    """

    part: str
    tokens: int
    load: Load
    draft: str | None = None
    greedy: bool | None = None
    draft_steps: int | None = None

    def __str__(self) -> str:
        measured = _FORWARD_NAMES.get(self.part, f"{self.part} K")
        name = f"{measured} = {self.tokens if self.draft_steps is None else self.draft_steps}"
        return f"{name} of {self.draft}" if self.draft else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """A cell's seconds without the machine's drift, and the measurement pass each was taken in."""

    seconds: Floats
    passes: NDArray[np.int64]


class CostCells:
    """All cells of a profile; every figure is a median, for each of which `resampled` gives its spread."""

    def __init__(self, samples: Mapping[CellKey, Samples]) -> None:
        self.samples = samples
        self._resampled: dict[CellKey, Floats] = {}

    @staticmethod
    def of(costs: pa.Table) -> "CostCells":
        """The cells of a table as schemas.COSTS has it. Raises: ProfileError for costs of several engines or modes."""
        places = set(zip(*(costs[name].to_pylist() for name in ("engine", "mode")), strict=True))
        if len(places) > 1:
            raise ProfileError(f"the costs are of {len(places)} engines or modes, which do not mix", AGAIN)
        return CostCells(_samples(costs))

    def sizes(self, part: str, load: Load, draft: str | None = None) -> list[int]:
        """The n that a forward was measured at."""
        return sorted(key.tokens for key in self.samples if (key.part, key.load, key.draft) == (part, load, draft))

    def rounds(self, part: str, load: Load, draft: str | None, greedy: bool) -> list[CellKey]:
        """The cells of a part that was measured in rounds, by draft steps and n."""
        wanted = (part, load, draft, greedy)
        cells = [key for key in self.samples if (key.part, key.load, key.draft, key.greedy) == wanted]
        return sorted(cells, key=lambda key: (key.draft_steps or 0, key.tokens))

    def resampled(self, key: CellKey) -> Floats:
        """[1 + RESAMPLES] the median, then the medians of resampled samples. Raises: ProfileError: not measured."""
        if key not in self._resampled:
            self._resampled[key] = self.interpolated(key, _bootstrap)
        return self._resampled[key]

    def folded(self, side: Literal[0, 1], key: CellKey) -> Floats:
        """[FOLDS] the median of each fifth of the samples (side 0), or of the other four fifths (side 1)."""
        return self.interpolated(key, _folds)[:, side]

    def count(self, key: CellKey) -> int:
        """How many samples a cell has; the fewest of its neighbours where it lies between two."""
        if key in self.samples:
            return len(self.samples[key].seconds)
        near = [cell for cell in self.samples if replace(cell, tokens=key.tokens) == key]
        return min((len(self.samples[cell].seconds) for cell in near), default=0)

    def interpolated(self, key: CellKey, statistic: Callable[[Samples], Floats]) -> Floats:
        """The cell's own figure where it was measured, else linear in n between the nearest measured ones.

        Raises: ProfileError beyond them.
        """
        if key in self.samples:
            return statistic(self.samples[key])
        sizes = self.sizes(key.part, key.load, key.draft)
        below, above = [n for n in sizes if n < key.tokens], [n for n in sizes if n > key.tokens]
        if not below or not above:
            where = f"batch {key.load.batch} and {key.load.context_tokens} tokens of context"
            raise ProfileError(f"the profile's costs lack {key} at {where}", AGAIN)
        low, high = below[-1], above[0]
        share = (key.tokens - low) / (high - low)
        ends = [statistic(self.samples[replace(key, tokens=n)]) for n in (low, high)]
        return (1 - share) * ends[0] + share * ends[1]

    @cached_property
    def half_widths(self) -> dict[CellKey, float]:
        """How well the median of each part of a round is known; relative to itself or to a plain step, the longer."""
        return {key: self._half_width(key) for key in self.samples if key.part not in ("round", *READING)}

    @property
    def noisiest(self) -> tuple[CellKey, float]:
        """The cell whose median is known worst."""
        return max(self.half_widths.items(), key=lambda known: known[1])

    def _half_width(self, key: CellKey) -> float:
        plain = self.samples.get(CellKey(part="cost_p", tokens=1, load=key.load))
        return median_half_width(self.samples[key].seconds, float(np.median(plain.seconds)) if plain else 0.0)

    def scaled(self, factor: float) -> "CostCells":
        """The same cells, all seconds times a factor."""
        return CostCells({key: replace(cell, seconds=cell.seconds * factor) for key, cell in self.samples.items()})

    def surface_residuals(self) -> dict[CellKey, float]:
        """How far the line between its neighbours misses each inner cell of cost_p, relative to it."""
        residuals = {}
        for key in self.samples:
            sizes = self.sizes("cost_p", key.load)
            if key.part == "cost_p" and key.tokens not in (sizes[0], sizes[-1]):
                place = sizes.index(key.tokens)
                low, high = sizes[place - 1], sizes[place + 1]
                ends = [float(np.median(self.samples[replace(key, tokens=n)].seconds)) for n in (low, high)]
                line = np.interp(key.tokens, [low, high], ends)
                residuals[key] = float(line / np.median(self.samples[key].seconds) - 1)
        return residuals


def unsteadiness(costs: pa.Table, over: Literal["nothing", "reference", "plain"]) -> float:
    """How much the target's forwards changed from one fifth of a run to another: a standard deviation of logs.

    Relative to the reference product of the same time, or those of several tokens relative to plain steps: what a ratio
    of the two changes by while neither the code nor the work does. A run too short for fifths shows nothing: infinite.
    """
    parts, tokens = labels(costs["part"]), numbers(costs["tokens"])
    passes = labels(costs["measurement_pass"]).astype(np.int64)
    count = int(passes.max(initial=-1)) + 1
    if count < FOLDS:
        return float("inf")
    fifths, forwards = passes * FOLDS // count, parts == "cost_p"
    judged = forwards & (tokens > 1) if over == "plain" else forwards
    cells = np.array(list(map(str, zip(*(costs[name].to_pylist() for name in _KEYS), strict=True))))
    logs = np.log(np.maximum(numbers(costs["seconds"]), 1e-12))
    level = _by_fifth(logs, cells, fifths, judged)
    if over != "nothing":
        others = forwards & (tokens == 1) if over == "plain" else parts == "reference"
        level = level - _by_fifth(logs, cells, fifths, others)
    return float(np.std(level, ddof=1))


def _by_fifth(logs: Floats, cells: NDArray[np.str_], fifths: NDArray[np.int64], chosen: NDArray[np.bool_]) -> Floats:
    """[FOLDS] mean over consecutive passes of logs less their own cell's mean."""
    cell, fifth = np.unique(cells[chosen], return_inverse=True)[1], fifths[chosen]
    centred = logs[chosen] - (np.bincount(cell, logs[chosen]) / np.bincount(cell))[cell]
    sums, samples = np.bincount(fifth, centred, FOLDS), np.bincount(fifth, minlength=FOLDS)
    return np.asarray(sums / np.maximum(samples, 1))


def _samples(costs: pa.Table) -> dict[CellKey, Samples]:
    rows = list(zip(*(costs[name].to_pylist() for name in _KEYS), strict=True))
    places = {row: place for place, row in enumerate(dict.fromkeys(rows))}
    cells, passes = np.array([places[row] for row in rows]), labels(costs["measurement_pass"]).astype(np.int64)
    steady = steady_seconds(numbers(costs["seconds"]), cells, passes, np.isin(labels(costs["part"]), FORWARDS))
    samples = {}
    for (part, draft, temperature, draft_steps, tokens, batch, context_tokens), place in places.items():
        load = Load(batch=batch, context_tokens=context_tokens)
        greedy = None if temperature is None else temperature == 0.0
        key = CellKey(part=part, tokens=tokens, load=load, draft=draft, greedy=greedy, draft_steps=draft_steps)
        samples[key] = Samples(seconds=steady[cells == place], passes=passes[cells == place])
    return samples


def _bootstrap(samples: Samples) -> Floats:
    """Cells of as many samples are resampled alike, pass by pass, so that what drift is left stays shared."""
    count = len(samples.seconds)
    draws = np.random.default_rng(count).integers(count, size=(RESAMPLES, count))
    return np.concatenate([[np.median(samples.seconds)], np.median(samples.seconds[draws], axis=1)])


def _folds(samples: Samples) -> Floats:
    """[FOLDS, 2]; samples are dealt to the folds in turn, so that each has early and late ones.

    Too few to give each fold a median of its own: all of them serve everywhere.
    """
    if len(samples.seconds) < FOLDS * 5:
        return np.full((FOLDS, 2), np.median(samples.seconds))
    turn = np.argsort(np.argsort(samples.passes, kind="stable"), kind="stable") % FOLDS
    pairs = [(samples.seconds[turn == fold], samples.seconds[turn != fold]) for fold in range(FOLDS)]
    return np.array([[np.median(part) for part in pair] for pair in pairs])
