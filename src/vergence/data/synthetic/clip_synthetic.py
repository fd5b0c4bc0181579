"""Generated clips, as frame features, of people in three communities that methods must discover.

A clip's features are sines of one speed, with random phases and noise; the first feature has a mean
of its own. A community sets speed, length and mean. Clips of a fourth community serve as proxies
with which people are compared. A community finds one direction in the other features important.

Used by `tasks.summary`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Interval
from jaxtyping import Float

from vergence.core.federation import Dataset, Federation
from vergence.core.options import Share
from vergence.core.randomness import RandomStream
from vergence.data.video_summaries.fragments import RatedClip, favourites, samples_of
from vergence.errors import ConfigError

COMMUNITIES = {
    "latent": ((0.1, 60, 0.0), (0.4, 120, 2.0), (1.0, 240, 5.0)),
    "lengths": ((0.4, 60, 0.0), (0.4, 120, 0.0), (0.4, 240, 0.0)),
}
PROXY = (0.2, 90, -1.0)
"""Radians per frame, frames, and mean of the first feature of clips of nobody's community."""
RATERS, DOUBT = 5, 0.3
"""People who rate a clip, and how far each is off, in units of what they rate."""
SHOT = 4


@dataclass(frozen=True)
class ClipSynthetic(Dataset):
    """Rated clips of people, of whom person i is of community i modulo 3; shots have four frames.

    Every frame of a clip is a step. Five people rate each clip. What they find important is w . x,
    where x are all features but the first and w = common + strength * the community's own; the
    target is the mean rating, scaled.

    Args:
        people: number of people.
        classes: number of communities to which a person's clips belong in turn, the person's own
            first; with all three, everybody is alike.
        clips: number of clips of each person; 60 % are for training, 20 % for validation and 20 %
            for test.
        features: numbers per frame.
        communities: `latent` differ in speed, length and mean; `lengths`, a control, in the length
            of clips alone.
        strength: how much communities differ in what they find important; 0: not at all.
        seed: seed of the data.
    """

    people: Annotated[int, Interval(ge=1, le=1000)] = 10
    classes: Literal[1, 2, 3] = 1
    clips: Annotated[int, Ge(5)] = 10
    features: Annotated[int, Ge(2)] = 4
    communities: Literal["latent", "lengths"] = "latent"
    strength: Share = 1.0
    seed: int = 0

    def load(self, root: str | None = None) -> Federation:
        """Draw the data; the columns are those of `video_summaries.fragments.samples_of`.

        Raises:
            ConfigError: a root was given.
        """
        if root is not None:
            raise ConfigError("clip_synthetic is generated: remove root from its table")
        digits = max(2, len(str(self.people - 1)))
        made = {f"p{i:0{digits}d}": self._person(i) for i in range(self.people)}
        about = {
            "licence": "generated",
            "split": "60/20/20 by clip",
            "citation": "none",
            "judged": "tvsum",
            "features": f"sines, {self.features}",
        }
        return Federation("clip_synthetic", samples_of(made), about)

    def _person(self, number: int) -> dict[str, list[RatedClip]]:
        kinds = COMMUNITIES[self.communities]
        rng = RandomStream("clip_synthetic", self.seed, number).numpy()
        groups = [(number + clip % self.classes) % len(kinds) for clip in range(self.clips)]
        clips = [
            rate_clip(draw_clip(rng, *kinds[group], self.features), self._interests(group), rng)
            for group in groups
        ]
        a, b = self.clips * 6 // 10, self.clips * 8 // 10
        return {"train": clips[:a], "val": clips[a:b], "test": clips[b:]}

    def _interests(self, group: int) -> Float[np.ndarray, " d"]:
        return self._direction("common") + self.strength * self._direction(str(group))

    def _direction(self, whose: str) -> Float[np.ndarray, " d"]:
        return (
            RandomStream("clip_synthetic", self.seed, whose).numpy().normal(size=self.features - 1)
        )


def draw_clip(
    rng: np.random.Generator, speed: float, frames: int, mean: float, features: int = 4
) -> Float[np.ndarray, "frames d"]:
    """Return a clip of 0.95 to 1.05 times `frames`: sines of random phase, and noise of 0.3."""
    t = np.arange(round(frames * rng.uniform(0.95, 1.05)))[:, None]
    x = np.sin(rng.uniform(0, 2 * np.pi, features) + speed * t)
    x = x + 0.3 * rng.normal(size=x.shape)
    x[:, 0] += mean
    return x


def rate_clip(
    x: Float[np.ndarray, "frames d"], wanted: Float[np.ndarray, " d"], rng: np.random.Generator
) -> RatedClip:
    """Return a clip with the ratings of people who find `wanted` . x[1:] important."""
    liked = x[:, 1:] @ wanted
    ratings = liked + DOUBT * liked.std() * rng.normal(size=(RATERS, len(x)))
    mean = ratings.mean(0)
    starts = np.arange(0, len(x), SHOT)
    shots = np.stack([starts, np.append(starts[1:], len(x)) - 1], 1)
    target = (mean - mean.min()) / np.ptp(mean)
    return RatedClip(x, np.arange(len(x)), target, ratings, favourites(ratings, shots), shots)
