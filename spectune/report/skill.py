"""The skill file: an agent skill in Markdown that an engineer can act on. Every number is the recommendation's."""

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

import yaml

from spectune.decide.confirmation import Confirmation
from spectune.decide.formula import FormulaFit
from spectune.decide.reasons import machine_line
from spectune.decide.recommendation import Candidate, Recommendation
from spectune.engines.config import EngineConfig
from spectune.report.markdown import block, bullets, interval_text, table
from spectune.report.verification import value_text, values

_CANDIDATES_SHOWN, _ROWS_SHOWN, _WARNINGS_SHOWN, _CONFIRMED_SHOWN, _REASONS_SHOWN = 4, 7, 3, 4, 8
_PICTURES = {
    "speedup": "Speed-up against K, with intervals and what was measured",
    "acceptance": "Acceptance by position in the round",
    "round": "What a round's time goes into",
    "category": "Speed-up by category",
}
_FITS = {"fits": "fits", "misleads": "misleads", "undecided": "may fit or not"}
_BY_CATEGORY = "The best candidate elsewhere; by kind of text on few prompts each, none of which decides."
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
        _front_matter(recommendation, values(recommendation, configs)),
        f"# Speculative tuning: {recommendation.applies_to.target}",
        f"**{headline(recommendation)}**",
        _settings(recommendation),
        _CONFIGS[recommendation.verdict],
        *map(_config, configs),
        _fallback(recommendation),
        bullets("Why", recommendation.reasons[:_REASONS_SHOWN]),
        _elsewhere(recommendation),
        _candidates(recommendation),
        *([" ".join(f"![{_PICTURES[name]}]({quote(file)})" for name, file in pictures.items())] if pictures else []),
        *([_confirmed(recommendation.confirmation)] if recommendation.confirmation else []),
        bullets("How sure", [*_limits(recommendation), *_doubts(recommendation)]),
        _applies_to(recommendation),
    ]
    return "\n\n".join(sections) + "\n"


def headline(recommendation: Recommendation) -> str:
    """The verdict in one sentence; a speed-up names the engine it was measured in."""
    best, applies = recommendation.best_candidate, recommendation.applies_to
    where = f"measured in {applies.engine}'s own loop on {applies.device}, {applies.dtype}, batch {applies.batch}"
    at = f"at T = {recommendation.temperature:g}"
    setting = f"{best.draft}, K = {best.num_speculative_tokens}"
    gain = f"{interval_text(recommendation.speedup, '×')} over plain decoding ({where})"
    tried = f"the best setting tried, {setting}, reaches {gain}"
    if recommendation.verdict == "speculate":
        return f"Speculate with {setting}, {at}: {gain}."
    if recommendation.verdict == "plain":
        return f"Decode plainly {at}: {tried}."
    if recommendation.refuted and recommendation.predicted:
        promised = f"the profile alone promised {recommendation.predicted.speedup.estimate:.2f}×"
        return f"Not confirmed {at}: {promised}; with held-out prompts decoded, {tried}. Decode plainly meanwhile."
    return f"Not enough data to decide {at}: {tried}. Decode plainly meanwhile."


def formula_text(fit: FormulaFit) -> str:
    """Its α, whether it describes the tokens per round, and what it would have said."""
    off = f"off by {fit.largest_error:+.1%} at K = {fit.largest_error_at}"
    advice = "plain decoding" if fit.chosen_k == 0 else f"K = {fit.chosen_k} at {fit.promised_speedup:.2f}×"
    real = "" if fit.chosen_k == 0 else f", where replay and measured costs say {fit.replayed_speedup:.2f}×"
    return f"α = {fit.alpha:.2f} {_FITS[fit.verdict]}, {off}; it would have chosen {advice}{real}"


def _front_matter(recommendation: Recommendation, metadata: Mapping[str, str]) -> str:
    applies = recommendation.applies_to
    description = (
        f"Whether and how to use speculative decoding with {applies.target} on {applies.hardware} for workload "
        f"{applies.workload}. Read before setting or changing a draft, num_speculative_tokens, or a temperature "
        "in a serving config for this model."
    )
    fields = {"name": "speculative-tuning", "description": description[:1024], "metadata": dict(metadata)}
    return f"---\n{yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=1000)}---"


