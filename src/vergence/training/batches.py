"""The batches of a local training, and episodes of a few samples.

Used in `experiment`, `methods`, `model_tools` and `training`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vergence.core.data import SAMPLING_WEIGHT, Samples, checked_weights, copy_of
from vergence.core.local_training import LocalTraining
from vergence.core.randomness import RandomStream
from vergence.core.task import Task
from vergence.errors import ConfigError


def batches(
    data: Samples, local: LocalTraining, stream: RandomStream, task: Task | None
) -> Iterator[Tensor]:
    """Yield the sample numbers of each batch, drawn anew for every epoch as `local.sampler` says.

    `task` says what the classes of balanced batches are; None: samples are shuffled.
    """
    if not len(data):
        raise ConfigError("a client without training samples was asked to train")
    weights = sampling_weights(data, local, task)
    generator, steps_to_go, epoch = stream.torch(), local.steps, 0
    while steps_to_go is not None or epoch < local.epochs:
        # The last batch may be smaller: a client with fewer samples than a batch counts, too.
        for rows in _order(len(data), weights, generator).split(local.batch):
            if steps_to_go is not None:
                if steps_to_go == 0:
                    return
                steps_to_go -= 1
            yield rows
        epoch += 1


def random_subset(
    data: Samples, size: int, local: LocalTraining, stream: RandomStream, task: Task
) -> Samples:
    """Return `size` random samples, or as many as there are if these are fewer.

    A sample is in them once, unless `local.sampler` draws with replacement.
    """
    weights = sampling_weights(data, local, task)
    return data.subset(_order(len(data), weights, stream.torch())[:size])


def sampling_weights(data: Samples, local: LocalTraining, task: Task | None) -> Tensor | None:
    """Return the weights of samples in draws with replacement, float64 `[samples]`.

    None: the samples are shuffled, or there are none.

    Raises:
        ConfigError: `task` has no classes to balance, or the samples have no column of weights.
        DataError: the weights are not finite numbers of at least 0, of which one is positive.
    """
    if local.sampler == "shuffle" or task is None or not len(data):
        return None
    if local.sampler == "weighted":
        if SAMPLING_WEIGHT not in data.columns:
            raise ConfigError(
                f"local: sampler = 'weighted' draws samples by a column '{SAMPLING_WEIGHT}', and "
                f"there are {', '.join(data.columns)}: give it, as Federation.from_arrays(people, "
                "weights={person: numbers}) does, or take another sampler"
            )
        return checked_weights(data.columns[SAMPLING_WEIGHT], len(data), f"'{SAMPLING_WEIGHT}'")
    try:
        classes = task.class_of(copy_of(data.columns)).cpu()
    except ConfigError as error:
        raise ConfigError(
            "local: sampler = 'balanced' draws all classes alike, and this task has none, as its "
            "targets are no whole numbers; take 'weighted' with weights of your own, or 'shuffle'"
        ) from error
    _, places, counts = classes.unique(return_inverse=True, return_counts=True)
    return 1 / counts[places].double()


def _order(n: int, weights: Tensor | None, generator: torch.Generator) -> Tensor:
    if weights is None:
        return torch.randperm(n, generator=generator)
    return torch.multinomial(weights, n, replacement=True, generator=generator)
