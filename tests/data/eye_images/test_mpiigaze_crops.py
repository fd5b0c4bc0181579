"""Crops of MPIIGaze in one file a person: split within person and eye, bad input, the real ones."""

import numpy as np
import pytest
import torch

from tests.conftest import research_data
from tests.data.eye_images.test_mpiigaze import pictures, shorten
from vergence.data.eye_images import mpiigaze_crops
from vergence.data.eye_images.mpiigaze import Mpiigaze
from vergence.data.eye_images.mpiigaze_crops import MpiigazeCrops
from vergence.errors import ConfigError, DataError


def write_crops(folder, people=2, **changes):
    rng = np.random.default_rng(0)
    columns = {
        "image": rng.integers(0, 256, (people, 40, 9, 15), np.uint8),
        "gaze": rng.normal(0, 0.1, (people, 40, 2)).astype(np.float32),
        "pose": rng.normal(0, 0.1, (people, 40, 2)).astype(np.float32),
        "person": np.array([f"p{i:02d}" for i in range(people)]),
        **changes,
    }
    np.savez(folder / "mpiigaze_9x15.npz", **{k: v for k, v in columns.items() if v is not None})
    return columns


def test_crops_are_split_within_each_person_and_eye(tmp_path):
    columns = write_crops(tmp_path)
    federation = MpiigazeCrops(people=2).load(str(tmp_path))
    for number, (person, splits) in enumerate(federation.people.items()):
        assert person == f"p{number:02d}"
        parts = (splits.train, splits.val, splits.test)
        assert [len(p) for p in parts] == [28, 4, 8]
        assert splits.train.columns["image"].shape == (28, 1, 9, 15)
        left = {picture.tobytes() for picture in columns["image"][number, :20]}
        assert [len(pictures(p) & left) for p in parts] == [14, 2, 4]
        place = {row.tobytes(): i for i, row in enumerate(columns["image"][number])}
        for part in parts:
            rows = [place[picture.tobytes()] for picture in part.columns["image"].numpy()]
            np.testing.assert_array_equal(part.columns["gaze"], columns["gaze"][number, rows])
            np.testing.assert_array_equal(part.columns["pose"], columns["pose"][number, rows])
            np.testing.assert_array_equal(part.columns["side"], np.array(rows) >= 20)


def test_everybody_in_the_file_is_loaded_unless_fewer_are_asked_for(tmp_path):
    write_crops(tmp_path, people=15)
    everybody = [f"p{i:02d}" for i in range(15)]
    assert list(MpiigazeCrops().load(str(tmp_path)).people) == everybody
    assert list(MpiigazeCrops(people=11).load(str(tmp_path)).people) == everybody[:11]
    assert mpiigaze_crops.check(tmp_path)[0].ok


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"person": None}, "another version, it lacks person"),
        ({"image": np.zeros((2, 40, 36, 60), np.uint8)}, "another version, image is uint8"),
        ({"pose": np.zeros((2, 39, 2))}, "another version, pose is"),
        ({"gaze": np.full((2, 40, 2), np.inf)}, "gaze of p00 is NaN or infinite in 40 of 40"),
    ],
)
def test_bad_crops_give_one_clear_line(tmp_path, changes, says):
    write_crops(tmp_path, **changes)
    with pytest.raises(DataError, match=says) as caught:
        MpiigazeCrops(people=2).load(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_missing_truncated_and_too_few_crops(tmp_path):
    with pytest.raises(DataError, match=r"missing file .*mpiigaze_9x15\.npz"):
        MpiigazeCrops().load(str(tmp_path))
    write_crops(tmp_path)
    with pytest.raises(DataError, match=r"people = 5, but .* holds 2"):
        MpiigazeCrops(people=5).load(str(tmp_path))
    with pytest.raises(ConfigError, match="people must be >= 1"):
        MpiigazeCrops(people=0).load(str(tmp_path))
    shorten(tmp_path / "mpiigaze_9x15.npz")
    with pytest.raises(DataError, match="cannot read"):
        MpiigazeCrops().load(str(tmp_path))
    assert [line.ok for line in mpiigaze_crops.check(tmp_path)] == [False]


@pytest.mark.data
def test_real_crops_and_patches_are_complete_and_show_the_same_eyes():
    """The 9x15 crops are rows 13-21, columns 22-36 of the patches; JPEG blurs them a little."""
    eyes = research_data("eyes")
    assert all(line.ok for line in mpiigaze_crops.check(eyes / "mpiigaze_9x15"))
    crops = MpiigazeCrops().load(str(eyes / "mpiigaze_9x15"))
    assert len(crops.people) == 11
    patches = Mpiigaze().load(str(eyes / "mpiigaze_p00_36x60")).people["p00"]
    small = crops.people["p00"]
    for part in ("train", "val", "test"):
        ours, theirs = getattr(small, part).columns, getattr(patches, part).columns
        assert torch.equal(ours["gaze"], theirs["gaze"])
        a = ours["image"][:30].double().flatten(1)
        b = theirs["image"][:30, :, 13:22, 22:37].double().flatten(1)
        correlation = [torch.corrcoef(torch.stack(pair))[0, 1] for pair in zip(a, b, strict=True)]
        assert np.median(correlation) > 0.95
        others = zip(a, b.roll(1, 0), strict=True)
        control = [torch.corrcoef(torch.stack(pair))[0, 1] for pair in others]
        assert np.median(control) < 0.8


@pytest.mark.data
def test_left_eyes_come_first_and_yaw_changes_its_mean_at_the_half():
    """eyeimages design note, 1.4: the sign of the mean yaw of p00 changes at index 1500."""
    path = research_data("eyes") / "mpiigaze_p00_36x60" / "mpiigaze_p00_36x60.npz"
    yaw = np.load(path)["gaze"][:, 1]
    assert yaw[:1500].mean() * yaw[1500:].mean() < 0
