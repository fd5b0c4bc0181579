"""Synthetic wearers: their rooms, cameras and hands, and their habits of looking.

Used by `data.synthetic.ego.ego_synthetic`, `data.synthetic.ego.gaze_behavior`,
`data.synthetic.ego.rendering` and `data.synthetic.ego.scene`.

Source: egovideo note 6.1, 6.2 and the presets of 6.4. The spreads over people follow published
numbers of EGTEA and GTEA Gaze+, and the recordings of the note's section 4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

CLASSES = ("disc", "box", "bottle", "bowl", "knife", "jar", "cloth", "screen")
TARGETS = ("object", "hand", "rest", "exploration")
CENTRE = (0.50, 0.55)
MEAN_WEIGHTS = np.array([6, 5, 2.5, 1.5])
MEAN_FIXATION, MEAN_HEAD_GAIN = 0.30, 0.3

_SHARED, _PERSON, _CLIP = 0, 1, 2


@dataclass(frozen=True)
class Looks:
    """Appearance of a wearer's frames: room, light, camera and hands. It determines P(x)."""

    palette: NDArray
    """Colours of wall, counter and floor, `[3, 3]` RGB in [0, 1]."""
    grain: NDArray
    """Strength of wall tiles, wood grain and value noise, `[3]`."""
    classes: NDArray
    """Frequency of each object class in the scene, `[8]`."""
    skin: NDArray
    sleeve: NDArray
    left_handed: bool
    exposure: float
    warmth: float
    """The gain of red is 1 plus this, the gain of blue 1 minus this."""
    gamma: float
    field_of_view: float
    """Field of view in degrees; with 90, the frame is one unit of the scene's plane wide."""
    lens: float
    """Radial coefficient of the lens's division model, at the frame corner."""
    vignette: float
    roll: float
    noise: float
    jpeg: int
    bob: float
    """Amplitude of vertical head movement at 1.8 Hz (walking), in frame widths."""


@dataclass(frozen=True)
class Habits:
    """Gaze habits of a wearer. They determine P(y) and P(y|x)."""

    rest: NDArray
    """The point in the frame where this wearer's gaze rests, x and y."""
    spread: NDArray
    weights: NDArray
    """Probability of each kind of target in `TARGETS`, `[4]`."""
    preference: NDArray
    """Preference for each object class, `[8]`; larger is preferred."""
    anticipation: float
    """Seconds by which gaze leads the hand."""
    fixation: float
    """Mean fixation duration in seconds."""
    head_gain: float
    offset: NDArray
    """Constant error of the eye tracker (kappa residue), x and y."""
    other_hand: bool = False
    """Whether the wearer looks at the hand that is not acting."""


@dataclass(frozen=True)
class SyntheticWearer:
    """One wearer: looks, habits, and number of clips relative to the mean."""

    looks: Looks
    habits: Habits
    quantity: float


@dataclass(frozen=True)
class Preset:
    """Which traits differ between people, and how much (egovideo design note, 6.4)."""

    looks: Literal["shared", "light", "all"]
    rest_sd: float
    preference: float | None
    """Dirichlet concentration of class preferences; None: everybody has the same preferences."""
    anticipation: tuple[float, float]
    own_gaze: bool
    """Whether five gaze traits are drawn for each person; else everybody has the mean.

    These are target weights, spread, fixation duration, head gain and tracker offset.
    """
    quantity_sd: float = 0.0
    groups: int = 1
    """Number of disjoint sets of object classes; people get the sets in turn."""
    opposite_hands: bool = False


PRESETS = {
    "iid": Preset("shared", 0.0, None, (0.0, 0.4), own_gaze=False),
    "mild": Preset("light", 0.03, 3.0, (0.1, 0.2), own_gaze=False),
    "default": Preset("all", 0.05, 0.6, (0.0, 0.4), own_gaze=True, quantity_sd=0.4),
    "strong": Preset(
        "all", 0.09, 0.2, (0.0, 0.4), own_gaze=True, quantity_sd=0.8, groups=4, opposite_hands=True
    ),
}
"""Name of a preset -> the preset."""


def clip_stream(seed: int, index: int, clip: int) -> Generator:
    """Return the random generator for one clip of person `index`."""
    return np.random.default_rng([seed, _CLIP, index, clip])


