from dataclasses import replace

import numpy as np
import pytest
import torch

from vergence.data.eye_images.crop import HEIGHT, WIDTH, equalise
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.data.synthetic.eyes.people import LEFT, RIGHT
from vergence.data.synthetic.eyes.rendering import MM_PER_PIXEL, Eyes, render, vector
from vergence.errors import ConfigError

SMALL = EyeSynthetic(people=2, samples=60, seed=5)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def iris_centre(eyes):
    """Position of the iris centre in the patch, in pixels (x, y), `[patches, 2]`."""
    axis = vector(eyes.gaze - eyes.kappa)[:, :2] * eyes.radius[:, None]
    place = axis + np.stack([eyes.x, eyes.y], 1) + eyes.shift
    scale = (1 + eyes.zoom) * MM_PER_PIXEL
    return place / scale[:, None] + np.array([WIDTH, HEIGHT]) / 2 - 0.5


def plain_eye(count):
    """The mean person in flat light, without lashes, glint, crop error and noise."""
    data = EyeSynthetic(strength=0, nuisance=0, samples=40, eyes="left")
    eyes = data.glances(0).eyes
    same = {name: np.repeat(getattr(eyes, name)[:1], count, 0) for name in vars(eyes)}
    same["light"] = np.tile(np.array([[0, -0.3, -0.954]], np.float32), (count, 1))
    for name, value in (("glint", 0), ("lash", 0), ("iris_light", 0.13), ("gain", 0.8)):
        same[name] = np.full(count, value, np.float32)
    same["head"] = np.zeros((count, 2), np.float32)
    return Eyes(**same)


def dark_centre(patches):
    dark = patches[:, 9:28, 10:50] < 0.5 * np.median(patches[:, 9:28, 10:50], (1, 2), keepdims=True)
    y, x = np.mgrid[9:28, 10:50]
    return np.stack([(dark * x).sum((1, 2)), (dark * y).sum((1, 2))], 1) / dark.sum((1, 2))[:, None]


def gaze_of(pitch, yaw):
    return np.stack(np.broadcast_arrays(np.deg2rad(pitch), np.deg2rad(yaw)), 1).astype(np.float32)


def test_same_seed_same_bytes_and_person_independent_of_number_of_people(cache, monkeypatch):
    first = SMALL.load()
    monkeypatch.setenv("VERGENCE_CACHE", str(cache / "other"))
    more = replace(SMALL, people=4).load()
    assert more.clients == ("p00", "p01", "p02", "p03")
    for name in first.clients:
        for part in ("train", "val", "test"):
            a, b = getattr(first.people[name], part), getattr(more.people[name], part)
            assert all(torch.equal(a.columns[c], b.columns[c]) for c in a.columns)
    image = first.people["p00"].train.columns["image"]
    assert not torch.equal(image[:9], first.people["p01"].train.columns["image"][:9])


def test_columns_follow_the_gaze_angle_contract():
    splits = SMALL.load().people["p01"]
    parts = (splits.train, splits.val, splits.test)
    for part in parts:
        n = len(part)
        assert part.columns["image"].shape == (n, 1, 36, 60)
        assert part.columns["image"].dtype == torch.uint8
        assert part.columns["gaze"].shape == part.columns["pose"].shape == (n, 2)
        assert part.columns["gaze"].dtype == part.columns["pose"].dtype == torch.float32
    assert sum(map(len, parts)) == 60
    assert min(map(len, parts)) > 0


def test_small_crops_are_the_centres_of_the_patches():
    whole, crop = SMALL.load(), replace(SMALL, size="9x15").load()
    a = whole.people["p00"].test.columns["image"][:, :, 13:22, 22:37]
    assert torch.equal(a, crop.people["p00"].test.columns["image"])


