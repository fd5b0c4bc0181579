"""Pinhole cameras: pixels to rays and back, lens distortion, and a guess without calibration.

Camera frame: mm, x right, y down, z away from the camera. Pixel coordinates are those of OpenCV:
the middle of the first pixel is (0, 0). So OpenCV's matrices and coefficients need no conversion.

Used by `data.eye_images.face_patches`, `data.eye_images.face_pictures`,
`data.eye_images.normalization`, `live.eye_sources` and `video.eye_patches`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vergence.core.files import parse_json
from vergence.errors import DataError

# Each step gains about a digit on ordinary lenses.
ROUNDS = 30
"""Number of fixed-point steps in undoing the lens distortion."""
FORM = (
    'a camera is {"matrix": 3x3, "size": [width, height], "distortion": [k1, k2, p1, p2, k3]}, as '
    "OpenCV calibrates it; distortion may be left out"
)


@dataclass(frozen=True, eq=False)
class Camera:
    """A pinhole camera with lens distortion.

    Attributes:
        matrix: the camera matrix `[3, 3]`, in pixels.
        size: width and height of its pictures, in pixels.
        distortion: OpenCV's five coefficients k1, k2, p1, p2, k3.
    """

    matrix: NDArray
    size: tuple[int, int]
    distortion: NDArray = field(default_factory=lambda: np.zeros(5))

    @staticmethod
    def guessed(width: int, height: int) -> Camera:
        """Return a guess for an uncalibrated camera: the focal length is max(width, height) pixels.

        If the true focal length differs from the guess by a factor, all depths are wrong by that
        factor. Angles are off by a few degrees. Source: eyeimages design note, 3.5.
        """
        focal = max(width, height)
        middle = ((width - 1) / 2, (height - 1) / 2)
        return Camera(
            np.array([[focal, 0, middle[0]], [0, focal, middle[1]], [0, 0, 1.0]]), (width, height)
        )

    def of_size(self, width: int, height: int) -> Camera:
        """Return the same camera, with its matrix scaled to pictures of width x height pixels.

        Raises:
            DataError: the new size has other proportions, so the picture was cropped or turned.
        """
        scale = width / self.size[0]
        # One pixel of slack: resized heights are rounded.
        if abs(self.size[1] * scale - height) > 1:
            raise DataError(
                f"the camera was calibrated for {self.size[0]} x {self.size[1]} pixels, a picture "
                f"has {width} x {height}: give pictures of that shape, or calibrate for these"
            )
        # Pixel centres are at whole numbers, so resizing moves the origin by (scale - 1) / 2.
        shift = np.array([[scale, 0, (scale - 1) / 2], [0, scale, (scale - 1) / 2], [0, 0, 1]])
        return replace(self, matrix=shift @ self.matrix, size=(width, height))

    def project(self, points: NDArray) -> NDArray:
        """Return the pixels `[*, 2]` of points or directions `[*, 3]` before the camera."""
        plane = _distorted(points[..., :2] / points[..., 2:], self.distortion)
        return plane @ self.matrix[:2, :2].T + self.matrix[:2, 2]

    def rays(self, pixels: NDArray) -> NDArray:
        """Return the directions `[*, 3]` that pixels `[*, 2]` show, scaled to z = 1.

        The lens distortion is removed.
        """
        seen = (pixels - self.matrix[:2, 2]) @ np.linalg.inv(self.matrix[:2, :2]).T
        # Distortion has no closed inverse: subtract the error of the last guess again and again.
        plane = seen
        for _ in range(ROUNDS if self.distortion.any() else 0):
            plane = plane + seen - _distorted(plane, self.distortion)
        return np.concatenate([plane, np.ones_like(plane[..., :1])], -1)


def _distorted(plane: NDArray, coefficients: NDArray) -> NDArray:
    """Return where the lens distortion moves points `[*, 2]` of the plane z = 1.

    The model is Brown-Conrady's, with five coefficients.
    """
    k1, k2, p1, p2, k3 = coefficients
    x, y = plane[..., 0], plane[..., 1]
    square = x * x + y * y
    radial = 1 + square * (k1 + square * (k2 + square * k3))
    return np.stack(
        [
            x * radial + 2 * p1 * x * y + p2 * (square + 2 * x * x),
            y * radial + p1 * (square + 2 * y * y) + 2 * p2 * x * y,
        ],
        -1,
    )


def read_camera(path: Path) -> Camera:
    """Read a calibrated camera from a JSON file.

    Raises:
        DataError: the file is missing, or does not hold a camera.
    """
    try:
        config = parse_json(path.read_text(encoding="utf-8"))
        matrix, (width, height) = np.asarray(config["matrix"], float), map(int, config["size"])
        distortion = np.asarray(config.get("distortion", np.zeros(5)), float).ravel()
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as fault:
        raise DataError(f"cannot read {path} ({type(fault).__name__}: {fault}): {FORM}") from None
    upright = matrix.shape == (3, 3) and np.isfinite(matrix).all()
    if not upright or min(matrix[0, 0], matrix[1, 1]) <= 0 or (matrix[2] != (0, 0, 1)).any():
        raise DataError(
            f"{path}: matrix must be [[fx, s, cx], [0, fy, cy], [0, 0, 1]] in pixels, got "
            f"{matrix.tolist()}"
        )
    if distortion.shape != (5,) or not np.isfinite(distortion).all() or min(width, height) < 1:
        raise DataError(
            f"{path}: {distortion.size} distortion terms, size {width}x{height}: {FORM}"
        )
    return Camera(matrix, (width, height), distortion)
