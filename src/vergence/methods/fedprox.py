"""FedProx: FedAvg with a leash."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from vergence.core.conversation import ClientId, Conversation, aggregate, fit
from vergence.core.method import Global, Method, Nothing
from vergence.core.site import Site
from vergence.core.task import Task
from vergence.core.wire import Message, Reply, reply


@dataclass(frozen=True)
class FedProx(Method[Global, Nothing]):
    """Train with a pull of strength mu towards the received model, then average as FedAvg.

    Client i minimises F_i(theta) + mu / 2 ||theta - model||^2.

    Source: Li et al., "Federated optimization in heterogeneous networks", MLSys 2020, Algorithm 2.
    Differs: all clients of the cohort count by their samples (the paper samples clients by size
    and counts them equally).
    """

    mu: Annotated[float, Ge(0)] = 0.1
    weights: Literal["samples", "equal"] = "samples"

    def server(self, task: Task) -> Global:
        """Start from the task's initial model."""
        return Global(task.init())

    def client(self, task: Task) -> Nothing:
        """Keep nothing between rounds."""
        return Nothing()

    def round(self, s: Global, cohort: Sequence[ClientId]) -> Conversation[Global]:
        """Let the cohort train and add the mean update."""
        got = yield from aggregate("train", to=cohort)
        return Global(s.model + got.mean("model"))

    def on_train(self, c: Nothing, msg: Message, site: Site) -> Conversation[tuple[Nothing, Reply]]:
        """Train near the received model."""
        anchor = (msg["model"], self.mu)
        fitted = yield from fit(msg["model"], site.train, self.local, anchor=anchor)
        weight = fitted.examples if self.weights == "samples" else 1.0
        return c, reply(model=fitted.params - msg["model"], weight=weight, metrics=fitted.metrics)
