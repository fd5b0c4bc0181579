"""NoPeek: training that makes smashed data depend less on the images they were made from.

Used by `privacy.split.defense`.

Source: Vepakomma et al., "NoPeek: information leakage reduction to share activations in distributed
deep learning", ICDM workshops 2020; distance correlation: Szekely, Rizzo and Bakirov, "Measuring
and testing dependence by correlation of distances", Annals of Statistics 2007, Definition 5.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLAT = 1e-12
"""Added under roots: their gradients stay finite where two samples, or all of them, are alike."""


def distance_correlation(x: Tensor, z: Tensor) -> Tensor:
    """Return the sample distance correlation of two batches, a number in [0, 1].

    In the limit of many samples it is 0 if and only if both are independent; it is 1 if one is a
    scaled, turned or mirrored copy of the other. Small batches with many dimensions are near 1 by
    chance.

    Args:
        x: `[samples, ...]`, floating.
        z: `[samples, ...]`; gradients reach it.
    """
    a, b = _centred(x), _centred(z)
    both, one, other = (a * b).mean(), a.square().mean(), b.square().mean()
    return (both.clamp(min=0) / (one * other + FLAT).sqrt() + FLAT).sqrt()


def penalty(images: Tensor, smashed: Tensor, weight: float) -> Tensor:
    """Return the term that a client adds to its loss: `weight` times the distance correlation.

    This is a defence by training and gives no guarantee; it is not trained against any attacker.
    Measure it with attacks.
    """
    return weight * distance_correlation(images.float(), smashed)


def _centred(x: Tensor) -> Tensor:
    """Return the doubly centred distances, `[samples, samples]`."""
    flat = x.flatten(1)
    squared = (flat[:, None] - flat[None, :]).square().sum(dim=2)
    apart = torch.where(squared > 0, (squared + FLAT).sqrt(), 0.0)
    return apart - apart.mean(0, keepdim=True) - apart.mean(1, keepdim=True) + apart.mean()
