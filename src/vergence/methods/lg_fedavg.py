"""LG-FedAvg: everybody keeps a body of their own, the head is shared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, fit
from vergence.core.identifiers import ClientId
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import AveragingMethod, Exposure, Global, Layers, Tree
from vergence.core.params import Params
from vergence.core.task import Task


@dataclass(frozen=True)
class LGFedAvg(AveragingMethod[Layers]):
    """Train body and head together; average the heads, keep the bodies: FedPer the other way round.

    Args:
        head: the shared parameters (patterns, "fc2.*"); default what the model calls its head,
            else its last layer.
        weights: clients count by their samples, or equally.

    Source: Liang et al., "Think locally, act globally: Federated learning with local and global
    representations", arXiv 2001.01523, Algorithm 1.
    Differs: starts from the task's initial model, where the authors' code starts from one that
    FedAvg trained.
    """

    head: tuple[str, ...] = ()
    weights: Literal["samples", "equal"] = "samples"

    exposure: ClassVar[Mapping[str, Exposure]] = {"train": Exposure(trees=("head",))}
    trees: ClassVar[Mapping[str, Tree]] = {
        "head": Tree("last layers (head)"),
    }

    def server(self, task: Task) -> Global:
        """Start from the head of the task's initial model."""
        return Global(task.init().only(task.parts(*self.head)[1]))

    def client(self, task: Task) -> Layers:
        """Start with the body of the task's initial model."""
        return Layers(task.init(), task.parts(*self.head)[0])

    def offer(self, s: Global, client: ClientId) -> Mapping[str, Params]:
        """Send the head."""
        return {"head": s.model}

    def on_train(
        self, c: Layers, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Layers, Reply]]:
        """Train one's own body under the received head, and keep the body."""
        fitted = yield from fit(c.params.put(msg["head"]), site.train, self.local)
        update = fitted.params.only(msg["head"]) - msg["head"]
        weight = fitted.examples if self.weights == "samples" else 1.0
        mine = Layers(fitted.params, c.personal)
        return mine, reply(head=update, weight=weight, metrics=fitted.metrics)

    def model_on(self, c: Layers, msg: Message, site: ClientContext) -> Params:
        """Predict with one's own body and the received head."""
        return c.params.put(msg["head"])
