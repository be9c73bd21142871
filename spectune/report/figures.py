"""Pictures as SVG whose text stays text, right on light and on dark grounds."""

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spectune.decide.confirmation import ConfirmedSetting
from spectune.decide.recommendation import Candidate, Recommendation
from spectune.stats import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PAPER, _INK, _SOFT, _GRID = "#ffffff", "#1f2328", "#59636e", "#e4e8ec"
_COLOURS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#57606a")
_DARK = dict(zip((_PAPER, _INK, _SOFT, _GRID, *_COLOURS), (
    "#0d1117", "#f0f6fc", "#9198a1", "#262c36", "#58a6ff", "#f0883e", "#56d364", "#bc8cff", "#f778ba", "#adbac7",
), strict=True))  # fmt: skip
_STROKES = ("-", "--", ":")  # each colour once solid, then dashed
_PARTS = {"verify_s": "verify: the target over K + 1 tokens", "draft_s": "draft", "overhead_s": "the loop around them"}
_STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "spectune", "text.parse_math": False, "font.family": "sans-serif",
    "figure.facecolor": _PAPER, "axes.facecolor": _PAPER, "text.color": _INK, "axes.labelcolor": _SOFT,
    "xtick.color": _SOFT, "ytick.color": _SOFT, "axes.edgecolor": _SOFT, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True, "grid.color": _GRID,
    "axes.titlelocation": "left", "axes.titleweight": "bold", "legend.frameon": False, "errorbar.capsize": 2,
}  # fmt: skip


def figures(recommendation: Recommendation) -> dict[str, str]:
    """SVG by name: speedup (against K), acceptance (by position), round (its time, by part), category (speed-ups)."""
    return {name: _svg(figure) for name, figure in _drawn(recommendation)}


def figures_png(recommendation: Recommendation) -> dict[str, bytes]:
    """The same as PNG, on a light ground."""
    return {name: _png(figure) for name, figure in _drawn(recommendation)}


def _drawn(recommendation: Recommendation) -> Iterator[tuple[str, "Figure"]]:
    import matplotlib as mpl  # slow to import: only where pictures are drawn

    drawn = {"speedup": _speedup, "acceptance": _acceptance, "round": _round, "category": _category}
    with mpl.rc_context(_STYLE):
        yield from ((name, draw(recommendation)) for name, draw in drawn.items())


def _png(figure: "Figure") -> bytes:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=144)
    return data.getvalue()


