"""LG-FedAvg: everybody keeps a body of their own, the head is shared."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from vergence.core.method import AveragedLayers, Exposure
from vergence.core.task import Task


@dataclass(frozen=True)
class LGFedAvg(AveragedLayers):
    """Train body and head together; average the heads, keep the bodies: FedPer the other way round.

    Args:
        head: the shared parameters (patterns, "fc2.*"); default what the model calls its head.
        weights: clients count by their samples, or equally.

    Source: Liang et al., "Think locally, act globally: Federated learning with local and global
    representations", arXiv 2001.01523, Algorithm 1.
    Differs: starts from the task's initial model, where the authors' code starts from one that
    FedAvg trained.
    """

    head: tuple[str, ...] = ()
    weights: Literal["samples", "equal"] = "samples"

    tree: ClassVar[str] = "head"
    exposure: ClassVar[Mapping[str, Exposure]] = {"train": Exposure(trees=("head",))}

    def layers(self, task: Task) -> tuple[Collection[str], tuple[str, ...]]:
        """The head, and the body."""
        body, head = task.parts(*self.head)
        return head, body
