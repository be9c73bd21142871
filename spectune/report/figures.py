"""Pictures as SVG, in light and dark. Drawn here: importing a plotting library takes longer than `recommend` may."""

import math
from collections.abc import Mapping, Sequence
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
    return {
        "speedup": _speedup(recommendation),
        "acceptance": _acceptance(recommendation),
        "round": _round(recommendation),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axes:
    """Where values go; x are whole numbers from 1."""

    columns: int
    low: float
    high: float

    def x(self, value: float) -> float:
        step = (_WIDTH - _LEFT - _RIGHT) / self.columns
        return _LEFT + step * (value - 0.5)

    def y(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        return _TOP + _PLOT_HEIGHT * (self.high - inside) / (self.high - self.low)


@dataclass(slots=True, kw_only=True)
class _Picture:
    title: str
    axes: _Axes
    x_title: str
    y_title: str
    unit: str = ""
    marks: list[str] = field(default_factory=list)
    legend: list[str] = field(default_factory=list)

    def line(self, points: Sequence[tuple[float, float]], series: int) -> None:
        path = " ".join(f"{self.axes.x(x):.1f},{self.axes.y(y):.1f}" for x, y in points)
        self.marks.append(f'<polyline class="{_line_class(series)}" points="{path}"/>')
        self.marks += [
            f'<circle class="f{series % len(_COLOURS)}" cx="{self.axes.x(x):.1f}" cy="{self.axes.y(y):.1f}" r="3"/>'
            for x, y in points
        ]

    def whisker(self, x: float, interval: Interval, series: int) -> None:
        if interval.low is None or interval.high is None:
            return
        at, low, high = self.axes.x(x), self.axes.y(interval.low), self.axes.y(interval.high)
        self.marks.append(f'<path class="thin s{series % len(_COLOURS)}" d="M{at:.1f} {low:.1f}V{high:.1f}"/>')

    def diamond(self, x: float, y: float, series: int) -> None:
        at, height = self.axes.x(x), self.axes.y(y)
        corners = f"M{at:.1f} {height - 7:.1f}l7 7l-7 7l-7 -7z"
        self.marks.append(f'<path class="{_line_class(series)} hollow" d="{corners}"/>')

    def level(self, y: float, name: str, dashed: bool = False) -> None:
        height, kind = self.axes.y(y), "level dashed" if dashed else "level"
        self.marks.append(f'<path class="{kind}" d="M{_LEFT} {height:.1f}H{_WIDTH - _RIGHT}"/>')
        self.legend.append(f'<path class="{kind}" d="M0 0H22"/>' + _text("ink", 32, 4, name))

    def bar(self, x: float, bottom: float, top: float, series: int) -> None:
        width = min(36.0, 0.6 * (self.axes.x(2) - self.axes.x(1)))
        high, low = self.axes.y(top), self.axes.y(bottom)
        self.marks.append(
            f'<rect class="f{series % len(_COLOURS)}" x="{self.axes.x(x) - width / 2:.1f}" y="{high:.1f}" '
            f'width="{width:.1f}" height="{max(low - high, 0):.1f}"/>'
        )

    def key(self, series: int, name: str) -> None:
        colour = series % len(_COLOURS)
        mark = f'<path class="{_line_class(series)}" d="M0 0H22"/><circle class="f{colour}" cx="11" r="3"/>'
        self.legend.append(mark + _text("ink", 32, 4, _short(name)))

    def key_block(self, series: int, name: str) -> None:
        mark = f'<rect class="f{series % len(_COLOURS)}" x="4" y="-6" width="14" height="12"/>'
        self.legend.append(mark + _text("ink", 32, 4, name))

    def key_diamond(self, name: str) -> None:
        mark = '<path class="line soft-line hollow" d="M11 -7l7 7l-7 7l-7 -7z"/>'
        self.legend.append(mark + _text("ink", 32, 4, name))

    def svg(self) -> str:
        bottom = _TOP + _PLOT_HEIGHT
        height = bottom + 58 + _ROW * len(self.legend)
        keys = [
            f'<g transform="translate({_LEFT} {bottom + 62 + _ROW * row})">{entry}</g>'
            for row, entry in enumerate(self.legend)
        ]
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
                f'height="{height}" role="img">',
                f"<title>{escape(self.title)}</title>",
                f"<style>{_STYLE}</style>",
                f'<rect class="paper" width="{_WIDTH}" height="{height}"/>',
                _text("ink head", _LEFT, 24, _short(self.title)),
                _text("soft", _LEFT, 44, self.y_title),
                _text("soft", _WIDTH - _RIGHT, bottom + 38, self.x_title, "end"),
                *self._grid(),
                *self.marks,
                *keys,
                "</svg>\n",
            ]
        )

    def _grid(self) -> list[str]:
        lines = []
        for value in _ticks(self.axes.low, self.axes.high):
            y = self.axes.y(value)
            lines.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
            lines.append(_text("soft", _LEFT - 8, y + 4, f"{value:g}{self.unit}", "end"))
        every = max(1, math.ceil(self.axes.columns / 16))
        for value in range(1, self.axes.columns + 1):
            if value == 1 or value % every == 0:
                lines.append(_text("soft", self.axes.x(value), _TOP + _PLOT_HEIGHT + 18, str(value), "middle"))
        return lines


