"""The page: one HTML file that needs no network, with pictures inside, tables to sort and configs to copy."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader

from spectune.decide.recommendation import Recommendation
from spectune.engines.config import EngineConfig
from spectune.report import sections
from spectune.report.markdown import cell_text
from spectune.stats import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    text: str
    key: str  # that it is sorted by


@dataclass(frozen=True, slots=True, kw_only=True)
class _Config:
    engine: str
    checked_against: str
    text: str
    note: str


def page_html(recommendation: Recommendation, configs: Sequence[EngineConfig], pictures: Mapping[str, str]) -> str:
    """The whole page; `pictures` are SVG by name. What comes from models and workloads is escaped."""
    environment = Environment(loader=PackageLoader("spectune.report", ""), autoescape=True, trim_blocks=True)
    confirmation = recommendation.confirmation
    tables = [
        sections.candidates(recommendation),
        sections.elsewhere(recommendation),
        *([sections.confirmed(confirmation)] if confirmation else []),
    ]
    return environment.get_template("page.html.jinja").render(
        target=recommendation.applies_to.target,
        verdict=sections.headline(recommendation),
        settings=[(name, cell_text(value)) for name, value in sections.settings(recommendation).rows],
        fallback=sections.fallback(recommendation),
        pictures=[(sections.PICTURES[name], _source(svg)) for name, svg in pictures.items()],
        reasons=recommendation.reasons,
        tables=[
            {"title": t.title, "note": t.note, "header": t.header, "rows": [list(map(_cell, row)) for row in t.rows]}
            for t in tables
        ],
        doubts=[*sections.limits(recommendation), *sections.doubts(recommendation)],
        configs_note=sections.CONFIGS[recommendation.verdict][1],
        configs=[_config(config) for config in configs],
        applies=sections.applies_to(recommendation),
    )


def _source(svg: str) -> str:
    """Inside the page; as an image it keeps its own style to itself."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _cell(value: object) -> _Cell:
    text = cell_text(value)
    number = value.estimate if isinstance(value, Interval) else value
    if isinstance(number, int | float):
        return _Cell(text=text, key=f"{number}")
    first = text.split(" ")[0].rstrip("×")
    try:
        return _Cell(text=text, key=f"{float(first)}")
    except ValueError:
        return _Cell(text=text, key=text)


def _config(config: EngineConfig) -> _Config:
    read = "".join(f"\n\n# {name}\n{text}" for name, text in config.files.items() if name in config.text)
    return _Config(
        engine=config.engine,
        checked_against=config.checked_against,
        text=config.text + read,
        note=sections.config_note(config),
    )
