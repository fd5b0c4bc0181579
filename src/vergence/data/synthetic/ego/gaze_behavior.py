"""Gaze of a synthetic wearer: choice of targets, saccades, pursuit, head movement, tracker noise.

Used by `data.synthetic.ego.ego_synthetic`.

Source: egovideo design note, 6.2. The head follows the eyes as in the row of 6.3 that matches
recorded people.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from vergence.data.gaze_video.gaze import Event, Gaze
from vergence.data.synthetic.ego.people import Habits, Looks
from vergence.data.synthetic.ego.scene import WORK_AREA, Lens, SyntheticScene

HEAD_TAU = 0.4
SWAY_SD, SWAY_TAU = 0.003, 0.8
"""Standard deviation of head drift per frame at 24 fps, in frame widths; its time constant in s."""
NEAR = 0.05
"""A target nearer than this many frame widths needs no saccade."""
CATCH_UP = 0.08
"""If the eye is farther behind a moving target than this many frame widths, a saccade follows."""
PURSUIT_GAIN, PURSUIT_DELAY = 0.9, 0.08
PURSUIT_SPEED = 0.1
"""Following a target that moves faster than this, in frame widths per second, counts as pursuit."""
RAW_RATE = 120.0


@dataclass(frozen=True)
class ClipGaze:
    """The gaze in one clip: per frame, as reported and as intended, and as raw samples."""

    head: NDArray
    """Point of the scene's plane at the frame centre, `[frames, 2]`."""
    point: NDArray
    """Reported gaze as fractions of the frame, `[frames, 2]`; NaN if untracked."""
    target: NDArray
    """The point at which the wearer means to look, as fractions of the frame, `[frames, 2]`."""
    event: NDArray
    """`gaze_video.gaze.Event` of each frame, int8; as in recordings, pursuit is FIXATION."""
    pursuit: NDArray
    """Whether the eye follows something that moves, bool `[frames]`."""
    raw: Gaze
    """The tracker's samples at 120 Hz, on the tracker's clock."""
    clock_offset: float
    clock_drift: float
    """The tracker's time is (1 + `clock_drift`) * video time + `clock_offset`, in seconds."""


@dataclass(frozen=True)
class Chances:
    """The targets that a wearer may choose in one frame, with their probabilities."""

    probability: NDArray
    """Probability of each target, `[objects + 3]`: objects, hand, rest point, exploration."""
    points: NDArray
    """Places of the targets in the frame, `[objects + 2, 2]`: objects, hand, rest point."""


def chances(
    habits: Habits, lens: Lens, scene: SyntheticScene, head: NDArray, t: int, fps: float
) -> Chances:
    """Return the gaze targets in frame `t`, and the probability that the wearer chooses each.

    `look` draws targets with these probabilities, so no model can predict targets better. `head` is
    the point of the plane at the frame centre.
    """
    objects = lens.project(scene.objects[t] - head)
    liking = habits.preference[scene.kinds].copy()
    liking *= np.exp(-((objects - habits.rest) ** 2).sum(-1) / (2 * 0.2**2))
    liking[scene.active[t]] *= 3
    hand = lens.project(_hand_path(habits, scene, fps)[t] - head)
    mass = habits.weights
    probability = np.concatenate([mass[0] * liking / liking.sum(), mass[1:]])
    return Chances(probability, np.concatenate([objects, hand[None], habits.rest[None]]))


def _hand_path(habits: Habits, scene: SyntheticScene, fps: float) -> NDArray:
    """Return the future place of a hand to which the eyes look in each frame, `[frames, 2]`.

    The result holds the contact point, `habits.anticipation` seconds later, of the hand that acts
    then. If `habits.other_hand` is true, it holds that of the other hand.
    """
    frames = len(scene.hands)
    ahead = np.minimum(np.arange(frames) + round(habits.anticipation * fps), frames - 1)
    side = 1 - scene.acting[ahead] if habits.other_hand else scene.acting[ahead]
    return scene.hands[ahead, side]


