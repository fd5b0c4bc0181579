"""Gaze zones: where they lie, who looked into which, and that where one lies tells of it."""

import pytest
import torch

from vergence.data.eye_images.gaze_zones import NAMES, PLACES, UNSEEN, GazeZones, zones
from vergence.data.owner import OWNER
from vergence.data.zero_shot.semantics import meanings
from vergence.errors import ConfigError, DataError
from vergence.metrics.zero_shot import eszsl
from vergence.models.mlp import Mlp
from vergence.models.small_eye import SmallEye
from vergence.tasks.gaze_angle import GazeAngle
from vergence.tasks.gaze_zones import GazeZonesTask as Task

SMALL = {"people": 2, "samples": 60}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERGENCE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def test_every_middle_lies_in_its_zone_and_far_away_is_an_outer_one():
    assert zones(torch.deg2rad(torch.tensor(PLACES))).tolist() == list(range(9))
    assert zones(torch.deg2rad(torch.tensor([[-40.0, -40.0], [40.0, 0.0]]))).tolist() == [0, 7]
    assert NAMES[5] == "pitch -8.5 yaw 10.0"


def test_directions_by_hand():
    """Sines of pitch and yaw at 80 and 40 degrees a wave, then cosines; four waves, length 2."""
    names = ("pitch 0 yaw 0", "pitch 20.0 yaw -10.0")
    vectors = meanings(names, "directions").vectors
    found = vectors * 2
    half = 0.5**0.5
    assert torch.allclose(found[0], torch.tensor([0.0, 0, 0, 0, 1, 1, 1, 1]))
    wanted = torch.tensor([1, -half, 0, -1, 0, half, -1, 0])
    assert torch.allclose(found[1], wanted, atol=1e-6)
    assert meanings(names[1:], "directions").vectors.equal(vectors[1:])
    assert meanings(GazeAngle(SmallEye()).class_names(), "directions").vectors.shape == (16, 8)
    with pytest.raises(DataError, match=r"'pitch -8\.5 yaw 10\.0'; got 'cat'"):
        meanings(("cat",), "directions")


def test_nobody_at_the_owner_looked_into_unseen_zones_and_tests_are_later():
    quasi, knows = (GazeZones(teacher, **SMALL).load() for teacher in ("quasi", "omniscient"))
    owner = quasi.people[OWNER]
    for part in (owner.train, owner.val):
        assert not set(part.columns["y"].tolist()) & set(UNSEEN)
    assert set(knows.people[OWNER].train.columns["y"].tolist()) == set(range(9))
    assert owner.test.columns["x"].equal(knows.people[OWNER].test.columns["x"])
    x = owner.test.columns["x"]
    assert x.shape[1] == 135
    assert 0 <= float(x.min()) < float(x.max()) <= 1
    assert zones(owner.test.columns["gaze"]).equal(owner.test.columns["y"])
    Task(Mlp(135, (8,), 9)).check(quasi)
    with pytest.raises(DataError, match="gaze_zones: unseen of"):
        Task(Mlp(135, (8,), 9), unseen=(1,)).check(quasi)


@pytest.mark.parametrize("unseen", [(), tuple(range(9)), (9,), (1, 1)])
def test_what_cannot_be_unseen(unseen):
    with pytest.raises(ConfigError, match="some of the zones 0 to 8"):
        GazeZones(unseen=unseen)


@pytest.mark.slow
def test_where_zones_lie_tells_unseen_ones_apart():
    """ESZSL, learned from seen zones alone; chance is 1/3 for T1. Bounds fixed in advance."""
    owner = GazeZones("quasi").load().people[OWNER]
    task, found = Task(Mlp(135, (8,), 9)), {}
    x, test = (
        part.columns["x"] / part.columns["x"].norm(dim=1, keepdim=True)
        for part in (owner.train, owner.test)
    )
    for source in ("directions", "random"):
        meaning = meanings(NAMES, source).vectors
        told = eszsl(x, owner.train.columns["y"], meaning, lamda=0.1)
        found[source] = task.metrics(test @ told @ meaning.T, owner.test)
    assert found["directions"]["T1"] > 0.55 > found["random"]["T1"]
    assert found["directions"]["unseen_error_deg"] < found["random"]["unseen_error_deg"] - 2
