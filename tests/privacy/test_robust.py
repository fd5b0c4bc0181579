"""Robust rules against hand-worked numbers, against definitions by brute force, and laws."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vergence.core.aggregation import add_up
from vergence.core.masks import Mask
from vergence.core.messages import reply, seal
from vergence.core.params import Layout, Params
from vergence.core.randomness import RandomStream
from vergence.errors import ConfigError
from vergence.privacy.robust.base import Decision, attackers, empty_verdict
from vergence.privacy.robust.dnc import DnC, outliers
from vergence.privacy.robust.fltrust import FLTrust
from vergence.privacy.robust.groups import as_reply, check, deal
from vergence.privacy.robust.krum import Krum
from vergence.privacy.robust.median import Median
from vergence.privacy.robust.multi_krum import MultiKrum
from vergence.privacy.robust.norm_bound import NormBound
from vergence.privacy.robust.trimmed_mean import TrimmedMean
from vergence.privacy.robust.update_matrix import UpdateMatrix, rewritten
from vergence.privacy.split.output_range import Span

RNG = RandomStream("robust")
ONE_EACH = [Median(), TrimmedMean(), Krum(), MultiKrum(), NormBound(), DnC(sample=3)]


def params(*values):
    return Params(torch.tensor(values, dtype=torch.float64), Layout(("w",), ((len(values),),)))


def sealed(rows, weights=None):
    weights = weights or [1.0] * len(rows)
    return {
        f"c{i}": seal(reply(weights[i], {"loss": float(i)}, model=params(*row)), 0)
        for i, row in enumerate(rows)
    }


def combined(rule, rows, weights=None, root=None):
    replies = sealed(rows, weights)
    like = {"model": params(*rows[0])}
    return rule.combine(replies, like, RNG, None if root is None else {"model": params(*root)})


def mean(rule, rows, weights=None, root=None):
    return combined(rule, rows, weights, root).aggregate.mean("model").flat.numpy()


def masked(rows, bits):
    layout = params(*rows[0]).layout
    masks = [Mask(torch.tensor(b, dtype=torch.bool), layout) for b in bits]
    return {
        f"c{i}": seal(reply(m, model=params(*r)), 0)
        for i, (r, m) in enumerate(zip(rows, masks, strict=True))
    }


def test_median_by_hand():
    """Medians of (1, 2, 9), (0, 5, 1); of four, the mean of the two in the middle."""
    np.testing.assert_array_equal(mean(Median(), [(1, 0), (2, 5), (9, 1)]), [2, 1])
    np.testing.assert_array_equal(mean(Median(), [(1,), (2,), (4,), (9,)]), [3])


def test_trimmed_mean_by_hand():
    """f = ceil(0.2 * 5) = 1: of (-100, 1, 2, 3, 100) the mean of 1, 2, 3."""
    rows = [(1,), (-100,), (2,), (100,), (3,)]
    np.testing.assert_array_equal(mean(TrimmedMean(attackers=0.2), rows), [2])
    np.testing.assert_allclose(mean(TrimmedMean(attackers=0.0), rows), [6 / 5])


def test_krum_by_hand():
    """n = 5, f = 1, so the 2 nearest. Points 0, 1, 2, 4, 50: sums of squares are 1+4=5, 1+1=2,
    1+4=5, 4+9=13, 46^2+48^2: the second wins, multi-Krum takes n - f - 2 = 2 of them: 1 and, of the
    tie between 0 and 2, the first."""
    rows = [(0,), (1,), (2,), (4,), (50,)]
    assert mean(Krum(attackers=0.2), rows) == 1
    assert mean(MultiKrum(attackers=0.2), rows) == 0.5
    left = combined(Krum(attackers=0.2), rows).left_out
    assert set(left) == {"c0", "c2", "c3", "c4"}
    assert all(reason.startswith("krum: ") for reason in left.values())


def brute_krum(rows, f):
    n = len(rows)
    scores = []
    for i in range(n):
        apart = sorted(
            sum((a - b) ** 2 for a, b in zip(rows[i], rows[j], strict=True))
            for j in range(n)
            if j != i
        )
        scores.append(sum(apart[: n - f - 2]))
    return scores


def test_krum_against_its_definition():
    for trial in range(20):
        rng = np.random.default_rng(trial)
        rows = rng.normal(size=(9, 4)).tolist()
        scores = brute_krum(rows, 2)
        np.testing.assert_allclose(mean(Krum(0.2), rows), rows[int(np.argmin(scores))])
        best = sorted(range(9), key=lambda i: scores[i])[:5]
        want = np.mean([rows[i] for i in best], axis=0)
        np.testing.assert_allclose(mean(MultiKrum(0.2), rows), want)


def test_norm_bound_by_hand():
    """(3, 4) has norm 5, shortened to 1: (0.6, 0.8); (0, 0.5) stays; the mean of both. The median
    norm of 5, 0.5 and 1 is 1."""
    np.testing.assert_allclose(mean(NormBound(bound=1.0), [(3, 4), (0, 0.5)]), [0.3, 0.65])
    rows = [(3, 4), (0, 0.5), (1, 0)]
    np.testing.assert_allclose(mean(NormBound(), rows), [1.6 / 3, 1.3 / 3])
    assert mean(NormBound(bound=1.0), [(0.0,), (0.0,)]) == 0


def test_fltrust_by_hand():
    """Root (2, 0). (1, 0): trust 1, scaled to (2, 0); (3, 4): trust 0.6, scaled to 2/5 of it,
    (1.2, 1.6); (-5, 0): none. Mean: (2 + 0.72, 0.96) / 1.6."""
    found = combined(FLTrust(), [(1, 0), (3, 4), (-5, 0)], root=(2, 0))
    np.testing.assert_allclose(found.aggregate.mean("model").flat, [2.72 / 1.6, 0.96 / 1.6])
    assert list(found.left_out) == ["c2"]
    assert found.aggregate.count == 2


def test_fltrust_trusts_nobody():
    found = combined(FLTrust(), [(-1, 0), (0, 0)], root=(2, 0))
    assert found.aggregate.mean("model").flat.tolist() == [0, 0]
    assert found.aggregate.weights["model"] == 0
    assert found.aggregate.count == 0
    with pytest.raises(ConfigError, match=r"needs the server's own update of \['model'\]"):
        combined(FLTrust(), [(-1, 0), (0, 0)])


def test_dnc_by_hand():
    """Along (1, 0) the updates differ most; the one at 10 goes (f = 1), the mean of 0, 1, -1 is
    left."""
    rows = [(0, 0.1), (1, -0.1), (-1, 0), (10, 0)]
    found = combined(DnC(attackers=0.25), rows)
    np.testing.assert_allclose(found.aggregate.mean("model").flat, [0, 0], atol=1e-12)
    assert list(found.left_out) == ["c3"]


def test_dnc_scores_against_the_largest_variance_over_directions():
    """The top singular vector is the direction of largest variance: searched on a circle."""
    values = np.random.default_rng(0).normal(size=(7, 2)) * (3, 1)
    centred = values - values.mean(axis=0)
    angles = np.linspace(0, math.pi, 20_001)
    ways = np.stack([np.cos(angles), np.sin(angles)])
    best = ways[:, np.argmax(((centred @ ways) ** 2).sum(axis=0))]
    np.testing.assert_allclose(outliers(values), (centred @ best) ** 2, rtol=2e-3, atol=1e-5)


def test_dnc_draws_are_those_of_its_stream_and_survivors_of_all_count():
    rows = np.random.default_rng(1).normal(size=(10, 50)).tolist()
    once = combined(DnC(attackers=0.2, sample=5), rows)
    assert once.left_out == combined(DnC(attackers=0.2, sample=5), rows).left_out
    assert len(once.left_out) == 2
    assert set(once.left_out) <= set(combined(DnC(attackers=0.2, sample=5, draws=4), rows).left_out)


def test_dnc_asks_for_one_reply_more_than_it_removes():
    """2.2 * 5 is 11.000000000000002 in floating point, and 11 are removed."""
    rule = DnC(attackers=0.2, remove=2.2)
    assert (rule.removed(25), rule.fewest(25)) == (11, 12)


@pytest.mark.parametrize("rule", ONE_EACH, ids=lambda rule: type(rule).__name__)
def test_replies_that_say_the_same_give_just_that(rule):
    np.testing.assert_allclose(mean(rule, [(0.5, -2, 3)] * 7), [0.5, -2, 3], rtol=1e-12)


@pytest.mark.parametrize("rule", [*ONE_EACH, FLTrust()], ids=lambda rule: type(rule).__name__)
@given(seed=st.integers(0, 50))
def test_the_order_of_replies_changes_no_bit(rule, seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(7, 3))
    order = rng.permutation(7)
    replies = sealed(rows.tolist())
    mixed = {f"c{i}": replies[f"c{i}"] for i in order}
    like, root = {"model": params(0, 0, 0)}, {"model": params(*rows.mean(axis=0))}
    one, two = (rule.combine(r, like, RNG, root).aggregate for r in (replies, mixed))
    assert torch.equal(one.totals["model"].flat, two.totals["model"].flat)
    assert one.metrics == two.metrics


@pytest.mark.parametrize(
    "rule",
    [Median(), TrimmedMean(), Krum(), MultiKrum(), DnC(sample=2)],
    ids=lambda rule: type(rule).__name__,
)
@given(seed=st.integers(0, 50))
def test_what_moves_all_updates_moves_the_result(rule, seed):
    rng = np.random.default_rng(seed)
    rows, shift = rng.normal(size=(7, 3)), rng.normal(size=3)
    moved = mean(rule, (rows + shift).tolist())
    np.testing.assert_allclose(moved, mean(rule, rows.tolist()) + shift, atol=1e-9)


@pytest.mark.parametrize("rule", ONE_EACH, ids=lambda rule: type(rule).__name__)
@given(seed=st.integers(0, 50), by=st.sampled_from([0.5, 4.0, 1024.0]))
def test_what_scales_all_updates_scales_the_result(rule, seed, by):
    rows = np.random.default_rng(seed).normal(size=(7, 3))
    scaled = mean(rule, (rows * by).tolist())
    np.testing.assert_allclose(scaled, by * mean(rule, rows.tolist()), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "rule",
    [Median(), TrimmedMean(), Krum(), MultiKrum(), DnC(), FLTrust()],
    ids=lambda rule: type(rule).__name__,
)
def test_a_liar_does_not_reach_the_result(rule):
    rows = (np.random.default_rng(3).normal(size=(6, 4)) + 5).tolist()
    lied = mean(rule, [*rows, [-1e9] * 4], root=[5] * 4)
    assert np.abs(lied - 5).max() < 3


@pytest.mark.parametrize("rule", ONE_EACH, ids=lambda rule: type(rule).__name__)
def test_a_claimed_weight_buys_nothing(rule):
    """Weights are divided out: with 1e6 examples claimed the result is the same."""
    rows = np.random.default_rng(4).normal(size=(7, 3)).tolist()
    np.testing.assert_allclose(mean(rule, rows, [1e6, *[2.0] * 6]), mean(rule, rows), rtol=1e-9)


def brute_entrywise(rows, bits, cut):
    """Per entry: sort the values of contributors, cut, average; nothing below 2 f + 1."""
    f, out = math.ceil(0.2 * len(rows)), []
    for j in range(len(rows[0])):
        here = sorted(r[j] for r, b in zip(rows, bits, strict=True) if b[j])
        if len(here) < 2 * f + 1:
            out.append((0.0, 0))
            continue
        k = (len(here) - 1) // 2 if cut == "median" else f
        out.append((float(np.mean(here[k : len(here) - k])), len(here)))
    return out


@pytest.mark.parametrize(("rule", "cut"), [(Median(), "median"), (TrimmedMean(), "trimmed")])
def test_masked_entries_are_ranked_over_those_who_contribute(rule, cut):
    rng = np.random.default_rng(5)
    for _ in range(20):
        rows = rng.normal(size=(7, 6)).tolist()
        bits = (rng.random((7, 6)) < 0.7).tolist()
        bits[0][0] = True
        replies = masked(rows, bits)
        found = rule.combine(replies, {"model": params(*rows[0])}, RNG).aggregate
        want = brute_entrywise(rows, bits, cut)
        np.testing.assert_allclose(found.mean("model").flat, [v for v, _ in want], rtol=1e-12)
        np.testing.assert_array_equal(found.contributors("model").flat, [c for _, c in want])


def test_weights_per_entry_are_divided_out():
    """Updates (4, 6) and (2, 8) with weights (2, 1) and (3, 0): the second entry has one voice."""
    weights = [params(2.0, 1.0), params(3.0, 0.0)]
    found = combined(NormBound(bound=100.0), [(4, 6), (2, 8)], weights).aggregate
    np.testing.assert_allclose(found.mean("model").flat, [3, 6])
    np.testing.assert_array_equal(found.contributors("model").flat, [2, 1])


@pytest.mark.parametrize("rule", [Krum(), MultiKrum(), DnC(), FLTrust()])
def test_rules_on_whole_updates_refuse_different_masks_and_take_equal_ones(rule):
    rows = [(1, 2)] * 5
    bits = [(1, 1)] * 4 + [(1, 0)]
    root = {"model": params(1, 2)}
    with pytest.raises(ConfigError, match="use median, trimmed_mean or norm_bound"):
        rule.combine(masked(rows, bits), root, RNG, root)
    found = rule.combine(masked(rows, [(1, 0)] * 5), root, RNG, root).aggregate.mean("model")
    np.testing.assert_allclose(found.flat, [1 if not rule.rooted else 5**0.5, 0])


def test_too_few_replies_add_nothing_and_say_so():
    found = combined(Krum(attackers=0.2), [(1,), (2,), (3,), (4,)])
    assert found.aggregate.mean("model").flat.tolist() == [0]
    assert found.aggregate.count == 0
    assert found.left_out["c0"] == "too few: krum needs 5 replies, 4 came"
    with pytest.raises(ConfigError, match=r"'krum' needs 5 replies of a cohort of 4"):
        Krum(attackers=0.2).check(4)
    with pytest.raises(ConfigError, match=r"attackers must be >= 0 and < 0\.5"):
        Median(attackers=0.5)


def test_several_trees_are_judged_together_and_come_back_apart():
    """The liar's second tree alone betrays it: Krum leaves out both its trees."""
    replies = {
        f"c{i}": seal(reply(a=params(float(i)), b=params(0.0, 1e3 if i == 1 else 0.0)), 0)
        for i in range(5)
    }
    like = {"a": params(0), "b": params(0, 0)}
    found = MultiKrum(0.2).combine(replies, like, RNG)
    assert "c1" in found.left_out
    assert set(found.aggregate.totals) == {"a", "b"}
    assert found.aggregate.mean("b").flat.tolist() == [0, 0]


