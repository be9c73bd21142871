"""Replay: what speculative decoding would have done on text that the target already wrote.

Exact verification leaves the target's law untouched, so a recorded continuation *is* a speculative run's output; only
which positions were accepted is open: the j-th proposal of a round that starts at s with probability w(s, j), once it
is reached. Arrays are time-major, [T, K, rows]: a row is one continuation, position 0 its first token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from spectune.tree import TokenTree

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Expected counts for each K = 1..max_k (first axis) and continuation (last axis)."""

    rounds: Floats  # [K, rows] expected rounds in the counted window
    emitted: Floats  # [K, rows] tokens those rounds emit, bonus included
    reached: Floats  # [K, max_k, rows] rounds in which proposal j was reached by verification
    accepted: Floats  # [K, max_k, rows] rounds in which proposal j was accepted
    proposed: Floats  # [K, rows] proposed tokens
    draft_steps: Ints  # [shapes] of each shape that a round may have, the first of which proposes nothing
    nodes: Ints  # [shapes] its proposals; of a chain as many as its draft steps
    rounds_by_shape: Floats  # [K, shapes, rows]
    starts: Floats  # [K, T, rows] probability that a round starts at a position


def shifted(per_position: Floats, max_k: int) -> Floats:  # [T, rows] → [T, max_k, rows]
    """w(s, j) = per_position[s + j] for evidence that does not depend on the start; 0 beyond the end."""
    padded = np.concatenate([per_position, np.zeros((max_k, per_position.shape[1]))])
    windows = np.lib.stride_tricks.sliding_window_view(padded, max_k, axis=0)[: len(per_position)]
    return np.moveaxis(windows, -1, 1)


def accept_probabilities_rejection(target_logprobs: Floats, draft_logprobs: Floats) -> Floats:
    """min(1, q(x)/p(x)): sampled draft, r < p/q. Source: Leviathan et al. 2023, arXiv 2211.17192."""
    return np.exp(np.minimum(draft_logprobs - target_logprobs, 0.0))


def accept_probabilities_exact_match(draft_logprobs: Floats) -> Floats:
    """q(x): draft and target sample with independent noise and must agree."""
    return np.exp(draft_logprobs)


def accept_probabilities_top_ranks(ranks: Ints, width: int) -> Floats:
    """1 where x is among the draft's `width` likeliest tokens, 1 for a greedy chain. Source: arXiv 2406.16858."""
    return (ranks <= width).astype(np.float64)


def accept_probabilities_block(
    target_logprobs: Floats,  # [T, rows]
    draft_logprobs: Floats,  # [T, rows]
    max_k: int,
) -> Floats:  # [T, max_k, rows]
    """min(1, q/(P_j·p)), P_0 = 1, P_{j+1} = min(1, P_j·p/q) from the round's start. Source: arXiv 2403.10444."""
    log_ratio = np.nan_to_num(target_logprobs - draft_logprobs, nan=np.inf, posinf=np.inf)
    ratio = shifted(log_ratio, max_k)  # log p/q
    inside = shifted(np.ones_like(log_ratio), max_k)
    result = np.empty_like(ratio)
    log_carried = np.zeros_like(ratio[:, 0])
    for j in range(max_k):
        joint = log_carried + ratio[:, j]
        result[:, j] = np.exp(np.minimum(0.0, -joint)) * inside[:, j]
        log_carried = np.minimum(0.0, joint)
    return result


def accept_probability_sampled_siblings(
    target_probs: Floats,  # [vocab]
    draft_probs: Floats,  # [vocab]
    token_id: int,
    siblings: int,
) -> float:
    """P(some sibling is accepted | output x) for i.i.d. sampled children under recursive rejection.

    Σ_i R_{i−1}·min(p_{i−1}, q)(x)/p(x), R the probability that all earlier siblings were rejected and p_i the
    residual after i rejections; p(x) > 0. Source: SpecInfer, arXiv 2305.09781, multi-step speculative sampling.
    """
    residual, survive, mass = target_probs, 1.0, 0.0
    for _ in range(siblings):
        overlap = np.minimum(residual, draft_probs)
        mass += survive * float(overlap[token_id])
        left = residual - overlap
        rejected = float(left.sum())
        if rejected <= 0.0:
            break
        survive *= rejected
        residual = left / rejected
    return mass / float(target_probs[token_id])


