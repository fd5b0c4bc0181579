"""Laws of masks, sums, wire and state, on random examples."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scripts import layout
from vergence.core.aggregation import add_up
from vergence.core.masks import Mask
from vergence.core.messages import reply, seal, support_mask
from vergence.core.params import Layout, Params
from vergence.core.serialization import pack, unpack
from vergence.wire.encoding import decode, encode, packed_mask, payload, unpacked_mask
from vergence.wire.size import bytes_of_arrays

seeds = st.integers(0, 2**31)
sizes = st.integers(1, 200)


def draw(seed, n):
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randn(n, generator=generator)
    bits = torch.rand(n, generator=generator) < torch.rand((), generator=generator)
    return Params(flat, layout(n)), Mask(bits, layout(n)), generator


@given(seeds, sizes)
def test_merge_undoes_split(seed, n):
    a, mask, _ = draw(seed, n)
    b, _, _ = draw(seed + 1, n)
    merged = mask.merge(a, b)
    assert torch.equal(mask.merge(merged, a * 0).flat, mask.merge(a, a * 0).flat)
    assert torch.equal((~mask).merge(merged, b * 0).flat, (~mask).merge(b, b * 0).flat)
    assert torch.equal(mask.merge(a, a).flat, a.flat)


@given(seeds, sizes, st.integers(0, 200))
def test_top_is_exact_and_prefers_the_lowest_index(seed, n, k):
    score, among, _ = draw(seed, n)
    score = score.like(score.flat.round())  # many ties
    got = Mask.top(score, k, among)
    order = sorted(among.bits.nonzero().squeeze(1).tolist(), key=lambda i: (-score.flat[i], i))
    assert got.bits.nonzero().squeeze(1).tolist() == sorted(order[:k])


@given(seeds, sizes)
def test_masks_pack_to_one_bit_per_entry(seed, n):
    _, mask, _ = draw(seed, n)
    assert len(mask.packed()) == -(-n // 8)
    assert Mask.unpacked(mask.packed(), mask.layout) == mask


@given(seeds, sizes)
def test_mask_messages_are_short_and_exact(seed, n):
    _, known, generator = draw(seed, n)
    flips = Mask(torch.rand(n, generator=generator) < 0.05, known.layout)
    for now in (known, known & ~flips, known | flips):
        sent = packed_mask(now, known)
        assert unpacked_mask(sent, known) == now
        assert bytes_of_arrays(sent) <= -(-n // 8)
        assert bool(sent) == (now != known)


@given(seeds, sizes, st.sampled_from(["number", "zero", "mask", "entries", "scaled mask"]))
def test_a_reply_survives_the_wire(seed, n, kind):
    update, mask, generator = draw(seed, n)
    bits = mask.bits.float()
    weight = {
        "number": 3.5,
        "zero": 0.0,
        "mask": mask,
        "entries": update.like(bits * torch.rand(n, generator=generator)),
        "scaled mask": update.like(bits * 7.0),
    }[kind]
    sealed = seal(reply(model=update, weight=weight, metrics={"loss": 0.5}), 3)
    _, other, _ = draw(seed + 1, n)
    known = {"model": other}
    got = decode(encode(sealed, known), known)
    assert torch.equal(got.trees["model"].total.flat, sealed.trees["model"].total.flat)
    assert (got.round, got.metrics) == (3, {"loss": 0.5})
    assert same_weight(got.trees["model"].weight, sealed.trees["model"].weight)
    parts = payload(sealed, known)["model"]
    support = support_mask(sealed.trees["model"])
    count = 0 if kind == "zero" else n if support is None else support.count
    assert parts.get("values", torch.zeros(0)).numel() == count
    if kind == "scaled mask":
        assert "weight" not in parts  # one number in the header says it all


def same_weight(a, b):
    if isinstance(a, float):
        return a == b
    return torch.equal(a.bits, b.bits) if isinstance(a, Mask) else torch.equal(a.flat, b.flat)


@pytest.mark.parametrize("kind", ["number", "mask", "entries"])
def test_what_counts_for_nothing_leaves_nothing_behind(kind):
    """Not a NaN, an infinity or a sign: whatever an erased entry was, its bits are those of 0."""
    update, mask, _ = draw(0, 8)
    update = update.like(torch.tensor([math.nan, math.inf, -math.inf, -1.0, 1e30, -0.0, 2.0, 3.0]))
    weight = {
        "number": 0.0,
        "mask": Mask.none(mask.layout),
        "entries": update.like(torch.zeros(8)),
    }[kind]
    total = seal(reply(model=update, weight=weight), 0).trees["model"].total.flat
    assert not total.view(torch.int32).any()


@given(seeds, st.integers(1, 50), st.integers(1, 6))
def test_masked_mean_equals_the_naive_loop(seed, n, clients):
    drawn = [draw(seed + i, n) for i in range(clients)]
    sealed = [seal(reply(model=u, weight=m), 0) for u, m, _ in drawn]
    got = add_up(sealed, {}).mean("model").flat
    for i in range(n):
        mine = [u.flat[i] for u, m, _ in drawn if m.bits[i]]
        total = torch.zeros(())
        for value in mine:
            total = total + value
        assert got[i] == (total / len(mine) if mine else 0)


@given(seeds, sizes)
@settings(max_examples=30)
def test_states_pack_deterministically(seed, n):
    a, mask, _ = draw(seed, n)
    state = {"b": a, "a": (mask, 1, "x", None, 0.1, {"z": a.flat, "y": True})}
    assert pack(state) == pack(unpack(pack(state)))


def test_convolutions_are_stored_channels_last():
    shape = (2, 3, 5, 5)
    conv = Layout(("w",), (shape,))
    flat = torch.arange(conv.n, dtype=torch.float32)
    view = conv.view(flat, "w")
    assert view.shape == shape
    assert view.is_contiguous(memory_format=torch.channels_last)
    assert view[0, 1, 0, 0] == 1  # the next channel is the next number
