"""The scene of one synthetic clip: objects on a counter, two working hands, and the camera's lens.

The scene is a plane, with positions in frame widths. With the head at its starting place, and a
lens of 90 degrees without distortion, the frame shows [0, 1] x [0, 1] of the plane. Source:
egovideo note 6.1.

Used by `data.synthetic.ego.ego_synthetic`, `data.synthetic.ego.gaze_behavior` and
`data.synthetic.ego.rendering`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from vergence.data.synthetic.ego.people import Looks

RATE_OF_CHANGE = 0.4
"""Mean number of times per second that the hands change to another object."""
RATE_OF_DISTRACTION = 0.15
WORK_AREA, WORK_SPREAD = (0.50, 0.56), (0.115, 0.10)
"""Mean and standard deviation of objects' places; with these, gaze has the spread of recordings."""
CORNER = math.sqrt(0.5)
"""Distance of a frame corner from the frame centre, in frame widths."""


@dataclass(frozen=True)
class SyntheticScene:
    """Objects and hands in front of the wearer in every frame, in plane coordinates."""

    kinds: NDArray
    """Class number of each object, int `[objects]`."""
    sizes: NDArray
    angles: NDArray
    colours: NDArray
    """Two RGB colours of each object, `[objects, 2, 3]`."""
    objects: NDArray
    """Object centres, `[frames, objects, 2]`."""
    hands: NDArray
    """Contact points of the left and right hand, `[frames, 2, 2]`."""
    active: NDArray
    """Number of the object that the hands work on, int `[frames]`."""
    acting: NDArray
    """The hand that works, int `[frames]`: 0 left, 1 right."""


@dataclass(frozen=True)
class Lens:
    """Projection of the scene's plane into the frame: scale, roll, radial division model."""

    scale: float
    roll: float
    radial: float

    @staticmethod
    def of(looks: Looks) -> Lens:
        """Return the lens of a wearer with these looks."""
        return Lens(looks.field_of_view / 90, looks.roll, looks.lens)

    def unproject(self, points: NDArray) -> NDArray:
        """Map frame points to points of the plane, relative to the head, both `[..., 2]`."""
        centred = points - 0.5
        radius2 = (centred**2).sum(-1, keepdims=True) / CORNER**2
        plane = self.scale * centred / (1 + self.radial * radius2)
        cos, sin = math.cos(self.roll), math.sin(self.roll)
        x, y = plane[..., 0], plane[..., 1]
        return np.stack([cos * x - sin * y, sin * x + cos * y], -1)

    def project(self, points: NDArray) -> NDArray:
        """Map points of the plane, relative to the head, to frame points, both `[..., 2]`."""
        cos, sin = math.cos(self.roll), math.sin(self.roll)
        x, y = points[..., 0] / self.scale, points[..., 1] / self.scale
        centred = np.stack([cos * x + sin * y, cos * y - sin * x], -1)
        radius2 = (centred**2).sum(-1, keepdims=True) / CORNER**2
        # A lens with a positive coefficient images nothing beyond this radius.
        root = np.sqrt(np.maximum(1 - 4 * self.radial * radius2, 0))
        return 0.5 + centred * 2 / (1 + root)


