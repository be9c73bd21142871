"""The skill file: an agent skill in Markdown that an engineer can act on. Every number is the recommendation's."""

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

import yaml

from spectune.decide.confirmation import Confirmation
from spectune.decide.formula import FormulaFit
from spectune.decide.reasons import machine_line
from spectune.decide.recommendation import Candidate, Recommendation
from spectune.engines.config import EngineConfig
from spectune.report import verification as words
from spectune.report.markdown import block, bullets, interval_text, table

_CANDIDATES_SHOWN = 24
_PICTURES = {
    "speedup": "Speed-up against K, with intervals and what was measured",
    "acceptance": "Acceptance by position in the round",
    "round": "What a round's time goes into",
    "category": "Speed-up by category",
}
_FITS = {"fits": "fits", "misleads": "misleads", "undecided": "may fit or not"}
_BY_CATEGORY = (
    "The best candidate on each kind of text. Few prompts each: the intervals are wide, and none of them decides."
)
_BY_LOAD = (
    "Larger batches are priced as rounds in step under a full queue, each sequence at its own number of proposals, "
    "with the loop's overhead of batch 1."
)
_CONFIGS = {
    "speculate": ("## Configs to paste\n\nCosts differ between engines: measure before you trust a speed-up there."),
    "plain": (
        "## Configs not to serve with\n\nPlain decoding needs no setting. Costs differ between engines: with these the "
        "best candidate can be measured there, nothing more."
    ),
    "insufficient-data": (
        "## Configs not to serve with yet\n\nNothing to set so far. Costs differ between engines: with these the best "
        "candidate can be measured there."
    ),
}


def skill_markdown(
    recommendation: Recommendation, configs: Sequence[EngineConfig], pictures: Mapping[str, str] | None = None
) -> str:
    """The whole file: verdict, settings and configs first, evidence after; `pictures` are files beside it, by name."""
    sections = [
        _front_matter(recommendation),
        f"# Speculative tuning: {recommendation.applies_to.target}",
        f"**{headline(recommendation)}**",
        _settings(recommendation),
        _CONFIGS[recommendation.verdict],
        *map(_config, configs),
        _fallback(recommendation),
        bullets("Why", recommendation.reasons),
        *_breakdowns(recommendation),
        _candidates(recommendation),
        *(f"![{_PICTURES[name]}]({quote(file)})" for name, file in (pictures or {}).items()),
        *([_confirmed(recommendation.confirmation)] if recommendation.confirmation else []),
        bullets("How sure", [*_limits(recommendation), *_doubts(recommendation)]),
        _applies_to(recommendation),
        f"## Reproduce\n\n{block(recommendation.reproduce, 'sh')}",
    ]
    return "\n\n".join(sections) + "\n"


def headline(recommendation: Recommendation) -> str:
    """The verdict in one sentence; a speed-up names the engine it was measured in."""
    best, applies = recommendation.best_candidate, recommendation.applies_to
    where = f"measured in {applies.engine}'s own loop on {applies.device}, {applies.dtype}, batch {applies.batch}"
    at = f"at T = {recommendation.temperature:g}"
    setting = f"{best.draft}, K = {best.num_speculative_tokens}"
    gain = f"{interval_text(recommendation.speedup, '×')} over plain decoding ({where})"
    tried, meanwhile = f"the best setting tried, {setting}, reaches {gain}", f"{words.DECODE_PLAINLY} meanwhile"
    if recommendation.verdict == "speculate":
        return f"{words.SPECULATE} with {setting}, {at}: {gain}."
    if recommendation.verdict == "plain":
        return f"{words.DECODE_PLAINLY} {at}: {tried}."
    if recommendation.refuted and recommendation.predicted:
        promised = f"the profile alone promised {recommendation.predicted.speedup.estimate:.2f}×"
        return f"{words.NOT_CONFIRMED} {at}: {promised}; with held-out prompts decoded, {tried}. {meanwhile}."
    return f"{words.UNDECIDED} {at}: {tried}. {meanwhile}."


