"""What is asked of an engine: the recommended setting, the best that it can run, or one that the user names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spectune.checkpoints.embedded import EMBEDDED, EMBEDDED_ON_THE_HUB
from spectune.choice import LONGEST
from spectune.decide.recommendation import BatchStep, Candidate, Recommendation
from spectune.drafting_spec import DraftSpec, draft_spec
from spectune.errors import ConfigError

FOLDER = "\0"
"""Stands in a config's text before the name of a file that it reads, for the folder where that is."""

_SELDOM = 0.25  # of all rounds
_WORTH_SAMPLING = 1.01
_ON_THE_HUB = {EMBEDDED: EMBEDDED_ON_THE_HUB}


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """A setting; `draft` None is plain decoding, `schedule` K by batch, 0 being plain."""

    target: str
    draft: DraftSpec | None
    num_speculative_tokens: int  # of a tree: its depth
    tree_width: int = 1  # proposals that follow each one; 1 is a chain
    temperature: float
    top_p: float
    top_k: int
    dtype: str
    schedule: Sequence[BatchStep]
    lengths: Mapping[str, float]  # acceptance length by rule
    padded: bool = False  # the draft's embedding has another number of rows than the target's
    notes: Sequence[str] = ()  # what is to be said of it in any engine
    instead_of: str | None = None  # the draft that was best, where the engine has no such method

    @property
    def worth_sampling(self) -> bool:
        """Whether a draft that is sampled, not its argmax taken, is worth more than 1% of tokens a round."""
        return self.lengths.get("rejection", 1.0) > _WORTH_SAMPLING * self.lengths.get("greedy_draft", 1.0)

    @property
    def tree_nodes(self) -> int:
        """Proposals that a tree keeps of those it grows: as many to a depth as its width."""
        return self.tree_width * self.num_speculative_tokens

    @property
    def batches(self) -> list[tuple[int, int, int]]:
        """(first, last, K) without gaps: a batch that was not measured has the K of the next larger one that was."""
        starts = [1, *(step.batch + 1 for step in self.schedule)]
        steps = zip(starts, self.schedule, strict=False)
        return [(first, step.batch, step.num_speculative_tokens) for first, step in steps]

    @property
    def varies(self) -> bool:
        """Whether K is another at another batch."""
        return len({step.num_speculative_tokens for step in self.schedule}) > 1


def best_speculation(recommendation: Recommendation, methods: Sequence[str] | None = None) -> Speculation:
    """The recommendation's best candidate; where it is not of these methods, the best that is, if any speculates."""
    best = recommendation.best_candidate
    if methods is not None and draft_spec(best.draft).method not in methods:
        able = [candidate for candidate in _stand_ins(recommendation) if draft_spec(candidate.draft).method in methods]
        if able:
            note = f"no schedule by batch: it was decided for {best.draft} only"
            notes = [note] if len(recommendation.by_batch) > 1 else []
            stand_in = _of(recommendation, _fastest(able))
            return replace(stand_in, instead_of=best.draft, notes=[*stand_in.notes, *notes])
    schedule = recommendation.by_batch if recommendation.verdict == "speculate" else []
    return replace(_of(recommendation, best), schedule=schedule, lengths=recommendation.acceptance_length_by_rule)


def named_speculation(
    recommendation: Recommendation, draft: str | None, num_speculative_tokens: int | None, tree_width: int
) -> Speculation:
    """What the user names, by default the best draft and its best K. Raises: ConfigError where K is none or unknown."""
    if not all(1 <= given <= LONGEST for given in (tree_width, num_speculative_tokens) if given is not None):
        raise ConfigError(f"K and tree width count from 1, and to {LONGEST:,} at most", "give such whole numbers")
    best = recommendation.best_candidate
    spec = draft_spec(best.draft if draft is None else draft)
    measured = [candidate for candidate in _at_its_temperature(recommendation) if candidate.draft == spec.text]
    if not measured and num_speculative_tokens is None:
        raise ConfigError(f"draft {spec.text!r} was not measured, so its K is not known", "give -k")
    k = num_speculative_tokens or _fastest(measured).num_speculative_tokens
    same = [candidate for candidate in measured if candidate.num_speculative_tokens == k and tree_width == 1]
    if same:
        best_setting = f"{best.draft}, K = {best.num_speculative_tokens}"
        note = f"as asked for; the profile's verdict is {recommendation.verdict}, its best {best_setting}"
        return replace(_of(recommendation, same[0]), notes=[note])
    shape = f"K = {k}" if tree_width == 1 else f"K = {k} in a tree of width {tree_width}"
    return replace(
        _of(recommendation, best),
        draft=spec,
        num_speculative_tokens=k,
        tree_width=tree_width,
        lengths={},
        padded=spec.text in recommendation.padded_drafts,
        notes=[f"as asked for; {spec.text} at {shape} was not measured"],
    )


def _fastest(candidates: Sequence[Candidate]) -> Candidate:
    return max(candidates, key=lambda candidate: candidate.speedup.estimate)


def _at_its_temperature(recommendation: Recommendation) -> list[Candidate]:
    temperature = recommendation.temperature
    return [candidate for candidate in recommendation.candidates if candidate.temperature == temperature]


def _stand_ins(recommendation: Recommendation) -> list[Candidate]:
    """Those that may be given instead of the best: where that one is to speculate, they must be worth it too."""
    candidates, needed = _at_its_temperature(recommendation), recommendation.verdict == "speculate"
    return [candidate for candidate in candidates if candidate.verdict == "speculate" or not needed]


def _of(recommendation: Recommendation, candidate: Candidate) -> Speculation:
    """Its acceptance length holds for greedy drafting too where that is what was replayed."""
    applies, spec = recommendation.applies_to, draft_spec(candidate.draft)
    greedy = candidate.temperature == 0.0 or spec.method == "ngram"
    rules = ("rejection", "greedy_draft") if greedy else ("rejection",)
    return Speculation(
        target=_ON_THE_HUB.get(applies.target, applies.target),
        draft=spec,
        num_speculative_tokens=candidate.num_speculative_tokens,
        temperature=recommendation.temperature,
        top_p=applies.top_p,
        top_k=applies.top_k,
        dtype=applies.dtype if applies.device.startswith("cuda") else "auto",  # the checkpoint's: a CPU's is its own
        schedule=[],
        lengths=dict.fromkeys(rules, candidate.acceptance_length.estimate),
        padded=candidate.draft in recommendation.padded_drafts,
        notes=[_chosen_by(recommendation, candidate)],
    )


def _chosen_by(recommendation: Recommendation, candidate: Candidate) -> str:
    """What its K rests on, and which are worth a try where costs are others: up to where proposals are seldom used."""
    same = [
        c for c in recommendation.candidates if (c.draft, c.temperature) == (candidate.draft, candidate.temperature)
    ]
    rates = max(same, key=lambda c: c.num_speculative_tokens).cumulative_acceptance_rate
    most = max(sum(rate is not None and rate >= _SELDOM for rate in rates), 1)
    alone = f"{max(most // 2, 1)} to {most}" if most > 1 else "1"
    applies = recommendation.applies_to
    where = f"{applies.device}, {applies.dtype}"
    return f"K was chosen by costs on {where}; by acceptance alone K = {alone} may suit the engine"
