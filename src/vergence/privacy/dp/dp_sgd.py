"""DP-SGD for single samples: batches drawn by chance, clipped gradients, noise on their sum.

Used by `engine.protections.dp_split`, `privacy.dp.dp_sgd_solver` and `privacy.dp.private_step`.

Source: Abadi et al., "Deep learning with differential privacy", CCS 2016, Algorithm 1. Differs: the
sum is divided by the expected size of a batch, not by its own, which would tell who is in it;
batches and noise come from a secret.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vergence.privacy.keyed_noise import NoiseStream, add_noise


def poisson(samples: int, rate: float, draws: NoiseStream) -> Tensor:
    """Return the indices of a Poisson-sampled batch, for which samples are drawn independently.

    The batch may be empty. Amplification by sampling holds only while nobody can tell which samples
    are in a batch: `draws` must come from a secret.
    """
    return torch.from_numpy((draws.uniform(samples) < rate).nonzero()[0])


def noised(flat: Tensor, deviation: float, expected: float, draws: NoiseStream) -> Tensor:
    """Turn a sum of clipped gradients into a private mean, in place.

    Args:
        flat: the sum over a batch, with all parameters in a row; zeros for an empty batch, to which
            noise is added all the same.
        deviation: standard deviation of the noise on every entry of the sum: noise multiplier times
            clip; 0: no noise.
        expected: mean number of samples in a batch, rate times samples, which is public.
        draws: random numbers of this client, round and step.
    """
    return add_noise(flat, deviation, draws).div_(expected)
