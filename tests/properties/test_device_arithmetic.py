"""Masks, sums and checks of replies on another device than the processor: equal bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.stand_in_device import DEVICE, HostRead, StandIn
from vergence.core.aggregation import add_up
from vergence.core.masks import Mask
from vergence.core.messages import SealedReply, SealedTree, reply, seal, support
from vergence.core.method import Exposure
from vergence.core.params import Layout, Params
from vergence.core.serialization import is_finite
from vergence.privacy.reply_checks import fault

ODD = [0.0, -0.0, 1.0, -1.0, 2.5, math.inf, -math.inf, math.nan, 3e38, 1e-40]
WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
entries = st.lists(
    st.tuples(
        st.one_of(st.sampled_from(ODD), st.floats(-10, 10, width=32)),
        st.one_of(st.sampled_from(ODD), st.floats(-10, 10, width=32)),
        st.booleans(),
    ),
    max_size=40,
)
density = st.sampled_from(["as drawn", "none", "all", "one"])


def cut(n: int) -> Layout:
    """Return a layout of two tensors."""
    return Layout(("a", "b"), ((n // 3,), (n - n // 3,)))


def drawn(rows: Any, dtype: torch.dtype, density: str) -> tuple[Params, Params, Mask]:
    n = len(rows)
    a, b = (torch.tensor([row[i] for row in rows], dtype=dtype) for i in (0, 1))
    bits = torch.tensor([row[2] for row in rows], dtype=torch.bool)
    if density != "as drawn":
        bits.fill_(density == "all")
    if density == "one" and n:
        bits[n // 2] = True
    return Params(a, cut(n)), Params(b, cut(n)), Mask(bits, cut(n))


def moved(value: Any) -> Any:
    """Return the same on the device."""
    if isinstance(value, Params):
        return value.like(value.flat.to(DEVICE))
    return Mask(value.bits.to(DEVICE), value.layout) if isinstance(value, Mask) else value


def same(there: torch.Tensor, here: torch.Tensor) -> bool:
    """Whether a tensor of the device has the bits of one in main memory."""
    home = there.cpu()
    if home.is_floating_point():
        assert home.dtype == here.dtype
        home, here = (t.view(WHOLE[t.element_size()]) for t in (home, here))
    return there.device == DEVICE and torch.equal(home, here)


@pytest.mark.slow
@given(entries, st.sampled_from(TYPES), density)
def test_masks_select_and_erase_bit_by_bit(rows, dtype, density):
    a, b, mask = drawn(rows, dtype, density)
    with StandIn():
        x, y, there = moved(a), moved(b), moved(mask)
        # A mask in main memory is moved to the parameters: those of layers are made there.
        for m in (there, mask):
            assert same(m.merge(x, y).flat, mask.merge(a, b).flat)
            assert same(m.keep(x).flat, mask.keep(a).flat)
            assert same(m.take(x), mask.take(a))
            assert same(m.put(m.take(x)).flat, mask.put(mask.take(a)).flat)
            into = x.flat.clone()
            m.restore(into, y)
            assert same(into, mask.merge(a, b).flat)
        if dtype in (torch.float32, torch.float64):
            with np.errstate(all="ignore"):
                assert same(there.distance(x, y).flat, mask.distance(a, b).flat)
        assert there.count == mask.count
        assert there.counts() == mask.counts()
        assert same(there.packed(), mask.packed())
        assert same(Mask.unpacked(there.packed(), mask.layout).bits, mask.bits)
        assert same((~there | there).bits, (~mask | mask).bits)
        assert same((there & mask).bits, mask.bits)
        assert there == mask
        assert (there == ~mask) is (mask == ~mask)


@pytest.mark.slow
@given(entries, st.sampled_from(TYPES), density, st.integers(-1, 45))
def test_the_highest_are_the_same_with_ties_nan_and_infinities(rows, dtype, density, k):
    score, _, among = drawn(rows, dtype, density)
    each = {"a": k, "b": k // 2}
    with StandIn():
        there = Mask.top(moved(score), k, moved(among))
        assert same(there.bits, Mask.top(score, k, among).bits)
        parts = Mask.top_each(moved(score), each, moved(among))
        assert same(parts.bits, Mask.top_each(score, each, among).bits)


def weights(kind: str, mask: Mask, by: Params) -> Any:
    if kind in ("number", "nothing"):
        return 0.25 if kind == "number" else 0.0
    if kind == "mask":
        return mask
    level = torch.full_like(by.flat, 3.0) if kind == "one level" else by.flat.abs()
    return mask.keep(by.like(level))


KINDS = ["number", "nothing", "mask", "one level", "per entry"]
EACH = Exposure(weight="per entry", metrics=())


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.floats(-4, 4, width=32), st.floats(-4, 4, width=32).map(abs), st.booleans()),
        min_size=1,
        max_size=20,
    ),
    density,
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
)
def test_sums_and_means_are_the_same(rows, density, kinds):
    a, b, mask = drawn(rows, torch.float32, density)
    whole = [weights(kind, mask, b) for kind in kinds]
    like = {"model": a}
    here = add_up([seal(reply(w, model=a), 0) for w in whole], like)
    with StandIn():
        there = add_up([seal(reply(moved(w), model=moved(a)), 0) for w in whole], like)
        assert there.count == here.count
        assert same(there.totals["model"].flat, here.totals["model"].flat)
        assert same(there.mean("model").flat, here.mean("model").flat)
        one, other = there.weights["model"], here.weights["model"]
        if isinstance(one, Params) and isinstance(other, Params):
            assert same(one.flat, other.flat)
        else:
            assert one == other
        for w in whole:
            if not isinstance(w, float):
                mask_there, level = support(SealedTree(moved(a), moved(w)))
                mask_here, wanted = support(SealedTree(a, w))
                assert same(mask_there.bits, mask_here.bits)
                assert level == wanted


@pytest.mark.slow
@given(
    entries.filter(bool),
    st.sampled_from(TYPES),
    density,
    st.sampled_from(KINDS),
    st.sampled_from(["number", "mask", "per entry"]),
)
def test_replies_are_refused_for_the_same_reason_after_one_reading(
    rows, dtype, density, kind, declared
):
    a, b, mask = drawn(rows, dtype, density)
    weight, exposed = weights(kind, mask, b), Exposure(weight=declared, metrics=())
    why = fault(SealedReply(0, {"model": SealedTree(a, weight)}, {}), 0, {"model": a}, exposed)
    with StandIn() as stand_in:
        sealed = SealedReply(0, {"model": SealedTree(moved(a), moved(weight))}, {})
        stand_in.reads.clear()
        assert fault(sealed, 0, {"model": moved(a)}, exposed) == why
        assert stand_in.reads == {"params.read_numbers": 1}
        assert is_finite(moved(a).flat, moved(b).flat) == is_finite(a.flat, b.flat)
        if a.layout.n:
            assert str(moved(a).range) == str(a.range)


def test_the_stand_in_refuses_what_a_gpu_refuses_and_every_reading_that_is_not_named():
    with StandIn(["params.read_numbers"]) as stand_in:
        there = torch.arange(4.0).to(DEVICE)
        for read in (
            there.numpy,
            there.__array__,
            lambda: there + torch.ones(4),
            lambda: torch.ones(4)[there > 1],
        ):
            with pytest.raises((TypeError, RuntimeError)):
                read()
        for read in (
            there.tolist,
            there.cpu,
            there[0].item,
            lambda: bool(there[0] > 1),
            lambda: float(there.sum()),
            lambda: there[there > 1],
            lambda: torch.equal(there, there),
            lambda: torch.zeros(4).copy_(there),
            lambda: there.nonzero(),
        ):
            with pytest.raises(HostRead):
                read()
        whole = Params(there, Layout(("w",), ((4,),)))
        assert whole.range == (0, 3)
        with pytest.raises(HostRead, match=r"masks\._counts"):
            _ = Mask(there > 1, whole.layout).count
    assert stand_in.reads["params.read_numbers"] == 1
