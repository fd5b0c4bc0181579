"""Numbers of the generated people, glances and pictures of eyes, as they were stored.

Published tables and everybody's cached data were made with these constants.
"""

from dataclasses import replace

import numpy as np
import pytest

from tests.data.synthetic.stored_sums import PICTURE, assert_stored
from vergence.data.synthetic.eyes import rendering
from vergence.data.synthetic.eyes.eye_glances import EyeGlances
from vergence.data.synthetic.eyes.eye_synthetic import CROPS, EyeSynthetic
from vergence.data.synthetic.eyes.people import glances, identity
from vergence.data.synthetic.eyes.rendering import Eyes, render, vector
from vergence.errors import ConfigError

DATA = EyeSynthetic(people=2, samples=40, days=(3, 4), seed=3)
VARIANTS = {
    "plain": {},
    "alike": {"strength": 0.0},
    "strong": {"strength": 2.0, "label_range": 0.5, "glasses": 0.5, "appearance": 2.0},
    "devices": {"strength": 0.8, "device": 0.4, "light": 0.2, "nuisance": 1.0, "crop": 2.0},
    "calm": {"nuisance": 0.0, "kappa": 3.0, "light": 1.0, "device": 1.0},
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", VARIANTS)
def test_people_of_a_variant_stay(name):
    variety = replace(DATA, **VARIANTS[name])._variety()
    people = [identity(4, i, variety, (3, 9)) for i in range(30)]
    assert {who.days for who in people} <= set(range(3, 10))
    assert_stored(f"people, {name}", people)
    shares = [variety.day_share, variety.device_share]
    factor = min(variety.strength, 1.0)
    assert shares == pytest.approx([variety.light * factor, variety.device * factor])


@pytest.mark.parametrize("name", VARIANTS)
def test_glances_of_a_variant_stay(name):
    variety = replace(DATA, **VARIANTS[name])._variety()
    who = identity(4, 2, variety, (3, 9))
    for sides in ((0, 1), (0,), (1,)):
        batch, rng = glances(who, 4, 2, variety, 30, sides)
        assert_stored(f"glances, {name}, {sides}", [batch, rng.random(3)])


def eyes_of(name):
    variety = replace(DATA, **VARIANTS[name])._variety()
    return glances(identity(4, 5, variety, (3, 9)), 4, 5, variety, 17, (0, 1))[0].eyes


@pytest.mark.parametrize("name", VARIANTS)
def test_pictures_of_a_variant_stay(name):
    """34 patches are drawn in two goes, of 32 and of 2."""
    eyes = eyes_of(name)
    seen = render(eyes, np.random.default_rng(1))
    assert seen.mean((1, 2)).min() > 5
    assert_stored(f"pictures, {name}", seen, PICTURE)


def test_pictures_without_noise_and_mirrored_ones_stay():
    eyes = eyes_of("strong").rows(slice(0, 6))
    worn = Eyes(**{**vars(eyes), "glasses": np.array([1, 0, 1, 1, 0, 1], np.float32)})
    assert_stored("still pictures", render(worn, None), PICTURE)
    assert_stored("mirrored pictures", render(worn, None, mirrored=True), PICTURE)


def test_light_at_each_pixel_stays():
    eyes = eyes_of("plain").rows(slice(0, 4))
    for mirrored in (False, True):
        light = rendering._picture(eyes, mirrored)
        assert_stored(f"light, mirrored {mirrored}", light, 1e-5)


def test_vectors_of_angles_are_unit_vectors_towards_the_camera():
    """Straight ahead is -z; pitch up is -y, and yaw to the left is -x."""
    found = vector(np.deg2rad([[0, 0], [90, 0], [0, 90], [30, 0]]))
    wanted = [[0, 0, -1], [0, -1, 0], [-1, 0, 0], [0, -0.5, -(0.75**0.5)]]
    np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_whatever_is_loaded_stays():
    for size in CROPS:
        people = replace(DATA, size=size).load().people
        parts = [part.columns for s in people.values() for part in (s.train, s.val, s.test)]
        assert_stored(f"loaded eyes, {size}", parts, PICTURE)
    people = EyeGlances(people=1, samples=40, days=(3, 3), seed=3).load().people
    assert_stored("loaded glances", people["p00"].train.columns, PICTURE)


def test_amounts_of_patches_follow_the_options():
    """Even numbers where both eyes are seen; 40 at least, and 35,000 at most."""
    wide = EyeSynthetic(people=40, samples=300, quantity=3.0)
    amounts = [wide.count(i) for i in range(40)]
    assert all(amount % 2 == 0 for amount in amounts)
    assert min(amounts) == 40
    assert_stored("amounts of patches", amounts)
    assert [EyeSynthetic(people=2, counts=(41, 45)).count(i) for i in (0, 1)] == [40, 44]
    left = EyeSynthetic(people=2, counts=(41, 45), eyes="left")
    assert [left.count(i) for i in (0, 1)] == [41, 45]
    most = EyeSynthetic(samples=35_000, quantity=3.0)
    assert max(most.count(i) for i in range(20)) == 35_000


def test_limits_of_the_options():
    EyeSynthetic(samples=40, days=(3, 20))
    EyeSynthetic(days=(20, 20))
    for days in ((2, 5), (5, 4), (3, 21), (3, 4, 5)):
        with pytest.raises(ConfigError, match="days must be"):
            EyeSynthetic(days=days)
    with pytest.raises(ConfigError, match="samples"):
        EyeSynthetic(samples=39)
    with pytest.raises(ConfigError, match="one number for each of the 3 people; got 2"):
        EyeSynthetic(people=3, counts=(40, 40))
