"""The exact sampler against its distribution, bounded updates, noise on sums, private choices."""

import dataclasses
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest, norm

from vergence.core.aggregation import add_up
from vergence.core.masks import Mask
from vergence.core.messages import reply, seal
from vergence.core.params import Layout, Params
from vergence.errors import ConfigError
from vergence.privacy.dp.accounting import MOST, noise_for
from vergence.privacy.dp.budget import Budget
from vergence.privacy.dp.discrete_gaussian import (
    _below,
    _below_exp,
    _heads,
    discrete_gaussian,
    discrete_laplace,
)
from vergence.privacy.dp.exponential_mechanism import per_draw, private_top
from vergence.privacy.dp.user_level import UserLevel, gap
from vergence.privacy.keyed_noise import NoiseKey

SECRET = NoiseKey(bytes(range(1, 33)))
GAUSS = [4, -1, 0, -3, 0, -2, -1, -3, 2, 1, -3, 1]
LAPLACE = [6, 2, 10, -3, 0, -6, 3, -6, -1, -3, -5, 8]


def draws(*purpose):
    return SECRET.child(*purpose).draws()


def params(values, dtype=torch.float32):
    return Params(torch.tensor(values, dtype=dtype), Layout(("w",), ((len(values),),)))


def pmf(weigh, reach):
    weights = {x: weigh(x) for x in range(-reach, reach + 1)}
    whole = sum(weights.values())
    return {x: weight / whole for x, weight in weights.items()}


def agrees(found, chances):
    """Chi-square over the values expected at least 10 times, the tails put together."""
    expected = {x: p * len(found) for x, p in chances.items() if p * len(found) >= 10}
    seen = [int(np.sum(found == x)) for x in expected]
    rest = len(found) - sum(expected.values())
    counts, wanted = [*seen, len(found) - sum(seen)], [*expected.values(), rest]
    if rest < 1:
        counts, wanted = [*seen[:-1], seen[-1] + counts[-1]], [*wanted[:-2], wanted[-2] + rest]
    return float(chisquare(counts, wanted).pvalue)


@pytest.mark.parametrize("variance", [Fraction(1, 9), Fraction(1), Fraction(10, 3), Fraction(81)])
def test_the_discrete_gaussian_has_its_exact_chances(variance):
    found = discrete_gaussian(variance, 40_000, draws("gauss", str(variance)))
    chances = pmf(lambda x: math.exp(-(x**2) / (2 * float(variance))), 200)
    assert agrees(found, chances) > 0.01
    wrong = pmf(lambda x: math.exp(-(x**2) / (2 * 1.1 * float(variance))), 200)
    assert agrees(found, wrong) < 0.01


@pytest.mark.parametrize("scale", [1, 2, 7])
def test_the_discrete_laplace_has_its_exact_chances(scale):
    found = discrete_laplace(scale, 40_000, draws("laplace", scale))
    assert agrees(found, pmf(lambda x: math.exp(-abs(x) / scale), 200)) > 0.01


def test_a_wide_discrete_gaussian_is_a_gaussian():
    sigma = 3e9
    found = discrete_gaussian(Fraction(sigma) ** 2, 20_000, draws("wide"))
    assert kstest(found / sigma, "norm").pvalue > 0.01
    assert found.dtype == np.int64


def test_uniform_integers_are_uniform():
    for limit in (1, 2, 5, 8):
        found = _below(limit, 20_000, draws("below", limit))
        assert set(found.tolist()) == set(range(limit))
        assert chisquare(np.bincount(found)).pvalue > 0.01 or limit == 1


def test_coins_that_floating_point_leaves_unclear_are_tossed_exactly():
    """Words right below and above exp(-1/3) * 2^64, and the very word, decided by further bits."""
    from decimal import Decimal, localcontext

    x = Fraction(1, 3)
    with localcontext() as context:
        context.prec = 60
        exact = (-Decimal(1) / 3).exp() * 2**64
    word, rest = int(exact), exact - int(exact)
    assert _below_exp(word - 1, x, draws())
    assert not _below_exp(word + 1, x, draws())
    tossed = [_below_exp(word, x, draws("coin", i)) for i in range(2000)]
    assert abs(np.mean(tossed) - float(rest)) < 0.05
    assert _below_exp(2**64 - 1, Fraction(0), draws())


