"""Replies as rows of words: the protocol's sum is the quantised plain sum, and says the same."""

import numpy as np
import pytest
import torch

from tests.privacy.sums import on_shares, pairwise, people, plain_sum, shared, under_pads
from vergence.core.aggregation import add_up
from vergence.core.masks import Mask
from vergence.core.messages import reply, seal
from vergence.core.method import Exposure
from vergence.core.params import Params
from vergence.privacy.secure_aggregation.packing import RangeFault, withheld
from vergence.privacy.secure_aggregation.reply_layout import ReplyLayout, ValueLimits

N = 40


def params(seed: int, n: int = N) -> Params:
    return Params.named(a=0.02 * torch.randn(n, generator=torch.Generator().manual_seed(seed)))


def form(kind: str, trees=("model",), metrics=("loss",), **ranges) -> ReplyLayout:
    like = {name: params(0) for name in trees}
    ranges = {"people": 5, **ranges}
    return ReplyLayout(
        Exposure(trees=trees, weight=kind, metrics=metrics), like, ValueLimits(**ranges)
    )


def exact(layout: ReplyLayout, sealed: list, got) -> None:
    """The total is the exact sum of the float32 totals, to half a step each and one rounding."""
    for name, packing in layout.trees.items():
        wanted = np.sum([one.trees[name].total.flat.double().numpy() for one in sealed], axis=0)
        error = np.abs(got.totals[name].flat.numpy() - wanted)
        assert (error <= len(sealed) * packing.step / 2 + np.abs(wanted) * 2**-24).all()


def replies(kind: str) -> list:
    found = []
    for i in range(5):
        mask = Mask(
            torch.rand(N, generator=torch.Generator().manual_seed(50 + i)) < 0.6, params(0).layout
        )
        if kind == "mask":
            weight = mask
        elif kind == "per entry":
            weight = Params(mask.bits * float(100 + i), mask.layout)
        else:
            weight = 100.0 + i
        found.append(seal(reply(weight, {"loss": 0.5 + i}, model=params(i)), 3))
    return found


@pytest.mark.parametrize("kind", ["number", "mask", "per entry"])
def test_the_sum_of_rows_says_what_the_plain_sum_says(kind):
    """Up to half a step per reply; weights, count and the mean of metrics exactly."""
    weight = 1 if kind == "mask" else 200
    layout = form(kind, total=100.0, weight=weight)
    sealed = replies(kind)
    total = np.sum([layout.row(one) for one in sealed], axis=0, dtype=np.uint64)
    got, wanted = layout.aggregate(total, 5), add_up(sealed, {})
    assert got.count == 5
    assert got.metrics == {"loss": 2.5}
    exact(layout, sealed, got)
    if kind == "number":
        assert got.weights == wanted.weights == {"model": 510.0}
    else:
        assert torch.equal(got.weights["model"].flat, wanted.weights["model"].flat)


@pytest.mark.parametrize("kind", ["number", "mask", "per entry"])
def test_both_protocols_give_the_quantised_plain_sum_bit_for_bit(kind):
    layout = form(kind, total=100.0, weight=1 if kind == "mask" else 200)
    given = {n: layout.row(r) for n, r in zip(people(5), replies(kind), strict=True)}
    plain = plain_sum(given, given)
    terms = pairwise(5, layout.words, 4, form=layout.digest)
    padded = under_pads(terms, given).rest(lambda step: ["p04"] if step == 4 else ())
    np.testing.assert_array_equal(padded.words, plain)
    split = on_shares(shared(layout.words, 3, form=layout.digest), given).rest()
    np.testing.assert_array_equal(split.words, plain)
    if not layout.counted:
        return
    packing = layout.trees["model"]
    gate = {"gated": layout.entries, "threshold": 4, "count_bits": packing.count_bits}
    gated = on_shares(shared(layout.words, 2, form=layout.digest, **gate), given).rest()
    kept = withheld(plain[: layout.entries], packing, 4)
    np.testing.assert_array_equal(gated.words[: layout.entries], kept)
    got = layout.aggregate(gated.words, 5)
    closed = packing.contributors(plain[: layout.entries]) < 4
    assert 5 < closed.sum() < N
    assert not got.mean("model").flat.numpy()[closed].any()
    assert got.metrics == {"loss": 2.5}


def test_two_entries_to_a_word_say_the_same_to_half_a_coarser_step():
    layout = form("number", ("model", "control"), total=8.0, weight=200.0, bits=32)
    assert layout.words == N // 2 * 2 + 2 + 1
    assert layout.trees["model"].fraction == 25  # 32 less a sign, and 6 bits for 5 x 8
    sealed = [
        seal(reply(2.5, {"loss": 1.0}, model=params(i), control=params(9 + i)), 0) for i in range(5)
    ]
    total = np.sum([layout.row(one) for one in sealed], axis=0, dtype=np.uint64)
    exact(layout, sealed, layout.aggregate(total, 5))
    assert layout.digest != form("number", ("model", "control"), total=8.0, weight=200.0).digest


def test_two_trees_with_a_number_each():
    layout = form("number", ("model", "control"), total=50.0, weight=20.0)
    sealed = [
        seal(reply({"model": 2.5, "control": 10.0}, model=params(i), control=params(9 + i)), 0)
        for i in range(3)
    ]
    sealed = [type(s)(s.round, s.trees, {"loss": 1.0}) for s in sealed]
    total = np.sum([layout.row(one) for one in sealed], axis=0, dtype=np.uint64)
    got = layout.aggregate(total, 3)
    assert got.weights == {"model": 7.5, "control": 30.0}
    exact(layout, sealed, got)
    assert layout.words == 2 * N + 2 + 1


def test_a_metric_is_the_mean_over_those_who_told_it_and_absent_where_nobody_did():
    layout = form("number", metrics=("loss", "score"))
    rows = [
        layout.row(seal(reply(1.0, m, model=params(0)), 0))
        for m in ({"loss": 1.0}, {"loss": 2.0}, {})
    ]
    got = layout.aggregate(np.sum(rows, axis=0, dtype=np.uint64), 3)
    assert got.metrics == {"loss": 1.5}


def test_a_number_in_place_of_a_mask_counts_everywhere_and_zero_nowhere():
    layout = form("mask", metrics=())
    whole = layout.row(seal(reply(1.0, model=params(1)), 0))
    none = layout.row(seal(reply(0.0, model=params(1)), 0))
    assert layout.trees["model"].contributors(whole).tolist() == [1] * N
    assert not none.any()


@pytest.mark.parametrize(
    ("sealed", "why"),
    [
        (seal(reply(1.0, model=params(0) * 1e4), 0), "range: 'model' holds"),
        (seal(reply(1.0, model=params(0) * float("nan")), 0), "range: 'model' holds more than"),
        (seal(reply(2.0, model=params(0)), 0), "range: 'weight' holds more than 1, the largest"),
        (
            seal(reply(1.0, {"loss": 2e6}, model=params(0)), 0),
            "range: 'loss' holds more than 1e\\+06",
        ),
        (seal(reply(Mask.full(params(0).layout), model=params(0)), 0), "weighed entry by entry"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(sealed, why):
    with pytest.raises(RangeFault, match=why):
        form("number").row(sealed)


def test_the_digest_tells_forms_apart():
    forms = [
        form("number"),
        form("mask"),
        form("number", total=9.0),
        form("number", people=6),
        form("number", metrics=()),
        form("number", ("model", "control")),
        form("per entry"),
        form("number", metric=10.0),
        form("number", weight=2.0),
    ]
    assert len({one.digest for one in forms}) == len(forms)
    assert form("mask").digest == form("mask").digest
