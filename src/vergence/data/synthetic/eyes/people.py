"""Synthetic people in front of a screen: looks of their eyes, and their glances on each day.

Used by `data.synthetic.eyes.eye_synthetic`.

Source: eyeimages design note, 5.1 (distributions) and 5.3 (days, both eyes of one head,
heterogeneity).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from vergence.data.synthetic.eyes.rendering import Eyes, vector

CAMERA_MM = 600.0
PITCH_DEG, YAW_DEG = (-17.0, 0.0), (-15.0, 15.0)
"""Range of pitch and of yaw of the screen for everybody; noise of 1.2 and 1.5 degrees is added."""
IRIS_LIGHT, IRIS_SHARE = (0.13, 0.22, 0.38, 0.5), (0.45, 0.25, 0.2, 0.1)
LEFT, RIGHT = 0, 1

_PERSON, _GLANCES, _DEVICE = 1, 2, 3


@dataclass(frozen=True)
class Variety:
    """How people, days and single pictures differ; see the options of `EyeSynthetic`."""

    strength: float
    nuisance: float
    light: float
    label_range: float
    glasses: float
    appearance: float = 1.0
    crop: float = 1.0
    kappa: float = 1.0
    device: float = 0.0

    @property
    def day_share(self) -> float:
        """Fraction of the variance of light and camera that is constant for a person's day."""
        return self.light * min(self.strength, 1.0)

    @property
    def device_share(self) -> float:
        """Fraction of the variance of light, exposure and blur that is constant for a person."""
        return self.device * min(self.strength, 1.0)


@dataclass(frozen=True)
class Identity:
    """One person; lengths in mm, angles in radians.

    `traits` maps names of fields of `Eyes` to this person's values.
    """

    traits: dict[str, float]
    lid_gain: float
    upper: float
    lower: float
    kappa: NDArray
    bias: NDArray
    """Error of the label frame, (pitch, yaw) of the left and the right eye, `[2, 2]`."""
    freckles: NDArray
    """Skin texture of the left and the right side, `[2, 10, 16]`."""
    glasses: bool
    head: NDArray
    head_spread: NDArray
    between_eyes: float
    range_centre: NDArray
    days: int
    quantity: float
    """Standard normal number that decides how much data the person has."""
    device: NDArray
    """Standard normal numbers for six values of light and camera, and for blur, `[7]`."""


@dataclass(frozen=True)
class GlanceBatch:
    """Labelled patches of one person in order of time, not yet drawn; right eyes are mirrored."""

    eyes: Eyes
    gaze: NDArray
    """Gaze label (pitch, yaw) in radians, float32 `[patches, 2]`."""
    pose: NDArray
    day: NDArray
    side: NDArray
    """Side of the eye, `LEFT` or `RIGHT`, int `[patches]`."""


def identity(seed: int, index: int, variety: Variety, days: tuple[int, int]) -> Identity:
    """Return person `index`, who is the same whatever the number of people is.

    With strength 0, everybody is the mean person.
    """
    rng = np.random.default_rng([seed, _PERSON, index])
    looks = variety.strength * variety.appearance
    crop, kappa = variety.strength * variety.crop, variety.strength * variety.kappa

    def normal(mean: float, sd: float, factor: float = looks) -> float:
        return mean + factor * sd * rng.normal()

    def uniform(low: float, high: float) -> float:
        middle = (low + high) / 2
        return middle + looks * (rng.uniform(low, high) - middle)

    iris_light = 0.22 + looks * (rng.choice(IRIS_LIGHT, p=IRIS_SHARE) - 0.22)
    traits = {
        "radius": normal(12.0, 0.4),
        "iris": normal(5.9, 0.25),
        "pupil": uniform(0.30, 0.50),
        "iris_light": max(iris_light, 0.08),
        "sclera_light": uniform(0.50, 0.72),
        "skin": max(uniform(0.32, 0.80), 0.15),
        "half_width": normal(14.5, 1.0),
        "tilt": normal(-0.06, 0.06),
        "peak": normal(-0.10, 0.12),
        "x": normal(0.0, 0.9, crop),
        "y": normal(0.2, 1.1, crop),
        "crease": normal(3.4, 0.7),
        "crease_depth": max(uniform(0.1, 0.4), 0.0),
        "brow": normal(12.5, 1.5),
        "lash": uniform(0.25, 0.70),
        "rim": normal(13.0, 1.2),
    }
    return Identity(
        traits=traits,
        lid_gain=normal(0.55, 0.1),
        upper=normal(4.9, 0.75),
        lower=normal(3.6, 0.45),
        kappa=np.deg2rad([normal(-1.5, 1.2, kappa), normal(4.5, 1.6, kappa)]),
        bias=np.deg2rad(kappa * rng.normal(0, 1.0, (2, 2))),
        freckles=looks * rng.normal(0, 1, (2, 10, 16)),
        glasses=bool(rng.random() < variety.glasses * looks),
        head=np.deg2rad([normal(8, 3), normal(0, 4)]),
        head_spread=np.deg2rad([uniform(4, 10), uniform(4, 10)]),
        between_eyes=normal(63.0, 3.0),
        range_centre=rng.random(2),
        days=int(rng.integers(days[0], days[1] + 1)),
        quantity=float(rng.normal()),
        # A stream of its own, so that the option `device` changes none of the other draws.
        device=np.random.default_rng([seed, _DEVICE, index]).normal(size=7),
    )


