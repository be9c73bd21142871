"""Measured cells → what a round takes by its draft steps and verified tokens, and how well its parts add up to it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Literal

import numpy as np

from spectune.choice import chain
from spectune.errors import ProfileError
from spectune.profile.costs import CellKey, CostCells
from spectune.profile.manifest import DraftRecord, Load, Settings
from spectune.profile.store import Profile
from spectune.replay import Floats, Ints, RowCounts

CALIBRATED_UP_TO = 4  # rounds of 1 and 4 draft steps give the overhead


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimes:
    """Seconds: a plain step, and a round and its parts, means over rounds."""

    plain_s: float
    draft_s: float
    verify_s: float
    overhead_s: float
    round_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """Seconds of a round's parts, each by what it depends on. The first axis holds one statistic of every cell."""

    plain_s: Floats  # [draws] a plain step
    draft_s: Floats  # [draws, draft steps] drafting in 0, 1, … steps
    verify_s: Floats  # [draws, n] target forward over 1, 2, … tokens: the last one emitted, and proposals beside it
    overhead_s: Floats  # [draws, draft steps] the loop around them
    catch_up_s: Floats  # [draws] extra draft time after a round whose proposals were all accepted

    def round_s(self, draft_steps: Ints, nodes: Ints) -> Floats:  # [draws, shapes]
        """Rounds of so many draft steps and proposals."""
        draft, overhead = (part.take(draft_steps, axis=1) for part in (self.draft_s, self.overhead_s))
        return np.asarray(draft + self.verify_s.take(nodes, axis=1) + overhead)

    def seconds(self, rows: RowCounts) -> Floats:  # [rows]
        """Of the rounds of each text, at the point estimates."""
        round_s = self.round_s(rows.draft_steps, rows.nodes)[0]
        return np.asarray(round_s @ rows.by_shape + self.catch_up_s[0] * rows.filled)

    def log_speedups(self, rows: RowCounts) -> Floats:  # [draws]
        """Log of pooled speed-up over plain decoding, for each draw."""
        totals = self.round_s(rows.draft_steps, rows.nodes) @ rows.by_shape.sum(1) + self.catch_up_s * rows.filled.sum()
        return np.asarray(np.log(rows.emitted.sum() * self.plain_s / totals))

    def timed(self, plain_step: float, rounds: Floats) -> "RoundCosts":
        """The point estimates times these: a plain step's, and a round's, [draws, draft steps], the last of all K."""
        return RoundCosts(
            plain_s=np.full(len(rounds), self.plain_s[0] * plain_step),
            draft_s=self.draft_s[0] * rounds,
            verify_s=self.verify_s[0] * rounds,
            overhead_s=self.overhead_s[0] * rounds,
            catch_up_s=self.catch_up_s[0] * rounds[:, -1],
        )

    def times(self, rows: RowCounts) -> RoundTimes:
        """At the point estimates."""
        rounds = float(rows.rounds.sum())
        shares, filled = rows.by_shape.sum(1) / rounds, rows.filled.sum() / rounds
        draft, overhead = (part[0].take(rows.draft_steps) for part in (self.draft_s, self.overhead_s))
        return RoundTimes(
            plain_s=float(self.plain_s[0]),
            draft_s=float(draft @ shares + self.catch_up_s[0] * filled),
            verify_s=float(self.verify_s[0].take(rows.nodes) @ shares),
            overhead_s=float(overhead @ shares),
            round_s=float(self.seconds(rows).sum()) / rounds,
        )


