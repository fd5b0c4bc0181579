"""Local training: what a method may ask for (`Fit`), and the solver that does it.

The solver keeps one resident network whose parameters are views into one flat vector: starting a
client is one copy. Gradients are taken over from autograd as they come, the optimiser's buffers are
resident and set to zero, and one fused kernel takes the step.
"""

# torch.optim is built on these kernels; they have no public names.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor, nn

from vergence.core.mask import Mask
from vergence.core.objective import Objective
from vergence.core.params import Layout, Params
from vergence.core.ranges import check_ranges
from vergence.core.site import Batch, Samples
from vergence.core.stream import Stream
from vergence.core.task import Task
from vergence.errors import ConfigError

Precision = Literal["fp32", "bf16"]
SLOTS = {"sgd": ("momentum_buffer",), "adam": ("exp_avg", "exp_avg_sq"),
         "adamw": ("exp_avg", "exp_avg_sq")}  # fmt: skip
"""The buffers of each optimiser, by torch's names."""
KERNELS = {name: getattr(torch, f"_fused_{name}_") for name in SLOTS}
"""What is behind `torch.optim` with `fused=True`."""


@dataclass(frozen=True)
class Local:
    """How a client trains between two messages.

    `steps` batches if given, else `epochs` passes; the last, smaller batch of a pass is kept, so
    that a small client counts. `schedule` follows the share of rounds done.
    """

    epochs: Annotated[int, Ge(1)] = 1
    steps: Annotated[int, Ge(1)] | None = None
    batch: Annotated[int, Ge(1)] = 32
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Annotated[float, Gt(0)] = 0.05
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    weight_decay: Annotated[float, Ge(0)] = 1e-4
    clip: Annotated[float, Ge(0)] = 5.0
    schedule: Literal["constant", "cosine", "step"] = "constant"

    def __post_init__(self) -> None:
        check_ranges(self, "local")

    @property
    def buffers(self) -> bool:
        """Whether the optimiser remembers anything between steps."""
        return self.optimiser != "sgd" or self.momentum > 0

    def rate(self, progress: float) -> float:
        """Return the learning rate after this share of the rounds."""
        match self.schedule:
            case "cosine":
                return self.lr * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))
            case "step":
                return self.lr * 0.1 ** ((progress >= 0.5) + (progress >= 0.75))
            case _:
                return self.lr


@dataclass(frozen=True)
class OptimiserState:
    """Momentum buffers or moments, as one vector each, and the number of steps taken."""

    slots: Mapping[str, Params]
    steps: int


@dataclass(frozen=True)
class Fit:
    """A request for local training; see `conversation.fit`."""

    params: Params
    data: Samples
    local: Local
    trainable: Mask | None = None
    anchor: tuple[Params, float] | None = None
    optimiser: OptimiserState | None = None
    score_on: Samples | None = None
    correction: Params | None = None
    objective: Objective | None = None


@dataclass(frozen=True)
class Compute:
    """Ask for something computed with parameters on data, nothing trained."""

    params: Params
    data: Samples
    want: Literal["loss", "outputs", "score", "features", "gradient", "sequences", "classes"]


@dataclass(frozen=True)
class Fitted:
    """What training gave. `examples` is the task's weight of the data.

    `optimiser` is there where the request gave one: only a method that keeps it pays for it.
    """

    params: Params
    examples: float
    steps: int
    optimiser: OptimiserState | None
    metrics: Mapping[str, float] = field(default_factory=dict)