def test_unclear_coins_reach_the_exact_toss(monkeypatch):
    """With nothing clear every coin is tossed exactly: the same results."""
    from vergence.privacy.dp import discrete_gaussian as module

    x = np.linspace(0, 3, 50)
    quick = _heads(x, lambda i: Fraction(float(x[i])), draws("toss"))
    monkeypatch.setattr(module, "CLEAR", 2.0)
    slow = _heads(x, lambda i: Fraction(float(x[i])), draws("toss"))
    np.testing.assert_array_equal(quick, slow)


def test_no_noise_and_too_much():
    assert discrete_gaussian(Fraction(0), 3, draws()).tolist() == [0, 0, 0]
    for wrong in (Fraction(-1), Fraction(2) ** 97):
        with pytest.raises(ConfigError, match=r"variance from 0 to 2\^96"):
            discrete_gaussian(wrong, 1, draws())


def test_shares_make_the_whole():
    """Five shares of variance 5 are chi-square alike to one of 25: tau is below 1e-20."""
    level = UserLevel(clip=1.0, noise=5 / 2**4, bits=4, shares=5)
    assert level.variance == 25
    parts = [level.share(40_000, SECRET.child("share", i)) for i in range(5)]
    whole = np.sum(parts, axis=0)
    assert agrees(whole, pmf(lambda x: math.exp(-(x**2) / 50), 100)) > 0.01
    assert agrees(np.sum(parts[:4], axis=0), pmf(lambda x: math.exp(-(x**2) / 50), 100)) < 0.01
    assert gap(level.variance / 5, 5) < 1e-20
    assert gap(Fraction(1, 4), 5) > 0.1
    assert gap(Fraction(1), 1) == 0


@given(
    seed=st.integers(0, 100),
    clip=st.sampled_from([0.3, 1.0, 7.0]),
    size=st.sampled_from([1e-3, 1.0, 1e4]),
)
def test_a_bounded_update_is_never_longer_and_on_the_grid(seed, clip, size):
    rng = np.random.default_rng(seed)
    level = UserLevel(clip=clip, noise=1.0)
    a, b = (params((size * rng.normal(size=20)).tolist()) for _ in range(2))
    answer = level.bounded(reply(5.0, a=a, b=b))
    steps = [level.integers(answer.trees[n].flat) for n in ("a", "b")]
    assert sum(int(v) ** 2 for v in np.concatenate(steps)) <= (clip / level.step) ** 2
    assert answer.weight == 1.0
    length = math.hypot(a.norm(), b.norm())
    shrunk = min(1, clip / length)
    np.testing.assert_allclose(answer.trees["a"].flat, a.flat * shrunk, atol=1.01 * level.step)


def test_an_adversary_buys_no_length_with_weights_masks_or_trees():
    level = UserLevel(clip=1.0, noise=1.0)
    huge = params([1e30, -1e30])
    mask = Mask(torch.tensor([True, False]), huge.layout)
    for weight in (1e9, mask, params([1e9, 0.0])):
        sealed = seal(level.bounded(reply(weight, a=huge, b=huge)), 0)
        flat = torch.cat([tree.total.flat for tree in sealed.trees.values()])
        assert float(flat.double().norm()) <= 1.0
        if weight is not None and not isinstance(weight, float):
            assert flat[1] == flat[3] == 0
            assert sealed.trees["a"].weight == 1.0


def test_the_mean_is_over_the_expected_and_its_noise_is_the_promised_one():
    """The noise on the mean of 50 is z C / 50: 2 * 0.5 / 50 = 0.02."""
    level, n = UserLevel(clip=0.5, noise=2.0), 20_000
    like = {"model": params([0.0] * n)}
    answers = [level.bounded(reply(model=params([1e-3 * i] * n))) for i in range(4)]
    whole = add_up([seal(a, 0) for a in answers], like)
    found = level.noised(whole, 50, SECRET.child("round", 0))
    plain = whole.totals["model"].flat / 50
    apart = (found.mean("model").flat - plain).numpy()
    assert kstest(apart / 0.02, "norm").pvalue > 0.01
    assert found.weights["model"] == 50.0
    again = level.noised(whole, 50, SECRET.child("round", 0))
    assert torch.equal(found.totals["model"].flat, again.totals["model"].flat)
    other = level.noised(whole, 50, SECRET.child("round", 1))
    assert not torch.equal(found.totals["model"].flat, other.totals["model"].flat)


