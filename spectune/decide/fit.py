"""Profile → fitted settings: acceptance by replay, round times from measured cells, both with their spread."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pyarrow as pa

from spectune.decide.round_costs import RoundCosts, folded_round_costs, round_costs
from spectune.drafting_spec import AcceptanceRule
from spectune.errors import ConfigError, InsufficientDataError
from spectune.profile.costs import CostCells
from spectune.profile.manifest import DraftRecord, Load
from spectune.profile.store import Profile
from spectune.profile.tables import integers, labels, padded, rows_at, rows_where
from spectune.replay import (
    Floats,
    Replay,
    Walk,
    accept_probabilities_block,
    accept_probabilities_exact_match,
    accept_probabilities_rejection,
    count_rounds,
    rounds_variance,
    shifted,
    walk,
)
from spectune.stats import Interval, effective_prompts, log_ratio_influence, log_t_interval

_ROWS_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One draft, K, temperature and load: what a round emits, what it costs, and the speed-up that follows."""

    draft: str
    method: str
    num_speculative_tokens: int
    temperature: float
    load: Load
    speedup: Interval
    acceptance_length: Interval  # per complete round; over all rounds where no text is long enough for one
    clock_acceptance_length: float  # tokens over rounds as a clock sees them: ended texts cut their last round short
    plain_s: float
    draft_s: float  # mean over rounds, as are the next three
    verify_s: float
    overhead_s: float
    round_s: float
    effective_prompts: float
    categories: np.ndarray  # [prompts]
    emitted: Floats  # [prompts]
    rounds: Floats  # [prompts]
    seconds: Floats  # [prompts] that the rounds take
    prompt_influence: Floats  # [prompts] of each prompt on log speed-up; their squares sum to its variance
    cost_influence: Floats  # [resamples] change of log speed-up under resampled cost samples
    fold_factors: (
        Floats  # [folds, 2] speed-up under each fifth of the cost samples, and under the rest, over that of all
    )
    log_length_influence: Floats  # [prompts] of each prompt on log acceptance length
    proposed: float
    accepted: float
    conditional_acceptance_rate: list[float | None]  # by position; None where it was never reached
    cumulative_acceptance_rate: list[float | None]

    @property
    def log_error(self) -> float:
        """Standard error of log speed-up, prompts and cost samples included."""
        return float(np.hypot(np.sqrt(np.sum(self.prompt_influence**2)), np.std(self.cost_influence)))


