"""FedProx: FedAvg with a proximal term."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, fit
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import AveragingMethod, NoState


@dataclass(frozen=True)
class FedProx(AveragingMethod[NoState]):
    """Train with a pull of strength mu towards the received model, then average as FedAvg.

    Client i minimises F_i(theta) + mu / 2 ||theta - model||^2.

    Args:
        mu: strength of the pull; 0 is FedAvg.
        weights: clients count by their samples, or equally.

    Source: Li et al., "Federated optimization in heterogeneous networks", MLSys 2020, Algorithm 2.
    Differs: all clients of the cohort count by their samples (the paper samples clients by size
    and counts them equally).
    """

    mu: Annotated[float, Ge(0)] = 0.1
    weights: Literal["samples", "equal"] = "samples"

    def on_train(
        self, c: NoState, msg: Message, site: ClientContext
    ) -> Conversation[tuple[NoState, Reply]]:
        """Train near the received model."""
        anchor = (msg["model"], self.mu)
        fitted = yield from fit(msg["model"], site.train, self.local, anchor=anchor)
        return c, reply(
            model=fitted.params - msg["model"],
            weight=fitted.weight(self.weights),
            metrics=fitted.metrics,
        )
