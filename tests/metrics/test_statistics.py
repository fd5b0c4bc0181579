"""Every number against SciPy, or worked by hand in the docstring."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from vergence.errors import DataError
from vergence.metrics.statistics import (
    Ranking,
    bootstrap,
    cohen_dz,
    friedman,
    holm,
    nemenyi,
    paired_t,
    rank_biserial,
    tost,
    wilcoxon,
)

D = [0.06, 0.03, -0.02, 0.05, 0.11, -0.01, 0.08, 0.04, 0.07]
"""Nine people, all differences different."""
TIED = [0.2, 0.2, -0.1, 0.0, 0.3, -0.2, 0.4, 0.0, 0.1, 0.3]
"""Ten people: two who do not differ, and ties among the others."""


def by_all_signs(differences):
    """Return p by listing all 2^n signs of the ranks of those who differ."""
    d = np.array([v for v in differences if v])
    ranks = stats.rankdata(np.abs(d))
    sums = np.array([ranks @ np.array(s) for s in itertools.product((0, 1), repeat=d.size)])
    reached = ranks[d > 0].sum()
    return min(1, 2 * min((sums <= reached + 1e-9).mean(), (sums >= reached - 1e-9).mean()))


def test_wilcoxon_without_ties_is_scipys_exact_test():
    assert wilcoxon(D) == pytest.approx(stats.wilcoxon(D, method="exact").pvalue, abs=1e-14)


def test_wilcoxon_by_hand():
    """1, 2, 3, 4, -5: W- = 5. Sums up to 5: {} 1 2 3 4 5 12 13 14 23, so 10 of 32, doubled."""
    assert wilcoxon([1, 2, 3, 4, -5]) == pytest.approx(20 / 32)
    assert wilcoxon(np.arange(1, 16)) == pytest.approx(2 / 2**15)


def test_wilcoxon_with_ties_and_zeros_is_exact():
    every = stats.PermutationMethod(n_resamples=np.inf)
    assert wilcoxon(TIED) == pytest.approx(by_all_signs(TIED), abs=1e-14)
    assert wilcoxon(TIED) == pytest.approx(stats.wilcoxon(TIED, method=every).pvalue, abs=1e-14)
    assert wilcoxon(TIED) != pytest.approx(stats.wilcoxon(TIED, method="exact").pvalue, abs=1e-3)


def test_wilcoxon_takes_rounding_for_ties():
    """0.1 + 0.2 and 0.3 differ in the last bit; as differences they are one tie."""
    assert wilcoxon([0.1 + 0.2, 0.3, -0.3, 0.1]) == by_all_signs([0.3, 0.3, -0.3, 0.1])
    assert wilcoxon([1e-15, -1e-16, 0.0]) == 1.0


def test_wilcoxon_of_a_crowd_is_the_normal_approximation():
    d = np.random.default_rng(0).normal(0.1, 1, 501)
    assert wilcoxon(d) == pytest.approx(stats.wilcoxon(d, method="asymptotic").pvalue)
    assert wilcoxon(d[:500]) == pytest.approx(stats.wilcoxon(d[:500], method="exact").pvalue)


@pytest.mark.parametrize("d", [D, TIED, np.negative(D)])
def test_paired_t_is_scipys(d):
    assert paired_t(d) == pytest.approx(stats.ttest_rel(d, np.zeros(len(d))).pvalue, rel=1e-12)


def test_paired_t_by_hand():
    """1, 2, 3: mean 2, standard error 1 / sqrt(3), t = 3.4641016, P(|T_2| > t) = 0.0741799."""
    assert paired_t([1, 2, 3]) == pytest.approx(0.0741799, abs=1e-7)


@pytest.mark.parametrize("margin", [0.02, 0.08, 0.2])
def test_tost_is_the_larger_of_two_one_sided_tests_of_scipy(margin):
    low = stats.ttest_1samp(D, -margin, alternative="greater").pvalue
    high = stats.ttest_1samp(D, margin, alternative="less").pvalue
    assert tost(D, margin) == pytest.approx(max(low, high), rel=1e-12)
    assert tost(np.negative(D), margin) == pytest.approx(max(low, high), rel=1e-12)


def test_tost_agrees_with_the_90_percent_interval():
    """p < 0.05 exactly when the 90 % interval lies within the margin."""
    _, high = stats.t.interval(0.9, len(D) - 1, np.mean(D), stats.sem(D))
    assert tost(D, high * 1.001) < 0.05 < tost(D, high * 0.999)


def test_no_spread_and_one_person():
    assert (paired_t([0.0, 0.0]), paired_t([0.1, 0.1, 0.1])) == (1.0, 0.0)
    assert (tost([0.1, 0.1], 0.2), tost([0.1, 0.1], 0.05), tost([0.1, 0.1], 0.1)) == (0, 1, 0.5)
    assert math.isnan(paired_t([0.3]))
    # Both share a standard error of 1: t = (2 - .5) / hypot(.5, 1), one degree of freedom.
    assert tost([0.0, 1.0], 2, 1.0) == pytest.approx(
        0.5 - math.atan(1.5 / math.hypot(0.5, 1)) / math.pi
    )
    assert math.isnan(tost([0.3], 1))
    assert math.isnan(cohen_dz([0.3]))
    assert wilcoxon([0.3]) == 1.0
    assert (cohen_dz([0, 0]), cohen_dz([-1, -1])) == (0, -math.inf)
    assert rank_biserial([0, 0]) == 0


def test_holm_by_hand():
    """Sorted .005 .01 .03 .04 times 4 3 2 1: .02 .03 .06 .04; the last may not fall below .06.

    The same numbers as statsmodels' multipletests(method="holm") documents, by its formula.
    """
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_stops_at_one_and_leaves_nan_out():
    assert holm([0.6, 0.7]) == [1, 1]
    found = holm([0.01, math.nan, 0.02])
    assert found[::2] == pytest.approx([0.02, 0.02])
    assert math.isnan(found[1])
    assert holm([]) == []


def test_holm_is_the_closed_test_of_bonferronis():
    """Adjusted p of a hypothesis = the largest, over sets with it, of size * smallest p in it."""
    p = [0.004, 0.03, 0.02, 0.5]
    sets = [s for n in range(1, 5) for s in itertools.combinations(range(4), n)]
    closed = [max(min(1, len(s) * min(p[j] for j in s)) for s in sets if i in s) for i in range(4)]
    assert holm(p) == pytest.approx(closed)


def test_effect_sizes_by_hand():
    """1, 2, 3: d_z = 2 / 1. Signed ranks of 1, -2, 3: (1 + 3 - 2) / 6; a zero changes nothing."""
    assert cohen_dz([1, 2, 3]) == pytest.approx(2)
    assert rank_biserial([1, -2, 3]) == pytest.approx(1 / 3)
    assert rank_biserial([1, 0, -2, 3]) == pytest.approx(1 / 3)
    assert rank_biserial(np.negative(D)) == pytest.approx(-rank_biserial(D))


def test_rank_biserial_is_wilcoxons_statistic_on_another_scale():
    """W = the smaller rank sum = n (n + 1) / 2 * (1 - |r|) / 2."""
    w = stats.wilcoxon(D).statistic
    assert w == pytest.approx(9 * 10 / 2 * (1 - abs(rank_biserial(D))) / 2)


def test_bootstrap_is_efrons_bca():
    """Bias from the share of means below the mean, acceleration from the jackknife (Efron 1987)."""
    d = np.array([0.1, 0.2, 0.15, 0.9, 0.3, 0.25, 0.4])
    rng = np.random.default_rng(20)
    means = d[rng.integers(0, d.size, (10_000, d.size))].mean(axis=1)
    share = ((means < d.mean()).mean() + (means <= d.mean()).mean()) / 2
    z0 = stats.norm.ppf(share)
    left = np.array([np.delete(d, i).mean() for i in range(d.size)])
    u = left.mean() - left
    a = (u**3).sum() / 6 / (u**2).sum() ** 1.5
    z = z0 + stats.norm.ppf([0.025, 0.975])
    ends = np.percentile(means, 100 * stats.norm.cdf(z0 + z / (1 - a * z)))
    assert bootstrap(d) == pytest.approx(ends, abs=0.01)
    assert bootstrap(d) == bootstrap(d), "seeded"
    assert bootstrap(d) != bootstrap(d, seed=1)


def test_bootstrap_of_nobody_in_particular():
    assert bootstrap([0.5, 0.5, 0.5]) == (0.5, 0.5)
    assert all(math.isnan(end) for end in bootstrap([0.5]))


@pytest.mark.parametrize("lower", [False, True])
def test_friedman_is_scipys(lower):
    scores = np.random.default_rng(3).normal(size=(12, 5)).round(1)
    scores[:, 2] += 0.4
    found, oracle = friedman(scores, lower), stats.friedmanchisquare(*scores.T)
    assert (found.statistic, found.p) == pytest.approx((oracle.statistic, oracle.pvalue))
    order = np.argsort(found.ranks)
    assert (scores.mean(axis=0)[order[0]] > scores.mean(axis=0)[order[-1]]) != lower


def test_friedman_by_hand():
    """Three people who agree on a > b > c: ranks 1, 2, 3; 12 / (3*3*4) * (9 + 36 + 81) - 36 = 6."""
    found = friedman([[3, 2, 1], [9, 8, 7], [0.3, 0.2, 0.1]])
    assert found.ranks == (1, 2, 3)
    assert found.statistic == pytest.approx(6)
    assert found.p == pytest.approx(math.exp(-3)), "chi-square with 2 degrees of freedom"
    assert friedman([[1, 1, 1], [2, 2, 2]]) == Ranking(0, 1, (2, 2, 2), nemenyi(3, 2))


def test_nemenyi_is_demsars_table():
    """Demsar 2006, Table 5: q of 2 .. 10 methods; his example: 4 methods, 14 data sets, CD 1.25."""
    q = [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]
    for methods, known in zip(range(2, 11), q, strict=True):
        scale = math.sqrt(methods * (methods + 1) / (6 * 30))
        assert nemenyi(methods, 30) / scale == pytest.approx(known, abs=1e-3)
    assert nemenyi(4, 14) == pytest.approx(1.25, abs=5e-3)
    assert nemenyi(4, 14, alpha=0.1) == pytest.approx(1.12, abs=5e-3)


def test_groups_of_demsars_example():
    """Mean ranks 3.143, 2.000, 2.893, 1.964: no two differ by 1.25; with 1.12, 3.143 and 1.964 do,
    and 3.143 and 2.000.
    """
    ranks = (3.143, 2.0, 2.893, 1.964)
    assert Ranking(9.28, 0.03, ranks, 1.25).groups() == [(3, 1, 2, 0)]
    assert Ranking(9.28, 0.03, ranks, 1.12).groups() == [(3, 1, 2), (2, 0)]
    assert Ranking(9.28, 0.03, ranks, 0.01).groups() == []


@pytest.mark.parametrize("values", [[], [0.1, math.nan], [[0.1], [0.2]]])
@pytest.mark.parametrize("test", [wilcoxon, paired_t, cohen_dz, rank_biserial, bootstrap])
def test_what_is_no_sample_of_people_is_refused(test, values):
    with pytest.raises(DataError, match="one finite number per person"):
        test(values)


def test_unusable_margins_and_tables_are_refused():
    for margin in (0, -1, math.nan):
        with pytest.raises(DataError, match="margin must be a positive number"):
            tost(D, margin)
    for table in ([[1, 2], [1, 2]], [[1, 2, 3]], [[1, 2, math.nan], [1, 2, 3]]):
        with pytest.raises(DataError, match="at least 2 people by 3 methods"):
            friedman(table)
