"""Formulas of speed-up against sums, brute force and published figures."""

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spectune.errors import ConfigError
from spectune.speedup import (
    SpeedupRow,
    best_row,
    break_even_alpha,
    expected_tokens,
    fitted_alpha,
    round_cost,
    speedup_rows,
)

# Leviathan et al. 2023, arXiv 2211.17192, appendix A.3 table 4 (T5-XXL on TPU-v4, batch 1):
# task, temperature, draft, c, gamma, alpha, expected speed-up
LEVIATHAN_TABLE_4 = [
    ("EnDe", 0, "T5-small", 0.02, 7, 0.75, 3.2),
    ("EnDe", 0, "T5-base", 0.04, 7, 0.80, 3.3),
    ("EnDe", 0, "T5-large", 0.11, 7, 0.82, 2.5),
    ("EnDe", 1, "T5-small", 0.02, 7, 0.62, 2.3),
    ("EnDe", 1, "T5-base", 0.04, 5, 0.68, 2.4),
    ("EnDe", 1, "T5-large", 0.11, 3, 0.71, 2.0),
    ("CNNDM", 0, "T5-small", 0.02, 5, 0.65, 2.4),
    ("CNNDM", 0, "T5-base", 0.04, 5, 0.73, 2.6),
    ("CNNDM", 0, "T5-large", 0.11, 3, 0.74, 2.0),
    ("CNNDM", 1, "T5-small", 0.02, 5, 0.53, 1.9),
    ("CNNDM", 1, "T5-base", 0.04, 3, 0.55, 1.8),
    ("CNNDM", 1, "T5-large", 0.11, 3, 0.56, 1.6),
]

NOT_NUMBERS = [math.nan, math.inf, -math.inf]

exactly = settings(deadline=None, derandomize=True)


def series(alpha, k):
    """One token, then each proposal that is reached and accepted: Σ_{i=0..K} α^i."""
    return math.fsum(alpha**i for i in range(k + 1))


def speedup(alpha, k, cost_ratio):
    [row] = speedup_rows(alpha, {k: round_cost(cost_ratio, k)})
    return row.speedup


# ---------------------------------------------------------------- expected tokens


def test_expected_tokens_of_four_proposals_at_eighty_percent():
    assert expected_tokens(0.8, 4) == pytest.approx(3.3616, rel=1e-14)


@exactly
@given(st.floats(0, 1), st.integers(0, 64))
@example(1.0, 7)
@example(0.0, 7)
@example(5e-324, 3)
@example(math.nextafter(1.0, 0.0), 64)
@example(1.0 - 1e-12, 8)
@example(1.0 - 1e-7, 8)
def test_expected_tokens_is_the_series_sum(alpha, k):
    assert expected_tokens(alpha, k) == pytest.approx(series(alpha, k), rel=1e-12)


@exactly
@given(st.floats(0, 1e-3), st.integers(0, 64))
def test_expected_tokens_keeps_its_digits_near_certain_acceptance(distance, k):
    alpha = 1.0 - distance
    assert expected_tokens(alpha, k) == pytest.approx(series(alpha, k), rel=1e-13)


def test_expected_tokens_lies_between_one_and_all():
    for k in range(9):
        assert expected_tokens(0.0, k) == 1.0
        assert expected_tokens(1.0, k) == k + 1


@pytest.mark.parametrize("alpha", [*NOT_NUMBERS, -0.01, 1.01])
def test_alpha_outside_its_range_is_a_config_error(alpha):
    with pytest.raises(ConfigError, match="alpha"):
        expected_tokens(alpha, 4)
    with pytest.raises(ConfigError, match="alpha"):
        speedup_rows(alpha, {2: 1.5})


@pytest.mark.parametrize("k", [*NOT_NUMBERS, -1])
def test_impossible_numbers_of_tokens_are_a_config_error(k):
    with pytest.raises(ConfigError, match="num_speculative_tokens"):
        expected_tokens(0.5, k)


# ---------------------------------------------------------------- speed-up and best K


def test_round_cost_counts_drafting_in_plain_steps():
    assert round_cost(0.1, 4) == pytest.approx(1.4)
    assert round_cost(0.0, 4) == 1.0
    assert round_cost(0.3, 0) == 1.0


@pytest.mark.parametrize("cost_ratio", [*NOT_NUMBERS, -0.01])
def test_impossible_cost_ratios_are_a_config_error(cost_ratio):
    with pytest.raises(ConfigError, match="cost_ratio"):
        round_cost(cost_ratio, 4)


def test_speedup_rows_are_tokens_over_cost_in_order_of_k():
    rows = speedup_rows(0.8, {4: 1.5, 1: 1.2})
    assert [row.num_speculative_tokens for row in rows] == [1, 4]
    assert [row.expected_tokens for row in rows] == pytest.approx([1.8, 3.3616])
    assert [row.speedup for row in rows] == pytest.approx([1.5, 3.3616 / 1.5])


def best_k(alpha, cost_ratio, max_k):
    rows = speedup_rows(alpha, {k: round_cost(cost_ratio, k) for k in range(1, max_k + 1)})
    return best_row(rows).num_speculative_tokens


