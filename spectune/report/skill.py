"""The skill file: an agent skill in Markdown that an engineer can act on. Every number is the recommendation's."""

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

import yaml

from spectune.decide.confirmation import Confirmation, ConfirmedSetting
from spectune.decide.formula import FormulaFit
from spectune.decide.recommendation import Candidate, CategoryAnswer, LoadAnswer, Recommendation, TemperatureAnswer
from spectune.engines.config import EngineConfig
from spectune.report import labels
from spectune.report.markdown import block, table
from spectune.stats import Interval

_CANDIDATES_SHOWN = 24
_MACHINE_CHANGED = 1.1


def skill_markdown(
    recommendation: Recommendation, configs: Sequence[EngineConfig], pictures: Mapping[str, str] | None = None
) -> str:
    """The whole file: verdict, settings and configs first, evidence after; `pictures` are files beside it, by name."""
    sections = [
        _front_matter(recommendation),
        f"# Speculative tuning: {recommendation.applies_to.target}",
        f"**{headline(recommendation)}**",
        _settings(recommendation),
        _configs(recommendation, configs),
        _fallback(recommendation),
        _reasons(recommendation),
        _temperatures(recommendation.by_temperature),
        _categories(recommendation.by_category),
        *([_loads(recommendation.by_load)] if len(recommendation.by_load) > 1 else []),
        _candidates(recommendation),
        *_pictures(pictures or {}),
        *([_confirmed(recommendation.confirmation)] if recommendation.confirmation else []),
        _how_sure(recommendation),
        _applies_to(recommendation),
        f"## Reproduce\n\n{block(recommendation.reproduce, 'sh')}",
    ]
    return "\n\n".join(sections) + "\n"


def headline(recommendation: Recommendation) -> str:
    """The verdict in one sentence; a speed-up names the engine it was measured in."""
    best, where = recommendation.best_candidate, _where(recommendation)
    at = f"at T = {recommendation.temperature:g}"
    setting = f"{best.draft}, K = {best.num_speculative_tokens}"
    gain = f"{interval_text(recommendation.speedup, '×')} over plain decoding ({where})"
    tried, meanwhile = f"the best setting tried, {setting}, reaches {gain}", f"{labels.DECODE_PLAINLY} meanwhile"
    if recommendation.verdict == "speculate":
        return f"{labels.SPECULATE} with {setting}, {at}: {gain}."
    if recommendation.verdict == "plain":
        return f"{labels.DECODE_PLAINLY} {at}: {tried}."
    if recommendation.refuted and recommendation.best_decoded:
        gained = f"gained {recommendation.best_decoded.measured_speedup:.2f}× when held-out prompts were decoded"
        return f"{labels.NOT_CONFIRMED} {at}: {setting}, was to reach {gain}, but {gained}. {meanwhile}."
    return f"{labels.UNDECIDED} {at}: {tried}. {meanwhile}."


def interval_text(interval: Interval, unit: str = "") -> str:
    """`1.19× [1.10, 1.29]`; without an interval, the point alone."""
    if interval.low is None or interval.high is None:
        return f"{interval.estimate:.2f}{unit} [no interval]"
    return f"{interval.estimate:.2f}{unit} [{interval.low:.2f}, {interval.high:.2f}]"


def formula_text(fit: FormulaFit) -> str:
    """Its α, whether it describes the tokens per round, and what it would have said."""
    off = f"off by {fit.largest_error:+.1%} at K = {fit.largest_error_at}"
    advice = "plain decoding" if fit.chosen_k == 0 else f"K = {fit.chosen_k} at {fit.promised_speedup:.2f}×"
    real = "" if fit.chosen_k == 0 else f", where replay and measured costs say {fit.replayed_speedup:.2f}×"
    return f"α = {fit.alpha:.2f} {fit.verdict}, {off}; it would have chosen {advice}{real}"


def _where(recommendation: Recommendation) -> str:
    applies = recommendation.applies_to
    return f"measured in {applies.engine}'s own loop on {applies.device}, {applies.dtype}, batch {applies.batch}"


