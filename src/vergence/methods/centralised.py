"""Centralised training: the data centre everybody else is compared with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from vergence.core.conversation import ClientId, Conversation, aggregate, fit
from vergence.core.fitting import OptimiserState
from vergence.core.method import Global, Method
from vergence.core.site import Site
from vergence.core.task import Task
from vergence.core.wire import Message, Reply, reply


@dataclass(frozen=True)
class DataCentre:
    """State of the one site that owns everybody's data: its optimiser goes on over rounds."""

    optimiser: OptimiserState


@dataclass(frozen=True)
class Centralised(Method[Global, DataCentre]):
    """Train one model on everybody's pooled data.

    A round is as many epochs as a client's, or as many steps as those of all clients together.

    Not private and, with people who look at the same thing differently, not an upper bound
    either: the network is never told whose data it sees.

    Source: the data centre of arXiv 2211.07330; see docs/methods/centralised.md.
    """

    pooled: ClassVar[bool] = True

    def server(self, task: Task) -> Global:
        """Start from the task's initial model."""
        return Global(task.init())

    def client(self, task: Task) -> DataCentre:
        """Start with an empty optimiser."""
        return DataCentre(OptimiserState({}, 0))

    def round(self, s: Global, cohort: Sequence[ClientId]) -> Conversation[Global]:
        """Let the one site train."""
        got = yield from aggregate("train", to=cohort)
        return Global(s.model + got.mean("model"))

    def on_train(
        self, c: DataCentre, msg: Message, site: Site
    ) -> Conversation[tuple[DataCentre, Reply]]:
        """Go on training the model on the pooled data."""
        fitted = yield from fit(msg["model"], site.train, self.local, optimiser=c.optimiser)
        update = fitted.params - msg["model"]
        return replace(c, optimiser=fitted.optimiser), reply(model=update, metrics=fitted.metrics)