class Solver:
    """Trains and evaluates one task's network, one client after another.

    `precision` "bf16" runs forward and backward passes of training in bfloat16 where torch deems
    it safe; parameters, optimiser and evaluation stay in float32.
    """

    def __init__(self, task: Task, precision: Precision = "fp32") -> None:
        self.task = task
        self.precision: Precision = precision
        self.module = task.module()
        start = Params.of(self.module)
        self.layout: Layout = start.layout
        self.vector = start.flat.clone()
        self.tensors = self._views(self.vector)
        tensors = dict(self.module.named_parameters())
        for name, view in zip(self.layout.names, self.tensors, strict=True):
            tensors[name].data = view
        self.parameters = [tensors[name] for name in self.layout.names]
        self.slots: dict[str, tuple[Tensor, list[Tensor]]] = {}
        self.scratch: tuple[Tensor, list[Tensor]] | None = None

    def _views(self, flat: Tensor) -> list[Tensor]:
        return [self.layout.view(flat, name) for name in self.layout.names]

    def _buffer(self) -> tuple[Tensor, list[Tensor]]:
        flat = torch.empty_like(self.vector)
        return flat, self._views(flat)

    def _mode(self, train: bool) -> None:
        if self.module.training != train:
            self.module.train(train)

    def fit(self, ask: Fit, stream: Stream, progress: float = 0.0) -> Fitted:
        """Answer a `Fit`. `progress` is the share of rounds done, for the schedule."""
        self.vector.copy_(ask.params.flat)
        # Of dropout, where there is any; torch.manual_seed would look for every kind of GPU.
        torch.default_generator.manual_seed(stream.child("network").number())
        step = self._optimiser(ask, progress)
        adjust = self._adjuster(ask)
        self._mode(train=True)
        draw, losses, steps = stream.child("objective").torch(), 0.0, 0
        for rows in batches(len(ask.data), ask.local, stream):
            batch = ask.data.take(rows)
            if ask.objective is None:
                loss = training_loss(self.task, self.module, batch, self.precision)
            else:
                loss = ask.objective.loss(self.task, self.module, batch, draw)
            loss.backward()
            step(adjust(take_gradients(self.parameters)))
            if ask.trainable is not None:
                ask.trainable.restore(self.vector, ask.params)
            losses += float(loss.detach())
            steps += 1
        params = ask.params.like(self.vector.clone())
        metrics = {"loss": losses / max(steps, 1)}
        if ask.score_on is not None:
            metrics["score"] = self.score(params, ask.score_on)
        return Fitted(params, self.task.weigh(ask.data), steps, self._kept(ask, steps), metrics)

    def _adjuster(self, ask: Fit) -> Callable[[list[Tensor]], list[Tensor]]:
        """Return what happens to the gradients of this fit: leash, correction, freeze, clip."""
        asked = (ask.anchor, ask.correction, ask.trainable)
        if asked == (None, None, None) and not ask.local.clip:
            return lambda gradients: gradients
        keep = push = None
        if ask.correction is not None:
            push = self._views(ask.correction.flat)
        if ask.anchor is not None and self.scratch is None:
            self.scratch = self._buffer()
        if ask.trainable is not None:
            keep = self._views(ask.trainable.bits.to(self.vector.dtype))

        @torch.no_grad()
        def adjust(gradients: list[Tensor]) -> list[Tensor]:
            if ask.anchor is not None and self.scratch is not None:
                apart, views = self.scratch
                torch.sub(self.vector, ask.anchor[0].flat, out=apart)
                torch._foreach_add_(gradients, views, alpha=ask.anchor[1])
            if push is not None:
                torch._foreach_add_(gradients, push)
            if keep is not None:
                torch._foreach_mul_(gradients, keep)
            clip_(gradients, ask.local.clip)
            return gradients

        return adjust

    def _optimiser(self, ask: Fit, progress: float) -> Callable[[list[Tensor]], None]:
        """Fill the resident buffers, with zeros or what the request brings; return the step."""
        before = ask.optimiser if ask.optimiser is not None else OptimiserState({}, 0)
        names = SLOTS[ask.local.optimiser] if ask.local.buffers else ()
        for name in names:
            if name not in self.slots:
                self.slots[name] = self._buffer()
            if name in before.slots:
                self.slots[name][0].copy_(before.slots[name].flat)
            else:
                self.slots[name][0].zero_()
        buffers = [self.slots[name][1] for name in names]
        rate, count = ask.local.rate(progress), torch.tensor(float(before.steps))
        return stepper(self.tensors, buffers, ask.local, rate, count)

    def _kept(self, ask: Fit, steps: int) -> OptimiserState | None:
        if ask.optimiser is None:
            return None
        names = SLOTS[ask.local.optimiser] if ask.local.buffers else ()
        slots = {name: ask.params.like(self.slots[name][0].clone()) for name in names}
        return OptimiserState(slots, ask.optimiser.steps + steps)

    def compute(self, ask: Compute) -> float | Tensor | Params | list[Tensor]:
        """Answer a `Compute`."""
        return getattr(self, ask.want)(ask.params, ask.data)

    def outputs(self, params: Params, data: Samples, batch: int = 64) -> Tensor:
        """Return the network's outputs `[samples, ...]` in sample order, in evaluation mode."""
        return self._told(params, data, batch, lambda part: self.task.forward(self.module, part))

    def features(self, params: Params, data: Samples, batch: int = 64) -> Tensor:
        """Return what enters the network's head, `[samples, d]`, in evaluation mode."""
        return self._told(params, data, batch, lambda p: self.task.features(self.module, p)[1])

    @torch.no_grad()
    def _told(
        self, params: Params, data: Samples, batch: int, tell: Callable[[Batch], Tensor]
    ) -> Tensor:
        self.vector.copy_(params.flat)
        self._mode(train=False)
        parts = (data.take(slice(at, at + batch)) for at in range(0, len(data), batch))
        return torch.cat([tell(part).float() for part in parts])

    def sequences(self, params: Params, data: Samples) -> list[Tensor]:
        """Return the samples as sequences `[frames, d]`, whatever the parameters."""
        return self.task.sequences(data)

    def classes(self, params: Params, data: Samples) -> Tensor:
        """Return the class of every sample, int64 `[samples]`, whatever the parameters."""
        return self.task.class_of(dict(data.columns))

    def gradient(self, params: Params, data: Samples, batch: int = 64) -> Params:
        """Return the gradient of the loss in evaluation mode, over all samples."""
        self.vector.copy_(params.flat)
        self._mode(train=False)
        for at in range(0, len(data), batch):
            part = data.take(slice(at, at + batch))
            loss = training_loss(self.task, self.module, part, "fp32")
            (loss * (min(batch, len(data) - at) / len(data))).backward()
        flat = torch.empty_like(self.vector)
        for view, grad in zip(self._views(flat), take_gradients(self.parameters), strict=True):
            view.copy_(grad)
        return params.like(flat)

    def score(self, params: Params, data: Samples) -> float:
        """Return the task's score of these parameters on data."""
        return self.task.score(self.outputs(params, data), data)

    @torch.no_grad()
    def loss(self, params: Params, data: Samples, batch: int = 64) -> float:
        """Return the mean loss of these parameters on data."""
        if not len(data):
            raise ConfigError("the loss of no samples was asked for; is a validation part empty?")
        self.vector.copy_(params.flat)
        self._mode(train=False)
        total = 0.0
        for at in range(0, len(data), batch):
            part = data.take(slice(at, at + batch))
            size = min(batch, len(data) - at)
            total += float(self.task.loss(self.task.forward(self.module, part), part)) * size
        return total / len(data)


