"""Eye patches from frames of a camera that shows a face, or one eye at close range.

Used by `live.calibration`, `live.command` and `live.views`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vergence.data.eye_images.camera import Camera
from vergence.data.eye_images.crop import equalise
from vergence.data.eye_images.landmarks import Find
from vergence.data.eye_images.normalization import EYE, Normalised, eye_patch, eyes, head_pose

Side = Literal["left", "right"]


@dataclass(frozen=True, eq=False)
class EyePatch:
    """Grey, equalised patch, uint8 `[height, width]`, and the virtual camera that shows it.

    Right eyes are mirrored, see `Normalised`.
    """

    image: NDArray[np.uint8]
    seen: Normalised
    side: Side


class EyeSource(Protocol):
    """Detector of eyes in a picture."""

    def patches(self, picture: NDArray[np.uint8]) -> list[EyePatch]:
        """Return eye patches of a picture, uint8 `[H, W, 3]`; empty where no eye is seen."""
        ...


@dataclass(frozen=True)
class EyeCamera:
    """Camera at close range to one eye: its whole picture is the patch.

    The head is not seen, so its pose is set to zero, and the eye is assumed to look straight into
    the camera from a distance of `distance_mm`. Angles have the error of these assumptions, until a
    calibration.

    Attributes:
        height: height of the patch in pixels.
        width: width of the patch in pixels.
        side: which eye the camera shows.
        distance_mm: distance from the eye to the screen.
    """

    height: int
    width: int
    side: Side = "left"
    distance_mm: float = 600.0

    def patches(self, picture: NDArray[np.uint8]) -> list[EyePatch]:
        """Return the whole picture, mirrored where it shows a right eye."""
        grey = Image.fromarray(picture).convert("L")
        image = equalise(resized(grey, self.height, self.width)[None])[0]
        place = np.array([0.0, 0.0, self.distance_mm])
        mirrored = self.side == "right"
        seen = Normalised(place, np.eye(3), np.zeros(2), EYE, mirrored)
        return [EyePatch(image[:, ::-1] if mirrored else image, seen, self.side)]


@dataclass(frozen=True, eq=False)
class FaceCamera:
    """Camera in front of a face: cuts out both eyes, as `vergence data patches` does.

    Attributes:
        find: function that finds face landmarks in a picture, see `load_landmarker`.
        height: height of the patch in pixels.
        width: width of the patch in pixels.
        camera: calibration of the camera; None: a typical one is assumed.
    """

    find: Find
    height: int
    width: int
    camera: Camera | None = None

    def patches(self, picture: NDArray[np.uint8]) -> list[EyePatch]:
        """Return both eyes; empty where no face is found, or an eye is partly outside."""
        if (landmarks := self.find(picture)) is None:
            return []
        size = picture.shape[1], picture.shape[0]
        camera = Camera.guessed(*size) if self.camera is None else self.camera.of_size(*size)
        both = eyes(head_pose(landmarks, camera))
        if not all(eye.inside(camera) for eye in both):
            return []
        sides: tuple[Side, Side] = ("left", "right")
        return [
            EyePatch(self._sized(eye_patch(eye, picture, camera)), eye, side)
            for eye, side in zip(both, sides, strict=True)
        ]

    def _sized(self, patch: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if patch.shape == (self.height, self.width):
            return patch
        return equalise(resized(Image.fromarray(patch), self.height, self.width)[None])[0]


def resized(picture: Image.Image, height: int, width: int) -> NDArray[np.uint8]:
    """Resize a picture."""
    return np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR))
