"""Landmarks through MediaPipe, faked where it is not installed, and the command built on them."""

import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from tests.data.footage import number, write_video
from tests.data.heads import corners, photograph, turned, webcam
from vergence.data.eye_images.face_patches import patches_of
from vergence.data.eye_images.landmarks import MESH, open_landmarker, points_of
from vergence.data.eye_images.mpiigaze import Mpiigaze
from vergence.errors import ConfigError, DataError
from vergence.video.eye_patches import show, write_patches

CAMERA = webcam(320, 240, 420.0)
PLACE = np.array([10.0, 5.0, 600.0])
FACE = corners(turned(), PLACE, CAMERA)


def result(points, width=320, height=240):
    """Return what MediaPipe returns: a mesh in fractions of the picture, from its corner."""
    mesh = [SimpleNamespace(x=np.nan, y=np.nan) for _ in range(478)]
    for place, (x, y) in zip(MESH, points, strict=True):
        mesh[place] = SimpleNamespace(x=(x + 0.5) / width, y=(y + 0.5) / height)
    return SimpleNamespace(face_landmarks=[mesh])


class Detector:
    """Finds the same face in every picture but black ones and every third grey one."""

    def detect(self, image):
        assert image.data.flags.c_contiguous
        assert image.format == "rgb"
        empty = not image.data.any() or (image.data.std() < 5 and number(image.data) % 3 == 2)
        return SimpleNamespace(face_landmarks=[]) if empty else result(FACE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def mediapipe(monkeypatch, tmp_path):
    """Install a MediaPipe that takes files whose first word is 'model'; return such a file."""

    def create(options):
        if not Path(options.base_options).read_text().startswith("model"):
            raise RuntimeError("Unable to open zip archive.\nmore")
        return Detector()

    def image(image_format, data):
        return SimpleNamespace(format=image_format, data=data)

    vision = SimpleNamespace(
        FaceLandmarker=SimpleNamespace(create_from_options=create),
        FaceLandmarkerOptions=lambda base_options, **_: SimpleNamespace(base_options=base_options),
    )
    top = SimpleNamespace(Image=image, ImageFormat=SimpleNamespace(SRGB="rgb"))
    base = SimpleNamespace(BaseOptions=lambda model_asset_path: model_asset_path)
    monkeypatch.setitem(sys.modules, "mediapipe", top)
    monkeypatch.setitem(sys.modules, "mediapipe.tasks.python.vision", vision)
    monkeypatch.setitem(sys.modules, "mediapipe.tasks.python.core.base_options", base)
    model = tmp_path / "face.task"
    model.write_text("model")
    return model


def folder_of_pictures(folder):
    """Write two pictures of a head, and a black one between them."""
    folder.mkdir()
    for name, target in (("a.png", [-80.0, 60, 0]), ("c.png", [90.0, 60, 0])):
        picture = photograph(turned(), PLACE, np.array(target), CAMERA)
        Image.fromarray(picture).save(folder / name)
    Image.new("RGB", CAMERA.size).save(folder / "b.png")
    (folder / "notes.txt").write_text("no picture")
    return folder


def test_seven_points_of_a_mesh_in_pixels():
    np.testing.assert_allclose(points_of(result(FACE), 320, 240), FACE)
    assert points_of(SimpleNamespace(face_landmarks=[]), 320, 240) is None
    with pytest.raises(DataError, match="finds 5 points of a face"):
        points_of(SimpleNamespace(face_landmarks=[[None] * 5]), 320, 240)


def test_without_mediapipe_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mediapipe", None)
    with (
        pytest.raises(ConfigError, match=r"pip install 'vergence\[camera\]'"),
        open_landmarker(tmp_path),
    ):
        pass


def test_without_a_model_the_option_is_named(mediapipe, tmp_path):
    gone = tmp_path / "gone.task"
    with (
        pytest.raises(DataError, match=r"gone\.task: give MediaPipe's .* --landmarker PATH"),
        open_landmarker(gone),
    ):
        pass
    mediapipe.write_text("something else")
    with (
        pytest.raises(DataError, match=r"no face landmarker \(Unable to open zip archive\.\)"),
        open_landmarker(mediapipe),
    ):
        pass


def test_a_folder_becomes_a_persons_file(mediapipe, tmp_path):
    pictures = folder_of_pictures(tmp_path / "in")
    targets = tmp_path / "targets.csv"
    targets.write_text("frame,x,y,z\na.png,-80,60,0\nc.png,90,60,0\nb.png,1,2,3\n")
    out = tmp_path / "p00.npz"
    found = write_patches(pictures, out, mediapipe, targets=targets, sheet=True)
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


def test_a_video_and_a_picture_of_nobody(mediapipe, tmp_path):
    video = write_video(tmp_path / "clip.mp4", np.arange(12) / 10, CAMERA.size)
    out = tmp_path / "out.npz"
    found = write_patches(video, out, mediapipe, sheet=False)
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
        write_patches(black, out, mediapipe)


def test_what_cannot_be_used_is_said_in_one_line(mediapipe, tmp_path):
    pictures = folder_of_pictures(tmp_path / "in")
    with pytest.raises(ConfigError, match=r"ends in \.npz"):
        write_patches(pictures, tmp_path / "out.csv", mediapipe)
    out = tmp_path / "out.npz"
    targets = tmp_path / "targets.csv"
    for row, said in (
        ("z.png,1,2,3", "'z.png', which is not among a.png to c.png"),
        ("a.png,1,,3", "NaN or infinite"),
    ):
        targets.write_text(f"frame,x,y,z\n{row}\n")
        with pytest.raises(DataError, match=said):
            write_patches(pictures, out, mediapipe, targets=targets)
    (pictures / "d.jpg").write_text("no jpeg")
    with pytest.raises(DataError, match=r"cannot decode .*d\.jpg"):
        write_patches(pictures, out, mediapipe)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no pictures in"):
        write_patches(tmp_path / "empty", out, mediapipe)
    assert not out.exists()


def test_a_real_face_mirrored_and_tilted():
    """The portrait named by VERGENCE_PORTRAIT, seen by the real MediaPipe.

    It does not find the same points in a mirrored picture. On scikit-image's astronaut, 60 pixels
    between the outer corners, they move by 1.5 pixels: patches correlate above 0.9 and the head
    turns by 1.2 degrees; tilted by 20 degrees above 0.96, and by 1.
    """
    pytest.importorskip("mediapipe", reason="needs mediapipe (extra camera)")
    model, portrait = (os.environ.get(f"VERGENCE_{n}") for n in ("LANDMARKER", "PORTRAIT"))
    if not model or not portrait:
        pytest.skip("set VERGENCE_LANDMARKER (a .task file) and VERGENCE_PORTRAIT (a picture)")
    with Image.open(portrait) as file:
        upright = file.convert("RGB")
    pictures = [upright, upright.transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
    pictures += [upright.rotate(turn, Image.Resampling.BICUBIC) for turn in (-20, 20)]
    with open_landmarker(Path(model)) as find:
        seen = [patches_of([np.asarray(p)], None, find).columns for p in pictures]
        assert find(np.zeros((100, 100, 3), np.uint8)) is None
    first, mirror = seen[0], {name: values[::-1] for name, values in seen[1].items()}
    for other, alike in ((mirror, 0.9), (seen[2], 0.95), (seen[3], 0.95)):
        np.testing.assert_allclose(other["pose"], first["pose"], atol=np.deg2rad(3))
        for one, two in zip(first["image"], other["image"], strict=True):
            assert np.corrcoef(one.ravel().astype(float), two.ravel())[0, 1] > alike