def test_a_reply_of_weight_zero_has_no_vote():
    found = combined(Median(attackers=0.2), [(1,), (2,), (3,), (100,)], [1.0, 1.0, 1.0, 0.0])
    assert found.aggregate.mean("model").flat.tolist() == [2]


def test_a_rewritten_reply_keeps_weights_and_erased_entries():
    one = seal(reply(Mask(torch.tensor([True, False]), params(1, 2).layout), model=params(1, 2)), 3)
    other = rewritten(one, np.array([7.0, 9.0])).trees["model"]
    assert other.total.flat.tolist() == [7, 0]
    assert UpdateMatrix.of({"c": one}).values.tolist() == [[1, 0]]


def test_groups_hold_everybody_once_and_at_least_k():
    clients = [f"c{i:02d}" for i in range(14)]
    groups = deal(clients, 4, RNG)
    assert sorted(itertools.chain(*groups)) == clients
    assert len(groups) == 3
    assert min(map(len, groups)) >= 4
    assert groups == deal(clients[::-1], 4, RNG)
    assert groups != deal(clients, 4, RNG.child(1))
    for k in (1, 15):
        with pytest.raises(ConfigError, match="cannot be dealt from 14 clients"):
            deal(clients, k, RNG)
    check(14, 4, 1)
    with pytest.raises(ConfigError, match=r"3 sums, and 2 liars may spoil as many: .* at least 5"):
        check(14, 4, 2)


