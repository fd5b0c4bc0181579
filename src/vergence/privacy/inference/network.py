"""Conversion of a torch network for private inference: a sequence of layers, and their arrays.

Used by `deployment.private_inference.sharing` and `privacy.inference.shared_network`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from vergence.core.stages import Staged
from vergence.errors import ConfigError


@dataclass(frozen=True)
class Layer:
    """One layer of a network.

    Attributes:
        name: name of the layer's stage in the network.
        kind: `conv` (stride 1, no padding), `pool` (2 x 2 max pooling), `dense` (a linear layer),
            or `product` (of two arrays, for tests of the arithmetic).
        relu: whether a ReLU follows a dense layer.
        takes_side_inputs: whether a dense layer's inputs include the side inputs (head pose).
        products: number of multiplications of two secrets for one image.
    """

    name: str
    kind: str
    relu: bool = False
    # Files of dealt folders call it `beside`.
    takes_side_inputs: Annotated[bool, Field(validation_alias="beside")] = False
    products: int = 0


@dataclass(frozen=True)
class NetworkParts:
    """A network's layers and parameters, for private inference.

    Attributes:
        layers: the layers, in order.
        arrays: parameters by name, float32, with torch's shapes; for a pruned dense layer only the
            kept weights, `[outputs, kept]`.
        columns: for each pruned dense layer, the index of the input that each kept weight
            multiplies, `[outputs, kept]`. All parties know these indices.
    """

    layers: tuple[Layer, ...]
    arrays: Mapping[str, NDArray[np.float32]]
    columns: Mapping[str, NDArray[np.int32]]

    @property
    def products(self) -> int:
        """Number of multiplications of two secrets for one image, over all layers."""
        return sum(layer.products for layer in self.layers)

    @property
    def takes_side_inputs(self) -> bool:
        """True if a layer reads the side inputs (head pose) besides the image."""
        return any(layer.takes_side_inputs for layer in self.layers)


@torch.no_grad()
def parts(
    network: Staged,
    image: Tensor,
    after: str = "",
    columns: Mapping[str, NDArray[np.integer]] | None = None,
) -> NetworkParts:
    """Return the layers and parameters of a network, or of its last stages.

    Only the modules of its stages are read. The network's `forward` may do something else; the
    caller must compare the results with the network's own predictions.

    Args:
        network: a sequence of convolutions, poolings and linear layers.
        image: one image `[1, C, H, W]`.
        after: name of a stage; only the stages after it are returned. "": all stages.
        columns: for each pruned linear layer, by the name of its stage, the index of the input that
            each kept weight multiplies, `[outputs, kept]`.

    Raises:
        ConfigError: a stage holds another kind of module, or there is no such stage.
    """
    names = list(network.stages)
    if after and after not in names[:-1]:
        raise ConfigError(f"private inference: a tail begins after one of {names[:-1]}: '{after}'")
    first, inputs_of = names.index(after) + 1 if after else 0, columns or {}
    last = [n for n in names if any(isinstance(m, nn.Linear) for m in _modules(network, n))][-1]
    x, layers, arrays = image, list[Layer](), dict[str, NDArray[np.float32]]()
    for number, name in enumerate(names):
        side = name in network.reads
        # The head pose, of which only the shape matters here.
        side_inputs = [torch.zeros(1, 2)] * side
        y = network.stage(name, x, *side_inputs)
        if number >= first:
            layer = _layer(network, name, y, name != last, side, inputs_of.get(name))
            layers.append(layer)
            for module in _modules(network, name):
                for key, value in module.named_parameters():
                    arrays[f"{name}.{key}"] = value.detach().numpy().astype(np.float32)
        x = y
    for name, inputs in inputs_of.items():
        arrays[f"{name}.weight"] = np.take_along_axis(arrays[f"{name}.weight"], inputs, 1)
    return NetworkParts(
        tuple(layers), arrays, {n: c.astype(np.int32) for n, c in inputs_of.items()}
    )


def _modules(network: Staged, name: str) -> list[nn.Module]:
    return [network.get_submodule(path) for path in network.stages[name]]


def _layer(
    network: Staged,
    name: str,
    y: Tensor,
    relu: bool,
    takes_side_inputs: bool,
    inputs: NDArray[np.integer] | None,
) -> Layer:
    match _modules(network, name):
        case []:
            return Layer(name, "pool")
        case [nn.Conv2d() as conv]:
            return Layer(name, "conv", products=conv.weight.numel() * y[0, 0].numel())
        case [nn.Linear() as linear]:
            count = linear.weight.numel() if inputs is None else inputs.size
            return Layer(name, "dense", relu, takes_side_inputs, count)
        case _:
            raise ConfigError(
                f"private inference: stage '{name}' of {type(network).__name__} is neither a "
                "convolution nor a pooling nor a linear layer; take lenet"
            )