def _front_matter(recommendation: Recommendation) -> str:
    applies = recommendation.applies_to
    description = (
        f"Whether and how to use speculative decoding with {applies.target} on {applies.hardware} for workload "
        f"{applies.workload}. Read before setting or changing a draft, num_speculative_tokens, or a temperature "
        "in a serving config for this model."
    )
    fields = {"name": "speculative-tuning", "description": description}
    return f"---\n{yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=1000)}---"


def _settings(recommendation: Recommendation) -> str:
    gate, alpha = recommendation.temperature_gate, recommendation.break_even_alpha
    advice = (
        recommendation.draft or "none",
        _or_none(recommendation.num_speculative_tokens),
        str(recommendation.tree_width),
        _or_none(gate.speculate_up_to),
        _or_none(gate.plain_from, "none of those measured"),
    )
    lengths = recommendation.best_candidate.acceptance_length
    rows = [
        *zip(labels.ADVICE, advice, strict=True),
        *zip(labels.FIGURES, (interval_text(recommendation.speedup, "×"), interval_text(lengths)), strict=True),
        ("break-even acceptance", "none: even a perfect draft loses" if alpha is None else f"{alpha:.2f}"),
    ]
    return "## Settings\n\n" + table(("setting", "value"), rows)


def _or_none(value: float | None, absent: str = "none") -> str:
    return absent if value is None else f"{value:g}"


def _configs(recommendation: Recommendation, configs: Sequence[EngineConfig]) -> str:
    title, lead = {
        "speculate": ("Configs to paste", "Costs differ between engines: measure before you trust a speed-up there."),
        "plain": (
            "Configs not to serve with",
            "Plain decoding needs no setting. Costs differ between engines: with these the best candidate can be "
            "measured there, nothing more.",
        ),
        "insufficient-data": (
            "Configs not to serve with yet",
            "Nothing to set so far. Costs differ between engines: with these the best candidate can be measured there.",
        ),
    }[recommendation.verdict]
    return "\n\n".join([f"## {title}\n\n{lead}", *map(_config, configs)])


def _config(config: EngineConfig) -> str:
    notes = "; ".join([*config.notes, *config.warnings])
    read = {name: text for name, text in config.files.items() if name in config.text}
    files = "".join(f"`{name}`:\n\n```{name.split('.')[-1]}\n{text}```\n\n" for name, text in read.items())
    return (
        f"{labels.config_heading(config.engine, config.checked_against)}\n\n"
        f"{block(config.text, config.language)}\n\n{files}"
        f"{_length_text(config)} tokens per round under this engine's rule ({config.acceptance_rule}); {notes}."
    )


def _length_text(config: EngineConfig) -> str:
    return "An unknown number of" if config.acceptance_length is None else f"{config.acceptance_length:.2f}"


def _fallback(recommendation: Recommendation) -> str:
    rule = recommendation.fallback
    if rule is None:
        return f"## When to fall back\n\nNo rule: {recommendation.fallback_reason}."
    return (
        "## When to fall back\n\n"
        f"Decode plainly when tokens per round stay below {rule.acceptance_length_below:.2f} over "
        f"{rule.window_requests} finished requests ({recommendation.fallback_reason}); in a healthy stream at most "
        f"{rule.false_trip_rate:.5f} of such windows do. Then try again from time to time."
    )


def _reasons(recommendation: Recommendation) -> str:
    return "## Why\n\n" + "\n".join(f"- {reason}" for reason in recommendation.reasons)


def _temperatures(answers: Sequence[TemperatureAnswer]) -> str:
    rows = [
        (f"{a.temperature:g}", a.verdict, a.best_candidate.draft, str(a.best_candidate.num_speculative_tokens),
         interval_text(a.speedup, "×"))
        for a in answers
    ]  # fmt: skip
    return "## By temperature\n\n" + table(("T", "verdict", "best candidate", "K", "speed-up [95%]"), rows)