def test_a_rule_over_group_sums_is_the_rule_over_group_means():
    """Pairs with weights 1 and 3: means (1 + 3 * 5) / 4 = 4, 6 and, with the liar, huge."""
    rows, weights = [(1,), (5,), (6,), (6,), (0,), (1e9,)], [1.0, 3.0] * 3
    replies = sealed(rows, weights)
    like = {"model": params(0)}
    pairs = [("c0", "c1"), ("c2", "c3"), ("c4", "c5")]
    sums = {
        str(g): as_reply(add_up([replies[c] for c in pair], like), 0)
        for g, pair in enumerate(pairs)
    }
    assert Median().combine(sums, like, RNG).aggregate.mean("model").flat.tolist() == [6]


def test_smashed_data_outside_the_calibrated_range_have_a_reason():
    honest = torch.tensor([[0.0, 3.0], [4.0, 0.0]])
    span = Span.of(honest)
    assert span == Span(0, 4, 4)
    assert span.fault("smashed", honest) is None
    assert span.fault("smashed", torch.empty(0, 2)) is None
    assert span.fault("smashed", torch.tensor([[0.0, 4.5]])) == (
        "range: 'smashed' reaches from 0 to 4.5, calibrated are 0 to 4"
    )
    assert "norm 5" in (span.fault("smashed", torch.tensor([[3.0, 4.0]])) or "")
    assert span.fault("smashed", torch.tensor([[float("nan"), 1.0]])) is not None
    assert span.widened(0.5) == Span(-2, 6, 6)
    assert span.widened(0.5).fault("smashed", torch.tensor([[3.0, 4.0]])) is None


