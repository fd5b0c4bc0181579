"""GazeCapture: boxes, centimetres to angles, split by dot, subjects without eyes, bad input."""

import json

import numpy as np
import pytest
from PIL import Image

from vergence.data.eye_images import eye_patches, gazecapture
from vergence.data.eye_images.gazecapture import Gazecapture, read_subject, target_angles
from vergence.errors import ConfigError, DataError

FACE = (80, 60, 150, 150)
LEFT, RIGHT = (90, 30, 40, 40), (20, 30, 40, 40)
"""X, Y, W, H; eyes from the corner of the face box, the person's left eye on the image right."""


def lists(box, frames, valid):
    named = {name: [value] * frames for name, value in zip("XYWH", box, strict=True)}
    return {**named, "IsValid": [int(v) for v in valid]}


def write_subject(root, name, dots=12, per_dot=2, invalid=(), part="train"):
    """Write a subject who looks at dots; the dark iris moves left for dots at the person's right.

    1.5 pixels a cm at a scale of 60 / 40 are 0.022 radian a pixel at 30 cm.
    """
    folder, frames = root / name, dots * per_dot
    (folder / "frames").mkdir(parents=True)
    rng = np.random.default_rng(int(name))
    spots = rng.uniform((-5, -9), (5, -1), (dots, 2)).repeat(per_dot, 0)
    valid = [i not in invalid for i in range(frames)]
    rows, columns = np.mgrid[:240, :320]
    for i, (x, _) in enumerate(spots):
        picture = rng.integers(150, 250, (240, 320)).astype(np.uint8)
        for box in (LEFT, RIGHT):
            cx, cy = FACE[0] + box[0] + 20 - 1.5 * x, FACE[1] + box[1] + 20
            picture[np.hypot(rows - cy, columns - cx) < 4] = 20
        Image.fromarray(picture).save(folder / "frames" / f"{i:05d}.jpg", quality=95)
    dump(folder, "appleFace", lists(FACE, frames, valid))
    dump(folder, "appleLeftEye", lists(LEFT, frames, valid))
    dump(folder, "appleRightEye", lists(RIGHT, frames, valid))
    dot = {"XCam": spots[:, 0].tolist(), "YCam": spots[:, 1].tolist()}
    dump(folder, "dotInfo", {"DotNum": np.arange(dots).repeat(per_dot).tolist(), **dot})
    dump(folder, "frames", [f"{i:05d}.jpg" for i in range(frames)])
    dump(folder, "info", {"Dataset": part, "DeviceName": "iPhone 6", "TotalFrames": frames})
    return spots


def dump(folder, name, value):
    (folder / f"{name}.json").write_text(json.dumps(value))


def edit(root, name, change):
    folder = root / "00002"
    value = json.loads((folder / f"{name}.json").read_text())
    dump(folder, name, change(value) or value)


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "capture"
    write_subject(folder, "00002", invalid=(0, 5))
    write_subject(folder, "00033", part="test")
    return folder


def test_angles_of_dots_on_the_screen():
    """30 cm before the lens: 30 cm to the person's right is yaw +45 degrees (image left), 30 cm
    below pitch -45; the vector of section 0 then points along (-x, -y, -30)."""
    found = np.rad2deg(target_angles(np.array([[30, 0], [0, -30], [0, 0]]), 30))
    np.testing.assert_allclose(found, [[0, 45], [-45, 0], [0, 0]])
    target = np.array([[3.0, -8.0]])
    ((p, y),) = target_angles(target, 30)
    vector = [-np.cos(p) * np.sin(y), -np.sin(p), -np.cos(p) * np.cos(y)]
    expected = np.array([-3, 8, -30]) / np.linalg.norm([3, 8, 30])
    np.testing.assert_allclose(vector, expected)


def test_boxes_of_eyes_count_from_the_face(root):
    subject = read_subject(root / "00002")
    assert len(subject.pictures) == 22
    assert (subject.frames, subject.part) == (24, "train")
    np.testing.assert_array_equal(subject.box[0], [[170, 90, 40, 40], [100, 90, 40, 40]])
    assert subject.pictures[0].name == "00001.jpg"  # frame 0 has no detection
    assert subject.dot[:3].tolist() == [0, 1, 1]