def look(
    habits: Habits, looks: Looks, lens: Lens, scene: SyntheticScene, rng: Generator, fps: float
) -> ClipGaze:
    """Simulate how the wearer watches the scene, frame by frame, and return the gaze."""
    frames = len(scene.hands)
    sway = _sway(looks, rng, frames, fps)
    head = np.empty((frames, 2))
    true = np.empty((frames, 2))
    goal = np.empty((frames, 2))
    event = np.full(frames, Event.FIXATION, np.int8)
    pursuit = np.zeros(frames, bool)
    hand = _hand_path(habits, scene, fps)
    # The eye follows a moving target 80 ms late.
    delay = round(PURSUIT_DELAY * fps)
    pull = habits.head_gain / (HEAD_TAU * fps) * lens.scale
    # The head has followed the eyes since before the clip: the work lies where the eyes rest.
    place = np.array(WORK_AREA) - lens.unproject(habits.rest) + sway[0]
    eye = place + lens.unproject(habits.rest)
    seen = habits.rest
    path, base, miss = np.repeat(eye[None], frames, 0), eye, np.zeros(2)
    remaining = saccade = 0
    for t in range(frames):
        step = sway[t] - sway[t - 1] if t else np.zeros(2)
        place = place + step + pull * (seen - habits.rest)
        if saccade == 0 and remaining <= 0:
            path = _choose(habits, lens, scene, hand, place, t, rng, fps)
            remaining = max(round(rng.gamma(2.2, habits.fixation / 2.2) * fps), 2)
            saccade, base, miss = _jump(lens, looks, path[t], eye, fps)
        elif saccade == 0 and _gap(lens, path[t], base) > CATCH_UP:
            saccade, base, miss = _jump(lens, looks, path[t], eye, fps)
        if saccade > 0:
            eye = eye + 0.6 * (path[t] - eye)
            base, miss = path[t], eye - path[t]
            event[t], saccade = Event.SACCADE, saccade - 1
        else:
            late = max(t - delay, 0)
            velocity = path[late] - path[max(late - 1, 0)]
            base, miss = base + PURSUIT_GAIN * velocity, 0.4 * miss
            eye = base + miss
            pursuit[t] = math.hypot(*velocity.tolist()) * fps > PURSUIT_SPEED
            remaining -= 1
        seen = lens.project(eye - place)
        head[t], true[t], goal[t] = place, seen, path[t]
    point, event = _track(habits, rng, fps, true, event)
    raw, offset, drift = _record(rng, fps, true, point, event)
    pursuit &= event == Event.FIXATION
    target = lens.project(goal - head)
    return ClipGaze(head, point, target, event, pursuit, raw, offset, drift)


def _sway(looks: Looks, rng: Generator, frames: int, fps: float) -> NDArray:
    """Return the path of involuntary head movement, `[frames, 2]`, in frame widths.

    It is a drift with Ornstein-Uhlenbeck velocity, plus the bob of walking.
    """
    # Drift per frame is given at 24 fps; other rates scale it, so that sway per second is alike.
    keep = np.exp(-1 / (SWAY_TAU * fps))
    kicks = rng.normal(0, SWAY_SD * 24 / fps * np.sqrt(1 - keep * keep), (frames, 2)).tolist()
    x = y = 0.0
    speed = []
    for a, b in kicks:
        x, y = keep * x + a, keep * y + b
        speed.append((x, y))
    path = np.cumsum(speed, 0)
    phase = rng.uniform(0, 2 * np.pi)
    path[:, 1] += looks.bob * np.sin(2 * np.pi * 1.8 * np.arange(frames) / fps + phase)
    return path


