"""What the skill and the page say of a recommendation, section by section. Every number is the recommendation's."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spectune.decide.confirmation import Confirmation
from spectune.decide.formula import FormulaFit
from spectune.decide.reasons import machine_line
from spectune.decide.recommendation import Candidate, Recommendation
from spectune.decide.selection import IN_WORDS
from spectune.engines.config import EngineConfig
from spectune.report.markdown import interval_text
from spectune.report.verification import value_text

_MISSES_SHOWN = 4
PICTURES = {
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
CONFIGS = {
    "speculate": ("Configs to paste", "Costs differ between engines: measure before you trust a speed-up there."),
    "plain": (
        "Configs not to serve with",
        "Plain decoding needs no setting. Costs differ between engines: with these the best candidate can be measured "
        "there, nothing more.",
    ),
    "insufficient-data": (
        "Configs not to serve with yet",
        "Nothing to set so far. Costs differ between engines: with these the best candidate can be measured there.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A section that is a table; cells as markdown.table takes them."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""


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


def settings(recommendation: Recommendation) -> Table:
    """What to set, and the figures behind it."""
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
    return Table(title="Settings", header=("setting", "value"), rows=rows)


def config_note(config: EngineConfig) -> str:
    """Below a config: tokens per round in that engine, and what to know."""
    notes = "; ".join([*config.notes, *config.warnings])
    length = "An unknown number of" if config.acceptance_length is None else f"{config.acceptance_length:.2f}"
    return f"{length} tokens per round under this engine's rule ({config.acceptance_rule}); {notes}."


def fallback(recommendation: Recommendation) -> str:
    """The rule in words, or why there is none."""
    rule, applies = recommendation.fallback, recommendation.applies_to
    if rule is None:
        return f"No rule: {recommendation.fallback_reason}."
    return (
        "Decode plainly when tokens per round stay below "
        f"{rule.acceptance_length_below:.2f} over {rule.window_requests} finished requests "
        f"({recommendation.fallback_reason}). That is where a round of {applies.engine}'s own loop on {applies.device} "
        "gains nothing: put in your engine's own figure. A healthy "
        f"stream stays below it about once in {rule.windows_per_false_trip} windows or less. Then try again from time "
        "to time."
    )


def elsewhere(recommendation: Recommendation) -> Table:
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
            IN_WORDS[a.verdict],
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
            IN_WORDS[a.verdict],
            a.draft,
            a.num_speculative_tokens,
            "",
            a.speedup,
            "",
        )
        for a in recommendation.by_load
        if (a.batch, a.context_tokens) != main
    ]
    note = _BY_CATEGORY + (f" {_BY_LOAD}" if loads else "")
    return Table(title="Where it differs", header=header, rows=[*warm, *loads, *kinds], note=note)


def confirmed(confirmation: Confirmation) -> Table:
    """Predicted, replayed and measured, and where they miss."""
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
    shown = note + held + changed + "".join(missed[:_MISSES_SHOWN])
    return Table(title="Predicted against measured", header=header, rows=rows, note=shown)


def candidates(recommendation: Recommendation, most: int | None = None) -> Table:
    """Everything that was tried, or the fastest of it."""
    fastest = sorted(recommendation.candidates, key=lambda c: -c.speedup.estimate)[:most]
    shown = [c for c in recommendation.candidates if c in fastest]
    header = ("draft", "K", "T", "tokens per round [95%]", "verify", "draft time", "round", "speed-up [95%]")
    title = "What was tried, the fastest" if len(shown) < len(recommendation.candidates) else "What was tried"
    return Table(title=title, header=header, rows=list(map(_candidate, shown)))


def _candidate(c: Candidate) -> tuple[object, ...]:
    times = (f"{seconds:.4f} s" for seconds in (c.verify_s, c.draft_s, c.round_s))
    length = interval_text(c.acceptance_length)
    return c.draft, c.num_speculative_tokens, f"{c.temperature:g}", length, *times, c.speedup


def limits(recommendation: Recommendation) -> Iterator[str]:
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


def doubts(recommendation: Recommendation, most_warnings: int | None = None) -> Iterator[str]:
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
    for notice in recommendation.warnings[:most_warnings]:
        yield f"{notice.code}: {notice.message}; {notice.advice}."
    if most_warnings is not None and len(recommendation.warnings) > most_warnings:
        yield f"{len(recommendation.warnings)} warnings in all; `--json` has them."


def applies_to(recommendation: Recommendation) -> str:
    """What it was measured on, in one paragraph."""
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
    return f"{'; '.join(facts)}. {again}."
