"""Profile → fitted settings: acceptance by replay, round times from measured cells, both with their spread."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spectune.errors import InsufficientDataError, ProfileError
from spectune.profile import DraftRecord, Profile
from spectune.replay import (
    AcceptanceRule,
    Floats,
    Ints,
    Replay,
    accept_probabilities_block,
    accept_probabilities_exact_match,
    accept_probabilities_rejection,
    replay,
    shifted,
)
from spectune.speedup import expected_tokens, fitted_alpha
from spectune.stats import Interval, effective_prompts, log_ratio_standard_error, log_t_interval

OWN_RULE: dict[str, AcceptanceRule] = {"draft_model": "rejection", "ngram": "greedy_draft"}
_RESAMPLES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """Seconds, point estimate first, then one value for each resample of the measurement passes."""

    plain_s: Floats  # [1 + resamples]
    draft_s: Floats  # [1 + resamples, max_k + 1] drafting k tokens
    verify_s: Floats  # [1 + resamples, max_k + 1] target forward over k + 1 tokens
    overhead_s: Floats  # [1 + resamples, max_k + 1] the loop around them
    catch_up_s: Floats  # [1 + resamples] extra draft time after a round whose proposals were all accepted

    @property
    def round_s(self) -> Floats:
        """Seconds of a round that proposes k tokens, [1 + resamples, max_k + 1]."""
        return self.draft_s + self.verify_s + self.overhead_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One draft, K and temperature: what a round emits, what it costs, and the speed-up that follows."""

    draft: str
    method: str
    num_speculative_tokens: int
    temperature: float
    speedup: Interval
    acceptance_length: Interval
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
    proposed: float
    accepted: float
    conditional_acceptance_rate: list[float | None]  # by position; None where it was never reached
    cumulative_acceptance_rate: list[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormulaFit:
    """The α of (1 − α^(K+1))/(1 − α) fitted to τ(K) over all K, and how far the formula is then off."""

    draft: str
    temperature: float
    alpha: float
    largest_error: float  # relative, over K


def fit_settings(profile: Profile) -> list[Setting]:
    """Every draft × temperature × K of the profile, in that order."""
    settings: list[Setting] = []
    for draft, temperature in _parts(profile):
        counts = replayed(profile, draft, temperature, OWN_RULE[draft.method])
        if not counts.rounds.sum() > 0:
            problem = f"no continuation at T = {temperature:g} is longer than K = {profile.manifest.settings.max_k}"
            raise InsufficientDataError(problem, "profile with a larger --max-new-tokens or a smaller --max-k")
        costs = round_costs(profile, draft, temperature)
        categories = _rows(profile, temperature)["category"].to_numpy()
        settings += [
            _setting(draft, temperature, k, counts, costs, categories)
            for k in range(1, profile.manifest.settings.max_k + 1)
        ]
    return settings


def fit_formula(settings: list[Setting]) -> list[FormulaFit]:
    """One fit for each draft and temperature; drafts that nothing is accepted of fit α = 0."""
    groups: dict[tuple[str, float], dict[int, float]] = {}
    for setting in settings:
        group = groups.setdefault((setting.draft, setting.temperature), {})
        group[setting.num_speculative_tokens] = setting.acceptance_length.estimate
    fits = []
    for (draft, temperature), lengths in groups.items():
        alpha = fitted_alpha(lengths)
        error = max(abs(expected_tokens(alpha, k) / length - 1) for k, length in lengths.items())
        fits.append(FormulaFit(draft=draft, temperature=temperature, alpha=alpha, largest_error=error))
    return fits


def acceptance_lengths_by_rule(
    profile: Profile, draft_spec: str, temperature: float, num_speculative_tokens: int
) -> dict[str, float]:
    """τ under every acceptance rule that the draft's evidence can price."""
    draft = next(record for record in profile.manifest.drafts if record.spec == draft_spec)
    rules: list[AcceptanceRule] = ["greedy_draft"]
    if draft.method == "draft_model":
        rules += ["rejection", "exact_match", "block"]
    found: dict[str, float] = {}
    for rule in rules:
        counts = replayed(profile, draft, temperature, rule)
        k = num_speculative_tokens - 1
        found[rule] = float(counts.emitted[k].sum() / counts.rounds[k].sum())
    return found


def replayed(profile: Profile, draft: DraftRecord, temperature: float, rule: AcceptanceRule) -> Replay:
    """Counts over complete rounds, one window for all K; rows in tape order."""
    tape = _rows(profile, temperature)
    evidence = profile.acceptance[profile.acceptance["draft"] == draft.spec].set_index("continuation")
    evidence = evidence.loc[tape["continuation"]]
    max_k = profile.manifest.settings.max_k
    lengths = tape["token_ids"].map(len).to_numpy()
    if draft.method == "ngram":
        matched, proposed = (_padded(evidence[name]) for name in ("matched_tokens", "proposed_tokens"))
        accept = (np.arange(max_k)[None, :, None] < matched[:, None, :]).astype(np.float64)
        made: Ints | None = proposed.astype(np.int64)
    else:
        accept, made = _draft_model_accepts(tape, evidence, temperature, rule, max_k), None
    return replay(accept, np.maximum(lengths - max_k, 0), made)


def _draft_model_accepts(
    tape: pd.DataFrame, evidence: pd.DataFrame, temperature: float, rule: AcceptanceRule, max_k: int
) -> Floats:
    if rule == "greedy_draft" or temperature == 0.0:
        greedy = _padded(evidence["argmax_token_ids"], -1) == _padded(tape["token_ids"], -2)
        return shifted(greedy.astype(np.float64), max_k)
    target, draft = _padded(tape["logprobs"]), _padded(evidence["draft_logprobs"], -np.inf)
    if rule == "exact_match":
        return shifted(accept_probabilities_exact_match(draft), max_k)
    if rule == "block":
        return accept_probabilities_block(target, draft, max_k)
    return shifted(accept_probabilities_rejection(target, draft), max_k)


def round_costs(profile: Profile, draft: DraftRecord, temperature: float) -> RoundCosts:
    """Times of a round of k = 0..max_k proposals. Verify uses the measured cell of its own n; the loop's
    overhead is interpolated between the depths it was measured at. Raises: ProfileError where a cell is missing.
    """
    max_k = profile.manifest.settings.max_k
    cells = _Cells(profile.costs)
    verify = np.stack([cells.seconds("cost_p", n) for n in range(1, max_k + 2)], axis=1)
    plain_overhead = cells.seconds("overhead", 0, temperature=temperature)
    depths = sorted(cells.depths(draft.spec))
    knots = [plain_overhead, *(cells.seconds("overhead", k, draft.spec, temperature) for k in depths)]
    overhead = np.stack([np.interp(np.arange(max_k + 1), [0, *depths], row) for row in np.stack(knots, axis=1)])
    step = cells.seconds("cost_q", 1, draft.spec)
    if draft.method == "ngram":  # one lookup a round, whatever it finds
        draft_s, catch_up = np.repeat(step[:, None], max_k + 1, axis=1), np.zeros_like(step)
    else:
        draft_s = step[:, None] * np.arange(max_k + 1)
        catch_up = cells.seconds("cost_q", 2, draft.spec) - step
    return RoundCosts(
        plain_s=verify[:, 0] + plain_overhead,
        draft_s=draft_s,
        verify_s=verify,
        overhead_s=overhead,
        catch_up_s=catch_up,
    )


class _Cells:
    """Median seconds of a cell, and the medians of the same resampled passes for every cell."""

    def __init__(self, costs: pd.DataFrame) -> None:
        self._costs = costs
        passes = costs["measurement_pass"].nunique()
        draws = np.random.default_rng(0).integers(passes, size=(_RESAMPLES, passes))
        self._passes = np.concatenate([np.full((1, passes), -1), draws])
        self._passes[0] = np.arange(passes)

    def seconds(self, part: str, tokens: int, draft: str | None = None, temperature: float | None = None) -> Floats:
        """[1 + resamples]; T > 0 stands for every T > 0, since the transform is the same."""
        rows = self._costs[(self._costs["part"] == part) & (self._costs["tokens"] == tokens)]
        rows = rows[rows["draft"].isna() if draft is None else rows["draft"] == draft]
        if temperature is not None:
            rows = rows[(rows["temperature"] == 0.0) == (temperature == 0.0)]
        samples = rows.sort_values("measurement_pass")["seconds"].to_numpy()
        if len(samples) != self._passes.shape[1]:
            what = f"{part} at {tokens} tokens{f' for {draft}' if draft else ''}"
            raise ProfileError(f"the profile's costs lack {what}", "run spectune profile again")
        medians: Floats = np.median(samples[self._passes], axis=1)
        return medians

    def depths(self, draft: str) -> set[int]:
        """The K that the loop's overhead was measured at."""
        rows = self._costs[(self._costs["part"] == "overhead") & (self._costs["draft"] == draft)]
        return set(rows["tokens"])


def _parts(profile: Profile) -> Iterator[tuple[DraftRecord, float]]:
    for draft in profile.manifest.drafts:
        for temperature in profile.manifest.settings.temperatures:
            yield draft, temperature


def _rows(profile: Profile, temperature: float) -> pd.DataFrame:
    return profile.tape[profile.tape["temperature"] == temperature]


def _padded(column: pd.Series, fill: float = 0.0) -> Floats:
    """Lists of different length as [longest, rows]."""
    lengths = column.map(len).to_numpy()
    padded = np.full((int(lengths.max(initial=0)), len(column)), fill)
    inside = np.arange(len(padded))[None, :] < lengths[:, None]
    padded.T[inside] = np.concatenate(column.to_list())
    return padded


def _setting(
    draft: DraftRecord,
    temperature: float,
    k: int,
    counts: Replay,
    costs: RoundCosts,
    categories: np.ndarray,
) -> Setting:
    place = k - 1
    rounds, emitted, by_length = counts.rounds[place], counts.emitted[place], counts.rounds_by_length[place]
    complete = counts.accepted[place, k - 1]
    seconds = costs.round_s[0] @ by_length + costs.catch_up_s[0] * complete
    totals = costs.round_s @ by_length.sum(1) + costs.catch_up_s * complete.sum()
    point = float(emitted.sum() * costs.plain_s[0] / totals[0])
    cost_error = float(np.std(np.log(costs.plain_s[1:] / totals[1:])))
    weight = effective_prompts(rounds)
    error = float(np.hypot(log_ratio_standard_error(emitted, seconds), cost_error))
    length_error = log_ratio_standard_error(emitted, rounds)
    all_rounds = rounds.sum()
    shares = by_length.sum(1) / all_rounds
    return Setting(
        draft=draft.spec,
        method=draft.method,
        num_speculative_tokens=k,
        temperature=temperature,
        speedup=log_t_interval(point, error, weight),
        acceptance_length=log_t_interval(float(emitted.sum() / all_rounds), length_error, weight),
        plain_s=float(costs.plain_s[0]),
        draft_s=float(costs.draft_s[0] @ shares + costs.catch_up_s[0] * complete.sum() / all_rounds),
        verify_s=float(costs.verify_s[0] @ shares),
        overhead_s=float(costs.overhead_s[0] @ shares),
        round_s=float(totals[0] / all_rounds),
        effective_prompts=weight,
        categories=categories,
        emitted=emitted,
        rounds=rounds,
        seconds=seconds,
        proposed=float(counts.proposed[place].sum()),
        accepted=float(counts.accepted[place].sum()),
        conditional_acceptance_rate=_rates(counts.accepted[place, :k].sum(1), counts.reached[place, :k].sum(1)),
        cumulative_acceptance_rate=_rates(counts.accepted[place, :k].sum(1), np.full(k, by_length[1:].sum())),
    )


def _rates(accepted: Floats, chances: Floats) -> list[float | None]:
    return [float(a / c) if c > 0 else None for a, c in zip(accepted, chances, strict=True)]
