"""`spectune telemetry`."""

import json
import re
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from spectune.cli.options import argument, flag, option
from spectune.errors import ConfigError, EngineError, InsufficientDataError, reason_of

if TYPE_CHECKING:
    from spectune.decide.served_depth import ServedDepth
    from spectune.served.telemetry import Telemetry

_MOST_BYTES = 1 << 28
_NOT_TOLD = "not told"
_ADDRESS = re.compile(r"[^/]+:\d+(?:/|$)|\w+://|[^/]*@")


def telemetry(
    source: Annotated[str, argument("URL|FILE", "A /metrics page, responses as JSON, or a log; - is stdin.")],
    later: Annotated[str | None, argument("[URL|FILE]", "The same page later: figures of the time in between.")] = None,
    profile: Annotated[
        Path | None, option("DIR", "Profile whose costs tell whether K is too long, too short or right.")
    ] = None,
    draft: Annotated[str | None, option("SPEC", "The draft served, of those profiled. Default: the best one.")] = None,
    temperature: Annotated[
        float | None, option("T", "Temperature whose round times are taken, of those profiled. [0]")
    ] = None,
    as_json: Annotated[bool, flag("Print the figures as JSON on stdout.", "--json")] = False,
) -> int:
    """Read what a server tells of its speculative decoding, old names and new, on the scale of spectune's own figures.

    Exits with 3 where a server cannot be read, with 4 where nothing was drafted or K cannot be judged.
    """
    if profile is None and (draft is not None or temperature is not None):
        raise ConfigError("--draft and --temperature choose among a profile's costs", "give --profile DIR")
    figures, depth = _read([source] if later is None else [source, later]), None
    if profile and not figures.nothing_drafted:
        from spectune.decide.served_depth import judged
        from spectune.drafting_spec import draft_spec
        from spectune.profile.store import load_profile

        spec = draft and draft_spec(draft).text
        figures, depth = judged(load_profile(profile), figures, temperature or 0.0, spec)
    if as_json:
        result = {**asdict(figures), "depth": depth and asdict(depth)}
        print(json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print(_summary(figures, depth))
    return InsufficientDataError.exit_code if figures.nothing_drafted or (profile and depth is None) else 0


def _read(sources: list[str]) -> "Telemetry":
    from spectune.engines.reading import read_telemetry
    from spectune.served.pages import is_url

    texts = [_text(source) for source in sources]
    try:
        return read_telemetry(*reversed(texts))
    except ConfigError as error:
        if all(is_url(source) for source in sources):
            raise EngineError(error.problem, error.remedy) from error
        raise


def _text(source: str) -> str:
    from spectune.served.pages import fetched, is_url

    if is_url(source):
        return fetched(source)
    if source == "-" and sys.stdin is None:
        raise ConfigError("stdin is closed", "pipe a page in, or give a file")
    try:
        with nullcontext(sys.stdin.buffer) if source == "-" else Path(source).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError) and _ADDRESS.match(source)
        remedy = "write http:// before a server's address" if missing else "check the path"
        raise ConfigError(f"{source} cannot be read: {reason_of(error)}", remedy) from error
    if len(data) > _MOST_BYTES:
        problem = f"{source} holds more than {_MOST_BYTES >> 20} MiB"
        raise ConfigError(problem, "give the part that matters: tail -n 100000")
    if b"\0" in data:
        raise ConfigError(f"{source} is no text", "give a /metrics page, JSON or a log in UTF-8")
    return data.decode("utf-8", errors="replace")  # logs hold parts of characters


def _summary(figures: "Telemetry", depth: "ServedDepth | None") -> str:
    rates = {"cumulative": figures.cumulative_acceptance_rate, "conditional": figures.conditional_acceptance_rate}
    told = _shown(figures.acceptance_length, ".2f")
    per_round = f"tokens per round are {told}" if told == _NOT_TOLD else f"{told} tokens per round, bonus included"
    lines = [
        f"{figures.engine}: {per_round}",
        f"accepted of proposed  {_shown(figures.draft_acceptance_rate, '.3f')}",
        *(f"{name:<21} {' '.join(_shown(rate, '.3f') for rate in values)}" for name, values in rates.items() if values),
        f"drafts {_shown(figures.num_drafts, ',.0f')}, proposed {_shown(figures.num_draft_tokens, ',.0f')}, "
        f"accepted {_shown(figures.num_accepted_tokens, ',.0f')}",
        *([_depth_text(depth)] if depth else []),
        *(f"warning: {text}" for text in figures.warnings),
    ]
    return "\n".join(lines)


def _shown(value: float | None, form: str) -> str:
    return _NOT_TOLD if value is None else format(value, form)


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
