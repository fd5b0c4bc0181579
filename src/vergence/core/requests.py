"""Records of a method's requests and their answers; the primitives are in `conversation`.

Used in most packages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

from vergence.core.aggregation import Aggregate
from vergence.core.data import Batch, Samples
from vergence.core.identifiers import ClientId
from vergence.core.local_training import LocalTraining, OptimizerState
from vergence.core.masks import Mask
from vergence.core.messages import Message
from vergence.core.objectives import Objective
from vergence.core.params import Params
from vergence.core.task import Task

Wanted = Literal[
    "loss", "outputs", "score", "features", "gradient", "statistics", "sequences", "classes"
]
Network = Callable[[Task], Task]
"""Function from the run's task to the task whose network is used, such as one with fewer stages."""


@dataclass(frozen=True)
class Request:
    """Request to clients: each handles one message and replies.

    Attributes:
        verb: kind of request, such as `train`.
        to: client -> message; None: the client receives what the method's `offer` returns.
        reveal: `aggregate`: the server sees only the weighted sum of the replies; `each`: it sees
            every reply.
        like: shapes of trees (named sets of parameters) that a reply has and the message does not.
    """

    verb: str
    to: Mapping[ClientId, Message | None]
    reveal: Literal["aggregate", "each"]
    like: Mapping[str, Params] = field(default_factory=dict)


@dataclass(frozen=True)
class Requests:
    """Request to one client in split learning: several messages in one exchange.

    Attributes:
        verb: kind of request, such as `forward`.
        client: the client.
        messages: the messages, in order; None: the client receives what the method's `offer`
            returns.
        like: shapes of trees (named sets of parameters) that a reply has and the message does not.
    """

    verb: str
    client: ClientId
    messages: tuple[Message | None, ...]
    like: Mapping[str, Params] = field(default_factory=dict)


@dataclass(frozen=True)
class GetPublicData:
    """Request for the server's public samples, which belong to no client."""


@dataclass(frozen=True)
class Mean:
    """Request for the mean of `values` `[n, d]`, which have one row per sample of a client.

    A row whose L2 norm is above `bound` is first scaled down to `bound`. A run with privacy for
    samples adds noise to the mean.
    """

    values: Tensor
    bound: float

    def shortened(self) -> Tensor:
        """Return `values` with every row scaled down to L2 norm `bound` if it is longer."""
        # A row of zeros has no length to divide by.
        length = self.values.norm(dim=1, keepdim=True).clamp(min=1e-12)
        return self.values * (self.bound / length).clamp(max=1)


@dataclass(frozen=True)
class Quarantine:
    """Request to quarantine (exclude) a client in split learning, for the reason given."""

    client: ClientId
    reason: str


@dataclass(frozen=True)
class ServeGroups:
    """Request in split learning: train copies of the server's part, one per group of clients.

    `Method.serve` trains each copy of `templates` (the part's parameters) with the clients of one
    group. The copies are not sent to clients. With `shuffled`, the clients of a group come in
    random order.
    """

    groups: tuple[tuple[ClientId, ...], ...]
    templates: Mapping[str, Params]
    shuffled: bool = False


@dataclass(frozen=True)
class ServedGroups:
    """Answer to `ServeGroups`.

    Attributes:
        sum: weighted sum of the updates of all copies of the server's part.
        clients: the clients that took part to the end.
    """

    sum: Aggregate
    clients: tuple[ClientId, ...]


@dataclass(frozen=True)
class Fit:
    """Request to train parameters on data; `conversation.fit` explains the fields."""

    params: Params
    data: Samples
    local: LocalTraining
    trainable: Mask | None = None
    anchor: tuple[Params, float] | None = None
    optimiser: OptimizerState | None = None
    score_on: Samples | None = None
    correction: Params | None = None
    objective: Objective | None = None


@dataclass(frozen=True)
class Compute:
    """Request to compute the quantity `want` with parameters on data, without training."""

    params: Params
    data: Samples
    want: Wanted


@dataclass(frozen=True)
class FitResult:
    """Result of training.

    Attributes:
        params: the trained parameters.
        examples: the task's weight of the training data; default: the number of samples.
        steps: number of optimiser steps.
        optimiser: state of the optimiser; None unless the request had a state, as copying it takes
            time.
        metrics: metrics of the training by name.
    """

    params: Params
    examples: float
    steps: int
    optimiser: OptimizerState | None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def weight(self, weights: Literal["samples", "equal"]) -> float:
        """Return the weight of a client's reply: `examples` if `weights` is `samples`, else 1."""
        return self.examples if weights == "samples" else 1.0


StepGradients = Callable[[Task, nn.Module, Batch, str | None], tuple[Params, Tensor | None]]
"""Computes the gradients for an optimiser step: (task, module, batch, wrt) -> gradients.

They are those with respect to all parameters, and to the batch's column `wrt`; the second is None
if `wrt` is None.
"""


@dataclass(frozen=True)
class Step:
    """Request for one optimiser step of `params` on a batch, in place.

    The caller must continue with the returned parameters and optimiser. `wrt` names a column of
    the batch; the loss's gradient with respect to this column is returned, too. `gradients` is a
    function that replaces the gradient of the mean loss; a run with privacy sets it, methods never
    do. `conversation.step` explains the other fields.
    """

    params: Params
    optimiser: OptimizerState
    batch: Batch
    local: LocalTraining
    on: Network
    wrt: str | None = None
    gradients: StepGradients | None = None


@dataclass(frozen=True)
class StepResult:
    """Result of an optimiser step.

    Attributes:
        params: the parameters after the step.
        optimiser: the state of the optimiser after the step.
        loss: the batch's mean loss before the step; None if the run's privacy forbids publishing
            it.
        gradient: the loss's gradient with respect to the batch's column that the request named;
            None if it named no column.
    """

    params: Params
    optimiser: OptimizerState
    loss: float | None
    gradient: Tensor | None = None


@dataclass(frozen=True)
class Forward:
    """Request for a network's output on a batch, in training mode, without an autograd graph.

    `rows` holds the number of each sample of the batch among the client's training samples.
    `conversation.forward` explains the other fields.
    """

    params: Params
    batch: Batch
    on: Network
    rows: Tensor | None = None
