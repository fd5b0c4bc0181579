"""Columbia Gaze: labels of names, mirrored eyes, split by photo, whole photos, bad input."""

import shutil

import numpy as np
import pytest
from PIL import Image

from tests.data.eye_images.test_eye_patches import discs
from vergence.data.eye_images import columbia
from vergence.data.eye_images.columbia import Columbia, angles
from vergence.data.eye_images.crop import equalise
from vergence.errors import ConfigError, DataError

POSES, VERTICAL, HORIZONTAL = (-30, -15, 0, 15, 30), (-10, 0, 10), (-15, -10, -5, 0, 5, 10, 15)


def write_photo(folder, person, p, v, h, sign=1):
    """Draw the person's eyes: positive H looks to the image right."""
    folder.mkdir(parents=True, exist_ok=True)
    for side in ("left", "right"):
        patch = discs([sign * np.deg2rad(-h)], seed=abs(p) + 31 * v + 7 * h + 999)[0]
        Image.fromarray(patch).save(folder / f"{person}_2m_{p}P_{v}V_{h}H_{side}.png")


def write_person(root, person, poses=POSES, sign=1):
    for p in poses:
        for v in VERTICAL:
            for h in HORIZONTAL:
                write_photo(root / person, person, p, v, h, sign)


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    root = tmp_path_factory.mktemp("columbia")
    write_person(root, "0001")
    write_person(root, "0040", (0, 15))
    return root


@pytest.fixture
def root(people, tmp_path):
    return shutil.copytree(people, tmp_path / "columbia")


def test_angles_of_names():
    """15 degrees to the image right is a negative yaw, 10 degrees up a positive pitch; as vectors
    (-cos p sin y, -sin p, -cos p cos y): x = +cos(10) sin(15), y = -sin(10)."""
    gaze, pose = angles(np.array([[-30, 10, 15], [15, 0, -5]]))
    np.testing.assert_allclose(np.rad2deg(gaze), [[10, -15], [0, 5]])
    np.testing.assert_allclose(np.rad2deg(pose), [[0, 30], [0, -15]])
    (pitch, yaw), c = gaze[0], np.cos(np.deg2rad(10))
    assert -np.cos(pitch) * np.sin(yaw) == pytest.approx(c * np.sin(np.deg2rad(15)))
    assert -np.sin(pitch) < 0


def test_a_mirrored_photo_has_mirrored_labels():
    """Mirroring turns H into -H and P into -P: both yaws flip, both pitches stay."""
    one, other = (angles(np.array([[s * 15, 10, s * -5]])) for s in (1, -1))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a * [1, -1], b)


def test_people_are_split_by_photo_within_each_head_pose(root):
    """21 photos a pose: round(2.1) = 2, round(4.2) = 4, 15; both eyes of 5 poses: 150, 20, 40."""
    federation = Columbia().load(str(root))
    assert federation.clients == ("0001", "0040")
    splits = federation.people["0001"]
    parts = (splits.train, splits.val, splits.test)
    assert [len(part) for part in parts] == [150, 20, 40]
    assert parts[0].columns["image"].shape == (150, 1, 36, 60)
    seen = []
    for part in parts:
        half = len(part) // 2
        gaze, pose = part.columns["gaze"].numpy(), part.columns["pose"].numpy()
        np.testing.assert_allclose(gaze[:half] * [1, -1], gaze[half:])
        assert part.columns["side"].tolist() == [0] * half + [1] * half
        assert len(np.unique(pose[:half, 1])) == 5
        seen += [(*g, *p) for g, p in zip(gaze[:half], pose[:half], strict=True)]
    assert len(set(seen)) == 105
    again = Columbia(split_seed=1).load(str(root)).people["0001"]
    assert not np.array_equal(again.test.columns["gaze"], splits.test.columns["gaze"])