def person(seed: int, index: int, preset: Preset) -> SyntheticWearer:
    """Return wearer `index`, who is the same whatever the number of wearers is."""
    # Streams are keyed by the person, so that a person does not depend on how many there are.
    own_rng = np.random.default_rng([seed, _PERSON, index])
    common_rng = np.random.default_rng([seed, _SHARED])
    own, common = _looks(own_rng), _looks(common_rng)
    looks = own if preset.looks == "all" else common
    if preset.looks == "light":
        looks = replace(common, exposure=own.exposure, warmth=own.warmth, gamma=own.gamma)
    if preset.groups > 1:
        group_size = len(CLASSES) // preset.groups
        members = np.arange(len(CLASSES)) // group_size == index % preset.groups
        share = (looks.classes + 0.05) * members
        looks = replace(looks, classes=share / share.sum())
    return SyntheticWearer(
        looks=looks,
        habits=_habits(own_rng, common_rng, preset, index),
        quantity=_quantity(own_rng, preset.quantity_sd),
    )


def _looks(rng: Generator) -> Looks:
    skin = np.array([0.92, 0.72, 0.58]) * rng.uniform(0.35, 1.0) ** np.array([0.7, 1.0, 1.1])
    dark = rng.random() < 0.1
    return Looks(
        palette=rng.uniform(0.2, 0.85, (3, 1)) + rng.normal(0, 0.09, (3, 3)),
        grain=rng.uniform(0.0, 1.0, 3) * np.array([0.25, 0.3, 0.5]),
        classes=rng.dirichlet(np.full(len(CLASSES), 0.6)),
        skin=skin,
        sleeve=rng.uniform(0.05, 0.9, 3),
        left_handed=bool(rng.random() < 0.15),
        exposure=(0.4 if dark else 1.0) * float(np.exp(rng.normal(0, 0.25))),
        warmth=rng.uniform(-0.15, 0.15),
        gamma=rng.uniform(0.7, 1.4),
        field_of_view=rng.uniform(70, 110),
        lens=rng.uniform(-0.25, 0.05),
        vignette=rng.uniform(0, 0.6),
        roll=np.deg2rad(rng.uniform(-4, 4)),
        noise=rng.uniform(0.01, 0.05),
        jpeg=int(rng.integers(60, 96)),
        bob=rng.uniform(0, 0.015),
    )


def _habits(own: Generator, common: Generator, preset: Preset, index: int) -> Habits:
    """Draw a person's habits at random.

    Gaze traits are drawn even if the preset replaces them by the mean. So later random numbers are
    the same in all presets.
    """
    rest = np.array(CENTRE) + own.normal(0, 1, 2) * preset.rest_sd
    gaze = {
        "spread": np.array([own.uniform(0.08, 0.13), own.uniform(0.07, 0.11)]),
        "weights": own.dirichlet(2 * MEAN_WEIGHTS),
        "fixation": float(np.exp(own.normal(np.log(MEAN_FIXATION), 0.25))),
        "head_gain": float(np.clip(own.normal(MEAN_HEAD_GAIN, 0.1), 0, 0.6)),
        "offset": own.normal(0, 0.012, 2),
    }
    if not preset.own_gaze:
        gaze = {
            "spread": np.array([0.105, 0.09]),
            "weights": MEAN_WEIGHTS / MEAN_WEIGHTS.sum(),
            "fixation": MEAN_FIXATION,
            "head_gain": MEAN_HEAD_GAIN,
            "offset": np.zeros(2),
        }
    rng = common if preset.preference is None else own
    concentration = np.full(len(CLASSES), preset.preference or 0.6)
    return Habits(
        rest=rest,
        # 0.01 keeps a class that a person never chooses possible: then distance decides.
        preference=rng.dirichlet(concentration) + 0.01,
        anticipation=rng.uniform(*preset.anticipation),
        other_hand=preset.opposite_hands and index % 2 == 1,
        **gaze,
    )


def _quantity(rng: Generator, sd: float) -> float:
    """Return a log-normal number with mean 1, clipped to a range of 20:1."""
    # Minus half the variance makes the mean of a log-normal number 1.
    factor = np.exp(rng.normal() * sd - sd * sd / 2)
    return float(np.clip(factor, 20**-0.5, 20**0.5))