def matched_in_tree(ranks: Ints, tree: TokenTree) -> Ints:  # [T, rows] → [T, rows]
    """Tokens that a round at each position accepts of a tree of the draft's likeliest tokens, one that is the same in
    every round: the text's ranks lead down its nodes. 0 stands for what is no rank, as beyond the end.
    """
    places = {path: place for place, path in enumerate(tree.paths, start=1)}
    most = max((path[-1] for path in tree.paths), default=0)
    children = np.zeros((tree.nodes + 1, most + 2), np.int64)  # of the root, then of each node; 0: none
    for path, place in places.items():
        children[places.get(path[:-1], 0), path[-1]] = place
    known = np.where(ranks > most, most + 1, ranks)
    ahead = np.concatenate([known, np.zeros((tree.depth, *ranks.shape[1:]), np.int64)])
    node, arrived, matched = np.zeros_like(known), np.ones(known.shape, bool), np.zeros_like(known)
    for depth in range(tree.depth):
        node = children[node, ahead[depth : depth + len(known)]]
        arrived &= node > 0
        matched += arrived
    return matched


def round_starts(matched: Ints) -> NDArray[np.bool_]:  # [T, rows] → [T, rows]
    """Where rounds start, of proposals that are given once the text is: each behind what the one before it emits."""
    length, rows = matched.shape
    starts = np.zeros((length + int(matched.max(initial=0)) + 1, rows), bool)
    starts[0] = True
    for s in range(length):
        here = np.flatnonzero(starts[s])
        starts[s + matched[s, here] + 1, here] = True
    return starts[:length]


def accept_probabilities_matched(matched: Ints, depth: int) -> Floats:  # [T, rows] → [T, depth, rows]
    """0 or 1: whether a round's j-th token is accepted, of proposals that are given once the text is."""
    return (np.arange(depth)[None, :, None] < matched[:, None, :]).astype(np.float64)


