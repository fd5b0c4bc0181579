"""FedYogi: FedAdam whose second moment moves by at most (1 - beta2) D^2 a round."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Gt, Interval

from vergence.core.method import AdaptiveServer
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

    def second_moment(self, second: Params, update: Params) -> Params:
        """Return Yogi's second moment: it moves by a share of the square, up or down."""
        square = update * update
        sign = square.like((second - square).flat.sign())
        return second - (1 - self.beta2) * square * sign
