"""Pictures of eye patches by formula: eyeball, lids, skin and camera, for many patches at once.

Lengths are mm in the normalised camera (f = 960 px at 600 mm, so 1 mm = 1.6 px): x right, y down, z
away from the camera. Angles are (pitch, yaw) in radians, as in data.md. Every patch is drawn as a
left eye, with the nose at the left; the caller mirrors the parameters of right eyes. Used by
`data.synthetic.eyes.eye_synthetic` and `data.synthetic.eyes.people`.

Source: eyeimages design note, 5.1 (geometry, appearance and capture, with their distributions).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from vergence.data.eye_images.crop import HEIGHT, WIDTH

MM_PER_PIXEL = 600.0 / 960.0
BATCH = 32
"""Number of patches drawn together; more patches would not fit into the processor's cache."""
# One sample per pixel: edges are widened to what averaging over a pixel would make of them.
EDGE, SOFT_EDGE = 0.27, 0.30


@dataclass(frozen=True)
class Eyes:
    """Parameters of eye pictures, one row per patch; each is float32 `[patches]` or as noted.

    The person: `radius`, `iris`, `pupil` (fraction of the iris, differs by picture), `iris_light`,
    `sclera_light`, `skin`, `half_width`, `tilt`, `peak`, `x`, `y`, `crease`, `crease_depth`,
    `brow`, `lash`, `glasses` (0 or 1), `rim`, `freckles` `[patches, 10, 16]`, `kappa` (visual minus
    optical axis) `[patches, 2]`.

    The moment: `gaze` and `head` `[patches, 2]`, and the lid openings `upper` and `lower`.

    Light and camera: `shift` `[patches, 2]`, `zoom`, `light` `[patches, 3]`, `ambient`, `shading`,
    `cloud` `[patches, 5, 7]`, `glint`, `glint_size`, `glare` `[patches, 5]` (strength, x, y, width,
    height), `blur`, `gain`, `gamma`, `noise`.
    """

    radius: NDArray
    iris: NDArray
    pupil: NDArray
    iris_light: NDArray
    sclera_light: NDArray
    skin: NDArray
    half_width: NDArray
    tilt: NDArray
    peak: NDArray
    x: NDArray
    y: NDArray
    crease: NDArray
    crease_depth: NDArray
    brow: NDArray
    lash: NDArray
    glasses: NDArray
    rim: NDArray
    freckles: NDArray
    kappa: NDArray
    gaze: NDArray
    head: NDArray
    upper: NDArray
    lower: NDArray
    shift: NDArray
    zoom: NDArray
    light: NDArray
    ambient: NDArray
    shading: NDArray
    cloud: NDArray
    glint: NDArray
    glint_size: NDArray
    glare: NDArray
    blur: NDArray
    gain: NDArray
    gamma: NDArray
    noise: NDArray

    def __len__(self) -> int:
        return len(self.radius)

    def rows(self, part: slice) -> Eyes:
        """Return the parameters of some of the patches."""
        return Eyes(**{name: getattr(self, name)[part] for name in self.__dataclass_fields__})


@dataclass(frozen=True)
class _Plane:
    """Coordinates of every pixel, `[patches, HEIGHT, WIDTH]`: in the patch, and along the lids."""

    x: NDArray
    y: NDArray
    along: NDArray
    across: NDArray


def render(eyes: Eyes, rng: Generator | None, *, mirrored: bool = False) -> NDArray:
    """Draw grey patches, uint8 `[patches, HEIGHT, WIDTH]`; their histograms are not equalised.

    `rng` draws the sensor noise; None: no noise. `mirrored` draws the mirror image of the eye, as
    on the other side of the nose.
    """
    out = np.empty((len(eyes), HEIGHT, WIDTH), np.uint8)
    for start in range(0, len(eyes), BATCH):
        part = slice(start, start + BATCH)
        some = eyes.rows(part)
        out[part] = _capture(_picture(some, mirrored), some, rng)
    return out


def vector(angles: NDArray) -> NDArray:
    """Return the unit vectors `[n, 3]` of angles (pitch, yaw) `[n, 2]` in radians."""
    pitch, yaw = angles[:, 0], angles[:, 1]
    return np.stack([-np.cos(pitch) * np.sin(yaw), -np.sin(pitch), -np.cos(pitch) * np.cos(yaw)], 1)


def _wide(values: NDArray) -> NDArray:
    return values[:, None, None]


