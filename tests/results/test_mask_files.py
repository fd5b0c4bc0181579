"""Overlap of masks by one product against a loop over all pairs, and parts of many masks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vergence.results.mask_files import Masks, common

TABLES = st.tuples(st.integers(1, 6), st.integers(1, 40)).flatmap(
    lambda shape: arrays(np.bool_, (2, *shape))
)


def masks(bits, missing=()):
    """Masks of `bits` `[seeds, people, n]`, but for the (seed, person) in `missing`."""
    packed = {
        (seed, f"p{i}"): np.packbits(row)
        for seed, rows in enumerate(bits)
        for i, row in enumerate(rows)
        if (seed, i) not in missing
    }
    return Masks(bits.shape[2], ("weight",), ((bits.shape[2],),), packed)


def loop(found):
    """The Jaccard index of every pair, counted pair by pair; mean over seeds with both."""
    table = np.zeros((len(found.people), len(found.people)))
    for i, a in enumerate(found.people):
        for j, b in enumerate(found.people):
            values = []
            for seed in found.seeds:
                if (seed, a) in found.packed and (seed, b) in found.packed:
                    one, other = found.bits(seed, a), found.bits(seed, b)
                    union = int((one | other).sum())
                    values.append(int((one & other).sum()) / union if union else 1.0)
            table[i, j] = sum(values) / max(len(values), 1)
    return table


@settings(max_examples=50)
@given(TABLES, st.sets(st.tuples(st.just(1), st.integers(0, 5)), max_size=3))
def test_overlap_has_the_values_of_a_loop_over_pairs(bits, missing):
    found = masks(bits, missing)
    np.testing.assert_array_equal(found.overlap(), loop(found))


def test_long_masks_are_counted_in_parts():
    """2^24 + 9 bits are one, a number that float32 does not have."""
    one = np.full((1, 2**21 + 2), 0xFF, dtype=np.uint8)
    one[0, -1] = 0b10000000
    assert common(one, one)[0, 0] == 2**24 + 9


@pytest.mark.parametrize(("most", "people"), [(3, ["p0", "p4", "p9"]), (10, None), (99, None)])
def test_some_people_are_spread_over_all(most, people):
    found = masks(np.ones((2, 10, 4), dtype=bool))
    some = found.some(most)
    assert some.people == (people or found.people)
    assert some.seeds == [0, 1]


def test_entries_are_counted_by_tensor():
    """Of 5 + 6 entries the person has 1 + 2; the second tensor begins within a byte."""
    bits = np.array([[[0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1]]], dtype=bool)
    found = replace(masks(bits), names=("a", "b"), shapes=((5,), (2, 3)))
    assert found.counts(0, "p0").tolist() == [1, 2]
