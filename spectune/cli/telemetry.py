"""`spectune telemetry`."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spectune.errors import ConfigError, EngineError, InsufficientDataError, reason_of

if TYPE_CHECKING:
    from spectune.serving import ServedDepth
    from spectune.telemetry import Telemetry

_MOST_BYTES = 1 << 28


def telemetry(
    source: Annotated[
        str, typer.Argument(metavar="URL|FILE", help="A /metrics page, responses as JSON, or a log; - is stdin.")
    ],
    later: Annotated[
        str | None, typer.Argument(metavar="[URL|FILE]", help="The same page later: figures of the time in between.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Profile whose costs tell whether K is too long, too short or right."),
    ] = None,
    draft: Annotated[
        str | None, typer.Option(metavar="SPEC", help="The draft served, of those profiled. Default: the best one.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(metavar="T", help="Temperature whose round times are taken, of those profiled.")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout.")] = False,
) -> int:
    """Read what a server tells of its speculative decoding, old names and new, on the scale of spectune's own figures.

    Exits with 3 where a server cannot be read, with 4 where nothing was drafted or K cannot be judged.
    """
    from dataclasses import asdict, replace

    from spectune.engines.catalogue import read_telemetry

    texts = [_text(one) for one in (source, later) if one is not None]
    try:
        seen = read_telemetry(*reversed(texts))
    except ConfigError as error:
        from spectune.endpoint import is_url

        if any(is_url(one) for one in (source, later or "")):
            raise EngineError(error.problem, error.remedy) from error
        raise
    nothing = seen.num_drafts == 0 or seen.num_draft_tokens == 0
    depth, unjudged = None, None
    if profile and not nothing:
        try:
            depth = _depth(seen, profile, temperature, draft)
        except InsufficientDataError as error:
            unjudged = error
            seen = replace(seen, warnings=[*seen.warnings, f"{error.problem}; {error.remedy}"])
    if as_json:
        result = {**asdict(seen), "depth": depth and asdict(depth)}
        print(json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print(_summary(seen, depth))
    return InsufficientDataError.exit_code if nothing or unjudged else 0


def _text(source: str) -> str:
    from spectune.endpoint import fetched, is_url

    if is_url(source):
        return fetched(source)
    try:
        if source == "-":
            data = sys.stdin.buffer.read(_MOST_BYTES)
        else:
            with Path(source).open("rb") as file:
                data = file.read(_MOST_BYTES)
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {reason_of(error)}", "check the path") from error
    if b"\0" in data:
        raise ConfigError(f"{source} is no text", "give a /metrics page, JSON or a log in UTF-8")
    return data.decode("utf-8", errors="replace")  # logs hold parts of characters


def _depth(seen: "Telemetry", directory: Path, temperature: float, draft: str | None) -> "ServedDepth":
    from spectune.drafting_spec import draft_spec
    from spectune.profile import load_profile
    from spectune.serving import served_depth

    return served_depth(load_profile(directory), seen, temperature, draft and draft_spec(draft).text)


def _summary(seen: "Telemetry", depth: "ServedDepth | None") -> str:
    def shown(value: float | None, form: str) -> str:
        return "not told" if value is None else format(value, form)

    rates = {"cumulative": seen.cumulative_acceptance_rate, "conditional": seen.conditional_acceptance_rate}
    lines = [
        f"{seen.engine}: {shown(seen.acceptance_length, '.2f')} tokens per round, bonus included",
        f"accepted of proposed  {shown(seen.draft_acceptance_rate, '.3f')}",
        *(f"{name:<21} {' '.join(shown(one, '.3f') for one in values)}" for name, values in rates.items() if values),
        f"drafts {shown(seen.num_drafts, ',.0f')}, proposed {shown(seen.num_draft_tokens, ',.0f')}, "
        f"accepted {shown(seen.num_accepted_tokens, ',.0f')}",
        *([_depth_text(depth)] if depth else []),
        *(f"warning: {text}" for text in seen.warnings),
    ]
    return "\n".join(lines)


def _depth_text(depth: "ServedDepth") -> str:
    k, best = depth.num_speculative_tokens, depth.best_num_speculative_tokens
    costs = f"with the profile's costs {depth.speedup:.2f}× over plain decoding"
    if depth.verdict == "right":
        return f"K = {k} is right: {costs}"
    other = "plain decoding is faster" if best == 0 else f"K = {best} would reach {depth.best_speedup:.2f}×"
    return f"K = {k} is {'too long' if best < k else 'too short'}: {costs}; {other}"
