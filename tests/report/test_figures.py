"""Pictures: what is drawn is what the recommendation says, in the file and in the terminal."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import pairwise

import pytest

from spectune.cli.app import run
from spectune.decide.plan import recommend
from spectune.report.figures import _ticks, by_draft, figures, speedup_span
from tests.profiles import decoded, make_profile

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures") / "p"
    return decoded(make_profile(folder, {0.0: 0.85, 1.0: 0.4}, max_k=8, ngram_acceptance=0.5), 4, 1.7)


@pytest.fixture(scope="module")
def answer(profile):
    return recommend(profile)


def marks(svg: str, tag: str, kind: str) -> list[ElementTree.Element]:
    return [one for one in ElementTree.fromstring(svg) if one.tag == SVG + tag and kind in one.get("class", "").split()]


def test_every_point_stands_at_its_value(answer) -> None:
    svg = figures(answer)["speedup"]
    low, high = speedup_span(answer)
    drafts = list(by_draft(answer).values())
    assert len(drafts) == 2
    for number, series in enumerate(drafts):
        points = [(float(one.get("cx")), float(one.get("cy"))) for one in marks(svg, "circle", f"f{number}")]
        heights = [high - (y - 56) / 300 * (high - low) for _, y in points]
        assert heights == pytest.approx([c.speedup.estimate for c in series], abs=0.01)
        assert [round((x - 64) / (632 / 8) + 0.5) for x, _ in points] == [c.num_speculative_tokens for c in series]
    whiskers = [re.findall(r"[\d.]+", one.get("d")) for one in marks(svg, "path", "thin")]
    assert len(whiskers) == 2 * 8 + 1  # and of what was measured
    assert len(marks(svg, "path", "hollow")) == 1
    assert "decoded for real" in svg


def test_a_round_is_stacked_and_acceptance_drawn_by_position(answer) -> None:
    pictures, best = figures(answer), answer.best_candidate
    series = by_draft(answer)[best.draft]
    heights = [[float(one.get("height")) for one in marks(pictures["round"], "rect", f"f{part}")] for part in range(3)]
    longest = max(c.verify_s + c.draft_s + c.overhead_s for c in series) * 1.12
    for part, name in enumerate(("verify_s", "draft_s", "overhead_s")):
        assert heights[part] == pytest.approx([getattr(c, name) / longest * 300 for c in series], abs=0.11)
    deepest = by_draft(answer)["small"][-1]
    points = [float(one.get("cy")) for one in marks(pictures["acceptance"], "circle", "f0")]
    assert [1 - (y - 56) / 300 for y in points] == pytest.approx(deepest.conditional_acceptance_rate, abs=0.001)


@pytest.mark.parametrize("count", [1, 12])
def test_many_and_long_names_stay_whole_pictures(answer, count) -> None:
    names = [f"/{'folder/' * 20}draft <{number}> & co" for number in range(count)]
    candidates = [replace(c, draft=name) for name in names for c in by_draft(answer)["small"]]
    many = replace(answer, candidates=candidates, best_candidate=candidates[0], confirmation=None)
    for svg in figures(many).values():
        texts = [one.text for one in ElementTree.fromstring(svg).iter(SVG + "text")]
        assert max(map(len, texts)) <= 72
        height = float(ElementTree.fromstring(svg).get("height"))
        places = re.findall(r"translate\(64 ([\d.]+)\)", svg)
        assert max(map(float, places)) < height
    classes = {one.get("class") for one in marks(figures(many)["speedup"], "polyline", "line")}
    assert len(classes) == count  # no two look alike


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.87, 1.31), (0.2, 14.0), (0.0, 1824.0), (0.999, 1.0511)])
def test_ticks_are_few_and_round(low, high) -> None:
    ticks = _ticks(low, high)
    assert 3 <= len(ticks) <= 10
    assert low <= ticks[0] <= ticks[-1] <= high
    assert len({round(b - a, 9) for a, b in pairwise(ticks)}) == 1


def test_the_skill_links_pictures_that_are_there(tmp_path, capsys) -> None:
    make_profile(tmp_path / "p", {0.0: 0.85})
    skill = tmp_path / "out put" / "my skill.md"
    assert run(["recommend", str(tmp_path / "p"), "-o", str(skill)]) == 0
    links = re.findall(r"!\[[^]]+\]\(([^)]+)\)", skill.read_text())
    assert links == [f"my%20skill-{name}.svg" for name in ("speedup", "acceptance", "round")]
    for link in links:
        ElementTree.parse(skill.parent / link.replace("%20", " "))


@pytest.mark.parametrize("columns", ["40", "100"])
def test_the_terminal_shows_the_same(tmp_path, monkeypatch, capsys, columns) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    make_profile(tmp_path / "p", {0.0: 0.85, 1.0: 0.4})
    answer = recommend(make_profile(tmp_path / "p", {0.0: 0.85, 1.0: 0.4}))
    assert run(["show", str(tmp_path / "p")]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if re.match(r"K = \d +[\d.]+×", line)]
    assert [float(row.split()[3].rstrip("×")) for row in rows] == [
        round(c.speedup.estimate, 2) for c in by_draft(answer)["small"]
    ]
    assert all(len(row) <= int(columns) for row in rows)
    low, high = speedup_span(answer)
    width = int(columns) - 14
    for row, candidate in zip(rows, by_draft(answer)["small"], strict=True):
        place = (row.index("●") - 14) / (width - 1)
        assert low + place * (high - low) == pytest.approx(candidate.speedup.estimate, abs=(high - low) / width)
    assert sum("█" in line for line in lines) == 4 + 1 + 1 + 4  # positions, heading, plain, K
    assert run(["show", str(tmp_path / "p"), "--temperature", "0.3"]) == 2
