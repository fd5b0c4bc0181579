"""Model extraction: a copy of a classifier, trained on its answers to made-up samples.

The attacker may ask so many samples, is told probabilities, knows the shape of the network and of
what enters it, and has no data.

Source: Tramer et al., "Stealing machine learning models via prediction APIs", USENIX Security 2016;
agreement as the aim: Jagielski et al., "High accuracy and high fidelity extraction of neural
networks", USENIX Security 2020.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from vergence.attacks.score import Rate
from vergence.attacks.training import BATCH, learn
from vergence.errors import ConfigError

STEPS = 1500
"""Of training, however many answers there are; but at least two passes."""


def random_samples(
    count: int, shape: tuple[int, ...], low: float, high: float, seed: int
) -> Tensor:
    """Return samples `[count, *shape]`, every value uniform from `low` to `high`."""
    rng = Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(count, *shape, generator=rng)


def copy_into(
    network: nn.Module, samples: Tensor, answers: Tensor, seed: int = 0, steps: int = STEPS
) -> None:
    """Train a network in place to say what was answered; without answers it stays as it is.

    The loss is the cross-entropy with what was answered, which the answered one alone minimises.

    Args:
        network: from samples to unnormalised log-probabilities.
        samples: `[count, ...]`, what was asked.
        answers: `[count, classes]`, probabilities.
        seed: of the order.
        steps: of 32 samples.

    Raises:
        ConfigError: not one answer for every sample.
    """
    if len(samples) != len(answers):
        raise ConfigError(f"extraction: {len(samples)} samples have {len(answers)} answers")
    if not len(samples):
        return

    def loss(rows: Tensor, _: Generator) -> Tensor:
        return -(answers[rows] * network(samples[rows]).log_softmax(1)).sum(1).mean()

    learn(network, loss, len(samples), max(2, steps * BATCH // len(samples)), seed=seed)


def agreement(one: Tensor, other: Tensor) -> Rate:
    """Rate at which two outputs `[samples, classes]` name the same class."""
    return Rate(int((one.argmax(1) == other.argmax(1)).sum()), len(one))
