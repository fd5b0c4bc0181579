"""Skew measures: against SciPy, by hand, and every generator switch against every measure."""

import numpy as np
import pytest
import torch
from scipy.stats import energy_distance

from tests.conftest import research_data
from vergence.core.data import Samples, SharedRows
from vergence.data.eye_images.mpiigaze_crops import MpiigazeCrops
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.errors import DataError
from vergence.metrics.sample_features import compact
from vergence.metrics.skew import MEASURES, Skew, energy_coefficients, intraclass, measure_skew
from vergence.studies.skew import skew_of

IID = {
    "people": 8,
    "samples": 160,
    "eyes": "left",
    "appearance": 0.0,
    "crop": 0.0,
    "kappa": 0.0,
    "light": 0.0,
    "seed": 1,
}
SWITCHES = {
    "covariate": {"appearance": 1.0},
    "label": {"label_range": 1.0},
    "x_given_y": {"crop": 1.0},
    "y_given_x": {"kappa": 2.0},
    "dependence": {"light": 0.7},
    "quantity": {"quantity": 1.0},
}


@pytest.fixture(scope="module")
def skews(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERGENCE_CACHE", str(tmp_path_factory.mktemp("cache")))
        made = {"none": {}, **SWITCHES}
        return {n: skew_of(EyeSynthetic(**{**IID, **o}).load()) for n, o in made.items()}


@pytest.mark.slow
def test_without_skew_every_share_is_within_chance(skews):
    """48 comparisons at 99 %: 0.5 of them beyond chance are expected, 4 or more have p = 0.002."""
    found = skews["none"]
    assert found.is_beyond_chance.sum() <= 3
    assert np.abs(found.share.mean(0)).max() < 0.01
    assert found.gini == 0


@pytest.mark.slow
@pytest.mark.parametrize("switch", SWITCHES)
def test_each_switch_raises_its_own_measure_most(skews, switch):
    own = MEASURES.index(switch)
    found, without = skews[switch], skews["none"]
    raised = found.share.mean(0) - without.share.mean(0)
    assert found.is_beyond_chance[:, own].mean() >= 0.6
    assert raised.argmax() == own, dict(zip(MEASURES, raised.round(3), strict=True))
    named = [found.dominating(i) for i in range(8)]
    assert named.count(switch) >= 5


@pytest.mark.slow
def test_kappa_is_seen_in_degrees_and_leaves_inputs_alone(skews):
    """SD of kappa 2.4 and 3.2, of the frame 2 and 2: offsets of 4.4 degrees on average at most."""
    found = skews["y_given_x"]
    assert found.units[MEASURES.index("y_given_x")] == "degrees"
    assert 1.5 < found.value[:, MEASURES.index("y_given_x")].mean() < 4.4
    assert found.share[:, MEASURES.index("covariate")].mean() < 0.01


def test_energy_coefficient_equals_scipy():
    """SciPy: the square root of 2 E|X-Y| - E|X-X'| - E|Y-Y'|, with X = X' among the pairs."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=40), rng.normal(1, 2, size=60)
    both = np.concatenate([x, y])
    gaps = np.abs(both[:, None] - both)
    found = energy_coefficients(gaps, np.ones(100), np.repeat([0, 1], [40, 60]))
    across = np.abs(x[:, None] - y).mean()
    within = np.abs(x[:, None] - x).mean() * 40 / 39 + np.abs(y[:, None] - y).mean() * 60 / 59
    assert found[0] == pytest.approx((2 * across - within) / (2 * across))
    assert found[1] == pytest.approx(found[0])
    biased = energy_distance(x, y) ** 2
    plain = np.abs(x[:, None] - x).mean() + np.abs(y[:, None] - y).mean()
    assert biased == pytest.approx(2 * across - plain)


def test_energy_coefficient_by_hand():
    """X = 0, 0 and Y = 2, 2: nothing inside, all across, so 1; X = Y = 0, 2: -1, U-statistics.

    In the second case across is 1 on average and inside 2: (2 - 2 - 2) / 2.
    """
    apart, same = np.array([0, 0, 2, 2.0]), np.array([0, 2, 0, 2.0])
    owner = np.array([0, 0, 1, 1])
    for values, expected in ((apart, 1.0), (same, -1.0)):
        gaps = np.abs(values[:, None] - values)
        assert energy_coefficients(gaps, np.ones(4), owner).tolist() == [expected] * 2


def test_intraclass_by_hand():
    """Runs (0, 2), (4, 6): MSB = 16, MSW = 2, so (16 - 2) / 2 = 7 of 7 + 2 lies between runs."""
    assert intraclass(np.array([[0], [2], [4], [6.0]]), np.array([2, 2])) == pytest.approx(7 / 9)


def test_quantity_and_gini_by_hand():
    """Of 100 and 300: ratios 0.5 and 1.5, shares 1/3 and 1/5, Gini (2 x 200 / 4) / (2 x 200)."""
    rng = np.random.default_rng(0)
    own = Samples({"x": torch.randn(40, 2), "y": torch.from_numpy(rng.normal(size=40))})
    found = measure_skew({"a": compact(own, 40), "b": compact(own, 40)}, [100, 300], draws=20)
    last = MEASURES.index("quantity")
    np.testing.assert_allclose(found.value[:, last], [0.5, 1.5])
    np.testing.assert_allclose(found.share[:, last], [1 / 3, 1 / 5])
    assert found.gini == pytest.approx(0.25)


def test_dominating_is_the_largest_share_beyond_chance():
    share = np.array([[0.3, 0.2, 0, 0, 0, 0], [0.01] * 6])
    chance = np.full((2, 6), 0.05)
    chance[0, 0] = 0.4
    found = Skew(("a", "b"), np.array([9, 9]), ("",) * 6, share, share, chance)
    assert [found.dominating(i) for i in range(2)] == ["label", None]


def test_sessions_do_not_pass_for_differences_between_people():
    """Runs are permuted whole: with 20 sessions of 10 samples each, chance already differs much.

    Between-session variance 4, within 1: an independent permutation would call 6 people different.
    """
    rng = np.random.default_rng(3)
    people = {}
    for i in range(6):
        x = np.repeat(2 * rng.normal(size=(20, 3)), 10, 0) + rng.normal(size=(200, 3))
        y = rng.normal(size=200)
        people[f"p{i}"] = compact(
            Samples({"x": torch.from_numpy(x), "y": torch.from_numpy(y)}), 200
        )
    found = measure_skew(people, [200] * 6)
    assert found.is_beyond_chance[:, MEASURES.index("covariate")].sum() <= 1
    dependence = MEASURES.index("dependence")
    assert found.is_beyond_chance[:, dependence].all()
    # Three of four columns have intraclass correlation 0.8, y has none: about 200 / (1 + 9 x 0.6).
    assert 24 < found.value[:, dependence].mean() < 40


def test_compact_takes_frames_points_classes_and_degrees():
    points = torch.tensor([[[[0.2, 0.4], [0.4, 0.8]]], [[[float("nan")] * 2] * 2]])
    frames = torch.zeros(3, 24, 40, 3, dtype=torch.uint8)
    frames[2] = 255
    video = Samples(
        {"frame_ids": torch.tensor([[2], [0]]), "points": points},
        {"frames": SharedRows(frames, "frame_ids")},
    )
    found = compact(video, 10)
    np.testing.assert_allclose(found.labels, [[0.3, 0.6]], atol=1e-6)
    assert found.pictures.shape == (1, 12, 20)
    assert found.pictures.min() == 1.0
    image = torch.zeros(2, 1, 9, 15, dtype=torch.uint8)
    classes = compact(Samples({"image": image, "label": torch.tensor([1, 0])}), 10, classes=3)
    assert classes.labels.tolist() == [[0, 1, 0], [1, 0, 0]]
    gaze = Samples({"image": image, "gaze": torch.full((2, 2), torch.pi / 4)})
    np.testing.assert_allclose(compact(gaze, 10).labels, 45, atol=1e-4)


def test_bad_data_say_what_is_needed():
    x, y = torch.randn(9, 2), torch.randn(9)
    with pytest.raises(DataError, match="label column"):
        compact(Samples({"x": x}), 9)
    with pytest.raises(DataError, match="pictures"):
        compact(Samples({"y": y}), 9)
    own = compact(Samples({"x": x, "y": y}), 9)
    with pytest.raises(DataError, match="at least 2"):
        measure_skew({"a": own}, [9])
    few = compact(Samples({"x": x[:5], "y": y[:5]}), 9)
    with pytest.raises(DataError, match="'b' has 5"):
        measure_skew({"a": own, "b": few}, [9, 5])


@pytest.mark.slow
@pytest.mark.data
def test_real_people_differ_in_looks_and_not_in_amount():
    """MPIIGaze, evaluation subset: 3,000 patches of everybody, labels much alike (11 people)."""
    found = skew_of(MpiigazeCrops().load(str(research_data("eyes/mpiigaze_9x15"))))
    share = dict(zip(MEASURES, found.share.T, strict=True))
    assert found.is_beyond_chance[:, MEASURES.index("covariate")].all()
    assert share["covariate"].mean() > 4 * share["label"].mean()
    assert not share["quantity"].any()
    assert found.gini == 0