def glances(
    who: Identity, seed: int, index: int, variety: Variety, count: int, sides: tuple[int, ...]
) -> tuple[GlanceBatch, Generator]:
    """Return `count` glances, with one patch for each of `sides`.

    The second value is the random generator, with which the patches' noise is drawn next.
    """
    rng = np.random.default_rng([seed, _GLANCES, index])
    # Every day gets at least one glance.
    day = np.sort(np.r_[np.arange(who.days), rng.integers(who.days, size=count - who.days)])
    # Points looked at, mm from the middle between the eyes, `[count, 3]`.
    narrow = 0.7 * variety.label_range * min(variety.strength, 1.0)
    place = who.range_centre * narrow + (1 - narrow) * rng.random((count, 2))
    low, high = np.transpose([PITCH_DEG, YAW_DEG])
    angles = np.deg2rad(low + (high - low) * place + rng.normal(0, (1.2, 1.5), (count, 2)))
    distance = rng.uniform(400, 700, (count, 1))
    target = distance * vector(angles)
    turn = who.head + rng.normal(0, 1, (count, 2)) * who.head_spread
    light = _day_values(rng, variety, who.days, day)
    shared = {
        "blink": 1 - 0.35 * (rng.random(count) < 0.06) * variety.nuisance,
        "pupil": rng.uniform(0.85, 1.15, count),
    }
    views = [_one_side(who, rng, variety, target, turn, light, shared, side) for side in sides]
    eyes, gaze, pose = zip(*views, strict=True)
    # Both eyes of one glance follow each other.
    labels = np.stack(gaze, 1).reshape(-1, 2)
    labels = labels + np.deg2rad(rng.normal(0, 0.6, labels.shape)) * variety.nuisance
    batch = GlanceBatch(
        eyes=_interleave(eyes),
        gaze=labels.astype(np.float32),
        pose=np.stack(pose, 1).reshape(-1, 2).astype(np.float32),
        day=np.repeat(day, len(sides)),
        side=np.tile(sides, count),
    )
    return batch, rng


def _day_values(rng: Generator, variety: Variety, days: int, day: NDArray) -> Callable:
    """Return a function that draws standard normal numbers `[glances, columns]`.

    The fraction `variety.day_share` of their variance is common to all glances of a day.
    """
    share = variety.day_share

    def draw(columns: int) -> NDArray:
        common = rng.normal(size=(days, columns))[day]
        own = rng.normal(size=(len(day), columns))
        return np.sqrt(share) * common + np.sqrt(1 - share) * own

    return draw