def test_sums_that_would_be_rounded_are_refused():
    level = UserLevel(clip=1.0, noise=1.0)
    whole = add_up([], {"model": params([0.0])})
    level.noised(whole, 256, SECRET)
    with pytest.raises(
        ConfigError, match=r"257 people on a grid of 16 bits [^;]*; take privacy.user.bits <= 15"
    ):
        level.noised(whole, 257, SECRET)
    with pytest.raises(ConfigError, match="that were bounded; these are not"):
        level.integers(torch.tensor([level.step / 2]))
    with pytest.raises(ConfigError, match="drawn by clients, not on the sum"):
        UserLevel(clip=1.0, noise=1.0, shares=3).noised(whole, 3, SECRET)
    with pytest.raises(ConfigError, match="clip must be > 0; got 0"):
        UserLevel(clip=0.0, noise=1.0)


def test_fourteen_people_get_a_model_of_noise():
    """privacy.md 4.3: z = 6.3 for 14 people; 1.8 M entries of 0.45 C each are a norm of 600 C."""
    per_entry = 6.3 / 14
    assert per_entry == pytest.approx(0.45)
    assert per_entry * math.sqrt(1.8e6) == pytest.approx(604, rel=0.01)
    assert per_entry * math.sqrt(500) == pytest.approx(10, rel=0.01)


@pytest.mark.slow
def test_the_private_choice_is_the_exponential_mechanism_drawn_twice():
    """Every ordered pair of 4 has chance w_i / W * w_j / (W - w_i), w = exp(eps0 score / 2)."""
    scores, eps = [0.0, 0.4, 0.7, 1.0], 6.0
    each = [math.exp(per_draw(eps, 0.0, 2) * s / 2) for s in scores]
    wanted = {}
    for i, j in itertools.permutations(range(4), 2):
        chance = each[i] / sum(each) * each[j] / (sum(each) - each[i])
        pair = frozenset((i, j))
        wanted[pair] = wanted.get(pair, 0) + chance
    score, full = params(scores), Mask.full(params(scores).layout)
    seen = dict.fromkeys(wanted, 0)
    toss = draws("choice")
    for _ in range(3000):
        bits = private_top(score, 2, full, 1.0, eps, 0.0, toss).bits
        seen[frozenset(torch.nonzero(bits).flatten().tolist())] += 1
    assert chisquare(list(seen.values()), [3000 * p for p in wanted.values()]).pvalue > 0.01


def test_a_private_choice_is_bounded_whatever_the_scores():
    """NaN and 1e30 count as 0 and as the bound; candidates alone are chosen, k of them."""
    score = params([float("nan"), 1e30, 0.5, 1e30])
    among = Mask(torch.tensor([True, True, True, False]), score.layout)
    chosen = [private_top(score, 2, among, 1.0, 1e4, 0.0, draws(i)) for i in range(20)]
    assert all(mask.bits.tolist() == [False, True, True, False] for mask in chosen)
    assert private_top(score, 9, among, 1.0, 1.0, 0.0, draws()).count == 3
    assert private_top(score, 0, among, 1.0, 1.0, 0.0, draws()).count == 0
    with pytest.raises(ConfigError, match="bounded by a number > 0; got 0"):
        private_top(score, 1, among, 0.0, 1.0, 0.0, draws())
    with pytest.raises(ConfigError, match=r"delta in \[0, 1\) and k >= 1; got 0, 0 and 3"):
        per_draw(0.0, 0.0, 3)


def test_budgets_of_draws_by_hand():
    """Pure: eps / k. With delta, rho + 2 sqrt(rho log(1/delta)) gives eps back."""
    assert per_draw(1.0, 0.0, 4) == 0.25
    each = per_draw(1.0, 1e-5, 1000)
    rho = 1000 * each**2 / 8
    assert rho + 2 * math.sqrt(rho * math.log(1e5)) == pytest.approx(1.0)
    assert per_draw(1.0, 1e-5, 1) == 1.0
    # By what factor the best possible score is likelier to be drawn than the worst.
    assert math.exp(per_draw(1.0, 1e-5, 90_000) / 2) < 1.001
    assert math.exp(per_draw(8.0, 1e-5, 5) / 2) > 2