def _svg(figure: "Figure") -> str:
    """A reader's dark ground takes each colour for its dark twin."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    rule = '[style*="{0}: {1}"]{{{0}:{2}!important}}'  # fill or stroke, light, dark
    twins = (rule.format(kind, *colours) for colours in _DARK.items() for kind in ("fill", "stroke"))
    style = f"<style>@media(prefers-color-scheme:dark){{{''.join(twins)}}}</style>"
    return text.getvalue().replace("<defs>", f"<defs>\n  {style}", 1)


def _panels(title: str, x_title: str, y_title: str, count: int = 1, keys: int = 1) -> tuple["Figure", list["Axes"]]:
    """Side by side, three in a row, on one scale; room below for so many keys."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rows, columns = -(-count // 3), min(count, 3)
    figure = Figure(figsize=(7.2, 1 + 3.2 * rows + 0.22 * keys), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    figure.suptitle(_short(title), x=0.01, ha="left", fontweight="bold")
    for panel in panels[-columns:]:
        panel.set_xlabel(x_title)
    figure.supylabel(y_title, color=_SOFT, fontsize="medium")
    panels[0].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure, panels


def _keyed(figure: "Figure", panel: "Axes") -> "Figure":
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower left")
    return figure


def _look(number: int) -> dict[str, Any]:
    """No two drafts look alike."""
    stroke = _STROKES[number // len(_COLOURS) % len(_STROKES)]
    return {"color": _COLOURS[number % len(_COLOURS)], "linestyle": stroke, "marker": "o", "markersize": 4}


def _whiskers(panel: "Axes", places: Sequence[float], intervals: Sequence[Interval], **look: Any) -> None:
    """Points with their intervals, where they have one."""
    ends = [(i.estimate - (i.low or i.estimate), (i.high or i.estimate) - i.estimate) for i in intervals]
    panel.errorbar(places, [i.estimate for i in intervals], yerr=list(zip(*ends, strict=True)), **look)


def _speedup(recommendation: Recommendation) -> "Figure":
    drafts, measured = by_draft(recommendation), _measured(recommendation)
    title = f"Speed-up at T = {recommendation.temperature:g}, with 95% intervals"
    figure, (panel,) = _panels(title, "K, num_speculative_tokens", "times plain decoding", keys=len(drafts) + 3)
    for number, (draft, series) in enumerate(drafts.items()):
        aside = (number - (len(drafts) - 1) / 2) * min(0.08, 0.5 / len(drafts))  # no whisker covers another
        places = [candidate.num_speculative_tokens + aside for candidate in series]
        _whiskers(panel, places, [candidate.speedup for candidate in series], label=_short(draft), **_look(number))
        decoded = [setting for setting in measured if setting.draft == draft]
        if decoded:
            places = [setting.num_speculative_tokens + aside + 0.12 for setting in decoded]
            diamond = {**_look(number), "linestyle": "", "marker": "D", "markersize": 8, "markerfacecolor": "none"}
            label = "measured: held-out prompts decoded for real"
            _whiskers(panel, places, [setting.measured for setting in decoded], label=label, **diamond)
    panel.axhline(1.0, color=_SOFT, label="plain decoding")
    bound = recommendation.min_gain
    panel.axhline(bound, color=_SOFT, linestyle="--", label=f"worth it above {bound:.2f}×")
    panel.set_ylim(*speedup_span(recommendation))
    return _keyed(figure, panel)


def _acceptance(recommendation: Recommendation) -> "Figure":
    drafts, temperature = by_draft(recommendation), recommendation.temperature
    alphas = {fit.draft: fit.alpha for fit in recommendation.formula if fit.temperature == temperature}
    title = f"Acceptance by position at T = {temperature:g}"
    figure, (panel,) = _panels(title, "position in the round", "accepted, once reached", keys=2 * len(drafts))
    for number, (draft, series) in enumerate(drafts.items()):
        rates = enumerate(deepest(series).conditional_acceptance_rate, start=1)
        reached = [(place, rate) for place, rate in rates if rate is not None]
        panel.plot(*zip(*reached, strict=True), label=_short(draft), **_look(number)) if reached else None
        if draft in alphas:
            look = {"color": _look(number)["color"], "linestyle": "-.", "linewidth": 0.8}
            panel.axhline(alphas[draft], label=f"the formula's one α = {alphas[draft]:.2f}", **look)
    panel.set_ylim(0, 1)
    return _keyed(figure, panel)


def _round(recommendation: Recommendation) -> "Figure":
    drafts, plain_ms = by_draft(recommendation), 1e3 * recommendation.best_candidate.plain_s
    title, x_title = "What a round's time goes into", "K, num_speculative_tokens"
    figure, panels = _panels(title, x_title, "milliseconds a round", count=len(drafts), keys=4)
    for panel, (draft, series) in zip(panels, drafts.items(), strict=False):
        places, bottom = [candidate.num_speculative_tokens for candidate in series], [0.0] * len(series)
        for colour, (part, label) in zip(_COLOURS, _PARTS.items(), strict=False):
            heights = [1e3 * getattr(candidate, part) for candidate in series]
            panel.bar(places, heights, 0.6, bottom=bottom, color=colour, label=label)
            bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
        panel.axhline(plain_ms, color=_SOFT, label="a plain step")
        panel.set_title(_short(draft, 72 // min(len(drafts), 3)), fontsize="small", fontweight="normal")
    for panel in panels[len(drafts) :]:
        panel.set_axis_off()
    return _keyed(figure, panels[0])


def _category(recommendation: Recommendation) -> "Figure":
    best, kinds = recommendation.best_candidate, [kind for kind in recommendation.by_category if kind.speedup]
    title = f"Speed-up of {best.draft}, K = {best.num_speculative_tokens}, by category"
    figure, (panel,) = _panels(title, "few prompts each: none of them decides", "times plain decoding", keys=2)
    look = {**_look(0), "linestyle": ""}
    _whiskers(panel, range(len(kinds)), [kind.speedup for kind in kinds if kind.speedup], **look) if kinds else None
    panel.set_xticks(range(len(kinds)), [_short(kind.category, 14) for kind in kinds])
    panel.set_xlim(-0.5, max(len(kinds), 1) - 0.5)
    panel.axhline(1.0, color=_SOFT, label="plain decoding")
    return _keyed(figure, panel)


def _measured(recommendation: Recommendation) -> list[ConfirmedSetting]:
    decoded = recommendation.confirmation.settings if recommendation.confirmation else []
    return [setting for setting in decoded if setting.temperature == recommendation.temperature]


def _short(name: str, longest: int = 72) -> str:
    """The end of a long name: of a path, that tells most."""
    return name if len(name) <= longest else "…" + name[1 - longest :]


def speedup_span(recommendation: Recommendation) -> tuple[float, float]:
    """What an axis of speed-ups shows: every point, 1 and the bound; an end that is far off may stick out."""
    shown = [candidate.speedup for series in by_draft(recommendation).values() for candidate in series]
    intervals = [*shown, *(decoded.measured for decoded in _measured(recommendation))]
    top = max(interval.estimate for interval in intervals)
    ends = [end for i in intervals for end in (i.low, i.high, i.estimate) if end is not None and end < 1.5 * top]
    low, high = min(*ends, 1.0), max(*ends, recommendation.min_gain)
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def deepest(series: Sequence[Candidate]) -> Candidate:
    """The one of the largest K."""
    return max(series, key=lambda candidate: candidate.num_speculative_tokens)


def by_draft(recommendation: Recommendation) -> Mapping[str, list[Candidate]]:
    """The candidates at the headline's temperature, a list for each draft."""
    here = [c for c in recommendation.candidates if c.temperature == recommendation.temperature]
    return {draft: [c for c in here if c.draft == draft] for draft in dict.fromkeys(c.draft for c in here)}