def _choose(
    habits: Habits,
    lens: Lens,
    scene: SyntheticScene,
    hand: NDArray,
    place: NDArray,
    t: int,
    rng: Generator,
    fps: float,
) -> NDArray:
    """Choose a new target in frame `t`, and return its path on the plane, `[frames, 2]`.

    `hand` is the path of the hand, and `place` the point of the plane at the frame centre.
    """
    options = chances(habits, lens, scene, place, t, fps)
    count = len(scene.kinds)
    pick = int(rng.choice(count + 3, p=options.probability))
    if pick < count:
        return scene.objects[:, pick] + rng.normal(0, 0.12 * scene.sizes[pick], 2)
    if pick == count:
        return hand
    if pick == count + 1:
        goal = habits.rest + rng.normal(0, 1, 2) * habits.spread
    else:
        goal = rng.uniform(0.15, 0.85, 2)
    return np.repeat((place + lens.unproject(goal))[None], len(hand), 0)


def _gap(lens: Lens, goal: NDArray, eye: NDArray) -> float:
    """Return the distance of two plane points in frame widths, without lens distortion."""
    x, y = (goal - eye).tolist()
    return math.hypot(x, y) / lens.scale


def _jump(
    lens: Lens, looks: Looks, goal: NDArray, eye: NDArray, fps: float
) -> tuple[int, NDArray, NDArray]:
    """Return a saccade's length in frames, its goal, and the eye's offset from the goal.

    The length follows the main sequence. It is 0 if the goal is nearer than `NEAR`.
    """
    gap = _gap(lens, goal, eye)
    if gap <= NEAR:
        return 0, goal, eye - goal
    # Main sequence: a saccade takes 21 ms and 2.2 ms more for every degree.
    seconds = 0.021 + 0.0022 * gap * looks.field_of_view
    return int(np.clip(round(seconds * fps), 1, 3)), goal, eye - goal


def _track(
    habits: Habits, rng: Generator, fps: float, true: NDArray, event: NDArray
) -> tuple[NDArray, NDArray]:
    """Return gaze and events of each frame as an eye tracker reports them.

    The tracker adds noise, a constant offset, blinks, dropouts and outliers. `true` and `event` are
    the true gaze and events.
    """
    frames = len(true)
    point = true + habits.offset + rng.normal(0, 0.01, (frames, 2))
    wild = rng.random(frames) < 0.01
    point[wild] += np.where(point[wild] < 0.5, -1, 1) * rng.uniform(0.6, 1.0, (1, 2))
    # The tracker reports no usable gaze outside the camera's frame.
    outside = ((point < 0) | (point >= 1)).any(1)
    event = np.where(outside, Event.OUT_OF_RANGE, event)
    lost = np.zeros(frames, bool)
    # Blinks of 150 ms, 0.2 per second; and 2 % of the frames dropped, two in a row.
    for rate, length in ((0.2 / fps, round(0.15 * fps)), (0.01, 2)):
        for start in np.flatnonzero(rng.random(frames) < rate):
            lost[start : start + length] = True
    point[lost] = np.nan
    return point, np.where(lost, Event.UNTRACKED, event).astype(np.int8)


def _record(
    rng: Generator, fps: float, true: NDArray, point: NDArray, event: NDArray
) -> tuple[Gaze, float, float]:
    """Return samples at 120 Hz on the tracker's clock, and this clock's offset (s) and drift."""
    frames = len(true)
    offset, drift = float(rng.uniform(0, 0.030)), float(rng.uniform(-50e-6, 50e-6))
    times = np.arange(0, (frames - 1) / fps, 1 / RAW_RATE)
    nearest = np.minimum(np.rint(times * fps).astype(int), frames - 1)
    tracked = event[nearest] != Event.UNTRACKED
    # Interpolation needs numbers everywhere; untracked samples are marked as such below.
    filled = np.where(np.isnan(point), true, point)
    jitter = rng.normal(0, 0.002, (2, len(times)))
    x, y = (np.interp(times, np.arange(frames) / fps, filled[:, i]) + jitter[i] for i in (0, 1))
    raw = Gaze.build(
        "ego_synthetic",
        times * (1 + drift) + offset,
        x,
        y,
        tracked=tracked,
        event=event[nearest],
        confidence=tracked,
    )
    return raw, offset, drift
