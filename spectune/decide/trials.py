"""What a confirming run decodes with: the drafts and K that are named, or the best of them beside the usual K."""

from collections.abc import Sequence

from spectune.choice import Choice, chain
from spectune.decide.evidence import draft_record
from spectune.decide.fit import Setting
from spectune.decide.selection import choose
from spectune.drafting_spec import draft_spec
from spectune.errors import ConfigError
from spectune.profile.store import Profile

_USUAL = (1, 2, 4, 8)


def trials(
    profile: Profile,
    fitted_settings: Sequence[Setting],
    drafts: Sequence[str] = (),
    temperatures: Sequence[float] = (),
    depths: Sequence[int] = (),
    chosen_only: bool = False,
) -> list[Choice]:
    """By default the best draft at each temperature, with the usual K and the chosen one, or the latter only.

    Raises: ConfigError for what was not measured.
    """
    _require_measured(profile, temperatures, depths)
    specs = [draft_record(profile, draft_spec(spec).text).spec for spec in drafts]
    choices = []
    for temperature in temperatures or sorted(profile.manifest.settings.temperatures):
        here = [setting for setting in fitted_settings if setting.temperature == temperature]
        for spec in specs or [choose(here).draft]:
            best = choose([setting for setting in here if setting.draft == spec]).num_speculative_tokens
            usual = [] if chosen_only else [k for k in _USUAL if k <= profile.manifest.settings.max_k]
            choices += [Choice(spec, chain(k), temperature) for k in depths or sorted({*usual, best})]
    return list(dict.fromkeys(choices))


def _require_measured(profile: Profile, temperatures: Sequence[float], depths: Sequence[int]) -> None:
    measured, longest = sorted(profile.manifest.settings.temperatures), profile.manifest.settings.max_k
    for temperature in temperatures:
        if temperature not in measured:
            known = ", ".join(f"{t:g}" for t in measured)
            raise ConfigError(f"temperature {temperature:g} was not measured; {known} were", "give one of these")
    for depth in depths:
        if not 1 <= depth <= longest:
            raise ConfigError(f"K = {depth} was not measured", f"give 1 to {longest}")
