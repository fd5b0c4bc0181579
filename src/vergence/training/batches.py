"""The batches of a local training, and episodes of a few samples."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vergence.core.data import Samples
from vergence.core.local_training import LocalTraining
from vergence.core.randomness import RandomStream
from vergence.errors import ConfigError


def batches(n: int, local: LocalTraining, stream: RandomStream) -> Iterator[Tensor]:
    """Yield the sample numbers of each batch, a fresh permutation per epoch."""
    if not n:
        raise ConfigError("a client without training samples was asked to train")
    generator, left, epoch = stream.torch(), local.steps, 0
    while left is not None or epoch < local.epochs:
        for rows in torch.randperm(n, generator=generator).split(local.batch):
            if left is not None:
                if left == 0:
                    return
                left -= 1
            yield rows
        epoch += 1


def drawn(samples: Samples, size: int, stream: RandomStream) -> Samples:
    """Return `size` of the samples, drawn without putting back; all where there are fewer."""
    return samples.subset(torch.randperm(len(samples), generator=stream.torch())[:size])
