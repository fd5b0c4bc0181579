"""Linear regression: the smallest network, for learning the library and for hand-checked tests."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import nn

from vergence.core.task import Model


@dataclass(frozen=True)
class Linear(Model):
    """y = x . weight + bias, all zeros at the start.

    Args:
        inputs: length of x.
    """

    inputs: Annotated[int, Ge(1)] = 4

    # There is one layer: without a name the head would be all of it, and no body left.
    head: ClassVar[tuple[str, ...]] = ("bias",)

    def build(self) -> nn.Module:
        """Return the network, with all parameters 0."""
        layer = nn.Linear(self.inputs, 1)
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
        return layer
