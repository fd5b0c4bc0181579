"""The audit's second table on toys: people who are easily told apart, and one who is not."""

import pytest
import torch

from vergence.audit.identity import people_table
from vergence.core.data import Samples, Splits


def person(light, gaze, seed, count=48):
    """Pictures of one brightness; gaze around a point, which the first pixel tells exactly."""
    rng = torch.Generator().manual_seed(seed)
    image = torch.full((count, 1, 9, 15), light) + 0.02 * torch.randn(
        count, 1, 9, 15, generator=rng
    )
    labels = torch.tensor(gaze) + 0.05 * torch.randn(count, 2, generator=rng)
    image[:, 0, 0, :2] = labels
    return Samples({"image": image, "gaze": labels})


def people(lights, gazes):
    return {
        f"p{i:02d}": Splits(
            person(light, gaze, i), person(light, gaze, 10 + i), person(light, gaze, 20 + i)
        )
        for i, (light, gaze) in enumerate(zip(lights, gazes, strict=True))
    }


APART = people((0.1, 0.5, 0.9), ((-0.3, 0.0), (0.0, 0.3), (0.3, -0.3)))
ALIKE = people((0.5, 0.5, 0.5), ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)))


def values(who, sent, columns=15):
    block = people_table(who, lambda samples: samples.columns["image"][..., :columns], sent)
    return {line["finds"]: line["value"] for line in block.records}


def test_people_of_other_light_and_gaze_are_named_and_equal_ones_are_not():
    found = values(APART, sent=True)
    assert found["who: from a frame"] == 1
    assert found["who: from 32 frames"] == 1
    assert found["who: from gaze labels alone, which are sent"] == 1
    assert values(ALIKE, sent=True)["who: from a frame"] == pytest.approx(1 / 3, abs=0.15)


def test_gaze_that_is_not_sent_is_read_from_smashed_data():
    """The first pixels tell gaze. The mean is off by .05 sqrt(pi / 2) radians, 3.6 degrees."""
    found = values(ALIKE, sent=False, columns=2)
    assert "who: from gaze labels alone, which are sent" not in found
    assert found["where: gaze, which is not sent"] < 2