def fit_settings(profile: Profile, cells: CostCells, loads: Sequence[Load] = ()) -> list[Setting]:
    """Every draft × temperature × load × K, in that order; by default at the main load only.

    Raises: InsufficientDataError where no round was recorded.
    """
    settings: list[Setting] = []
    main, max_k = profile.main_load, profile.manifest.settings.max_k
    for draft, temperature in product(profile.manifest.drafts, profile.manifest.settings.temperatures):
        counts = replayed(profile, draft, temperature, draft.drafting.rule)
        if not counts.clock.rounds.sum() > 0:
            problem = f"no continuation at T = {temperature:g} is longer than K = {max_k}"
            raise InsufficientDataError(problem, "profile with a larger --max-new-tokens or a smaller --max-k")
        for load in loads or [main]:
            where = (cells, draft, temperature == 0.0, load, main, max_k)
            spread, folds = round_costs(*where), folded_round_costs(*where)
            settings += [_setting(draft, temperature, load, k, counts, spread, folds) for k in range(1, max_k + 1)]
    return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Replayed rounds of one draft at one temperature; rows in tape order."""

    complete: Replay  # rounds that start at least max_k before the recorded end: one window for all K
    clock: Replay  # what the speed-up rests on: ended texts in full, cut ones as above
    clock_emitted: Floats  # [K, rows] tokens that these rounds leave in the text
    categories: np.ndarray  # [rows]


def replayed(
    profile: Profile, draft: DraftRecord, temperature: float, rule: AcceptanceRule, depths: Sequence[int] = ()
) -> Counts:
    """Counts under an acceptance rule for each K, by default all; in chunks of rows so that memory stays small."""
    tape = rows_where(profile.tape, temperature=temperature)
    max_k = profile.manifest.settings.max_k
    written = integers(tape["tokens"])
    window = np.maximum(written - max_k, 0)
    ended = labels(tape["end"]) != "cut"
    complete, clock = [], []
    for rows, walked in walks(profile, tape, profile.acceptance, draft, rule, depths):
        complete.append(count_rounds(walked, window[rows]))
        whole = np.where(ended[rows], written[rows], window[rows])
        clock.append(count_rounds(walked, whole) if ended[rows].any() else complete[-1])
    counted = _joined(clock)
    return Counts(
        complete=_joined(complete),
        clock=counted,
        clock_emitted=np.where(ended, written, counted.emitted),
        categories=labels(tape["category"]),
    )


def walks(
    profile: Profile,
    tape: pa.Table,
    acceptance: pa.Table,
    draft: DraftRecord,
    rule: AcceptanceRule,
    depths: Sequence[int] = (),
) -> Iterator[tuple[slice, Walk]]:
    """Round starts along the rows of a tape at one temperature, some rows at a time."""
    evidence = rows_where(acceptance, draft=draft.spec)
    place = {continuation: row for row, continuation in enumerate(evidence["continuation"].to_pylist())}
    evidence = rows_at(evidence, np.array([place[continuation] for continuation in tape["continuation"].to_pylist()]))
    width = max(depths, default=profile.manifest.settings.max_k)
    for first in range(0, tape.num_rows, _ROWS_AT_ONCE):
        mine, found = (table.slice(first, _ROWS_AT_ONCE) for table in (tape, evidence))
        yield slice(first, first + _ROWS_AT_ONCE), _walk(mine, found, draft, rule, width, depths)


def _walk(
    tape: pa.Table,
    evidence: pa.Table,
    draft: DraftRecord,
    rule: AcceptanceRule,
    max_k: int,
    depths: Sequence[int],
) -> Walk:
    if draft.drafting.evidence == "start":
        matched, proposed = (padded(evidence[name]) for name in ("matched_tokens", "proposed_tokens"))
        accept = (np.arange(max_k)[None, :, None] < matched[:, None, :]).astype(np.float64)
        return walk(accept, proposed.astype(np.int64), depths=depths)
    return walk(_draft_model_accepts(tape, evidence, rule, max_k), depths=depths)


def _draft_model_accepts(tape: pa.Table, evidence: pa.Table, rule: AcceptanceRule, max_k: int) -> Floats:
    if rule == "greedy_draft" or tape["temperature"][0].as_py() == 0.0:
        return shifted(padded(evidence["argmax_hits"]), max_k)
    target, draft = padded(tape["logprobs"]), padded(evidence["draft_logprobs"], -np.inf)
    if rule == "exact_match":
        return shifted(accept_probabilities_exact_match(draft), max_k)
    if rule == "block":
        return accept_probabilities_block(target, draft, max_k)
    return shifted(accept_probabilities_rejection(target, draft), max_k)


def whole_texts(
    profile: Profile,
    tape: pa.Table,
    acceptance: pa.Table,
    draft: DraftRecord,
    temperature: float,
    num_speculative_tokens: int,
    limit_tokens: int,
) -> tuple["RowCounts", Floats]:
    """What a run sees that ends each text where the tape or the limit does, its last round cut short.

    Also [rows] the variance of a text's rounds, given the text.
    """
    mine = rows_where(tape, temperature=temperature)
    kept = np.minimum(integers(mine["tokens"]), limit_tokens)
    counted, variances, k = [], [], num_speculative_tokens
    for rows, walked in walks(profile, mine, acceptance, draft, draft.drafting.rule, [k]):
        counted.append(count_rounds(walked, kept[rows]))
        variances.append(rounds_variance(walked, kept[rows], k))
    return RowCounts.of(_joined(counted), kept.astype(np.float64), 0, k), np.concatenate(variances)


def _joined(parts: Sequence[Replay]) -> Replay:
    """Chunks side by side, without the starts."""
    names = ("rounds", "emitted", "reached", "accepted", "proposed", "rounds_by_length")
    fields = {name: np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in names}
    return Replay(**fields, starts=np.empty((0, 0, 0)))


def acceptance_lengths_by_rule(
    profile: Profile, draft_spec: str, temperature: float, num_speculative_tokens: int
) -> dict[str, float]:
    """τ under every acceptance rule that the draft's evidence can price, over complete rounds."""
    draft = draft_record(profile, draft_spec)
    rules: list[AcceptanceRule] = ["greedy_draft"]
    if draft.drafting.rule != "greedy_draft":
        rules += ["rejection", "exact_match", "block"]
    found: dict[str, float] = {}
    for rule in rules:
        if temperature == 0.0 and found:  # a greedy target makes all rules one
            found[rule] = found["greedy_draft"]
            continue
        counts = replayed(profile, draft, temperature, rule, [num_speculative_tokens])
        complete = counts.complete if counts.complete.rounds.sum() > 0 else counts.clock
        found[rule] = float(complete.emitted.sum() / complete.rounds.sum())
    return found