def test_liars_fewer_than_half_do_not_widen_an_agreed_range():
    spans = [Span(0, 1, 2), Span(-1, 2, 3), Span(-1e9, 1e9, 1e9)]
    assert Span.agreed(spans) == Span(-1, 2, 3)
    with pytest.raises(ConfigError, match="agreed by nobody"):
        Span.agreed([])


def test_every_rule_says_in_words_what_it_assumes():
    for rule in [*ONE_EACH, FLTrust()]:
        assert isinstance(rule.assumes, str)
        assert len(rule.assumes.split()) > 3
    assert "with updates of the median norm does" in NormBound().assumes
    assert "with updates of norm 2.5 does" in NormBound(bound=2.5).assumes


def test_the_servers_own_update_has_every_tree_in_the_shape_of_the_replies():
    """Trees of one and of two entries: a tree that is missing or longer is refused by all names."""
    like = {"b": params(1.0), "a": params(2.0, 3.0)}
    replies = {"c0": seal(reply(1.0, a=like["a"], b=like["b"]), 0)}
    own = {"a": params(2.0, 3.0), "b": params(-1.0)}
    found = FLTrust().combine(replies, like, RNG, own).aggregate
    # Root (2, 3, -1) and reply (2, 3, 1): of one length, so the reply counts as it is.
    assert found.mean("a").flat.tolist() == pytest.approx([2.0, 3.0])
    assert found.mean("b").flat.tolist() == pytest.approx([1.0])
    wrong = [None, {}, {"a": own["a"]}, {"b": own["b"]}, {**own, "b": params(1.0, 1.0)}]
    for root in [*wrong, {**own, "a": params(1.0)}]:
        with pytest.raises(ConfigError, match=r"needs the server's own update of \['a', 'b'\]"):
            FLTrust().combine(replies, like, RNG, root)
    assert NormBound().combine(replies, like, RNG, None).aggregate.count == 1


