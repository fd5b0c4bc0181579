"""Codecs keep their stated bounds and byte counts; error feedback loses nothing."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.scripts import layout
from vergence.core.masks import Mask
from vergence.core.params import Params
from vergence.errors import ConfigError, DataError
from vergence.wire import codecs
from vergence.wire.codecs import (
    BLOCK,
    HALF_MAX,
    SCALE_MAX,
    SCALE_MIN,
    Compression,
    FullPrecision,
    HalfPrecision,
    Int8,
    TopK,
    index_bytes,
    pack_indices,
    unpack_indices,
)
from vergence.wire.size import bytes_of_arrays

DTYPES = (torch.float32, torch.float64)
lengths = st.one_of(st.integers(0, 40), st.integers(0, 3 * BLOCK + 1))
CODECS = [
    FullPrecision(),
    HalfPrecision(),
    Int8(),
    TopK(0.1),
    TopK(0.3, HalfPrecision()),
    TopK(0.02, Int8()),
    TopK(1.0),
]
dtypes = st.sampled_from(DTYPES)


@st.composite
def values(draw, dtype=None):
    """Updates of any scale: normal, with zeros, and a few entries far beyond the others."""
    n, seed = draw(lengths), draw(st.integers(0, 2**31))
    generator = np.random.default_rng(seed)
    flat = generator.standard_normal(n) * 10.0 ** draw(st.integers(-44, 37))
    flat *= generator.random(n) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    flat[generator.random(n) < 0.01] *= 50
    return torch.from_numpy(flat).to(dtype or draw(dtypes))


def roundtrip(codec, x):
    return codec.decode(codec.encode(x), len(x), x.dtype)


def exactly(x):
    """Float64, so that the bounds themselves are not rounded."""
    return x.double()


@given(values())
def test_fp32_is_as_it_is(x):
    assert torch.equal(roundtrip(FullPrecision(), x), x)


@given(values())
def test_fp16_is_within_half_a_unit_or_saturates(x):
    """Eleven significant bits; spacing 2^-24 below 2^-14."""
    got, x = exactly(roundtrip(HalfPrecision(), x)), exactly(x)
    inside = x.abs() <= HALF_MAX
    bound = (x.abs() * 2.0**-11).clamp(min=2.0**-25)
    assert ((got - x).abs() <= bound)[inside].all()
    assert torch.equal(got[~inside], x[~inside].sign() * HALF_MAX)


@given(values())
def test_int8_is_within_half_a_step_of_its_block(x):
    arrays = Int8().encode(x)
    got, x = exactly(Int8().decode(arrays, len(x), x.dtype)), exactly(x)
    for at, block in enumerate(x.split(BLOCK) if len(x) else ()):
        scale, largest = float(arrays["scale"][at]), float(block.abs().max())
        error = (got.split(BLOCK)[at] - block).abs()
        if largest / 127 < SCALE_MIN * 0.999:
            assert (scale, float(error.max())) == (0, largest)
        elif scale == SCALE_MAX:
            held = block.clamp(-127 * scale, 127 * scale)
            assert (got.split(BLOCK)[at] - held).abs().max() <= scale / 2 * (1 + 2.0**-16)
        elif scale:
            assert scale == pytest.approx(largest / 127, rel=2.0**-22)
            assert error.max() <= scale / 2 * (1 + 2.0**-16)


@given(values(), st.floats(0.001, 1.0))
def test_topk_keeps_the_largest_exactly(x, share):
    """Against a full sort: ties to the lowest index, everything else 0."""
    k = min(max(math.floor(share * len(x) + 1e-9), 1), len(x))
    order = np.lexsort((np.arange(len(x)), -x.abs().numpy()))[:k]
    wanted = torch.zeros_like(x)
    wanted[torch.from_numpy(order)] = x[torch.from_numpy(order)]
    assert torch.equal(roundtrip(TopK(share), x), wanted)
    half = roundtrip(TopK(share, HalfPrecision()), x)
    assert torch.equal(half, roundtrip(HalfPrecision(), wanted))


@given(values(), st.sampled_from(CODECS))
def test_bytes_are_those_of_the_arrays(x, codec):
    """2 n for halves; n + 4 a block for int8; k values and the shorter way to say where."""
    n = len(x)
    each = {
        FullPrecision: lambda m: m * x.element_size(),
        HalfPrecision: lambda m: 2 * m,
        Int8: lambda m: m + 4 * math.ceil(m / BLOCK),
    }
    if isinstance(codec, TopK):
        k = codec.count(n)
        where = min(math.ceil(k * max(math.ceil(math.log2(max(n, 1))), 1) / 8), math.ceil(n / 8))
        wanted = each[type(codec.values_codec)](k) + (where if n else 0)
    else:
        wanted = each[type(codec)](n)
    assert bytes_of_arrays(codec.encode(x)) == wanted


@given(values(), st.sampled_from(CODECS))
def test_same_values_same_bytes_and_nothing_is_changed(x, codec):
    before = x.clone()
    once, twice = codec.encode(x), codec.encode(x.clone())
    assert once.keys() == twice.keys()
    assert all(torch.equal(once[name], twice[name]) for name in once)
    codec.decode(once, len(x), x.dtype)
    assert torch.equal(x, before)
    assert all(torch.equal(once[name], twice[name]) for name in once)


@given(st.sets(st.integers(0, 4000)), st.integers(0, 70_000))
def test_packed_indices_are_one_string_of_bits(indices, more):
    """The definition: every index in ceil(log2 n) bits, most significant first."""
    where = np.array(sorted(indices), dtype=np.int64)
    n = (int(where[-1]) if len(where) else 0) + 1 + more
    width = max(math.ceil(math.log2(n)), 1)
    text = "".join(format(i, f"0{width}b") for i in where)
    packed = pack_indices(where, n)
    assert len(packed) == index_bytes(len(where), n) == math.ceil(len(text) / 8)
    assert "".join(format(b, "08b") for b in packed).startswith(text)
    back = unpack_indices(packed, n)
    assert back[: len(where)].tolist() == where.tolist()
    assert set(back.tolist()) == set(where.tolist())  # the filling names no other entry


compressions = st.builds(
    Compression,
    codec=st.sampled_from(["fp32", "fp16", "int8", "topk"]),
    share=st.sampled_from([0.01, 0.3, 1.0]),
    value_codec=st.sampled_from(["fp32", "fp16", "int8"]),
    feedback=st.booleans(),
)


@given(compressions, values())
def test_compress_is_encode_and_decode_and_leaves_the_rest(how, x):
    arrays, decoded, left = how.compress(x)
    assert torch.equal(decoded, how.coder.decode(arrays, len(x), x.dtype))
    assert torch.equal(left, x - decoded) if how.feedback else left is None
    assert how.lossless == (how.codec == "fp32")
    if how.lossless:
        assert torch.equal(decoded, x)
        assert left is None or not left.any()


@given(compressions, st.integers(0, 2**31), st.integers(1, 300), st.integers(1, 12))
def test_with_feedback_only_the_last_residual_is_missing(how, seed, n, rounds):
    """Sum of what arrived + what is left = sum of updates, to rounding in float64."""
    if not how.feedback:
        how = Compression(how.codec, how.share, how.value_codec, feedback=True)
    generator = torch.Generator().manual_seed(seed)
    given_, arrived = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    left = None
    for _ in range(rounds):
        update = torch.randn(n, generator=generator, dtype=torch.float64)
        _, decoded, left = how.compress(update, left)
        given_, arrived = given_ + update, arrived + decoded
    assert left is not None
    assert torch.allclose(arrived + left, given_, atol=1e-12)


def test_feedback_sends_a_small_constant_update_in_the_end():
    """Top-1 of (1, 0.4): the second entry waits until 3 * 0.4 > 1, and goes whole.

    Sums to send per round: (1, .4), (1, .8), (1, 1.2): the third sends 1.2 and keeps 1. Without
    feedback the second entry never goes.
    """
    update = torch.tensor([1.0, 0.4], dtype=torch.float64)
    how, left, sent = Compression("topk", share=0.5, feedback=True), None, []
    for _ in range(3):
        _, decoded, left = how.compress(update, left)
        sent.append([round(float(v), 9) for v in decoded])
    assert sent == [[1, 0], [1, 0], [0, 1.2]]
    assert left is not None
    assert [round(float(v), 9) for v in left] == [1, 0]
    deaf = Compression("topk", share=0.5)
    assert all(deaf.compress(update)[1].tolist() == [1, 0] for _ in range(3))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("codec", ["fp32", "fp16", "int8", "topk"])
def test_what_is_not_finite_is_refused(codec, bad):
    with pytest.raises(DataError, match="NaN or infinity"):
        Compression(codec).compress(torch.tensor([1.0, bad]))


def test_a_residual_of_another_length_is_refused():
    with pytest.raises(DataError, match="residual of 3"):
        Compression("fp16", feedback=True).compress(torch.zeros(2), torch.zeros(3))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"codec": "zip"}, "wire: codec must be one of fp32, fp16, int8, topk; got 'zip'"),
        ({"share": 0.0}, "wire: share must be"),
        ({"share": 1.5}, "wire: share must be"),
        ({"value_codec": "topk"}, "wire: value_codec must be one of fp32, fp16, int8"),
    ],
)
def test_options_out_of_range(options, says):
    with pytest.raises(ConfigError, match=says):
        Compression(**options)


def harmed(codec, n, **arrays):
    good = codec.encode(torch.arange(1.0, n + 1))
    return {**good, **arrays}


FEW = torch.zeros(3, dtype=torch.uint8)
TWICE = torch.from_numpy(pack_indices(np.array([5, 5]), 200))
BEYOND = torch.from_numpy(pack_indices(np.array([5, 250]), 200))


@pytest.mark.parametrize(
    ("codec", "arrays"),
    [
        (FullPrecision(), {"values": torch.zeros(3)}),
        (FullPrecision(), {"more": torch.zeros(3)}),
        (FullPrecision(), {"values": torch.zeros(200, dtype=torch.float64)}),
        (HalfPrecision(), {"values": torch.zeros(200)}),
        (HalfPrecision(), {"values": torch.zeros(1, 200, dtype=torch.float16)}),
        (Int8(), {"scale": torch.zeros(2)}),
        (TopK(0.01), {"where": FEW}),
        (TopK(0.01), {"where": TWICE}),
        (TopK(0.01), {"where": BEYOND}),
        (TopK(0.01), {"values": torch.zeros(3)}),
        (TopK(0.5), {"where": FEW}),
        (TopK(0.5), {"where": torch.zeros(25, dtype=torch.uint8)}),
    ],
)
def test_arrays_that_fit_nothing_are_refused(codec, arrays):
    with pytest.raises(DataError):
        codec.decode(harmed(codec, 200, **arrays), 200, torch.float32)


@given(values(), st.integers(0, 2**31))
def test_a_masked_update_is_taken_out_and_put_back(x, seed):
    """What travels of a masked tree: its entries, in order."""
    generator = torch.Generator().manual_seed(seed)
    mask = Mask(torch.rand(len(x), generator=generator) < 0.5, layout(len(x)))
    params = Params(x, mask.layout)
    assert torch.equal(mask.take(params), x[mask.bits])
    assert torch.equal(mask.put(mask.take(params)).flat, mask.keep(params).flat)
    with pytest.raises(ConfigError):
        mask.put(torch.zeros(mask.count + 1))


def test_the_table_of_codecs_is_complete():
    kinds = {c.__name__ for c in codecs.Codec.__subclasses__()}
    assert kinds == {type(c).__name__ for c in CODECS}
