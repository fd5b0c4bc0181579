"""Gaze points on a screen, and calibration from nine screen points that a person looked at.

Screen frame: in mm from the screen's top left corner, x to the right and y down as seen by the
person in front of the screen, z into the screen. The screen's surface is z = 0. All other
coordinates are in the camera frame of `vergence.data.eye_images.camera`. Source: eyeimages design
note, 3.5 step 6 and 6.1.

Used by `live.calibration`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.spatial.transform import Rotation

from vergence.data.eye_images.normalization import gaze_angles
from vergence.errors import DataError

# The quadratic has six numbers per axis, and one point is left out in turn.
FEWEST = 7
"""Fewest points for a calibration."""

Fit = Callable[[NDArray, NDArray, NDArray], "GazePoint"]


class GazePoint(Protocol):
    """Function from gaze rays to points on the screen, in mm `[n, 2]`."""

    def points(self, origins: NDArray, directions: NDArray) -> NDArray:
        """Return the screen points of rays from origins `[n, 3]` in directions `[n, 3]`."""
        ...


@dataclass(frozen=True, eq=False)
class Screen:
    """The plane of a screen, and its place before the camera.

    A point p in the camera frame is `rotation @ p + offset` in the screen frame, in mm.
    """

    rotation: NDArray
    offset: NDArray

    @staticmethod
    def facing(x: float, y: float) -> Screen:
        """Return a screen with the camera at (x, y) mm on its plane, looking straight out of it.

        For example, a camera 8 mm above the middle of a screen 344 mm wide is at (172, -8).
        """
        # The camera looks at the person: its x and z axes run against the screen's.
        return Screen(np.diag([-1.0, 1.0, -1.0]), np.array([x, y, 0.0]))

    def place(self, points: NDArray) -> NDArray:
        """Return points on the screen `[n, 2]` as points in the camera frame `[n, 3]`, in mm."""
        flat = np.concatenate([points, np.zeros((len(points), 1))], 1)
        return (flat - self.offset) @ self.rotation

    def points(self, origins: NDArray, directions: NDArray) -> NDArray:
        """Return the points in mm `[n, 2]` where rays meet the screen's plane.

        A ray that does not meet the plane gives NaN.
        """
        start = origins @ self.rotation.T + self.offset
        along = directions @ self.rotation.T
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = -start[:, 2] / along[:, 2]
            steps = np.where(np.isfinite(steps) & (steps > 0), steps, np.nan)
        return start[:, :2] + steps[:, None] * along[:, :2]


@dataclass(frozen=True, eq=False)
class Quadratic:
    """Screen points as a quadratic function of gaze (pitch, yaw), for a head that does not move."""

    weights: NDArray

    def points(self, origins: NDArray, directions: NDArray) -> NDArray:
        """Return the screen points of gaze directions `[n, 3]`, in mm `[n, 2]`.

        The origins are not used.
        """
        return _terms(directions) @ self.weights


@dataclass(frozen=True)
class PoseFit:
    """A fitted model, and its mean leave-one-out error over the calibration points."""

    model: GazePoint
    error_cm: float
    error_deg: float


def nine_points(width_mm: float, height_mm: float, margin: float = 0.1) -> NDArray:
    """Return a 3 x 3 grid of screen points, in mm `[9, 2]`, row by row.

    Live calibration shows these points, and the person looks at each. `margin` is the distance of
    the outer points from the screen's edges, as a fraction of its width and height.
    """
    steps = np.array([margin, 0.5, 1 - margin])
    return np.stack(np.meshgrid(steps * width_mm, steps * height_mm), -1).reshape(-1, 2)


def fit_plane(
    origins: NDArray, directions: NDArray, targets: NDArray, start: Screen | None = None
) -> Screen:
    """Return the screen plane with the least squared angles between gaze and targets.

    Args:
        origins: eye centres, mm in the camera frame `[n, 3]`.
        directions: gaze in the camera frame `[n, 3]`.
        targets: the points looked at, mm on the screen `[n, 2]`.
        start: first guess of the screen's position; default: the camera is above the middle of the
            targets.
    """
    begin = start or Screen.facing(float(targets[:, 0].mean()), float(targets[:, 1].min()))
    gaze = directions / np.linalg.norm(directions, axis=1, keepdims=True)

    def screen(change: NDArray) -> Screen:
        turn = Rotation.from_rotvec(change[:3]).as_matrix()
        # 100 mm count as one, so that the solver gets numbers of a size similar to the rotation's.
        return Screen(turn @ begin.rotation, begin.offset + 100 * change[3:])

    def miss(change: NDArray) -> NDArray:
        wanted = screen(change).place(targets) - origins
        return (wanted / np.linalg.norm(wanted, axis=1, keepdims=True) - gaze).ravel()

    return screen(least_squares(miss, np.zeros(6), xtol=1e-12, ftol=1e-12).x)


def calibrate(origins: NDArray, directions: NDArray, targets: NDArray) -> dict[str, PoseFit]:
    """Fit the models "plane" and "quadratic" to points looked at, and return both by name.

    The model with the smaller error in cm comes first. Each point's error is that of a fit without
    this point; the mean over points is reported, in cm on the screen and in degrees at the eye. For
    degrees, the eye's distance is taken from the plane fitted to all points. If a ray misses the
    plane, the model's errors are infinite.

    Raises:
        DataError: fewer than seven points, or a number is not finite.
    """
    arrays = tuple(np.asarray(a, float) for a in (origins, directions, targets))
    count = len(targets)
    if [a.shape for a in arrays] != [(count, 3), (count, 3), (count, 2)] or count < FEWEST:
        raise DataError(
            f"a screen is calibrated with {FEWEST} points or more (9 are usual), each with origin, "
            f"direction and target, got shapes {[a.shape for a in arrays]}"
        )
    if not all(np.isfinite(a).all() for a in arrays):
        raise DataError("a screen calibration holds NaN: leave out the points without a face")
    plane = fit_plane(arrays[0], arrays[1], arrays[2])
    fitted = {
        "plane": _cross_validate(fit_plane, arrays, plane),
        "quadratic": _cross_validate(
            lambda _, gaze, seen: Quadratic(np.linalg.lstsq(_terms(gaze), seen, rcond=None)[0]),
            arrays,
            plane,
        ),
    }
    return dict(sorted(fitted.items(), key=lambda item: item[1].error_cm))


def _cross_validate(fit: Fit, arrays: tuple[NDArray, ...], plane: Screen) -> PoseFit:
    origins, directions, targets = arrays
    hits = np.empty_like(targets)
    for row in range(len(targets)):
        others = np.arange(len(targets)) != row
        model = fit(origins[others], directions[others], targets[others])
        hits[row] = model.points(origins[[row]], directions[[row]])[0]
    seen, wanted = plane.place(hits) - origins, plane.place(targets) - origins
    # The arctangent of sine and cosine is exact for small angles, the arccosine is not.
    sine = np.linalg.norm(np.cross(seen, wanted), axis=1)
    errors = (
        np.linalg.norm(hits - targets, axis=1).mean() / 10,
        np.rad2deg(np.arctan2(sine, (seen * wanted).sum(1)).mean()),
    )
    cm, degrees = (float(np.nan_to_num(error, nan=np.inf)) for error in errors)
    return PoseFit(fit(*arrays), cm, degrees)


def _terms(directions: NDArray) -> NDArray:
    pitch, yaw = gaze_angles(directions).T
    return np.stack([np.ones_like(pitch), pitch, yaw, pitch**2, pitch * yaw, yaw**2], 1)
