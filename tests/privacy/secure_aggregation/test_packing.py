"""Words: exact sums, ranges that hold, rounding without bias."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vergence.errors import ConfigError
from vergence.privacy.secure_aggregation.packing import (
    Packing,
    RangeFault,
    paired,
    received,
    sent,
    unpaired,
    withheld,
)


@st.composite
def packings(draw) -> Packing:
    people = draw(st.integers(1, 63))
    heaviest = draw(st.sampled_from([1, 1, 7, 3000]))
    return Packing(draw(st.floats(1e-6, 1e6)), people, draw(st.booleans()), heaviest)


@given(packings(), st.integers(0, 2**32))
@settings(max_examples=200)
def test_the_sum_of_words_holds_the_sums(packing: Packing, seed: int):
    """Against Python's whole numbers: values as multiples of the step, weights, contributors."""
    rng = np.random.default_rng(seed)
    people, n = int(rng.integers(1, packing.people + 1)), 6
    total = np.zeros(n, np.uint64)
    values, weights = [0] * n, np.zeros(n, np.int64)
    contributors = np.zeros(n, np.int64)
    for _ in range(people):
        x = rng.uniform(-packing.limit, packing.limit, n)
        x[:2] = packing.limit, -packing.limit  # the worst case, everybody at once
        w = rng.integers(0, packing.heaviest + 1, n)
        w[:2] = packing.heaviest
        x = np.where(w == 0, 0.0, x) if packing.counted else x
        total += packing.encode(x, w if packing.counted else None)
        exact = [round(Fraction(float(v)) * 2**packing.fraction) for v in x]
        values = [a + b for a, b in zip(values, exact, strict=True)]
        weights, contributors = weights + w, contributors + (w > 0)
    wanted = np.array([float(Fraction(v)) * packing.step for v in values])
    np.testing.assert_array_equal(packing.values(total), wanted)
    if packing.counted:
        np.testing.assert_array_equal(packing.weights(total), weights)
        np.testing.assert_array_equal(packing.contributors(total), contributors)


@given(st.floats(1e-30, 1e6), st.integers(0, 2**32))
def test_numbers_in_float32_are_the_words_of_the_same_numbers_in_float64(limit, seed):
    """Also ties, the least numbers there are, and scales that float32 cannot hold."""
    packing = Packing(limit, 3)
    rng = np.random.default_rng(seed)
    values = (rng.uniform(-0.5, 0.5, 100) * limit).astype(np.float32)
    values[:2] = np.float32(1e-45) if limit > 1e-40 else 0, 0.0
    ties = (np.arange(-4, 4) + 0.5) * packing.step
    values[2:10] = ties if abs(ties).max() < limit else 0
    np.testing.assert_array_equal(packing.encode(values), packing.encode(values.astype(np.float64)))


