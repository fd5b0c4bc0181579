"""FedBN: normalisation layers are personal, all other layers are averaged."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, compute
from vergence.core.messages import Message
from vergence.core.method import Exposure, Layers, LayersMethod, Tree
from vergence.core.params import Params
from vergence.core.task import Task
from vergence.errors import ConfigError


@dataclass(frozen=True)
class FedBN(LayersMethod[Layers]):
    """Train everything; average all but normalisation layers, or all but their running statistics.

    A network that normalises by group or layer, or by fixed statistics, has no running statistics.
    An unseen client predicts with statistics of its own training samples, counted in one pass
    without labels; without samples, with those that the network starts with.

    Args:
        weights: clients count by their samples, or equally.
        at_home: `layers`: scales, shifts and statistics stay on the client; `statistics`: only the
            statistics do (SiloBN).

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

    def personal_layers(self, task: Task) -> tuple[str, ...]:
        """Return the names of the parameters that stay with the clients."""
        return task.norms() if self.at_home == "layers" else task.statistics()

    def check(self, task: Task) -> None:
        """Refuse a network of which nothing would stay on the client: FedBN would be FedAvg.

        Raises:
            ConfigError: nothing would stay on the client; the message names the network.
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

    def model_on(
        self, c: Layers, msg: Message, site: ClientContext
    ) -> Params | Conversation[Params]:
        """Return the received shared layers and the client's own normalisation layers.

        A client that never trained gets the statistics of its own training samples.
        """
        model = c.params.put(msg["shared"])
        # Parameters that equal the initial ones are those of a client that never trained.
        if site.task.statistics() and torch.equal(c.params.flat, site.task.init().flat):
            return compute(model, site.train, "statistics")
        return model
