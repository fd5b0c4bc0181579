"""FedAdagrad: entries that have moved much move less."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt, Interval

from vergence.core.method import Moments, ServerOptimizer
from vergence.core.params import Params
from vergence.core.task import Task


@dataclass(frozen=True)
class FedAdagrad(ServerOptimizer[Moments]):
    """Take Adagrad's step on the server along the mean update D.

    m <- beta1 m + (1 - beta1) D;  v <- v + D^2;  model <- model + server_lr m / (sqrt(v) + tau)

    Args:
        server_lr: eta, rate of the server's step.
        beta1: decay of the mean of updates; 0 as in the paper's experiments.
        tau: floor of the denominator; v starts at tau^2.
        weights: clients count equally, or by their samples.

    Source: Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2, FedAdagrad.
    """

    server_lr: Annotated[float, Gt(0)] = 0.01
    beta1: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    tau: Annotated[float, Gt(0)] = 1e-3
    weights: Literal["samples", "equal"] = "equal"

    def server(self, task: Task) -> Moments:
        """Return the first server state: the task's initial model, and the initial moments."""
        start = task.init()
        # Algorithm 2 asks for v_{-1} >= tau^2, and this is the smallest that it allows.
        return Moments(start, start * 0.0, start * 0.0 + self.tau**2)

    def step(self, s: Moments, update: Params) -> Moments:
        """Return the server's state after Adagrad's step along the clients' mean update."""
        first = self.beta1 * s.first + (1 - self.beta1) * update
        second = s.second + update * update
        step = first / (second.like(second.flat.sqrt()) + self.tau)
        return Moments(s.model + self.server_lr * step, first, second)
