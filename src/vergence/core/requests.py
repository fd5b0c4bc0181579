"""Records of a method's requests and their answers; the primitives are in `conversation`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

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
"""Which network is meant: the run's task to the task of a piece of it."""


@dataclass(frozen=True)
class Request:
    """Ask clients for a turn. `to` maps each to its message, or to None: what `offer` gives.

    `like` are trees of the shape that replies must have, where the client is not sent them.
    """

    verb: str
    to: Mapping[ClientId, Message | None]
    reveal: Literal["aggregate", "each"]
    like: Mapping[str, Params] = field(default_factory=dict)


@dataclass(frozen=True)
class Requests:
    """Ask one client that is being served for turns, one after the other, in one exchange.

    A message None is what `offer` gives; `like` as in `Request`.
    """

    verb: str
    client: ClientId
    messages: tuple[Message | None, ...]
    like: Mapping[str, Params] = field(default_factory=dict)


@dataclass(frozen=True)
class GetPublicData:
    """Ask for the samples of nobody's that the server holds."""


@dataclass(frozen=True)
class Mean:
    """Ask for the mean of rows `[n, d]`, one of each of a client's samples, `bound` long at most.

    Where a run hides samples it comes with noise.
    """

    values: Tensor
    bound: float

    def shortened(self) -> Tensor:
        """Return the rows, those that are longer cut to `bound`."""
        length = self.values.norm(dim=1, keepdim=True).clamp(min=1e-12)
        return self.values * (self.bound / length).clamp(max=1)


@dataclass(frozen=True)
class Quarantine:
    """Quarantine a client that is being served, for this reason."""

    client: ClientId
    reason: str


@dataclass(frozen=True)
class ServeGroups:
    """Serve groups of clients, each by a copy of `templates` that `Method.serve` trains.

    What the copies hold is not sent to a client. With `shuffled`, the clients of a group come in
    random order.
    """

    groups: tuple[tuple[ClientId, ...], ...]
    templates: Mapping[str, Params]
    shuffled: bool = False


@dataclass(frozen=True)
class ServedGroups:
    """The weighted sum of what the copies became, and the clients that were served to the end."""

    sum: Aggregate
    clients: tuple[ClientId, ...]


@dataclass(frozen=True)
class Fit:
    """A request for local training; see `conversation.fit`."""

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
    """Ask for something computed with parameters on data, nothing trained."""

    params: Params
    data: Samples
    want: Wanted


@dataclass(frozen=True)
class FitResult:
    """Result of training. `examples` is the task's weight of the data.

    `optimiser` is there where the request gave one: only a method that keeps it pays for it.
    """

    params: Params
    examples: float
    steps: int
    optimiser: OptimizerState | None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def weight(self, weights: Literal["samples", "equal"]) -> float:
        """Return the weight of a reply: by samples, that of the data, else 1."""
        return self.examples if weights == "samples" else 1.0


@dataclass(frozen=True)
class Step:
    """Train `params` by one step on this batch, in their own memory and the optimiser's.

    Whoever asks gives both away and goes on with what comes back. `wrt` names the column of the
    batch whose gradient is wanted. `gradients` takes the place of the mean loss's own: a run's
    privacy puts it there, no method does.
    """

    params: Params
    optimiser: OptimizerState
    batch: Batch
    local: LocalTraining
    on: Network
    wrt: str | None = None
    gradients: StepGradients | None = None


class StepGradients(Protocol):
    """Makes what an optimiser steps with from a batch."""

    def __call__(
        self, task: Task, module: nn.Module, batch: Batch, wrt: str | None
    ) -> tuple[Params, Tensor | None]:
        """Return a gradient of every parameter, and that of the mean loss by the column `wrt`."""
        ...


@dataclass(frozen=True)
class StepResult:
    """Parameters and optimiser after a step, the batch's mean loss before it, and a gradient.

    The loss is None where a run's privacy lets it be told to nobody.
    """

    params: Params
    optimiser: OptimizerState
    loss: float | None
    gradient: Tensor | None = None


@dataclass(frozen=True)
class Forward:
    """Ask for a network's output on a batch, in training mode, without its graph.

    `rows` says which of a client's training samples they are.
    """

    params: Params
    batch: Batch
    on: Network
    rows: Tensor | None = None
