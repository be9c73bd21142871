"""What is asked of an engine: the recommended setting, the best that it can run, or one that the user names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from spectune.decide.recommendation import BatchStep, Candidate, Recommendation
from spectune.drafting_spec import DraftSpec, draft_spec
from spectune.errors import ConfigError

FOLDER = "\0"
"""Stands in a config's text before the name of a file that it reads, for the folder where that is."""

_WORTH_SAMPLING = 1.01
_LONGEST = 1000
_ON_THE_HUB = {"SmolLM2-135M-Instruct": "HuggingFaceTB/SmolLM2-135M-Instruct"}  # the embedded model


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

    def length(self, rule: str) -> float | None:
        """Under an acceptance rule; None where it is not known."""
        return 1.0 if rule == "none" else self.lengths.get(rule)

    @property
    def tree_nodes(self) -> int:
        """Proposals that a tree keeps of those it grows: as many to a depth as its width."""
        return self.tree_width * self.num_speculative_tokens

    @property
    def batches(self) -> list[tuple[int, int, int]]:
        """(first, last, K) without gaps: a batch that was not measured has the K of the next larger one that was."""
        ends = [step.batch for step in self.schedule]
        ks = [step.num_speculative_tokens for step in self.schedule]
        starts = [1, *(end + 1 for end in ends[:-1])]
        return [(first, last, k) for first, last, k in zip(starts, ends, ks, strict=True)]

    @property
    def varies(self) -> bool:
        """Whether K is another at another batch."""
        return any(one.num_speculative_tokens != other.num_speculative_tokens for one, other in pairwise(self.schedule))


def best_speculation(recommendation: Recommendation, methods: Sequence[str] | None = None) -> Speculation:
    """The recommendation's best candidate; where it is not of these methods, the best that is, if any speculates."""
    best = recommendation.best_candidate
    if methods is not None and draft_spec(best.draft).method not in methods:
        able = [one for one in recommendation.candidates if _may_stand_in(one, recommendation, methods)]
        if able:
            notes = (
                [f"no schedule by batch: it was decided for {best.draft} only"]
                if len(recommendation.by_batch) > 1
                else []
            )
            return replace(_of(recommendation, _fastest(able)), instead_of=best.draft, notes=notes)
    schedule = recommendation.by_batch if recommendation.verdict == "speculate" else []
    return replace(_of(recommendation, best), schedule=schedule, lengths=recommendation.acceptance_length_by_rule)


def named_speculation(
    recommendation: Recommendation, draft: str | None, num_speculative_tokens: int | None, tree_width: int
) -> Speculation:
    """What the user names, measured or not; a draft left out is the best one's, a K left out that draft's best.

    Raises: ConfigError for a K or width below 1, and where K is left out for a draft that was not measured.
    """
    given = [tree_width, *([] if num_speculative_tokens is None else [num_speculative_tokens])]
    if min(given) < 1 or max(given) > _LONGEST:
        raise ConfigError(f"K and tree width count from 1, and to {_LONGEST:,} at most", "give such whole numbers")
    spec = draft_spec(recommendation.best_candidate.draft if draft is None else draft)
    here = [one for one in recommendation.candidates if one.temperature == recommendation.temperature]
    measured = [one for one in here if one.draft == spec.text]
    if not measured and num_speculative_tokens is None:
        raise ConfigError(f"draft {spec.text!r} was not measured, so its K is not known", "give -k")
    k = num_speculative_tokens or _fastest(measured).num_speculative_tokens
    one = next((one for one in measured if one.num_speculative_tokens == k and tree_width == 1), None)
    if one is not None:
        best = recommendation.best_candidate
        its_best = f"{best.draft}, K = {best.num_speculative_tokens}"
        note = f"as asked for; the profile's verdict is {recommendation.verdict}, its best {its_best}"
        return replace(_of(recommendation, one), notes=[note])
    shape = f"K = {k}" if tree_width == 1 else f"K = {k} in a tree of width {tree_width}"
    asked = replace(_of(recommendation, recommendation.best_candidate), draft=spec, num_speculative_tokens=k)
    padded = spec.text in recommendation.padded_drafts
    note = f"as asked for; {spec.text} at {shape} was not measured"
    return replace(asked, tree_width=tree_width, lengths={}, padded=padded, notes=[note])


def _fastest(candidates: Sequence[Candidate]) -> Candidate:
    return max(candidates, key=lambda one: one.speedup.estimate)


def _may_stand_in(one: Candidate, recommendation: Recommendation, methods: Sequence[str]) -> bool:
    same = one.temperature == recommendation.temperature and draft_spec(one.draft).method in methods
    return same and (one.verdict == "speculate" or recommendation.verdict != "speculate")


def _of(recommendation: Recommendation, one: Candidate) -> Speculation:
    """Its acceptance length holds for greedy drafting too where that is what was replayed."""
    applies, spec = recommendation.applies_to, draft_spec(one.draft)
    greedy = one.temperature == 0.0 or spec.method == "ngram"
    rules = ("rejection", "greedy_draft") if greedy else ("rejection",)
    return Speculation(
        target=_ON_THE_HUB.get(applies.target, applies.target),
        draft=spec,
        num_speculative_tokens=one.num_speculative_tokens,
        temperature=recommendation.temperature,
        top_p=applies.top_p,
        top_k=applies.top_k,
        dtype=applies.dtype,
        schedule=[],
        lengths=dict.fromkeys(rules, one.acceptance_length.estimate),
        padded=one.draft in recommendation.padded_drafts,
    )
