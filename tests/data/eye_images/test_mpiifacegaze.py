"""MPIIFaceGaze: eyes cut by landmarks, channels, signs of both yaws, split by frame, bad input."""

import importlib
import shutil
from functools import cache

import numpy as np
import pytest

from vergence.data.eye_images import eye_patches, mpiifacegaze
from vergence.data.eye_images.mpiifacegaze import Mpiifacegaze, eye_corners
from vergence.errors import ConfigError, DataError

h5py = pytest.importorskip("h5py")

CORNERS = np.array([[-45, -32.4, 6], [-19.2, -31, 0], [19.2, -31, 0], [45, -32.4, 6]])
"""Eye corners of the 6-point face in mm from the image left on, outer ones 6 mm deeper."""


def landmarks(yaw):
    """Turn the face about the vertical axis, 3.2 pixels per mm; yaw turns +z to (sin y, 0, cos y).

    Mouth corners are not used: zeros.
    """
    turned = CORNERS[:, 0] * np.cos(yaw)[:, None] + CORNERS[:, 2] * np.sin(yaw)[:, None]
    points = np.stack([turned, np.broadcast_to(CORNERS[:, 1], turned.shape)], 2) * 3.2 + 224
    return np.concatenate([points.reshape(len(yaw), 8), np.zeros((len(yaw), 4))], 1)


def people_of(frames, seed=0):
    """Data and label of a person, which may be changed."""
    return tuple(array.copy() for array in drawn(frames, seed))


@cache
def drawn(frames, seed):
    """Data and label; irises are discs 40 pixels to the left per radian of gaze yaw."""
    rng = np.random.default_rng(seed)
    angles = rng.uniform(-0.3, 0.3, (frames, 4))
    points = landmarks(angles[:, 3])
    data = np.full((frames, 3, 448, 448), 200, np.uint8)
    data[:] += rng.integers(0, 50, (frames, 1, 1, 448), np.uint8)
    rows, columns = np.mgrid[:448, :448]
    for face, gaze, eyes in zip(data, angles, eye_corners(points[:, :8]), strict=True):
        for x, y in eyes.mean(1):
            face[:, np.hypot(rows - y, columns - x + 40 * gaze[1]) < 10] = 20
    return data, np.concatenate([angles, points], 1)


def write(path, data, label):
    with h5py.File(path, "w") as file:
        file["Data/data"], file["Data/label"] = data, label


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faces")
    for person in (0, 3):
        write(folder / f"p{person:02d}.mat", *people_of(30, person))
    return folder


@pytest.fixture
def root(written, tmp_path):
    return shutil.copytree(written, tmp_path / "faces")


def rewrite(root, change):
    data, label = people_of(30)
    changed = change(data, label)
    write(root / "p00.mat", *(changed or (data, label)))


def test_eyes_are_found_by_where_they_are():
    """Corners in any order: of an eye, and of eyes (some faces of the release are mirrored)."""
    points = np.array([[10, 1, 30, 2, 60, 3, 90, 4], [90, 4, 60, 3, 30, 2, 10, 1]], float)
    expected = [[[10, 1], [30, 2]], [[60, 3], [90, 4]]]
    np.testing.assert_array_equal(eye_corners(points), [expected, expected])


def test_people_are_split_by_frame(root):
    """30 frames: 21, 3 and 6, two eyes each."""
    federation = Mpiifacegaze().load(str(root))
    assert federation.clients == ("p00", "p03")
    splits = federation.people["p03"]
    parts = (splits.train, splits.val, splits.test)
    assert [len(part) for part in parts] == [42, 6, 12]
    assert splits.train.columns["image"].shape == (42, 1, 36, 60)
    _, label = people_of(30, 3)
    for part in parts:
        half = len(part) // 2
        gaze, pose = part.columns["gaze"].numpy(), part.columns["pose"].numpy()
        np.testing.assert_allclose(gaze[half:], gaze[:half] * [1, -1])
        np.testing.assert_allclose(pose[half:], pose[:half] * [1, -1])
        assert part.columns["side"].tolist() == [0] * half + [1] * half
        rows = [int(np.abs(label[:, :2] - g).sum(1).argmin()) for g in gaze[:half]]
        np.testing.assert_allclose(label[rows, :2], gaze[:half], atol=1e-6)
        np.testing.assert_allclose(label[rows, 2:4], pose[:half], atol=1e-6)


