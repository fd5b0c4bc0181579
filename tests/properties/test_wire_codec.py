"""Coded replies on the wire: every kind of weight, every codec, bytes and bits."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.properties.test_core import draw, same_weight, seeds, sizes
from vergence.core.aggregation import add_up
from vergence.core.messages import reply, seal, weighted_entries
from vergence.core.serialization import is_finite
from vergence.wire.codecs import Compression, seal_coded
from vergence.wire.encoding import decode, encode, payload
from vergence.wire.size import bytes_of_arrays, bytes_of_tree

kinds = st.sampled_from(["number", "zero", "mask", "entries", "scaled mask"])
ways = st.builds(
    Compression,
    codec=st.sampled_from(["fp16", "int8", "topk"]),
    share=st.sampled_from([0.02, 0.4]),
    value_codec=st.sampled_from(["fp32", "fp16", "int8"]),
    feedback=st.booleans(),
)


def weighed(kind, update, mask, generator):
    bits = mask.bits.float()
    return {
        "number": 3.5,
        "zero": 0.0,
        "mask": mask,
        "entries": update.like(bits * torch.rand(len(bits), generator=generator)),
        "scaled mask": update.like(bits * 7.0),
    }[kind]


@given(seeds, sizes, kinds, ways)
def test_a_coded_reply_survives_the_wire(seed, n, kind, how):
    """The receiver's total is the sender's, bit for bit; bytes are those of the arrays."""
    update, mask, generator = draw(seed, n)
    weight = weighed(kind, update, mask, generator)
    sealed, owed = seal_coded(reply(model=update, weight=weight), 3, how, {})
    known = {"model": draw(seed + 1, n)[1]}
    got, tree = decode(encode(sealed, known), known).trees["model"], sealed.trees["model"]
    assert torch.equal(got.total.flat, tree.total.flat)
    assert same_weight(got.weight, tree.weight)
    assert bytes_of_arrays(payload(sealed, known)["model"]) == bytes_of_tree(tree, known["model"])
    assert (
        bytes_of_tree(tree, known["model"])
        <= 1.25
        * bytes_of_tree(seal(reply(model=update, weight=weight), 3).trees["model"], known["model"])
        + 4
    )
    assert bool(owed) == how.feedback


@given(seeds, sizes, kinds, ways)
def test_what_is_owed_lies_where_it_counts(seed, n, kind, how):
    """decoded + owed = update + owed before, on the entries that count; 0 elsewhere."""
    update, mask, generator = draw(seed, n)
    weight = weighed(kind, update, mask, generator)
    how = Compression(how.codec, how.share, how.value_codec, feedback=True)
    before = {"model": draw(seed + 1, n)[0]}
    sealed, owed = seal_coded(reply(model=update, weight=weight), 0, how, before)
    here = weighted_entries(weight, update.layout)
    assert not (~here).take(owed["model"]).any()
    sent = here.take(update) + here.take(before["model"])
    arrived = how.coder.decode(sealed.trees["model"].coded, here.count, torch.float32)
    assert torch.equal(here.take(owed["model"]), sent - arrived)


@given(seeds, sizes, ways)
def test_what_is_not_finite_is_left_to_the_guards(seed, n, how):
    update, _, _ = draw(seed, n)
    update.flat[0] = float("nan")
    sealed, owed = seal_coded(reply(model=update), 0, how, {"model": update * 0.0})
    assert not is_finite(sealed.trees["model"].total.flat)
    assert list(owed) == ["model"]


@given(seeds, sizes, st.integers(1, 4))
def test_fp32_is_the_plain_wire(seed, n, clients):
    replies = [
        reply(model=draw(seed + i, n)[0], weight=draw(seed + i, n)[1]) for i in range(clients)
    ]
    coded = [seal_coded(r, 0, Compression(feedback=True), {})[0] for r in replies]
    plain = add_up([seal(r, 0) for r in replies], {}).mean("model")
    assert torch.equal(add_up(coded, {}).mean("model").flat, plain.flat)
