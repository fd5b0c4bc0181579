"""Eye patches of 36x60 pixels cut from pictures, both eyes of a frame, and a test of yaw signs.

In every patch the nose is at the left edge. A left eye is stored as a camera sees it. A right eye
is mirrored, and the yaws of its gaze and of the head change their signs.

Used by `data.eye_images.columbia`, `data.eye_images.face_pictures`, `data.eye_images.gazecapture`
and `data.eye_images.mpiifacegaze`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vergence.core.data import Samples
from vergence.data.eye_images.crop import HEIGHT, WIDTH, equalise
from vergence.data.eye_images.mpiigaze_crops import eye_samples
from vergence.errors import DataError

MIDDLE = (slice(13, 22), slice(22, 37))
"""Rows and columns of a patch in which the test of yaw signs looks for the iris."""
DARK = 85
"""Pixels below this grey value are dark: about a third of the pixels of an equalised patch."""
# On MPIIGaze patches, 3,000 of each of 11 people, the correlation is between -0.20 and -0.61.
ENOUGH, WRONG = 200, 0.15
"""Fewest patches for the test of yaw signs, and the correlation above which it refuses the data."""


def cut(picture: Image.Image, centre: tuple[float, float], width: float) -> NDArray | None:
    """Return the grey patch uint8 `[36, 60]` around a centre (x, y), in pixels of the picture.

    The patch covers `width` pixels of the picture, and three fifths of that in height. Its
    histogram is not equalised. If the patch would reach beyond the picture, the result is None.
    """
    x, y = centre
    half, rise = width / 2, width * HEIGHT / WIDTH / 2
    box = (x - half, y - rise, x + half, y + rise)
    if not (
        min(box[:2]) >= 0 and box[2] <= picture.width and box[3] <= picture.height and half > 0
    ):
        return None
    return np.asarray(picture.convert("L").resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR, box))


def both_eyes(left: NDArray, right: NDArray, gaze: NDArray, pose: NDArray) -> dict[str, NDArray]:
    """Return `image`, `gaze` and `pose` of n left eyes, followed by the n right eyes, mirrored.

    Patches are equalised. Yaws of right eyes change their signs.

    Args:
        left: the person's left eyes, uint8 `[n, 36, 60]`, unmirrored.
        right: the right eyes of the same frames, unmirrored.
        gaze: (pitch, yaw) of the gaze in each frame, in radians, `[n, 2]`.
        pose: (pitch, yaw) of the head in each frame, in radians, `[n, 2]`.
    """
    # A mirrored eye looks to the other side: yaw changes its sign, pitch does not.
    mirror = np.array([1, -1])
    return {
        "image": equalise(np.concatenate([left, right[:, :, ::-1]])),
        "gaze": np.concatenate([gaze, gaze * mirror]).astype(np.float32),
        "pose": np.concatenate([pose, pose * mirror]).astype(np.float32),
    }


def frame_samples(columns: dict[str, NDArray], frames: NDArray) -> Samples:
    """Return samples of both eyes of some frames.

    `columns` is a result of `both_eyes`, and `frames` `[m]` holds the numbers of the frames. The
    column `side` int64 (0 left, 1 right) is added.
    """
    half = len(columns["gaze"]) // 2
    columns = {**columns, "side": np.repeat([0, 1], half)}
    return eye_samples(columns, np.concatenate([frames, half + frames]))


def verify_yaw_sign(people: Sequence[Mapping[str, NDArray]], what: str) -> None:
    """Check that the iris lies further left in patches with a greater yaw.

    Positive yaw looks to the image left. In the middle of each patch, the test takes the mean
    column of the dark pixels, and correlates it with the yaw over all patches. Fewer than 200
    patches are always accepted.

    Raises:
        DataError: the correlation is positive and above `WRONG`.
    """
    gaze, image = (np.concatenate([own[name] for own in people]) for name in ("gaze", "image"))
    image = image[:, MIDDLE[0], MIDDLE[1]]
    dark = np.clip(DARK - image.astype(float), 0, None).sum(1)
    seen = dark.sum(1) > 0
    yaw = gaze[seen, 1].astype(float)
    # With few patches, or one direction of gaze, a correlation says nothing about signs.
    if seen.sum() < ENOUGH or yaw.std() < 1e-6:
        return
    place = dark[seen] @ np.arange(dark.shape[1]) / dark[seen].sum(1)
    if place.std() < 1e-6:
        return
    agreement = np.corrcoef(place, yaw)[0, 1]
    if agreement > WRONG:
        raise DataError(
            f"{what}: irises lie further to the image right where the yaw is greater (correlation "
            f"{agreement:.2f}), but positive yaw must look to the image left: flip the signs of "
            "the labels, or mirror the pictures back"
        )
