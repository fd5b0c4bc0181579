"""Gaze angles of eye images, predicted by a finished run: a table with a row per image.

Used by `video.predict`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vergence import profiling
from vergence.core.data import Samples
from vergence.core.files import csv_of, write_text
from vergence.data.own_samples import read_samples
from vergence.errors import ConfigError, DataError, first_line
from vergence.experiment.trained_run import TrainedRun
from vergence.metrics.angles import angular_error_deg
from vergence.tasks.gaze_angle import check_angles
from vergence.video.eye_patches import opened_source
from vergence.video.predict_maps import model_for

COLUMNS = ("sample", "pitch_rad", "yaw_rad", "pitch_deg", "yaw_deg")
TRUE_COLUMNS = ("true_pitch_rad", "true_yaw_rad", "error_deg")
FACES = "cut eye images out of pictures of faces first, by `vergence data patches`"


@dataclass(frozen=True)
class AngleFile:
    """Result of `predict_angles`: the table, its length, and the mean error if gaze is known."""

    table: Path
    rows: int
    error_deg: float | None


def predict_angles(
    trained: TrainedRun, source: Path, out: Path, person: str | None = None
) -> AngleFile:
    """Write gaze angles of eye images as CSV, with true angles and errors where they are known.

    Args:
        trained: a run of the task `gaze_angle`.
        source: an npz with the columns `image` (uint8), `pose` (radians; zeros where it is left
            out) and, where known, `gaze` (radians); or a picture of an eye, or a folder of them.
        out: CSV to write: sample, (pitch, yaw) in radians and in degrees.
        person: participant whose model predicts; default: the shared model.

    Raises:
        ConfigError: the person is unknown, or the run has no shared model.
        DataError: the file cannot be read, its angles are not in radians, or its images differ in
            form from those of the training.
    """
    names, samples = eye_images(source)
    check_angles([(str(source), samples)])
    lacking = [name for name in trained.task.input_columns if name not in samples.columns]
    if lacking:
        raise DataError(
            f"{source} has no column {lacking[0]}, which the run's network takes: give an npz with "
            f"{', '.join(trained.task.input_columns)} (side: 0 left, 1 right)"
        )
    with profiling.phase("forward"):
        angles = _angles(trained, samples, source, person)
    degrees = angles.rad2deg()
    rows = [
        [name, *(f"{value:.6f}" for value in both), *(f"{value:.4f}" for value in in_degrees)]
        for name, both, in_degrees in zip(names, angles.tolist(), degrees.tolist(), strict=True)
    ]
    heads, error_deg = [*COLUMNS], None
    if "gaze" in samples.columns:
        truth = samples.columns["gaze"].double()
        errors = angular_error_deg(angles, truth)
        heads, error_deg = [*COLUMNS, *TRUE_COLUMNS], float(errors.mean())
        for row, true, error in zip(rows, truth.tolist(), errors.tolist(), strict=True):
            row += [*(f"{value:.6f}" for value in true), f"{error:.4f}"]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, csv_of([heads, *rows]))
    return AngleFile(out, len(rows), error_deg)


def eye_images(source: Path) -> tuple[list[str], Samples]:
    """Read names and samples from an npz, a picture of an eye, or a folder of such pictures.

    Raises:
        DataError: there are no pictures, or they differ in size.
    """
    if source.suffix == ".npz":
        columns = dict(read_samples(source).columns)
        if "image" not in columns:
            raise DataError(f"{source} has no column image (it has {', '.join(sorted(columns))})")
        # `vergence data patches` writes images without an axis for the colour.
        if columns["image"].ndim == 3:
            columns["image"] = columns["image"][:, None]
        names = [str(number) for number in range(len(columns["image"]))]
    else:
        pictures = opened_source(source)
        # Weights of ITU-R BT.601, as every reader of eye images turns colours into grey.
        grey = [
            np.rint(frame @ [0.299, 0.587, 0.114]).astype(np.uint8) for frame in pictures.frames
        ]
        if len(sizes := {frame.shape for frame in grey}) > 1:
            listed = ", ".join(f"{width} x {height}" for height, width in sorted(sizes))
            raise DataError(f"{source}: eye images must be of one size, got {listed}; {FACES}")
        names, columns = pictures.names, {"image": torch.from_numpy(np.stack(grey))[:, None]}
    count = len(columns["image"])
    return names, Samples({"pose": torch.zeros(count, 2), **columns})


def _angles(trained: TrainedRun, samples: Samples, source: Path, person: str | None) -> Tensor:
    """Predict (pitch, yaw) in radians, float64 `[n, 2]`."""
    shown, params = model_for(trained, samples, person)
    try:
        return shown.outputs(params, next(iter(shown.ready.people.values())).test).double()
    except (ConfigError, RuntimeError) as error:
        height, width = samples.columns["image"].shape[-2:]
        raise DataError(
            f"{source}: the run's network does not take images of {width} x {height} "
            f"({first_line(error)}); give eye images of the size that it was trained on; {FACES}"
        ) from error
