"""Landmarks of a face by three networks in ONNX Runtime (extra `landmarks`).

A detector finds the face, a mesh network 468 points of it, and an iris network, for each eye, the
iris and the eye's outline. Landmarks are found in every picture alone. With tracking from frame to
frame, a landmark would depend on the frames before. `web/landmarks.js` does the same in a browser.

Used by `data.eye_images.face_patches`, `data.eye_images.face_pictures`, `live.command`,
`live.eye_sources` and `video.eye_patches`.

Source: MediaPipe's graphs face_detection_short_range, face_landmark and iris_landmark.
Differs: the mesh network runs twice, and pixels are averaged where a picture is made smaller.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vergence.core.optional import import_optional
from vergence.data.eye_images.face_networks import DOING, FaceNetworks, face_networks

MESH = (33, 133, 362, 263, 61, 291, 1)
"""Mesh points of MediaPipe: eye corners from the image left to right, mouth corners, nose."""
EYES = ((33, 133, False), (263, 362, True))
"""Outer and inner corner of each eye in the mesh, and whether the iris network sees it mirrored."""
OUTLINE_CORNERS = [0, 8]
"""The outer and the inner corner of an eye among the points of the iris network."""
DETECTION, MESH_SIDE, IRIS = 128, 192, 64
"""Sides of the networks' inputs, pixels."""
FACE_MARGIN, EYE_MARGIN = 1.5, 2.3
"""Side of a network's square: times the face's longer side, and times the eye's width."""
LEAST_SCORE, LEAST_OVERLAP = 0.5, 0.3
"""Probability from which a box is a face, and overlap from which two boxes are the same face."""
Find = Callable[[NDArray[np.uint8]], NDArray[np.float64] | None]
"""Function from a picture uint8 `[H, W, 3]` to its landmarks `[7, 2]` in pixels; None: no face."""


# A data set asks once for each person.
@functools.cache
def load_landmarker() -> Find:
    """Return a function that finds the landmarks of one face in a picture.

    Raises:
        ConfigError: a package or the networks are missing, see `face_networks`.
    """
    mesh = FaceMesh(face_networks())

    def find(picture: NDArray[np.uint8]) -> NDArray[np.float64] | None:
        points = mesh.points(picture)
        return None if points is None else points[list(MESH)]

    return find


