"""A confirming run as evidence of costs: the rounds that other work disturbed, and what the rest of them took."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spectune.choice import Choice, Shape, plain
from spectune.decide.fit import Setting
from spectune.decide.round_costs import RoundCosts
from spectune.profile.costs import FOLDS, RESAMPLES
from spectune.profile.store import Profile
from spectune.profile.tables import integers, numbers, rows_at
from spectune.replay import Floats, Ints
from spectune.stats import medians_by

Machine = Literal["steady", "disturbed", "changed"]

_SLOW, _SPREADS = 1.5, 6.0  # times as long as rounds of the same kind, and as their usual spread
_SLOW_CYCLE = 1.25  # of everything that ran in it, plain steps too
_MOST_DISTURBED = 0.1  # of all rounds: above it, others must have been slowed too, by less than what is seen
_CHANGED = 1.1  # a plain step over the profile's, or less than one over it
_NORMAL_SPREAD = 1.4826  # standard deviations in a median deviation
_MEDIAN_ERROR = 1.2533  # the standard error of a median over that of the mean
_FEW_ROUNDS = 12  # of one n: fewer go with all the others


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRounds:
    """All rounds of one choice; `runs` are its rows of the table of runs, one for each prompt, in order of prompts."""

    runs: pa.Table
    of_run: Ints  # [rounds] place among `runs`
    cycle: Ints  # [rounds]
    proposed: Ints  # [rounds]
    accepted: Ints  # [rounds]
    seconds: Floats  # [rounds]
    expected: Floats  # [rounds] seconds by the profile's costs
    disturbed: NDArray[np.bool_]  # [rounds]

    @property
    def excess(self) -> Floats:
        """[rounds] log of seconds over those expected."""
        return np.asarray(np.log(np.maximum(self.seconds, 1e-12) / self.expected))

    def by_run(self, values: Floats) -> Floats:
        """[runs] sums over the rounds of each."""
        return np.asarray(np.bincount(self.of_run, values, self.runs.num_rows), np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRun:
    """Everything that was decoded, by choice; plain decoding at each temperature among them."""

    rounds: Mapping[Choice, DecodedRounds]
    costs: Mapping[Choice, "DecodedCosts"]  # plain decoding apart

    @property
    def counts(self) -> tuple[int, int]:
        """Rounds and plain steps, and how many of them were disturbed."""
        disturbed = np.concatenate([own.disturbed for own in self.rounds.values()])
        return len(disturbed), int(disturbed.sum())

    @property
    def plain_step_ratio(self) -> float:
        """A plain step over the profile's, at the temperature where it changed most: what no prediction can know."""
        ratios = [np.exp(_level(own)) for choice, own in self.rounds.items() if choice.draft is None]
        return float(max(ratios, key=lambda ratio: abs(np.log(ratio))))

    @property
    def machine(self) -> Machine:
        """Whether its seconds may be believed: not where a tenth was disturbed, nor where plain steps changed too."""
        count, disturbed = self.counts
        if disturbed > _MOST_DISTURBED * count:
            return "disturbed"
        return "changed" if max(self.plain_step_ratio, 1 / self.plain_step_ratio) > _CHANGED else "steady"

    def nearest(self, choice: Choice) -> Choice | None:
        """Of what was decoded with the same draft at the same temperature; None where nothing was."""
        known = [c for c, costs in self.costs.items() if np.isfinite(costs.error)]  # a run of one cycle tells no spread
        same = [c for c in known if (c.draft, c.temperature) == (choice.draft, choice.temperature)]
        return min(same, key=lambda c: abs(c.shape.depth - choice.shape.depth), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedCosts:
    """A choice's costs over the profile's own point estimates."""

    plain_step: float
    by_steps: Floats  # [draft steps] a round
    error: float  # standard error of the log of round over plain step
    folds: Floats  # [FOLDS, 2] rounds in each fifth of the cycles, and in the rest, over those in all

    def replacing(self, costs: RoundCosts) -> tuple[RoundCosts, list[RoundCosts]]:
        """Costs as the run has them, and by fifths, in place of the profile's."""
        chance = np.random.default_rng(len(self.by_steps)).standard_normal(RESAMPLES)
        draws = np.exp(np.concatenate([[0.0], self.error * chance]))
        by_steps = np.pad(self.by_steps, (0, costs.draft_s.shape[1] - len(self.by_steps)), mode="edge")
        timed = [costs.timed(self.plain_step, side[:, None] * by_steps) for side in (draws, *self.folds.T)]
        return timed[0], timed[1:]


def decoded_run(profile: Profile, fitted_settings: Sequence[Setting]) -> DecodedRun | None:
    """The rounds of a confirming run beside what the settings at the main load expect; None where there was none."""
    if profile.confirmed is None:
        return None
    runs, rounds = profile.confirmed.runs, profile.confirmed.rounds
    fitted = {setting.choice: setting.costs for setting in fitted_settings}
    columns = (runs[name].to_pylist() for name in ("draft", "depth", "nodes", "temperature"))
    choices = [Choice(draft, Shape(depth, nodes), t) for draft, depth, nodes, t in zip(*columns, strict=True)]
    any_costs = {choice.temperature: costs for choice, costs in fitted.items()}  # plain steps cost alike in all
    read = {}
    for choice in dict.fromkeys(choices):
        own = rows_at(runs, np.flatnonzero([other == choice for other in choices])).sort_by("prompt_id")
        said = any_costs[choice.temperature] if choice.draft is None else fitted[choice]
        read[choice] = _rounds(own, rounds, choice.shape, said)
    judged = _judged(read)
    costs = {
        choice: _costs(own, judged[plain(choice.temperature)], choice.shape.depth)
        for choice, own in judged.items()
        if choice.draft is not None
    }
    return DecodedRun(rounds=judged, costs=costs)


def _rounds(runs: pa.Table, rounds: pa.Table, shape: Shape, costs: RoundCosts) -> DecodedRounds:
    place = {run: place for place, run in enumerate(runs["run"].to_pylist())}
    chosen = [row for row, run in enumerate(rounds["run"].to_pylist()) if run in place]
    table = rows_at(rounds, np.array(chosen))
    of_run = np.array([place[run] for run in table["run"].to_pylist()])
    proposed, accepted = integers(table["proposed"]), integers(table["accepted"])
    filled = (accepted == shape.nodes) & (shape.nodes > 0)
    after_filled = np.concatenate([[False], filled[:-1] & (of_run[1:] == of_run[:-1])])
    expected = costs.round_s(proposed, proposed)[0] + costs.catch_up_s[0] * after_filled
    return DecodedRounds(
        runs=runs,
        of_run=of_run,
        cycle=integers(table["cycle"]),
        proposed=proposed,
        accepted=accepted,
        seconds=numbers(table["seconds"]),
        expected=expected if shape.nodes else np.full(len(proposed), costs.plain_s[0]),
        disturbed=np.zeros(len(proposed), np.bool_),
    )


def _judged(read: Mapping[Choice, DecodedRounds]) -> dict[Choice, DecodedRounds]:
    """Rounds far slower than others of their kind, and all of a cycle in which everything was slow, are disturbed."""
    over = {choice: own.excess - np.median(own.excess) for choice, own in read.items()}
    cycles = np.concatenate([own.cycle for own in read.values()])
    levels = medians_by(np.concatenate(list(over.values())), cycles)
    judged = {}
    for choice, own in read.items():
        usual = _NORMAL_SPREAD * float(np.median(np.abs(over[choice])))
        slow = over[choice] > max(np.log(_SLOW), _SPREADS * usual)
        judged[choice] = replace(own, disturbed=slow | (levels[own.cycle] > np.log(_SLOW_CYCLE)))
    return judged


def _costs(own: DecodedRounds, plainly: DecodedRounds, depth: int) -> DecodedCosts:
    """What rounds of a choice took, disturbed ones left out."""
    by_steps = np.full(depth + 1, _level(own))
    for steps in range(len(by_steps)):
        chosen = (own.proposed == steps) & ~own.disturbed
        if chosen.sum() >= _FEW_ROUNDS:
            by_steps[steps] = np.median(own.excess[chosen])
    cycles, paired = _paired(own, plainly)
    spread = _NORMAL_SPREAD * float(np.median(np.abs(paired - np.median(paired)))) if len(paired) > 1 else np.inf
    return DecodedCosts(
        plain_step=float(np.exp(_level(plainly))),
        by_steps=np.exp(by_steps),
        error=_MEDIAN_ERROR * spread / float(np.sqrt(max(len(paired), 1))),
        folds=_folds(cycles, paired),
    )


def _level(rounds: DecodedRounds) -> float:
    """Median excess of those that were not disturbed."""
    kept = rounds.excess[~rounds.disturbed]
    return float(np.median(kept if len(kept) else rounds.excess))


def _paired(rounds: DecodedRounds, plainly: DecodedRounds) -> tuple[Ints, Floats]:
    """Cycles in which both ran undisturbed, and log of rounds over plain steps in each."""
    sides = [(own.excess[~own.disturbed], own.cycle[~own.disturbed]) for own in (rounds, plainly)]
    cycles = np.intersect1d(sides[0][1], sides[1][1])
    first, second = (medians_by(*side)[cycles] if len(cycles) else np.empty(0) for side in sides)
    return cycles, first - second


def _folds(cycles: Ints, paired: Floats) -> Floats:
    """[FOLDS, 2]; cycles are dealt to the folds in turn."""
    if len(cycles) < 2 * FOLDS:
        return np.ones((FOLDS, 2))
    turn = np.arange(len(cycles)) % FOLDS
    sides = [[np.median(paired[turn == fold]), np.median(paired[turn != fold])] for fold in range(FOLDS)]
    return np.exp(np.array(sides) - np.median(paired))
