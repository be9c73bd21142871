"""N-gram trees in the decision: priced by what their own budget of nodes accepts, at the costs of a tree's forward."""

import numpy as np
import pytest

from spectune.decide.check import check
from spectune.decide.plan import recommend
from spectune.engines.config import exported_config
from tests.profiles import NGRAM, NGRAM_TREE, fitted_settings, make_profile

RANKS = (0.5, 0.25)  # where the text goes on: the next node, the one after it, or nowhere
COSTS = {"plain_s": 0.1, "verify_s": 0.101, "noise": 0.002, "prompts": 48, "max_k": 8, "ngram_acceptance": 0.5}


def literal_rounds(starts: list[list[int]], nodes: int, window: int) -> tuple[int, int]:
    """Rounds and tokens of rounds that start before the window."""
    at = rounds = tokens = 0
    while at < window:
        accepted = sum(place <= nodes for place in starts[at])
        rounds, tokens, at = rounds + 1, tokens + accepted + 1, at + accepted + 1
    return rounds, tokens


def test_each_budget_is_replayed_with_its_own_nodes(tmp_path) -> None:
    profile = make_profile(tmp_path / "p", {0.0: 0.3}, tree_ranks=RANKS, **COSTS)
    rows = [row for row in profile.acceptance.to_pylist() if row["draft"] == NGRAM_TREE]
    settings = {s.num_speculative_tokens: s for s in fitted_settings(profile) if s.draft == NGRAM_TREE}
    assert sorted(settings) == list(range(1, 9))
    for nodes, setting in settings.items():
        counted = np.array([literal_rounds(row["start_ranks"], nodes, 64 - 8) for row in rows])
        assert setting.texts.rounds.tolist() == counted[:, 0].tolist()
        assert setting.texts.emitted.tolist() == counted[:, 1].tolist()
        assert setting.acceptance.length.estimate == pytest.approx(counted[:, 1].sum() / counted[:, 0].sum())


def test_where_more_tokens_cost_nothing_the_tree_wins_and_its_width_is_told(tmp_path) -> None:
    answer = recommend(make_profile(tmp_path / "p", {0.0: 0.3}, tree_ranks=RANKS, **COSTS))
    assert (answer.verdict, answer.draft) == ("speculate", NGRAM_TREE)
    assert answer.num_speculative_tokens > 1
    assert answer.tree_width == min(4, answer.num_speculative_tokens)
    chains = [c for c in answer.candidates if c.draft == NGRAM]
    assert answer.speedup.low > max(c.speedup.estimate for c in chains)


def test_where_the_forward_of_a_tree_costs_much_a_chain_is_chosen(tmp_path) -> None:
    answer = recommend(make_profile(tmp_path / "p", {0.0: 0.3}, tree_ranks=RANKS, tree_s=0.19, **COSTS))
    assert answer.draft == NGRAM
    assert answer.tree_width == 1


def test_an_engine_without_that_tree_gets_the_best_chain_and_a_line_says_so(tmp_path) -> None:
    answer = recommend(make_profile(tmp_path / "p", {0.0: 0.3}, tree_ranks=RANKS, **COSTS))
    for engine in ("vllm", "sglang", "transformers"):
        config = exported_config(answer, engine)
        assert any(f"has no {NGRAM_TREE}; {NGRAM} is the best here that it has" in line for line in config.warnings)


def test_check_names_a_tree_whose_verification_got_slower(tmp_path) -> None:
    make = {"tree_ranks": RANKS, **COSTS, "passes": 40}
    before = make_profile(tmp_path / "a", {0.0: 0.3}, **make)
    after = make_profile(tmp_path / "b", {0.0: 0.3}, tree_s=0.125, **make)
    report = check(before, after)
    slower = {(f.metric, f.draft) for f in report.findings if f.status == "regressed"}
    assert ("cost_p_verify", NGRAM_TREE) in slower
    assert ("cost_p_verify", NGRAM) not in slower


def test_the_reasons_say_how_proposals_branch_or_what_keeps_the_tree_behind(tmp_path) -> None:
    wins = recommend(make_profile(tmp_path / "a", {0.0: 0.3}, tree_ranks=RANKS, **COSTS))
    assert any(f"{wins.num_speculative_tokens} proposals are a tree: up to 4" in line for line in wins.reasons)
    loses = recommend(make_profile(tmp_path / "b", {0.0: 0.3}, tree_ranks=RANKS, tree_s=0.19, **COSTS))
    (line,) = [line for line in loses.reasons if "the best tree tried" in line]
    steps = [c.round_in_plain_steps for c in loses.candidates if c.draft == NGRAM_TREE]
    assert any(f"takes {value:.2f} plain steps" in line for value in steps)
