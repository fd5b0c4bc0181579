"""`vergence live --calibrate`: nine targets looked at, and the eye patches with their angles.

The file has the columns of task `gaze_angle`: labelled samples of one person, for `vergence adapt`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vergence.core.files import replacing
from vergence.data.eye_images.screen import Screen, nine_points
from vergence.data.io.video import rgb
from vergence.errors import ConfigError, DataError, PartialRun
from vergence.live.camera import CameraFrame, LiveCamera
from vergence.live.eye_sources import EyePatch, EyeSource

ABOVE_MM = 8.0
"""A camera is taken to sit so far above the middle of the screen's upper edge."""


class TargetDisplay(Protocol):
    """Screen that shows a dot."""

    def target(self, place: Sequence[float]) -> bool:
        """Show a dot at (x, y), shares of the screen; False if the person wants to end."""
        ...


@dataclass(frozen=True)
class CalibrationPlan:
    """Targets, and how long each is looked at.

    Attributes:
        width_mm: of the screen.
        height_mm: of the screen.
        samples: frames that are kept of each target.
        settle_s: time at its beginning that the eye needs to get there; nothing is kept.
        longest_s: time after which a target without enough frames is left.
    """

    width_mm: float
    height_mm: float
    samples: int = 5
    settle_s: float = 1.0
    longest_s: float = 10.0

    def __post_init__(self) -> None:
        if min(self.width_mm, self.height_mm) <= 0 or self.samples < 1:
            raise ConfigError(
                f"a calibration needs a screen above 0 mm and 1 sample or more, got "
                f"{self.width_mm:g} x {self.height_mm:g} mm and {self.samples}"
            )

    @property
    def points_mm(self) -> NDArray:
        """The nine targets, mm on the screen `[9, 2]`."""
        return nine_points(self.width_mm, self.height_mm)

    @property
    def places_mm(self) -> NDArray:
        """The nine targets in the camera frame, mm `[9, 3]`."""
        return Screen.facing(self.width_mm / 2, -ABOVE_MM).place(self.points_mm)


@dataclass(frozen=True, eq=False)
class LookedAt:
    """A patch with the number of its frame and of the target that was shown."""

    patch: EyePatch
    frame: int
    target: int


def calibrate(
    camera: LiveCamera,
    eyes: EyeSource,
    display: TargetDisplay,
    plan: CalibrationPlan,
    out: Path,
    clock: Callable[[CameraFrame], float] = lambda frame: frame.came_s,
) -> int:
    """Show the targets, write the samples (.npz), and return how many there are.

    Arrays: `image` uint8 `[n, 1, height, width]`, `pose` and `gaze` float32 `[n, 2]` radians,
    `side` (0 left, 1 right), `frame` and `target` int64 `[n]`; in the order in which they came.

    Args:
        camera: entered already.
        eyes: finder of the eyes.
        display: where the targets are shown.
        plan: which, and how long.
        out: the file.
        clock: time of a frame, seconds.

    Raises:
        DataError: the camera ended, or a target has no frame with an eye in it.
        PartialRun: the person ended it; nothing is written.
    """
    found: list[LookedAt] = []
    shares = plan.points_mm / (plan.width_mm, plan.height_mm)
    for number, place in enumerate(shares):
        found += _looked_at(camera, eyes, display, plan, number, place, clock)
    columns = columns_of(found, plan.places_mm)
    with replacing(out, secret=True) as scratch, scratch.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **columns)
    return len(columns["gaze"])


def columns_of(found: Sequence[LookedAt], places_mm: NDArray) -> dict[str, NDArray]:
    """Return the arrays of the file."""
    seen = [row.patch.seen for row in found]
    labels = [row.patch.seen.gaze(places_mm[row.target]) for row in found]
    return {
        "image": np.stack([row.patch.image for row in found])[:, None],
        "pose": np.stack([eye.pose for eye in seen]).astype(np.float32),
        "gaze": np.stack(labels).astype(np.float32),
        "side": np.array([int(row.patch.side == "right") for row in found]),
        "frame": np.array([row.frame for row in found]),
        "target": np.array([row.target for row in found]),
    }


def _looked_at(
    camera: LiveCamera,
    eyes: EyeSource,
    display: TargetDisplay,
    plan: CalibrationPlan,
    number: int,
    place: NDArray,
    clock: Callable[[CameraFrame], float],
) -> list[LookedAt]:
    """Patches of the frames in which one target is looked at."""
    found: list[LookedAt] = []
    began, waited, kept = None, perf_counter(), 0
    while kept < plan.samples and perf_counter() - waited < plan.settle_s + plan.longest_s:
        if not display.target(place.tolist()):
            raise PartialRun(f"ended at target {number + 1} of 9; no calibration is written")
        frame = camera.newest(0.05)
        if frame is None:
            if camera.ended:
                raise DataError(f"{camera.source} ended at target {number + 1} of 9")
            continue
        began = clock(frame) if began is None else began
        if clock(frame) - began < plan.settle_s:
            continue
        picture = frame.picture
        patches = eyes.patches(rgb(picture, picture.width, picture.height))
        found += [LookedAt(patch, frame.number, number) for patch in patches]
        kept += bool(patches)
    if not found:
        raise DataError(f"no eye was seen while target {number + 1} of 9 was shown")
    return found
