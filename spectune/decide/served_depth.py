"""Whether the K a server runs is too long, too short or right: its own acceptance, a profile's costs."""

from dataclasses import dataclass, replace
from typing import Literal

from spectune.decide.fit import Setting, draft_record, fit_settings
from spectune.decide.selection import MIN_GAIN, choose
from spectune.errors import ConfigError, InsufficientDataError
from spectune.profile.costs import CostCells
from spectune.profile.store import Profile
from spectune.served.telemetry import Telemetry

_WORTH = 1.01  # times faster; another K must gain what counts


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedDepth:
    """K in use against the best by the profile's costs; speed-ups are over plain decoding there, 1 being plain."""

    verdict: Literal["too long", "too short", "right", "plain is faster"]
    draft: str
    num_speculative_tokens: int
    speedup: float
    best_num_speculative_tokens: int  # 0: plain
    best_speedup: float
    profiled_acceptance_length: float  # at this K, in the profile
    target: str  # whose costs these are, in which engine, on what
    engine: str
    hardware: str


def served_depth(profile: Profile, seen: Telemetry, temperature: float, draft: str | None = None) -> ServedDepth:
    """Beyond the K in use acceptance is not seen: the last position's conditional rate is taken to go on.

    Of drafts that vary in length, the longest is taken for K and rates are over all of them.

    Raises: InsufficientDataError without rates by position; ConfigError for a K that was not measured.
    """
    rates = seen.cumulative_acceptance_rate
    conditional = seen.conditional_acceptance_rate
    if not rates or not conditional:
        raise InsufficientDataError(
            "without acceptance by position K cannot be judged", "give a source that counts by position"
        )
    settings = _settings(profile, temperature, draft)
    k = max(
        len(rates), round(seen.num_draft_tokens / seen.num_drafts) if seen.num_drafts and seen.num_draft_tokens else 0
    )
    if k not in settings:
        raise InsufficientDataError(
            f"the server runs K = {k}, the profile goes up to {max(settings)}", f"profile with --max-k {k}"
        )
    beyond = k - len(rates)  # positions at which nothing was accepted, which some servers leave out
    rates, conditional = [*rates, *[0.0] * beyond], [*conditional, *[0.0] * beyond]
    last = conditional[-1] or 0.0
    reach = [*rates, *(rates[-1] * last**more for more in range(1, max(settings) - k + 1))]
    speedups = {0: 1.0}
    for depth, setting in settings.items():
        speedups[depth] = (1 + sum(reach[:depth])) * setting.plain_s / setting.round_s
    best = max(speedups, key=lambda depth: (speedups[depth], -depth))
    verdict: Literal["too long", "too short", "right", "plain is faster"] = "right"
    if speedups[best] > (_WORTH if best == 0 else MIN_GAIN) * speedups[k]:
        verdict = "plain is faster" if best == 0 else "too long" if best < k else "too short"
    return ServedDepth(
        verdict=verdict,
        draft=settings[k].draft,
        num_speculative_tokens=k,
        speedup=speedups[k],
        best_num_speculative_tokens=best,
        best_speedup=speedups[best],
        profiled_acceptance_length=settings[k].acceptance_length.estimate,
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
        warning = f"{error.problem}; {error.remedy}"
        return replace(telemetry, warnings=[*telemetry.warnings, warning]), None


def _settings(profile: Profile, temperature: float, draft: str | None) -> dict[int, Setting]:
    """By K, at the main load."""
    here = [one for one in fit_settings(profile, CostCells.of(profile.costs)) if one.temperature == temperature]
    if not here:
        known = ", ".join(f"{t:g}" for t in sorted(profile.manifest.settings.temperatures))
        raise ConfigError(f"temperature {temperature:g} was not measured; {known} were", "give one of these")
    spec = choose(here).draft if draft is None else draft_record(profile, draft).spec
    return {one.num_speculative_tokens: one for one in here if one.draft == spec}