def test_normal_noise_would_fail_the_exact_chances():
    """The chi-square can tell: rounded continuous noise of variance 1 is another distribution."""
    rounded = np.rint(norm.rvs(size=40_000, random_state=0)).astype(int)
    assert agrees(rounded, pmf(lambda x: math.exp(-(x**2) / 2), 50)) < 0.01


@pytest.mark.parametrize("bound", [0.5, 1.0, 3.0])
def test_a_private_choice_is_of_the_scores_plus_gumbel_noise_of_twice_the_bound(bound):
    """Scores in units of 2 bound / eps0, plus the noise of these draws: the highest are taken."""
    n, k, epsilon, delta = 200, 40, 30.0, 1e-5
    score = params(np.linspace(-0.2, 4.0, n).tolist())
    chosen = private_top(score, k, Mask.full(score.layout), bound, epsilon, delta, draws("top"))
    noise = draws("top").gumbel(n)
    scale = 2 * bound / per_draw(epsilon, delta, k)
    wanted = np.argsort(-(np.clip(score.flat.numpy(), 0, bound) / scale + noise))[:k]
    assert sorted(torch.nonzero(chosen.bits).flatten().tolist()) == sorted(wanted.tolist())


def test_the_epsilon_of_a_draw_by_hand():
    """One tenth of 2 by basic composition; rho = (sqrt(L + 2) - sqrt(L))^2, L = log(1e5)."""
    assert per_draw(2.0, 0.0, 10) == pytest.approx(0.2)
    rho = (math.sqrt(math.log(1e5) + 2.0) - math.sqrt(math.log(1e5))) ** 2
    assert per_draw(2.0, 1e-5, 1000) == pytest.approx(math.sqrt(8 * rho / 1000))
    assert per_draw(2.0, 1e-5, 1) == 2.0
    for wrong in ((0.0, 0.1, 1), (1.0, 1.0, 1), (1.0, -0.1, 1), (1.0, 0.1, 0)):
        with pytest.raises(ConfigError, match="a private choice needs epsilon > 0"):
            per_draw(*wrong)
    per_draw(1e-9, 0.0, 1)


def test_a_private_choice_of_nothing_or_of_all():
    score = params([1.0, 2.0, 3.0])
    among = Mask(torch.tensor([True, False, True]), score.layout)
    toss = draws("few")
    assert private_top(score, 0, among, 1.0, 1.0, 0.0, toss).count == 0
    assert private_top(score, 9, among, 1.0, 1.0, 0.0, toss).bits.tolist() == [True, False, True]
    with pytest.raises(ConfigError, match="bounded by a number > 0; got 0"):
        private_top(score, 1, among, 0.0, 1.0, 0.0, toss)


def test_noise_of_a_key_stays():
    """A run that is resumed, or repeated elsewhere, draws the same integers from its secret."""
    assert discrete_gaussian(Fraction(10, 3), 12, draws("stay")).tolist() == GAUSS
    assert discrete_laplace(5, 12, draws("stay")).tolist() == LAPLACE
    assert discrete_gaussian(Fraction(0), 3, draws("stay")).tolist() == [0, 0, 0]


def test_the_widest_noise_on_integers():
    discrete_gaussian(Fraction(2**96), 1, draws("wide"))
    for variance in (Fraction(2**96 + 2**60), Fraction(-1)):
        with pytest.raises(ConfigError, match="a variance from 0 to"):
            discrete_gaussian(variance, 1, draws("wide"))


@pytest.mark.parametrize(
    ("kind", "bits", "most"),
    [(torch.float32, 4, 2**20), (torch.float32, 16, 2**8), (torch.float64, 16, 2**37)],
)
def test_as_many_people_as_whole_numbers_allow_and_not_one_more(kind, bits, most):
    """2^24 in single and 2^53 in double precision are the last before two share a number."""
    level = UserLevel(clip=1.0, noise=1.0, bits=bits)
    level.fits(most, kind)
    least = bits - 1
    with pytest.raises(ConfigError, match=rf"privacy\.user\.bits <= {least}$"):
        level.fits(most + 1, kind)
    with pytest.raises(ConfigError, match=r"not exact in torch\.float16"):
        level.fits(1, torch.float16)


