"""Pictures as SVG, in light and dark. Drawn here: importing a plotting library takes longer than `recommend` may."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from spectune.decide.confirmation import ConfirmedSetting
from spectune.decide.recommendation import Candidate, Recommendation
from spectune.stats import Interval

_WIDTH, _PLOT_HEIGHT, _LEFT, _RIGHT, _TOP, _ROW = 720, 300, 64, 24, 56, 20
_COLOURS = (
    ("#0969da", "#58a6ff"), ("#bc4c00", "#f0883e"), ("#1a7f37", "#56d364"),
    ("#8250df", "#bc8cff"), ("#bf3989", "#f778ba"), ("#57606a", "#adbac7"),
)  # fmt: skip
_DASHES = ("", "6 3", "2 3")  # each colour once solid, then dashed
_LONGEST_NAME = 72


def figures(recommendation: Recommendation) -> dict[str, str]:
    """SVG by name: speedup (against K), acceptance (by position), round (its time, stacked)."""
    drawn = {"speedup": _speedup, "acceptance": _acceptance, "round": _round}
    return {name: draw(recommendation) for name, draw in drawn.items()}


@dataclass(slots=True, kw_only=True)
class _Picture:
    """Values from low to high over whole numbers from 1."""

    title: str
    columns: int
    low: float
    high: float
    x_title: str
    y_title: str
    unit: str = ""
    marks: list[str] = field(default_factory=list)
    legend: list[str] = field(default_factory=list)

    def x(self, value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) / self.columns * (value - 0.5)

    def y(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        return _TOP + _PLOT_HEIGHT * (self.high - inside) / (self.high - self.low)

    def line(self, points: Iterable[tuple[float, float]], series: int) -> None:
        places = [(f"{self.x(x):.1f}", f"{self.y(y):.1f}") for x, y in points]
        path = " ".join(map(",".join, places))
        self.marks.append(f'<polyline class="{_line_class(series)}" points="{path}"/>')
        self.marks += [f'<circle class="f{_colour(series)}" cx="{x}" cy="{y}" r="3"/>' for x, y in places]

    def whisker(self, x: float, interval: Interval, series: int) -> None:
        if interval.low is not None and interval.high is not None:
            path = f"M{self.x(x):.1f} {self.y(interval.low):.1f}V{self.y(interval.high):.1f}"
            self.marks.append(f'<path class="thin s{_colour(series)}" d="{path}"/>')

    def diamond(self, x: float, y: float, series: int) -> None:
        corners = f"M{self.x(x):.1f} {self.y(y) - 7:.1f}l7 7l-7 7l-7 -7z"
        self.marks.append(f'<path class="{_line_class(series)} hollow" d="{corners}"/>')

    def level(self, y: float, name: str, dashed: bool = False) -> None:
        kind = "level dashed" if dashed else "level"
        self.marks.append(f'<path class="{kind}" d="M{_LEFT} {self.y(y):.1f}H{_WIDTH - _RIGHT}"/>')
        self.key(f'<path class="{kind}" d="M0 0H22"/>', name)

    def bar(self, x: float, bottom: float, top: float, series: int) -> None:
        width, high, low = min(36.0, 0.6 * (self.x(2) - self.x(1))), self.y(top), self.y(bottom)
        self.marks.append(
            f'<rect class="f{_colour(series)}" x="{self.x(x) - width / 2:.1f}" y="{high:.1f}" '
            f'width="{width:.1f}" height="{max(low - high, 0):.1f}"/>'
        )

    def key(self, mark: str, name: str) -> None:
        self.legend.append(mark + _text("ink", 32, 4, name))

    def key_line(self, series: int, name: str) -> None:
        circle = f'<circle class="f{_colour(series)}" cx="11" r="3"/>'
        self.key(f'<path class="{_line_class(series)}" d="M0 0H22"/>{circle}', _short(name))

    def svg(self) -> str:
        bottom = _TOP + _PLOT_HEIGHT
        height = bottom + 58 + _ROW * len(self.legend)
        keys = enumerate(self.legend)
        size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(self.title)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="paper" width="{_WIDTH}" height="{height}"/>',
            _text("ink head", _LEFT, 24, _short(self.title)),
            _text("soft", _LEFT, 44, self.y_title),
            _text("soft", _WIDTH - _RIGHT, bottom + 38, self.x_title, "end"),
            *self._grid(),
            *self.marks,
            *(f'<g transform="translate({_LEFT} {bottom + 62 + _ROW * row})">{entry}</g>' for row, entry in keys),
        ]
        return "\n".join([*lines, "</svg>\n"])

    def _grid(self) -> Iterator[str]:
        for value in _ticks(self.low, self.high):
            y = self.y(value)
            yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
            yield _text("soft", _LEFT - 8, y + 4, f"{value:g}{self.unit}", "end")
        every = max(1, math.ceil(self.columns / 16))
        for number in range(1, self.columns + 1):
            if number == 1 or number % every == 0:
                yield _text("soft", self.x(number), _TOP + _PLOT_HEIGHT + 18, str(number), "middle")


def _speedup(recommendation: Recommendation) -> str:
    drafts, measured = by_draft(recommendation), _measured(recommendation)
    low, high = speedup_span(recommendation)
    picture = _Picture(
        title=f"Speed-up at T = {recommendation.temperature:g}",
        columns=max(deepest(series).num_speculative_tokens for series in drafts.values()),
        low=low,
        high=high,
        x_title="K, num_speculative_tokens",
        y_title="tokens per second over plain decoding's, with 95% intervals",
        unit="×",
    )
    for number, (draft, series) in enumerate(drafts.items()):
        aside = (number - (len(drafts) - 1) / 2) * min(0.08, 0.5 / len(drafts))  # no whisker covers another
        picture.line([(c.num_speculative_tokens + aside, c.speedup.estimate) for c in series], number)
        for candidate in series:
            picture.whisker(candidate.num_speculative_tokens + aside, candidate.speedup, number)
        for decoded in (setting for setting in measured if setting.draft == draft):
            at = decoded.num_speculative_tokens + aside + 0.12
            picture.whisker(at, decoded.measured, number)
            picture.diamond(at, decoded.measured_speedup, number)
        picture.key_line(number, draft)
    if measured:
        mark = '<path class="line soft-line hollow" d="M11 -7l7 7l-7 7l-7 -7z"/>'
        picture.key(mark, "measured: held-out prompts decoded for real")
    picture.level(1.0, "plain decoding")
    picture.level(recommendation.min_gain, f"worth it above {recommendation.min_gain:.2f}×", dashed=True)
    return picture.svg()


def speedup_span(recommendation: Recommendation) -> tuple[float, float]:
    """What an axis of speed-ups shows: every point, 1 and the bound; an end that is far off may stick out."""
    shown = [candidate.speedup for series in by_draft(recommendation).values() for candidate in series]
    intervals = [*shown, *(decoded.measured for decoded in _measured(recommendation))]
    top = max(interval.estimate for interval in intervals)
    ends = [end for i in intervals for end in (i.low, i.high, i.estimate) if end is not None and end < 1.5 * top]
    low, high = min(*ends, 1.0), max(*ends, recommendation.min_gain)
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _measured(recommendation: Recommendation) -> list[ConfirmedSetting]:
    decoded = recommendation.confirmation.settings if recommendation.confirmation else []
    return [setting for setting in decoded if setting.temperature == recommendation.temperature]


def deepest(series: Sequence[Candidate]) -> Candidate:
    """The one of the largest K."""
    return max(series, key=lambda candidate: candidate.num_speculative_tokens)


def _acceptance(recommendation: Recommendation) -> str:
    longest = {draft: deepest(series) for draft, series in by_draft(recommendation).items()}
    picture = _Picture(
        title=f"Acceptance by position at T = {recommendation.temperature:g}",
        columns=max(candidate.num_speculative_tokens for candidate in longest.values()),
        low=0.0,
        high=1.0,
        x_title="position in the round",
        y_title="share of proposals accepted, once those before were",
    )
    for number, (draft, candidate) in enumerate(longest.items()):
        rates = enumerate(candidate.conditional_acceptance_rate, start=1)
        picture.line(((place, rate) for place, rate in rates if rate is not None), number)
        picture.key_line(number, draft)
    return picture.svg()


def _round(recommendation: Recommendation) -> str:
    best = recommendation.best_candidate
    series = by_draft(recommendation)[best.draft]
    longest = 1e3 * max(*(c.draft_s + c.verify_s + c.overhead_s for c in series), best.plain_s)
    picture = _Picture(
        title=f"A round of {best.draft}",
        columns=deepest(series).num_speculative_tokens,
        low=0.0,
        high=longest * 1.12,
        x_title="K, num_speculative_tokens",
        y_title="milliseconds a round",
    )
    for candidate in series:
        bottom = 0.0
        for number, seconds in enumerate((candidate.verify_s, candidate.draft_s, candidate.overhead_s)):
            top = bottom + 1e3 * seconds
            picture.bar(candidate.num_speculative_tokens, bottom, top, number)
            bottom = top
    for number, name in enumerate(("verify: the target over K + 1 tokens", "draft", "overhead: the loop around them")):
        picture.key(f'<rect class="f{number}" x="4" y="-6" width="14" height="12"/>', name)
    picture.level(1e3 * best.plain_s, "a plain step")
    return picture.svg()


def by_draft(recommendation: Recommendation) -> Mapping[str, list[Candidate]]:
    """The candidates at the headline's temperature, a list for each draft."""
    drafts: dict[str, list[Candidate]] = {}
    for candidate in recommendation.candidates:
        if candidate.temperature == recommendation.temperature:
            drafts.setdefault(candidate.draft, []).append(candidate)
    return drafts