class Own(NormBound):
    """A user's rule that returns what it was given."""

    def decide(self, votes, stream, root):
        assert root is None
        return RETURNED[0]


RETURNED = [None]


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        ((1, 2), r"must return Decision\(row, weight\), got tuple"),
        (Decision(np.zeros(3), 1.0), r"a row of 2 numbers.*got shape \(3,\)"),
        (Decision(np.zeros((2, 1)), 1.0), r"got shape \(2, 1\)"),
        (Decision(np.array([0.0, np.nan]), 1.0), "returned a row of which 1 of 2 are NaN"),
        (Decision(np.array([np.inf, np.nan]), 1.0), "returned a row of which 2 of 2 are NaN"),
        (Decision(np.array(["a", "b"]), 1.0), "returned a row of which 2 of 2"),
        (Decision(np.zeros(2), math.nan), "returned a weight of which 1 of 1"),
        (Decision(np.zeros(2), np.array([1.0, math.inf])), "returned a weight of which 1 of 2"),
    ],
)
def test_what_a_users_rule_must_not_return(decision, said):
    RETURNED[0] = decision
    with pytest.raises(ConfigError, match=said):
        combined(Own(), [(1, 2), (3, 4)])


def test_weights_and_metrics_of_a_verdict_by_hand():
    """Weights of an entry each multiply the row; metrics are means over those who have them."""
    like = {"b": params(0.0), "a": params(0.0, 0.0)}
    rows = {"c1": (1.0, {"loss": 1.0}), "c0": (2.0, {"loss": 4.0, "more": 7.0})}
    replies = {n: seal(reply(w, m, **like), 0) for n, (w, m) in rows.items()}
    RETURNED[0] = Decision(np.array([1.0, 2.0, 3.0]), np.array([4, 5, 6]), {"c1": "why"})
    found = Own().combine(replies, like, RNG)
    assert found.left_out == {"c1": "why"}
    assert found.aggregate.count == 1
    assert found.aggregate.totals["a"].flat.tolist() == [4, 10]
    assert found.aggregate.totals["b"].flat.tolist() == [18]
    assert found.aggregate.weights["a"].flat.tolist() == [4, 5]
    assert found.aggregate.weights["b"].flat.tolist() == [6]
    assert found.aggregate.metrics == {"loss": 2.5, "more": 7.0}
    empty = empty_verdict(replies, like, "late")
    assert empty.left_out == {"c0": "late", "c1": "late"}
    assert (empty.aggregate.count, empty.aggregate.weights) == (0, {"a": 0.0, "b": 0.0})
    assert [t.flat.tolist() for t in empty.aggregate.totals.values()] == [[0, 0], [0]]


