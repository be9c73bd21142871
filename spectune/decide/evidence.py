"""What a draft would have proposed along texts, a profile's or a confirming run's, and its rounds by replay."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spectune.drafting_spec import AcceptanceRule, Method
from spectune.errors import ConfigError, InsufficientDataError, ProfileError
from spectune.profile.manifest import DraftRecord
from spectune.profile.store import Profile
from spectune.profile.tables import integers, labels, padded, rows_at, rows_where
from spectune.replay import (
    Floats,
    Ints,
    Replay,
    RowCounts,
    Walk,
    accept_probabilities_block,
    accept_probabilities_exact_match,
    accept_probabilities_matched,
    accept_probabilities_rejection,
    by_depth,
    count_rounds,
    rounds_variance,
    shifted,
    side_by_side,
    walk,
)

_ROWS_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftEvidence:
    """One draft along the texts of one temperature; rows in the tape's order."""

    draft: DraftRecord
    temperature: float
    max_k: int  # the longest chain that it tells of
    texts: pa.Table  # [rows] of the tape
    proposals: pa.Table  # [rows] of acceptance

    @property
    def written(self) -> Ints:  # [rows]
        """Tokens of each text."""
        return integers(self.texts["tokens"])

    @property
    def categories(self) -> NDArray[np.object_]:  # [rows]
        """Of the prompts."""
        return labels(self.texts["category"])

    @property
    def drafting(self) -> Method:
        """What sets its method apart."""
        return self.draft.drafting

    @property
    def rules(self) -> list[AcceptanceRule]:
        """Those under which it can be priced."""
        if self.drafting.rule == "greedy_draft":
            return ["greedy_draft"]
        told = self.temperature == 0.0 or not self.texts["logprobs"].null_count
        return ["greedy_draft", "rejection", "exact_match", "block"] if told else ["greedy_draft", "exact_match"]


def draft_record(profile: Profile, spec: str) -> DraftRecord:
    """The draft of that SPEC. Raises: ConfigError naming those that were profiled."""
    records = {record.spec: record for record in profile.manifest.drafts}
    if spec not in records:
        raise ConfigError(f"draft {spec!r} was not profiled; {', '.join(records)} was", f"profile with --draft {spec}")
    return records[spec]


def profiled_evidence(profile: Profile) -> list[DraftEvidence]:
    """Of every draft at every temperature, in that order."""
    settings, tables = profile.manifest.settings, (profile.tape, profile.acceptance)
    pairs = product(profile.manifest.drafts, settings.temperatures)
    return [_evidence(*tables, draft, temperature, settings.max_k) for draft, temperature in pairs]


def confirmed_evidence(profile: Profile) -> dict[tuple[str, float], DraftEvidence]:
    """Of every draft along the plain texts of a confirming run, at every temperature that it decoded at."""
    if profile.confirmed is None:
        return {}
    tape = _numbered(profile.confirmed.tape, profile.confirmed.plain_continuations)
    max_k, temperatures = profile.manifest.settings.max_k, dict.fromkeys(tape["temperature"].to_pylist())
    return {
        (draft.spec, t): _evidence(tape, profile.confirmed.acceptance, draft, t, max_k)
        for draft, t in product(profile.manifest.drafts, temperatures)
    }


def written_evidence(profile: Profile, draft: str, continuations: Sequence[int], temperature: float) -> DraftEvidence:
    """Of a draft along what a confirming run wrote with it."""
    assert profile.confirmed is not None
    tape, max_k = _numbered(profile.confirmed.tape, continuations), profile.manifest.settings.max_k
    return _evidence(tape, profile.confirmed.acceptance, draft_record(profile, draft), temperature, max_k)


def all_evidence(profile: Profile) -> list[DraftEvidence]:
    """As profiled, the plain texts of a confirming run behind its own: all prompts judge acceptance."""
    more = confirmed_evidence(profile)
    return [
        _joined(evidence, more.get((evidence.draft.spec, evidence.temperature)))
        for evidence in profiled_evidence(profile)
    ]


