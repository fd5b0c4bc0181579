"""FedYogi: FedAdam whose second moment moves by at most (1 - beta2) D^2 a round."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from annotated_types import Gt, Interval

from vergence.core.method import AdaptiveServer, Moments
from vergence.core.params import Params
from vergence.core.tags import LATER


@dataclass(frozen=True)
class FedYogi(AdaptiveServer):
    """Take Yogi's step on the server along the mean update D.

    m <- beta1 m + (1 - beta1) D;  v <- v - (1 - beta2) D^2 sign(v - D^2);
    model <- model + server_lr m / (sqrt(v) + tau)

    Args:
        server_lr: eta, rate of the server's step.
        beta1: decay of the mean of updates.
        beta2: 1 - beta2 of a squared update is added to v, or taken off it.
        tau: floor of the denominator; v starts at tau^2.
        weights: clients count equally, or by their samples.
        adapt: `fixed` takes `tau` and `server_lr` as they are; `auto` sets them to a tenth and to
            twice the root mean square of the first D, and keeps them.

    Source: Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2, FedYogi.
    """

    server_lr: Annotated[float, Gt(0)] = 0.01
    beta1: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Interval(ge=0, lt=1)] = 0.99
    tau: Annotated[float, Gt(0)] = 1e-3
    weights: Literal["samples", "equal"] = "equal"
    adapt: Literal["fixed", "auto"] = field(default="fixed", metadata={LATER: True})

    def moments(self, model: Params) -> Moments:
        """Return the first state of a server with this model."""
        # Algorithm 2 asks for v_{-1} >= tau^2, and this is the smallest that it allows.
        return Moments(model, model * 0.0, model * 0.0 + self.tau**2)

    def optimizer_step(self, s: Moments, update: Params, server_lr: float, tau: float) -> Moments:
        """Return the server's state after Yogi's step along the clients' mean update."""
        square = update * update
        first = self.beta1 * s.first + (1 - self.beta1) * update
        sign = square.like((s.second - square).flat.sign())
        second = s.second - (1 - self.beta2) * square * sign
        step = first / (second.like(second.flat.sqrt()) + tau)
        return replace(s, model=s.model + server_lr * step, first=first, second=second)
