"""The cost table as cells: drift divided out, spread, what lies between cells, and what whole rounds say of it all."""

import numpy as np
import pandas as pd
import pytest

from spectune.decide.plan import recommend
from spectune.decide.round_costs import round_errors
from spectune.errors import ProfileError
from spectune.measure.cost import Cell, _Samples
from spectune.profile import schemas
from spectune.profile.costs import FOLDS, RESAMPLES, CellKey, CostCells, unsteadiness
from spectune.profile.manifest import Load
from spectune.profile.tables import to_arrow
from spectune.stats import median_half_width, steady_seconds
from tests.profiles import fitted_settings, make_profile

MAIN = Load(batch=1, context_tokens=100)


def drifting(passes: int = 60, cells: int = 8, noise: float = 0.02) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(1)
    drift = np.exp(0.3 * np.sin(np.arange(passes) / 6))
    cell, number = (axis.ravel() for axis in np.meshgrid(np.arange(cells), np.arange(passes)))
    seconds = (0.1 + 0.02 * cell) * drift[number] * np.exp(rng.normal(0, noise, cell.size))
    return seconds, cell, number


def test_a_drift_of_the_machine_is_divided_out_and_leaves_the_ratios() -> None:
    seconds, cell, number = drifting()
    steady = steady_seconds(seconds, cell, number, np.ones(len(cell), bool))
    raw, clean = (np.array([median_half_width(values[cell == c]) for c in range(8)]) for values in (seconds, steady))
    assert np.all(clean < 0.2 * raw)
    medians = np.array([np.median(steady[cell == c]) for c in range(8)])
    assert medians / medians[0] == pytest.approx(1 + 0.2 * np.arange(8), rel=0.01)
    assert medians[0] == pytest.approx(0.1 * np.median(np.exp(0.3 * np.sin(np.arange(60) / 6))), rel=0.02)


def test_too_few_forwards_in_a_pass_keep_their_noise() -> None:
    seconds, cell, number = drifting(cells=4)
    assert steady_seconds(seconds, cell, number, np.ones(len(cell), bool)) == pytest.approx(seconds)


def test_rounds_follow_the_drift_that_forwards_tell() -> None:
    seconds, cell, number = drifting(cells=9)
    forward = cell < 8
    steady = steady_seconds(seconds, cell, number, forward)
    assert median_half_width(steady[~forward]) < 0.2 * median_half_width(seconds[~forward])


def cells_of(costs: pd.DataFrame) -> CostCells:
    return CostCells.of(to_arrow(costs, schemas.COSTS))


@pytest.fixture
def costs(tmp_path) -> pd.DataFrame:
    return make_profile(tmp_path / "p", {0.0: 0.8}, verify_s=0.12, passes=30).costs.to_pandas()


def test_cells_give_their_own_median_and_its_spread(costs) -> None:
    cells = cells_of(costs)
    key = CellKey(part="cost_p", tokens=3, load=MAIN)
    draws = cells.resampled(key)
    assert len(draws) == 1 + RESAMPLES
    assert draws[0] == np.median(cells.samples[key].seconds)
    assert draws[0] == pytest.approx(0.12, rel=0.01)
    assert 0 < np.std(draws[1:]) / draws[0] < 0.01
    folded = np.stack([cells.folded(side, key) for side in (0, 1)])
    assert folded.shape == (2, FOLDS)
    assert np.all(np.abs(folded / 0.12 - 1) < 0.02)


def test_few_samples_are_not_cut_into_folds(costs) -> None:
    few = costs[costs["measurement_pass"] < 6].copy()
    key = CellKey(part="cost_p", tokens=3, load=MAIN)
    few.loc[few[(few["part"] == "cost_p") & (few["tokens"] == 3)].index[0], "seconds"] *= 3  # one hiccup
    cells = cells_of(few)
    assert cells.folded(0, key) == pytest.approx(np.full(FOLDS, cells.resampled(key)[0]))


def test_overheads_below_zero_are_known_by_their_spread_too(costs) -> None:
    odd = costs.copy()
    chosen = (odd["part"] == "overhead") & (odd["draft_steps"] == 4)
    odd.loc[chosen, "seconds"] = np.random.default_rng(0).normal(-0.001, 0.05, chosen.sum())
    key, width = cells_of(odd).noisiest
    assert (key.part, key.draft_steps, key.tokens) == ("overhead", 4, 5)
    assert width > 0.1


def test_between_cells_a_line_beyond_them_nothing(costs) -> None:
    sparse = costs[(costs["part"] != "cost_p") | costs["tokens"].isin([1, 2, 5])].copy()
    sparse.loc[(sparse["part"] == "cost_p") & (sparse["tokens"] == 5), "seconds"] *= 2
    cells = cells_of(sparse)
    ends = [cells.resampled(CellKey(part="cost_p", tokens=n, load=MAIN))[0] for n in (2, 5)]
    between = cells.resampled(CellKey(part="cost_p", tokens=3, load=MAIN))[0]
    assert between == pytest.approx(ends[0] + (ends[1] - ends[0]) / 3)
    with pytest.raises(ProfileError, match="lack verify n = 6"):
        cells.resampled(CellKey(part="cost_p", tokens=6, load=MAIN))
    with pytest.raises(ProfileError, match="at batch 8"):
        cells.resampled(CellKey(part="cost_p", tokens=1, load=Load(batch=8, context_tokens=100)))


