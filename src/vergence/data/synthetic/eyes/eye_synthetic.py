"""Synthetic eye patches with gaze and head pose: people, recording days, both eyes of a head.

Used by `data.eye_images.gaze_zones` and `data.synthetic.eyes.eye_glances`.

Source: this project. The parameters are chosen so that LeNet's errors are as large as on MPIIGaze.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Interval

from vergence.core.data import Samples, Splits
from vergence.core.federation import Dataset, Federation
from vergence.core.options import Share
from vergence.data.eye_images.crop import equalise
from vergence.data.io.generated_cache import Arrays, cached
from vergence.data.splits import Shares, check_shares, part_sizes
from vergence.data.synthetic.eyes.people import LEFT, RIGHT, GlanceBatch, Variety, glances, identity
from vergence.data.synthetic.eyes.rendering import render
from vergence.errors import ConfigError

VERSION = 1
"""Version number of the generator, part of the cache's key; raise it with every change."""
FEWEST, MOST = 40, 35_000
CROPS = {"36x60": (slice(0, 36), slice(0, 60)), "9x15": (slice(13, 22), slice(22, 37))}


@dataclass(frozen=True)
class EyeSynthetic(Dataset):
    """Eye patches of people in front of a screen, with gaze angles and head pose.

    Attributes:
        people: number of people; person i is the same, whatever this number is.
        samples: number of patches per person; with both eyes, two patches are a glance.
        days: fewest and most recording days of a person; light and camera differ between days.
        eyes: "both": both eyes of a head; right eyes are mirrored and their yaws negated. "left":
            only left eyes.
        size: "36x60": whole patches. "9x15": centre crops, as in `mpiigaze_crops`.
        nuisance: factor of all disturbances of single pictures; with 1.8, LeNet's errors are as
            large as on MPIIGaze.
        strength: factor of all differences between people and between days. 0: all people and days
            have the same distribution (IID). The next seven options set single differences;
            docs/how-to/skew.md describes the skew that each makes.
        appearance: factor of the differences in looks and posture, and of the fraction with
            glasses.
        crop: factor of the differences in where the eye lies in the patch.
        kappa: factor of the differences in the angle kappa, between visual and optical axis, and in
            the labels' frame of reference. With these, the same picture has different labels for
            different people.
        device: fraction of the variance of light, exposure and blur that is constant for a person.
        light: fraction of the variance of light, camera and crop error that is constant for a
            person's day.
        label_range: how small a part of the screen each person looks at. 0: the whole screen; 1: a
            part with 30 % of its width and height, if `strength` is 1 or more.
        quantity: standard deviation, over people, of the logarithm of the number of patches.
        counts: number of patches of each person, one after another; replaces `samples` and
            `quantity`.
        glasses: fraction of people who wear glasses.
        shares: fractions of a person's days for training, validation and test, in order of time.
        seed: seed of all random numbers.
    """

    people: Annotated[int, Interval(ge=1, le=1000)] = 10
    samples: Annotated[int, Interval(ge=FEWEST, le=MOST)] = 300
    days: tuple[int, int] = (5, 20)
    eyes: Literal["both", "left"] = "both"
    size: Literal["36x60", "9x15"] = "36x60"
    nuisance: Annotated[float, Interval(ge=0, le=3)] = 1.8
    strength: Annotated[float, Interval(ge=0, le=2)] = 1.0
    appearance: Annotated[float, Interval(ge=0, le=2)] = 1.0
    crop: Annotated[float, Interval(ge=0, le=4)] = 1.0
    kappa: Annotated[float, Interval(ge=0, le=4)] = 1.0
    device: Share = 0.0
    light: Share = 0.7
    label_range: Share = 0.0
    quantity: Annotated[float, Interval(ge=0, le=3)] = 0.0
    counts: tuple[Annotated[int, Interval(ge=FEWEST, le=MOST)], ...] = ()
    glasses: Share = 0.22
    shares: Shares = (0.6, 0.2, 0.2)
    seed: Annotated[int, Interval(ge=0, le=2**32 - 1)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(self.shares)
        if len(self.days) != 2 or not 3 <= self.days[0] <= self.days[1] <= FEWEST // 2:
            raise ConfigError(
                f"eye_synthetic: days must be (fewest, most) with 3 <= fewest <= most <= "
                f"{FEWEST // 2}; got {self.days}"
            )
        if self.counts and len(self.counts) != self.people:
            raise ConfigError(
                f"eye_synthetic: counts must be empty or hold one number for each of the "
                f"{self.people} people; got {len(self.counts)}"
            )

    def load(self, root: str | None = None) -> Federation:
        """Generate everybody's patches, or take them from the cache; needs no files.

        Columns of the samples: `image` uint8 `[n, 1, H, W]`, histogram equalised; `gaze` and `pose`
        float32 `[n, 2]`, (pitch, yaw) in radians; `day`, `side` (0 left, 1 right) and `glasses` (0
        or 1) int64 `[n]`.

        Raises:
            DataError: a person has too few days for the option `shares`.
        """
        return Federation(
            name="eye_synthetic",
            people={f"p{i:02d}": self._splits(i) for i in range(self.people)},
            about={
                "licence": "generated by vergence, Apache-2.0",
                "citation": "none: synthetic; matched to published errors on MPIIGaze",
                "split": "within person, by recording day in order, shares of days (train, val, "
                f"test) {self.shares}; no day is in two parts",
                "eyes": "right eyes are mirrored and their yaw signs flipped"
                if self.eyes == "both"
                else "left eyes only",
            },
        )

    def person(self, index: int) -> Arrays:
        """Return all arrays of person `index`, in order of time.

        `image` is uint8 `[n, 36, 60]`. `gaze`, `pose` and `kappa` are float32 `[n, 2]`, (pitch,
        yaw) in radians. Here `kappa` is the offset that a calibration has to find: the angle kappa
        plus the error of the label frame. `day` and `side` (0 left, 1 right) are int64 `[n]`.
        """
        # Only what the pictures depend on is in the key: other people and shares are not.
        key = {
            "variety": vars(self._variety()),
            "days": self.days,
            "eyes": self.eyes,
            "seed": self.seed,
            "person": index,
            "count": self.count(index),
            "version": VERSION,
        }
        return cached("eye_synthetic", key, lambda: self._generate(index))

    def count(self, index: int) -> int:
        """Return the number of patches of person `index`; with both eyes it is even."""
        if self.counts:
            wanted = self.counts[index]
        else:
            sd = self.quantity * self.strength
            score = identity(self.seed, index, self._variety(), self.days).quantity
            # Minus half the variance makes the mean of the log-normal factor 1.
            wanted = round(self.samples * float(np.exp(sd * score - sd * sd / 2)))
        wanted = min(max(wanted, FEWEST), MOST)
        # Both eyes of a glance stay together, so the number must be even.
        return wanted // 2 * 2 if self.eyes == "both" else wanted

    def glances(self, index: int) -> GlanceBatch:
        """Return person `index`'s labels, and the parameters of pictures that are not yet drawn."""
        return self._glances(index)[0]

    def _variety(self) -> Variety:
        shared = (field.name for field in fields(Variety))
        return Variety(**{name: getattr(self, name) for name in shared})

    def _glances(self, index: int) -> tuple[GlanceBatch, np.random.Generator]:
        sides = (LEFT, RIGHT) if self.eyes == "both" else (LEFT,)
        variety = self._variety()
        who = identity(self.seed, index, variety, self.days)
        return glances(who, self.seed, index, variety, self.count(index) // len(sides), sides)

    def _generate(self, index: int) -> Arrays:
        batch, rng = self._glances(index)
        return {
            "image": equalise(render(batch.eyes, rng)),
            "gaze": batch.gaze,
            "pose": batch.pose,
            "kappa": batch.eyes.kappa,
            "day": batch.day.astype(np.int64),
            "side": batch.side.astype(np.int64),
        }

    def _splits(self, index: int) -> Splits:
        return Splits(**dict(self._parts(self.person(index), index)))

    def _parts(self, made: Arrays, index: int) -> Iterator[tuple[str, Samples]]:
        rows, columns = CROPS[self.size]
        days = int(made["day"].max()) + 1
        sizes = part_sizes(days, self.shares, f"eye_synthetic: days of p{index:02d}")
        glasses = identity(self.seed, index, self._variety(), self.days).glasses
        stop = 0
        for part, size in zip(("train", "val", "test"), sizes, strict=True):
            start, stop = stop, stop + size
            in_part = (made["day"] >= start) & (made["day"] < stop)
            image = np.ascontiguousarray(made["image"][in_part][:, None, rows, columns])
            arrays = {
                "image": image,
                "gaze": made["gaze"][in_part],
                "pose": made["pose"][in_part],
                "day": made["day"][in_part],
                "side": made["side"][in_part],
                "glasses": np.full(int(in_part.sum()), int(glasses)),
            }
            yield part, Samples({name: torch.from_numpy(a) for name, a in arrays.items()})