def _step(distance: NDArray, width: float) -> NDArray:
    """Return the logistic function of distance / width; `distance` is overwritten."""
    distance *= np.float32(-1 / width)
    np.clip(distance, -40, 40, out=distance)
    np.exp(distance, out=distance)
    distance += 1
    return np.reciprocal(distance, out=distance)


def _bump(distance: NDArray, width: float) -> NDArray:
    """Return exp(-(distance / width)^2); `distance` is overwritten."""
    distance *= np.float32(1 / width)
    np.multiply(distance, distance, out=distance)
    np.negative(distance, out=distance)
    return np.exp(distance, out=distance)


def _plane(eyes: Eyes, mirrored: bool) -> _Plane:
    scale = _wide((1 + eyes.zoom) * np.float32(MM_PER_PIXEL))
    columns = np.arange(WIDTH, dtype=np.float32) - np.float32((WIDTH - 1) / 2)
    rows = np.arange(HEIGHT, dtype=np.float32) - np.float32((HEIGHT - 1) / 2)
    if mirrored:
        columns = -columns
    shape = (len(eyes), HEIGHT, WIDTH)
    x = np.broadcast_to(columns * scale - _wide(eyes.x + eyes.shift[:, 0]), shape)
    y = np.broadcast_to(rows[:, None] * scale - _wide(eyes.y + eyes.shift[:, 1]), shape)
    cos, sin = _wide(np.cos(eyes.tilt)), _wide(np.sin(eyes.tilt))
    return _Plane(x, y, x * cos + y * sin, y * cos - x * sin)


def _picture(eyes: Eyes, mirrored: bool) -> NDArray:
    """Return the light at each pixel, float32 `[patches, HEIGHT, WIDTH]`."""
    plane = _plane(eyes, mirrored)
    half = _wide(eyes.half_width * np.cos(eyes.head[:, 1]))
    t = np.clip(plane.along / half, -1, 1)
    profile = (1 - t * t) * (1 + _wide(eyes.peak) * t)
    np.maximum(profile, 0, out=profile)
    below_upper = plane.across + _wide(eyes.upper) * profile ** np.float32(0.8)
    above_lower = _wide(eyes.lower) * profile - plane.across
    inside = np.abs(plane.along) < half
    opening = _step(np.minimum(below_upper, above_lower), EDGE) * inside
    ball = _ball(eyes, plane, below_upper, half)
    picture = _skin(eyes, plane, half, mirrored)
    picture += (ball - picture) * opening
    lashes = _bump(below_upper, 0.6) + np.float32(0.35) * _bump(above_lower, 0.55)
    picture *= 1 - _wide(eyes.lash) * lashes * inside
    return _spectacles(eyes, plane, picture)


def _ball(eyes: Eyes, plane: _Plane, below_upper: NDArray, half: NDArray) -> NDArray:
    """Return the light of sclera, iris, pupil and glint, on an exact sphere under parallel rays."""
    radius, iris = _wide(eyes.radius), _wide(eyes.iris)
    axis = vector(eyes.gaze - eyes.kappa).astype(np.float32)
    depth = np.sqrt(np.maximum(radius * radius - plane.x**2 - plane.y**2, np.float32(1e-3)))
    ax, ay, az = (_wide(axis[:, i]) for i in range(3))
    cosine = (plane.x * ax + plane.y * ay - depth * az) / radius
    # arccos by its half-angle form, exact at both ends and without a slow library call.
    arc = np.sqrt(np.maximum(1 - cosine, 0) * 2)
    square = arc * arc
    arc *= 1 + square * (np.float32(1 / 24) + square * np.float32(3 / 640))
    arc *= radius
    lx, ly, lz = (_wide(eyes.light[:, i]) for i in range(3))
    diffuse = np.clip((plane.x * lx + plane.y * ly - depth * lz) / radius, 0, 1)
    ambient = _wide(eyes.ambient)
    sclera = _wide(eyes.sclera_light) * (ambient + (1 - ambient) * diffuse)
    disc = _wide(eyes.iris_light) * (np.float32(0.75) + np.float32(0.35) * arc / iris)
    disc *= 1 - np.float32(0.45) * _step(arc - iris * np.float32(0.88), SOFT_EDGE)
    disc *= 1 - np.float32(0.9) * _step(_wide(eyes.pupil) * iris - arc, EDGE)
    disc *= np.float32(0.6) + np.float32(0.4) * diffuse
    ball = sclera + (disc - sclera) * _step(iris - arc, EDGE)
    ball *= 1 - np.float32(0.35) * _step(-(plane.along + half * np.float32(0.82)), 1.2)
    ball *= 1 - np.float32(0.55) * np.exp(np.minimum(-below_upper, 0) * np.float32(1 / 1.3))
    halfway = eyes.light + np.array([0, 0, -1], np.float32)
    halfway /= np.linalg.norm(halfway, axis=1, keepdims=True)
    spot = axis[:, :2] * 5 + halfway[:, :2] * np.float32(7.8)
    gap = np.hypot(plane.x - _wide(spot[:, 0]), plane.y - _wide(spot[:, 1]))
    ball += _wide(eyes.glint) * _step(_wide(eyes.glint_size) - gap, EDGE)
    return ball