def replay(
    accept_probabilities: Floats,  # [T, max_k, rows] w(s, j)
    counted_starts: Ints,  # [rows] only rounds that start before this position are counted
    proposed_tokens: Ints | None = None,  # [T, rows] k(s) where proposals vary in length
    first_start: int = 0,  # 1 where the engine takes the first token from the prompt's own pass
) -> Replay:
    """Carry round starts along each continuation, for every K = 1..max_k at once.

    A round at s that accepts m of its proposals starts the next one at s + m + 1: the recovered or bonus token is the
    (m+1)-th. A proposal that was not made counts as one that cannot be accepted. To count complete rounds of cut text
    pass lengths − max_k, one window for all K. With counted_starts = lengths, `rounds` are what a server's clock sees
    and τ is lengths/rounds: `emitted` then includes tokens of the last round beyond the end.
    """
    return count_rounds(walk(accept_probabilities, proposed_tokens, first_start), counted_starts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Where rounds start, before any window is chosen."""

    reach: Floats  # [T, max_k + 1, rows] P(first j proposals accepted | round at s)
    made: Ints | None  # [T, rows] proposals of a round at s; None where there are always max_k
    depths: Sequence[int]
    starts: Floats  # [depths, T, rows] probability that a round starts at s


def walk(
    accept_probabilities: Floats, proposed_tokens: Ints | None = None, first_start: int = 0, depths: Sequence[int] = ()
) -> Walk:
    """Carry round starts along for the K in `depths`, by default 1..max_k; the rest as in `replay`."""
    length, max_k, rows = accept_probabilities.shape
    reach = np.ones((length, max_k + 1, rows))
    for j in range(max_k):
        np.multiply(reach[:, j], accept_probabilities[:, j], out=reach[:, j + 1])
        if proposed_tokens is not None:
            reach[:, j + 1] *= proposed_tokens > j
    depths = depths or range(1, max_k + 1)
    made = None if proposed_tokens is None else np.minimum(proposed_tokens, max_k)
    return Walk(reach=reach, made=made, depths=depths, starts=_round_starts(reach, depths, first_start))


def count_rounds(walked: Walk, counted_starts: Ints) -> Replay:
    """Pool the rounds that start before `counted_starts`, [rows]; the first axis is the walk's depths."""
    depths = np.asarray(walked.depths)
    length, width, _ = walked.reach.shape
    starts = walked.starts * (np.arange(length)[:, None] < counted_starts)
    by_row = np.ascontiguousarray(np.moveaxis(starts, -1, 0))  # [rows, depths, T]
    tried = np.arange(width - 1) < depths[:, None]
    arrived = _pooled(by_row, walked.reach)  # [depths, max_k + 1, rows]
    accepted = arrived[:, 1:] * tried[:, :, None]
    reached = arrived[:, :-1] * tried[:, :, None]
    if walked.made is not None:
        offered = walked.reach[:, :-1] * (walked.made[:, None] > np.arange(width - 1)[:, None])
        reached = _pooled(by_row, offered) * tried[:, :, None]
    rounds, lengths = starts.sum(axis=1), np.arange(width)
    by_shape = _rounds_by_length(walked, by_row, rounds)
    return Replay(
        rounds=rounds,
        emitted=rounds + accepted.sum(axis=1),
        reached=reached,
        accepted=accepted,
        proposed=np.einsum("knr,n->kr", by_shape, lengths.astype(np.float64)),
        draft_steps=lengths,
        nodes=lengths,
        rounds_by_shape=by_shape,
        starts=starts,
    )


def _rounds_by_length(walked: Walk, by_row: Floats, rounds: Floats) -> Floats:
    """[depths, max_k + 1, rows] rounds by how many tokens their chain has."""
    _, width, rows = walked.reach.shape
    by_length = np.moveaxis(np.zeros((rows, len(walked.depths), width)), 0, -1)  # as pooled counts lie
    if walked.made is None:
        by_length[np.arange(len(walked.depths)), np.asarray(walked.depths)] = rounds
        return by_length
    made = walked.made[:, None] == np.arange(width)[:, None]
    by_made = _pooled(by_row, made.astype(np.float64))
    for place, k in enumerate(walked.depths):
        by_length[place, :k], by_length[place, k] = by_made[place, :k], by_made[place, k:].sum(axis=0)
    return by_length


def side_by_side(parts: Sequence[Replay]) -> Replay:
    """The rows of several replays at the same depths, without their starts."""
    names = ("rounds", "emitted", "reached", "accepted", "proposed", "rounds_by_shape")
    fields = {name: np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in names}
    return replace(parts[0], **fields, starts=np.empty((0, 0, 0)))


def by_depth(parts: Sequence[Replay]) -> Replay:
    """Replays of the same rows at one depth each, as one; without their starts."""
    names = ("rounds", "emitted", "reached", "accepted", "proposed", "rounds_by_shape")
    fields = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return replace(parts[0], **fields, starts=np.empty((0, 0, 0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """What each of a number of texts takes at one K."""

    emitted: Floats  # [rows]
    rounds: Floats  # [rows]
    draft_steps: Ints  # [shapes], as of a Replay
    nodes: Ints  # [shapes]
    by_shape: Floats  # [shapes, rows] rounds
    filled: Floats  # [rows] rounds whose K proposals were all accepted

    @staticmethod
    def of(counted: Replay, emitted: Floats, place: int, k: int) -> "RowCounts":
        """The rows of a replay at K = k, which is at `place` of its depths; `emitted` is [depths, rows] or [rows]."""
        return RowCounts(
            emitted=np.broadcast_to(emitted, counted.rounds.shape)[place],
            rounds=counted.rounds[place],
            draft_steps=counted.draft_steps,
            nodes=counted.nodes,
            by_shape=counted.rounds_by_shape[place],
            filled=counted.accepted[place, k - 1],
        )


def _pooled(by_row: Floats, per_start: Floats) -> Floats:
    """Σ over starts; [rows, depths, T] and [T, J, rows] give [depths, J, rows]."""
    return np.asarray(np.moveaxis(by_row @ np.ascontiguousarray(np.moveaxis(per_start, -1, 0)), 0, -1))


def rounds_variance(walked: Walk, lengths: Ints, num_speculative_tokens: int) -> Floats:
    """[rows] variance of the rounds that a text of `lengths` takes, given the text; carried back from its end."""
    k, (length, _, rows) = num_speculative_tokens, walked.reach.shape
    mean, square = np.zeros((2, length + k + 2, rows))
    stop = walked.reach[:, : k + 1].copy()
    stop[:, :k] -= walked.reach[:, 1 : k + 1]
    for s in range(length - 1, -1, -1):
        inside = s < lengths
        to_come = np.sum(stop[s] * mean[s + 1 : s + k + 2], axis=0)
        square[s] = inside * (1 + 2 * to_come + np.sum(stop[s] * square[s + 1 : s + k + 2], axis=0))
        mean[s] = inside * (1 + to_come)
    return np.asarray(np.maximum(square[0] - mean[0] ** 2, 0.0))


def _round_starts(reach: Floats, depths: Sequence[int], first_start: int) -> Floats:
    length, width, rows = reach.shape
    starts = np.zeros((len(depths), length + width, rows))
    starts[:, first_start] = 1.0
    stop_after = reach[:, :-1] - reach[:, 1:]  # P(exactly j accepted)
    for s in range(length):
        for place, k in enumerate(depths):
            mass = starts[place, s]
            starts[place, s + 1 : s + k + 1] += mass * stop_after[s, :k]
            starts[place, s + k + 1] += mass * reach[s, k]
    return starts[:, :length]