def test_the_image_right_eye_is_the_left_one(root):
    """A bright bar on the nose side of the image-right eye must be at the left of left patches."""

    def nose(data, _):
        data[:, :, :, 224 + 64 - 4 : 224 + 64 + 4] = 255  # 38 px left of that eye's middle

    rewrite(root, nose)
    train = Mpiifacegaze(people=("p00",)).load(str(root)).people["p00"].train
    left = train.columns["image"][: len(train) // 2, 0].double().mean((0, 1))
    assert 9 <= int(left.argmax()) <= 13  # 30 + (64 - 102.7) / 2 = 10.6


def test_channels_are_blue_green_red():
    """Luma 0.299 R + 0.587 G + 0.114 B of pure blue is 29."""
    face = np.zeros((1, 3, 4, 4))
    face[0, 0] = 255
    (grey,) = mpiifacegaze._grey(face)
    assert (np.asarray(grey) == 29).all()


def test_patches_are_cached_until_the_file_changes(root, monkeypatch):
    first = Mpiifacegaze().load(str(root)).people["p00"].test.columns["image"]
    with monkeypatch.context() as m:
        m.setattr(mpiifacegaze, "_cut_all", lambda _: pytest.fail("cut again"))
        again = Mpiifacegaze().load(str(root)).people["p00"].test.columns["image"]
    assert np.array_equal(first, again)
    write(root / "p00.mat", *people_of(20, 5))
    assert len(Mpiifacegaze().load(str(root)).people["p00"].train) == 28


def test_labels_of_opposite_signs_are_refused(root, monkeypatch):
    monkeypatch.setattr(mpiifacegaze, "ENOUGH", 20)
    monkeypatch.setattr(eye_patches, "ENOUGH", 20)
    Mpiifacegaze().load(str(root))

    def flip(*columns):
        def change(_, label):
            label[:, columns] *= -1

        return change

    rewrite(root, flip(1))
    with pytest.raises(DataError, match=r"p00\.mat: irises lie further to the image right"):
        Mpiifacegaze().load(str(root))
    rewrite(root, flip(3))
    with pytest.raises(DataError, match=r"p00\.mat: heads with a greater yaw turn to the image r"):
        Mpiifacegaze().load(str(root))


def test_frames_with_an_eye_outside_are_left_out_and_counted(root):
    def move(_, label):
        label[4, 4:12] += 200

    rewrite(root, move)
    federation = Mpiifacegaze(people=("p00",)).load(str(root))
    splits = federation.people["p00"]
    assert sum(len(p) for p in (splits.train, splits.val, splits.test)) == 58
    assert federation.about["left out"].startswith("1 frames")


def shorten(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def only_raw(root):
    for path in root.glob("*.mat"):
        path.unlink()
    (root / "p00").mkdir()
    (root / "p00" / "p00.txt").write_text("day01/0005.jpg 1 2\n")


def put(row, column, value):
    def change(_, label):
        label[row, column] = value

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: shorten(r / "p00.mat"), "cannot read .*p00.mat"),
        (lambda r: (r / "p00.mat").write_bytes(b"MATLAB 5.0"), "cannot read .*p00.mat"),
        (only_raw, "raw release, which is not read"),
        (lambda r: rewrite(r, put(7, 1, np.nan)), "Data/label is NaN or infinite in 1 of 30 rows"),
        (lambda r: rewrite(r, put(7, 1, 12.0)), "must be radians"),
        (lambda r: rewrite(r, lambda d, k: (d, k[:, :4])), r"label \(30, 4\) instead of"),
        (lambda r: rewrite(r, lambda d, k: (d[:, :, ::2, ::2], k)), "Data/data is .*224, 224"),
        (lambda r: rewrite(r, lambda d, k: (d / 255, k)), "reach 1, 0 to 255 are needed"),
        (lambda r: rewrite(r, put(slice(None), slice(4, 12), 0)), "every face lie outside"),
        (lambda r: rewrite(r, lambda d, k: (d[:2], k[:2])), "frames of p00: 2 are too few"),
        (lambda r: h5py.File(r / "p00.mat", "w").close(), "lacks numbers in Data/data"),
    ],
)
def test_bad_files_give_one_clear_line(root, change, says):
    change(root)
    with pytest.raises(DataError, match=says) as caught:
        Mpiifacegaze().load(str(root))
    assert "\n" not in str(caught.value)