def _skin(eyes: Eyes, plane: _Plane, half: NDArray, mirrored: bool) -> NDArray:
    """Return the light of the skin with crease, brow, lower bag and the shadow of the nose."""
    lx, ly = _wide(eyes.light[:, 0]), _wide(eyes.light[:, 1])
    shade = plane.x * (lx / 18) + plane.y * (ly / 11)
    shade = np.clip(1 + _wide(eyes.shading) * shade, np.float32(0.15), np.float32(2.2))
    texture = 1 + np.float32(0.07) * (_smooth(eyes.freckles) + _smooth(eyes.cloud))
    skin = _wide(eyes.skin) * shade * (texture[:, :, ::-1] if mirrored else texture)
    x, y = plane.along, plane.across
    upper, lower = _wide(eyes.upper), _wide(eyes.lower)
    lid = upper * np.sqrt(np.maximum(1 - (x / (half * np.float32(1.15))) ** 2, 0))
    skin *= 1 - _wide(eyes.crease_depth) * _bump(y + lid + _wide(eyes.crease), 0.8)
    brow = y + _wide(eyes.brow) - np.float32(0.02) * x * x - upper * np.float32(0.25)
    skin *= 1 - np.float32(0.65) * _step(-brow, 0.7)
    skin *= 1 - np.float32(0.15) * _bump(y - lower - np.float32(2.2), 1.6)
    skin *= 1 - np.float32(0.25) * _bump(x + half + 3, 4.5)
    return skin


def _smooth(grids: NDArray) -> NDArray:
    """Return small grids enlarged by bilinear interpolation, `[patches, HEIGHT, WIDTH]`."""
    for axis, length in ((1, HEIGHT), (2, WIDTH)):
        last = grids.shape[axis] - 1
        place = np.linspace(0, last, length, dtype=np.float32)
        low = np.minimum(place.astype(int), last - 1)
        share = (place - low).reshape((-1, 1) if axis == 1 else (1, -1))
        first, second = np.take(grids, low, axis), np.take(grids, low + 1, axis)
        grids = first + (second - first) * share
    return grids


def _spectacles(eyes: Eyes, plane: _Plane, picture: NDArray) -> NDArray:
    """Draw rim and glare of the glasses, for people with glasses."""
    worn = np.flatnonzero(eyes.glasses)
    if not len(worn):
        return picture
    x, y, rim = plane.x[worn], plane.y[worn], _wide(eyes.rim[worn])
    ring = np.abs((((x * np.float32(1 / 1.6)) ** 2) ** 2 + (y**2) ** 2) / rim**3 - rim)
    some = picture[worn] * (1 - np.float32(0.5) * _step(np.float32(0.7) - ring, 0.3))
    strength, gx, gy, width, height = (_wide(eyes.glare[worn, i]) for i in range(5))
    spot = ((x - gx) / width) ** 2 + ((y - gy) / height) ** 2
    picture[worn] = some + strength * np.exp(-spot)
    return picture


def _capture(picture: NDArray, eyes: Eyes, rng: Generator | None) -> NDArray:
    """Return pictures as a camera stores them: with blur, gain, gamma, noise, and 8 bits."""
    blur = _wide(eyes.blur)
    for axis in (1, 2):
        padded = np.pad(picture, [(1, 1) if i == axis else (0, 0) for i in range(3)], "edge")
        length = picture.shape[axis]
        ends = np.take(padded, range(length), axis) + np.take(padded, range(2, length + 2), axis)
        picture = (picture + blur * np.float32(0.5) * ends) / (1 + blur)
    picture = np.clip(picture * _wide(eyes.gain), 0, 1) ** _wide(eyes.gamma)
    if rng is not None:
        spread = np.sqrt(np.float32(1e-5) + np.float32(8e-5) * picture) * _wide(eyes.noise)
        picture = picture + spread * rng.standard_normal(picture.shape, np.float32)
    return (np.clip(picture, 0, 1) * np.float32(255)).astype(np.uint8)
