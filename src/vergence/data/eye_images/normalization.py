"""Data normalisation for gaze: from a picture to eye patches, and from a patch's gaze back.

The head's pose is found from seven landmarks and a model of a face. A virtual camera is turned to
the eye (or the face), at a fixed distance, with its x axis parallel to the head's x axis. So near
and far heads, upright and tilted heads look alike. Gaze directions are rotated in the same way, and
not scaled.

Head frame: mm, x to the image right, y down, z into the head; a head without rotation looks at the
camera. Landmarks: the four eye corners from the image left to right, the two mouth corners, the tip
of the nose. "Left" is the person's own left eye, on the right in the picture.

Used by `data.eye_images.face_patches`, `data.eye_images.mpiigaze`, `data.eye_images.screen_pose`,
`live.eye_sources` and `live.views`.

Source: eyeimages design note, 3.5; Zhang, Sugano, Bulling, "Revisiting data normalization for
appearance-based gaze estimation", ETRA 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import map_coordinates
from scipy.optimize import OptimizeResult, least_squares
from scipy.spatial.transform import Rotation

from vergence.data.eye_images.camera import Camera
from vergence.data.eye_images.crop import equalise
from vergence.errors import DataError

# Another face model shifts the head's pitch by degrees: all people of a study, and all users of
# its networks, must share this one.
FACE = np.array(
    [
        *[(-45.0, -32.4, 39.8), (-19.2, -31.0, 33.6), (19.2, -31.0, 33.6), (45.0, -32.4, 39.8)],
        *[(-28.5, 33.3, 36.7), (28.5, 33.3, 36.7), (0.0, 0.0, 0.0)],
    ]
)
"""Places of a face's seven landmarks, in mm in the head frame, `[7, 3]`."""
CORNERS = {"left": slice(2, 4), "right": slice(0, 2)}
"""Which landmarks are the corners of each eye; the keys are in the order of the column `side`."""


@dataclass(frozen=True)
class CameraView:
    """A virtual camera: focal length in pixels, distance in mm, picture size in pixels."""

    focal: float = 960.0
    distance: float = 600.0
    width: int = 60
    height: int = 36

    @property
    def matrix(self) -> NDArray:
        """The camera matrix `[3, 3]`; its principal point is the middle of the picture."""
        # Others put it at (width / 2, height / 2), half a pixel off, where mirrored eyes would
        # differ from unmirrored ones.
        x, y = (self.width - 1) / 2, (self.height - 1) / 2
        return np.array([[self.focal, 0, x], [0, self.focal, y], [0, 0, 1]])


EYE = CameraView()
"""The virtual camera of MPIIGaze's eye patches: 1.6 pixels per mm."""
MPII_FACE = CameraView(1600.0, 1000.0, 224, 224)
"""The virtual camera of ETH-XGaze's face pictures (these also exist for a distance of 300 mm)."""


@dataclass(frozen=True, eq=False)
class Head:
    """Pose of a head: landmarks in the camera frame are `rotation @ model + translation`, mm.

    `error_px` is the root mean square distance in pixels between landmarks and projected model.
    """

    rotation: NDArray
    translation: NDArray
    error_px: float
    model: NDArray

    @property
    def points(self) -> NDArray:
        """The landmarks in the camera frame, mm, `[landmarks, 3]`."""
        return self.model @ self.rotation.T + self.translation


