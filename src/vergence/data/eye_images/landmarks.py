"""Seven landmarks of a face through MediaPipe's face landmarker (extra `camera`).

The user provides the model file: MediaPipe ships none. Landmarks are found in every picture alone.
With tracking from frame to frame, a landmark would depend on the frames before.

Used by `data.eye_images.face_patches`, `data.eye_images.face_pictures`, `live.command`,
`live.eye_sources` and `video.eye_patches`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vergence.errors import ConfigError, DataError, first_line

MESH = (33, 133, 362, 263, 61, 291, 1)
"""Mesh points of MediaPipe: eye corners from the image left to right, mouth corners, nose."""
Find = Callable[[NDArray[np.uint8]], NDArray[np.float64] | None]
"""Function from a picture uint8 `[H, W, 3]` to its landmarks `[7, 2]` in pixels; None: no face."""
WHERE = (
    "give MediaPipe's face landmarker (face_landmarker.task, from the page of its Face Landmarker) "
    "with --landmarker PATH"
)


def points_of(result: Any, width: int, height: int) -> NDArray[np.float64] | None:
    """Return the landmarks `[7, 2]` in pixels of the first face in a MediaPipe result.

    The result is None if there is no face.

    Raises:
        DataError: the model's mesh lacks one of the points in `MESH`.
    """
    if not result.face_landmarks:
        return None
    mesh = result.face_landmarks[0]
    if len(mesh) <= max(MESH):
        raise DataError(
            f"the landmarker finds {len(mesh)} points of a face, 468 are needed: {WHERE}"
        )
    # MediaPipe counts from the corner of the picture, cameras from the middle of the first pixel.
    return np.array([(mesh[i].x * width - 0.5, mesh[i].y * height - 0.5) for i in MESH])


@contextmanager
def open_landmarker(path: Path) -> Iterator[Find]:
    """Open a `.task` file, and yield a function that returns one face's landmarks in a picture.

    Raises:
        ConfigError: MediaPipe is not installed.
        DataError: the file is missing or is no face landmarker.
    """
    try:
        mediapipe: Any = importlib.import_module("mediapipe")
        vision: Any = importlib.import_module("mediapipe.tasks.python.vision")
        base: Any = importlib.import_module("mediapipe.tasks.python.core.base_options")
    except ImportError:
        raise ConfigError(
            "finding faces needs mediapipe 1.0 or newer: pip install 'vergence[camera]'"
        ) from None
    if not path.is_file():
        raise DataError(f"no face landmarker at {path}: {WHERE}")
    try:
        detector = vision.FaceLandmarker.create_from_options(
            vision.FaceLandmarkerOptions(
                base_options=base.BaseOptions(model_asset_path=str(path)), num_faces=1
            )
        )
    except (RuntimeError, ValueError, OSError) as fault:
        reason = first_line(fault)
        raise DataError(f"{path} is no face landmarker ({reason}): {WHERE}") from None

    def find(picture: NDArray[np.uint8]) -> NDArray[np.float64] | None:
        pixels = np.ascontiguousarray(picture)
        image = mediapipe.Image(image_format=mediapipe.ImageFormat.SRGB, data=pixels)
        return points_of(detector.detect(image), picture.shape[1], picture.shape[0])

    with detector:
        yield find
