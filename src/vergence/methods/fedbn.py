"""FedBN: everybody keeps the normalisation layers of their own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, compute, fit
from vergence.core.identifiers import ClientId
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import AveragingMethod, Exposure, Global, Layers, Tree
from vergence.core.params import Params
from vergence.core.task import Task
from vergence.errors import ConfigError


@dataclass(frozen=True)
class FedBN(AveragingMethod[Layers]):
    """Train everything; average all but normalisation layers, or their running statistics.

    A network that normalises by group or layer, or by fixed statistics, has no running ones.
    Somebody who never took part predicts with statistics of their own training samples, counted in
    one pass without labels; without samples, with those that the network starts with.

    Args:
        weights: clients count by their samples, or equally.
        at_home: `layers`: scales, shifts and statistics stay home; `statistics`: these alone
            (SiloBN).

    Source: Li et al., "FedBN: Federated learning on non-IID features via local batch
    normalization", ICLR 2021, Algorithm 1; "statistics": Andreux et al., "Siloed Federated Learning
    for Multi-Centric Histopathology Datasets", 2020, section 3.
    Differs: clients count by their samples.
    """

    weights: Literal["samples", "equal"] = "samples"
    at_home: Literal["layers", "statistics"] = "layers"

    keeps_statistics: ClassVar[bool] = True
    exposure: ClassVar[Mapping[str, Exposure]] = {"train": Exposure(trees=("shared",))}
    trees: ClassVar[Mapping[str, Tree]] = {
        "shared": Tree("shared layers"),
    }

    def kept(self, task: Task) -> tuple[str, ...]:
        """Names of the parameters that stay with the clients."""
        return task.norms() if self.at_home == "layers" else task.statistics()

    def check(self, task: Task) -> None:
        """Refuse a network of which nothing would stay at home: FedBN would be FedAvg.

        Raises:
            ConfigError: names the network.
        """
        if self.at_home == "statistics" and not task.statistics():
            raise ConfigError(
                f"{type(task.network).__name__} has no running statistics, which at_home = "
                "'statistics' leaves at home; give it BatchNorm layers by "
                "vergence.personalize_batch_norm, or use at_home = 'layers' or method fedavg"
            )
        if not task.norms():
            raise ConfigError(
                f"{type(task.network).__name__} has no normalisation layer, so FedBN would be "
                "FedAvg; use a model that has (resnet_preact, resnet18, glc_vit), or method fedavg"
            )

    def server(self, task: Task) -> Global:
        """Start from the task's initial model less what stays with the clients."""
        start = task.init()
        return Global(start.only(set(start) - set(self.kept(task))))

    def client(self, task: Task) -> Layers:
        """Start with the initial model, of which these parameters are used."""
        return Layers(task.init(), self.kept(task))

    def offer(self, s: Global, client: ClientId) -> Mapping[str, Params]:
        """Send all but what stays with the clients."""
        return {"shared": s.model}

    def on_train(
        self, c: Layers, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Layers, Reply]]:
        """Train the received parameters beside one's own."""
        fitted = yield from fit(c.params.put(msg["shared"]), site.train, self.local)
        update = fitted.params.only(msg["shared"]) - msg["shared"]
        weight = fitted.examples if self.weights == "samples" else 1.0
        mine = Layers(fitted.params, c.personal)
        return mine, reply(shared=update, weight=weight, metrics=fitted.metrics)

    def model_on(
        self, c: Layers, msg: Message, site: ClientContext
    ) -> Params | Conversation[Params]:
        """Predict with the received parameters beside one's own."""
        model = c.params.put(msg["shared"])
        if site.task.statistics() and torch.equal(c.params.flat, site.task.init().flat):
            return compute(model, site.train, "statistics")  # of somebody who has never trained
        return model
