"""A method of one's own: average the clients' updates, and take a share of the step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from vergence import (
    ClientContext,
    ClientId,
    Conversation,
    Exposure,
    Global,
    Message,
    Method,
    NoState,
    Params,
    Reply,
    Share,
    Task,
    aggregate,
    fit,
    reply,
)


@dataclass(frozen=True)
class MyMethod(Method[Global, NoState]):
    """FedAvg whose server takes a share of every mean update.

    model <- model + share * mean(trained - model)

    Args:
        share: of the mean update; 1 is FedAvg.

    Source: a template (2026).
    """

    share: Share = 0.5

    exposure: ClassVar[Mapping[str, Exposure]] = {"train": Exposure(trees=("model",))}

    def server(self, task: Task) -> Global:
        """The task's initial model."""
        return Global(task.init())

    def client(self, task: Task) -> NoState:
        """Nothing: a client keeps no state between rounds."""
        return NoState()

    def offer(self, s: Global, client: ClientId) -> Mapping[str, Params]:
        """Message for a client: the model."""
        return {"model": s.model}

    def round(self, s: Global, cohort: Sequence[ClientId]) -> Conversation[Global]:
        """One round: the cohort trains, the server moves towards the mean."""
        got = yield from aggregate("train", to=cohort)  # calls on_train at every client
        return Global(s.model + self.share * got.mean("model"))

    def on_train(
        self, c: NoState, msg: Message, site: ClientContext
    ) -> Conversation[tuple[NoState, Reply]]:
        """A client's turn: train from the model it was sent, and reply with the update."""
        model = msg["model"]
        fitted = yield from fit(model, site.train, self.local)
        sent = reply(model=fitted.params - model, weight=fitted.examples, metrics=fitted.metrics)
        return c, sent