def draft_record(profile: Profile, spec: str) -> DraftRecord:
    """The draft of that SPEC. Raises: ConfigError naming those that were profiled."""
    found = next((record for record in profile.manifest.drafts if record.spec == spec), None)
    if found is None:
        known = ", ".join(record.spec for record in profile.manifest.drafts)
        raise ConfigError(f"draft {spec!r} was not profiled; {known} was", f"profile with --draft {spec}")
    return found


def _setting(
    draft: DraftRecord,
    temperature: float,
    load: Load,
    k: int,
    counts: Counts,
    costs: RoundCosts,
    folds: Sequence[RoundCosts],
) -> Setting:
    place = k - 1
    complete = counts.complete if counts.complete.rounds.sum() > 0 else counts.clock  # texts too short for one
    clock = RowCounts.of(counts.clock, counts.clock_emitted, place, k)
    rounds = float(clock.rounds.sum())
    seconds = clock.seconds(costs)
    draws = clock.log_speedups(costs)
    point = float(np.exp(draws[0]))
    weight = effective_prompts(clock.rounds)
    prompt_influence = log_ratio_influence(clock.emitted, seconds)
    cost_influence = draws[1:] - draws[0]
    error = float(np.hypot(np.sqrt(np.sum(prompt_influence**2)), np.std(cost_influence)))
    length = float(complete.emitted[place].sum() / complete.rounds[place].sum())
    length_influence = log_ratio_influence(complete.emitted[place], complete.rounds[place])
    length_error = float(np.sqrt(np.sum(length_influence**2)))
    shares, filled = clock.by_length.sum(1) / rounds, clock.filled.sum() / rounds
    return Setting(
        draft=draft.spec,
        method=draft.method,
        num_speculative_tokens=k,
        temperature=temperature,
        load=load,
        speedup=log_t_interval(point, error, weight),
        acceptance_length=log_t_interval(length, length_error, effective_prompts(complete.rounds[place])),
        clock_acceptance_length=float(clock.emitted.sum()) / rounds,
        plain_s=float(costs.plain_s[0]),
        draft_s=float(costs.draft_s[0] @ shares + costs.catch_up_s[0] * filled),
        verify_s=float(costs.verify_s[0] @ shares),
        overhead_s=float(costs.overhead_s[0] @ shares),
        round_s=float(seconds.sum()) / rounds,
        effective_prompts=weight,
        categories=counts.categories,
        emitted=clock.emitted,
        rounds=clock.rounds,
        seconds=seconds,
        prompt_influence=prompt_influence,
        cost_influence=cost_influence,
        fold_factors=np.stack([np.exp(clock.log_speedups(side)) / point for side in folds], axis=1),
        log_length_influence=length_influence,
        proposed=float(complete.proposed[place].sum()),
        accepted=float(complete.accepted[place].sum()),
        conditional_acceptance_rate=_rates(complete.accepted[place, :k].sum(1), complete.reached[place, :k].sum(1)),
        cumulative_acceptance_rate=_rates(
            complete.accepted[place, :k].sum(1), np.full(k, complete.rounds_by_length[place, 1:].sum())
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """What a number of texts take at one K, a value for each text."""

    emitted: Floats  # [rows]
    rounds: Floats  # [rows]
    by_length: Floats  # [up to max_k + 1, rows] rounds by how many tokens were proposed
    filled: Floats  # [rows] rounds whose K proposals were all accepted

    @staticmethod
    def of(counted: Replay, emitted: Floats, place: int, k: int) -> "RowCounts":
        """The rows of a replay at K = k, which is at `place` of its depths; `emitted` is [depths, rows] or [rows]."""
        return RowCounts(
            emitted=np.broadcast_to(emitted, counted.rounds.shape)[place],
            rounds=counted.rounds[place],
            by_length=counted.rounds_by_length[place],
            filled=counted.accepted[place, k - 1],
        )

    def seconds(self, costs: RoundCosts) -> Floats:
        """[rows] at the point estimates of the costs."""
        round_s = costs.round_s[0, : len(self.by_length)]
        return np.asarray(round_s @ self.by_length + costs.catch_up_s[0] * self.filled)

    def log_speedups(self, costs: RoundCosts) -> Floats:
        """[draws] log of pooled speed-up, for each draw of the costs."""
        round_s = costs.round_s[:, : len(self.by_length)]
        totals = round_s @ self.by_length.sum(1) + costs.catch_up_s * self.filled.sum()
        return np.asarray(np.log(self.emitted.sum() * costs.plain_s / totals))


def _rates(accepted: Floats, chances: Floats) -> list[float | None]:
    return [float(a / c) if c > 0 else None for a, c in zip(accepted, chances, strict=True)]
