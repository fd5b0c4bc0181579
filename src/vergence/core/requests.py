"""Records of a method's requests and their answers; the primitives are in `conversation`.

Used in most packages.
"""

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
"""Function from the run's task to the task whose network is meant, which may be a piece of it."""


@dataclass(frozen=True)
class Request:
    """Ask clients for one turn each.

    `to` maps each client to its message; None stands for the trees that `offer` returns. `like`
    gives the shapes of those trees in replies whose names are not among the trees sent.
    """

    verb: str
    to: Mapping[ClientId, Message | None]
    reveal: Literal["aggregate", "each"]
    like: Mapping[str, Params] = field(default_factory=dict)


@dataclass(frozen=True)
class Requests:
    """Ask for several turns in one exchange.

    The turns are those of one client that is now being served. A message of None sends what
    `offer` returns; `like` is as in `Request`.
    """

    verb: str
    client: ClientId
    messages: tuple[Message | None, ...]
    like: Mapping[str, Params] = field(default_factory=dict)


@dataclass(frozen=True)
class GetPublicData:
    """Ask for the server's public samples, which are no client's."""


@dataclass(frozen=True)
class Mean:
    """Ask for the mean of rows `[n, d]`, one per sample of a client, each cut to length `bound`.

    A run with privacy for samples adds noise to it.
    """

    values: Tensor
    bound: float

    def shortened(self) -> Tensor:
        """Return the rows, scaled down to length `bound` where they are longer."""
        # A row of zeros has no length to divide by.
        length = self.values.norm(dim=1, keepdim=True).clamp(min=1e-12)
        return self.values * (self.bound / length).clamp(max=1)


@dataclass(frozen=True)
class Quarantine:
    """Quarantine a client that is being served, for the reason given."""

    client: ClientId
    reason: str


@dataclass(frozen=True)
class ServeGroups:
    """Serve groups of clients, each by a copy of `templates` that `Method.serve` trains.

    The copies are not sent to clients. With `shuffled`, the clients of a group are served in
    random order.
    """

    groups: tuple[tuple[ClientId, ...], ...]
    templates: Mapping[str, Params]
    shuffled: bool = False


@dataclass(frozen=True)
class ServedGroups:
    """The weighted sum of the copies' updates, and the clients that were served to the end."""

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
    """Ask for the quantity `want`, computed with parameters on data without training."""

    params: Params
    data: Samples
    want: Wanted


@dataclass(frozen=True)
class FitResult:
    """Result of training; `examples` is the weight that the task gives to the data.

    `optimiser` is None unless the request had one, as copying its state takes time.
    """

    params: Params
    examples: float
    steps: int
    optimiser: OptimizerState | None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def weight(self, weights: Literal["samples", "equal"]) -> float:
        """Return a reply's weight: that of the data if `weights` is `samples`, else 1."""
        return self.examples if weights == "samples" else 1.0


@dataclass(frozen=True)
class Step:
    """Train `params` by one step on this batch, in place.

    The caller must go on with the returned parameters and optimiser. `wrt` names the column of the
    batch whose gradient to return. `gradients` replaces the gradient of the mean loss; a run's
    privacy sets it, methods do not.
    """

    params: Params
    optimiser: OptimizerState
    batch: Batch
    local: LocalTraining
    on: Network
    wrt: str | None = None
    gradients: StepGradients | None = None


class StepGradients(Protocol):
    """Computes the gradients for an optimiser step from a batch."""

    def __call__(
        self, task: Task, module: nn.Module, batch: Batch, wrt: str | None
    ) -> tuple[Params, Tensor | None]:
        """Return the gradients of all parameters, and the mean loss's gradient for column `wrt`."""
        ...


@dataclass(frozen=True)
class StepResult:
    """Parameters and optimiser after a step, the batch's mean loss before it, and a gradient.

    The loss is None where a run's privacy forbids publishing it.
    """

    params: Params
    optimiser: OptimizerState
    loss: float | None
    gradient: Tensor | None = None


@dataclass(frozen=True)
class Forward:
    """Ask for a network's output on a batch, in training mode, without its graph.

    `rows` has the numbers of the batch's samples among a client's training samples.
    """

    params: Params
    batch: Batch
    on: Network
    rows: Tensor | None = None