def test_no_root_unknown_people_and_no_h5py(root, monkeypatch):
    with pytest.raises(DataError, match="not packaged: name its folder"):
        Mpiifacegaze().load()
    with pytest.raises(DataError, match="unknown participant 'p1'"):
        Mpiifacegaze(people=("p1",)).load(str(root))
    with pytest.raises(ConfigError, match="sum 1"):
        Mpiifacegaze(shares=(0.5, 0.1, 0.1)).load(str(root))

    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ConfigError, match=r"needs h5py: pip install 'vergence\[hdf5\]'"):
        Mpiifacegaze().load(str(root))


def test_check_compares_with_the_published_totals(root):
    lines = {line.what: line for line in mpiifacegaze.check(root)}
    assert (lines["participants"].actual, lines["participants"].expected) == ("2", "15")
    assert (lines["p03: frames"].actual, lines["p03: frames"].expected) == ("30", "3,000")
    shorten(root / "p00.mat")
    assert any("cannot read" in line.hint for line in mpiifacegaze.check(root))


def corners_of(ratio):
    """Corners of two eyes, the image-right one `ratio` times as wide as the other."""
    corners = np.zeros((len(ratio), 2, 2, 2))
    corners[:, 0, 1, 0] = 10
    corners[:, 1, 1, 1] = 10 * ratio
    return corners


def heads(agreement, count=200):
    """Yaws and widths whose logarithms correlate by exactly this much."""
    rng = np.random.default_rng(0)
    yaw, other = (side - side.mean() for side in rng.normal(0, 0.1, (2, count)))
    other -= yaw * (yaw @ other) / (yaw @ yaw)
    mixed = agreement * yaw / np.linalg.norm(yaw)
    mixed = mixed + np.sqrt(1 - agreement**2) * other / np.linalg.norm(other)
    return corners_of(np.exp(mixed)), yaw


@pytest.mark.parametrize("agreement", [-1.0, -0.5, -0.21])
def test_heads_that_turn_the_other_way_are_refused(tmp_path, agreement):
    corners, yaw = heads(agreement)
    with pytest.raises(DataError, match=f"correlation {agreement:.2f}") as caught:
        mpiifacegaze._verify_head_sign(tmp_path / "p00.mat", corners, yaw)
    assert "p00.mat" in str(caught.value)
    corners, yaw = heads(agreement, 201)
    with pytest.raises(DataError):
        mpiifacegaze._verify_head_sign(tmp_path, corners, yaw)


def test_heads_whose_sign_is_right_or_cannot_be_told(tmp_path):
    """Too few frames, an eye without width, one yaw alone, and one width alone say nothing."""
    for agreement in (-0.19, 0.0, 1.0):
        mpiifacegaze._verify_head_sign(tmp_path, *heads(agreement))
    mpiifacegaze._verify_head_sign(tmp_path, *heads(-1.0, 199))
    corners, yaw = heads(-1.0)
    flat = corners.copy()
    flat[7, 1] = 0
    mpiifacegaze._verify_head_sign(tmp_path, flat, yaw)
    still = np.where(np.arange(200) == 0, 0.1 + 1e-6, 0.1)
    for one in (np.zeros(200), still):
        mpiifacegaze._verify_head_sign(tmp_path, corners, one)
    mpiifacegaze._verify_head_sign(tmp_path, corners_of(np.ones(200)), yaw)
    nearly = 1 + 1e-7 * -np.sign(yaw)
    mpiifacegaze._verify_head_sign(tmp_path, corners_of(nearly), yaw)
    with pytest.raises(DataError):
        mpiifacegaze._verify_head_sign(tmp_path, corners_of(1 - 1e-4 * np.sign(yaw)), yaw)
    with pytest.raises(DataError):
        mpiifacegaze._verify_head_sign(tmp_path, corners, yaw * 1e-4)
