"""Evidence as it is handed on: what it can price, by what a round costs, and what a confirming run decodes with."""

from dataclasses import replace

import numpy as np
import pytest

from spectune.choice import Choice, Shape, chain
from spectune.decide.evidence import acceptance_lengths_by_rule, profiled_evidence, replayed
from spectune.decide.round_costs import round_costs
from spectune.decide.selection import trials
from spectune.errors import ConfigError, ProfileError
from spectune.profile import schemas
from spectune.profile.costs import CostCells
from spectune.profile.store import Profile
from spectune.profile.tables import to_arrow
from tests.profiles import NGRAM, fitted_settings, make_profile


@pytest.fixture(scope="module")
def profile(tmp_path_factory) -> Profile:
    folder = tmp_path_factory.mktemp("evidence") / "p"
    return make_profile(folder, {0.0: 0.8, 1.0: 0.7}, ngram_acceptance=0.5, max_k=6, noise=0.0)


def test_it_is_of_every_draft_at_every_temperature_in_the_tapes_order(profile) -> None:
    evidence = profiled_evidence(profile)
    assert [(one.draft.spec, one.temperature) for one in evidence] == [
        ("small", 0.0), ("small", 1.0), (NGRAM, 0.0), (NGRAM, 1.0)
    ]  # fmt: skip
    for one in evidence:
        assert one.proposals["continuation"].to_pylist() == one.texts["continuation"].to_pylist()
        assert set(one.texts["temperature"].to_pylist()) == {one.temperature}
        assert set(one.proposals["draft"].to_pylist()) == {one.draft.spec}


def test_a_target_that_tells_no_probabilities_leaves_the_rules_that_need_none(profile) -> None:
    tape = profile.tape.to_pandas()
    silent = replace(profile, tape=to_arrow(tape.assign(logprobs=[None] * len(tape)), schemas.TAPE))
    greedy, sampled, *ngram = profiled_evidence(silent)
    told = profiled_evidence(profile)[1]
    assert greedy.rules == told.rules == ["greedy_draft", "rejection", "exact_match", "block"]
    assert sampled.rules == ["greedy_draft", "exact_match"]
    lengths = acceptance_lengths_by_rule(told, 2)
    assert acceptance_lengths_by_rule(sampled, 2) == {rule: lengths[rule] for rule in sampled.rules}
    for evidence in (greedy, *ngram):
        assert replayed(evidence).clock.rounds.sum() > 0
    with pytest.raises(ProfileError, match="lacks the logprobs of some texts"):
        replayed(sampled)


def test_a_round_costs_by_its_draft_steps_and_its_verified_tokens_apart(profile) -> None:
    costs_table = profile.costs.to_pandas()
    verifying = costs_table["part"] == "cost_p"
    costs_table.loc[verifying, "seconds"] = 0.1 + 0.02 * costs_table.loc[verifying, "tokens"]
    cells = CostCells.of(to_arrow(costs_table, schemas.COSTS))
    draft, settings = profile.manifest.drafts[0], profile.manifest.settings
    costs = round_costs(cells, draft, True, settings, settings.loads[0])
    shapes = [chain(0), chain(2), Shape(2, 5), Shape(5, 6)]
    steps, nodes = np.array([[shape.depth, shape.nodes] for shape in shapes]).T
    expected = [
        0.01 * shape.depth + 0.1 + 0.02 * shape.verified_tokens + (0.002 if shape.depth else 0.001) for shape in shapes
    ]
    assert costs.round_s(steps, nodes)[0] == pytest.approx(expected)


def test_trials_are_what_is_named_or_the_best_beside_the_usual(profile) -> None:
    fitted = fitted_settings(profile)
    usual = trials(profile, fitted)
    assert {choice.temperature for choice in usual} == {0.0, 1.0}
    assert {1, 2, 4} <= {choice.num_speculative_tokens for choice in usual} <= set(range(1, 7))
    (best,) = trials(profile, fitted, temperatures=[0.0], chosen_only=True)
    at_zero = [setting for setting in fitted if setting.temperature == 0.0]
    top = max(setting.speedup.estimate for setting in at_zero)
    assert next(s.speedup.estimate for s in at_zero if s.choice == best) >= 0.99 * top
    assert best in usual
    named = trials(profile, fitted, ["ngram"], [1.0], [3, 1, 3])
    assert named == [Choice(NGRAM, chain(3), 1.0), Choice(NGRAM, chain(1), 1.0)]
    for wrong in ({"drafts": ["other"]}, {"temperatures": [0.3]}, {"depths": [7]}, {"depths": [0]}):
        with pytest.raises(ConfigError, match="was not "):
            trials(profile, fitted, **wrong)