def test_days_do_not_cross_the_split_and_differ_more_than_their_pictures():
    data = EyeSynthetic(people=1, samples=400, days=(6, 6), nuisance=1.0)
    made = data.person(0)
    assert np.array_equal(np.unique(made["day"]), np.arange(6))
    assert (np.diff(made["day"]) >= 0).all()
    splits = data.load().people["p00"]
    # Shares 60/20/20 of six days: 4, 1, 1.
    assert len(splits.val) == (made["day"] == 4).sum()
    assert len(splits.test) == (made["day"] == 5).sum()
    gain = data.glances(0).eyes.gain
    means = np.array([gain[made["day"] == d].mean() for d in range(6)])
    inside = np.mean([gain[made["day"] == d].std() for d in range(6)])
    assert means.std() > 0.5 * inside


def test_iris_moves_left_with_yaw_and_up_with_pitch():
    """A 12 mm eye over 28 degrees: 24 sin(14 deg) x 1.6 = 9.3 px; lids take 1.0-1.5 of the sight.

    The prototype measured 8.3 px (eyeimages note 5.2). Pitch -14..2: 5.3 px, most of it hidden.
    """
    yaw, pitch = np.linspace(-14, 14, 8), np.linspace(-14, 2, 5)
    across = replace(plain_eye(8), gaze=gaze_of(-6, yaw))
    down = replace(plain_eye(5), gaze=gaze_of(pitch, 0))
    x, y = dark_centre(render(across, None))[:, 0], dark_centre(render(down, None))[:, 1]
    assert (np.diff(x) < 0).all()
    assert (np.diff(y) < 0).all()
    assert 7.3 < x[0] - x[-1] < 9.3
    centres = iris_centre(across)[:, 0]
    assert centres[0] - centres[-1] == pytest.approx(9.3, abs=0.15)
    np.testing.assert_allclose(x, centres, atol=1.2)


def test_mirrored_render_equals_mirrored_label():
    """An eye in a mirror is the flipped picture; there its iris moves right with the same yaw."""
    eyes = replace(plain_eye(2), gaze=gaze_of(-6, [-12, 12]))
    plain, mirrored = render(eyes, None), render(eyes, None, mirrored=True)
    assert np.array_equal(mirrored, plain[:, :, ::-1])
    moves = np.diff(dark_centre(plain)[:, 0]), np.diff(dark_centre(mirrored)[:, 0])
    assert moves[0] < -5
    assert moves[1] > 5


def test_both_eyes_look_at_one_target():
    """Vergence: yaw of left minus right eye is about 63 (1/d - 1/600) for a target at d mm.

    With d in 400..700 that is -0.86..+3.0 degrees, up to 3.5 towards the lower edge of the screen,
    which is nearer in depth; mirrored right eyes carry the opposite sign.
    """
    data = EyeSynthetic(people=1, samples=400, nuisance=0, strength=0)
    found = data.glances(0)
    assert found.side[:4].tolist() == [LEFT, RIGHT, LEFT, RIGHT]
    left, right = np.rad2deg(found.gaze[0::2]), np.rad2deg(found.gaze[1::2])
    vergence = left[:, 1] + right[:, 1]
    assert vergence.min() > -1.2
    assert vergence.max() < 3.6
    assert vergence.max() - vergence.min() > 3
    # One eye is up to 16 mm of 400 nearer to the target than the other: 4 % of 20 degrees.
    np.testing.assert_allclose(left[:, 0], right[:, 0], atol=0.9)
    kappa = np.rad2deg(found.eyes.kappa)
    np.testing.assert_allclose(kappa, np.tile([-1.5, 4.5], (400, 1)), atol=1e-4)
    # The crop errors of the two eyes are independent: with nuisance they hardly correlate.
    shift = replace(data, nuisance=1.8, light=0.0).glances(0).eyes.shift[:, 0]
    assert abs(np.corrcoef(shift[0::2], shift[1::2])[0, 1]) < 0.2