def test_frames_of_a_dot_stay_together(root):
    """12 dots: 9, 1 and 2; two frames of two eyes each."""
    federation = Gazecapture().load(str(root))
    assert federation.clients == ("00002", "00033")
    assert federation.about["published split"] == "test: 00033; train: 00002"
    splits = federation.people["00033"]
    parts = (splits.train, splits.val, splits.test)
    assert [len(part) for part in parts] == [36, 4, 8]
    looked = [{tuple(g) for g in p.columns["gaze"][: len(p) // 2].tolist()} for p in parts]
    assert [len(seen) for seen in looked] == [9, 1, 2]
    assert not looked[0] & looked[1] | looked[0] & looked[2] | looked[1] & looked[2]
    assert splits.train.columns["image"].shape == (36, 1, 36, 60)
    assert not splits.train.columns["pose"].any()
    assert splits.train.columns["side"].tolist() == [0] * 18 + [1] * 18
    gaze = splits.train.columns["gaze"].numpy()
    np.testing.assert_allclose(gaze[18:], gaze[:18] * [1, -1])


def test_distance_and_frames_are_options(root):
    near, far = (
        Gazecapture(people=("00033",), distance_cm=d).load(str(root)).people["00033"]
        for d in (30.0, 60.0)
    )
    one, other = (splits.train.columns["gaze"][:, 1].tan() for splits in (near, far))
    np.testing.assert_allclose(one / other, 2, rtol=1e-5)
    few = Gazecapture(people=("00033",), frames=12).load(str(root)).people["00033"]
    assert sum(len(p) for p in (few.train, few.val, few.test)) == 24


def test_mirrored_labels_are_refused(root, monkeypatch):
    monkeypatch.setattr(eye_patches, "ENOUGH", 20)
    Gazecapture().load(str(root))
    for name in ("00002", "00033"):
        dots = json.loads((root / name / "dotInfo.json").read_text())
        dump(root / name, "dotInfo", {**dots, "XCam": [-x for x in dots["XCam"]]})
    with pytest.raises(DataError, match="image right where the yaw is greater"):
        Gazecapture().load(str(root))


def test_subjects_without_eyes_are_left_out_and_named(root):
    write_subject(root, "00044", dots=6, invalid=range(12))
    federation = Gazecapture().load(str(root))
    assert federation.clients == ("00002", "00033")
    assert "00044" in federation.about["left out"]
    with pytest.raises(DataError, match="dots of subject 00044 with both eyes: 0 are too few"):
        Gazecapture(people=("00044",)).load(str(root))


def test_frames_with_an_eye_outside_the_picture_are_left_out(root):
    edit(root, "appleFace", lambda t: t["X"].__setitem__(slice(8, 12), [200] * 4))
    splits = Gazecapture().load(str(root)).people["00002"]
    assert sum(len(p) for p in (splits.train, splits.val, splits.test)) == 2 * 18


def remove(name):
    return lambda root: (root / "00002" / name).unlink()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (remove("appleLeftEye.json"), "missing file .*appleLeftEye.json"),
        (remove("frames/00003.jpg"), "missing file .*00003.jpg"),
        (lambda r: (r / "00002/dotInfo.json").write_text("{"), "cannot read .*dotInfo.json"),
        (lambda r: (r / "00002/frames/00003.jpg").write_bytes(b"x"), "cannot decode .*00003.jpg"),
        (lambda r: edit(r, "dotInfo", lambda t: t["XCam"].pop()), "dotInfo.json is of another ver"),
        (lambda r: edit(r, "dotInfo", lambda _: {"XPts": []}), "needs lists DotNum, XCam, YCam"),
        (lambda r: edit(r, "appleFace", lambda _: [1]), "appleFace.json is of another version"),
        (lambda r: edit(r, "dotInfo", lambda t: t["XCam"].__setitem__(3, None)), "dotInfo is NaN"),
        (lambda r: edit(r, "frames", lambda _: {"a": 1}), "is not a list of file names"),
        (lambda r: edit(r, "info", lambda _: {"Device": 1}), "does not say Dataset"),
        (lambda r: (r / "00002").rename(r / "zwei"), "folder 'zwei' .* is no subject's number"),
    ],
)
def test_bad_files_give_one_clear_line(root, change, says):
    change(root)
    with pytest.raises(DataError, match=says) as caught:
        Gazecapture().load(str(root))
    assert "\n" not in str(caught.value)


def test_no_root_and_bad_options(root, tmp_path):
    with pytest.raises(DataError, match="not packaged: name its folder"):
        Gazecapture().load()
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no subject with dotInfo\.json"):
        Gazecapture().load(str(tmp_path / "empty"))
    with pytest.raises(DataError, match="unknown subject '2'"):
        Gazecapture(people=("2",)).load(str(root))
    with pytest.raises(ConfigError, match="distance_cm"):
        Gazecapture(distance_cm=1.0)
    with pytest.raises(ConfigError, match="sum 1"):
        Gazecapture(shares=(0.5, 0.1, 0.1)).load(str(root))


def test_check_compares_with_the_published_totals(root):
    remove("frames/00003.jpg")(root)
    lines = {line.what: line for line in gazecapture.check(root)}
    assert (lines["subjects"].actual, lines["subjects"].expected) == ("2", "1,474")
    assert (lines["frames"].actual, lines["frames"].expected) == ("48", "2,445,504")
    assert lines["frames with face and eyes"].actual == "46"
    assert (lines["of these, pictures missing"].actual, lines["frames"].ok) == ("1", False)
    remove("info.json")(root)
    assert any("info.json" in line.hint for line in gazecapture.check(root))
