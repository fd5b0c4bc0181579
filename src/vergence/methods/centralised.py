"""Centralised training: one model on pooled data, with which federated methods are compared."""

from dataclasses import dataclass, replace
from typing import ClassVar

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, fit
from vergence.core.local_training import OptimizerState
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import AveragingMethod
from vergence.core.tags import tagged
from vergence.core.task import Task


@tagged("DataCentre")
@dataclass(frozen=True)
class DataCentre:
    """State of the one site that has everybody's data: its optimiser's state lasts all rounds."""

    optimiser: OptimizerState


@dataclass(frozen=True)
class Centralised(AveragingMethod[DataCentre]):
    """Train one model on everybody's pooled data.

    A round has as many epochs as a client's local training. With `local.steps` it has as many
    steps as all clients take together.

    Not private and, with people who look at the same thing differently, not an upper bound
    either: the network never learns whose data it sees.

    Source: the data centre in arXiv 2211.07330; see docs/reference/methods/centralised.md.
    """

    pooled: ClassVar[bool] = True

    def client(self, task: Task) -> DataCentre:
        """Return the first state: an optimiser that has taken no step."""
        return DataCentre(OptimizerState({}, 0))

    def on_train(
        self, c: DataCentre, msg: Message, site: ClientContext
    ) -> Conversation[tuple[DataCentre, Reply]]:
        """Continue training the model on the pooled data."""
        fitted = yield from fit(msg["model"], site.train, self.local, optimiser=c.optimiser)
        update = fitted.params - msg["model"]
        return replace(c, optimiser=fitted.optimiser), reply(model=update, metrics=fitted.metrics)