@pytest.mark.parametrize(
    ("share", "clients", "liars"),
    [(0.07, 100, 7), (0.0, 9, 0), (0.2, 5, 1), (0.2, 6, 2), (0.2, 10, 2), (0.5, 1, 1)],
)
def test_liars_are_a_share_rounded_up_and_no_rounding_error_more(share, clients, liars):
    assert attackers(share, clients) == liars


@pytest.mark.parametrize(("rule", "need"), [(Krum(0.2), 5), (MultiKrum(0.2), 5), (Median(0.2), 3)])
def test_a_cohort_as_small_as_a_rule_needs_and_one_smaller(rule, need):
    """One liar in each of them: Krum needs 2 f + 3 replies and the median 2 f + 1."""
    rule.check(need)
    with pytest.raises(ConfigError, match=rf"needs {need} replies of a cohort of {need - 1}"):
        rule.check(need - 1)
    assert NormBound().fewest(9) == 1


def test_groups_are_dealt_and_checked_up_to_their_limits():
    """Groups of 2 are the least, all clients the largest; 3 of 9 are three sums, so one liar."""
    names = [f"c{i}" for i in range(5)]
    assert [len(g) for g in deal(names, 2, RNG)] == [3, 2]
    assert [len(g) for g in deal(names, 5, RNG)] == [5]
    order = RNG.child("groups").numpy().permutation(5)
    shuffled = [names[i] for i in order]
    assert deal(names[::-1], 2, RNG) == [tuple(shuffled[::2]), tuple(shuffled[1::2])]
    for k in (1, 6):
        with pytest.raises(ConfigError, match=f"groups of at least {k} cannot be dealt from 5"):
            deal(names, k, RNG)
    check(9, 3, 1)
    for clients, liars in ((8, 1), (9, 2)):
        with pytest.raises(ConfigError, match=f"needs at least {2 * liars + 1}"):
            check(clients, 3, liars)