def _settings(recommendation: Recommendation) -> str:
    gate, alpha, requests = (
        recommendation.temperature_gate,
        recommendation.break_even_alpha,
        recommendation.whole_requests,
    )
    best, speculate = recommendation.best_candidate, recommendation.verdict == "speculate"
    tried = ("best setting tried, whose figures follow", f"{best.draft}, K = {best.num_speculative_tokens}")
    rows = [
        ("draft", value_text(recommendation.draft)),
        ("num_speculative_tokens (K)", value_text(recommendation.num_speculative_tokens)),
        ("tree width", str(recommendation.tree_width)),
        ("speculate up to temperature", value_text(gate.speculate_up_to)),
        (
            "decode plainly from temperature",
            "none of those measured" if gate.plain_from is None else f"{gate.plain_from:g}",
        ),
        *([] if speculate else [tried]),
        ("speed-up", recommendation.speedup),
        *([("speed-up of whole requests", requests.speedup)] if requests else []),
        ("tokens per round, bonus included", interval_text(best.acceptance_length)),
        ("break-even acceptance", "none: even a perfect draft loses" if alpha is None else f"{alpha:.2f}"),
    ]
    return table("Settings", ("setting", "value"), rows)


def _config(config: EngineConfig) -> str:
    notes = "; ".join([*config.notes, *config.warnings])
    read = {name: text for name, text in config.files.items() if name in config.text}
    files = "".join(f"`{name}`:\n\n```{name.split('.')[-1]}\n{text}```\n\n" for name, text in read.items())
    length = "An unknown number of" if config.acceptance_length is None else f"{config.acceptance_length:.2f}"
    return (
        f"### {config.engine} (checked against {config.checked_against})\n"
        f"{block(config.text, config.language)}\n\n{files}"
        f"{length} tokens per round under this engine's rule ({config.acceptance_rule}); {notes}."
    )


def _fallback(recommendation: Recommendation) -> str:
    rule, applies = recommendation.fallback, recommendation.applies_to
    if rule is None:
        return f"**When to fall back.** No rule: {recommendation.fallback_reason}."
    return (
        "**When to fall back.** Decode plainly when tokens per round stay below "
        f"{rule.acceptance_length_below:.2f} over {rule.window_requests} finished requests "
        f"({recommendation.fallback_reason}). That is where a round of {applies.engine}'s own loop on {applies.device} "
        "gains nothing: put in your engine's own figure. A healthy "
        f"stream stays below it about once in {rule.windows_per_false_trip} windows or less. Then try again from time "
        "to time."
    )


def _elsewhere(recommendation: Recommendation) -> str:
    """The best candidate by category, temperature and load: where the answer is another."""
    header = ("where", "verdict", "draft", "K", "tokens per round", "speed-up [95%]", "published elsewhere")
    best, k = recommendation.best_candidate, recommendation.best_candidate.num_speculative_tokens
    kinds = [
        (f"{c.category}, {c.prompts} prompts", "", best.draft, k, c.acceptance_length, c.speedup, c.published or "")
        for c in recommendation.by_category
    ]  # fmt: skip
    warm = [
        (
            f"T = {a.temperature:g}",
            a.verdict,
            c.draft,
            c.num_speculative_tokens,
            c.acceptance_length.estimate,
            a.speedup,
            "",
        )
        for a in recommendation.by_temperature
        if a.temperature != recommendation.temperature
        for c in [a.best_candidate]
    ]
    main = (recommendation.applies_to.batch, recommendation.applies_to.context_tokens)
    loads = [
        (
            f"batch {a.batch}, context {a.context_tokens}",
            a.verdict,
            a.draft,
            a.num_speculative_tokens,
            "",
            a.speedup,
            "",
        )
        for a in recommendation.by_load
        if (a.batch, a.context_tokens) != main
    ]
    return _few("Where it differs", header, [*warm, *loads, *kinds], _BY_CATEGORY + (f" {_BY_LOAD}" if loads else ""))


