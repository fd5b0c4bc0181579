"""Ditto: a common model, and a personal one with a proximal term towards the common one."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, fit
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import AveragingMethod
from vergence.core.params import Params
from vergence.core.tags import tagged
from vergence.core.task import Task


@tagged("Own")
@dataclass(frozen=True)
class DittoState:
    """A client's own model, which never leaves the client; None before the client first trains."""

    params: Params | None


@dataclass(frozen=True)
class Ditto(AveragingMethod[DittoState]):
    """Train the common model as FedAvg, and a personal model that is pulled towards it.

    The personal model v_i minimises F_i(v) + mu / 2 ||v - model||^2.

    Args:
        mu: strength of the pull (lambda in the paper); 0 trains the personal model by itself.
        weights: clients count by their samples, or equally, in the common model.

    Source: Li et al., "Ditto: Fair and robust federated learning through personalization",
    ICML 2021, Algorithm 1.
    """

    mu: Annotated[float, Ge(0)] = 0.1
    weights: Literal["samples", "equal"] = "samples"

    def client(self, task: Task) -> DittoState:
        """Return the state of a new client: no personal model yet."""
        return DittoState(None)

    def on_train(
        self, c: DittoState, msg: Message, site: ClientContext
    ) -> Conversation[tuple[DittoState, Reply]]:
        """Train the received model to send it back, and the personal one near the received one."""
        model = msg["model"]
        common = yield from fit(model, site.train, self.local)
        # A client in its first turn starts its personal model from the common one.
        start = model if c.params is None else c.params
        own = yield from fit(start, site.train, self.local, anchor=(model, self.mu))
        update = common.params - model
        return DittoState(own.params), reply(
            model=update, weight=common.weight(self.weights), metrics=common.metrics
        )

    def model_on(self, c: DittoState, msg: Message, site: ClientContext) -> Params:
        """Return the personal model; before the client first trains, the received model."""
        return msg["model"] if c.params is None else c.params
