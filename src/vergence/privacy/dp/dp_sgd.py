"""DP-SGD for single samples: Poisson-sampled batches, clipped gradients, noise on their sum.

Used by `engine.protections.dp_split`, `privacy.dp.dp_sgd_solver` and `privacy.dp.private_step`.

Source: Abadi et al., "Deep learning with differential privacy", CCS 2016, Algorithm 1. Differs: the
sum is divided by the expected size of a batch, as the actual size would reveal who is in the batch;
batches and noise come from a secret key.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vergence.privacy.keyed_noise import NoiseStream, add_noise


def poisson(samples: int, rate: float, draws: NoiseStream) -> Tensor:
    """Return the indices of a Poisson-sampled batch, which may be empty.

    Each sample is in the batch with probability `rate`, independently of the others. Privacy
    amplification by sampling holds only if nobody knows which samples are in a batch, so `draws`
    must come from a secret key.

    Args:
        samples: number of samples to draw from.
        rate: probability of each sample.
        draws: secret random numbers.
    """
    return torch.from_numpy((draws.uniform(samples) < rate).nonzero()[0])


def noised(flat: Tensor, deviation: float, expected: float, draws: NoiseStream) -> Tensor:
    """Turn a sum of clipped gradients into a private mean, in place; return it.

    Args:
        flat: the sum over a batch, as one vector of all parameters; zeros for an empty batch, which
            gets noise too.
        deviation: standard deviation of the noise on every entry of the sum (noise multiplier times
            clip); 0: no noise.
        expected: expected number of samples in a batch (rate times number of samples), which is
            public.
        draws: secret random numbers of this client, round and step.
    """
    return add_noise(flat, deviation, draws).div_(expected)