def _categories(answers: Sequence[CategoryAnswer]) -> str:
    rows = [
        (a.category, str(a.prompts), "no data" if a.acceptance_length is None else f"{a.acceptance_length:.2f}",
         "no data" if a.speedup is None else interval_text(a.speedup, "×"), a.published or "")
        for a in answers
    ]  # fmt: skip
    header = ("category", "prompts", "tokens per round", "speed-up [95%]", "published elsewhere")
    note = (
        "The best candidate on each kind of text. Few prompts each: the intervals are wide, and none of them decides."
    )
    return f"## By category\n\n{note}\n\n{table(header, rows)}"


def _loads(answers: Sequence[LoadAnswer]) -> str:
    rows = [
        (str(a.batch), str(a.context_tokens), a.verdict, a.draft, str(a.num_speculative_tokens),
         interval_text(a.speedup, "×"))
        for a in answers
    ]  # fmt: skip
    note = (
        "Larger batches are priced as rounds in step under a full queue, each sequence at its own number of "
        "proposals, with the loop's overhead of batch 1."
    )
    header = ("batch", "context", "verdict", "best candidate", "K", "speed-up [95%]")
    return f"## By load\n\n{note}\n\n{table(header, rows)}"


def _confirmed(confirmation: Confirmation) -> str:
    header = ("draft", "K", "T", "predicted [a run falls in]", "replayed", "measured [95%]", "tokens", "method error")
    nulls, inside = confirmation.null_errors, confirmation.fraction_inside_interval
    note = (
        f"{confirmation.prompts} held-out prompts, up to {confirmation.max_new_tokens} new tokens, decoded plainly and "
        "speculatively by turns. Predicted: from the profiled prompts. Replayed: from the held-out prompts' own plain "
        f"text. Method error: replayed against measured, {confirmation.median_method_error:.3f} in the median, "
        f"{confirmation.max_method_error:.3f} at worst; the guess that nothing changes is off by "
        f"{nulls.always_one:.3f} in the median, the formula with a cost ratio by {nulls.geometric:.3f}."
    )
    held = "" if inside is None else f" The predicted interval held {inside:.2f} of the measured figures."
    changed = "" if not (line := machine_change(confirmation)) else f" {line[0].upper()}{line[1:]}."
    rows = map(_confirmed_row, confirmation.settings)
    return f"## Predicted against measured\n\n{note}{held}{changed}\n\n{table(header, rows)}"


def machine_change(confirmation: Confirmation) -> str | None:
    """A line where the machine was faster or slower at the run than while it was profiled."""
    ratio = confirmation.plain_step_ratio
    if max(ratio, 1 / ratio) <= _MACHINE_CHANGED:
        return None
    return (
        f"plain steps took {ratio:.2f} times as long as while profiling: the machine changed, which no prediction knows"
    )


def _confirmed_row(setting: ConfirmedSetting) -> tuple[str, ...]:
    return (
        setting.draft,
        str(setting.num_speculative_tokens),
        f"{setting.temperature:g}",
        interval_text(setting.predicted, "×"),
        f"{setting.replayed_speedup:.2f}×",
        interval_text(setting.measured, "×"),
        str(setting.measured_tokens),
        f"{setting.method_error:.3f}",
    )


def _candidates(recommendation: Recommendation) -> str:
    fastest = sorted(recommendation.candidates, key=lambda c: -c.speedup.estimate)[:_CANDIDATES_SHOWN]
    shown = [c for c in recommendation.candidates if c in fastest]
    header = ("draft", "K", "T", "tokens per round [95%]", "verify", "draft time", "round", "speed-up [95%]")
    count = len(recommendation.candidates)
    note = f"The fastest {len(shown)} of {count}. " if len(shown) < count else ""
    note += "Each with its own interval, which does not allow for the best having been chosen."
    return f"## What was tried\n\n{note}\n\n{table(header, map(_candidate, shown))}"


def _pictures(pictures: Mapping[str, str]) -> list[str]:
    texts = {
        "speedup": "Speed-up against K, with intervals and what was measured",
        "acceptance": "Acceptance by position in the round",
        "round": "What a round's time goes into",
    }
    return [f"![{texts[name]}]({quote(file)})" for name, file in pictures.items()]


