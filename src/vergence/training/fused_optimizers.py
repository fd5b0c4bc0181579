"""SGD, Adam and AdamW as one fused kernel per step, over lists of tensors; and torch's optimisers.

Used by `training.cuda_graphs`, `training.few_shot`, `training.sequential`, `training.stacked` and
`training.steps`.
"""

# torch.optim is built on these kernels; they have no public names.

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from vergence.core.local_training import LocalTraining, OptimizerState
from vergence.core.params import Params
from vergence.errors import ConfigError, first_line

SLOTS = {
    "sgd": ("momentum_buffer",),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq"),
}
"""The buffers of each optimiser, by torch's names."""
KERNELS = {name: getattr(torch, f"_fused_{name}_") for name in SLOTS}
"""The kernels behind `torch.optim` with `fused=True`."""


def slots_of(local: LocalTraining) -> tuple[str, ...]:
    """Return the names of the buffers that a fused optimiser has with these settings."""
    named = "" if callable(local.optimizer) else local.optimizer
    return SLOTS[named] if named and local.buffers else ()


class OwnOptimizer:
    """An optimiser that a function of the user makes, on the tensors of a flat vector.

    Args:
        tensors: views of the vector of parameters.
        local: settings, whose `optimizer` is the function.
        rate: learning rate.
        before: state to begin with; empty for a new optimiser.
        views: function that returns views of a flat vector, in the order of `tensors`.
    """

    def __init__(
        self,
        tensors: list[Tensor],
        local: LocalTraining,
        rate: float,
        before: OptimizerState,
        views: Callable[[Tensor], list[Tensor]],
    ) -> None:
        self.tensors, self.views = tensors, views
        assert callable(local.optimizer)
        self.optimizer = local.optimizer(tensors, lr=rate)
        slots = {name: views(slot.flat) for name, slot in before.slots.items()}
        for number, tensor in enumerate(tensors if before.steps else ()):
            own = {name: each[number].clone() for name, each in slots.items()}
            self.optimizer.state[tensor] = {"step": torch.tensor(float(before.steps)), **own}

    def step(self, gradients: list[Tensor]) -> None:
        """Take one step along the gradients."""
        for tensor, gradient in zip(self.tensors, gradients, strict=True):
            tensor.grad = gradient
        self.optimizer.step()

    def slots(self, like: Params) -> dict[str, Params]:
        """Return the optimiser's buffers by name, each as one vector, without its count of steps.

        Raises:
            ConfigError: a buffer has no number for each parameter.
        """
        states = [self.optimizer.state.get(tensor, {}) for tensor in self.tensors]
        slots: dict[str, Params] = {}
        for name in (name for name in states[0] if name != "step"):
            slots[name] = like * 0.0
            for tensor, own, view in zip(
                self.tensors, states, self.views(slots[name].flat), strict=True
            ):
                if getattr(own.get(name), "shape", None) != tensor.shape:
                    raise ConfigError(
                        f"{type(self.optimizer).__name__} has a state '{name}' that is no number "
                        "for each parameter, and this method keeps it between rounds: use another "
                        "optimizer"
                    )
                view.copy_(own[name])
        return slots


def try_functions(local: LocalTraining, progress: Iterable[float] = (0.0,)) -> None:
    """Try an optimiser of one's own on a single number, and a schedule at all shares in `progress`.

    Raises:
        ConfigError: one of them fails, or returns something else; the message says what is wanted.
    """
    made, number = local.functions.get("optimizer"), torch.zeros(1)
    rate, *_ = [local.learning_rate(each) for each in (0.0, *progress)]
    if made is None:
        return
    try:
        if "lr" in getattr(made, "keywords", {}):
            raise TypeError("its lr stands in LocalTraining(lr=...)")
        own = OwnOptimizer([number], local, rate, OptimizerState({}, 0), lambda flat: [flat])
        if not isinstance(own.optimizer, torch.optim.Optimizer):
            raise TypeError(f"it returns a {type(own.optimizer).__name__}")
        own.step([torch.ones(1)])
    except Exception as error:
        raise ConfigError(
            f"local: optimizer must be a class of torch.optim, or a function (parameters, lr=...) "
            f"-> optimizer, as partial(torch.optim.RMSprop, alpha=0.9): {first_line(error)}"
        ) from error


def stepper(
    tensors: list[Tensor],
    buffers: list[list[Tensor]],
    local: LocalTraining,
    rate: float | Tensor,
    count: Tensor,
) -> Callable[[list[Tensor]], None]:
    """Return a function that takes one optimiser step over lists of tensors and their buffers.

    `count` is the number of steps so far, and increases; a rate in a tensor is read in every step.
    """
    # Without the bookkeeping of `torch.optim`: 23 % of a step of a network of 29,000 parameters.
    kernel = KERNELS[str(local.optimizer)]
    if local.optimizer == "sgd":
        momentum = buffers[0] if buffers else []

        def sgd(gradients: list[Tensor]) -> None:
            kernel(
                tensors,
                gradients,
                momentum,
                weight_decay=local.weight_decay,
                momentum=local.momentum,
                lr=rate,
                dampening=0.0,
                nesterov=local.nesterov,
                maximize=False,
                # torch copies the first gradient into the momentum; adding it to 0 is the same.
                is_first_step=False,
            )

        return sgd
    first, second = buffers
    counts = [count] * len(tensors)

    def adam(gradients: list[Tensor]) -> None:
        count.add_(1)
        kernel(
            tensors,
            gradients,
            first,
            second,
            [],
            counts,
            lr=rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=local.weight_decay,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    return adam