def head_pose(landmarks: NDArray, camera: Camera, model: NDArray = FACE) -> Head:
    """Return the head pose whose projected model is nearest to the landmarks `[7, 2]`, in pixels.

    A face looks nearly the same when it is tilted to the other side of the line of sight. So the
    search starts once from each side, and the better fit is returned. Data without the nose have
    `[6, 2]` landmarks, which lie almost in a plane. On a face unlike the model, both fits are then
    equally good, and the head's pitch is arbitrary. The eye patch needs only the direction of the
    eyes, which is the same in both fits.

    Raises:
        DataError: landmarks have another shape or are not finite, or no head in front of the camera
            fits them.
    """
    landmarks = np.asarray(landmarks, float)
    if landmarks.shape not in {(6, 2), (7, 2)} or not np.isfinite(landmarks).all():
        raise DataError(
            f"a head's pose needs six or seven finite landmarks, got shape {landmarks.shape}"
        )
    model = model[: len(landmarks)]
    seen = camera.rays(landmarks)
    right, left = seen[:2].mean(0), seen[2:4].mean(0)
    across = left - right
    if np.hypot(across[0], across[1]) < 1e-6:
        raise DataError(f"both eyes are at the same place, pixel {landmarks[0].round(1).tolist()}")
    start = Rotation.from_rotvec([0, 0, np.arctan2(across[1], across[0])])
    depth = np.linalg.norm(model[2:4].mean(0) - model[:2].mean(0)) / np.linalg.norm(across)
    there = depth * (right + left) / 2 - start.apply(model[:4].mean(0))

    # Translations count in units of the depth, so that all six numbers are of similar size.
    def miss(pose: NDArray) -> NDArray:
        points = Rotation.from_rotvec(pose[:3]).apply(model) + depth * pose[3:]
        return (points[:, :2] / points[:, 2:] - seen[:, :2]).ravel()

    def nearest(rotation: Rotation, translation: NDArray) -> OptimizeResult:
        guess = np.concatenate([rotation.as_rotvec(), translation])
        return least_squares(miss, guess, method="lm", xtol=1e-12, ftol=1e-12)

    first = nearest(start, there / depth)
    # A face tilted to the other side of the line of sight looks nearly the same: try both.
    sight = Rotation.from_rotvec(np.pi * first.x[3:] / np.linalg.norm(first.x[3:]))
    other_side = sight * Rotation.from_rotvec(first.x[:3]) * Rotation.from_rotvec([0, 0, np.pi])
    solution = min(first, nearest(other_side, first.x[3:]), key=lambda fit: fit.cost).x
    rotation = Rotation.from_rotvec(solution[:3]).as_matrix()
    head = Head(rotation, depth * solution[3:], 0.0, model)
    if head.points[:, 2].min() <= 0:
        raise DataError(
            "the landmarks fit no head in front of the camera: their order must be eye corners "
            "from the image left to right, mouth corners, nose"
        )
    distances = np.linalg.norm(camera.project(head.points) - landmarks, axis=1)
    return Head(rotation, head.translation, float(np.sqrt((distances**2).mean())), model)


@dataclass(frozen=True, eq=False)
class Normalised:
    """A virtual camera that is turned to one point of a head, such as an eye.

    Attributes:
        centre: the point to which it is turned, in mm in the frame of the real camera.
        rotation: rotation from the frame of the real camera to that of the virtual one, `[3, 3]`.
        pose: (pitch, yaw) of the head in the virtual camera, radians.
        view: the virtual camera's focal length, distance and picture size.
        mirrored: whether its pictures are mirrored and its yaws negated, as for right eyes.
    """

    centre: NDArray
    rotation: NDArray
    pose: NDArray
    view: CameraView
    mirrored: bool

    @property
    def _mirror(self) -> NDArray:
        return np.array([1, -1]) if self.mirrored else np.ones(2)

    def gaze(self, target: NDArray) -> NDArray:
        """Return the gaze label (pitch, yaw) in radians for a target, in mm in the camera frame."""
        return _angles(self.rotation @ (np.asarray(target, float) - self.centre)) * self._mirror

    def direction(self, gaze: NDArray) -> NDArray:
        """Return the gaze directions in the camera frame, as unit vectors `[*, 3]`.

        `gaze` `[*, 2]` is a network's prediction for the patch, (pitch, yaw) in radians.
        """
        return vectors(np.asarray(gaze, float) * self._mirror) @ self.rotation

    def warp(self, camera: Camera) -> NDArray:
        """Return the homography `[3, 3]` from undistorted pixels of a picture to the patch's.

        Source: W = Cn diag(1, 1, distance / |centre|) Rn K^-1 of Zhang et al. 2018.
        """
        scale = np.diag([1, 1, self.view.distance / np.linalg.norm(self.centre)])
        back = np.diag([-1.0, 1, 1])
        back[0, 2] = self.view.width - 1
        flip = back if self.mirrored else np.eye(3)
        return flip @ self.view.matrix @ scale @ self.rotation @ np.linalg.inv(camera.matrix)

    def _sources(self, camera: Camera, x: NDArray, y: NDArray) -> NDArray:
        """Return the picture's pixels `[*, 2]` that are seen at the patch's pixels (x, y)."""
        places = np.stack([*np.broadcast_arrays(x, y, 1.0)], -1)
        return camera.project(places @ np.linalg.inv(self.warp(camera) @ camera.matrix).T)

    def inside(self, camera: Camera) -> bool:
        """Return whether the whole patch lies inside the camera's picture."""
        # Half a pixel beyond the centres are the outer edges of the patch.
        x, y = np.array([-0.5, self.view.width - 0.5]), np.array([[-0.5], [self.view.height - 0.5]])
        corners = self._sources(camera, x, y)
        return bool((corners >= -0.5).all() and (corners <= np.array(camera.size) - 0.5).all())

    def cut(self, picture: NDArray, camera: Camera) -> NDArray:
        """Return the patch, uint8 `[height, width]`, or `[height, width, channels]` for colour.

        If several pixels of the picture fall into one pixel of the patch, their mean is taken. The
        patch is black beyond the picture's edges.
        """
        corners = self._sources(camera, np.array([0, self.view.width - 1]), np.zeros(1))
        density = np.linalg.norm(corners[1] - corners[0]) / (self.view.width - 1)
        # Averaging keeps patches of near faces free of aliasing.
        times = max(1, int(np.ceil(density)))
        x, y = (
            (np.arange(n * times) + 0.5) / times - 0.5 for n in (self.view.width, self.view.height)
        )
        places = self._sources(camera, x, y[:, None])[..., ::-1].transpose(2, 0, 1)
        layers = picture[..., None] if picture.ndim == 2 else picture
        fine = np.stack(
            [
                map_coordinates(layer.astype(np.float32), places, order=1, mode="grid-constant")
                for layer in np.moveaxis(layers, -1, 0)
            ],
            -1,
        )
        shape = (self.view.height, times, self.view.width, times, layers.shape[-1])
        patch = np.rint(fine.reshape(shape).mean((1, 3))).astype(np.uint8)
        return patch[..., 0] if picture.ndim == 2 else patch


