"""Glances: both eyes of a moment in one row, not mirrored."""

import numpy as np
import pytest
import torch

from vergence.data.synthetic.eyes.eye_glances import EyeGlances
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.errors import ConfigError

FEW = {"people": 2, "samples": 120, "days": (3, 3), "nuisance": 0.3}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERGENCE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def test_a_row_is_two_patches_of_the_generator_the_right_one_flipped():
    glance = EyeGlances(**FEW).load().people["p01"].train.columns
    patch = EyeSynthetic(**FEW).load().people["p01"].train.columns
    assert glance["eyes"].shape == (len(patch["image"]) // 2, 2, 1, 36, 60)
    assert patch["side"].tolist() == [0, 1] * len(glance["eyes"])
    assert torch.equal(glance["eyes"][:, 0], patch["image"][::2])
    assert torch.equal(glance["eyes"][:, 1], patch["image"][1::2].flip(-1))
    for angles in ("gaze", "pose"):
        assert torch.equal(glance[angles][:, 0], patch[angles][::2])
        assert torch.equal(glance[angles][:, 1, 0], patch[angles][1::2, 0])
        assert torch.equal(glance[angles][:, 1, 1], -patch[angles][1::2, 1])
    assert torch.equal(glance["day"], patch["day"][::2])


def test_both_eyes_of_a_glance_look_into_the_same_direction_of_the_picture():
    """Fault 5: yaws of the two eyes rise together, and so do the places of their dark irises.

    Mirrored right eyes give correlations near -1 in both.
    """
    calm = {**FEW, "nuisance": 0.0, "strength": 0.0}
    rows = EyeGlances(**calm).load().people["p00"].train.columns
    yaw = rows["gaze"][..., 1].double().numpy()
    assert np.corrcoef(yaw[:, 0], yaw[:, 1])[0, 1] > 0.9
    window = rows["eyes"][:, :, 0, 14:22, 12:48].double()
    dark = torch.exp(-window / 40)
    place = (dark * torch.arange(36.0)).sum((2, 3)) / dark.sum((2, 3))
    assert np.corrcoef(place[:, 0], place[:, 1])[0, 1] > 0.5
    # Positive yaw looks to the image left.
    assert np.corrcoef(place[:, 1], yaw[:, 1])[0, 1] < -0.5


def test_left_eyes_alone_are_no_glances():
    with pytest.raises(ConfigError, match="a glance has both eyes"):
        EyeGlances(eyes="left")
