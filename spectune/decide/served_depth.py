"""Whether the K a server runs is too long, too short or right: its own acceptance, a profile's costs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from spectune.decide.evidence import draft_record
from spectune.decide.fit import Setting, fit_settings, require_measured
from spectune.decide.selection import MIN_GAIN, choose
from spectune.errors import InsufficientDataError
from spectune.profile.costs import CostCells
from spectune.profile.store import Profile
from spectune.served.telemetry import Telemetry

Verdict = Literal["too long", "too short", "right", "plain is faster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedDepth:
    """K in use against the best by the profile's costs; speed-ups are over plain decoding there, 1 being plain."""

    verdict: Verdict
    draft: str
    num_speculative_tokens: int
    speedup: float
    best_num_speculative_tokens: int  # 0: plain
    best_speedup: float
    profiled_acceptance_length: float  # at this K, in the profile
    target: str  # whose costs these are, in which engine, on what
    engine: str
    hardware: str


def served_depth(profile: Profile, telemetry: Telemetry, temperature: float, draft: str | None = None) -> ServedDepth:
    """Beyond the K in use the last position's conditional rate is taken to go on; drafts count as the longest.

    Raises: InsufficientDataError without rates by position or at a K that was not measured; ConfigError.
    """
    reached, last = _rates(telemetry)
    settings, k = _settings(profile, temperature, draft), len(reached)
    if k not in settings:
        problem = f"the server runs K = {k}, the profile goes up to {max(settings)}"
        raise InsufficientDataError(problem, f"profile with --max-k {k}")
    reached += [reached[-1] * last**more for more in range(1, max(settings) - k + 1)]
    speedups = {0: 1.0}
    for depth, setting in settings.items():
        speedups[depth] = (1 + sum(reached[:depth])) * setting.round.plain_s / setting.round.round_s
    best = max(speedups, key=lambda depth: (speedups[depth], -depth))
    return ServedDepth(
        verdict=_verdict(speedups, k, best),
        draft=settings[k].draft,
        num_speculative_tokens=k,
        speedup=speedups[k],
        best_num_speculative_tokens=best,
        best_speedup=speedups[best],
        profiled_acceptance_length=settings[k].acceptance.length.estimate,
        target=profile.manifest.target.name,
        engine=profile.manifest.settings.engine,
        hardware=profile.manifest.environment.hardware,
    )


def judged(
    profile: Profile, telemetry: Telemetry, temperature: float, draft: str | None = None
) -> tuple[Telemetry, ServedDepth | None]:
    """The depth served, None where it cannot be judged, and the figures, which then say why.

    Raises: ConfigError as served_depth.
    """
    try:
        return telemetry, served_depth(profile, telemetry, temperature, draft)
    except InsufficientDataError as error:
        return replace(telemetry, warnings=[*telemetry.warnings, f"{error.problem}; {error.remedy}"]), None


def _rates(telemetry: Telemetry) -> tuple[list[float], float]:
    """Cumulative acceptance up to the K in use, and the last conditional rate; 0 where some servers leave it out."""
    cumulative, conditional = telemetry.cumulative_acceptance_rate, telemetry.conditional_acceptance_rate
    if not cumulative or not conditional:
        problem = "without acceptance by position K cannot be judged"
        raise InsufficientDataError(problem, "give a source that counts by position")
    drafts, proposed = telemetry.num_drafts, telemetry.num_draft_tokens
    beyond = max(0, round(proposed / drafts) - len(cumulative)) if drafts and proposed else 0
    return [*cumulative, *[0.0] * beyond], 0.0 if beyond else conditional[-1] or 0.0


def _verdict(speedups: Mapping[int, float], k: int, best: int) -> Verdict:
    if speedups[best] <= (1.01 if best == 0 else MIN_GAIN) * speedups[k]:  # another K must gain what counts
        return "right"
    if best == 0:
        return "plain is faster"
    return "too long" if best < k else "too short"


def _settings(profile: Profile, temperature: float, draft: str | None) -> dict[int, Setting]:
    """By K, at the main load."""
    require_measured(temperature, profile.manifest.settings.temperatures)
    here = [one for one in fit_settings(profile, CostCells.of(profile.costs)) if one.temperature == temperature]
    spec = choose(here).draft if draft is None else draft_record(profile, draft).spec
    return {setting.num_speculative_tokens: setting for setting in here if setting.draft == spec}
