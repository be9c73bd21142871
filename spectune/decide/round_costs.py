"""Measured cells → what a round of each length takes, and how well its parts, measured apart, add up to it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray

from spectune.errors import ProfileError
from spectune.profile.costs import CellKey, CostCells
from spectune.profile.manifest import DraftRecord, Load
from spectune.profile.store import Profile

Floats = NDArray[np.float64]

CALIBRATED_UP_TO = 4  # K = 1 and 4 give the overhead


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """Seconds of a round's parts, of 0..max_k proposals. The first axis holds one statistic of every cell."""

    plain_s: Floats  # [draws] a plain step
    draft_s: Floats  # [draws, max_k + 1] drafting k tokens
    verify_s: Floats  # [draws, max_k + 1] target forward over k + 1 tokens
    overhead_s: Floats  # [draws, max_k + 1] the loop around them
    catch_up_s: Floats  # [draws] extra draft time after a round whose proposals were all accepted

    @property
    def round_s(self) -> Floats:
        """Seconds of a round that proposes k tokens, [draws, max_k + 1]."""
        return self.draft_s + self.verify_s + self.overhead_s


def round_costs(cells: CostCells, draft: DraftRecord, greedy: bool, load: Load, main: Load, max_k: int) -> RoundCosts:
    """Point estimates first, then one value for each resample. Raises: ProfileError where a cell is missing."""
    return _costs(cells.resampled, cells, draft, greedy, load, main, max_k)


def folded_round_costs(
    cells: CostCells, draft: DraftRecord, greedy: bool, load: Load, main: Load, max_k: int
) -> list[RoundCosts]:
    """Each fifth of the samples as a draw, then, as a second one, what the other four fifths say."""
    return [_costs(partial(cells.folded, side), cells, draft, greedy, load, main, max_k) for side in (0, 1)]


def _costs(
    figure: Callable[[CellKey], Floats],
    cells: CostCells,
    draft: DraftRecord,
    greedy: bool,
    load: Load,
    main: Load,
    max_k: int,
) -> RoundCosts:
    """One statistic of every cell. Overhead was measured at the main load, at two K: a line through both."""
    verify = np.stack([figure(CellKey(part="cost_p", tokens=n, load=load)) for n in range(1, max_k + 2)], axis=1)
    plain = figure(_round_key("overhead", main, None, greedy, 0))
    knots = calibration_depths([key.draft_steps or 0 for key in cells.rounds("overhead", main, draft.spec, greedy)])
    first, last = (figure(_round_key("overhead", main, draft.spec, greedy, k)) for k in knots)
    slope = (last - first) / max(knots[1] - knots[0], 1)
    overhead = first[:, None] + slope[:, None] * (np.arange(max_k + 1) - knots[0])
    overhead = np.maximum(overhead, 0.0)  # a line through noise
    overhead[:, 0] = plain
    step = figure(CellKey(part="cost_q", tokens=1, load=load, draft=draft.spec))
    if draft.drafting.cost == "round":  # one lookup a round, whatever it finds
        draft_s, catch_up = np.repeat(step[:, None], max_k + 1, axis=1), np.zeros_like(step)
    else:
        draft_s = step[:, None] * np.arange(max_k + 1)
        catch_up = figure(CellKey(part="cost_q", tokens=2, load=load, draft=draft.spec)) - step
    return RoundCosts(
        plain_s=verify[:, 0] + plain,
        draft_s=draft_s,
        verify_s=verify,
        overhead_s=overhead,
        catch_up_s=catch_up,
    )


def _round_key(part: str, load: Load, draft: str | None, greedy: bool, k: int) -> CellKey:
    return CellKey(part=part, tokens=k + 1, load=load, draft=draft, greedy=greedy, draft_steps=k)


def calibration_depths(measured: Sequence[int]) -> tuple[int, int]:
    """The two K that the loop's overhead is taken from; rounds measured at others judge it."""
    low = [k for k in measured if 1 <= k <= CALIBRATED_UP_TO]
    if not low:
        raise ProfileError("the profile's costs lack the overhead of a round", "run spectune profile again")
    return low[0], low[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRound:
    """A whole round, timed, against the sum of its parts; K is none of those that the overhead is taken from."""

    draft: str
    num_speculative_tokens: int
    greedy: bool
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """Relative to the measured round."""
        return self.predicted_s / self.measured_s - 1


def judged_rounds(profile: Profile, cells: CostCells) -> list[JudgedRound]:
    """How well draft, verify and overhead, each measured apart, add up to rounds that were measured whole."""
    main, max_k = profile.main_load, profile.manifest.settings.max_k
    found = []
    for draft, greedy in product(profile.manifest.drafts, (True, False)):
        depths = [key.draft_steps or 0 for key in cells.rounds("round", main, draft.spec, greedy)]
        if not depths:
            continue
        costs = round_costs(cells, draft, greedy, main, main, max_k)
        for k in set(depths) - set(calibration_depths(depths)):
            key = _round_key("round", main, draft.spec, greedy, k)
            parts = costs.round_s[0, k] - (costs.draft_s[0, k] if draft.drafting.cost == "round" else 0.0)
            measured = float(cells.resampled(key)[0])
            found.append(
                JudgedRound(
                    draft=draft.spec,
                    num_speculative_tokens=k,
                    greedy=greedy,
                    predicted_s=float(parts),
                    measured_s=measured,
                )
            )
    return sorted(found, key=lambda one: (one.draft, not one.greedy, one.num_speculative_tokens))
