"""`vergence data patches`: cuts eye patches out of pictures or a video of one person.

Used by `cli.data`, `video.predict`, `video.predict_angles` and `video.predict_maps`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from rich.console import Console

from vergence.core.files import replacing
from vergence.data.eye_images.camera import read_camera
from vergence.data.eye_images.face_patches import Patches, patches_of
from vergence.data.eye_images.landmarks import load_landmarker
from vergence.data.io.checks import refuse_nan, with_progress
from vergence.data.io.delimited_text import read_table
from vergence.data.io.image_files import open_image
from vergence.data.io.video import Video
from vergence.errors import ConfigError, DataError

PICTURES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"}
PAIRS, ROW = 60, 6
"""Largest number of frames on a contact sheet, and number in one row."""


@dataclass(frozen=True)
class FrameSource:
    """Pictures of a source: their names (file name, or number in a video) and their pixels."""

    names: list[str]
    frames: Iterator[NDArray[np.uint8]]


def write_patches(
    source: Path,
    out: Path,
    *,
    camera: Path | None = None,
    targets: Path | None = None,
    sheet: bool = False,
) -> Patches:
    """Write the eye patches of a picture, a folder of pictures or a video as npz.

    Args:
        source: picture, folder of pictures or video of one person.
        out: new `.npz`; the contact sheet has the same name with `.png`.
        camera: JSON file of a calibrated camera; default: a typical camera.
        targets: CSV with the columns frame (file name, or number in a video, from 0), x, y, z: the
            point looked at, mm in the camera frame.
        sheet: draw the contact sheet.

    Raises:
        ConfigError: `out` has another ending, or the networks that find faces are missing.
        DataError: a file is missing or unusable, or no face with both eyes is found.
    """
    if out.suffix != ".npz":
        raise ConfigError(f"patches are written as .npz, got {out}: give a name that ends in .npz")
    # The camera's file is read before the networks: its mistakes show at once.
    calibrated = None if camera is None else read_camera(camera)
    find = load_landmarker()
    pictures = opened_source(source)
    known = None if targets is None else _targets(targets, pictures.names)
    patches = patches_of(pictures.frames, calibrated, find, known)
    with replacing(out) as scratch:
        np.savez_compressed(scratch, allow_pickle=False, **patches.stored())
    if sheet:
        contact_sheet(patches, out.with_suffix(".png"))
    return patches


def show(patches: Patches, out: Path, console: Console, *, guessed: bool, sheet: bool) -> None:
    """Print the number of patches, and of frames that were left out with the reason."""
    count = len(patches.columns["side"])
    console.print(f"patches: {out} ({count}, both eyes of {count // 2} frames)", soft_wrap=True)
    if sheet:
        console.print(f"contact sheet: {out.with_suffix('.png')}", soft_wrap=True)
    for reason, numbers in (("no face", patches.no_face), ("an eye leaves it", patches.cut_off)):
        if numbers:
            first = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
            console.print(
                f"left out, {reason}: {len(numbers)} of {patches.frames} frames ({first})"
            )
    console.print(f"landmarks fit the face model to {patches.error_px:.1f} pixels (median)")
    if guessed:
        console.print("no --camera: focal length guessed, angles are off by a few degrees")
    if "gaze" not in patches.columns:
        console.print("no --targets: the file has no gaze and serves learning without labels")


def contact_sheet(patches: Patches, path: Path) -> None:
    """Draw up to 60 evenly spaced frames: the left eye and the mirrored right eye of each.

    Raises:
        PartialRun: the file cannot be written.
    """
    left, right = np.split(patches.columns["image"][:, 0], 2)
    frames = np.unique(np.linspace(0, len(left) - 1, min(PAIRS, len(left))).astype(int))
    # A black edge between pairs, so that neighbours are not taken for one person's eyes.
    pairs = np.pad(np.concatenate([left[frames], right[frames]], 2), ((0, 0), (2, 2), (2, 2)))
    columns = min(ROW, len(pairs))
    rows = -(-len(pairs) // columns)
    grid = np.zeros((rows * columns, *pairs.shape[1:]), np.uint8)
    grid[: len(pairs)] = pairs
    height, width = pairs.shape[1:]
    flat = grid.reshape(rows, columns, height, width).swapaxes(1, 2)
    with replacing(path) as scratch:
        picture = Image.fromarray(flat.reshape(rows * height, columns * width))
        picture.resize((2 * picture.width, 2 * picture.height)).save(scratch, "PNG")


def opened_source(source: Path) -> FrameSource:
    """Open a picture, a folder of pictures, or a video.

    Raises:
        DataError: the folder holds no picture, or a file cannot be read.
    """
    if source.is_dir():
        if not (paths := sorted(p for p in source.iterdir() if p.suffix.lower() in PICTURES)):
            raise DataError(f"no pictures in {source}: known endings {', '.join(sorted(PICTURES))}")
    elif source.suffix.lower() in PICTURES:
        paths = [source]
    else:
        video = Video.open(source)
        count = len(video.times_s)
        shown = with_progress([source] * count, "frames")
        frames = (frame for frame, _ in zip(video.frames(), shown, strict=True))
        return FrameSource([str(number) for number in range(count)], frames)
    return FrameSource([p.name for p in paths], map(_picture, with_progress(paths, "pictures")))


def _picture(path: Path) -> NDArray[np.uint8]:
    """Return the upright pixels of a picture; phones store many on their side."""
    with open_image(path, str(path), "save it again, or remove it") as stored:
        return np.asarray(ImageOps.exif_transpose(stored).convert("RGB"))


def _targets(path: Path, names: list[str]) -> Mapping[int, NDArray]:
    table = read_table(path, ("frame", "x", "y", "z"), "table of points looked at")
    points = np.stack([table.floats(axis) for axis in "xyz"], 1)
    refuse_nan(points, "x, y or z", path)
    places = {name: number for number, name in enumerate(names)}
    if unknown := [name for name in table.text("frame") if name not in places]:
        raise DataError(
            f"{path} names frame '{unknown[0]}', which is not among {names[0]} to {names[-1]}"
        )
    return {places[n]: point for n, point in zip(table.text("frame"), points, strict=True)}