def test_equalised_patches_have_the_mean_of_real_ones():
    """A flat histogram has mean 127.5, ties raise it: 127-129 in eyeimages design note, 5.3.

    Measured 129.1 here, 129.0 by the prototype and 129.1 on the real participant p00, so the upper
    end is 129.5. Each patch uses the darkest and the brightest level.
    """
    images = np.concatenate([SMALL.person(i)["image"] for i in range(2)])
    assert 127 < images.mean() < 129.5
    assert (images.min((1, 2)) == 0).all()
    assert (images.max((1, 2)) == 255).all()


def test_equalise_by_hand():
    """Levels 10, 10, 20, 30 of 4 pixels: counts below 2, 3, 4, so 0, 0, 127.5 -> 128, 255."""
    patch = np.array([[[10, 10], [20, 30]], [[7, 7], [7, 7]]], np.uint8)
    assert equalise(patch).tolist() == [[[0, 0], [128, 255]], [[0, 0], [0, 0]]]


def test_labels_cover_the_screen():
    """Pitch U(-17, 0), yaw U(-15, 15), scattered: SD 5.1 and 8.8 degrees, mean -8.5 and 0.3."""
    data = EyeSynthetic(samples=600, people=8)
    gaze = np.rad2deg(np.concatenate([data.glances(i).gaze for i in range(8)]))
    np.testing.assert_allclose(gaze.mean(0), [-8.5, 0.3], atol=0.4)
    np.testing.assert_allclose(gaze.std(0), [5.2, 8.9], atol=0.25)


def test_strength_zero_is_iid():
    """Nobody has traits, days or amounts of their own; at strength 1 everybody has."""
    iid = EyeSynthetic(
        people=3, samples=200, strength=0, quantity=1.0, label_range=1.0, glasses=1.0, light=1.0
    )
    found = [iid.glances(i) for i in range(3)]
    for name in ("radius", "iris_light", "skin", "glasses", "kappa", "freckles"):
        assert len(np.unique(np.concatenate([getattr(f.eyes, name) for f in found]))) <= 2
    assert {iid.count(i) for i in range(3)} == {200}
    assert all(f.gaze.std(0)[1] > np.deg2rad(8) for f in found)
    day_means = [
        np.std([f.eyes.gain[f.day == d].mean() for d in range(f.day.max() + 1)]) for f in found
    ]
    assert max(day_means) < 0.09  # gain SD 0.2 over about 20 pictures a day
    own = replace(iid, strength=1.0)
    assert len({own.count(i) for i in range(3)}) == 3
    assert own.glances(0).eyes.glasses.all()
    assert len(np.unique([own.glances(i).eyes.radius[0] for i in range(3)])) == 3


def test_label_range_narrows_each_person_to_a_part_of_the_screen():
    """At 1 the width is 30 % of the screen: yaw SD from 8.8 to about 3.2 degrees."""
    narrow = EyeSynthetic(people=6, samples=200, label_range=1.0, eyes="left")
    yaw = [np.rad2deg(narrow.glances(i).gaze[:, 1]) for i in range(6)]
    assert max(y.std() for y in yaw) < 4.5
    assert np.std([y.mean() for y in yaw]) > 2


BEFORE = {
    "default": ({}, -171.2542506823),
    "weak": (
        {"strength": 0.5, "label_range": 0.7, "quantity": 1.0, "glasses": 0.5},
        -48.4685617047,
    ),
    "strong": ({"strength": 2.0, "eyes": "left", "light": 1.0}, -273.5027506065),
}


def condensed(data):
    """One number that hangs on every value of every glance, and on their order."""
    total = 0.0
    for i in range(data.people):
        found = data.glances(i)
        for values in (found.gaze, found.pose, *vars(found.eyes).values()):
            flat = values.astype(float).ravel()
            total += float(flat @ np.cos(np.arange(flat.size) + i))
    return total


