"""Scores of attacks, each next to scores that need no attack.

A mean squared error alone says nothing: the mean image of other people's eyes has a small one. So
every score is reported with two that need no smashed data: the mean image, and chance, which is
somebody else's image or a guess.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.ndimage import gaussian_filter
from scipy.stats import beta
from torch import Tensor, nn

from vergence.attacks.training import learn
from vergence.core.task import own_randomness
from vergence.errors import ConfigError

# Constants of SSIM as Wang et al. (2004) chose them: a window of 11 x 11 pixels.
# Constants of SSIM as Wang et al. (2004) chose them: a window of 11 x 11 pixels.
SIGMA, RADIUS, K1, K2 = 1.5, 5, 0.01, 0.03


def mse(images: Tensor, reconstructions: Tensor) -> Tensor:
    """Return the mean squared error of each image, `[samples]`; both `[samples, ...]` in [0, 1]."""
    return (images - reconstructions).square().flatten(1).mean(1)


def ssim(images: Tensor, reconstructions: Tensor) -> Tensor:
    """Return the structural similarity of each image, `[samples]`: 1 for equal, about 0 for alien.

    A window of 11 x 11 pixels, weighed by a Gaussian of 1.5, at every pixel; images are mirrored at
    their borders, so that patches smaller than a window count too.

    Args:
        images: `[samples, 1, height, width]` in [0, 1].
        reconstructions: the same.

    Source: Wang et al., "Image quality assessment: from error visibility to structural similarity",
    IEEE TIP 2004, equation 13.
    """
    x, y = (side.squeeze(1).double().numpy() for side in (images, reconstructions))
    c1, c2 = K1**2, K2**2
    mx, my = _window(x), _window(y)
    vx, vy = _window(x * x) - mx * mx, _window(y * y) - my * my
    both = _window(x * y) - mx * my
    map_ = ((2 * mx * my + c1) * (2 * both + c2)) / ((mx**2 + my**2 + c1) * (vx + vy + c2))
    return torch.from_numpy(map_.mean((1, 2)))


def _window(values: np.ndarray) -> np.ndarray:
    return gaussian_filter(values, SIGMA, axes=(1, 2), radius=RADIUS, mode="reflect")


def mean_image(shadow: Tensor, count: int) -> Tensor:
    """Return `count` times the mean of shadow images: what is known without any smashed data."""
    return shadow.mean(0, keepdim=True).expand(count, *shadow.shape[1:])


def other_images(images: Tensor) -> Tensor:
    """Return somebody's other image in the place of each: what chance would pick."""
    return images.roll(max(1, len(images) // 2), 0)


@dataclass(frozen=True)
class Rate:
    """Rate of an event: its count, the number of cases, and bounds of the true rate.

    `low` and `high` are the bounds of Clopper and Pearson, "The use of confidence or fiducial
    limits", Biometrika 1934: they hold whatever the true rate is.
    """

    hits: int
    of: int
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if not 0 <= self.hits <= self.of or not self.of:
            raise ConfigError(f"a rate is of 0 to n among n > 0, got {self.hits} of {self.of}")

    @property
    def value(self) -> float:
        """The share."""
        return self.hits / self.of

    @property
    def low(self) -> float:
        """The lower bound, 0 without a hit."""
        tail = (1 - self.confidence) / 2
        return float(beta.ppf(tail, self.hits, self.of - self.hits + 1)) if self.hits else 0.0

    @property
    def high(self) -> float:
        """The upper bound, 1 without a miss."""
        tail = (1 - self.confidence) / 2
        missed = self.of - self.hits
        return float(beta.ppf(1 - tail, self.hits + 1, missed)) if missed else 1.0


def tpr_at(member: ArrayLike, scores: ArrayLike, fpr: float) -> tuple[Rate, Rate]:
    """Return the largest true positive rate whose false positive rate is at most `fpr`.

    Args:
        member: bool `[n]`, the truth.
        scores: `[n]`, higher means member; ties are called together.
        fpr: such as 0.01. Chance has as many true as false positives.

    Returns:
        The true positive rate, and the false positive rate it comes with.

    Raises:
        ConfigError: there are no members or no others, or a score is NaN.
    """
    truth, scores = np.asarray(member, bool), np.asarray(scores, float)
    inside, outside = scores[truth], np.sort(scores[~truth])[::-1]
    if not len(inside) or not len(outside) or np.isnan(scores).any():
        raise ConfigError("a true positive rate needs members, others, and scores that are numbers")
    allowed = math.floor(fpr * len(outside) + 1e-9)
    # Above the score of non-member number `allowed` + 1 are at most `allowed` non-members.
    bar = outside[allowed] if allowed < len(outside) else -math.inf
    return (
        Rate(int((inside > bar).sum()), len(inside)),
        Rate(int((outside > bar).sum()), len(outside)),
    )


def least_epsilon(true: Rate, false: Rate, delta: float = 1e-5) -> float:
    """Return the epsilon that an attack disproves: anything private by less would have stopped it.

    From (epsilon, delta)-privacy follows TPR <= e^epsilon FPR + delta, and the same for the
    rates of rejection. The bounds of both rates are used, each at half the error.

    Source: Jagielski, Ullman and Oprea, "Auditing differentially private machine learning",
    NeurIPS 2020, Section 4.
    """
    ratios = [
        (true.low - delta) / max(false.high, 1e-300),
        (1 - false.high - delta) / max(1 - true.low, 1e-300),
    ]
    return max(0.0, math.log(max(*ratios, 1.0)))


class Classifier:
    """Tells known people apart by their eyes: a small network trained on a gallery of them.

    Smashed data that are maps will do in the place of images.
    """

    def __init__(self, gallery: Tensor, people: Tensor, epochs: int = 15, seed: int = 0) -> None:
        """Learn from `[samples, channels, height, width]` whose owners are `people`, int64."""
        self.known, classes = people.unique(return_inverse=True)
        channels = gallery.shape[1]
        with own_randomness():
            torch.manual_seed(seed)
            self.network = nn.Sequential(
                nn.Conv2d(channels, 16, 3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2, ceil_mode=True),
                nn.Conv2d(16, 32, 3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2, ceil_mode=True),
                nn.Flatten(),
                nn.LazyLinear(64),
                nn.ReLU(),
                nn.Linear(64, len(self.known)),
            )
            self.network(gallery[:1])

        def loss(rows: Tensor, _: object) -> Tensor:
            return nn.functional.cross_entropy(self.network(gallery[rows]), classes[rows])

        learn(self.network, loss, len(gallery), epochs, seed=seed)

    def rank_1(self, images: Tensor, people: Tensor) -> Rate:
        """Rate at which the right person is the first guess; chance is one in the known people."""
        return Rate(int((self.named(images) == people).sum()), len(people))

    def named(self, images: Tensor) -> Tensor:
        """Return the first guess for each, int64 `[samples]`."""
        self.network.eval()
        with torch.no_grad():
            return self.known[self.network(images).argmax(1)]
