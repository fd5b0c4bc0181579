"""A torch network in the form of private inference: a row of layers, arrays, number of products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vergence.core.stages import Staged
from vergence.errors import ConfigError


@dataclass(frozen=True)
class Layer:
    """One layer.

    Attributes:
        name: of the stage.
        kind: conv (stride 1, no padding), pool (largest of 2 x 2), dense, or product (of two
            arrays, for tests of the arithmetic).
        relu: whether a dense layer's negative outputs become 0.
        beside: whether what stands beside the image joins a dense layer's inputs.
        products: secret times secret, per image.
    """

    name: str
    kind: str
    relu: bool = False
    beside: bool = False
    products: int = 0


@dataclass(frozen=True)
class NetworkParts:
    """Parts of a network that the computing parties are given.

    Attributes:
        layers: in order.
        arrays: parameters by name, float32, in torch's own order; of a pruned dense layer the kept
            weights `[outputs, kept]` alone.
        columns: of pruned dense layers, which inputs these are for. All learn it.
    """

    layers: tuple[Layer, ...]
    arrays: Mapping[str, NDArray[np.float32]]
    columns: Mapping[str, NDArray[np.int32]]

    @property
    def products(self) -> int:
        """Products of two secrets per image: scalar triples, if it took one each."""
        return sum(layer.products for layer in self.layers)

    @property
    def beside(self) -> bool:
        """True if a layer reads the values beside the image."""
        return any(layer.beside for layer in self.layers)


@torch.no_grad()
def parts(
    network: Staged, image: Tensor, after: str = "", columns: Mapping[str, NDArray] | None = None
) -> NetworkParts:
    """Return the layers of a network, or of its tail.

    Read are what its stages are made of; whether that is all a network does is for the caller to
    check, by its answers in clear.

    Args:
        network: a row of convolutions, poolings and linear layers.
        image: one `[1, C, H, W]`.
        after: the tail begins after this stage; none: the whole network.
        columns: of a pruned linear layer, by stage, which inputs each output keeps.

    Raises:
        ConfigError: a stage is something else, or there is no such stage.
    """
    names = list(network.stages)
    if after and after not in names[:-1]:
        raise ConfigError(f"private inference: a tail begins after one of {names[:-1]}: '{after}'")
    first, kept = names.index(after) + 1 if after else 0, columns or {}
    last = [n for n in names if any(isinstance(m, nn.Linear) for m in _modules(network, n))][-1]
    x, layers, arrays = image, [], {}
    for number, name in enumerate(names):
        beside = name in network.reads
        outside = [torch.zeros(1, 2)] * beside
        y = network.stage(name, x, *outside)
        if number >= first:
            layer = _layer(network, name, y, name != last, beside, kept.get(name))
            layers.append(layer)
            for module in _modules(network, name):
                for key, value in module.named_parameters():
                    arrays[f"{name}.{key}"] = value.detach().numpy().astype(np.float32)
        x = y
    for name in kept:
        arrays[f"{name}.weight"] = np.take_along_axis(arrays[f"{name}.weight"], kept[name], 1)
    return NetworkParts(tuple(layers), arrays, {n: c.astype(np.int32) for n, c in kept.items()})


def _modules(network: Staged, name: str) -> list[nn.Module]:
    return [network.get_submodule(path) for path in network.stages[name]]


def _layer(
    network: Staged,
    name: str,
    y: Tensor,
    relu: bool,
    beside: bool,
    kept: NDArray | None,
) -> Layer:
    match _modules(network, name):
        case []:
            return Layer(name, "pool")
        case [nn.Conv2d() as conv]:
            return Layer(name, "conv", products=conv.weight.numel() * y[0, 0].numel())
        case [nn.Linear() as linear]:
            count = linear.weight.numel() if kept is None else kept.size
            return Layer(name, "dense", relu, beside, count)
    raise ConfigError(
        f"private inference: stage '{name}' of {type(network).__name__} is neither a convolution "
        "nor a pooling nor a linear layer; take lenet"
    )