def _few(
    title: str, header: Sequence[str], rows: Sequence[Sequence[object]], note: str = "", most: int = _ROWS_SHOWN
) -> str:
    """A table of the first rows: the file is to be read whole."""
    more = "" if len(rows) <= most else " These are the first; `--json` has all."
    return table(title, header, rows[:most], (note + more).strip())


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
    shown = note + held + changed + "".join(missed[:_CONFIRMED_SHOWN])
    return _few("Predicted against measured", header, rows, shown, _CONFIRMED_SHOWN)


def _candidates(recommendation: Recommendation) -> str:
    fastest = sorted(recommendation.candidates, key=lambda c: -c.speedup.estimate)[:_CANDIDATES_SHOWN]
    shown = [c for c in recommendation.candidates if c in fastest]
    header = ("draft", "K", "T", "tokens per round [95%]", "verify", "draft time", "round", "speed-up [95%]")
    title = "What was tried, the fastest" if len(shown) < len(recommendation.candidates) else "What was tried"
    return table(title, header, map(_candidate, shown))


def _candidate(c: Candidate) -> tuple[object, ...]:
    times = (f"{seconds:.4f} s" for seconds in (c.verify_s, c.draft_s, c.round_s))
    length = interval_text(c.acceptance_length)
    return c.draft, c.num_speculative_tokens, f"{c.temperature:g}", length, *times, c.speedup


def _limits(recommendation: Recommendation) -> Iterator[str]:
    """What the interval and the tokens per round mean."""
    best = recommendation.best_candidate
    predicted = "" if recommendation.confirmation else " It is a prediction: nothing was decoded to confirm it."
    yield (
        f"The 95% interval counts prompts as the unit ({best.effective_prompts:.1f} effective) and includes the spread "
        "of the timings. It allows for the best of several candidates having been chosen: the lower end holds for "
        "whichever it is, the point is scored on prompts and timings that did not choose; what was tried has each "
        "setting's own. To speculate, the lower end "
        f"must exceed {recommendation.min_gain:.2f}.{predicted}"
    )
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
    parts = ""
    if accuracy.worst_round_error is not None:
        parts = f" Parts measured apart miss rounds measured whole by {accuracy.worst_round_error:.3f} at worst."
    yield f"The least known timing is {accuracy.noisiest_cell}: {known}{parts}"
    best = recommendation.best_candidate
    for fit in recommendation.formula:
        if (fit.draft, fit.temperature) != (best.draft, best.temperature):
            continue
        promised = f"promised {fit.promised_speedup:.2f}× at K = {fit.chosen_k}"
        real = f"replay and measured costs say {fit.replayed_speedup:.2f}× there"
        advice = f"{promised}; {real}" if fit.chosen_k else "chosen plain decoding"
        yield (
            f"One α in (1 − α^(K+1))/(1 − α) for {fit.draft} at T = {fit.temperature:g}: {fit.alpha:.2f} "
            f"{_FITS[fit.verdict]}, off by {fit.largest_error:.3f} of the tokens per round at "
            f"K = {fit.largest_error_at}. "
            f"With a cost ratio it would have {advice}."
        )
    for notice in recommendation.warnings[:_WARNINGS_SHOWN]:
        yield f"{notice.code}: {notice.message}; {notice.advice}."
    if len(recommendation.warnings) > _WARNINGS_SHOWN:
        yield f"{len(recommendation.warnings)} warnings in all; `--json` has them."


def _applies_to(recommendation: Recommendation) -> str:
    applies = recommendation.applies_to
    length = f"up to {applies.max_new_tokens} new tokens"
    decoded = f" and {applies.confirmed_prompts} decoded for real" if applies.confirmed_prompts else ""
    versions = ", ".join(f"{name} {version}" for name, version in applies.versions.items())
    facts = [
        f"target {applies.target}",
        f"{applies.hardware}, {applies.device}, {applies.threads} threads, {applies.dtype}",
        f"{applies.engine} ({versions})",
        f"batch {applies.batch}, {applies.context_tokens} tokens of context",
        f"workload {applies.workload}, {applies.profiled_prompts} prompts{decoded}, {length}",
        f"top_p {applies.top_p:g}, top_k {applies.top_k}",
        f"measured {applies.profile_created_at} by `{recommendation.reproduce}`",
    ]
    again = "Another model, draft, text, temperature, batch, context, engine or machine can change it: profile again"
    return f"**What it applies to.** {'; '.join(facts)}. {again}."