@pytest.mark.parametrize("case", BEFORE)
def test_switches_at_their_defaults_change_nothing(case):
    """Numbers taken before there were the switches appearance, crop, kappa and device."""
    options, before = BEFORE[case]
    data = EyeSynthetic(people=3, samples=60, seed=5, **options)
    assert condensed(data) == pytest.approx(before, rel=1e-6)


TRAITS = {
    "appearance": {"radius", "skin", "freckles", "half_width"},
    "crop": {"x", "y"},
    "kappa": {"kappa"},
}


@pytest.mark.parametrize("switch", TRAITS)
def test_a_switch_is_the_only_source_of_its_differences(switch):
    """Off: everybody has the mean; on: exactly the traits that are there with everything on."""
    alone = {name: float(name == switch) for name in TRAITS}
    data = EyeSynthetic(people=3, samples=40, nuisance=0, **alone)
    whole = replace(data, **dict.fromkeys(TRAITS, 1.0))
    for name in set().union(*TRAITS.values()):
        values = [getattr(data.glances(i).eyes, name)[0] + 0.0 for i in range(3)]
        own = name in TRAITS[switch]
        assert (len({v.tobytes() for v in values}) == 3) == own, name
        if own:
            full = [getattr(whole.glances(i).eyes, name)[0] for i in range(3)]
            assert all(np.array_equal(a, b) for a, b in zip(values, full, strict=True))


def test_a_device_gives_each_person_light_and_blur_of_their_own():
    """Half of the variance of the scores is the person's: means differ, the whole does not.

    Gain U(0.45, 1.15): mean 0.8, SD 0.202. Blur U(0, 1.1) of nuisance 1: mean 0.55, SD 0.318.
    """
    data = EyeSynthetic(people=60, samples=60, device=0.5, light=0.0, nuisance=1, seed=1)
    eyes = [data.glances(i).eyes for i in range(60)]
    without = replace(data, device=0.0).glances(0).eyes
    for name, mean, sd in (("gain", 0.8, 0.202), ("blur", 0.55, 0.318)):
        each = np.stack([getattr(e, name) for e in eyes])
        # 60 people: the mean's standard error is 0.7 x 0.318 / 8.
        assert each.mean() == pytest.approx(mean, abs=0.25 * sd)
        assert each.std() == pytest.approx(sd, rel=0.1)
        assert each.mean(1).std() > 0.5 * sd
        assert each.std(1).mean() < 0.85 * sd
    np.testing.assert_array_equal(eyes[0].gaze, without.gaze)
    np.testing.assert_array_equal(eyes[0].shift, without.shift)


def test_counts_are_taken_as_given():
    data = EyeSynthetic(people=2, counts=(40, 61))
    assert [data.count(i) for i in range(2)] == [40, 60]
    assert replace(data, eyes="left").count(1) == 61


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"eyes": "right"}, ("eyes", "right", "both, left")),
        ({"size": "36x61"}, ("size", "36x61", "36x60, 9x15")),
        ({"samples": 10}, ("samples", "10", ">= 40")),
        ({"nuisance": -1.0}, ("nuisance", "-1", ">= 0")),
        ({"strength": 3.0}, ("strength", "3", "<= 2")),
        ({"days": (9, 4)}, ("days", "(9, 4)", "fewest <= most")),
        ({"counts": (50,)}, ("counts", "10 people", "got 1")),
        ({"people": 1, "counts": (5,)}, ("counts", ">= 40", "(5,)")),
        ({"glasses": 1.5}, ("glasses", "1.5", "<= 1")),
        ({"appearance": -1.0}, ("appearance", "-1", ">= 0")),
        ({"kappa": 5.0}, ("kappa", "5", "<= 4")),
        ({"device": 1.1}, ("device", "1.1", "<= 1")),
    ],
)
def test_bad_options_say_what_is_allowed(options, parts):
    with pytest.raises(ConfigError) as caught:
        EyeSynthetic(**options)
    for part in parts:
        assert part in str(caught.value)
