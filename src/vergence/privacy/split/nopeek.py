"""NoPeek: training that makes smashed data depend less on the client's images.

Used by `privacy.split.defense`.

Source: Vepakomma et al., "NoPeek: information leakage reduction to share activations in distributed
deep learning", ICDM workshops 2020; distance correlation: Szekely, Rizzo and Bakirov, "Measuring
and testing dependence by correlation of distances", Annals of Statistics 2007, Definition 5.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLAT = 1e-12
"""Added under square roots, so that gradients stay finite if samples are equal."""


def distance_correlation(x: Tensor, z: Tensor) -> Tensor:
    """Return the sample distance correlation of two batches, a number in [0, 1].

    In the limit of many samples it is 0 if and only if x and z are independent. It is 1 if z is a
    scaled, rotated or mirrored copy of x. In small batches with many dimensions it is near 1 even
    for independent data. `penalty` calls this.

    Args:
        x: `[samples, ...]`, floating-point.
        z: `[samples, ...]`, floating-point; gradients flow to it.
    """
    a, b = _centred(x), _centred(z)
    both, one, other = (a * b).mean(), a.square().mean(), b.square().mean()
    return (both.clamp(min=0) / (one * other + FLAT).sqrt() + FLAT).sqrt()


def penalty(images: Tensor, smashed: Tensor, weight: float) -> Tensor:
    """Return the term that a client adds to its loss: `weight` times the distance correlation.

    This defence gives no guarantee, and no attacker takes part in the training. Attacks can measure
    how well it works.

    Args:
        images: the batch's images, `[samples, ...]`.
        smashed: outputs of the client's layers for these images, `[samples, ...]`.
        weight: weight of the term.
    """
    return weight * distance_correlation(images.float(), smashed)


def _centred(x: Tensor) -> Tensor:
    """Return the distances of all pairs of samples, `[samples, samples]`, doubly centred.

    The mean of each row and of each column is subtracted, and the mean of all distances is added.
    """
    flat = x.flatten(1)
    squared = (flat[:, None] - flat[None, :]).square().sum(dim=2)
    apart = torch.where(squared > 0, (squared + FLAT).sqrt(), 0.0)
    return apart - apart.mean(0, keepdim=True) - apart.mean(1, keepdim=True) + apart.mean()