def test_a_reply_of_the_bound_itself_is_no_lie_and_a_step_more_is():
    """Of labs every person counts once; half a step is off the grid, in any tree."""
    level = UserLevel(clip=4.0, noise=1.0, bits=4, people=3)
    assert level.step == 0.25
    assert level.reach == 4 * (3 + 16)
    assert not level.unbounded({"a": params([12.0]), "b": params([0.0])})
    assert level.unbounded({"a": params([12.25]), "b": params([0.0])})
    assert level.unbounded({"a": params([12.0]), "b": params([0.25])})
    assert level.unbounded({"a": params([1.0]), "b": params([0.125])})
    assert level.unbounded({"a": params([0.125]), "b": params([1.0])})


def test_the_gap_of_a_sum_by_hand():
    """Theorem 1 of three shares of variance v: 10 (exp(-pi^2 v) + exp(-4 pi^2 v / 3))."""
    v = 0.3
    want = 10 * (math.exp(-(math.pi**2) * v) + math.exp(-4 * math.pi**2 * v / 3))
    assert gap(Fraction(v), 3) == pytest.approx(want, rel=1e-12)
    UserLevel(clip=1.0, noise=2.5, bits=4, shares=5).check_shares()
    coarse = UserLevel(clip=1.0, noise=1 / 32, bits=4, shares=5)
    with pytest.raises(ConfigError, match=r"noise in 5 shares on a grid of 4 bits .*privacy\.user"):
        coarse.check_shares()
    with pytest.raises(ConfigError, match="drawn by clients"):
        coarse.noised(add_up({}, {}), 3)


@pytest.mark.parametrize("field", ["clip", "noise"])
def test_norms_of_a_budget_end_at_a_billion(field):
    """The limits themselves are taken, and what lies outside by one part in 1e12 is not."""
    Test = dataclasses.make_dataclass("Test", [], bases=(Budget,), frozen=True)
    Test.where = "here"
    low = 1e-9 if field == "clip" else 5e-324
    for value in (low, 1e9):
        Test(**{"noise": 1.0, field: value})
    for value in (low * (1 - 1e-12) if field == "clip" else 0.0, 1e9 * (1 + 1e-12), math.nan):
        with pytest.raises(ConfigError, match=field):
            Test(**{"noise": 1.0, field: value})


def test_budgets_refuse_from_their_limit_on():
    Test = dataclasses.make_dataclass("Test", [], bases=(Budget,), frozen=True)
    Test.where = "here"
    with pytest.raises(ConfigError, match="here needs epsilon"):
        Test()
    budget = Test(noise=1.5, delta=0.01)
    assert budget.multiplier(0.1, 7) == 1.5
    budget.refuse(MOST, "it")
    for spent in (MOST * (1 + 1e-12), math.nan, math.inf):
        with pytest.raises(ConfigError, match="here: it spends epsilon"):
            budget.refuse(spent, "it")
    budget.refuse_delta(99, "people")
    with pytest.raises(ConfigError, match=r"below 1 / 100, the number of people"):
        budget.refuse_delta(100, "people")
    other = Test(epsilon=2.0)
    assert other.multiplier(1.0, 0) == other.multiplier(1.0, 1) == noise_for(2.0, 1e-5, 1.0, 1)
    assert other.multiplier(1.0, 4) == noise_for(2.0, 1e-5, 1.0, 4)


@pytest.mark.parametrize("variance", [Fraction(1, 9), Fraction(10, 3), Fraction(10**8, 7)])
def test_coins_are_tossed_with_one_chance_in_floats_and_in_fractions(variance, monkeypatch):
    """Clear coins are decided by floats and unclear ones by fractions, of the same exponents."""
    from vergence.privacy.dp import discrete_gaussian as module

    compared, toss = [], module._heads

    def tossed(x, exact, stream):
        rows = range(0, len(x), 7)
        np.testing.assert_allclose(x[::7], [float(exact(i)) for i in rows], rtol=1e-9, atol=1e-9)
        compared.append(len(x))
        return toss(x, exact, stream)

    monkeypatch.setattr(module, "_heads", tossed)
    discrete_gaussian(variance, 50, draws("both", str(variance)))
    assert len(compared) > 2
