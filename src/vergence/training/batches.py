"""The batches of a local training, and episodes of a few samples.

Used in `methods`, `model_tools` and `training`.
"""

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
    generator, steps_to_go, epoch = stream.torch(), local.steps, 0
    while steps_to_go is not None or epoch < local.epochs:
        # The last batch may be smaller: a client with fewer samples than a batch counts, too.
        for rows in torch.randperm(n, generator=generator).split(local.batch):
            if steps_to_go is not None:
                if steps_to_go == 0:
                    return
                steps_to_go -= 1
            yield rows
        epoch += 1


def random_subset(samples: Samples, size: int, stream: RandomStream) -> Samples:
    """Return `size` random samples, without repetition; all of them if there are fewer."""
    return samples.subset(torch.randperm(len(samples), generator=stream.torch())[:size])
