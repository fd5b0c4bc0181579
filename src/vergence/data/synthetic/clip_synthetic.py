"""Generated clips of people in three communities, which clustering methods should discover.

A clip is a sequence of feature vectors, one per frame. Its features are sines of one speed, with
random phases and noise. The community decides on the speed, the clip's length and the mean of the
first feature. It also decides which direction in the other features its people find important.
Public proxy clips, with which people are compared, come from a fourth community.

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
"""Speed in radians per frame, length in frames, and first feature's mean of the proxy clips."""
RATERS, DOUBT = 5, 0.3
"""Number of raters of a clip, and their error in standard deviations of its true ratings."""
SHOT = 4


@dataclass(frozen=True)
class ClipSynthetic(Dataset):
    """Clips of people in three communities, with ratings; person i is in community i modulo 3.

    Each frame is a step, and four frames are a shot. Five people rate each clip, with noise. They
    rate a frame by w . x, where x are all features but the first. The vector w is a common one plus
    `strength` times that of the community. The target is the mean rating, scaled to [0, 1].

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
    """Return a random clip: a sine for each feature, with random phases and noise of deviation 0.3.

    The clip has 0.95 to 1.05 times `frames` frames. All sines have the same `speed`, in radians per
    frame. `mean` is added to the first feature.
    """
    t = np.arange(round(frames * rng.uniform(0.95, 1.05)))[:, None]
    x = np.sin(rng.uniform(0, 2 * np.pi, features) + speed * t)
    x = x + 0.3 * rng.normal(size=x.shape)
    x[:, 0] += mean
    return x


def rate_clip(
    x: Float[np.ndarray, "frames d"], wanted: Float[np.ndarray, " d"], rng: np.random.Generator
) -> RatedClip:
    """Return a clip with noisy ratings of five people, who rate each frame by `wanted` . x[1:]."""
    liked = x[:, 1:] @ wanted
    ratings = liked + DOUBT * liked.std() * rng.normal(size=(RATERS, len(x)))
    mean = ratings.mean(0)
    starts = np.arange(0, len(x), SHOT)
    shots = np.stack([starts, np.append(starts[1:], len(x)) - 1], 1)
    target = (mean - mean.min()) / np.ptp(mean)
    return RatedClip(x, np.arange(len(x)), target, ratings, favourites(ratings, shots), shots)