def test_the_line_between_neighbours_is_held_against_the_cell_in_the_middle(costs) -> None:
    bumpy = costs.copy()
    bumpy.loc[(bumpy["part"] == "cost_p") & (bumpy["tokens"] == 3), "seconds"] *= 1.25
    residuals = cells_of(bumpy).surface_residuals()
    assert residuals[CellKey(part="cost_p", tokens=3, load=MAIN)] == pytest.approx(1 / 1.25 - 1, abs=0.01)


def test_the_noisiest_cell_is_named(costs) -> None:
    noisy = costs.copy()
    chosen = (noisy["part"] == "cost_p") & (noisy["tokens"] == 4)
    noisy.loc[chosen, "seconds"] *= np.exp(np.random.default_rng(0).normal(0, 0.3, chosen.sum()))
    key, width = cells_of(noisy).noisiest
    assert (key.part, key.tokens) == ("cost_p", 4)
    assert width > 0.1


def test_plain_steps_which_every_ratio_rests_on_are_timed_four_times_a_pass() -> None:
    cells = [Cell(parts=("cost_p",), tokens=n, load=MAIN, run=lambda n=n: (0.1 * n,)) for n in (1, 2, 3)]
    samples = _Samples(cells, seed=0)
    for number in range(3):
        samples.one_pass(number, lambda: None)
    table = samples.table()
    assert table.groupby(["tokens", "measurement_pass"]).size().unstack().to_numpy().tolist() == [
        [4] * 3,
        [1] * 3,
        [1] * 3,
    ]
    assert np.allclose(table["seconds"], 0.1 * table["tokens"])


def test_whole_rounds_at_other_depths_judge_the_sum_of_the_parts(tmp_path) -> None:
    profile = make_profile(tmp_path / "p", {0.0: 0.8}, noise=0.0, max_k=8)
    costs = profile.costs.to_pandas()
    whole = costs[(costs["part"] == "overhead") & (costs["draft_steps"] == 8)].copy()
    whole["part"], whole["seconds"] = "round", (8 * 0.01 + 0.105 + 0.002) * 1.1
    rounds = costs[(costs["part"] == "overhead") & (costs["draft_steps"] == 1)].copy()
    rounds["part"] = "round"
    ((key, error),) = round_errors(profile, cells_of(pd.concat([costs, whole, rounds], ignore_index=True))).items()
    assert (key.draft_steps, key.tokens, key.greedy) == (8, 9, True)
    assert error == pytest.approx(1 / 1.1 - 1, abs=1e-6)


def test_other_loads_have_their_own_answer_and_the_turn_is_between_them(tmp_path) -> None:
    from dataclasses import replace

    profile = make_profile(tmp_path / "p", {0.0: 0.8})
    costs = profile.costs.to_pandas()
    forwards = costs[costs["part"].isin(["cost_p", "cost_q"])]
    many = forwards[forwards["tokens"] != 4].assign(batch=8)  # n = 4 lies between n = 3 and 5
    many["seconds"] *= np.where(many["part"] == "cost_p", 1.0 + many["tokens"], 3.0)  # compute-bound
    loads = [MAIN, Load(batch=8, context_tokens=100)]
    settings = profile.manifest.settings.model_copy(update={"loads": loads})
    both = replace(
        profile,
        costs=to_arrow(pd.concat([costs, many], ignore_index=True), schemas.COSTS),
        manifest=profile.manifest.model_copy(update={"settings": settings}),
    )
    assert len(fitted_settings(both, loads)) == 2 * len(fitted_settings(profile))
    answer = recommend(both)
    assert [(a.batch, a.verdict) for a in answer.by_load] == [(1, "speculate"), (8, "plain")]
    assert any("between batch 1 (speculate) and 8 (plain)" in reason for reason in answer.reasons)
    assert answer.verdict == "speculate"


def test_unsteadiness_is_what_forwards_changed_by_between_fifths_beyond_what_all_share(costs) -> None:
    """A machine that drifts as a whole, and one on which long forwards drift by themselves."""
    flat = cells_free(costs)
    fifth = flat["measurement_pass"] * 5 // (flat["measurement_pass"].max() + 1)
    drift = np.array([0.0, 0.1, -0.1, 0.3, 0.0])
    forward, long = flat["part"] == "cost_p", (flat["part"] == "cost_p") & (flat["tokens"] > 1)
    everything = flat.assign(seconds=flat["seconds"] * np.exp(drift[fifth]))
    assert unsteadiness(to_arrow(everything, schemas.COSTS), "nothing") == pytest.approx(drift.std(ddof=1))
    for over in ("reference", "plain"):
        assert unsteadiness(to_arrow(everything, schemas.COSTS), over) < 1e-9
    forwards = flat.assign(seconds=flat["seconds"] * np.exp(np.where(forward, drift[fifth], 0.0)))
    assert unsteadiness(to_arrow(forwards, schemas.COSTS), "reference") == pytest.approx(drift.std(ddof=1))
    assert unsteadiness(to_arrow(forwards, schemas.COSTS), "plain") < 1e-9
    longer = flat.assign(seconds=flat["seconds"] * np.exp(np.where(long, drift[fifth], 0.0)))
    assert unsteadiness(to_arrow(longer, schemas.COSTS), "plain") == pytest.approx(drift.std(ddof=1))
    assert unsteadiness(to_arrow(flat[flat["measurement_pass"] < 4], schemas.COSTS), "plain") == float("inf")


def cells_free(costs: pd.DataFrame) -> pd.DataFrame:
    """Every sample at its cell's median."""
    keys = ["part", "draft", "temperature", "tokens"]
    return costs.assign(seconds=costs.groupby(keys, dropna=False)["seconds"].transform("median"))