def _joined(evidence: DraftEvidence, more: DraftEvidence | None) -> DraftEvidence:
    if more is None:
        return evidence
    texts, proposals = (
        pa.concat_tables([getattr(one, name) for one in (evidence, more)]) for name in ("texts", "proposals")
    )
    return replace(evidence, texts=texts, proposals=proposals)


def _numbered(tape: pa.Table, continuations: Sequence[int]) -> pa.Table:
    """These rows of a tape."""
    place = {continuation: row for row, continuation in enumerate(tape["continuation"].to_pylist())}
    return rows_at(tape, np.array([place[continuation] for continuation in continuations], np.int64))


def _evidence(
    tape: pa.Table, acceptance: pa.Table, draft: DraftRecord, temperature: float, max_k: int
) -> DraftEvidence:
    """The rows of a tape at a temperature, each with the draft's own."""
    texts, proposals = rows_where(tape, temperature=temperature), rows_where(acceptance, draft=draft.spec)
    place = {continuation: row for row, continuation in enumerate(proposals["continuation"].to_pylist())}
    own = rows_at(proposals, np.array([place[text] for text in texts["continuation"].to_pylist()]))
    return DraftEvidence(draft=draft, temperature=temperature, max_k=max_k, texts=texts, proposals=own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Replayed rounds along a draft's evidence, for each K."""

    evidence: DraftEvidence
    complete: Replay  # rounds that start at least max_k before the recorded end: one window for all K
    clock: Replay  # what the speed-up rests on: ended texts in full, cut ones as above
    emitted: Floats  # [K, rows] tokens that the clock's rounds leave in the text

    @property
    def per_round(self) -> Replay:
        """Complete rounds; all of them where no text is long enough for one."""
        return self.complete if self.complete.rounds.sum() > 0 else self.clock


def replayed(evidence: DraftEvidence, rule: AcceptanceRule | None = None, depths: Sequence[int] = ()) -> Counts:
    """Under the draft's own rule or another, for each K, by default all. Raises: InsufficientDataError: no rounds."""
    written, ended = evidence.written, labels(evidence.texts["end"]) != "cut"
    window = np.maximum(written - evidence.max_k, 0)
    ends = np.where(ended, written, window)
    complete, clock = [], []
    for rows, walks in _walks(evidence, rule or evidence.drafting.rule, depths):
        complete.append(by_depth([count_rounds(walked, window[rows]) for walked in walks]))
        whole = [count_rounds(walked, ends[rows]) for walked in walks] if ended[rows].any() else []
        clock.append(by_depth(whole) if whole else complete[-1])
    counted = side_by_side(clock)
    if not counted.rounds.sum() > 0:
        problem = f"no continuation at T = {evidence.temperature:g} is longer than K = {evidence.max_k}"
        raise InsufficientDataError(problem, "profile with a larger --max-new-tokens or a smaller --max-k")
    emitted = np.where(ended, written, counted.emitted)
    return Counts(evidence=evidence, complete=side_by_side(complete), clock=counted, emitted=emitted)


def whole_texts(
    evidence: DraftEvidence, num_speculative_tokens: int, limit_tokens: int
) -> tuple[RowCounts, Floats]:  # [rows] the variance of a text's rounds, given the text
    """What a run sees that ends each text where the tape or the limit does, its last round cut short."""
    ends, k = np.minimum(evidence.written, limit_tokens), num_speculative_tokens
    counted, variances = [], []
    for rows, (walked,) in _walks(evidence, evidence.drafting.rule, [k]):
        counted.append(count_rounds(walked, ends[rows]))
        variances.append(rounds_variance(walked, ends[rows], k))
    return RowCounts.of(side_by_side(counted), ends.astype(np.float64), 0, k), np.concatenate(variances)


def acceptance_lengths_by_rule(evidence: DraftEvidence, num_speculative_tokens: int) -> dict[str, float]:
    """τ under every acceptance rule that the evidence can price, over complete rounds."""
    lengths: dict[str, float] = {}
    for rule in evidence.rules:
        if evidence.temperature == 0.0 and lengths:  # a greedy target makes all rules one
            lengths[rule] = lengths["greedy_draft"]
            continue
        counted = replayed(evidence, rule, [num_speculative_tokens]).per_round
        lengths[rule] = float(counted.emitted.sum() / counted.rounds.sum())
    return lengths


def _walks(
    evidence: DraftEvidence, rule: AcceptanceRule, depths: Sequence[int]
) -> Iterator[tuple[slice, Sequence[Walk]]]:
    """Round starts along the texts, some rows at a time so that memory stays small: for all K at once, or one by one
    where the longest path of fewer proposals is not the start of that of more.
    """
    width = max(depths, default=evidence.max_k)
    for first in range(0, len(evidence.written), _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        if evidence.drafting.evidence == "tree":
            yield rows, [*_tree_walks(evidence, first, depths or range(1, width + 1), width)]
        else:
            accept, proposed = _accept_probabilities(evidence, first, rule, width)
            yield rows, [walk(accept, proposed, depths=depths)]


def _tree_walks(evidence: DraftEvidence, first: int, depths: Sequence[int], width: int) -> Iterator[Walk]:
    """Of trees of K nodes, which are the first K that a larger one grows."""
    proposals = evidence.proposals.slice(first, _ROWS_AT_ONCE)
    proposed, matched = _lists(proposals, "proposed_tokens").astype(np.int64), _matched(proposals, width)
    for k in depths:
        accept = accept_probabilities_matched(matched[k], width)
        yield walk(accept, np.minimum(proposed, k), depths=[k])


def _matched(proposals: pa.Table, width: int) -> Ints:  # [width + 1, longest, rows]
    """Tokens that the trees of K nodes match, for each K, at each position."""
    texts = proposals["start_ranks"].to_pylist()
    found = np.zeros((width + 1, max(map(len, texts), default=0), len(texts)), np.int64)
    for row, starts in enumerate(texts):
        places = [(place, start) for start, ranks in enumerate(starts) for place in ranks if place <= width]
        if places:
            np.add.at(found[:, :, row], tuple(np.transpose(places)), 1)
    return found.cumsum(0)


def _accept_probabilities(
    evidence: DraftEvidence, first: int, rule: AcceptanceRule, width: int
) -> tuple[Floats, Ints | None]:
    """w(s, j) of the texts from `first` on, and k(s) where proposals vary in length."""
    texts, proposals = (table.slice(first, _ROWS_AT_ONCE) for table in (evidence.texts, evidence.proposals))
    if evidence.drafting.evidence == "start":
        matched, proposed = (_lists(proposals, name) for name in ("matched_tokens", "proposed_tokens"))
        return accept_probabilities_matched(matched.astype(np.int64), width), proposed.astype(np.int64)
    if rule == "greedy_draft" or evidence.temperature == 0.0:
        return shifted(_lists(proposals, "argmax_hits"), width), None
    draft = _lists(proposals, "draft_logprobs", -np.inf)
    if rule == "exact_match":
        return shifted(accept_probabilities_exact_match(draft), width), None
    target = _lists(texts, "logprobs")
    if rule == "block":
        return accept_probabilities_block(target, draft, width), None
    return shifted(accept_probabilities_rejection(target, draft), width), None


def _lists(table: pa.Table, name: str, fill: float = 0.0) -> Floats:  # [longest, rows]
    """Raises: ProfileError for texts that a rule needs more of than was recorded."""
    if table[name].null_count:
        raise ProfileError(f"the profile lacks the {name} of some texts", "profile with a target that tells them")
    return padded(table[name], fill)
