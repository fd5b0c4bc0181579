"""Masks: exact top-k against a full sort, merging and erasing bit by bit."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.scripts import layout, params
from vergence.core import masks
from vergence.core.masks import Mask
from vergence.core.params import Layout, Params
from vergence.core.serialization import is_finite

INFINITE = float("inf")
SCORES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, INFINITE, -INFINITE]),
    st.floats(-10, 10, width=32),
)


def by_sorting(values, k, inside):
    """The definition: highest first, ties by index."""
    order = sorted(np.flatnonzero(inside).tolist(), key=lambda i: (-values[i], i))
    return sorted(order[: max(k, 0)])


def top(values, k, inside):
    n = len(values)
    among = Mask(torch.from_numpy(np.asarray(inside, dtype=bool)), layout(n))
    got = Mask.top(Params(torch.from_numpy(values), layout(n)), k, among)
    assert got.count == int(got.bits.sum())
    return got.bits.nonzero().squeeze(1).tolist()


@given(
    st.lists(st.tuples(SCORES, st.booleans()), min_size=1, max_size=60),
    st.integers(-1, 70),
    st.sampled_from([np.float32, np.float64]),
)
def test_top_of_few(entries, k, dtype):
    values = np.array([v for v, _ in entries], dtype=dtype)
    inside = [i for _, i in entries]
    assert top(values, k, inside) == by_sorting(values, k, inside)


KINDS = {
    "smooth": lambda g, n: g.standard_normal(n),
    "changes": lambda g, n: np.abs(g.standard_normal(n)) * (g.random(n) > 0.3),
    "few values": lambda g, n: np.round(g.standard_normal(n) * 2),
    "all equal": lambda _, n: np.full(n, -3.0),
    "rising": lambda _, n: np.arange(n) / n,
    "periodic": lambda _, n: np.arange(n) % 9.0,
    "spikes": lambda g, n: np.where(g.random(n) < 1e-3, 1e30, 1e-30 * g.random(n)),
    "infinite": lambda g, n: np.where(g.random(n) < 0.4, INFINITE, g.standard_normal(n)),
    "minus infinite": lambda g, n: np.where(g.random(n) < 0.9, -INFINITE, g.standard_normal(n)),
}


@given(
    st.sampled_from(sorted(KINDS)),
    st.integers(0, 2**31),
    st.integers(masks.SAMPLE, 6 * masks.SAMPLE),
    st.one_of(st.sampled_from([0.0, 1e-5, 0.05, 0.5, 0.95, 0.99999, 1.0]), st.floats(0, 1)),
    st.sampled_from([0.0, 1e-3, 0.5, 1.0]),
)
def test_top_of_many(kind, seed, n, share, density):
    """Long enough that the k-th value is bracketed by a sample."""
    generator = np.random.default_rng(seed)
    values = KINDS[kind](generator, n).astype(np.float32)
    inside = generator.random(n) < density
    k = round(share * n)
    order = np.lexsort((np.arange(n), -values))
    order = order[inside[order]][: min(k, int(inside.sum()))]
    assert top(values, k, inside) == np.sort(order).tolist()


def test_top_where_the_sample_misleads():
    """Every sampled entry is 0, all others are their index: the bracket [0, 0] misses the k-th."""
    n = 4 * masks.SAMPLE
    values = np.arange(n, dtype=np.float32)
    values[:: (n // masks.SAMPLE) | 1] = 0
    everywhere = np.ones(n, dtype=bool)
    assert top(values, 10, everywhere) == by_sorting(values, 10, everywhere)
    assert top(-values, n - 10, everywhere) == by_sorting(-values, n - 10, everywhere)


@pytest.mark.parametrize("n", [4, 4 * masks.SAMPLE])
def test_nan_counts_as_highest_and_is_not_chosen(n):
    """One NaN outside changes nothing; inside it takes one of the k places."""
    values = np.zeros(n, dtype=np.float32)
    values[:3] = [np.nan, 3, 2]
    inside = np.ones(n, dtype=bool)
    assert top(values, 2, inside) == [1]
    inside[0] = False
    assert top(values, 2, inside) == [1, 2]


def test_top_of_half_precision():
    score = Params(torch.tensor([1.0, 3.0, 2.0, 3.0], dtype=torch.bfloat16), layout(4))
    assert Mask.top(score, 2, Mask.full(layout(4))).bits.tolist() == [False, True, False, True]


@given(st.integers(0, 2**31), st.integers(1, 50), st.integers(1, 50), st.integers(0, 60))
def test_top_of_each_tensor_is_top_within_it(seed, first, second, k):
    two = Layout(("a", "b"), ((first,), (second,)))
    generator = torch.Generator().manual_seed(seed)
    score = Params(torch.randn(two.n, generator=generator).round(), two)
    among = Mask(torch.rand(two.n, generator=generator) < 0.7, two)
    rooms = {"a": k, "b": k // 2}
    wanted = Mask.none(two)
    for name, room in rooms.items():
        wanted |= Mask.top(score, room, among & Mask.layers(two, name))
    assert Mask.top_each(score, rooms, among) == wanted
    assert among.counts() == {n: (among & Mask.layers(two, n)).count for n in ("a", "b")}


def test_merge_by_hand():
    personal, shared = params(1, 2, 3), params(7, 8, 9)
    some = Mask(torch.tensor([True, False, True]), layout(3))
    assert some.merge(personal, shared).flat.tolist() == [1, 8, 3]


BITS = {
    torch.float16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.bfloat16: torch.int16,
}


@given(
    st.integers(0, 2**31),
    st.one_of(st.integers(1, 300), st.integers(masks.BLOCK - 2, 2 * masks.BLOCK + 2)),
    st.sampled_from(sorted(BITS, key=str)),
    st.sampled_from([0.0, 0.3, 1.0]),
)
def test_merge_and_keep_take_every_bit_pattern_as_it_is(seed, n, dtype, share):
    """Random integers seen as floats: NaNs with payloads, infinities, denormals, both zeros."""
    generator = torch.Generator().manual_seed(seed)
    whole = BITS[dtype]
    edge = torch.iinfo(whole)
    a, b = (
        torch.randint(edge.min, edge.max, (n,), generator=generator, dtype=whole) for _ in range(2)
    )
    mask = Mask(torch.rand(n, generator=generator) < share, layout(n))
    mine, theirs = Params(a.view(dtype), layout(n)), Params(b.view(dtype), layout(n))
    merged, kept = mask.merge(mine, theirs), mask.keep(mine)
    assert merged.flat.dtype == kept.flat.dtype == dtype
    assert torch.equal(merged.flat.view(whole), torch.where(mask.bits, a, b))
    assert torch.equal(kept.flat.view(whole), torch.where(mask.bits, a, torch.zeros_like(a)))
    held = mine.flat.clone()
    mask.restore(held, theirs)
    assert torch.equal(held.view(whole), merged.flat.view(whole))


@given(st.integers(0, 2**31), st.integers(1, 300), st.sampled_from([torch.float32, torch.float64]))
def test_distance_is_zero_outside_the_mask_even_for_nan(seed, n, dtype):
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(n, generator=generator, dtype=dtype) for _ in range(2))
    a[0] = float("nan")
    mask = Mask(torch.rand(n, generator=generator) < 0.5, layout(n))
    mask.bits[0] = False
    got = mask.distance(Params(a, layout(n)), Params(b, layout(n))).flat
    assert torch.equal(got, torch.where(mask.bits, (a - b).abs(), torch.zeros(n, dtype=dtype)))


@given(st.integers(0, 2**31), st.integers(1, 300))
def test_counts_follow_through_operations(seed, n):
    generator = torch.Generator().manual_seed(seed)
    a, b = (Mask(torch.rand(n, generator=generator) < 0.5, layout(n)) for _ in range(2))
    for mask in (a, ~a, ~~a, a | b, a & b, ~(a & ~b)):
        assert mask.count == int(mask.bits.sum())
        assert (~mask).count == n - mask.count


@pytest.mark.parametrize("bad", [float("nan"), INFINITE, -INFINITE])
def test_the_range_tells_of_every_bad_entry(bad):
    good = Params(torch.tensor([3.0, -2.0, 0.0]), layout(3))
    assert good.range == (-2, 3)
    assert is_finite(good.flat)
    harmed = good.like(torch.tensor([0.0, bad, 1.0]))
    assert not is_finite(harmed.flat)
    assert not all(map(np.isfinite, harmed.range))
    assert Params.zeros(layout(0)).range == (0, 0)
