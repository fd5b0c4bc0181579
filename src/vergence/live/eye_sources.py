"""Eye patches of a camera's pictures: of a face in front of it, or of an eye right before it."""

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
    """A grey, equalised patch, uint8 `[height, width]`, and the virtual camera that shows it.

    Right eyes are mirrored, see `Normalised`.
    """

    image: NDArray[np.uint8]
    seen: Normalised
    side: Side


class EyeSource(Protocol):
    """Finder of the eyes in a picture."""

    def patches(self, picture: NDArray[np.uint8]) -> list[EyePatch]:
        """Patches of a picture, uint8 `[H, W, 3]`; none where no eye is seen."""
        ...


@dataclass(frozen=True)
class EyeCamera:
    """A camera right before one eye: its whole picture is the patch.

    No head is seen, so its pose is zero, and the eye is taken to look straight into the camera
    from `distance_mm` away: angles are off by what is wrong with that, until a calibration.

    Attributes:
        height: of the patch.
        width: of the patch.
        side: which eye.
        distance_mm: from the eye to the screen.
    """

    height: int
    width: int
    side: Side = "left"
    distance_mm: float = 600.0

    def patches(self, picture: NDArray[np.uint8]) -> list[EyePatch]:
        """The whole picture, mirrored where it shows a right eye."""
        grey = Image.fromarray(picture).convert("L")
        image = equalise(resized(grey, self.height, self.width)[None])[0]
        place = np.array([0.0, 0.0, self.distance_mm])
        mirrored = self.side == "right"
        seen = Normalised(place, np.eye(3), np.zeros(2), EYE, mirrored)
        return [EyePatch(image[:, ::-1] if mirrored else image, seen, self.side)]


@dataclass(frozen=True, eq=False)
class FaceCamera:
    """A camera in front of a face: both eyes, cut out as `vergence data patches` does.

    Attributes:
        find: landmarks of a picture, as `landmarker` yields it.
        height: of the patch.
        width: of the patch.
        camera: a calibrated one; None: one is guessed.
    """

    find: Find
    height: int
    width: int
    camera: Camera | None = None

    def patches(self, picture: NDArray[np.uint8]) -> list[EyePatch]:
        """Both eyes; none where no face is found, or an eye leaves the picture."""
        landmarks = self.find(picture)
        if landmarks is None:
            return []
        size = picture.shape[1], picture.shape[0]
        taken = Camera.guessed(*size) if self.camera is None else self.camera.of_size(*size)
        both = eyes(head_pose(landmarks, taken))
        if not all(eye.inside(taken) for eye in both):
            return []
        sides: tuple[Side, Side] = ("left", "right")
        return [
            EyePatch(self._sized(eye_patch(eye, picture, taken)), eye, side)
            for eye, side in zip(both, sides, strict=True)
        ]

    def _sized(self, patch: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if patch.shape == (self.height, self.width):
            return patch
        return equalise(resized(Image.fromarray(patch), self.height, self.width)[None])[0]


def resized(picture: Image.Image, height: int, width: int) -> NDArray[np.uint8]:
    """Return a picture in another size."""
    return np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR))
