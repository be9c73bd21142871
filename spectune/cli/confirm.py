"""`spectune confirm`."""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spectune.errors import ConfigError

if TYPE_CHECKING:
    from spectune.choice import Choice
    from spectune.decide.fit import Setting
    from spectune.profile.store import Profile

_DEPTHS = (1, 2, 4, 8)


def confirm(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a profile; the result joins it.")],
    draft: Annotated[
        list[str] | None,
        typer.Option(metavar="SPEC", help="Draft to decode with. Repeatable. Default: the best at each temperature."),
    ] = None,
    temperature: Annotated[
        list[float] | None, typer.Option(metavar="T", help="Measured temperature. Repeatable. Default: all of them.")
    ] = None,
    num_speculative_tokens: Annotated[
        list[int] | None,
        typer.Option(
            "--num-speculative-tokens", "-k", metavar="K", help="K, in tokens. Repeatable. Default: 1, 2, 4, 8, chosen."
        ),
    ] = None,
    chosen_only: Annotated[bool, typer.Option("--chosen-only", help="Decode with the chosen K only.")] = False,
    prompts: Annotated[
        int | None, typer.Option(metavar="N", help="Held-out prompts to decode. Default: all of them.")
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Length of each text, in tokens. Default and at most: as recorded."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of every random choice.")] = 0,
    workload: Annotated[
        str | None,
        typer.Option(metavar="W", help="Where the prompts of a profile without text are. Default: where they were."),
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with a checkpoint.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print predicted, replayed and measured as JSON.")] = False,
) -> None:
    """Decode held-out prompts for real, plainly and speculatively by turns, and hold predictions against the clock."""
    from dataclasses import asdict

    from spectune.cli.terminal import TerminalProgress, show_confirmation
    from spectune.decide.confirmation import confirmation
    from spectune.decide.fit import fit_settings
    from spectune.profile.costs import CostCells
    from spectune.profile.store import load_profile

    profile = load_profile(directory)
    cells = CostCells.of(profile.costs)
    fitted = fit_settings(profile, cells)
    recorded = profile.manifest.settings.max_new_tokens
    length = recorded if max_new_tokens is None else max_new_tokens
    if chosen_only and num_speculative_tokens:
        raise ConfigError("--chosen-only and -k exclude each other", "give one of them")
    _check(length, recorded, prompts, seed)
    trials = _trials(profile, fitted, draft, temperature, num_speculative_tokens, chosen_only)
    from spectune.measure.confirm import ConfirmRequest, confirm_profile

    request = ConfirmRequest(
        directory=directory,
        trials=trials,
        prompts=prompts,
        max_new_tokens=length,
        seed=seed,
        command=shlex.join(["spectune", *sys.argv[1:]]),
        trust_remote_code=trust_remote_code,
        workload=workload,
    )
    with TerminalProgress() as progress:
        saved = confirm_profile(profile, request, progress)
    seen = confirmation(saved, cells, fitted)
    assert seen is not None, "it was just saved"
    if as_json:
        print(json.dumps(asdict(seen), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        show_confirmation(seen)


def _check(length: int, recorded: int, prompts: int | None, seed: int) -> None:
    if not 1 <= length <= recorded:
        problem = f"--max-new-tokens is {length}; the profile recorded {recorded} tokens of each text"
        raise ConfigError(problem, f"give 1 to {recorded}, or profile with more")
    if prompts is not None and prompts < 1:
        raise ConfigError(f"--prompts is {prompts}", "give a whole number of at least 1")
    if seed < 0:
        raise ConfigError(f"--seed is {seed}", "give a whole number of at least 0")


def _trials(
    profile: "Profile",
    fitted: Sequence["Setting"],
    drafts: list[str] | None,
    temperatures: list[float] | None,
    depths: list[int] | None,
    chosen_only: bool,
) -> list["Choice"]:
    """What to decode with: the given drafts and K, or the best draft with the usual K, at each temperature."""
    from spectune.decide.fit import draft_record
    from spectune.decide.selection import choose
    from spectune.drafting_spec import draft_spec

    settings, measured = profile.manifest.settings, sorted(profile.manifest.settings.temperatures)
    for temperature in temperatures or []:
        if temperature not in measured:
            known = ", ".join(f"{t:g}" for t in measured)
            raise ConfigError(f"temperature {temperature:g} was not measured; {known} were", "give one of these")
    for depth in depths or []:
        if not 1 <= depth <= settings.max_k:
            raise ConfigError(f"K = {depth} was not measured", f"give 1 to {settings.max_k}")
    wanted = [draft_record(profile, draft_spec(spec).text).spec for spec in drafts or []]
    chosen = {}
    for temperature in temperatures or measured:
        here = [s for s in fitted if s.temperature == temperature]
        for spec in wanted or [choose(here).draft]:
            best = choose([s for s in here if s.draft == spec]).num_speculative_tokens
            usual = [depth for depth in _DEPTHS if depth <= settings.max_k]
            chosen[temperature, spec] = depths or ([best] if chosen_only else sorted({*usual, best}))
    return _as_trials(chosen)


def _as_trials(chosen: dict[tuple[float, str], list[int]]) -> list["Choice"]:
    from spectune.choice import Choice, chain

    return [
        Choice(spec, chain(depth), temperature)
        for (temperature, spec), depths in chosen.items()
        for depth in dict.fromkeys(depths)
    ]
