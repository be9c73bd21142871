"""The answer in sentences: why, what stands between the data and a verdict, and what the reader must know."""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from spectune.decide.confirmation import Confirmation
from spectune.decide.fit import Setting
from spectune.decide.formula import FormulaFit
from spectune.decide.recommendation import Candidate, LoadAnswer
from spectune.decide.requests import WholeRequests
from spectune.decide.selection import IN_WORDS, MIN_GAIN, Decision
from spectune.drafting_spec import Method
from spectune.profile.manifest import Notice
from spectune.stats import FEW_EFFECTIVE_PROMPTS, MIN_EFFECTIVE_PROMPTS


def reasons(
    decision: Decision,
    best: Candidate,
    candidates: Sequence[Candidate],
    by_load: Sequence[LoadAnswer],
    requests: WholeRequests | None,
) -> list[str]:
    """Why, in the terms of the round: what it emits, what it takes, and what would turn the answer."""
    k, ms = best.num_speculative_tokens, 1e3
    return [
        *_why_open(decision),
        f"a round of {best.draft} at K = {k} emits {best.acceptance_length.estimate:.2f} tokens "
        f"and takes {best.round_in_plain_steps:.2f} plain steps",
        f"of its {best.round_s * ms:.1f} ms, verifying takes {best.verify_s * ms:.1f} ms, drafting "
        f"{best.draft_s * ms:.1f} ms, the loop {best.overhead_s * ms:.1f} ms; "
        f"a plain step takes {best.plain_s * ms:.1f} ms",
        _break_even(best, decision.setting.evidence.drafting),
        *_trees(best, candidates),
        *_requests(requests),
        *_flips(by_load, "batch"),
        *_flips(by_load, "context"),
    ]


def _why_open(decision: Decision) -> Iterator[str]:
    """What stands between the data and a verdict, where there is none."""
    prompts = decision.setting.effective_prompts
    if decision.verdict != "insufficient-data":
        return
    if prompts < MIN_EFFECTIVE_PROMPTS:
        yield f"{prompts:.0f} effective prompts are fewer than the {MIN_EFFECTIVE_PROMPTS} that a verdict takes"
    elif decision.speedup.holds(MIN_GAIN):
        yield f"the interval holds {MIN_GAIN:g}, the least gain that counts"


def _break_even(best: Candidate, drafting: Method) -> str:
    k, most = best.num_speculative_tokens, best.num_speculative_tokens + 1  # tokens that a round emits
    if most * best.plain_s < best.verify_s + best.overhead_s:
        return f"even a free and perfect draft loses at K = {k}: verifying alone takes longer than {most} plain steps"
    if best.break_even_alpha is None:
        return f"even a perfect draft loses at K = {k}: the round takes longer than {most} plain steps"
    proposing = " of K tokens proposed in every round" if drafting.evidence != "position" else ""
    return (
        f"it breaks even at {best.round_in_plain_steps:.2f} tokens a round, "
        f"an acceptance of {best.break_even_alpha:.2f} at every position{proposing}"
    )


def _trees(best: Candidate, candidates: Sequence[Candidate]) -> Iterator[str]:
    """How its proposals branch; where they do not and trees were tried, what keeps the best of them behind."""
    if best.tree_width > 1:
        yield f"its {best.num_speculative_tokens} proposals are a tree: up to {best.tree_width} follow one token"
        return
    trees = [c for c in candidates if c.tree_width > 1 and c.temperature == best.temperature]
    if trees:
        tree = max(trees, key=lambda candidate: candidate.speedup.estimate)
        yield (
            f"the best tree tried, {tree.draft} at K = {tree.num_speculative_tokens}, "
            f"emits {tree.acceptance_length.estimate:.2f} tokens a round "
            f"and takes {tree.round_in_plain_steps:.2f} plain steps"
        )


def _requests(requests: WholeRequests | None) -> Iterator[str]:
    """What reading the prompt leaves of the gain, and how much of the answers was seen."""
    if requests is None:
        return
    lengths = f"{requests.prompt_tokens:.0f} tokens of prompt and {requests.answer_tokens:.0f} of answer"
    reading = f"the target reads for {requests.read_s:.2f} s, the draft for {requests.draft_read_s:.2f} s more"
    yield f"whole requests of {lengths} reach {requests.speedup.estimate:.2f}×: {reading}"
    if requests.turned:
        yield f"it pays from answers of {requests.pays_from_tokens:,} tokens on, longer than these"
    if requests.goes_on_share > 0:
        yield f"a share of {requests.goes_on_share:.2f} of the answers goes on beyond what was recorded, unseen"


