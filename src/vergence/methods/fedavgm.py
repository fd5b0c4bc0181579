"""FedAvgM: FedAvg with momentum on the server."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt, Interval

from vergence.core.method import ServerOptimizer
from vergence.core.params import Params
from vergence.core.tags import tagged
from vergence.core.task import Task


@tagged("Moving")
@dataclass(frozen=True)
class Moving:
    """The model and its velocity."""

    model: Params
    velocity: Params


@dataclass(frozen=True)
class FedAvgM(ServerOptimizer[Moving]):
    """Take a momentum step on the server along the mean update D.

    v <- beta v + D;  model <- model + server_lr v

    Args:
        beta: share of the velocity that remains in a step; 0 with `server_lr` 1 is FedAvg.
        server_lr: rate of the server's step. If updates stay equal, the model in the long run moves
            1 / (1 - beta) times as far.
        weights: clients count by their samples, or equally.

    Source: Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated
    visual classification", arXiv 1909.06335, section 4.3.
    Differs: momentum as printed; the paper's experiments may have used Nesterov's form.
    """

    beta: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    server_lr: Annotated[float, Gt(0)] = 1.0
    weights: Literal["samples", "equal"] = "samples"

    def server(self, task: Task) -> Moving:
        """Return the first server state: the task's initial model, with velocity 0."""
        start = task.init()
        return Moving(start, start * 0.0)

    def step(self, s: Moving, update: Params) -> Moving:
        """Return the server's state after a momentum step along the clients' mean update."""
        velocity = self.beta * s.velocity + update
        return Moving(s.model + self.server_lr * velocity, velocity)
