"""Masks of two people and two seeds on two tensors of four entries, counted by hand."""

import numpy as np
import pytest

from vergence.results.mask_files import Masks
from vergence.studies.mask_anatomy import anatomy


def masks(**bits):
    packed = {
        (int(key[1]), key[2:]): np.packbits(np.array([int(b) for b in text], dtype=np.uint8))
        for key, text in bits.items()
    }
    return Masks(8, ("body.weight", "head.weight"), ((4,), (2, 2)), packed)


def test_overlap_of_people_beside_chance():
    """Of 8 entries a keeps 0, 1, 4 and b keeps 1, 2, 4: both keep 2 of 4.

    By chance: 2 * 2 / 4 + 1 * 1 / 4 = 1.25 in common of 6 - 1.25 = 4.75.
    """
    found = anatomy("x", masks(s0a="11001000", s0b="01101000"))
    assert found.people == (pytest.approx(2 / 4), pytest.approx(1.25 / 4.75))
    assert found.layers == {"body": (4, 0.5), "head": (4, 0.25)}
    assert np.isnan(found.seeds[0])


def test_overlap_of_seeds():
    """One person, two seeds without a common entry; chance 0.25 + 0.25 of 4 - 0.5."""
    found = anatomy("x", masks(s0a="10001000", s1a="01000100"))
    assert found.seeds == (0.0, pytest.approx(0.5 / 3.5))
    assert np.isnan(found.people[0])
