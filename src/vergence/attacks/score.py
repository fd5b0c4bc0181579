"""Scores of attacks, and the scores that are reached without an attack.

A mean squared error alone says nothing: even the mean image of other people's eyes has a small one.
Every score is therefore reported with two baselines that need no smashed data: the mean image, and
chance, which is another image or a guess.

Used in `attacks` and `audit`.
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
from vergence.core.task import isolated_randomness
from vergence.errors import ConfigError

# Constants of SSIM as Wang et al. (2004) chose them: a window of 11 x 11 pixels.
SIGMA, RADIUS, K1, K2 = 1.5, 5, 0.01, 0.03


def mse(images: Tensor, reconstructions: Tensor) -> Tensor:
    """Return the mean squared error of each image, `[samples]`; both `[samples, ...]` in [0, 1]."""
    return (images - reconstructions).square().flatten(1).mean(1)


def ssim(images: Tensor, reconstructions: Tensor) -> Tensor:
    """Return the structural similarity of each image, `[samples]`: 1 if equal, about 0 if unlike.

    A window of 11 x 11 pixels, weighed by a Gaussian of 1.5, at every pixel; images are mirrored at
    their borders, so that patches smaller than a window count too.

    Args:
        images: `[samples, 1, height, width]` in [0, 1].
        reconstructions: the same.

    Source: Wang et al., "Image quality assessment: from error visibility to structural similarity",
    IEEE TIP 2004, equation 13.
    """
    x, y = (side.squeeze(1).double().numpy() for side in (images, reconstructions))
    # The source's (K L)^2, where the range of pixels L is 1.
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
    """Return another image of the same set in place of each, as chance would pick it.

    The audit of images measures chance by it.
    """
    # Half of the set away: neighbours are often frames of the same moment.
    return images.roll(max(1, len(images) // 2), 0)


@dataclass(frozen=True)
class Rate:
    """Rate of an event: its count, the number of cases, and bounds of the true rate.

    `low` and `high` are the bounds of Clopper and Pearson, "The use of confidence or fiducial
    limits", Biometrika 1934.
    """

    hits: int
    of: int
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if not 0 <= self.hits <= self.of or not self.of:
            raise ConfigError(f"a rate is of 0 to n among n > 0, got {self.hits} of {self.of}")

    # Exact bounds hold for every true rate, also for the 0 and 1 that attacks often reach, where a
    # normal approximation has width 0.
    @property
    def value(self) -> float:
        """The share of cases with the event."""
        return self.hits / self.of

    @property
    def low(self) -> float:
        """The lower bound of the true rate, 0 without a hit."""
        tail = (1 - self.confidence) / 2
        return float(beta.ppf(tail, self.hits, self.of - self.hits + 1)) if self.hits else 0.0

    @property
    def high(self) -> float:
        """The upper bound of the true rate, 1 without a miss."""
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
    # 1e-9: fpr * n may lie just below a whole number, as .29 * 100 does.
    allowed = math.floor(fpr * len(outside) + 1e-9)
    # Above the score of non-member number `allowed` + 1 are at most `allowed` non-members.
    bar = outside[allowed] if allowed < len(outside) else -math.inf
    return (
        Rate(int((inside > bar).sum()), len(inside)),
        Rate(int((outside > bar).sum()), len(outside)),
    )


def least_epsilon(true: Rate, false: Rate, delta: float = 1e-5) -> float:
    """Return a lower bound of epsilon, which the rates of an attack prove.

    The audit of membership reports it.

    (epsilon, delta)-privacy implies TPR <= e^epsilon FPR + delta, and the same for the rates of
    rejection. The bounds of both rates are used, each at half the error.

    Source: Jagielski, Ullman and Oprea, "Auditing differentially private machine learning",
    NeurIPS 2020, Section 4.
    """
    ratios = [
        (true.low - delta) / max(false.high, 1e-300),
        (1 - false.high - delta) / max(1 - true.low, 1e-300),
    ]
    return max(0.0, math.log(max(*ratios, 1.0)))


class Classifier:
    """A small network that recognises known people by images of their eyes, or by smashed data."""

    def __init__(self, gallery: Tensor, people: Tensor, epochs: int = 15, seed: int = 0) -> None:
        """Train on a gallery of images.

        Args:
            gallery: images or maps, `[samples, channels, height, width]`.
            people: owner of each, int64 `[samples]`.
            epochs: passes over the gallery.
            seed: seed of initial weights and order.
        """
        self.known, classes = people.unique(return_inverse=True)
        channels = gallery.shape[1]
        with isolated_randomness():
            torch.manual_seed(seed)
            self.network = nn.Sequential(
                nn.Conv2d(channels, 16, 3, padding=1),
                nn.ReLU(),
                # Rounded up: vectors are maps of 1 x 1, of which nothing else would remain.
                nn.MaxPool2d(2, ceil_mode=True),
                nn.Conv2d(16, 32, 3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2, ceil_mode=True),
                nn.Flatten(),
                nn.LazyLinear(64),
                nn.ReLU(),
                nn.Linear(64, len(self.known)),
            )
            # A first call gives the lazy layer its size, before the optimiser reads parameters.
            self.network(gallery[:1])

        def loss(rows: Tensor, _: object) -> Tensor:
            return nn.functional.cross_entropy(self.network(gallery[rows]), classes[rows])

        learn(self.network, loss, len(gallery), epochs, seed=seed)

    def rank_1(self, images: Tensor, people: Tensor) -> Rate:
        """Return the rate of right first guesses; chance is one in the known people."""
        return Rate(int((self.named(images) == people).sum()), len(people))

    def named(self, images: Tensor) -> Tensor:
        """Return the first guess for each image, int64 `[samples]`."""
        self.network.eval()
        with torch.no_grad():
            return self.known[self.network(images).argmax(1)]
