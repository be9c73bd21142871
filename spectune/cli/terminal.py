"""What a person sees while it runs: progress and tables on stderr, plain lines where that is no terminal."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.table import Table

from spectune.choice import Choice
from spectune.decide.check import Check
from spectune.decide.confirmation import Confirmation, ConfirmedSetting
from spectune.decide.fit import Setting
from spectune.decide.formula import FormulaFit
from spectune.decide.reasons import machine_line
from spectune.decide.selection import choose
from spectune.profile.manifest import Notice
from spectune.report.ci import change_text, headline, name_of, status_text
from spectune.report.markdown import interval_text
from spectune.report.sections import formula_text

_NARROW_COLUMNS = 72
_SAY_EVERY_S = 30.0  # on a pipe


class TerminalProgress:
    """One line for each stage: a bar with the time left, or on a pipe a line now and then and when it ends."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, markup=False)
        columns = (
            TextColumn("{task.description:<8}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}  {task.fields[note]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        self._bars = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        self._task: Task | None = None  # the stage that runs
        self._said = 0.0

    def __enter__(self) -> "TerminalProgress":
        self._bars.start()
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        if failed is None:
            self._finish_stage()
        self._bars.stop()

    def start(self, stage: str, total: float, unit: str) -> None:
        """A stage begins."""
        self._finish_stage()
        self._bars.add_task(stage, total=total, unit=unit, note="")
        self._task, self._said = self._bars.tasks[-1], perf_counter()

    def advance(self, amount: float, note: str = "") -> None:
        """Part of the current stage is done."""
        assert self._task is not None, "advance before start"
        self._bars.advance(self._task.id, amount)
        if note:
            self._bars.update(self._task.id, note=note)
        done, total = self._task.completed, self._task.total or 0.0
        if not self.console.is_terminal and perf_counter() - self._said > _SAY_EVERY_S and done < total:
            self._said = perf_counter()
            self.say(f"{self._task.description} {done / total:.0%}")

    def say(self, text: str) -> None:
        """A line worth reading."""
        self.console.print(text, soft_wrap=True)

    def _finish_stage(self) -> None:
        if self._task and not self.console.is_terminal:
            self.say(f"{self._task.description} took {self._task.elapsed:.0f} s")
        self._task = None


def show_settings(console: Console, settings: Sequence[Setting], formula: Sequence[FormulaFit]) -> None:
    """A table for each draft and temperature; the chosen setting at a temperature is marked."""
    for fit in sorted(formula, key=lambda fit: fit.temperature):
        here = [setting for setting in settings if setting.temperature == fit.temperature]
        group = [setting for setting in here if setting.draft == fit.draft]
        console.print(f"T = {fit.temperature:g} · {fit.draft}", style="bold", soft_wrap=True)
        console.print(_settings_table(group, choose(here).choice, narrow=console.width < _NARROW_COLUMNS))
        console.print(f"formula (1−α^(K+1))/(1−α): {formula_text(fit)}\n", soft_wrap=True)


def _table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def _settings_table(settings: Sequence[Setting], fastest: Choice, narrow: bool) -> Table:
    """Where it is narrow, without the times, 36 columns wide."""
    wide = ("K", "tokens/round", "verify", "draft", "speed-up", "[95%]", "")
    table = _table(*(("K", "tokens/round", "speed-up [95%]") if narrow else wide))
    for setting in settings:
        k, length, best = setting.num_speculative_tokens, setting.acceptance.length.estimate, setting.choice == fastest
        speedup = interval_text(setting.speedup)
        if narrow:
            table.add_row(f"{'→ ' if best else ''}{k}", f"{length:.2f}", speedup)
            continue
        times = (f"{seconds * 1e3:.1f} ms" for seconds in (setting.round.verify_s, setting.round.draft_s))
        table.add_row(str(k), f"{length:.2f}", *times, *speedup.split(" ", 1), "← best" if best else "")
    return table


def show_confirmation(confirmation: Confirmation) -> None:
    """On stdout: predicted, replayed and measured side by side, then the errors over all settings."""
    console = Console(highlight=False, markup=False)
    groups: dict[tuple[float, str], list[ConfirmedSetting]] = {}
    for setting in confirmation.settings:
        groups.setdefault((setting.temperature, setting.draft), []).append(setting)
    for (temperature, draft), group in groups.items():
        tokens = min(setting.measured_tokens for setting in group)
        console.print(f"T = {temperature:g} · {draft} · {tokens:,} tokens or more each", soft_wrap=True)
        console.print(_confirmation_table(group, narrow=console.width < _NARROW_COLUMNS))
        console.print()
    console.print("\n".join(_errors(confirmation)), soft_wrap=True)


def _errors(confirmation: Confirmation) -> Iterator[str]:
    nulls, inside = confirmation.null_errors, confirmation.fraction_inside_interval
    worst = f"{confirmation.max_method_error:.1%} at worst"
    yield f"method error {confirmation.median_method_error:.1%} in the median, {worst}"
    yield f"without replay: “nothing changes” {nulls.always_one:.1%}, formula with a cost ratio {nulls.geometric:.1%}"
    if inside is not None:
        yield f"{inside:.0%} of the measured figures lie inside the predicted interval"
    if line := machine_line(confirmation):
        yield line
    for setting in confirmation.settings:
        if sentence := setting.miss.sentence:
            which = f"K = {setting.num_speculative_tokens} of {setting.draft} at T = {setting.temperature:g}"
            yield f"{which} misses by {setting.method_error:.1%}: {sentence}"


def _confirmation_table(settings: Sequence[ConfirmedSetting], narrow: bool) -> Table:
    wide = ("K", "predicted [a run falls in]", "replayed", "measured [95%]", "error", "")
    table = _table(*(("K", "predicted", "replayed", "measured") if narrow else wide))
    for setting in settings:
        k, replayed = str(setting.num_speculative_tokens), f"{setting.replayed_speedup:.2f}"
        if narrow:
            table.add_row(k, f"{setting.predicted_speedup:.2f}", replayed, f"{setting.measured_speedup:.2f}")
            continue
        predicted, measured = (interval_text(interval) for interval in (setting.predicted, setting.measured))
        outside = "← outside" if setting.inside_interval is False else ""
        table.add_row(k, predicted, replayed, measured, f"{setting.method_error:.1%}", outside)
    return table


def show_check(check: Check) -> None:
    """On stdout: the verdict, the figures that decide by draft and temperature, and what explains a change."""
    console = Console(highlight=False, markup=False)
    console.print(headline(check), style="bold", soft_wrap=True)
    for choice, findings in groupby(check.findings, key=lambda finding: finding.choice):
        title = f"\nT = {choice.temperature:g} · {choice.draft} · K = {choice.num_speculative_tokens}"
        console.print(title, soft_wrap=True)
        table = Table(box=None, pad_edge=False, show_header=False)
        for finding in findings:
            if finding.headline or finding.status in ("regressed", "improved"):
                indent = "" if finding.headline else "  "
                table.add_row(indent + name_of(finding), change_text(finding), status_text(finding))
        console.print(table)
    for difference in check.differences:
        console.print(f"not the same: {difference}", soft_wrap=True)


def show_seconds(by_stage: Mapping[str, float]) -> None:
    """On stdout: what is estimated of each stage, and in all."""
    for stage, seconds in {**by_stage, "total": sum(by_stage.values())}.items():
        print(f"{stage:<8} {seconds:>8,.0f} s")


def show_warnings(console: Console, warnings: Sequence[Notice]) -> None:
    """Each with its advice."""
    if warnings:
        console.print(f"{len(warnings)} warning{'s' if len(warnings) > 1 else ''}")
        for warning in warnings:
            console.print(f"  {warning.code:<9} {warning.message}; {warning.advice}", soft_wrap=True)
        console.print()
