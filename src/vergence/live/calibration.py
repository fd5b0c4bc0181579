"""`vergence live --calibrate`: shows nine targets and records eye patches with gaze angles.

The file has the columns of the task `gaze_angle`: labelled samples of one person, for `vergence
adapt`.

Used by `live.command`.
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
from vergence.data.eye_images.screen_pose import Screen, nine_points
from vergence.data.io.video import rgb
from vergence.errors import ConfigError, DataError, PartialRun
from vergence.live.camera import CameraFrame, LiveCamera
from vergence.live.eye_sources import EyePatch, EyeSource

# Assumed height of the camera above the middle of the screen's upper edge, mm. Cameras of laptops
# sit in the bezel; an error of some mm is one of .5 degrees at 600 mm.
ABOVE_MM = 8.0


class TargetDisplay(Protocol):
    """Screen that shows a dot."""

    def target(self, place: Sequence[float]) -> bool:
        """Show a dot at (x, y), shares of the screen; False if the person wants to end."""
        ...


@dataclass(frozen=True)
class CalibrationPlan:
    """Targets of a calibration, and their timing.

    Attributes:
        width_mm: width of the screen.
        height_mm: height of the screen.
        samples: number of frames to record for each target.
        settle_s: time at the beginning of a target during which the eye moves to it; its frames are
            not recorded.
        longest_s: time after which the next target is shown, even without enough frames.
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
class TargetSample:
    """An eye patch with the numbers of its frame and of the target."""

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
    """Show the targets, write the samples (.npz), and return their number.

    Arrays: `image` uint8 `[n, 1, height, width]`, `pose` and `gaze` float32 `[n, 2]` radians,
    `side` (0 left, 1 right), `frame` and `target` int64 `[n]`, `target_mm` `[n, 2]` on the screen,
    `centre_mm` `[n, 3]` and `rotation` `[n, 3, 3]` of the eye, see `Normalised`; in the order in
    which they came.

    Args:
        camera: a camera whose context has been entered.
        eyes: detector of the eyes in a frame.
        display: screen that shows the targets.
        plan: the targets and their timing.
        out: file to write.
        clock: function that gives the time of a frame, seconds.

    Raises:
        DataError: the camera ended, or a target has no frame with an eye in it.
        PartialRun: the person ended the calibration; nothing is written.
    """
    shares = plan.points_mm / (plan.width_mm, plan.height_mm)
    samples = [
        sample
        for number, place in enumerate(shares)
        for sample in _target_samples(camera, eyes, display, plan, number, place, clock)
    ]
    columns = columns_of(samples, plan)
    # Pictures of eyes identify people: the file is readable by its owner only.
    with replacing(out, secret=True) as scratch, scratch.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **columns)
    return len(columns["gaze"])


def columns_of(samples: Sequence[TargetSample], plan: CalibrationPlan) -> dict[str, NDArray]:
    """Return the arrays of the file, by name."""
    seen = [row.patch.seen for row in samples]
    places_mm, targets = plan.places_mm, np.array([row.target for row in samples])
    labels = [eye.gaze(places_mm[target]) for eye, target in zip(seen, targets, strict=True)]
    return {
        "image": np.stack([row.patch.image for row in samples])[:, None],
        "pose": np.stack([eye.pose for eye in seen]).astype(np.float32),
        "gaze": np.stack(labels).astype(np.float32),
        "side": np.array([int(row.patch.side == "right") for row in samples]),
        "frame": np.array([row.frame for row in samples]),
        "target": targets,
        "target_mm": plan.points_mm[targets].astype(np.float32),
        "centre_mm": np.stack([eye.centre for eye in seen]).astype(np.float32),
        "rotation": np.stack([eye.rotation for eye in seen]).astype(np.float32),
    }


def _target_samples(
    camera: LiveCamera,
    eyes: EyeSource,
    display: TargetDisplay,
    plan: CalibrationPlan,
    number: int,
    place: NDArray,
    clock: Callable[[CameraFrame], float],
) -> list[TargetSample]:
    """Show one target and return the eye patches of its frames."""
    samples: list[TargetSample] = []
    began, waited, frames = None, perf_counter(), 0
    while frames < plan.samples and perf_counter() - waited < plan.settle_s + plan.longest_s:
        if not display.target(place.tolist()):
            raise PartialRun(f"ended at target {number + 1} of 9; no calibration is written")
        # Short waits, so that Escape is noticed between two frames of a slow camera.
        if (frame := camera.newest(0.05)) is None:
            if camera.ended:
                raise DataError(f"{camera.source} ended at target {number + 1} of 9")
            continue
        # A target is looked at from the first frame that shows it, and not from the call on: a slow
        # camera would use up the time in which the eye settles.
        began = clock(frame) if began is None else began
        if clock(frame) - began < plan.settle_s:
            continue
        picture = frame.picture
        patches = eyes.patches(rgb(picture, picture.width, picture.height, frame.orientation))
        samples += [TargetSample(patch, frame.number, number) for patch in patches]
        # A frame without an eye, as in a blink, does not count.
        frames += bool(patches)
    if not samples:
        raise DataError(f"no eye was seen while target {number + 1} of 9 was shown")
    return samples
