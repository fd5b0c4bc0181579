"""The task of gaze zones: degrees by hand, and what looks at nothing."""

import math

import pytest
import torch

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.models.mlp import Mlp
from vergence.tasks.gaze_zones import GazeZonesTask

TASK = GazeZonesTask(Mlp(135, (8,), 9))
MIDDLE, RIGHT = 4, 5
"""(-8.5, 0) and (-8.5, 10) degrees; the first is unseen."""


def looks(*zones_and_gaze):
    zones, gaze = zip(*zones_and_gaze, strict=True)
    return Samples(
        {
            "x": torch.zeros(len(zones), 135),
            "y": torch.tensor(zones),
            "gaze": torch.deg2rad(torch.tensor(gaze)),
        }
    )


def test_errors_by_hand():
    """Straight to the middle; right 3 degrees below its middle; 10 of yaw at a pitch of -8.5."""
    some = looks((MIDDLE, (-8.5, 0.0)), (RIGHT, (-11.5, 10.0)), (MIDDLE, (-8.5, 0.0)))
    said = torch.eye(9)[[MIDDLE, RIGHT, RIGHT]]
    found = TASK.metrics(said, some)
    pitch, yaw = math.radians(8.5), math.radians(10)
    turned = math.acos(math.cos(pitch) ** 2 * math.cos(yaw) + math.sin(pitch) ** 2)
    assert found["unseen_error_deg"] == pytest.approx(math.degrees(turned) / 2, abs=1e-3)
    assert found["seen_error_deg"] == pytest.approx(3, abs=1e-3)
    assert (found["u"], found["s"], found["T1"]) == (0.5, 1, 0.5)
    assert "unseen_error_deg" not in TASK.metrics(said[1:2], looks((RIGHT, (-8.5, 10.0))))


def test_chance_is_the_mean_over_all_answers():
    some = looks((MIDDLE, (-8.5, 0.0)), (RIGHT, (-11.5, 10.0)))
    each = [TASK.metrics(torch.eye(9)[[zone, zone]], some) for zone in range(9)]
    chance = TASK.priors(Federation("made", {"owner": Splits(some, some, some)}))["chance"]["owner"]
    for name in ("unseen_error_deg", "seen_error_deg"):
        assert chance[name] == pytest.approx(sum(one[name] for one in each) / 9, abs=1e-4)
    assert chance["T1"] == pytest.approx(1 / 3)