def formula_text(fit: FormulaFit) -> str:
    """Its α, whether it describes the tokens per round, and what it would have said."""
    off = f"off by {fit.largest_error:+.1%} at K = {fit.largest_error_at}"
    advice = "plain decoding" if fit.chosen_k == 0 else f"K = {fit.chosen_k} at {fit.promised_speedup:.2f}×"
    real = "" if fit.chosen_k == 0 else f", where replay and measured costs say {fit.replayed_speedup:.2f}×"
    return f"α = {fit.alpha:.2f} {_FITS[fit.verdict]}, {off}; it would have chosen {advice}{real}"


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
    best, speculate = recommendation.best_candidate, recommendation.verdict == "speculate"
    figures = (recommendation.speedup, interval_text(best.acceptance_length))
    tried = ("best setting tried, whose figures follow", f"{best.draft}, K = {best.num_speculative_tokens}")
    rows = [
        *zip(words.ADVICE, advice, strict=True),
        *([] if speculate else [tried]),
        *zip(words.FIGURES, figures, strict=True),
        ("break-even acceptance", "none: even a perfect draft loses" if alpha is None else f"{alpha:.2f}"),
    ]
    return table("Settings", ("setting", "value"), rows)


def _or_none(value: float | None, absent: str = "none") -> str:
    return absent if value is None else f"{value:g}"


def _config(config: EngineConfig) -> str:
    notes = "; ".join([*config.notes, *config.warnings])
    read = {name: text for name, text in config.files.items() if name in config.text}
    files = "".join(f"`{name}`:\n\n```{name.split('.')[-1]}\n{text}```\n\n" for name, text in read.items())
    length = "An unknown number of" if config.acceptance_length is None else f"{config.acceptance_length:.2f}"
    return (
        f"{words.config_heading(config.engine, config.checked_against)}\n\n"
        f"{block(config.text, config.language)}\n\n{files}"
        f"{length} tokens per round under this engine's rule ({config.acceptance_rule}); {notes}."
    )


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


def _breakdowns(recommendation: Recommendation) -> Iterator[str]:
    """The best candidate by temperature, by category and, where there are several, by load."""
    answers = [(a, a.best_candidate) for a in recommendation.by_temperature]
    best = [(f"{a.temperature:g}", a.verdict, c.draft, c.num_speculative_tokens, a.speedup) for a, c in answers]
    yield table("By temperature", ("T", "verdict", "best candidate", "K", "speed-up [95%]"), best)
    kinds = ("category", "prompts", "tokens per round", "speed-up [95%]", "published elsewhere")
    best_on = recommendation.by_category
    rows = [(c.category, c.prompts, c.acceptance_length, c.speedup, c.published or "") for c in best_on]
    yield table("By category", kinds, rows, _BY_CATEGORY)
    if len(recommendation.by_load) > 1:
        loads = ("batch", "context", "verdict", "best candidate", "K", "speed-up [95%]")
        by_load = [[getattr(answer, name) for name in answer.__slots__] for answer in recommendation.by_load]
        yield table("By load", loads, by_load, _BY_LOAD)


