"""FedPer: everybody keeps a head of their own."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from vergence.core.method import AveragedLayers, Exposure
from vergence.core.task import Task


@dataclass(frozen=True)
class FedPer(AveragedLayers):
    """Train body and head together; average the bodies, keep the heads.

    Args:
        head: the personal parameters (patterns, "fc2.*"); default what the model calls its head.
        weights: clients count by their samples, or equally.

    Source: Arivazhagan et al., "Federated learning with personalization layers", arXiv 1912.00818,
    Algorithms 1 and 2.
    """

    head: tuple[str, ...] = ()
    weights: Literal["samples", "equal"] = "samples"

    tree: ClassVar[str] = "body"
    exposure: ClassVar[Mapping[str, Exposure]] = {"train": Exposure(trees=("body",))}

    def layers(self, task: Task) -> tuple[Collection[str], tuple[str, ...]]:
        """The body, and the head."""
        return task.parts(*self.head)
