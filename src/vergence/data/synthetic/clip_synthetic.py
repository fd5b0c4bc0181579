"""Generated clips of people in three communities, which clustering methods should discover.

A clip is a sequence of feature vectors, one per frame. Its features are sines of one speed, with
random phases and noise. The community decides on the speed, the clip's length and the mean of the
first feature. It also decides which direction in the other features its people find important; or
importance is not in a frame but in the clip around it.
Public proxy clips, with which people are compared, come from a fourth community.

Used by `tasks.summary`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Interval
from jaxtyping import Float, Int

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
"""Speed in radians per frame, length in frames, and first feature's mean of the proxy clips."""
RATERS, DOUBT = 5, 0.3
"""Number of raters of a clip, and their error in standard deviations of its true ratings."""
SHOT = 4
SCENES, FADE = (8, 24), 4.0
"""Shortest and longest scene in frames; frames in which the importance of a scene's frames falls to
1 / e."""


@dataclass(frozen=True)
class ClipSynthetic(Dataset):
    """Clips of people in three communities, with ratings; person i is in community i modulo 3.

    Each frame is a step, and four frames are a shot. Five people rate each clip, with noise. They
    rate a frame by w . x, where x are all features but the first. The vector w is a common one plus
    `strength` times that of the community. The target is the mean rating, scaled to [0, 1].

    With `importance = "cut"` a clip has scenes with levels of their own, and people rate a frame by
    how recently its scene began. A single frame says nothing about that: a network must see the
    frames before it, in their order.

    Args:
        people: number of people.
        classes: number of communities from which a person's clips come in turn, beginning with the
            person's own community. With 3, all people are alike.
        clips: number of clips of each person; 60 % are for training, 20 % for validation and 20 %
            for test.
        features: number of features per frame.
        communities: how communities differ. `latent`: in speed, length and mean. `lengths`, a
            control: only in the length of clips.
        strength: how much communities differ in what they find important; 0: not at all.
        importance: what people rate. `frame`: what a frame shows. `cut`: how recently its scene
            began. `strength` acts on `frame` alone.
        seed: seed of the data.
    """

    people: Annotated[int, Interval(ge=1, le=1000)] = 10
    classes: Literal[1, 2, 3] = 1
    clips: Annotated[int, Ge(5)] = 10
    features: Annotated[int, Ge(2)] = 4
    communities: Literal["latent", "lengths"] = "latent"
    strength: Share = 1.0
    importance: Literal["frame", "cut"] = "frame"
    seed: int = 0

    def load(self, root: str | None = None) -> Federation:
        """Generate the data; the columns are those of `video_summaries.fragments.samples_of`.

        Raises:
            ConfigError: `root` is not None.
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
        clips = [self._clip(rng, kinds[group], group) for group in groups]
        a, b = self.clips * 6 // 10, self.clips * 8 // 10
        return {"train": clips[:a], "val": clips[a:b], "test": clips[b:]}

    def _clip(
        self, rng: np.random.Generator, kind: tuple[float, int, float], group: int
    ) -> RatedClip:
        x = draw_clip(rng, *kind, self.features)
        if self.importance == "frame":
            return rate_clip(x, x[:, 1:] @ self._interests(group), rng)
        ages = scene_ages(rng, len(x))
        scenes = np.cumsum(ages == 0) - 1
        levels = rng.normal(size=(scenes[-1] + 1, self.features))
        return rate_clip(x + levels[scenes], np.exp(-ages / FADE), rng)

    def _interests(self, group: int) -> Float[np.ndarray, " d"]:
        return self._direction("common") + self.strength * self._direction(str(group))

    def _direction(self, whose: str) -> Float[np.ndarray, " d"]:
        return (
            RandomStream("clip_synthetic", self.seed, whose).numpy().normal(size=self.features - 1)
        )


def draw_clip(
    rng: np.random.Generator, speed: float, frames: int, mean: float, features: int = 4
) -> Float[np.ndarray, "frames d"]:
    """Return a random clip: a sine for each feature, with random phases and noise of deviation 0.3.

    The clip has 0.95 to 1.05 times `frames` frames. All sines have the same `speed`, in radians per
    frame. `mean` is added to the first feature.
    """
    t = np.arange(round(frames * rng.uniform(0.95, 1.05)))[:, None]
    x = np.sin(rng.uniform(0, 2 * np.pi, features) + speed * t)
    x = x + 0.3 * rng.normal(size=x.shape)
    x[:, 0] += mean
    return x


def scene_ages(rng: np.random.Generator, frames: int) -> Int[np.ndarray, " frames"]:
    """Return how many frames ago the scene of each frame began; a frame that begins one has 0."""
    ages: list[int] = []
    while len(ages) < frames:
        ages.extend(range(rng.integers(*SCENES, endpoint=True)))
    return np.array(ages[:frames])


def rate_clip(
    x: Float[np.ndarray, "frames d"], liked: Float[np.ndarray, " frames"], rng: np.random.Generator
) -> RatedClip:
    """Return a clip with noisy ratings of five people, who find each frame as important as `liked`.

    The noise of a rating is a share `DOUBT` of the deviation of `liked`.
    """
    ratings = liked + DOUBT * liked.std() * rng.normal(size=(RATERS, len(x)))
    mean = ratings.mean(0)
    starts = np.arange(0, len(x), SHOT)
    shots = np.stack([starts, np.append(starts[1:], len(x)) - 1], 1)
    target = (mean - mean.min()) / np.ptp(mean)
    return RatedClip(x, np.arange(len(x)), target, ratings, favourites(ratings, shots), shots)
