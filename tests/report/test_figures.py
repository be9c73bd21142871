"""Pictures: what is drawn is what the recommendation says, in the file and in the terminal."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from spectune.cli.app import run
from spectune.decide.plan import recommend
from spectune.report import figures as drawing
from spectune.report.figures import by_draft, figures, speedup_span
from tests.profiles import decoded, make_profile

SVG = "{http://www.w3.org/2000/svg}"
NAMES = ("speedup", "acceptance", "round", "category")


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures") / "p"
    return recommend(decoded(make_profile(folder, {0.0: 0.85, 1.0: 0.4}, max_k=8, ngram_acceptance=0.5), 4, 1.7))


def texts(svg: str) -> list[str]:
    return [one.text for one in ElementTree.fromstring(svg).iter(SVG + "text")]


def test_every_point_and_interval_stands_at_its_value(answer) -> None:
    (panel,) = drawing._speedup(answer).axes
    low, high = panel.get_ylim()
    assert (low, high) == pytest.approx(speedup_span(answer))
    drawn = {container.get_label(): container for container in panel.containers}
    for draft, series in by_draft(answer).items():
        line, _, (whiskers,) = drawn[draft]
        assert line.get_ydata().tolist() == pytest.approx([c.speedup.estimate for c in series])
        assert [round(x) for x in line.get_xdata()] == [c.num_speculative_tokens for c in series]
        ends = [[y for _, y in segment] for segment in whiskers.get_segments()]
        assert ends == [pytest.approx([c.speedup.low, c.speedup.high]) for c in series]
    (confirmed,) = [one for label, one in drawn.items() if "decoded for real" in label]
    assert confirmed[0].get_ydata().tolist() == pytest.approx([1.7], abs=0.05)
    levels = [
        line.get_ydata()[0] for line in panel.lines if line.get_label() in ("plain decoding", "worth it above 1.05×")
    ]
    assert levels == [1.0, answer.min_gain]


def test_a_round_is_stacked_draft_by_draft(answer) -> None:
    panels = drawing._round(answer).axes
    for panel, series in zip(panels, by_draft(answer).values(), strict=True):
        tops = [0.0] * len(series)
        for bars, part in zip(panel.containers, ("verify_s", "draft_s", "overhead_s"), strict=True):
            assert [bar.get_y() for bar in bars] == pytest.approx(tops)
            tops = [top + 1e3 * getattr(c, part) for top, c in zip(tops, series, strict=True)]
            assert [bar.get_y() + bar.get_height() for bar in bars] == pytest.approx(tops)


def test_acceptance_by_position_stands_beside_the_fitted_formula(answer) -> None:
    (panel,) = drawing._acceptance(answer).axes
    drawn = {line.get_label(): line.get_ydata() for line in panel.lines}
    for draft, series in by_draft(answer).items():
        assert list(drawn[draft]) == pytest.approx(series[-1].conditional_acceptance_rate)
        (alpha,) = [fit.alpha for fit in answer.formula if (fit.draft, fit.temperature) == (draft, answer.temperature)]
        assert list(drawn[f"the formula's one α = {alpha:.2f}"]) == [alpha, alpha]


def test_categories_stand_at_their_speed_ups(answer) -> None:
    (panel,) = drawing._category(answer).axes
    (container,) = panel.containers
    assert container[0].get_ydata().tolist() == pytest.approx([kind.speedup.estimate for kind in answer.by_category])
    assert [tick.get_text() for tick in panel.get_xticklabels()] == [kind.category for kind in answer.by_category]


def test_text_is_text_every_colour_has_its_dark_twin_and_the_same_answer_gives_the_same_file(answer) -> None:
    pictures = figures(answer)
    assert tuple(pictures) == NAMES
    assert pictures == figures(answer)
    assert "worth it above 1.05×" in texts(pictures["speedup"])
    for svg in pictures.values():
        style, *drawn = svg.partition("</style>")
        used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", "".join(drawn)))
        assert used
        assert used == {colour for colour in used if f'fill: {colour}"]{{fill:{drawing._DARK[colour]}' in style}
        assert "fill: black" not in svg


@pytest.mark.parametrize("count", [1, 12])
def test_many_and_long_names_stay_whole_pictures(answer, count) -> None:
    names = [f"/{'folder/' * 20}draft <{number}> $x_{number}$ & co" for number in range(count)]
    candidates = [replace(c, draft=name) for name in names for c in by_draft(answer)["small"]]
    many = replace(answer, candidates=candidates, best_candidate=candidates[0], confirmation=None)
    pictures = figures(many)
    for svg in pictures.values():
        assert max(map(len, filter(None, texts(svg)))) <= 72
    ends = [text[-20:] for text in texts(pictures["speedup"]) if text and "draft <" in text]
    assert ends == [name[-20:] for name in names]
    looks = {tuple(drawing._look(number).items()) for number in range(count)}
    assert len(looks) == count  # no two look alike


def test_the_skill_links_pictures_that_are_there(tmp_path, capsys) -> None:
    make_profile(tmp_path / "p", {0.0: 0.85})
    skill = tmp_path / "out put" / "my skill.md"
    assert run(["recommend", str(tmp_path / "p"), "-o", str(skill)]) == 0
    links = re.findall(r"!\[[^]]+\]\(([^)]+)\)", skill.read_text())
    assert links == [f"my%20skill-{name}.svg" for name in NAMES]
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


def test_the_plotting_library_is_imported_where_pictures_are_written_only(tmp_path) -> None:
    make_profile(tmp_path / "p", {0.0: 0.85})
    code = "import sys; from spectune.cli.app import run; run(sys.argv[1:]); print('matplotlib' in sys.modules)"
    told = {}
    for command in (["show", "p"], ["export", "p", "--engine", "vllm"], ["recommend", "p"]):
        done = subprocess.run([sys.executable, "-c", code, *command], cwd=tmp_path, capture_output=True, text=True)
        told[command[0]] = done.stdout.splitlines()[-1]
    assert told == {"show": "False", "export": "False", "recommend": "True"}
