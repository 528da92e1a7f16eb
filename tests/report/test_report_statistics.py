"""Winning tickets under both rules, with quantiles of Student's distribution from a table."""

from __future__ import annotations

import math

import pytest

from biprune.report import summarise
from biprune.report.statistics import Sample, Verdict, judge, t_quantile
from hand_records import dense, seeds

T_95 = {1: 6.314, 2: 2.920, 4: 2.132}  # one-sided 95 %, by degrees of freedom


def sample(*values: float) -> Sample:
    return Sample(dict(enumerate(values)))


def test_mean_and_standard_deviation_by_hand() -> None:
    assert (sample(90, 91, 95).mean, sample(90, 91, 95).n) == (92, 3)
    assert sample(90, 91, 95).std == pytest.approx(math.sqrt((4 + 1 + 9) / 2))
    assert sample(90).std is None
    assert Sample({2: 3.0, 0: 1.0}).values == [1.0, 3.0]


@pytest.mark.parametrize(
    ("differences", "bound"),
    [
        ([0.1, 0.2, 0.3], 0.2 - T_95[2] * 0.1 / math.sqrt(3)),
        ([0.1, 0.3], 0.2 - T_95[1] * math.sqrt(0.02) / math.sqrt(2)),
        ([1, 2, 3, 4, 5], 3 - T_95[4] * math.sqrt(2.5) / math.sqrt(5)),
    ],
)
def test_the_lower_bound(differences: list[float], bound: float) -> None:
    verdict = judge(sample(*differences), sample(*(0.0 for _ in differences)))
    assert verdict.bound == pytest.approx(bound, abs=1e-3)


def test_a_clear_gain_wins_by_both_rules_and_an_uneven_one_by_its_mean() -> None:
    base = sample(90.0, 90.2, 90.4)
    clear = judge(sample(90.1, 90.4, 90.7), base)  # differences 0.1, 0.2, 0.3
    assert (clear.by_mean, clear.by_bound) == (True, True)
    assert clear.bound == pytest.approx(0.0314, abs=1e-3)
    uneven = judge(sample(90.0, 90.3, 90.9), base)  # differences 0.0, 0.1, 0.5
    assert (uneven.by_mean, uneven.by_bound) == (True, False)
    assert uneven.bound == pytest.approx(0.2 - T_95[2] * math.sqrt(0.07) / math.sqrt(3), abs=1e-3)
    worse = judge(sample(89.0, 89.0, 89.0), base)
    assert (worse.by_mean, worse.by_bound) == (False, False)


def test_a_tie_wins_whatever_the_last_bit_says() -> None:
    tie = judge(sample(0.1 + 0.2, 0.6), sample(0.3, 0.6))
    assert (tie.by_mean, tie.by_bound) == (True, True)
    assert judge(sample(0.3, 0.6), sample(0.1 + 0.2, 0.6)).by_mean


def test_one_seed_gives_no_bound_and_no_dense_model_no_verdict() -> None:
    assert judge(sample(91), sample(90)) == Verdict(by_mean=True, mean=1.0)
    assert judge(sample(91, 92), None) == Verdict()
    assert judge(sample(91, 92), Sample({7: 90.0})) == Verdict()


def test_seeds_that_only_the_dense_model_has_do_not_count() -> None:
    """All of them together have a mean of 91.2."""
    verdict = judge(sample(90.5, 90.6, 90.5), sample(90.0, 90.0, 90.0, 93.0, 93.0))
    assert (verdict.by_mean, verdict.by_bound) == (True, True)
    assert verdict.mean == pytest.approx(1.6 / 3)


def test_pairs_are_formed_by_seed() -> None:
    """Sorted by size the differences would be 0 and 0."""
    verdict = judge(Sample({0: 90.0, 1: 92.0}), Sample({1: 90.0, 0: 92.0}))
    assert verdict.bound == pytest.approx(0 - T_95[1] * math.sqrt(8) / math.sqrt(2), abs=0.01)


def test_the_sparsest_ticket_of_each_method_by_each_rule() -> None:
    (comparison,) = summarise(
        [
            *(dense(seed, 90.0) for seed in range(3)),
            *seeds("bip", 0.0, 99.0, 99.1, 99.2),
            *seeds("bip", 0.5, 90.1, 90.2, 90.3),
            *seeds("bip", 0.9, 89.9, 90.1, 91.0),
            *seeds("bip", 0.95, 89.0, 89.0, 89.0),
            *seeds("imp", 0.5, 89.0, 89.0, 89.0),
        ]
    )
    bip, imp = comparison.sparsest_tickets()
    assert (bip.by_mean.sparsity, bip.by_bound.sparsity) == (0.9, 0.5)
    assert imp.label == "imp"
    assert not imp.wins
    (only_dense,) = summarise([dense(0, 90.0), *seeds("bip", 0.0, 99.0)])
    assert not only_dense.sparsest_tickets()[0].wins  # nothing was pruned


# One-sided quantiles as printed in tables of Student's distribution, by degrees of freedom.
@pytest.mark.parametrize(
    ("probability", "degrees", "quantile"),
    [
        (0.95, 1, 6.313751515),
        (0.95, 2, 2.919985580),
        (0.95, 3, 2.353363435),
        (0.95, 4, 2.131846786),
        (0.95, 9, 1.833112933),
        (0.95, 30, 1.697260887),
        (0.975, 5, 2.570581836),
        (0.995, 10, 3.169272673),
        (0.5, 7, 0.0),
    ],
)
def test_quantiles_are_those_of_the_tables(
    probability: float, degrees: int, quantile: float
) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(quantile, rel=1e-9, abs=1e-12)


def test_quantiles_with_a_closed_form() -> None:
    """One degree of freedom is Cauchy's distribution; for two, t = x * sqrt(2 / (1 - x**2))."""
    for probability in (0.55, 0.75, 0.9, 0.95, 0.99, 0.999):
        x = 2 * probability - 1
        assert t_quantile(probability, 1) == pytest.approx(math.tan(math.pi * x / 2), rel=1e-12)
        assert t_quantile(probability, 2) == pytest.approx(x * math.sqrt(2 / (1 - x**2)), rel=1e-12)


def test_quantiles_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for degrees in (*range(1, 60), 99, 100, 1000):
        for probability in (0.6, 0.95, 0.999):
            expected = stats.t.ppf(probability, degrees)
            assert t_quantile(probability, degrees) == pytest.approx(expected, rel=1e-10)