class FaceMesh:
    """Networks in sessions of ONNX Runtime, with one thread each.

    Raises:
        ConfigError: `onnxruntime` is not installed.
    """

    def __init__(self, networks: FaceNetworks) -> None:
        runtime: Any = import_optional("onnxruntime", DOING, "landmarks")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.detection, self.mesh, self.iris = (
            runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
            for file in (networks.detection, networks.mesh, networks.iris)
        )

    def points(self, picture: NDArray[np.uint8]) -> NDArray[np.float64] | None:
        """Return the points `[478, 2]` of the most probable face in a picture uint8 `[H, W, 3]`.

        They are the mesh, then the iris of the person's right eye and of the left one, five points
        each with the centre first, in pixels. The result is None if there is no face.
        """
        image = Image.fromarray(picture)
        square = self._face(image)
        points = None if square is None else self._mesh(image, square)
        # The box of the detector moves from picture to picture by more than the mesh's points, so
        # these give the square for a second run.
        points = None if points is None else self._mesh(image, _around(points))
        if points is None:
            return None
        irises = []
        for outer, inner, mirrored in EYES:
            across = (points[inner] - points[outer]) * (-1 if mirrored else 1)
            middle = (points[inner] + points[outer]) / 2
            side, turn = EYE_MARGIN * np.hypot(*across), np.arctan2(*across[::-1])
            eye = _square(middle, side, turn, IRIS, mirrored=mirrored)
            outline, iris = self.iris.run(None, {"image": _pixels(image, eye, IRIS) / 255})
            # The iris network sees the eye larger than the mesh network.
            points[[outer, inner]] = _in_picture(eye, outline.reshape(-1, 3)[OUTLINE_CORNERS, :2])
            irises.append(_in_picture(eye, iris.reshape(-1, 3)[:, :2]))
        # The networks count from the corner of the picture, cameras from the middle of a pixel.
        return np.concatenate([points, *irises]) - 0.5

    def _mesh(self, image: Image.Image, square: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Return the mesh's points `[468, 2]`, from the picture's corner; None: no face."""
        mesh, score = self.mesh.run(None, {"image": _pixels(image, square, MESH_SIDE) / 255})
        if _sigmoid(score).item() < LEAST_SCORE:
            return None
        return _in_picture(square, mesh.reshape(-1, 3)[:, :2])

    def _face(self, image: Image.Image) -> NDArray[np.float64] | None:
        """Return the square of the most probable face for the mesh network; None: no face."""
        whole = _square(np.array(image.size) / 2, max(image.size), 0.0, DETECTION)
        pixels = _pixels(image, whole, DETECTION) / 127.5 - 1
        boxes, scores = self.detection.run(None, {"image": pixels})
        score = _sigmoid(scores[0, :, 0])
        best = score.argmax()
        if score[best] < LEAST_SCORE:
            return None
        # Middle, width and height of a box, then six keypoints; the first two are the eyes.
        places = boxes[0].astype(float).reshape(len(score), -1, 2)
        half = places[:, 1] / 2
        places += _anchors()[:, None]
        low, high = places[:, 0] - half, places[:, 0] + half
        both = np.clip(np.minimum(high, high[best]) - np.maximum(low, low[best]), 0, None).prod(1)
        overlap = both / ((high - low).prod(1) + (high - low)[best].prod() - both)
        weight = score * (score >= LEAST_SCORE) * (overlap > LEAST_OVERLAP)
        # Boxes of the same face are averaged.
        middle, size, right, left = (
            np.average(values, 0, weight)
            for values in (places[:, 0], 2 * half, places[:, 2], places[:, 3])
        )
        side = FACE_MARGIN * size.max() * max(image.size) / DETECTION
        turn = np.arctan2(*(left - right)[::-1])
        return _square(_in_picture(whole, middle), side, turn, MESH_SIDE)


def _square(
    middle: NDArray, side: float, turn: float, size: int, *, mirrored: bool = False
) -> NDArray[np.float64]:
    """Return the affine map `[2, 3]` from a network's input to the square of a picture.

    Both count pixels from the corner. The square has this middle and side, and is turned by `turn`
    radians; the input has `size` pixels.
    """
    cosine, sine = np.cos(turn), np.sin(turn)
    axes = side / size * np.array([[cosine, -sine], [sine, cosine]])
    axes = axes * [-1, 1] if mirrored else axes
    return np.column_stack([axes, middle - axes @ np.full(2, size / 2)])


def _around(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the square around a face's mesh for the mesh network, turned as the eyes are."""
    across = points[EYES[1][0]] - points[EYES[0][0]]
    turn = np.arctan2(across[1], across[0])
    axes = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    low, high = (points @ axes).min(0), (points @ axes).max(0)
    return _square(axes @ (low + high) / 2, FACE_MARGIN * (high - low).max(), turn, MESH_SIDE)


def _in_picture(square: NDArray[np.float64], points: NDArray) -> NDArray[np.float64]:
    """Return the points of the picture for points `[*, 2]` of a network's input."""
    return points.astype(float) @ square[:, :2].T + square[:, 2]


def _pixels(image: Image.Image, square: NDArray[np.float64], size: int) -> NDArray[np.float32]:
    """Return the square's pixels, float32 `[1, size, size, 3]` from 0 to 255.

    They are black beyond the picture.
    """
    # Whole numbers of pixels are averaged first: without it, large faces would be aliased.
    times = max(1, int(np.hypot(*square[:, 0])))
    data = (square / times).ravel().tolist()
    small = image.reduce(times)
    pixels = small.transform((size, size), Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)
    return np.asarray(pixels, np.float32)[None]


def _anchors() -> NDArray[np.float64]:
    """Return the middles `[896, 2]` of the detector's boxes, in pixels of its input."""
    grids = []
    for cells, boxes in ((16, 2), (8, 6)):
        y, x = np.mgrid[:cells, :cells] + 0.5
        middles = np.stack([x, y], -1).reshape(-1, 2) * DETECTION / cells
        grids.append(np.repeat(middles, boxes, 0))
    return np.concatenate(grids)


def _sigmoid(values: NDArray) -> NDArray[np.float64]:
    # Beyond 100 the exponential would leave the range of numbers, with a warning.
    return 1 / (1 + np.exp(-np.clip(values.astype(float), -100, 100)))