def _one_side(
    who: Identity,
    rng: Generator,
    variety: Variety,
    target: NDArray,
    turn: NDArray,
    light: Callable,
    shared: dict[str, NDArray],
    side: int,
) -> tuple[Eyes, NDArray, NDArray]:
    """Return the picture parameters, true gaze and head pose of one eye, a row per glance.

    Gaze and pose are in the eye's own normalised camera.
    """
    count, nuisance = len(target), variety.nuisance
    # The person's left eye appears on the right; a right eye is stored as its mirror image.
    sign = 1.0 if side == LEFT else -1.0
    ray = target - np.array([sign * who.between_eyes / 2, 0, 0])
    ray /= np.linalg.norm(ray, axis=1, keepdims=True)
    # The normalised camera faces each eye, which turns it by the angle between eye and camera.
    facing = np.arctan2(sign * who.between_eyes / 2, CAMERA_MM)
    yaw = np.arctan2(-ray[:, 0], -ray[:, 2]) - facing
    gaze = np.stack([np.arcsin(-ray[:, 1]), sign * yaw], 1)
    pose = np.stack([turn[:, 0], sign * (turn[:, 1] - facing)], 1)
    lift = 7.5 * np.sin(gaze[:, 0] + 0.12)
    upper = who.upper + who.lid_gain * lift + rng.normal(0, 0.45, count) * nuisance
    lower = who.lower - 0.25 * lift + rng.normal(0, 0.2, count) * nuisance
    traits = {name: np.full(count, value) for name, value in who.traits.items()}
    traits["tilt"] = traits["tilt"] + rng.normal(0, 0.03, count) * nuisance
    traits["pupil"] = traits["pupil"] * shared["pupil"]
    eyes = traits | {
        "glasses": np.full(count, float(who.glasses)),
        "freckles": np.broadcast_to(who.freckles[side], (count, 10, 16)),
        "kappa": np.broadcast_to(who.kappa + who.bias[side], (count, 2)),
        "gaze": gaze,
        "head": 0.35 * pose,
        "upper": np.maximum(upper * shared["blink"], 0.8),
        "lower": np.maximum(lower, 0.8),
        **_capture(who, rng, variety, light, count, sign),
    }
    return Eyes(**{name: np.asarray(a, np.float32) for name, a in eyes.items()}), gaze, pose


def _capture(
    who: Identity, rng: Generator, variety: Variety, light: Callable, count: int, sign: float
) -> dict[str, NDArray]:
    """Draw random parameters of light, crop error, glare on glasses, and sensor."""
    # Uniform numbers by way of normal ones: their range does not depend on who has what share.
    u = ndtr(_mix_with_own(light(6), who.device[:6], variety.device_share))

    def between(column: int, low: float, high: float) -> NDArray:
        return low + (high - low) * u[:, column]

    source = np.stack([sign * between(0, -0.9, 0.9), between(1, -0.9, 0.1), -np.ones(count)], 1)
    crop = light(3) * np.array([0.7, 0.55, 0.03]) * variety.nuisance
    glare = rng.uniform(0.2, 0.8, count) * (rng.random(count) < 0.45)
    place = rng.normal((0, -2), (8, 5), (count, 2))
    extent = rng.uniform((1.5, 1), (5, 3), (count, 2))
    return {
        "shift": crop[:, :2],
        "zoom": crop[:, 2],
        "light": source / np.linalg.norm(source, axis=1, keepdims=True),
        "ambient": between(2, 0.35, 0.75),
        "shading": between(3, 0.25, 0.8),
        "gain": between(4, 0.45, 1.15),
        "gamma": between(5, 0.7, 1.4),
        "cloud": rng.normal(size=(count, 5, 7)),
        "glint": rng.uniform(0.3, 1.0, count),
        "glint_size": rng.uniform(0.4, 0.9, count),
        "glare": np.column_stack([glare, place, extent]),
        "blur": _blur(who, rng, variety, count) * variety.nuisance,
        "noise": rng.uniform(0.4, 2.0, count) * variety.nuisance,
    }


def _blur(who: Identity, rng: Generator, variety: Variety, count: int) -> NDArray:
    soft = rng.uniform(0, 1.1, count)
    # The way through normal numbers rounds: without a share the uniform number stays exact.
    if not variety.device_share:
        return soft
    return 1.1 * ndtr(_mix_with_own(ndtri(soft / 1.1), who.device[6], variety.device_share))


def _mix_with_own(scores: NDArray, own: NDArray, share: float) -> NDArray:
    """Return standard normal numbers in which `own` has the fraction `share` of the variance.

    `scores` are the other normal numbers, which differ between pictures.
    """
    return np.sqrt(share) * own + np.sqrt(1 - share) * scores


def _interleave(sides: tuple[Eyes, ...]) -> Eyes:
    def join(name: str) -> NDArray:
        arrays = np.stack([getattr(eyes, name) for eyes in sides], 1)
        return arrays.reshape(-1, *arrays.shape[2:])

    return Eyes(**{name: join(name) for name in Eyes.__dataclass_fields__})
