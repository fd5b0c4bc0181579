"""Gaze tables and pictures of others that were once read as something else, without a word."""

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from tests.data.footage import write_csv, write_video
from tests.refusals import refuses
from vergence.data.format_detection import find_format
from vergence.data.gaze_video.gaze_table import GazeTable
from vergence.data.images.image_folder import squares
from vergence.data.io.checks import read_pictures
from vergence.data.io.video import Video
from vergence.errors import DataError

TIMES = np.arange(100) / 50
X, Y = 10 + TIMES, 20 + TIMES
COLUMNS = {"t": "time", "x": "x", "y": "y", "unit": "px", "t_unit": "s"}
PIXELS = np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)


def recorded(root, header, *columns):
    write_video(root / "p1" / "scene.mp4", np.arange(20) / 10)
    write_csv(root / "p1" / "gaze.csv", header, list(zip(TIMES, *columns, strict=True)))
    return root


def read(root, **columns):
    return GazeTable(columns={**COLUMNS, **columns}).read(root)[0][0].gaze


def test_zeros_where_gaze_was_lost_are_not_the_corner(tmp_path):
    lost = np.arange(100) % 10 == 3
    root = recorded(tmp_path, "time,x,y", np.where(lost, 0.0, X), np.where(lost, 0.0, Y))
    with pytest.raises(DataError, match=r"\(0, 0\) in 10 of 100 samples, first in row 5, .*\[0\]"):
        read(root)
    assert np.array_equal(read(root, missing=[0]).valid, ~lost)
    assert read(root, missing=[-1]).valid.all()


def test_codes_and_percent_are_no_validity(tmp_path):
    """Tobii's codes are 0 where gaze is certain and 4 where it is lost."""
    lost = np.arange(100) % 10 == 3
    root = recorded(tmp_path / "codes", "time,x,y,validity", X, Y, np.where(lost, 4, 0))
    with refuses("bad-value", "row 5", "'validity' is '4'", "0 is best"):
        read(root, valid="validity")
    root = recorded(tmp_path / "percent", "time,x,y,sure", X, Y, np.where(lost, 20.0, 90.0))
    with refuses("bad-value", "'sure' is '90.0'", "valid_from"):
        read(root, valid="sure")
    assert np.array_equal(read(root, valid="sure", valid_from=60).valid, ~lost)


@pytest.mark.parametrize("eyes", [("left_x", "right_x"), ("GazeRightX", "GazeLeftX")])
def test_a_table_of_two_eyes_gives_the_mean_of_both(tmp_path, eyes):
    names = [name for eye in eyes for name in (eye, eye.replace("x", "y").replace("X", "Y"))]
    root = recorded(tmp_path, ",".join(["time", *names]), X - 3, Y, X + 3, Y)
    options = find_format(root).options
    assert options["columns"]["x"] == list(eyes)
    gaze = GazeTable(**options).read(root)[0][0].gaze
    assert gaze.x == pytest.approx(X / 64)
    assert gaze.y == pytest.approx(Y / 48)


@pytest.mark.parametrize("unit", ["percent", "mm", "rad"])
def test_a_unit_in_a_column_s_name_that_is_not_read_is_refused(tmp_path, unit):
    root = recorded(tmp_path, f"time,gaze_x_{unit},gaze_y_{unit}", X, Y)
    with pytest.raises(DataError, match=f"'gaze_x_{unit}' is in {unit}"):
        find_format(root)


def test_it_is_said_that_y_counts_downwards(tmp_path):
    root = recorded(tmp_path, "time,x,y", X, Y)
    assert "origin=bottom_left" in find_format(root).notes["columns.t_unit columns.unit"]


def test_16_bits_and_transparent_parts_are_refused(tmp_path):
    """Pillow cuts 16 bits off at 255, and takes any colour for a transparent part."""
    wide = tmp_path / "wide.png"
    Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 257).save(wide)
    glass = tmp_path / "glass.png"
    alpha = np.where(PIXELS[..., :1] > 128, 255, 0).astype(np.uint8)
    Image.fromarray(np.concatenate([PIXELS, alpha], 2)).save(glass)
    for path, noun in ((wide, "8 bits"), (glass, "transparent")):
        with refuses("file-unreadable", str(path), noun):
            squares([path], 16)
    full = tmp_path / "full.png"
    Image.fromarray(np.concatenate([PIXELS, np.full_like(alpha, 255)], 2)).save(full)
    assert np.array_equal(read_pictures([full], (24, 16), "", "")[0], PIXELS)


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("ending", ["png", "tif"])
def test_a_photograph_is_predicted_on_as_it_is_seen(tmp_path, turn, ending):
    """Phones note in the EXIF header how the picture is turned, which PyAV has no name for."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = turn
    path = tmp_path / f"photo.{ending}"
    Image.fromarray(PIXELS).save(path, exif=exif)
    with Image.open(path) as picture:
        upright = np.asarray(ImageOps.exif_transpose(picture))
    assert np.array_equal(Video.open(path).read()[0], upright)
    if turn > 1:
        with refuses("file-unreadable", str(path), "EXIF"):
            read_pictures([path], (24, 16), "", "")
