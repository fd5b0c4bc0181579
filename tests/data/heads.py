"""Pictures of a head of known pose whose eyeballs look at a known point, by casting rays.

The face is the plane z = 36.7 mm of the head frame with a fixed random texture; each eye is an
almond-shaped window onto a sphere of 12 mm with a sclera, an iris and a pupil.
"""

import numpy as np
from scipy.ndimage import gaussian_filter, map_coordinates
from scipy.spatial.transform import Rotation

from vergence.data.eye_images.camera import Camera
from vergence.data.eye_images.normalization import FACE

DEPTH, RADIUS, IRIS, PUPIL = 36.7, 12.0, 6.0, 2.5
EYEBALLS = np.array([(-32.1, -31.7, DEPTH + 8), (32.1, -31.7, DEPTH + 8)])
"""Centres in the head frame: the right eye (left in the picture), then the left one."""
TEXTURE = gaussian_filter(np.random.default_rng(5).normal(size=(160, 160)), 3)
TEXTURE = 150 + 250 * TEXTURE


def webcam(width=640, height=480, focal=620.0, distortion=(0, 0, 0, 0, 0)):
    matrix = np.array([[focal, 0, width / 2 - 7], [0, focal, height / 2 + 4], [0, 0, 1.0]])
    return Camera(matrix, (width, height), np.array(distortion, float))


def turned(pitch=0.0, yaw=0.0, roll=0.0):
    """Return the rotation of a head that looks up, to the image left, and is tilted; degrees."""
    return Rotation.from_euler("zyx", [roll, yaw, -pitch], degrees=True).as_matrix()


def corners(rotation, place, camera):
    """Return the landmarks `[7, 2]` in pixels."""
    return camera.project(FACE @ rotation.T + place)


def mirrored(picture, landmarks):
    """Return a picture in a mirror and its landmarks, again from the image left to right."""
    swapped = landmarks[[3, 2, 1, 0, 5, 4, 6]] * [-1, 1] + [picture.shape[1] - 1, 0]
    return picture[:, ::-1].copy(), swapped


def photograph(rotation, place, target, camera):
    """Return a picture uint8 `[height, width]`; place and target are mm in the camera frame."""
    width, height = camera.size
    pixels = np.stack(np.meshgrid(np.arange(width), np.arange(height)), -1)
    rays = camera.rays(pixels) @ rotation
    origin, target = -place @ rotation, (target - place) @ rotation
    rays /= np.linalg.norm(rays, axis=-1, keepdims=True)
    at = origin + rays * ((DEPTH - origin[2]) / rays[..., 2])[..., None]
    picture = map_coordinates(TEXTURE, [at[..., 1] + 80, at[..., 0] + 80], order=1, cval=30)
    for ball in EYEBALLS:
        away = at[..., :2] - ball[:2]
        window = (away[..., 0] / 13.5) ** 2 + (away[..., 1] / 7) ** 2 < 1
        toward = (rays[window] * (ball - origin)).sum(-1)
        gap = toward**2 - ((ball - origin) ** 2).sum() + RADIUS**2
        hit = origin + rays[window] * (toward - np.sqrt(np.maximum(gap, 0)))[:, None] - ball
        axis = (target - ball) / np.linalg.norm(target - ball)
        arc = RADIUS * np.arccos(np.clip(hit @ axis / np.linalg.norm(hit, axis=-1), -1, 1))
        colour = np.where(arc < PUPIL, 10, np.where(arc < IRIS, 60, 235))
        picture[window] = np.where(gap > 0, colour, 150)
    return np.clip(np.rint(picture), 0, 255).astype(np.uint8)
