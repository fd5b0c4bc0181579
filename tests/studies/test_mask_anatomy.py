"""Masks of two people and two seeds on two tensors of four entries, counted by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from vergence.results.mask_files import Masks
from vergence.studies import mask_anatomy
from vergence.studies.mask_anatomy import anatomy, shared_entries


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


def test_overlap_of_many_people_is_that_of_some(monkeypatch):
    """Of five people a, c and e have the same mask; nobody shares an entry with b or d."""
    monkeypatch.setattr(mask_anatomy, "PAIRED", 3)
    alike = dict.fromkeys(("s0a", "s0c", "s0e"), "11001000")
    found = anatomy("x", masks(**dict(sorted({**alike, "s0b": "0" * 8, "s0d": "0" * 8}.items()))))
    assert found.people[0] == 1


def test_overlap_of_seeds():
    """One person, two seeds without a common entry; chance 0.25 + 0.25 of 4 - 0.5."""
    found = anatomy("x", masks(s0a="10001000", s1a="01000100"))
    assert found.seeds == (0.0, pytest.approx(0.5 / 3.5))
    assert np.isnan(found.people[0])


def test_masks_of_two_methods_are_compared_person_by_person():
    """Person a has 1 of 3 entries in common, b has 2 of 2: their mean is 2/3. One has none."""
    runs = [
        SimpleNamespace(title=title, masks=found)
        for title, found in (
            ("Alone", None),
            ("One", masks(s0a="11000000", s0b="00110000")),
            ("Two", masks(s0a="01100000", s0b="00110000")),
        )
    ]
    (said,) = shared_entries(SimpleNamespace(runs=runs))
    assert said.endswith("One and Two 0.67.")
    assert shared_entries(SimpleNamespace(runs=runs[:2])) == []
