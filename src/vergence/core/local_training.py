"""Settings of a client's local training between two messages, and its optimiser's state.

Used in most packages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from vergence.core.options import NamedOptions
from vergence.core.params import Params
from vergence.core.tags import tagged

Precision = Literal["fp32", "bf16", "half"]
# float32 has numbers up to 3e38, and these are multiplied with gradients and weights.
LARGEST = 1e30
"""Largest learning rate and weight decay."""


@tagged("Local", optimizer="optimiser")
@dataclass(frozen=True)
class LocalTraining(NamedOptions, label="local"):
    """Settings of a client's training between two messages.

    Args:
        epochs: passes over the client's training data each time that the client trains.
        steps: number of batches each time that the client trains; replaces `epochs`.
        batch: samples per batch; the last batch of a pass may be smaller, and is used too.
        optimizer: `sgd`, `adam` or `adamw`.
        lr: learning rate.
        momentum: momentum of `sgd`.
        nesterov: whether `sgd` uses Nesterov momentum.
        weight_decay: weight decay of the optimiser.
        clip: largest L2 norm of a gradient; 0: no limit.
        schedule: learning rate in the course of the rounds: `constant`, `cosine` (falls to 1 % of
            `lr`) or `step` (a tenth after half of the rounds, a hundredth after three quarters).
    """

    epochs: Annotated[int, Ge(1)] = 1
    steps: Annotated[int, Ge(1)] | None = None
    batch: Annotated[int, Ge(1)] = 32
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Annotated[float, Interval(gt=0, le=LARGEST)] = 0.05
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    weight_decay: Annotated[float, Interval(ge=0, le=LARGEST)] = 1e-4
    clip: Annotated[float, Interval(ge=0, lt=math.inf)] = 5.0
    schedule: Literal["constant", "cosine", "step"] = "constant"

    @property
    def buffers(self) -> bool:
        """True if the optimiser has state between steps."""
        return self.optimizer != "sgd" or self.momentum > 0

    def learning_rate(self, progress: float) -> float:
        """Return the learning rate when the fraction `progress` of the rounds is finished."""
        match self.schedule:
            case "cosine":
                return self.lr * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))
            case "step":
                return self.lr * 0.1 ** ((progress >= 0.5) + (progress >= 0.75))
            case _:
                return self.lr


@tagged("OptimiserState")
@dataclass(frozen=True)
class OptimizerState:
    """State of an optimiser.

    `slots` holds momentum buffers or moments by name, each one vector; `steps` counts the steps.
    """

    slots: Mapping[str, Params]
    steps: int
