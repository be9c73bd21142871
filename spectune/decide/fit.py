"""Profile → fitted settings: acceptance by replay, round times from measured cells, both with their spread."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from spectune import stats
from spectune.choice import Choice, chain
from spectune.decide.evidence import Counts, DraftEvidence, profiled_evidence, replayed
from spectune.decide.round_costs import RoundCosts, RoundTimes, round_costs
from spectune.errors import ConfigError
from spectune.profile.costs import CostCells
from spectune.profile.manifest import Load, Settings
from spectune.profile.store import Profile
from spectune.replay import Floats, Replay, RowCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """What complete rounds accept; all rounds where no text is long enough for one."""

    length: stats.Interval  # tokens a round, bonus included
    clock_length: float  # tokens over rounds as a clock sees them: ended texts cut their last round short
    length_influence: Floats  # [prompts] of each prompt on log length
    reached: Floats  # [K, prompts] rounds in which verification reached a position
    accepted: Floats  # [K, prompts] rounds in which its proposal was accepted
    proposing_rounds: float
    proposed_tokens: float
    accepted_tokens: float

    @property
    def rate(self) -> float | None:
        """Of what was proposed; None where nothing was."""
        return self.accepted_tokens / self.proposed_tokens if self.proposed_tokens else None

    @property
    def conditional_rates(self) -> list[float | None]:
        """By position; None where it was never reached."""
        return _rates(self.accepted.sum(1), self.reached.sum(1))

    @property
    def cumulative_rates(self) -> list[float | None]:
        """By position, of all rounds that proposed anything."""
        return _rates(self.accepted.sum(1), np.full(len(self.accepted), self.proposing_rounds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How log speed-up moves with what it was taken from."""

    prompts: Floats  # [prompts] influence of each; their squares sum to its variance
    costs: Floats  # [resamples] change under resampled cost samples
    folds: Floats  # [folds, 2] speed-up under each fifth of the cost samples, and under the rest, over that of all

    @property
    def prompt_error(self) -> float:
        """Standard error of log speed-up for the prompts' sake."""
        return stats.root_sum_square(self.prompts)

    @property
    def log_error(self) -> float:
        """Cost samples included."""
        return float(np.hypot(self.prompt_error, np.std(self.costs)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One choice at one load: what a round emits, what it costs, and the speed-up that follows."""

    choice: Choice
    load: Load
    evidence: DraftEvidence
    costs: RoundCosts
    speedup: stats.Interval
    acceptance: Acceptance
    round: RoundTimes
    texts: RowCounts  # [prompts]
    spread: Spread

    @property
    def draft(self) -> str:
        """The SPEC."""
        return self.evidence.draft.spec

    @property
    def temperature(self) -> float:
        """Of its choice."""
        return self.choice.temperature

    @property
    def num_speculative_tokens(self) -> int:
        """K of its choice."""
        return self.choice.num_speculative_tokens

    @property
    def seconds(self) -> Floats:  # [prompts]
        """What the rounds of each text take."""
        return self.costs.seconds(self.texts)

    @property
    def effective_prompts(self) -> float:
        """How many equally long prompts would say as much."""
        return stats.effective_prompts(self.texts.rounds)


def fit_settings(profile: Profile, cells: CostCells, loads: Sequence[Load] = ()) -> list[Setting]:
    """Every draft × temperature × load × K, by default at the main load, by what was profiled alone.

    Raises: InsufficientDataError: no rounds.
    """
    counted = [replayed(evidence) for evidence in profiled_evidence(profile)]
    return priced_settings(counted, cells, profile.manifest.settings, loads)


def require_measured(temperature: float, measured: Sequence[float], remedy: str = "give one of these") -> None:
    """Raises: ConfigError naming those that were."""
    if temperature not in measured:
        known = ", ".join(f"{t:g}" for t in sorted(measured))
        raise ConfigError(f"temperature {temperature:g} was not measured; {known} were", remedy)


def priced_settings(
    counted: Sequence[Counts], cells: CostCells, measured: Settings, loads: Sequence[Load] = ()
) -> list[Setting]:
    """Replayed rounds of each draft and temperature at the costs of each load."""
    settings: list[Setting] = []
    for counts in counted:
        for load in loads or measured.loads[:1]:
            where = (cells, counts.evidence.draft, counts.evidence.temperature == 0.0, measured, load)
            costs, folds = round_costs(*where), [round_costs(*where, 0), round_costs(*where, 1)]
            settings += [_setting(counts, k, load, costs, folds) for k in range(1, measured.max_k + 1)]
    return settings


def _setting(counts: Counts, k: int, load: Load, costs: RoundCosts, folds: Sequence[RoundCosts]) -> Setting:
    evidence, rows = counts.evidence, RowCounts.of(counts.clock, counts.emitted, k - 1, k)
    speedup, spread = speedup_with_spread(rows, costs, folds)
    return Setting(
        choice=Choice(evidence.draft.spec, chain(k), evidence.temperature),
        load=load,
        evidence=evidence,
        costs=costs,
        speedup=speedup,
        acceptance=_acceptance(counts.per_round, rows, k),
        round=costs.times(rows),
        texts=rows,
        spread=spread,
    )


def repriced(setting: Setting, costs: RoundCosts, folds: Sequence[RoundCosts]) -> Setting:
    """The same rounds at other costs."""
    speedup, spread = speedup_with_spread(setting.texts, costs, folds)
    return replace(setting, costs=costs, speedup=speedup, spread=spread, round=costs.times(setting.texts))


def speedup_with_spread(
    rows: RowCounts, costs: RoundCosts, folds: Sequence[RoundCosts]
) -> tuple[stats.Interval, Spread]:
    """Speed-up over plain decoding, pooled over texts, with the interval that prompts and cost samples give it."""
    draws = costs.log_speedups(rows)
    point, prompts = float(np.exp(draws[0])), stats.log_ratio_influence(rows.emitted, costs.seconds(rows))
    sides = np.stack([np.exp(side.log_speedups(rows)) / point for side in folds], axis=1)
    spread = Spread(prompts=prompts, costs=draws[1:] - draws[0], folds=sides)
    return stats.log_t_interval(point, spread.log_error, stats.effective_prompts(rows.rounds)), spread


def _acceptance(counted: Replay, rows: RowCounts, k: int) -> Acceptance:
    emitted, rounds, accepted = (values[k - 1] for values in (counted.emitted, counted.rounds, counted.accepted))
    return Acceptance(
        length=stats.log_ratio_interval(emitted, rounds),
        clock_length=float(rows.emitted.sum()) / float(rows.rounds.sum()),
        length_influence=stats.log_ratio_influence(emitted, rounds),
        reached=counted.reached[k - 1, :k],
        accepted=accepted[:k],
        proposing_rounds=float(counted.rounds_by_shape[k - 1, 1:].sum()),
        proposed_tokens=float(counted.proposed[k - 1].sum()),
        accepted_tokens=float(accepted.sum()),
    )


def _rates(accepted: Floats, chances: Floats) -> list[float | None]:
    return [float(a / c) if c > 0 else None for a, c in zip(accepted, chances, strict=True)]
