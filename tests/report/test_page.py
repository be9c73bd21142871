"""The page for a browser: whole in one file, everything escaped, sorted by numbers."""

import base64
import re
from dataclasses import replace

import pytest
from markupsafe import escape

from spectune.cli.app import run
from spectune.decide.plan import recommend
from spectune.engines.config import recommended_config
from spectune.report.page import page_html
from spectune.report.sections import candidates, headline
from tests.profiles import decoded, make_profile


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    return make_profile(tmp_path_factory.mktemp("page") / "p", {0.0: 0.85, 1.0: 0.4}, ngram_acceptance=0.3)


def page(recommendation, named=None) -> str:
    configs = [recommended_config(named or recommendation, "vllm")]
    return page_html(recommendation, configs, {"speedup": "<svg/>"})


def test_it_says_what_the_skill_says_and_needs_no_network(profile) -> None:
    answer = recommend(decoded(profile, 4, 1.3))
    text = page(answer)
    assert escape(headline(answer)) in text
    assert "Predicted against measured" in text
    assert not re.search(r"(src|href)=.(https?:)?//", text)
    picture = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', text)
    assert base64.b64decode(picture[1]) == b"<svg/>"
    for row in candidates(answer).rows:
        assert f'<td data-value="{row[-1].estimate}">' in text  # sorted by the figure, not by its text
    assert text.count("<tr>") > len(answer.candidates)
    for tag in ("table", "tbody", "tr", "ul", "main", "html"):
        assert len(re.findall(rf"<{tag}[ >]", text)) == text.count(f"</{tag}>")


def test_names_from_outside_cannot_write_into_it(profile) -> None:
    answer = recommend(profile)
    hostile = "<script>alert(1)</script>"
    applies = replace(answer.applies_to, target=hostile, workload=hostile)
    best = replace(answer.best_candidate, draft=hostile)
    text = page(replace(answer, applies_to=applies, best_candidate=best, reasons=[hostile]), answer)
    assert hostile not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_recommend_writes_page_and_pictures_where_asked(profile, tmp_path, capsys) -> None:
    directory = tmp_path / "p"
    make_profile(directory, {0.0: 0.85})
    skill, html = tmp_path / "out" / "s.md", tmp_path / "web" / "page.html"
    assert run(["recommend", str(directory), "-o", str(skill), "--html", str(html), "--png"]) == 0
    assert f"wrote {skill} and {html}" in capsys.readouterr().out
    assert html.read_text().startswith("<!doctype html>")
    pictures = sorted(path.name for path in skill.parent.glob("s-*"))
    assert pictures == ["s-acceptance.png", "s-category.png", "s-round.png", "s-speedup.png"]
    assert all((skill.parent / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    assert "(s-speedup.png)" in skill.read_text()
    (tmp_path / "file").touch()
    assert run(["recommend", str(directory), "-o", str(skill), "--html", str(tmp_path / "file" / "x.html")]) == 2
    assert "give another file with --html" in capsys.readouterr().err
