"""Profiles of other days have the answer that they had: to the last bit, whatever moved in between."""

import json
from pathlib import Path
from typing import Any

import pytest

from spectune.cli.recommend import recommendation_object
from spectune.decide.plan import recommend
from spectune.profile.store import load_profile

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


@pytest.mark.parametrize("name", STORED)
def test_a_stored_profile_has_its_stored_answer(name) -> None:
    directory, stored = STORED[name]
    answer = json.loads(json.dumps(recommendation_object(recommend(load_profile(directory)), [])))
    assert without_configs(answer) == without_configs(json.loads(stored.read_text()))
