"""FedBN: everybody keeps the normalisation layers of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, aggregate, fit
from vergence.core.identifiers import ClientId
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import Exposure, Global, Layers, Method, Tree
from vergence.core.params import Params
from vergence.core.task import Task
from vergence.errors import ConfigError


@dataclass(frozen=True)
class FedBN(Method[Global, Layers]):
    """Train everything; average all but the scales and shifts of normalisation layers.

    Source: Li et al., "FedBN: Federated learning on non-IID features via local batch
    normalization", ICLR 2021, Algorithm 1.
    Differs: the networks here normalise by group or layer, so there are no running statistics to
    keep at home; the learned scales and shifts are what stays. Clients count by their samples.
    """

    weights: Literal["samples", "equal"] = "samples"

    exposure: ClassVar[Mapping[str, Exposure]] = {"train": Exposure(trees=("shared",))}
    trees: ClassVar[Mapping[str, Tree]] = {
        "shared": Tree("shared layers"),
    }

    def check(self, task: Task) -> None:
        """Refuse a network without normalisation layers: FedBN would be FedAvg.

        Raises:
            ConfigError: names the network.
        """
        if not task.norms():
            raise ConfigError(
                f"{type(task.network).__name__} has no normalisation layer, so FedBN would be "
                "FedAvg; use a model that has (resnet_preact, resnet18, glc_vit), or method fedavg"
            )

    def server(self, task: Task) -> Global:
        """Start from the task's initial model less its normalisation layers."""
        start = task.init()
        return Global(start.only(set(start) - set(task.norms())))

    def client(self, task: Task) -> Layers:
        """Start with the initial normalisation layers."""
        return Layers(task.init(), task.norms())

    def offer(self, s: Global, client: ClientId) -> Mapping[str, Params]:
        """Send all but the normalisation layers."""
        return {"shared": s.model}

    def round(self, s: Global, cohort: Sequence[ClientId]) -> Conversation[Global]:
        """Let the cohort train and add the mean update."""
        got = yield from aggregate("train", to=cohort)
        return Global(s.model + got.mean("shared"))

    def on_train(
        self, c: Layers, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Layers, Reply]]:
        """Train the received layers among one's own normalisation layers."""
        fitted = yield from fit(c.params.put(msg["shared"]), site.train, self.local)
        update = fitted.params.only(msg["shared"]) - msg["shared"]
        weight = fitted.examples if self.weights == "samples" else 1.0
        mine = Layers(fitted.params, c.personal)
        return mine, reply(shared=update, weight=weight, metrics=fitted.metrics)

    def model_on(self, c: Layers, msg: Message, site: ClientContext) -> Params:
        """Predict with the received layers and one's own normalisation."""
        return c.params.put(msg["shared"])
