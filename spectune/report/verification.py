"""A skill read back by the values in its front matter: whether it still follows, against what a profile gives now.

From the very profile it was written from, every value must follow; from a later one, what it advises must.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

import yaml

from spectune.decide.recommendation import Recommendation
from spectune.engines.config import EngineConfig
from spectune.errors import ConfigError
from spectune.report.markdown import interval_text

NONE = "none"
_MEASURED = "measured"
_ADVICE = (
    "target",
    "verdict",
    "draft",
    "num_speculative_tokens",
    "tree_width",
    "speculate_up_to_temperature",
    "decode_plainly_from_temperature",
)
_CONFIGS = "configs"
_FIGURES = ("speedup", "acceptance_length")  # which a later profile may move
_ENGINES = "engines"


def values(recommendation: Recommendation, configs: Sequence[EngineConfig]) -> dict[str, str]:
    """What the skill advises and rests on, as the `metadata` of an agent skill has it: texts only."""
    best, gate = recommendation.best_candidate, recommendation.temperature_gate
    pasted = "\n".join(config.text for config in configs)
    advice = (
        recommendation.applies_to.target,
        recommendation.verdict,
        recommendation.draft,
        recommendation.num_speculative_tokens,
        recommendation.tree_width,
        gate.speculate_up_to,
        gate.plain_from,
    )
    return {
        **{name: value_text(value) for name, value in zip(_ADVICE, advice, strict=True)},
        "speedup": interval_text(recommendation.speedup),
        "acceptance_length": interval_text(best.acceptance_length),
        _ENGINES: ", ".join(config.engine for config in configs),
        _CONFIGS: f"sha256_{sha256(pasted.encode()).hexdigest()[:16]}",
        _MEASURED: recommendation.applies_to.profile_created_at,
    }


def value_text(value: object) -> str:
    """As a reader has it: `0.7`, `none`."""
    return NONE if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def engine_names(skill: str) -> list[str]:
    """The engines that it has configs for. Raises: ConfigError as `verification`."""
    return [name for name in read_back(skill)[_ENGINES].split(", ") if name]


def verification(written: str, now: Mapping[str, str]) -> tuple[bool, list[str]]:
    """Whether a skill follows from these values, and what differs, figures that moved too.

    Raises: ConfigError for what is no skill.
    """
    before = read_back(written)
    if before[_MEASURED] == now[_MEASURED]:
        differences = _changes(before, now, now.keys())
        return not differences, differences
    differences = _changes(before, now, _ADVICE)
    if not differences and now["verdict"] == "speculate" and before[_CONFIGS] != now[_CONFIGS]:
        differences = ["the configs to paste"]
    return not differences, differences + _changes(before, now, _FIGURES)


def read_back(skill: str) -> dict[str, str]:
    """The values of a skill's front matter. Raises: ConfigError for what is no skill."""
    remedy = "give a skill that spectune recommend wrote"
    try:
        found = yaml.safe_load(skill.split("---\n", 2)[1])["metadata"]
    except (IndexError, KeyError, TypeError, yaml.YAMLError) as error:
        raise ConfigError("the skill has no metadata in its front matter", remedy) from error
    for name in (_MEASURED, *_ADVICE, *_FIGURES, _ENGINES, _CONFIGS):
        if not isinstance(found, dict) or not isinstance(found.get(name), str):
            raise ConfigError(f"the skill names no {name}", remedy)
    return {str(name): str(value) for name, value in found.items()}


def _changes(before: Mapping[str, str], after: Mapping[str, str], names: Iterable[str]) -> list[str]:
    return [f"{name}: {before[name]}, now {after[name]}" for name in names if before[name] != after[name]]