@pytest.mark.parametrize("alpha", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("cost_ratio", [0, 0.01, 0.05, 0.1, 0.3, 0.6, 0.95, 1.2])
@pytest.mark.parametrize("max_k", [1, 4, 12])
def test_best_k_is_that_of_brute_force(alpha, cost_ratio, max_k):
    speedups = [series(alpha, k) / (k * cost_ratio + 1) for k in range(max_k + 1)]  # K = 0 is plain decoding
    assert best_k(alpha, cost_ratio, max_k) == speedups.index(max(speedups))


def test_best_k_is_plain_decoding_only_where_the_draft_costs_as_much_as_it_is_accepted():
    """One token gains where 1 + α > 1 + c, and no more tokens do where one does not."""
    for alpha in (0.5, 0.7, 0.9):
        assert best_k(alpha, alpha - 0.01, 12) >= 1
        assert best_k(alpha, alpha + 0.01, 12) == 0


def test_best_row_prefers_plain_decoding_and_then_fewer_tokens_in_a_tie():
    def row(k, gain):
        return SpeedupRow(num_speculative_tokens=k, expected_tokens=2.0, speedup=gain)

    assert best_row([row(1, 1.0)]).num_speculative_tokens == 0
    assert best_row([row(5, 1.5), row(2, 1.5), row(3, 1.4)]).num_speculative_tokens == 2
    plain = best_row([])
    assert (plain.num_speculative_tokens, plain.expected_tokens, plain.speedup) == (0, 1.0, 1.0)


@pytest.mark.parametrize("row", LEVIATHAN_TABLE_4, ids=lambda row: "-".join(map(str, row[:3])))
def test_published_expected_speedups_follow_from_the_rounded_inputs(row):
    """The table prints α and c to two decimals and the speed-up to one; speed-up rises with α and falls with c."""
    *_, cost_ratio, gamma, alpha, printed = row
    half = 0.005
    lowest = speedup(alpha - half, gamma, cost_ratio + half)
    highest = speedup(alpha + half, gamma, cost_ratio - half)
    assert lowest < printed + 0.05
    assert highest >= printed - 0.05
    steps = [-half + half * i / 10 for i in range(21)]
    assert any(round(speedup(alpha + a, gamma, cost_ratio + c), 1) == printed for a in steps for c in steps)


# ---------------------------------------------------------------- break-even


def test_a_round_that_takes_more_than_two_steps_cannot_gain_with_one_proposal():
    """α = 0.86 looks good, yet verifying two tokens costs more than twice a step here."""
    cost = 112 / 51
    [row] = speedup_rows(0.86, {1: cost})
    assert round(row.speedup, 2) == 0.85
    assert break_even_alpha(1, cost) is None
    assert best_row([row]).num_speculative_tokens == 0


@exactly
@given(st.integers(1, 16), st.floats(1e-6, 1.0))
def test_break_even_alpha_gives_exactly_the_cost(k, share):
    cost = 1.0 + share * k
    alpha = break_even_alpha(k, cost)
    assert alpha is not None
    assert 0.0 < alpha <= 1.0
    assert series(alpha, k) == pytest.approx(cost, rel=1e-9)


def test_break_even_of_one_proposal_is_the_extra_cost():
    for extra in (0.01, 0.25, 0.5, 0.99):
        assert break_even_alpha(1, 1 + extra) == pytest.approx(extra, abs=1e-10)


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_break_even_ends(k):
    assert break_even_alpha(k, math.nextafter(k + 1, math.inf)) is None
    assert break_even_alpha(k, 10.0 * k) is None
    assert break_even_alpha(k, k + 1) == 1.0
    assert break_even_alpha(k, 1.0) == 0.0
    assert break_even_alpha(k, 0.4) == 0.0


def test_break_even_rises_with_cost_and_falls_with_more_tokens_at_the_same_cost():
    costs = [1.0, 1.001, 1.1, 1.5, 1.9, 2.0]
    table = [[break_even_alpha(k, cost) for cost in costs] for k in (1, 2, 4, 8)]
    for row in table:
        assert row == sorted(row)
        assert len(set(row)) == len(row)
    for column in list(zip(*table, strict=True))[1:]:
        assert list(column) == sorted(column, reverse=True)
        assert len(set(column)) == len(column)


@pytest.mark.parametrize("cost", [*NOT_NUMBERS, -0.1])
def test_impossible_round_costs_are_a_config_error(cost):
    with pytest.raises(ConfigError, match="round cost"):
        break_even_alpha(4, cost)


# ---------------------------------------------------------------- fitted alpha


@exactly
@given(st.floats(0, 1), st.lists(st.integers(1, 16), min_size=1, max_size=6, unique=True))
@example(0.0, [1, 2, 4])
@example(1.0, [1, 2, 4])
def test_fitted_alpha_recovers_the_alpha_of_exact_lengths(alpha, tokens):
    assert fitted_alpha({k: series(alpha, k) for k in tokens}) == pytest.approx(alpha, abs=1e-6)


def test_fitted_alpha_minimises_the_squared_log_error_of_lengths_that_no_alpha_gives():
    lengths = {1: 1.9, 2: 2.475, 4: 3.534, 8: 4.4}

    def misfit(alpha):
        return sum(math.log(series(alpha, k) / length) ** 2 for k, length in lengths.items())

    grid = [i / 10_000 for i in range(10_001)]
    assert fitted_alpha(lengths) == pytest.approx(min(grid, key=misfit), abs=1e-4)