def training_loss(task: Task, module: nn.Module, batch: Batch, precision: Precision) -> Tensor:
    """Return the loss of a batch in training, its forward pass in this precision."""
    if precision == "fp32":
        return task.loss(task.forward(module, batch), batch)
    device = next(module.parameters()).device.type
    # Without its cache: a CUDA graph must not hold casts of an earlier step's parameters.
    with torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False):
        output = task.forward(module, batch)
    return task.loss(output.float(), batch)


@torch.no_grad()
def clip_(gradients: list[Tensor], limit: float) -> None:
    """Shorten gradients in place to this norm over all of them; 0 leaves them."""
    if not limit:
        return
    norms = torch.stack(torch._foreach_norm(gradients))
    norm = float(torch.linalg.vector_norm(norms)) + 1e-6
    if norm > limit:
        torch._foreach_mul_(gradients, limit / norm)


def take_gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Take autograd's own buffers: adding into ours would cost two more passes over them.

    They are None before the next backward, which inside a CUDA graph then allocates them from the
    graph's memory, at the same address in every replay.
    """
    taken = []
    for parameter in parameters:
        grad, parameter.grad = parameter.grad, None
        taken.append(torch.zeros_like(parameter) if grad is None else grad)
    return taken


def stepper(
    tensors: list[Tensor],
    buffers: list[list[Tensor]],
    local: Local,
    rate: float | Tensor,
    count: Tensor,
) -> Callable[[list[Tensor]], None]:
    """Return one optimiser step over lists of tensors and their buffers, as one fused kernel.

    The kernels are those behind `torch.optim` with `fused=True`, called without its bookkeeping
    (23 % of a step of a 29 000-parameter network). SGD's first step copies the gradient into the
    momentum; adding it to a buffer of zeros is the same. `count` is the number of steps taken, and
    is counted on; a rate in a tensor is read anew in every step.
    """
    kernel = KERNELS[local.optimiser]
    if local.optimiser == "sgd":
        momentum = buffers[0] if buffers else []

        def sgd(gradients: list[Tensor]) -> None:
            kernel(
                tensors, gradients, momentum, weight_decay=local.weight_decay,
                momentum=local.momentum, lr=rate, dampening=0.0, nesterov=local.nesterov,
                maximize=False, is_first_step=False,
            )  # fmt: skip

        return sgd
    first, second = buffers
    counts = [count] * len(tensors)

    def adam(gradients: list[Tensor]) -> None:
        count.add_(1)
        kernel(
            tensors, gradients, first, second, [], counts, lr=rate, beta1=0.9, beta2=0.999,
            weight_decay=local.weight_decay, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip

    return adam


def batches(n: int, local: Local, stream: Stream) -> Iterator[Tensor]:
    """Yield the sample numbers of each batch, a fresh permutation per epoch."""
    if not n:
        raise ConfigError("a client without training samples was asked to train")
    generator, left, epoch = stream.torch(), local.steps, 0
    while left is not None or epoch < local.epochs:
        for rows in torch.randperm(n, generator=generator).split(local.batch):
            if left is not None:
                if left == 0:
                    return
                left -= 1
            yield rows
        epoch += 1
