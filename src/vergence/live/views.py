"""Views of a live session: draw the predicted map or direction on a frame.

Used by `live.command` and `live.session`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from vergence.data.eye_images.normalization import gaze_angles
from vergence.data.eye_images.screen_pose import GazePoint
from vergence.data.io.video import rgb
from vergence.live.camera import CameraFrame
from vergence.live.eye_sources import EyeSource
from vergence.live.gaze_models import EyeModel, MapModel
from vergence.live.smoothing import OneEuro
from vergence.video.overlay import EDGE_RGB, PREDICTED_RGB, draw

ARROW = 0.25
"""Quarter of the length of an arrow along the picture, as a share of the picture's height."""


@dataclass(frozen=True, eq=False)
class LiveGaze:
    """Picture with gaze, uint8 `[H, W, 3]`, and the predicted numbers; None: no gaze is known."""

    picture: NDArray[np.uint8]
    numbers: tuple[float, ...] | None


class LiveView(Protocol):
    """Predicts gaze on a frame and draws it."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the numbers of a frame."""
        ...

    def look(self, frame: CameraFrame) -> LiveGaze:
        """Predict gaze on a frame, and draw it."""
        ...


@dataclass(frozen=True, eq=False)
class MapView:
    """View with the heat map over the frame and a cross at its peak.

    `smooth` filters the numbers, and so the place of the cross; None: they are as predicted.
    """

    model: MapModel
    smooth: OneEuro | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the numbers of a frame."""
        return self.model.columns

    def look(self, frame: CameraFrame) -> LiveGaze:
        """Predict and draw; numbers are x, y of the peak and of the mean, shares of the frame."""
        picture = frame.picture
        shape = self.model.width, self.model.height
        heat = self.model.next_map(rgb(picture, *shape, frame.orientation))
        turned = frame.orientation[2]
        size = (picture.height, picture.width) if turned else (picture.width, picture.height)
        full = rgb(picture, *size, frame.orientation)
        if heat is None:
            return LiveGaze(full, None)
        y, x = np.unravel_index(int(heat.argmax()), heat.shape)
        peak = (float(x + 0.5) / heat.shape[1], float(y + 0.5) / heat.shape[0])
        numbers = (*peak, *centre(heat))
        if self.smooth is not None:
            numbers = self.smooth.smoothed(numbers, frame.time_s)
        return LiveGaze(draw(full, heat, (numbers[0], numbers[1]), legend=False), numbers)


@dataclass(frozen=True, eq=False)
class EyeView:
    """View with an arrow from the middle of the picture: the mean direction of the visible eyes.

    `smooth` filters the direction; None: it is as predicted. With `screen`, the point on the screen
    is predicted, too.
    """

    model: EyeModel
    eyes: EyeSource
    smooth: OneEuro | None = None
    screen: GazePoint | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the numbers of a frame."""
        on_screen = () if self.screen is None else ("screen_x_mm", "screen_y_mm")
        return (*self.model.columns, *on_screen)

    def look(self, frame: CameraFrame) -> LiveGaze:
        """Predict and draw; numbers are (pitch, yaw) in the camera frame, radians.

        With a screen, the point in mm from its top left corner follows; NaN beside its plane.
        """
        picture = frame.picture
        full = rgb(picture, picture.width, picture.height, frame.orientation)
        if not (patches := self.eyes.patches(full)):
            return LiveGaze(full, None)
        gazes = [(self.model.gaze(eye.image, eye.seen.pose, eye.side), eye.seen) for eye in patches]
        # Directions are averaged, and no angles, which jump from pi to -pi.
        direction = np.mean([seen.direction(gaze) for gaze, seen in gazes], axis=0)
        if self.smooth is not None:
            direction = np.array(self.smooth.smoothed(direction.tolist(), frame.time_s))
        numbers = gaze_angles(direction[None])[0].tolist()
        if self.screen is not None:
            origin = np.mean([seen.centre for _, seen in gazes], axis=0)
            numbers += self.screen.points(origin[None], direction[None])[0].tolist()
        return LiveGaze(arrow(full, direction), tuple(numbers))


def centre(heat: NDArray[np.floating]) -> tuple[float, float]:
    """Return the centre of mass (x, y) of a map, in shares of its sides."""
    mass = heat / heat.sum()
    x, y = ((np.arange(n) + 0.5) / n for n in (heat.shape[1], heat.shape[0]))
    return float(mass.sum(0) @ x), float(mass.sum(1) @ y)


def arrow(picture: NDArray[np.uint8], direction: NDArray) -> NDArray[np.uint8]:
    """Draw a direction of the camera frame as an arrow from the middle of the picture."""
    image = Image.fromarray(picture)
    start = np.array([image.width, image.height]) / 2
    end = start + 4 * ARROW * image.height * direction[:2] / np.linalg.norm(direction)
    pen, width = ImageDraw.Draw(image), max(2, image.height // 120)
    for wide, colour in ((2 * width, EDGE_RGB), (width, PREDICTED_RGB)):
        pen.line((*start, *end), fill=colour, width=wide)
        pen.ellipse((*(end - wide), *(end + wide)), fill=colour)
    return np.asarray(image)
