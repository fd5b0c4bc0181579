"""Variants of a network that are measured: its first stages in clear, and pruned linear layers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vergence.core.stages import Staged
from vergence.errors import ConfigError


@torch.no_grad()
def head(network: Staged, x: Tensor, after: str) -> Tensor:
    """Return the output of the stages up to `after` for images, in clear; no stage: the images."""
    names = list(network.stages)
    for name in names[: names.index(after) + 1] if after else ():
        x = network.stage(name, x)
    return x


def strongest(layer: nn.Module, amount: float) -> NDArray[np.int64]:
    """Return the inputs each output keeps, those of largest weights, when a share `amount` goes.

    Every neuron keeps as many, so that how many says nothing about the training data.

    Raises:
        ConfigError: none would be left.
    """
    assert isinstance(layer, nn.Linear)
    weight = layer.weight
    kept = weight.shape[1] - round(amount * weight.shape[1])
    if kept < 1:
        raise ConfigError(f"private inference: pruning {amount:g} keeps no weight of a neuron")
    return weight.detach().abs().topk(kept, 1).indices.sort(1).values.numpy()


def thinned(network: Staged, columns: Mapping[str, NDArray]) -> None:
    """Set to zero what pruned linear layers lost, in place."""
    with torch.no_grad():
        for name, kept in columns.items():
            (layer,) = (network.get_submodule(path) for path in network.stages[name])
            assert isinstance(layer, nn.Linear)
            stays = torch.zeros_like(layer.weight).scatter_(1, torch.from_numpy(kept).long(), 1)
            layer.weight.mul_(stays)