def _candidate(candidate: Candidate) -> tuple[str, ...]:
    return (
        candidate.draft,
        str(candidate.num_speculative_tokens),
        f"{candidate.temperature:g}",
        interval_text(candidate.acceptance_length),
        *(f"{seconds:.4f} s" for seconds in (candidate.verify_s, candidate.draft_s, candidate.round_s)),
        interval_text(candidate.speedup, "×"),
    )


def _how_sure(recommendation: Recommendation) -> str:
    return "## How sure\n\n" + "\n".join(f"- {line}" for line in [*_limits(recommendation), *_doubts(recommendation)])


def _limits(recommendation: Recommendation) -> Iterator[str]:
    """What the interval and the tokens per round mean."""
    best = recommendation.best_candidate
    yield (
        f"The 95% interval counts prompts as the unit ({best.effective_prompts:.1f} effective) and includes the spread "
        "of the timings. It allows for the best of several candidates having been chosen: the lower end holds for "
        "whichever it is, the point is scored on prompts and timings that did not choose."
    )
    if not recommendation.confirmation:
        yield "It is a prediction: no speculative decoding was run to confirm it."
    yield f"To speculate, its lower end must exceed {recommendation.min_gain:.2f}."
    yield (
        f"A clock sees {best.clock_acceptance_length:.2f} tokens per round (the last round of a text that ends is cut "
        f"short), an engine's counters {best.acceptance_length.estimate:.2f}; the speed-up rests on the former."
    )


def _doubts(recommendation: Recommendation) -> Iterator[str]:
    """How well the costs are known, how far the formula is off, and every warning."""
    accuracy = recommendation.accuracy
    known = "timed too few times to tell its spread."
    if accuracy.noisiest_half_width is not None:
        known = f"within {accuracy.noisiest_half_width:.3f} of itself or of a plain step, the longer."
    yield f"The least known timing is {accuracy.noisiest_cell}: {known}"
    if accuracy.worst_round_error is not None:
        yield f"Parts measured apart miss rounds measured whole by {accuracy.worst_round_error:.3f} at worst."
    for fit in recommendation.formula:
        yield (
            f"One α in (1 − α^(K+1))/(1 − α) for {fit.draft} at T = {fit.temperature:g}: {fit.alpha:.2f}, it "
            f"{fit.verdict}, off by {fit.largest_error:.3f} of the tokens per round at K = {fit.largest_error_at}. "
            + _formula_advice(fit)
        )
    yield from (f"{notice.code}: {notice.message}; {notice.advice}." for notice in recommendation.warnings)


def _formula_advice(fit: FormulaFit) -> str:
    if fit.chosen_k == 0:
        return "With a cost ratio it would have chosen plain decoding."
    return (
        f"With a cost ratio it would have promised {fit.promised_speedup:.2f}× at K = {fit.chosen_k}; replay and "
        f"measured costs say {fit.replayed_speedup:.2f}× there."
    )


def _applies_to(recommendation: Recommendation) -> str:
    applies = recommendation.applies_to
    versions = ", ".join(f"{name} {version}" for name, version in applies.versions.items())
    rows = [
        (labels.TARGET, applies.target),
        ("hardware", f"{applies.hardware}; {applies.device}, {applies.threads} threads, {applies.dtype}"),
        ("engine", f"{applies.engine} ({versions})"),
        ("load", f"batch {applies.batch}, {applies.context_tokens} tokens of context"),
        (
            "workload",
            f"{applies.workload}, {applies.profiled_prompts} prompts, up to {applies.max_new_tokens} new tokens",
        ),
        ("sampling", f"top_p {applies.top_p:g}, top_k {applies.top_k}"),
        (labels.MEASURED, applies.profile_created_at),
    ]
    return (
        "## What it applies to\n\n"
        + table(("", ""), rows)
        + "\n\nAnother model, draft, text, temperature, batch, context, engine or machine can change the answer: "
        "profile again."
    )
