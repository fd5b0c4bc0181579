"""Membership inference (LiRA): whether a frame, or a person, was in a model's training data.

Many shadow models are trained on random halves of a population. A sample's loss under the models
that had it, and under those that had not, are two Gaussians; the likelihood ratio of the loss under
the attacked model says which it is from. A person is all their frames: log-likelihood ratios add.

Source: Carlini et al., "Membership inference attacks from first principles", IEEE S&P 2022,
Algorithm 1. Differs: gaze is regression, so the statistic is the logarithm of the loss in the place
of the logit of the confidence; what is in or out is a unit, a frame or a person.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from scipy.special import stdtr
from torch import Tensor

from vergence.errors import ConfigError

FLOOR = 1e-12
"""Added to losses before their logarithm."""
FEW = 16
"""With fewer models on either side all samples share one variance, as in the source."""


def statistic(losses: Tensor) -> Tensor:
    """Values that are taken as Gaussian: the logarithm of losses, any shape."""
    return (losses.double() + FLOOR).log()


def ratios(observed: Tensor, shadow: Tensor, inside: Tensor) -> Tensor:
    """Return log p(observed | in) - log p(observed | out) for every sample, `[samples]`.

    Args:
        observed: `[samples]`, the statistic under the attacked model.
        shadow: `[models, samples]`, the same under shadow models.
        inside: bool `[models, samples]`, which of them were trained on which sample.

    Raises:
        ConfigError: a sample was in fewer than two shadow models, or out of fewer than two.
    """
    counts = inside.sum(0), (~inside).sum(0)
    if min(int(count.min()) for count in counts) < 2:
        raise ConfigError(
            "membership: every sample must be in at least two shadow models and out of two; train "
            "more of them"
        )
    shared = min(int(count.min()) for count in counts) < FEW
    logs = []
    for side, count in zip((inside, ~inside), counts, strict=True):
        mean = torch.where(side, shadow, 0).sum(0) / count
        squares = torch.where(side, (shadow - mean).square(), 0)
        pooled = squares.sum() / (count - 1).sum() if shared else squares.sum(0) / (count - 1)
        variance = pooled.clamp(min=FLOOR)
        logs.append(-0.5 * ((observed - mean).square() / variance + variance.log()))
    return logs[0] - logs[1]


def chance_without(observed: Tensor, outside: Tensor, unit: int) -> Tensor:
    """Probability that models that never saw a unit fit it as well as observed, or better.

    About uniform over [0, 1] where the observed models never saw it either. A few shadow models
    are enough, as what they leave open is counted: Student's distribution in the place of the
    Gaussian. Their variance is the mean of the unit's own and that of all units together: the
    own one alone is too small too often, and units differ.

    Args:
        observed: `[models]`, the statistic of the unit under attacked models.
        outside: `[shadows, units]`, of all units, under shadow models not trained on this one.
        unit: which it is.

    Raises:
        ConfigError: fewer than three shadow models.

    Source: Carlini et al., Section V-C, the attack offline; variances: Smyth, "Linear models and
    empirical Bayes methods", SAGMB 2004, equation for s~^2 with as many degrees of freedom a priori
    as there are.
    """
    count = len(outside)
    if count < 3:
        raise ConfigError(f"membership: give at least 3 shadow models without them, got {count}")
    variances = outside.double().var(0)
    # 1 + 1 / count: the mean of the shadow models has an error of its own.
    variance = (variances[unit] + variances.mean()) / 2 * (1 + 1 / count)
    below = (observed - outside[:, unit].mean()) / variance.sqrt().clamp(min=FLOOR)
    return torch.from_numpy(stdtr(2 * (count - 1), below.double().numpy()))


def of_people(frames: Tensor, people: Tensor) -> tuple[Tensor, Tensor]:
    """Return the people, int64 `[people]`, and the sum of their frames' ratios, `[people]`."""
    known, at = people.unique(return_inverse=True)
    return known, torch.zeros(len(known), dtype=frames.dtype).index_add_(0, at, frames)


def halves(units: int, models: int, seed: int) -> Tensor:
    """Membership of units in shadow models, bool `[models, units]`: each unit in half of them.

    Raises:
        ConfigError: an odd number of models, or fewer than six.
    """
    if models % 2 or models < 6:
        raise ConfigError(f"membership: give an even number of models, at least 6; got {models}")
    rng = np.random.default_rng(seed)
    half = np.arange(models) < models // 2
    return torch.from_numpy(np.stack([rng.permutation(half) for _ in range(units)], 1))


def each_in_turn(losses: Tensor, inside: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Take every model for the attacked one in turn, all others for its shadows.

    Args:
        losses: `[models, samples]`, of every model on every sample.
        inside: bool, the same shape.

    Yields:
        Ratios `[samples]`, and the truth `[samples]`.
    """
    shown = statistic(losses)
    for target in range(len(losses)):
        others = torch.arange(len(losses)) != target
        yield ratios(shown[target], shown[others], inside[others]), inside[target]
