"""FedAdam: Adam on the server; the adaptive federated learning of the gaze paper."""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from annotated_types import Gt, Interval

from vergence.core.method import AdaptiveServer, AutoMoments, Moments
from vergence.core.params import Params
from vergence.core.tags import LATER, tagged


@tagged("Moments")
@dataclass(frozen=True)
class AdamMoments(Moments):
    """The model, first and second moments of its updates, and the number of steps taken."""

    steps: int = 0


@dataclass(frozen=True)
class FedAdam(AdaptiveServer):
    """Take Adam's step on the server along the mean update D.

    m <- beta1 m + (1 - beta1) D;  v <- beta2 v + (1 - beta2) D^2;
    model <- model + server_lr m / (sqrt(v) + tau)

    Args:
        server_lr: eta, rate of the server's step; in the long run no entry moves much further than
            this in a round.
        beta1: decay of the mean of updates.
        beta2: decay of the mean of their squares; `seed_exact` does not use it.
        tau: floor of the denominator, the "degree of adaptivity"; it must fit the size of updates.
        variant: `reddi` starts v at tau^2; `seed_exact` is the gaze paper's printed form, one decay
            (beta1) for both moments, and v from 0, which it does not state; `corrected` starts v at
            0 and corrects the bias of both moments, as Kingma and Ba do.
        weights: clients count equally, as in the gaze paper, or by their samples.
        adapt: `fixed` takes `tau` and `server_lr` as they are; `auto` sets them to a tenth and to
            twice the root mean square of the first D, and keeps them.

    Source: Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2, FedAdam; for
    gaze arXiv 2211.07330, Algorithm 1, lines 18-23.
    Differs: of the gaze paper's Algorithm 1, beta in line 20 is the decay, not the server's rate.
    """

    server_lr: Annotated[float, Gt(0)] = 0.01
    beta1: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Interval(ge=0, lt=1)] = 0.99
    tau: Annotated[float, Gt(0)] = 1e-3
    variant: Literal["reddi", "seed_exact", "corrected"] = "reddi"
    weights: Literal["samples", "equal"] = "equal"
    adapt: Literal["fixed", "auto"] = field(default="fixed", metadata={LATER: True})

    def moments(self, model: Params) -> AdamMoments:
        """Return the first state of a server with this model."""
        # Reddi et al. ask for v_{-1} >= tau^2; Kingma and Ba's correction of the bias needs v at 0.
        floor = self.tau**2 if self.variant == "reddi" else 0.0
        return AdamMoments(model, model * 0.0, model * 0.0 + floor)

    def second_moment(self, second: Params, update: Params) -> Params:
        """Return Adam's second moment: the decaying mean of squares."""
        # The gaze paper's Algorithm 1 prints one decay for both moments.
        beta2 = self.beta1 if self.variant == "seed_exact" else self.beta2
        return beta2 * second + (1 - beta2) * update * update

    def optimizer_step(self, s: Moments, update: Params, server_lr: float, tau: float) -> Moments:
        """Return the server's state after Adam's step along the clients' mean update."""
        assert isinstance(s, AdamMoments | AutoMoments)
        steps = s.steps + 1
        if self.variant == "corrected":
            # Both corrections in one factor of the rate, so tau is added to the uncorrected root.
            server_lr *= math.sqrt(1 - self.beta2**steps) / (1 - self.beta1**steps)
        return replace(super().optimizer_step(s, update, server_lr, tau), steps=steps)