@given(st.integers(1, 63), st.integers(1, 9), st.integers(0, 2**32))
def test_a_sum_of_pairs_is_a_pair_of_sums(people, n, seed):
    """Also where everybody gives the largest number there is, of either sign."""
    rng = np.random.default_rng(seed)
    packing = Packing(8.0, people, bits=32)
    given = rng.uniform(-8, 8, (people, n))
    given[:, : n // 2] = rng.choice([-8.0, 8.0], n // 2)
    rows = [packing.encode(row) for row in given]
    total = np.sum([paired(row) for row in rows], axis=0, dtype=np.uint64)
    assert len(total) == (n + 1) // 2
    np.testing.assert_array_equal(unpaired(total, n), np.sum(rows, axis=0, dtype=np.uint64))
    np.testing.assert_array_equal(unpaired(paired(rows[0]), n), rows[0])


def test_the_layouts_of_the_papers_numbers():
    """4095 people, masks, |x| <= 2^15: 52 value bits, 24 after the point (privacy.md 3.3).

    14 people: counts need 4 bits, weights up to 3000 need 16 (14 * 3000 = 42,000 < 2^16), and
    44 bits hold 14 * 24,000 * 2^24 = 2^42.3 with a sign.
    """
    masks = Packing(2.0**15 - 1, 4095, True)
    assert (masks.count_bits, masks.value_bits, masks.fraction) == (12, 52, 24)
    weighed = Packing(24_000, 14, True, 3000)
    assert (weighed.count_bits, weighed.weight_bits, weighed.value_bits) == (4, 16, 44)
    assert weighed.fraction == 24
    plain = Packing(8, 14)
    assert (plain.value_bits, plain.fraction) == (64, 56)


@pytest.mark.parametrize("packing", [Packing(8, 14), Packing(0.3, 9, True), Packing(5, 3, True, 9)])
def test_the_fraction_is_the_largest_that_cannot_overflow(packing):
    room = (1 << (packing.value_bits - 1)) - 1
    worst = packing.people * round(Fraction(packing.limit) * 2**packing.fraction)
    finer = packing.people * round(Fraction(packing.limit) * 2 ** (packing.fraction + 1))
    assert worst <= room < finer


def test_rounding_has_no_bias_and_is_off_by_half_a_step_at_most():
    """A uniform error has variance step^2/12; the mean of 200,000 lies within 5 sigma of 0."""
    packing = Packing(2.0**20, 4095, True, 3)  # coarse: 5 bits after the point
    x = np.random.default_rng(1).uniform(-100, 100, 200_000)
    error = packing.values(packing.encode(x, 1)) - x
    assert np.abs(error).max() <= packing.step / 2
    assert abs(error.mean()) < 5 * packing.step / np.sqrt(12 * len(x))
    ties = (np.arange(-1000, 1000) + 0.5) * packing.step
    assert (packing.values(packing.encode(ties, 1)) - ties).mean() == 0  # ties to even


@pytest.mark.parametrize("bad", [8.001, -8.001, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("counted", [False, True])
def test_what_is_out_of_range_is_refused_by_name_and_not_clipped(bad, counted):
    packing = Packing(8, 14, counted, name="head")
    with pytest.raises(RangeFault, match=r"range: 'head' holds more than 8, the largest"):
        packing.encode(np.array([0.0, bad]), np.ones(2) if counted else None)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([1, 4], "by 4, and whole numbers from 0 to 3 are"),
        ([1, -1], "by -1, and whole"),
        ([4, -1], "by -1, and whole"),
        ([1, -0.5], "by -0.5, and whole"),
        ([1, 0.5], "by a fraction"),
        ([1, np.nan], "by nan, and whole"),
    ],
)
def test_weights_that_a_word_cannot_hold_are_refused(weights, said):
    with pytest.raises(RangeFault, match=f"range: 'model' is weighed {said}"):
        Packing(8, 14, True, 3).encode(np.ones(2), np.array(weights))


def test_numbers_that_should_have_been_erased_are_refused():
    with pytest.raises(RangeFault, match="weight is 0"):
        Packing(8, 14, True).encode(np.array([1.0, 1.0]), np.array([True, False]))


def test_where_nobody_contributes_the_word_is_zero():
    words = Packing(8, 14, True).encode(np.array([0.0, 1.0]), np.array([False, True]))
    assert words[0] == 0
    assert words[1] != 0


@pytest.mark.parametrize(
    ("limit", "people", "heaviest"),
    [
        (0, 3, 1),
        (np.inf, 3, 1),
        (np.nan, 3, 1),
        (1, 0, 1),
        (1e19, 14, 1),
        (1, 2**20, 2**40),
    ],
)
def test_what_does_not_fit_is_a_configuration_error(limit, people, heaviest):
    with pytest.raises(ConfigError):
        Packing(limit, people, True, heaviest)


def test_words_that_count_need_weights_and_only_those():
    with pytest.raises(ConfigError, match="need weights"):
        Packing(8, 14, True).encode(np.ones(2))
    with pytest.raises(ConfigError, match="need weights"):
        Packing(8, 14).encode(np.ones(2), 1)


def test_withheld_counts_people_and_not_weights():
    packing = Packing(8, 14, True, 100)
    words = packing.encode(np.ones(3), np.array([100, 1, 1]))
    words[1:] += packing.encode(np.ones(2), np.array([1, 1]))
    words[2:] += packing.encode(np.ones(1), np.array([1]))
    kept = withheld(words, packing, 3)
    np.testing.assert_array_equal(packing.contributors(words), [1, 2, 3])
    np.testing.assert_array_equal(kept == words, [False, False, True])
    np.testing.assert_array_equal(kept[:2], 0)


def test_words_travel():
    words = np.array([0, 1, 2**64 - 1], np.uint64)
    np.testing.assert_array_equal(received(sent(words)), words)


@pytest.mark.parametrize(
    ("fits", "does_not"),
    [
        (Packing(2.0**63 - 1024, 1), (2.0**63, 1)),
        (Packing(1.0, 1, True, 2**55 - 1), (1.0, 1, True, 2**55)),
        (Packing(1e-30, 1), (9.9e-31, 1)),
        (Packing(1.0, 127, True, 2**49 // 127), (1.0, 127, True, 2**49 // 127 + 1)),
        (Packing(2.0**31 - 1, 1, bits=32), (2.0**31, 1, False, 1, "model", 32)),
    ],
)
def test_the_largest_and_the_least_that_fit(fits, does_not):
    """No bit after the point, 8 bits of a value, and the least limit are taken; no less is."""
    values = np.array([fits.limit, -fits.limit])
    words = fits.encode(values, fits.heaviest if fits.counted else None)
    np.testing.assert_allclose(fits.values(words), values, atol=fits.step / 2)
    with pytest.raises(ConfigError):
        Packing(*does_not)


def test_the_least_rooms_by_hand():
    """2^63 - 1024 leaves no bit after the point; 64 - 1 - 55 bits leave 8, of which 6 are after."""
    assert Packing(2.0**63 - 1024, 1).fraction == 0
    narrow = Packing(1.0, 1, True, 2**55 - 1)
    assert (narrow.count_bits, narrow.weight_bits, narrow.value_bits) == (1, 55, 8)
    assert narrow.fraction == 6


def test_weights_beyond_the_exact_floats_are_compared_as_integers():
    """2^54 + 1 is 2^54 in double precision, and 2^54 is the largest weight here."""
    packing = Packing(1.0, 1, True, 2**54)
    words = packing.encode(np.ones(1), np.array([2**54]))
    assert packing.weights(words).tolist() == [2**54]
    with pytest.raises(RangeFault, match="is weighed by"):
        packing.encode(np.ones(1), np.array([2**54 + 1]))
