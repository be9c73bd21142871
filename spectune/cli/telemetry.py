"""`spectune telemetry`."""

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spectune.errors import ConfigError, EngineError, InsufficientDataError, reason_of

if TYPE_CHECKING:
    from spectune.decide.served_depth import ServedDepth
    from spectune.served.telemetry import Telemetry

_MOST_BYTES = 1 << 28
_ADDRESS = re.compile(r"[^/]+:\d+(?:/|$)|\w+://|[^/]*@")


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
        float | None, typer.Option(metavar="T", help="Temperature whose round times are taken, of those profiled. [0]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout.")] = False,
) -> int:
    """Read what a server tells of its speculative decoding, old names and new, on the scale of spectune's own figures.

    Exits with 3 where a server cannot be read, with 4 where nothing was drafted or K cannot be judged.
    """
    from dataclasses import asdict, replace

    from spectune.engines.catalogue import read_telemetry

    if profile is None and (draft is not None or temperature is not None):
        raise ConfigError("--draft and --temperature choose among a profile's costs", "give --profile DIR")
    texts = [_text(one) for one in (source, later) if one is not None]
    try:
        seen = read_telemetry(*reversed(texts))
    except ConfigError as error:
        from spectune.served.pages import is_url

        if all(is_url(one) for one in (source, later) if one is not None):
            raise EngineError(error.problem, error.remedy) from error
        raise
    nothing = seen.num_drafts == 0 or seen.num_draft_tokens == 0
    depth, unjudged = None, None
    if profile and not nothing:
        try:
            depth = _depth(seen, profile, temperature or 0.0, draft)
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
    from spectune.served.pages import fetched, is_url

    if is_url(source):
        return fetched(source)
    if source == "-" and sys.stdin is None:
        raise ConfigError("stdin is closed", "pipe a page in, or give a file")
    try:
        if source == "-":
            data = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with Path(source).open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError as error:
        remedy = "write http:// before a server's address" if _ADDRESS.match(source) else "check the path"
        raise ConfigError(f"{source} cannot be read: {reason_of(error)}", remedy) from error
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {reason_of(error)}", "check the path") from error
    if len(data) > _MOST_BYTES:
        raise ConfigError(
            f"{source} holds more than {_MOST_BYTES >> 20} MiB", "give the part that matters: tail -n 100000"
        )
    if b"\0" in data:
        raise ConfigError(f"{source} is no text", "give a /metrics page, JSON or a log in UTF-8")
    return data.decode("utf-8", errors="replace")  # logs hold parts of characters


def _depth(seen: "Telemetry", directory: Path, temperature: float, draft: str | None) -> "ServedDepth":
    from spectune.decide.served_depth import served_depth
    from spectune.drafting_spec import draft_spec
    from spectune.profile.store import load_profile

    return served_depth(load_profile(directory), seen, temperature, draft and draft_spec(draft).text)


def _summary(seen: "Telemetry", depth: "ServedDepth | None") -> str:
    def shown(value: float | None, form: str) -> str:
        return "not told" if value is None else format(value, form)

    rates = {"cumulative": seen.cumulative_acceptance_rate, "conditional": seen.conditional_acceptance_rate}
    lines = [
        f"{seen.engine}: {_per_round(seen.acceptance_length)}",
        f"accepted of proposed  {shown(seen.draft_acceptance_rate, '.3f')}",
        *(f"{name:<21} {' '.join(shown(one, '.3f') for one in values)}" for name, values in rates.items() if values),
        f"drafts {shown(seen.num_drafts, ',.0f')}, proposed {shown(seen.num_draft_tokens, ',.0f')}, "
        f"accepted {shown(seen.num_accepted_tokens, ',.0f')}",
        *([_depth_text(depth)] if depth else []),
        *(f"warning: {text}" for text in seen.warnings),
    ]
    return "\n".join(lines)


def _per_round(length: float | None) -> str:
    return "tokens per round are not told" if length is None else f"{length:.2f} tokens per round, bonus included"


def _depth_text(depth: "ServedDepth") -> str:
    """With whose costs it is judged, and what was guessed."""
    k, best = depth.num_speculative_tokens, depth.best_num_speculative_tokens
    where = f"{depth.target} in {depth.engine} on {depth.hardware}"
    costs = f"{depth.speedup:.2f}× over plain decoding, by the costs of {where}"
    profiled = f"; {depth.profiled_acceptance_length:.2f} tokens per round were profiled at this K"
    if depth.verdict == "right":
        return f"K = {k} is right: {costs}{profiled}"
    other = "plain decoding is faster" if best == 0 else f"K = {best} would reach {depth.best_speedup:.2f}×"
    guess = f", if acceptance goes on as at position {k}" if best > k else ""
    return f"K = {k} is {'too long' if best < k else 'too short'}: {costs}; {other}{guess}{profiled}"
