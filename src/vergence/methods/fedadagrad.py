"""FedAdagrad: entries that have moved much move less."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Gt, Interval

from vergence.core.method import AdaptiveServer
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

    def second_moment(self, second: Params, update: Params) -> Params:
        """Return Adagrad's second moment: the sum of all squares."""
        return second + update * update
