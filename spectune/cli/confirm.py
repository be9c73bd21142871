"""`spectune confirm`."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from spectune.cli.options import K_NAMES, argument, flag, option
from spectune.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spectune.choice import Choice
    from spectune.decide.fit import Setting
    from spectune.profile.store import Profile


def confirm(
    directory: Annotated[Path, argument("DIR", "Directory of a profile; the result joins it.")],
    draft: Annotated[
        list[str] | None, option("SPEC", "Draft to decode with. Repeatable. Default: the best at each temperature.")
    ] = None,
    temperature: Annotated[
        list[float] | None, option("T", "Measured temperature. Repeatable. Default: all of them.")
    ] = None,
    num_speculative_tokens: Annotated[
        list[int] | None, option("K", "K, in tokens. Repeatable. Default: 1, 2, 4, 8, chosen.", *K_NAMES)
    ] = None,
    chosen_only: Annotated[bool, flag("Decode with the chosen K only.", "--chosen-only")] = False,
    prompts: Annotated[int | None, option("N", "Held-out prompts to decode. Default: all of them.")] = None,
    max_new_tokens: Annotated[
        int | None, option("N", "Length of each text, in tokens. Default and at most: as recorded.")
    ] = None,
    seed: Annotated[int, option("S", "Seed of every random choice.")] = 0,
    workload: Annotated[
        str | None, option("W", "Where the prompts of a profile without text are. Default: where they were.")
    ] = None,
    trust_remote_code: Annotated[bool, flag("Run code that comes with a checkpoint.", "--trust-remote-code")] = False,
    dry_run: Annotated[bool, flag("Only tell how long it will take.", "--dry-run")] = False,
    as_json: Annotated[bool, flag("Print predicted, replayed and measured as JSON.", "--json")] = False,
) -> None:
    """Decode held-out prompts for real, plainly and speculatively by turns, and hold predictions against the clock."""
    from dataclasses import asdict

    from spectune.cli.terminal import TerminalProgress, show_confirmation
    from spectune.decide.confirmation import confirmation
    from spectune.decide.decoded import decoded_run
    from spectune.decide.fit import fit_settings
    from spectune.decide.selection import trials
    from spectune.profile.costs import CostCells
    from spectune.profile.store import load_profile

    profile = load_profile(directory)
    fitted = fit_settings(profile, CostCells.of(profile.costs))
    recorded = profile.manifest.settings.max_new_tokens
    length = recorded if max_new_tokens is None else max_new_tokens
    if chosen_only and num_speculative_tokens:
        raise ConfigError("--chosen-only and -k exclude each other", "give one of them")
    _check(length, recorded, prompts, seed)
    chosen = trials(profile, fitted, draft or [], temperature or [], num_speculative_tokens or [], chosen_only)
    if dry_run:
        _tell(profile, fitted, chosen, prompts, length)
        return
    from spectune.measure.confirm import ConfirmRequest, confirm_profile

    request = ConfirmRequest(
        directory=directory,
        trials=chosen,
        prompts=prompts,
        max_new_tokens=length,
        seed=seed,
        command=shlex.join(["spectune", *sys.argv[1:]]),
        trust_remote_code=trust_remote_code,
        workload=workload,
    )
    with TerminalProgress() as progress:
        saved = confirm_profile(profile, request, progress)
    decoded = decoded_run(saved, fitted)
    assert decoded is not None, "it was just saved"
    confirmed = confirmation(saved, decoded, fitted)
    if as_json:
        print(json.dumps(asdict(confirmed), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        show_confirmation(confirmed)


def _tell(
    profile: "Profile", fitted: "Sequence[Setting]", chosen: "Sequence[Choice]", prompts: int | None, length: int
) -> None:
    """The estimate, on stdout."""
    from spectune.choice import plain
    from spectune.cli.terminal import show_seconds
    from spectune.measure.environment import other_work
    from spectune.measure.estimate import estimate_confirm

    token_s: dict[Choice, float] = {}
    for setting in fitted:
        if setting.choice in chosen:
            token_s[plain(setting.temperature)] = setting.round.plain_s
            token_s[setting.choice] = setting.round.plain_s / setting.speedup.estimate
    count = min(prompts or profile.held_out.num_rows, profile.held_out.num_rows)
    show_seconds(estimate_confirm(profile, token_s, count, length))
    if line := other_work():
        print(line)


def _check(length: int, recorded: int, prompts: int | None, seed: int) -> None:
    if not 1 <= length <= recorded:
        problem = f"--max-new-tokens is {length}; the profile recorded {recorded} tokens of each text"
        raise ConfigError(problem, f"give 1 to {recorded}, or profile with more")
    if prompts is not None and prompts < 1:
        raise ConfigError(f"--prompts is {prompts}", "give a whole number of at least 1")
    if seed < 0:
        raise ConfigError(f"--seed is {seed}", "give a whole number of at least 0")
