"""`spectune recommend`."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from spectune.cli.files import write_whole
from spectune.cli.options import argument, flag, option
from spectune.errors import ConfigError, InsufficientDataError, reason_of

if TYPE_CHECKING:
    from spectune.decide.recommendation import Recommendation
    from spectune.engines.config import EngineConfig

DEFAULT_SKILL = Path("outputs/skill-speculative-tuning.md")
_ENGINES = ("vllm", "transformers")


def recommend(
    directory: Annotated[Path, argument("DIR", "Directory of a profile.")],
    temperature: Annotated[
        float | None, option("T", "Temperature of the headline verdict. Default: the target's own, else the lowest.")
    ] = None,
    answer_tokens: Annotated[
        int | None, option("N", "Length of the answers that you serve, in tokens. Default: as recorded.")
    ] = None,
    output: Annotated[Path, option("FILE", "File to write the skill to.", "--output", "-o")] = DEFAULT_SKILL,
    verify: Annotated[
        Path | None, option("FILE", "Write nothing; say whether this skill still follows from the profile.")
    ] = None,
    engine: Annotated[
        list[str] | None,
        option(
            "ENGINE", f"Engine to give a config for, such as vllm@0.32. Repeatable. Default: {', '.join(_ENGINES)}."
        ),
    ] = None,
    html: Annotated[Path | None, option("FILE", "Also write a page for a browser, all in one file.")] = None,
    png: Annotated[bool, flag("Write the skill's pictures as PNG; by default they are SVG.", "--png")] = False,
    as_json: Annotated[bool, flag("Print the recommendation as JSON on stdout.", "--json")] = False,
) -> int:
    """Decide from a profile: which draft and K, up to which temperature, or plain decoding; write the skill.

    Exits with 4 where the data do not decide; with --verify, which reads the values in the skill's front matter,
    with 1 where it advises something else (or, written from this very profile, has another figure).
    """
    from spectune.decide.plan import recommend as decide
    from spectune.engines.config import recommended_config
    from spectune.profile.store import load_profile
    from spectune.report.figures import figures, figures_png
    from spectune.report.skill import skill_markdown
    from spectune.report.verification import values

    decided = decide(load_profile(directory), temperature, answer_tokens)
    if verify and not engine:
        engine = _engines_of(verify)
    configs = [recommended_config(decided, name) for name in engine or _ENGINES]
    if verify:
        return _verified(verify, values(decided, configs))
    svg = figures(decided) if html or not png else {}
    kind, drawn = ("png", figures_png(decided)) if png else ("svg", svg)
    files = {name: f"{output.stem}-{name}.{kind}" for name in drawn}
    if as_json:
        print(json.dumps(recommendation_object(decided, configs), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print(_summary(decided, directory))
    for name, picture in drawn.items():  # after the verdict, which is seen where nothing can be written too
        write_whole(output.with_name(files[name]), picture)
    write_whole(output, skill_markdown(decided, configs, files))
    if html:
        from spectune.report.page import page_html

        write_whole(html, page_html(decided, configs, svg), "give another file with --html")
    if not as_json:
        print(f"wrote {' and '.join(shlex.quote(str(file)) for file in (output, html) if file)}")
    return InsufficientDataError.exit_code if decided.verdict == "insufficient-data" else 0


def recommendation_object(decided: "Recommendation", configs: list["EngineConfig"]) -> dict[str, Any]:
    """The machine output: every field of the recommendation, and the engine configs."""
    warnings = [notice.model_dump() for notice in decided.warnings]
    return {**asdict(decided), "warnings": warnings, "configs": [asdict(config) for config in configs]}


def _engines_of(path: Path) -> list[str]:
    from spectune.engines.catalogue import ENGINES
    from spectune.report.verification import engine_names

    named = engine_names(_read_skill(path))
    return [name for name, engine in ENGINES.items() if engine.name in named]


def _read_skill(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"{path} cannot be read: {reason}", "give a skill that spectune recommend wrote") from error


def _verified(path: Path, now: dict[str, str]) -> int:
    """Whether the file still follows, and what differs, on stdout."""
    from spectune.report.verification import verification

    follows, differences = verification(_read_skill(path), now)
    print("\n".join([f"{path} {'follows' if follows else 'does not follow'} from the profile", *differences]))
    return 0 if follows else 1


def _summary(decided: "Recommendation", directory: Path) -> str:
    from spectune.decide.selection import IN_WORDS
    from spectune.report.markdown import interval_text
    from spectune.report.sections import headline

    others = [answer for answer in decided.by_temperature if answer.temperature != decided.temperature]
    rule, decoded = decided.fallback, decided.best_decoded
    real = f"not decoded for real yet: spectune confirm {shlex.quote(str(directory))}"
    if decoded:
        predicted = interval_text(decoded.predicted, "×")
        real = f"decoded for real: {interval_text(decoded.measured, '×')}, predicted {predicted} for such a run"
    lines = [headline(decided)]
    lines += [f"at T = {a.temperature:g}: {IN_WORDS[a.verdict]}, best {a.speedup.estimate:.2f}×" for a in others]
    if rule:
        below = f"when tokens/round stay below {rule.acceptance_length_below:.2f} over {rule.window_requests} requests"
        lines.append(f"fall back to plain {below}")
    lines += [
        " · ".join(f"{kind.category} {kind.speedup.estimate:.2f}×" for kind in decided.by_category if kind.speedup),
        *(f"because {reason}" for reason in decided.reasons),
        real,
    ]
    return "\n".join(lines)
