"""FedAdagrad: entries that have moved much move less."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from annotated_types import Gt, Interval

from vergence.core.method import AdaptiveServer, Moments
from vergence.core.params import Params
from vergence.core.tags import LATER


@dataclass(frozen=True)
class FedAdagrad(AdaptiveServer):
    """Take Adagrad's step on the server along the mean update D.

    m <- beta1 m + (1 - beta1) D;  v <- v + D^2;  model <- model + server_lr m / (sqrt(v) + tau)

    Args:
        server_lr: eta, rate of the server's step.
        beta1: decay of the mean of updates; 0 as in the paper's experiments.
        tau: floor of the denominator; v starts at tau^2.
        weights: clients count equally, or by their samples.
        adapt: `fixed` takes `tau` and `server_lr` as they are; `auto` sets them to a tenth and to
            twice the root mean square of the first D, and keeps them.

    Source: Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2, FedAdagrad.
    """

    server_lr: Annotated[float, Gt(0)] = 0.01
    beta1: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    tau: Annotated[float, Gt(0)] = 1e-3
    weights: Literal["samples", "equal"] = "equal"
    adapt: Literal["fixed", "auto"] = field(default="fixed", metadata={LATER: True})

    def moments(self, model: Params) -> Moments:
        """Return the first state of a server with this model."""
        # Algorithm 2 asks for v_{-1} >= tau^2, and this is the smallest that it allows.
        return Moments(model, model * 0.0, model * 0.0 + self.tau**2)

    def optimizer_step(self, s: Moments, update: Params, server_lr: float, tau: float) -> Moments:
        """Return the server's state after Adagrad's step along the clients' mean update."""
        first = self.beta1 * s.first + (1 - self.beta1) * update
        second = s.second + update * update
        step = first / (second.like(second.flat.sqrt()) + tau)
        return replace(s, model=s.model + server_lr * step, first=first, second=second)
