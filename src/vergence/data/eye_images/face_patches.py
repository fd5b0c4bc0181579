"""Normalised eye patches from pictures of faces, and the arrays in which they are stored.

Used by `data.eye_images.face_pictures` and `video.eye_patches`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vergence.core.naming import plural
from vergence.data.eye_images.camera import Camera
from vergence.data.eye_images.landmarks import Find
from vergence.data.eye_images.normalization import Normalised, eye_patch, eyes, head_pose
from vergence.errors import DataError


@dataclass(frozen=True, eq=False)
class Patches:
    """Eye patches of the frames that show both eyes.

    Rows are all left eyes, then all right eyes; right eyes are mirrored.

    Attributes:
        columns: arrays with one row per patch. `image` uint8 `[n, 1, 36, 60]`. `pose` float32
            `[n, 2]`, (pitch, yaw) of the head in radians. `side` int64 `[n]` (0 left, 1 right).
            `frame` int64 `[n]`, the number of the picture. `centre` float32 `[n, 3]`, the eye's
            centre in mm in the camera frame. `rotation` float32 `[n, 3, 3]`, from the camera frame
            to that of the patch. `gaze` float32 `[n, 2]`, only if targets were given.
        frames: number of pictures read.
        no_face: numbers of the pictures without a face.
        cut_off: numbers of the pictures in which the patch of an eye reaches beyond the edge.
        error_px: distance in pixels between the landmarks and the fitted face model: the median
            over pictures of the root mean square over landmarks.
    """

    columns: dict[str, NDArray]
    frames: int
    no_face: tuple[int, ...]
    cut_off: tuple[int, ...]
    error_px: float

    def stored(self) -> dict[str, NDArray]:
        """Return the arrays of a person's npz file.

        They are those of `columns`, with `image` as `[n, 36, 60]`.
        """
        return {**self.columns, "image": self.columns["image"][:, 0]}


def patches_of(
    frames: Iterable[NDArray[np.uint8]],
    camera: Camera | None,
    find: Find,
    targets: Mapping[int, NDArray] | None = None,
) -> Patches:
    """Return the normalised eye patches of pictures uint8 `[H, W, 3]` that show one face each.

    Args:
        frames: pictures or frames of a video, RGB.
        camera: the camera that took them; None guesses one from each picture's size
            (`Camera.guessed`).
        find: function that returns the landmarks of a picture, as `landmarks.load_landmarker`
            makes one.
        targets: picture number -> the point looked at, in mm in the camera frame. Pictures without
            a point are left out. None: no gaze is known, and all pictures are used.

    Raises:
        DataError: no picture shows a face with both eyes, or a picture's proportions differ from
            the camera's.
    """
    views: dict[int, tuple[Normalised, Normalised]] = {}
    images: dict[int, tuple[NDArray, NDArray]] = {}
    no_face, cut_off, errors, count = [], [], [], 0
    for number, picture in enumerate(frames):
        count += 1
        if targets is not None and number not in targets:
            continue
        if (landmarks := find(picture)) is None:
            no_face.append(number)
            continue
        # Pictures of one folder may differ in size, so the camera is scaled to each of them.
        size = picture.shape[1], picture.shape[0]
        picture_camera = Camera.guessed(*size) if camera is None else camera.of_size(*size)
        head = head_pose(landmarks, picture_camera)
        left, right = eyes(head)
        if not (left.inside(picture_camera) and right.inside(picture_camera)):
            cut_off.append(number)
            continue
        errors.append(head.error_px)
        views[number] = left, right
        images[number] = (
            eye_patch(left, picture, picture_camera),
            eye_patch(right, picture, picture_camera),
        )
    if not views:
        raise DataError(
            f"no eye patches in {plural(count, 'picture')}: {len(no_face)} without "
            f"a face, {len(cut_off)} with an eye beyond the edge"
            + (f", {len(targets)} with a target" if targets is not None else "")
        )
    columns = _columns(views, images, targets)
    return Patches(columns, count, tuple(no_face), tuple(cut_off), float(np.median(errors)))


def _columns(
    views: Mapping[int, tuple[Normalised, Normalised]],
    images: Mapping[int, tuple[NDArray, NDArray]],
    targets: Mapping[int, NDArray] | None,
) -> dict[str, NDArray]:
    rows = [(side, number) for side in (0, 1) for number in views]
    seen = [views[number][side] for side, number in rows]
    columns = {
        "image": np.stack([images[number][side] for side, number in rows])[:, None],
        "pose": np.stack([eye.pose for eye in seen]).astype(np.float32),
        "side": np.array([side for side, _ in rows]),
        "frame": np.array([number for _, number in rows]),
        "centre": np.stack([eye.centre for eye in seen]).astype(np.float32),
        "rotation": np.stack([eye.rotation for eye in seen]).astype(np.float32),
    }
    if targets is not None:
        labels = [eye.gaze(targets[n]) for eye, (_, n) in zip(seen, rows, strict=True)]
        columns["gaze"] = np.stack(labels).astype(np.float32)
    return columns