def _text(kind: str, x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _colour(series: int) -> int:
    return series % len(_COLOURS)


def _line_class(series: int) -> str:
    dash = series // len(_COLOURS) % len(_DASHES)
    return f"line s{_colour(series)}" + (f" d{dash}" if dash else "")


def _short(name: str) -> str:
    """The end of a long name: of a path, that tells most."""
    return name if len(name) <= _LONGEST_NAME else "…" + name[1 - _LONGEST_NAME :]


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between, four to nine of them."""
    step = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 9)
    first = math.ceil(low / step)
    return [round(index * step, 10) for index in range(first, math.floor(high / step) + 1)]


def _rules(paper: str, ink: str, soft: str, grid: str, shade: int) -> str:
    colours = "".join(
        f".s{number}{{stroke:{pair[shade]}}}.f{number}{{fill:{pair[shade]}}}" for number, pair in enumerate(_COLOURS)
    )
    return (
        f".paper{{fill:{paper}}}.ink{{fill:{ink}}}.soft{{fill:{soft}}}.grid{{stroke:{grid}}}"
        f".level{{stroke:{soft}}}.soft-line{{stroke:{soft}}}.hollow{{fill:{paper}}}{colours}"
    )


_STYLE = (
    "text{font:13px system-ui,sans-serif}.head{font-weight:600;font-size:15px}"
    ".line{fill:none;stroke-width:2}.thin{stroke-width:1.2}.soft-line{stroke-width:2}"
    + "".join(f".d{number}{{stroke-dasharray:{dash}}}" for number, dash in enumerate(_DASHES) if dash)
    + ".level{stroke-width:1.2}.dashed{stroke-dasharray:5 4}"
    + _rules("#ffffff", "#1f2328", "#59636e", "#e4e8ec", 0)
    + "@media(prefers-color-scheme:dark){"
    + _rules("#0d1117", "#f0f6fc", "#9198a1", "#262c36", 1)
    + "}"
)
