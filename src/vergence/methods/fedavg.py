"""FedAvg: one model for everybody."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, aggregate, fit
from vergence.core.identifiers import ClientId
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import Global, Method, NoState
from vergence.core.task import Task


@dataclass(frozen=True)
class FedAvg(Method[Global, NoState]):
    """Average the clients' updates.

    model <- model + sum_i (n_i / sum_j n_j) (local_i - model), over the cohort.

    Args:
        weights: clients count by their samples, or equally.

    Source: McMahan et al., "Communication-efficient learning of deep networks from decentralized
    data", AISTATS 2017, Algorithm 1.
    """

    weights: Literal["samples", "equal"] = "samples"

    def server(self, task: Task) -> Global:
        """Start from the task's initial model."""
        return Global(task.init())

    def client(self, task: Task) -> NoState:
        """Keep nothing between rounds."""
        return NoState()

    def round(self, s: Global, cohort: Sequence[ClientId]) -> Conversation[Global]:
        """Let the cohort train and add the mean update."""
        got = yield from aggregate("train", to=cohort)
        return Global(s.model + got.mean("model"))

    def on_train(
        self, c: NoState, msg: Message, site: ClientContext
    ) -> Conversation[tuple[NoState, Reply]]:
        """Train from the received model."""
        fitted = yield from fit(msg["model"], site.train, self.local)
        weight = fitted.examples if self.weights == "samples" else 1.0
        return c, reply(model=fitted.params - msg["model"], weight=weight, metrics=fitted.metrics)