def build_scene(looks: Looks, rng: Generator, frames: int, fps: float) -> SyntheticScene:
    """Return a random scene: 5 to 9 objects, on which the hands work for `frames` frames."""
    count = int(rng.integers(5, 10))
    start = _places(rng, count)
    objects = np.repeat(start[None], frames, 0)
    hands = np.repeat(_idle_hands()[None], frames, 0)
    active = np.zeros(frames, int)
    acting = np.zeros(frames, int)
    _act(looks, rng, fps, objects, hands, active, acting)
    _distract(rng, fps, objects, active)
    # Draw object classes by their frequency, two of a class at most while other classes last.
    # Without that limit a wearer's scenes hold hardly more than two classes, and then liking one
    # class more than another does not show in where the wearer looks.
    present = np.flatnonzero(looks.classes)
    pool = np.repeat(present, max(2, -(-count // len(present))))
    return SyntheticScene(
        kinds=rng.choice(
            pool, count, replace=False, p=looks.classes[pool] / looks.classes[pool].sum()
        ),
        sizes=rng.uniform(0.06, 0.18, count),
        angles=rng.uniform(-0.5, 0.5, count),
        colours=rng.uniform(0.08, 0.95, (count, 2, 3)),
        objects=objects,
        hands=hands,
        active=active,
        acting=acting,
    )


def _idle_hands() -> NDArray:
    return np.array([[0.30, 0.93], [0.70, 0.93]])


def _places(rng: Generator, count: int) -> NDArray:
    """Return a place in the work area for each of `count` objects, `[count, 2]`.

    Each is the one of eight random places that is farthest from the objects placed before.
    """
    placed = np.empty((0, 2))
    for _ in range(count):
        tried = np.clip(rng.normal(WORK_AREA, WORK_SPREAD, (8, 2)), (0.02, 0.15), (0.98, 0.95))
        if len(placed):
            gaps = np.linalg.norm(tried[:, None] - placed[None], axis=-1).min(1)
            tried = tried[[gaps.argmax()]]
        placed = np.concatenate([placed, tried[:1]])
    return placed


def _glide(path: NDArray, start: int, stop: int, goal: NDArray) -> None:
    """Change `path` `[frames, 2]` in place: move to `goal` with minimum jerk, and stay there.

    The movement begins in frame `start` and ends in frame `stop`.
    """
    if start >= len(path):
        return
    s = np.linspace(0, 1, max(stop - start, 1) + 1)[:, None]
    leg = path[start] + (goal - path[start]) * (10 * s**3 - 15 * s**4 + 6 * s**5)
    path[start:] = goal
    path[start : start + len(leg)] = leg[: len(path) - start]


def _act(
    looks: Looks,
    rng: Generator,
    fps: float,
    objects: NDArray,
    hands: NDArray,
    active: NDArray,
    acting: NDArray,
) -> None:
    """Let the hands reach for one object after another, and carry an object 60 % of the time.

    `objects`, `hands`, `active` and `acting` are changed in place.
    """
    frames, count = len(objects), objects.shape[1]
    dominant = 0 if looks.left_handed else 1
    now, item, hand = 0, int(rng.integers(count)), dominant
    while now < frames:
        other = int(rng.integers(count - 1))
        # Skipping the last item draws one of the others with equal chance.
        item = other + (other >= item)
        previous, hand = hand, dominant if rng.random() < 0.75 else 1 - dominant
        active[now:], acting[now:] = item, hand
        if previous != hand:
            _glide(hands[:, previous], now, now + round(0.7 * fps), _idle_hands()[previous])
        grasp = now + round(rng.uniform(0.5, 0.9) * fps)
        _glide(hands[:, hand], now, grasp, objects[min(grasp, frames - 1), item].copy())
        done = grasp + round(0.2 * fps)
        if rng.random() < 0.6:
            arrive = done + round(rng.uniform(0.6, 1.0) * fps)
            goal = _places(rng, 1)[0]
            _glide(hands[:, hand], done, arrive, goal)
            _glide(objects[:, item], done, arrive, goal)
            done = arrive
        now = max(done, now + round(rng.exponential(1 / RATE_OF_CHANGE) * fps)) + 1


def _distract(rng: Generator, fps: float, objects: NDArray, active: NDArray) -> None:
    """Now and then, let an object that the hands do not use move by itself.

    `objects` is changed in place.
    """
    frames, count = len(objects), objects.shape[1]
    for now in np.flatnonzero(rng.random(frames) < RATE_OF_DISTRACTION / fps):
        # An object that the hands use must stay where they reach for it.
        free = np.setdiff1d(np.arange(count), active)
        if len(free):
            item = int(rng.choice(free))
            goal = objects[now, item] + rng.normal(0, 0.15, 2)
            _glide(objects[:, item], int(now), int(now) + round(0.8 * fps), goal)