def _flips(answers: Sequence[LoadAnswer], axis: str) -> Iterator[str]:
    """Where the verdict changes between neighbouring loads: an interval, nothing being measured inside it."""

    def place(answer: LoadAnswer) -> tuple[int, int]:
        pair = answer.batch, answer.context_tokens
        return pair[::-1] if axis == "batch" else pair

    for fixed, line in groupby(sorted(answers, key=place), key=lambda answer: place(answer)[0]):
        at = f"{fixed} tokens of context" if axis == "batch" else f"batch {fixed}"
        for before, after in pairwise(line):
            if before.verdict != after.verdict:
                low, high = place(before)[1], place(after)[1]
                was, now = IN_WORDS[before.verdict], IN_WORDS[after.verdict]
                yield f"between {axis} {low} ({was}) and {high} ({now}) it turns, at {at}"


def notices(decision: Decision, settings: Sequence[Setting], formula: Sequence[FormulaFit]) -> Iterator[Notice]:
    """What makes the figures of little worth, or others' advice wrong."""
    best = decision.setting
    yield from (_dead(s) for s in settings if s.num_speculative_tokens == 1 and s.acceptance.accepted_tokens == 0)
    if best.effective_prompts < FEW_EFFECTIVE_PROMPTS:
        message = f"the figures rest on {best.effective_prompts:.0f} effective prompts"
        yield Notice(code="few-prompts", message=message, advice=f"give {FEW_EFFECTIVE_PROMPTS} or more")
    for fit in formula:
        if fit.verdict == "misleads" and (fit.draft, fit.temperature) == (best.draft, best.temperature):
            off = f"it is off by {fit.largest_error:+.0%} at K = {fit.largest_error_at} for {fit.draft}"
            message = f"with its best α = {fit.alpha:.2f} {off}, beyond chance"
            yield Notice(code="formula", message=message, advice="trust the replayed tokens per round instead")
    if decision.noisy:
        message = "the timings are too noisy to decide: they widen the interval more than the prompts do"
        advice = "profile on a quiet machine, or with more --budget-s"
        yield Notice(code="noisy-costs", message=message, advice=advice)


def confirmed_notices(
    decision: Decision, predicted: Decision | None, confirmed: Confirmation | None
) -> Iterator[Notice]:
    """What real decoding says against the figures, or does not bear out."""
    if predicted is None or confirmed is None:
        return
    setting, decoded = decision.setting, confirmed.of(decision.setting.choice)
    if confirmed.machine != "steady":
        message = f"{machine_line(confirmed)}: the seconds of the confirming run decide nothing, its texts still count"
        yield Notice(code="disturbed", message=message, advice="confirm again on a quiet machine")
    if predicted.verdict == "speculate" != decision.verdict:
        why = (decoded.miss.sentence if decoded else None) or "the held-out prompts accept less"
        before = f"the profile alone said speculate, {predicted.speedup.estimate:.2f}×"
        message = f"{before}; with the confirming run it no longer does: {why}"
        yield Notice(code="unconfirmed", message=message, advice="profile more prompts and confirm again")
    if decoded is None and decision.verdict == "speculate":
        message = f"{setting.draft} at K = {setting.num_speculative_tokens} was never decoded for real: others were"
        yield Notice(code="not-decoded", message=message, advice=f"confirm with -k {setting.num_speculative_tokens}")


def machine_line(confirmed: Confirmation) -> str | None:
    """Where rounds were disturbed, or the machine was another than while profiling; None where all was steady."""
    told = []
    if confirmed.disturbed_rounds:
        count = f"{confirmed.disturbed_rounds:,} of {confirmed.rounds:,} rounds"
        told.append(f"{count} took far longer than others like them and are left out")
    if confirmed.machine == "changed":
        ratio = confirmed.plain_step_ratio
        told.append(f"plain steps took {ratio:.2f} times as long as while profiling: the machine changed")
    if confirmed.machine == "disturbed":
        told.append("something else ran beside")
    return "; ".join(told) or None


def _dead(setting: Setting) -> Notice:
    proposed = setting.acceptance.proposed_tokens
    message = f"{setting.draft} had none of {proposed:.0f} proposals accepted at T = {setting.temperature:g}"
    if proposed == 0:
        message = f"{setting.draft} proposed nothing at T = {setting.temperature:g}"
    advice = "check that the draft is of the target's family, its weights are whole and its chat template is the same"
    if setting.evidence.drafting.weights == "none":
        advice = "the outputs repeat nothing of the prompts; n-gram drafts do not suit this workload"
    return Notice(code="dead-draft", message=message, advice=advice)