def _speedup(recommendation: Recommendation) -> str:
    drafts, measured = by_draft(recommendation), _measured(recommendation)
    low, high = speedup_span(recommendation)
    picture = _Picture(
        title=f"Speed-up at T = {recommendation.temperature:g}",
        axes=_Axes(columns=_deepest(drafts), low=low, high=high),
        x_title="K, num_speculative_tokens",
        y_title="tokens per second over plain decoding's, with 95% intervals",
        unit="×",
    )
    for number, (draft, series) in enumerate(drafts.items()):
        aside = _aside(number, len(drafts))
        picture.line([(c.num_speculative_tokens + aside, c.speedup.estimate) for c in series], number)
        for candidate in series:
            picture.whisker(candidate.num_speculative_tokens + aside, candidate.speedup, number)
        for decoded in (setting for setting in measured if setting.draft == draft):
            at = decoded.num_speculative_tokens + aside + 0.12
            picture.whisker(at, decoded.measured, number)
            picture.diamond(at, decoded.measured_speedup, number)
        picture.key(number, draft)
    if measured:
        picture.key_diamond("measured: held-out prompts decoded for real")
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


def _deepest(drafts: Mapping[str, list[Candidate]]) -> int:
    return max(candidate.num_speculative_tokens for series in drafts.values() for candidate in series)


def _acceptance(recommendation: Recommendation) -> str:
    drafts = by_draft(recommendation)
    longest = {draft: max(series, key=lambda c: c.num_speculative_tokens) for draft, series in drafts.items()}
    picture = _Picture(
        title=f"Acceptance by position at T = {recommendation.temperature:g}",
        axes=_Axes(columns=max(c.num_speculative_tokens for c in longest.values()), low=0.0, high=1.0),
        x_title="position in the round",
        y_title="share of proposals accepted, once those before were",
    )
    for number, (draft, candidate) in enumerate(longest.items()):
        rates = enumerate(candidate.conditional_acceptance_rate, start=1)
        picture.line([(place, rate) for place, rate in rates if rate is not None], number)
        picture.key(number, draft)
    return picture.svg()


def _round(recommendation: Recommendation) -> str:
    best = recommendation.best_candidate
    series = by_draft(recommendation)[best.draft]
    parts = ("verify", "draft", "overhead")
    longest = 1e3 * max(*(c.draft_s + c.verify_s + c.overhead_s for c in series), best.plain_s)
    picture = _Picture(
        title=f"A round of {best.draft}",
        axes=_Axes(columns=max(c.num_speculative_tokens for c in series), low=0.0, high=longest * 1.12),
        x_title="K, num_speculative_tokens",
        y_title="milliseconds a round",
    )
    for candidate in series:
        bottom = 0.0
        for number, part in enumerate(parts):
            top = bottom + 1e3 * getattr(candidate, f"{part}_s")
            picture.bar(candidate.num_speculative_tokens, bottom, top, number)
            bottom = top
    for number, name in enumerate(("verify: the target over K + 1 tokens", "draft", "overhead: the loop around them")):
        picture.key_block(number, name)
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


def _aside(number: int, count: int) -> float:
    """Series stand beside each other at a K, so that whiskers do not cover each other."""
    return (number - (count - 1) / 2) * min(0.08, 0.5 / count)


def _line_class(series: int) -> str:
    colour, dash = series % len(_COLOURS), series // len(_COLOURS) % len(_DASHES)
    return f"line s{colour}" + (f" d{dash}" if dash else "")


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