def turned_to(
    head: Head, centre: NDArray, view: CameraView, *, mirrored: bool = False
) -> Normalised:
    """Return the virtual camera that looks at a point `centre`, in mm in the camera frame.

    The x axis of the virtual camera is parallel to that of the head. Source: eyeimages design note,
    3.5, steps 3 and 5.
    """
    z = centre / np.linalg.norm(centre)
    y = np.cross(z, head.rotation[:, 0])
    y /= np.linalg.norm(y)
    rotation = np.stack([np.cross(y, z), y, z])
    camera = Normalised(centre, rotation, np.zeros(2), view, mirrored)
    return replace(camera, pose=_angles(-(rotation @ head.rotation)[:, 2]) * camera._mirror)


def eyes(head: Head, view: CameraView = EYE) -> tuple[Normalised, Normalised]:
    """Return the virtual cameras of the left and of the right eye; the right one is mirrored."""
    left, right = (
        turned_to(head, head.points[corners].mean(0), view, mirrored=side == "right")
        for side, corners in CORNERS.items()
    )
    return left, right


def face(head: Head, view: CameraView = MPII_FACE) -> Normalised:
    """Return the virtual camera that looks at the mean of the eye and mouth corners."""
    return turned_to(head, head.points[:6].mean(0), view)


def eye_patch(eye: Normalised, picture: NDArray, camera: Camera) -> NDArray:
    """Return the network's input patch, grey and equalised, uint8 `[height, width]`.

    `picture` is uint8 `[H, W]` or `[H, W, 3]`.
    """
    grey = np.asarray(Image.fromarray(picture).convert("L"))
    return equalise(eye.cut(grey, camera)[None])[0]


def vectors(angles: NDArray) -> NDArray:
    """Return the unit gaze vectors `[*, 3]` of angles (pitch, yaw) `[*, 2]` in radians.

    For pitch p and yaw y the vector is (-cos p sin y, -sin p, -cos p cos y).
    """
    pitch, yaw = angles[..., 0], angles[..., 1]
    flat = np.cos(pitch)
    return np.stack([-flat * np.sin(yaw), -np.sin(pitch), -flat * np.cos(yaw)], -1)


def gaze_angles(vectors: np.ndarray) -> np.ndarray:
    """Return (pitch, yaw) `[n, 2]` in radians of gaze vectors `[n, 3]` in the camera frame.

    The convention is that of normalised MPIIGaze data: pitch = asin(-g_y), yaw = atan2(-g_x, -g_z).
    """
    x, y, z = vectors.T
    return np.stack([np.arctan2(-y, np.hypot(x, z)), np.arctan2(-x, -z)], 1)


def _angles(vector: NDArray) -> NDArray:
    return gaze_angles(vector[None])[0]
