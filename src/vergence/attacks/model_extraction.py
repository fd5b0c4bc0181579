"""Model extraction: a copy of a classifier, trained on its answers to artificial samples.

The attacker may ask for a limited number of answers, which are probabilities, knows the
architecture and the shape of its input, and has no data.

Used by `audit.model_extraction`.

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

# Training steps, however many answers there are: copies made from few and from many answers then
# differ by the answers alone, and not by the length of training.
STEPS = 1500


def random_samples(
    count: int, shape: tuple[int, ...], low: float, high: float, seed: int
) -> Tensor:
    """Return samples `[count, *shape]`, every value uniform from `low` to `high`."""
    rng = Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(count, *shape, generator=rng)


def copy_into(
    network: nn.Module, samples: Tensor, answers: Tensor, seed: int = 0, steps: int = STEPS
) -> None:
    """Train a network in place to give the same answers; without answers it does not change.

    The audit of model extraction uses it.

    Args:
        network: from samples to unnormalised log-probabilities.
        samples: samples that were asked about, `[count, ...]`.
        answers: probabilities, `[count, classes]`.
        seed: seed of the samples' order.
        steps: number of steps on 32 samples each; at least two passes are made.

    Raises:
        ConfigError: not one answer for every sample.
    """
    if len(samples) != len(answers):
        raise ConfigError(f"extraction: {len(samples)} samples have {len(answers)} answers")
    if not len(samples):
        return

    def loss(rows: Tensor, _: Generator) -> Tensor:
        # The cross-entropy with soft answers is least where the copy gives the same probabilities.
        return -(answers[rows] * network(samples[rows]).log_softmax(1)).sum(1).mean()

    learn(network, loss, len(samples), max(2, steps * BATCH // len(samples)), seed=seed)


def agreement(one: Tensor, other: Tensor) -> Rate:
    """Rate at which two outputs `[samples, classes]` name the same class."""
    return Rate(int((one.argmax(1) == other.argmax(1)).sum()), len(one))
