"""Points of gaze on a screen, and nine points to look at.

Screen frame: mm, the top left corner is the origin, x to the right and y down as the person in
front of it sees them, z into the screen; its surface is z = 0. Everything else is in the camera
frame of `vergence.data.eye_images.camera`. Source: eyeimages design note, 3.5 step 6 and 6.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Screen:
    """A plane: a point p of the camera frame is `rotation @ p + offset` in the screen frame."""

    rotation: NDArray
    offset: NDArray

    @staticmethod
    def facing(x: float, y: float) -> Screen:
        """Return the screen whose camera is at (x, y) mm of it and looks straight out of it.

        A camera 8 mm above the middle of a screen 344 mm wide is at (172, -8).
        """
        return Screen(np.diag([-1.0, 1.0, -1.0]), np.array([x, y, 0.0]))

    def place(self, points: NDArray) -> NDArray:
        """Return places `[n, 3]` in the camera frame of points `[n, 2]` on the screen."""
        flat = np.concatenate([points, np.zeros((len(points), 1))], 1)
        return (flat - self.offset) @ self.rotation

    def points(self, origins: NDArray, directions: NDArray) -> NDArray:
        """Points where rays meet the plane, mm `[n, 2]`; NaN where somebody looks away from it."""
        start = origins @ self.rotation.T + self.offset
        along = directions @ self.rotation.T
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = -start[:, 2] / along[:, 2]
            steps = np.where(np.isfinite(steps) & (steps > 0), steps, np.nan)
        return start[:, :2] + steps[:, None] * along[:, :2]


def nine_points(width_mm: float, height_mm: float, margin: float = 0.1) -> NDArray:
    """Return a 3 x 3 grid of points to look at, mm `[9, 2]`, row by row.

    `margin` is the part of the screen left free at either edge.
    """
    steps = np.array([margin, 0.5, 1 - margin])
    return np.stack(np.meshgrid(steps * width_mm, steps * height_mm), -1).reshape(-1, 2)
