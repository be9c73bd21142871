"""The skill file: an agent skill in Markdown that an engineer can act on, short enough to be read whole."""

from collections.abc import Mapping, Sequence
from urllib.parse import quote

import yaml

from spectune.decide.recommendation import Recommendation
from spectune.engines.config import EngineConfig
from spectune.report import sections
from spectune.report.markdown import block, bullets, table
from spectune.report.verification import values

_CANDIDATES, _ROWS, _WARNINGS, _CONFIRMED, _REASONS = 4, 6, 3, 4, 6  # at most, of each


def skill_markdown(
    recommendation: Recommendation, configs: Sequence[EngineConfig], pictures: Mapping[str, str] | None = None
) -> str:
    """The whole file: verdict, settings and configs first, evidence after; `pictures` are files beside it, by name."""
    title, note = sections.CONFIGS[recommendation.verdict]
    confirmation = recommendation.confirmation
    parts = [
        _front_matter(recommendation, values(recommendation, configs)),
        f"# Speculative tuning: {recommendation.applies_to.target}",
        f"**{sections.headline(recommendation)}**",
        _table(sections.settings(recommendation), None),
        f"## {title}\n\n{note}",
        *map(_config, configs),
        f"**When to fall back.** {sections.fallback(recommendation)}",
        bullets("Why", recommendation.reasons[:_REASONS]),
        _table(sections.elsewhere(recommendation), _ROWS),
        _table(sections.candidates(recommendation, _CANDIDATES), None),
        " ".join(f"![{sections.PICTURES[name]}]({quote(file)})" for name, file in (pictures or {}).items()),
        _table(sections.confirmed(confirmation), _CONFIRMED) if confirmation else "",
        bullets("How sure", [*sections.limits(recommendation), *sections.doubts(recommendation, _WARNINGS)]),
        f"**What it applies to.** {sections.applies_to(recommendation)}",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _front_matter(recommendation: Recommendation, metadata: Mapping[str, str]) -> str:
    applies = recommendation.applies_to
    description = (
        f"Whether and how to use speculative decoding with {applies.target} on {applies.hardware} for workload "
        f"{applies.workload}. Read before setting or changing a draft, num_speculative_tokens, or a temperature "
        "in a serving config for this model."
    )
    fields = {"name": "speculative-tuning", "description": description[:1024], "metadata": dict(metadata)}
    return f"---\n{yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=1000)}---"


def _config(config: EngineConfig) -> str:
    read = {name: text for name, text in config.files.items() if name in config.text}
    files = "".join(f"`{name}`:\n\n```{name.split('.')[-1]}\n{text}```\n\n" for name, text in read.items())
    heading = f"### {config.engine} (checked against {config.checked_against})"
    return f"{heading}\n{block(config.text, config.language)}\n\n{files}{sections.config_note(config)}"


def _table(told: sections.Table, most: int | None) -> str:
    more = " These are the first; `--json` has all." if most is not None and len(told.rows) > most else ""
    return table(told.title, told.header, told.rows[:most], (told.note + more).strip())