def test_right_eyes_are_mirrored(root):
    folder = root / "0001"
    left, right = (
        np.asarray(Image.open(folder / f"0001_2m_0P_0V_15H_{side}.png"))
        for side in ("left", "right")
    )
    part = Columbia(people=("0001",), shares=(0.4, 0.3, 0.3)).load(str(root)).people["0001"]
    pictures = np.concatenate(
        [p.columns["image"][:, 0].numpy() for p in (part.train, part.val, part.test)]
    )
    gaze = np.concatenate([p.columns["gaze"] for p in (part.train, part.val, part.test)])
    for patch, yaw in ((left, -15), (right[:, ::-1], 15)):
        rows = np.flatnonzero((pictures == equalise(patch[None])).all((1, 2)))
        assert any(np.rad2deg(gaze[row, 1]) == pytest.approx(yaw, abs=1e-4) for row in rows)


def test_pictures_that_contradict_their_names_are_refused(tmp_path):
    write_person(tmp_path, "0007", sign=-1)
    with pytest.raises(DataError, match="image right where the yaw is greater"):
        Columbia().load(str(tmp_path))
    assert [line.ok for line in columbia.check(tmp_path)] == [False]


NAME = "0001_2m_-15P_0V_10H"


def whole_photos(root):
    for path in (root / "0001").glob("*"):
        path.unlink()
    shutil.rmtree(root / "0040")
    Image.new("RGB", (518, 346)).save(root / "0001" / f"{NAME}.jpg")


def too_large(root):
    Image.new("RGB", (5184, 3456)).save(root / "0001" / f"{NAME}_left.png")


def halve(root):
    path = root / "0001" / f"{NAME}_left.png"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def rename(root, name):
    (root / "0001" / f"{NAME}_left.png").rename(root / "0001" / name)


def few(root):
    for path in (root / "0001").glob("*_30P_*_[1-9]*H_*"):
        path.unlink()
    for path in (root / "0001").glob("*_30P_*_-*H_*"):
        path.unlink()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (whole_photos, "1 whole photos but no eye patches .*60 x 36"),
        (shutil.rmtree, "no folder"),
        (too_large, "5184 x 3456 pixels, not 60 x 36: .*docs/reference/data.md says how to cut"),
        (halve, "cannot decode .*_left.png"),
        (lambda r: rename(r, f"{NAME}_middle.png"), "cannot understand the name of .*_middle"),
        (lambda r: rename(r, "0001_2m_-15P_0V_12H_left.png"), "12H is none of"),
        (lambda r: (r / "0001" / f"{NAME}_left.png").unlink(), "no patch of the other eye"),
        (lambda r: shutil.copy(r / "0001" / f"{NAME}_left.png", r), "are the same eye"),
        (few, "photos per head pose of 0001: 3 are too few"),
    ],
)
def test_bad_folders_give_one_clear_line(root, change, says):
    change(root)
    with pytest.raises(DataError, match=says) as caught:
        Columbia().load(str(root))
    assert "\n" not in str(caught.value)


def test_no_root_and_bad_options(root):
    with pytest.raises(DataError, match="not packaged: name its folder"):
        Columbia().load()
    with pytest.raises(DataError, match="unknown person '0002'"):
        Columbia(people=("0002",)).load(str(root))
    with pytest.raises(ConfigError, match="sum 1"):
        Columbia(shares=(0.5, 0.1, 0.1)).load(str(root))


def test_check_compares_with_the_published_totals(root):
    lines = {line.what: line for line in columbia.check(root)}
    assert (lines["people"].actual, lines["people"].expected) == ("2", "56")
    both = lines["photos with both eyes"]
    assert (both.actual, both.expected, both.ok) == ("147", "5,880", False)
    halve(root)
    assert [line.ok for line in columbia.check(root)] == [False]


def test_whole_photos_beside_patches_do_not_count(tmp_path):
    """They come before and between the patches in the order of names."""
    write_photo(tmp_path, "0001", 0, 0, 5)
    write_photo(tmp_path, "0001", -15, 10, 0)
    for name in ("0001_2m_-15P_0V_0H.jpg", "0001_2m_0P_0V_10H.jpg"):
        (tmp_path / name).touch()
    found = columbia._pairs(tmp_path)
    assert {person: [p.degrees for p in photos] for person, photos in found.items()} == {
        "0001": [(-15, 10, 0), (0, 0, 5)]
    }
    for path in tmp_path.glob("*.png"):
        path.unlink()
    with pytest.raises(DataError, match="2 whole photos but no eye patches"):
        columbia._pairs(tmp_path)
