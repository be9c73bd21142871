"""Profiles of other days have the answer that they had: nine digits of every figure, and every digit of what is said.

They were stored when quantiles of Student's t came from another quadrature, which moves the last digits of intervals.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from spectune.cli.recommend import recommendation_object
from spectune.decide.plan import recommend
from spectune.profile.store import load_profile
from spectune.report.skill import skill_markdown

ROOT = Path(__file__).parents[2]
STORED = {
    "reference": (ROOT / "profiles/reference", ROOT / "tests/decide/stored/reference-recommendation.json"),
    "schema 3, confirmed": (
        ROOT / "tests/profile/stored/schema-3",
        ROOT / "tests/profile/stored/schema-3-recommendation.json",
    ),
}


def without_configs(answer: dict[str, Any]) -> dict[str, Any]:
    """What the profile says; configs follow the engines' own releases."""
    return {name: value for name, value in answer.items() if name != "configs"}


def assert_same(answer: Any, stored: Any, where: str = "answer") -> None:
    """Equal but for the last digits of fractions."""
    if isinstance(stored, dict):
        assert answer.keys() == stored.keys(), where
        for name in stored:
            assert_same(answer[name], stored[name], f"{where}.{name}")
    elif isinstance(stored, list):
        assert len(answer) == len(stored), where
        for place, item in enumerate(stored):
            assert_same(answer[place], item, f"{where}[{place}]")
    elif isinstance(stored, float):
        assert answer == pytest.approx(stored, rel=1e-9, abs=0), where
    else:
        assert answer == stored, where


@pytest.mark.parametrize("name", STORED)
def test_a_stored_profile_has_its_stored_answer(name) -> None:
    directory, stored = STORED[name]
    answer = json.loads(json.dumps(recommendation_object(recommend(load_profile(directory)), [])))
    assert_same(without_configs(answer), without_configs(json.loads(stored.read_text())))


def test_a_stored_profile_has_its_stored_skill() -> None:
    """Configs apart, which follow the engines' own releases."""
    directory, stored = STORED["reference"]
    skill = skill_markdown(recommend(load_profile(directory)), [])
    assert skill == stored.with_name("reference-skill.md").read_text()
