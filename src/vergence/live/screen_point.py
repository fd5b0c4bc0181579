"""Place of gaze on a screen, from a calibration's nine targets and a model's answers to them.

Used by `live.command`.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from vergence.data.eye_images.normalization import EYE, Normalised
from vergence.data.eye_images.screen_pose import PoseFit, calibrate
from vergence.errors import DataError, first_line
from vergence.live.gaze_models import EyeModel

NEEDED = {
    "image": (1, None, None),
    "pose": (2,),
    "side": (),
    "target": (),
    "target_mm": (2,),
    "centre_mm": (3,),
    "rotation": (3, 3),
}
"""Columns of a calibration file from which gaze on the screen is fitted -> shape of a row."""


def fitted_screen(path: Path, model: EyeModel) -> tuple[str, PoseFit]:
    """Return the better of two fits from gaze to points on the screen, and its name.

    `plane` is the place of the screen before the camera, and lets the head move; `quadratic` is a
    polynomial of the angles, for a head that rests. The one with the smaller error on targets left
    out is returned. Each target counts with the mean over its frames and over both eyes.

    Args:
        path: file of `vergence live --calibrate`, by the same camera on the same screen.
        model: model whose answers are fitted, so that its constant errors go, too.

    Raises:
        DataError: the file is missing or damaged, was written by an older version, has patches of
            another size, or too few targets.
    """
    table = _read(path)
    size = table["image"].shape[2:]
    if size != (model.height, model.width):
        raise DataError(
            f"{path} has patches of {' x '.join(map(str, size))} pixels, and the model takes "
            f"{model.height} x {model.width}: calibrate with this model"
        )
    rays = [_ray(table, row, model) for row in range(len(table["image"]))]
    targets = np.unique(table["target"])
    means = [np.mean([rays[i] for i in np.flatnonzero(table["target"] == t)], 0) for t in targets]
    origins, directions = np.stack(means, 1)
    first = [int(np.flatnonzero(table["target"] == target)[0]) for target in targets]
    return next(iter(calibrate(origins, directions, table["target_mm"][first]).items()))


def _read(path: Path) -> dict[str, np.ndarray]:
    """Return the columns of a calibration file, each with the right shape."""
    try:
        with path.open("rb") as data, np.load(data, allow_pickle=False) as file:
            table = {name: file[name] for name in NEEDED}
    except KeyError as error:
        raise DataError(
            f"{path} lacks the column {first_line(error)}: write it again with `vergence live "
            "--calibrate`"
        ) from None
    except (OSError, ValueError, TypeError, EOFError, BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path} is no calibration ({first_line(error)}): write one with `vergence live "
            "--calibrate`"
        ) from None
    count = len(table["target"]) if table["target"].ndim else 0
    for name, row in NEEDED.items():
        shape, kind = table[name].shape, table[name].dtype
        fits = len(shape) == 1 + len(row) and all(
            want in (None, has) for want, has in zip((count, *row), shape, strict=True)
        )
        if not (count and fits and np.issubdtype(kind, np.number)):
            raise DataError(
                f"{path} is no calibration (its column {name} is {kind} of the shape {shape}): "
                "write one with `vergence live --calibrate`"
            )
    return table


def _ray(table: dict[str, np.ndarray], row: int, model: EyeModel) -> tuple[np.ndarray, np.ndarray]:
    """Return the eye's centre and its predicted direction, in the camera frame."""
    right = bool(table["side"][row])
    pose, centre = table["pose"][row], table["centre_mm"][row]
    seen = Normalised(centre, table["rotation"][row], pose, EYE, right)
    gaze = model.gaze(table["image"][row, 0], pose, "right" if right else "left")
    return centre, seen.direction(gaze)
