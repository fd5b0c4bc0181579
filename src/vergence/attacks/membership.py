"""Membership inference (LiRA): whether a frame, or a person, was in a model's training data.

Many shadow models are trained on random halves of a population. A sample's loss under the models
trained on it, and under the others, is fitted by two Gaussians; the likelihood ratio of its loss
under the attacked model is the score. For a person, the log-likelihood ratios of their frames add.

Used by `audit.forgotten_membership`, `audit.membership`, `audit.teacher_membership` and
`unlearning.forget`.

Source: Carlini et al., "Membership inference attacks from first principles", IEEE S&P 2022,
Algorithm 1. Differs: gaze is regression, so the statistic is the logarithm of the loss in place of
the logit of the confidence; membership is of a unit, which is a frame or a person.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from scipy.special import stdtr
from torch import Tensor

from vergence.errors import ConfigError

# Added to losses before their logarithm, and a floor of variances: a loss may be exactly 0.
FLOOR = 1e-12
# With fewer models on either side all samples share one variance, as in the source: a variance of
# few values is too uncertain to divide by.
FEW = 16


def statistic(losses: Tensor) -> Tensor:
    """Return the logarithm of losses of any shape, whose values are about Gaussian."""
    return (losses.double() + FLOOR).log()


def ratios(observed: Tensor, shadow: Tensor, inside: Tensor) -> Tensor:
    """Return log p(observed | in) - log p(observed | out) for every sample, `[samples]`.

    Args:
        observed: the statistic under the attacked model, `[samples]`.
        shadow: the statistic under shadow models, `[models, samples]`.
        inside: which shadow models were trained on which sample, bool `[models, samples]`.

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
    """Return the probability that models without a unit fit it as well as observed, or better.

    The audit of `vergence forget` reports it.

    It is about uniform over [0, 1] if the observed models were not trained on the unit either. A
    few shadow models are enough, as Student's distribution in place of the Gaussian accounts for
    their number.

    Args:
        observed: the statistic of the unit under attacked models, `[models]`.
        outside: the statistic of all units, `[shadows, units]`, under shadow models that were not
            trained on this one.
        unit: index of the unit.

    Raises:
        ConfigError: fewer than three shadow models.

    Source: Carlini et al., Section V-C, the attack offline; variances: Smyth, "Linear models and
    empirical Bayes methods", SAGMB 2004, equation for s~^2 with as many degrees of freedom a priori
    as there are.
    """
    count = len(outside)
    if count < 3:
        raise ConfigError(f"membership: give at least 3 shadow models without them, got {count}")
    # The unit's own variance alone is too small too often, and units differ: their mean is used.
    variances = outside.double().var(0)
    # 1 + 1 / count: the mean of the shadow models has an error of its own.
    variance = (variances[unit] + variances.mean()) / 2 * (1 + 1 / count)
    below = (observed - outside[:, unit].mean()) / variance.sqrt().clamp(min=FLOOR)
    # The unit's own count - 1 degrees of freedom, and as many of the prior, as in Smyth.
    return torch.from_numpy(stdtr(2 * (count - 1), below.double().numpy()))


def sum_by_person(frames: Tensor, people: Tensor) -> tuple[Tensor, Tensor]:
    """Return the people, int64 `[people]`, and the sum of their frames' ratios, `[people]`."""
    known, at = people.unique(return_inverse=True)
    return known, torch.zeros(len(known), dtype=frames.dtype).index_add_(0, at, frames)


def random_halves(units: int, models: int, seed: int) -> Tensor:
    """Return random membership of units in shadow models, bool `[models, units]`.

    Audits of membership train their shadow models by it.

    Every unit is in exactly half of the models.

    Raises:
        ConfigError: an odd number of models, or fewer than six.
    """
    if models % 2 or models < 6:
        # Six: with the attacked one left out, two are still with the unit and two without.
        raise ConfigError(f"membership: give an even number of models, at least 6; got {models}")
    rng = np.random.default_rng(seed)
    half = np.arange(models) < models // 2
    # A permutation, and no coin per model: chance must not leave a unit in too few of them.
    return torch.from_numpy(np.stack([rng.permutation(half) for _ in range(units)], 1))


def leave_one_out_ratios(losses: Tensor, inside: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Attack every model in turn, with all others as its shadow models.

    Audits of membership use it.

    Args:
        losses: loss of every model on every sample, `[models, samples]`.
        inside: which models were trained on which samples, bool of the same shape.

    Yields:
        Log-likelihood ratios `[samples]`, and true membership `[samples]`.
    """
    shown = statistic(losses)
    for target in range(len(losses)):
        others = torch.arange(len(losses)) != target
        yield ratios(shown[target], shown[others], inside[others]), inside[target]