def _confirmed(confirmation: Confirmation) -> str:
    header = (
        "draft",
        "K",
        "T",
        "predicted [a run falls in]",
        "replayed",
        "measured [95%]",
        "raw sum",
        "tokens",
        "method error",
    )
    nulls, inside = confirmation.null_errors, confirmation.fraction_inside_interval
    note = (
        f"{confirmation.prompts} held-out prompts, up to {confirmation.max_new_tokens} new tokens, decoded plainly and "
        "speculatively by turns. Predicted: from the profiled prompts. Replayed: from the held-out prompts' own plain "
        f"text. Method error: replayed against measured, {confirmation.median_method_error:.3f} in the median, "
        f"{confirmation.max_method_error:.3f} at worst; the guess that nothing changes is off by "
        f"{nulls.always_one:.3f} in the median, the formula with a cost ratio by {nulls.geometric:.3f}."
    )
    held = (
        ""
        if inside is None
        else f" A share of {inside:.2f} of the measured figures lies inside the predicted interval."
    )
    changed = "" if not (line := machine_line(confirmation)) else f" {line[0].upper()}{line[1:]}."
    missed = [
        f" K = {s.num_speculative_tokens} of {s.draft} at T = {s.temperature:g} misses by {s.method_error:.3f}: {text}."
        for s in confirmation.settings
        if (text := s.miss.sentence)
    ]
    rows = [
        (s.draft, s.num_speculative_tokens, f"{s.temperature:g}", s.predicted, f"{s.replayed_speedup:.2f}×", s.measured,
         f"{s.raw_speedup:.2f}×", s.measured_tokens, f"{s.method_error:.3f}")
        for s in confirmation.settings
    ]  # fmt: skip
    return table("Predicted against measured", header, rows, note + held + changed + "".join(missed))


def _candidates(recommendation: Recommendation) -> str:
    fastest = sorted(recommendation.candidates, key=lambda c: -c.speedup.estimate)[:_CANDIDATES_SHOWN]
    shown = [c for c in recommendation.candidates if c in fastest]
    header = ("draft", "K", "T", "tokens per round [95%]", "verify", "draft time", "round", "speed-up [95%]")
    count = len(recommendation.candidates)
    note = f"The fastest {len(shown)} of {count}. " if len(shown) < count else ""
    note += "Each with its own interval, which does not allow for the best having been chosen."
    return table("What was tried", header, map(_candidate, shown), note)


def _candidate(c: Candidate) -> tuple[object, ...]:
    times = (f"{seconds:.4f} s" for seconds in (c.verify_s, c.draft_s, c.round_s))
    length = interval_text(c.acceptance_length)
    return c.draft, c.num_speculative_tokens, f"{c.temperature:g}", length, *times, c.speedup


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
        promised = f"promised {fit.promised_speedup:.2f}× at K = {fit.chosen_k}"
        real = f"replay and measured costs say {fit.replayed_speedup:.2f}× there"
        advice = f"{promised}; {real}" if fit.chosen_k else "chosen plain decoding"
        yield (
            f"One α in (1 − α^(K+1))/(1 − α) for {fit.draft} at T = {fit.temperature:g}: {fit.alpha:.2f} "
            f"{_FITS[fit.verdict]}, off by {fit.largest_error:.3f} of the tokens per round at "
            f"K = {fit.largest_error_at}. "
            f"With a cost ratio it would have {advice}."
        )
    yield from (f"{notice.code}: {notice.message}; {notice.advice}." for notice in recommendation.warnings)


def _applies_to(recommendation: Recommendation) -> str:
    applies = recommendation.applies_to
    length = f"up to {applies.max_new_tokens} new tokens"
    decoded = f" and {applies.confirmed_prompts} decoded for real" if applies.confirmed_prompts else ""
    versions = ", ".join(f"{name} {version}" for name, version in applies.versions.items())
    rows = [
        (words.TARGET, applies.target),
        ("hardware", f"{applies.hardware}; {applies.device}, {applies.threads} threads, {applies.dtype}"),
        ("engine", f"{applies.engine} ({versions})"),
        ("load", f"batch {applies.batch}, {applies.context_tokens} tokens of context"),
        ("workload", f"{applies.workload}, {applies.profiled_prompts} prompts{decoded}, {length}"),
        ("sampling", f"top_p {applies.top_p:g}, top_k {applies.top_k}"),
        (words.MEASURED, applies.profile_created_at),
    ]
    again = "Another model, draft, text, temperature, batch, context, engine or machine can change the answer"
    return f"{table('What it applies to', ('', ''), rows)}\n\n{again}: profile again."
