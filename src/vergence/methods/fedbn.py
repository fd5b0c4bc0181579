"""FedBN: everybody keeps the normalisation layers of their own."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from vergence.core.method import AveragedLayers, Exposure
from vergence.core.task import Task
from vergence.errors import ConfigError


@dataclass(frozen=True)
class FedBN(AveragedLayers):
    """Train everything; average all but the scales and shifts of normalisation layers.

    Source: Li et al., "FedBN: Federated learning on non-IID features via local batch
    normalization", ICLR 2021, Algorithm 1.
    Differs: the networks here normalise by group or layer, so there are no running statistics to
    keep at home; the learned scales and shifts are what stays. Clients count by their samples.
    """

    weights: Literal["samples", "equal"] = "samples"

    tree: ClassVar[str] = "shared"
    exposure: ClassVar[Mapping[str, Exposure]] = {"train": Exposure(trees=("shared",))}

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

    def layers(self, task: Task) -> tuple[Collection[str], tuple[str, ...]]:
        """All others, and the normalisation layers."""
        return set(task.init()) - set(task.norms()), task.norms()