def round_costs(
    cells: CostCells, draft: DraftRecord, greedy: bool, asked: Settings, load: Load, fold: Literal[0, 1] | None = None
) -> RoundCosts:
    """Point estimates, then one value for each resample; `fold` 0: for each fifth of the samples, 1: for what is left.

    Overhead was measured at the main load, at two K: a line through both. Raises: ProfileError where a cell is missing.
    """
    figure, main = cells.resampled if fold is None else partial(cells.folded, fold), asked.loads[0]
    overhead = _overhead(figure, cells.rounds("overhead", main, draft.spec, greedy), asked.max_k)
    plainly = CellKey(part="overhead", tokens=chain(0).verified_tokens, load=main, greedy=greedy, draft_steps=0)
    overhead[:, 0] = figure(plainly)
    sizes = range(1, chain(asked.max_k).verified_tokens + 1)
    parts = [verify_part(draft, n) for n in sizes]
    verify = np.stack([figure(CellKey(part=p, tokens=n, load=load)) for p, n in zip(parts, sizes, strict=True)], axis=1)
    step = figure(CellKey(part="cost_q", tokens=1, load=load, draft=draft.spec))
    steps, catch_up = np.ones(asked.max_k + 1), np.zeros_like(step)  # one lookup a round, whatever it finds
    if draft.drafting.cost == "step":
        steps = np.arange(asked.max_k + 1.0)
        catch_up = figure(CellKey(part="cost_q", tokens=2, load=load, draft=draft.spec)) - step
    return RoundCosts(
        plain_s=verify[:, 0] + overhead[:, 0],
        draft_s=step[:, None] * steps,
        verify_s=verify,
        overhead_s=overhead,
        catch_up_s=catch_up,
    )


def verify_part(draft: DraftRecord, tokens: int) -> str:
    """What the target's forward over n tokens of a round with this draft was measured as: two proposals may branch."""
    return "cost_p_tree" if draft.drafting.evidence == "tree" and tokens > 2 else "cost_p"


def _overhead(figure: Callable[[CellKey], Floats], measured: Sequence[CellKey], max_steps: int) -> Floats:
    """[draws, draft steps] on the line through the two rounds that it is taken from."""
    knots = calibrating_rounds(measured)
    (low, high), (first, last) = map(_steps, knots), map(figure, knots)
    slope = (last - first) / max(high - low, 1)
    line = first[:, None] + slope[:, None] * (np.arange(max_steps + 1) - low)
    return np.maximum(line, 0.0)  # it goes through noise


def _steps(key: CellKey) -> int:
    return key.draft_steps or 0


def calibrating_rounds(measured: Sequence[CellKey]) -> tuple[CellKey, CellKey]:
    """The two rounds that the loop's overhead is taken from; those measured at other K judge it."""
    short = [key for key in measured if 1 <= _steps(key) <= CALIBRATED_UP_TO]
    if not short:
        raise ProfileError("the profile's costs lack the overhead of a round", "run spectune profile again")
    return short[0], short[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How good the profile's costs are: what stays noisy, and how well the parts of a round add up."""

    noisiest_cell: str
    noisiest_half_width: float | None  # relative; half of the 95% interval of its median; None: too few samples
    worst_round_error: float | None  # relative; parts measured apart against whole rounds, at K not used to calibrate
    worst_surface_error: float | None  # relative; a line between neighbouring n against cells measured in between


def cost_accuracy(profile: Profile, cells: CostCells) -> Accuracy:
    """Of all cells, and of the rounds that were measured whole."""
    cell, width = cells.noisiest
    return Accuracy(
        noisiest_cell=str(cell),
        noisiest_half_width=width if math.isfinite(width) else None,
        worst_round_error=max(round_errors(profile, cells).values(), key=abs, default=None),
        worst_surface_error=max(cells.surface_residuals().values(), key=abs, default=None),
    )


def round_errors(profile: Profile, cells: CostCells) -> dict[CellKey, float]:
    """How far parts measured apart miss each round measured whole, relative to it, but those that overhead is from."""
    errors: dict[CellKey, float] = {}
    for draft, greedy in product(profile.manifest.drafts, (True, False)):
        whole = cells.rounds("round", profile.main_load, draft.spec, greedy)
        judges = [key for key in whole if key not in calibrating_rounds(whole)]
        if judges:
            costs = round_costs(cells, draft, greedy, profile.manifest.settings, profile.main_load)
            looked_up = costs.draft_s[0, 0] if draft.drafting.cost == "round" else 0.0
            steps, nodes = np.array([[_steps(key), key.tokens - 1] for key in judges]).T
            parts = costs.round_s(steps, nodes)[0] - looked_up
            errors |= {key: float(part / cells.resampled(key)[0] - 1) for key, part in zip(judges, parts, strict=True)}
    return errors
