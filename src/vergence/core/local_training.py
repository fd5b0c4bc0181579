"""Settings of a client's local training between two messages, and its optimiser's state.

Used in most packages.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Interval
from torch.optim import Optimizer

from vergence.core.options import NamedOptions
from vergence.core.params import Params
from vergence.core.tags import LATER, tagged
from vergence.errors import ConfigError, first_line

Precision = Literal["fp32", "tf32", "bf16", "half"]
Sampler = Literal["shuffle", "balanced", "weighted"]
# float32 has numbers up to 3e38, and these are multiplied with gradients and weights.
LARGEST = 1e30
"""Largest learning rate and weight decay."""
SGD_RATE, ADAM_RATE = 0.05, 1e-3
"""Default learning rate of `sgd`, and of every other optimiser: a step of Adam is as long as its
rate in every entry, whatever the gradient, and 0.05 would throw a network far off."""


@tagged("Local", optimizer="optimiser")
@dataclass(frozen=True)
class LocalTraining(NamedOptions, label="local"):
    """Settings of a client's training between two messages.

    Args:
        epochs: passes over the client's training data each time that the client trains.
        steps: number of batches each time that the client trains; replaces `epochs`.
        batch: samples per batch; the last batch of a pass may be smaller, and is used too.
        optimizer: `sgd`, `adam` or `adamw`; from Python also a class of `torch.optim`, or any
            function (parameters, lr=...) -> optimiser, such as `partial(torch.optim.RMSprop,
            alpha=0.9)`. It trains one client at a time, and has its own momentum and
            weight decay.
        lr: learning rate; by default that of the optimiser: 0.05 of `sgd`, 0.001 of every other.
        momentum: momentum of `sgd`.
        nesterov: whether `sgd` uses Nesterov momentum.
        weight_decay: weight decay of the optimiser.
        clip: largest L2 norm of a gradient; 0: no limit.
        schedule: learning rate in the course of the rounds: `constant`, `cosine` (falls to 1 % of
            `lr`) or `step` (a tenth after half of the rounds, a hundredth after three quarters);
            from Python also a function of the share of the rounds that are finished, in [0, 1),
            which returns a factor of `lr`.
        sampler: how batches are drawn. `shuffle`: in a pass every sample comes once. The others
            draw with replacement, in a pass as many samples as the client has: `balanced` every
            class of the client with the same probability (for gaze tasks, classes are the cells of
            a 4 x 4 grid), `weighted` every sample in proportion to its column `sampling_weight`.
    """

    epochs: Annotated[int, Interval(ge=1, le=10_000_000)] = 1
    steps: Annotated[int, Interval(ge=1, le=10_000_000)] | None = None
    batch: Annotated[int, Ge(1)] = 32
    optimizer: Literal["sgd", "adam", "adamw"] | Callable[..., Optimizer] = "adamw"
    # None is what stands in a call; `__post_init__` puts the optimiser's rate there.
    lr: Annotated[float, Interval(gt=0, le=LARGEST)] = None  # type: ignore[assignment]
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    weight_decay: Annotated[float, Interval(ge=0, le=LARGEST)] = 1e-4
    clip: Annotated[float, Interval(ge=0, lt=math.inf)] = 5.0
    schedule: Literal["constant", "cosine", "step"] | Callable[[float], object] = "constant"
    sampler: Sampler = field(default="shuffle", metadata={LATER: True})

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, Optimizer):
            kind = type(self.optimizer).__name__
            raise ConfigError(
                f"local: optimizer is an {kind} with parameters of its own, and every client makes "
                f"a new one: give the class, optimizer=torch.optim.{kind}, or a function that "
                f"builds one, partial(torch.optim.{kind}, ...)"
            )
        if vars(self)["lr"] is None:
            rate = SGD_RATE if self.optimizer == "sgd" else ADAM_RATE
            object.__setattr__(self, "lr", rate)
        super().__post_init__()

    @property
    def functions(self) -> dict[str, Callable[..., object]]:
        """The options that are Python functions, by name; no experiment file can hold them."""
        options = {"optimizer": self.optimizer, "schedule": self.schedule}
        return {name: option for name, option in options.items() if callable(option)}

    @property
    def buffers(self) -> bool:
        """True if the optimiser has state between steps."""
        return self.optimizer != "sgd" or self.momentum > 0

    @property
    def sentence(self) -> str:
        """The optimiser, its rate, and the amount of work of a turn, in words for `explain`."""
        name = getattr(self.optimizer, "__name__", None) or str(self.optimizer)
        work = f"{self.steps} steps" if self.steps else f"{self.epochs} x all samples"
        return f"{name}, lr {self.lr:g}, {work} a turn in batches of {self.batch}"

    def learning_rate(self, progress: float) -> float:
        """Return the learning rate when the fraction `progress` of the rounds is finished.

        Raises:
            ConfigError: a schedule of one's own raises an error, or returns no positive number.
        """
        if callable(self.schedule):
            try:
                factor = self.schedule(progress)
            # A user's function may raise anything.
            except Exception as error:
                raise ConfigError(_failed(progress, error)) from error
            if not isinstance(factor, int | float) or not 0 < self.lr * factor <= LARGEST:
                raise ConfigError(
                    f"local: schedule({progress:g}) must be a factor of lr, above 0, as lambda "
                    f"done: 0.9 ** (20 * done) gives; got {factor!r}"
                )
            return self.lr * factor
        match self.schedule:
            case "cosine":
                return self.lr * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))
            case "step":
                return self.lr * 0.1 ** ((progress >= 0.5) + (progress >= 0.75))
            case _:
                return self.lr


def _failed(progress: float, error: Exception) -> str:
    """Return the message on an error that a user's schedule raised."""
    *_, frame = traceback.extract_tb(error.__traceback__)
    # Of a function of other arguments there is no line: the call itself failed.
    own = frame.filename != __file__
    where = f" ({Path(frame.filename).name}:{frame.lineno})" if own else ""
    none = (
        "; schedulers of torch, which change an optimiser, are none"
        if isinstance(error, TypeError)
        else ""
    )
    return (
        f"local: schedule({progress:g}) failed with {type(error).__name__}: {first_line(error)}"
        f"{where}: it must be a function of the share of the rounds that are finished, from 0 to "
        f"below 1, that gives a factor of lr, as lambda done: 0.9 ** (20 * done){none}"
    )


@tagged("OptimiserState")
@dataclass(frozen=True)
class OptimizerState:
    """State of an optimiser.

    `slots` holds momentum buffers or moments by name, each one vector; `steps` counts the steps.
    """

    slots: Mapping[str, Params]
    steps: int


FRESH = OptimizerState({}, 0)
"""State of an optimiser that has made no step."""
