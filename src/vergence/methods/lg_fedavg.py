"""LG-FedAvg: bodies are personal, heads are averaged."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from vergence.core.method import Exposure, Layers, LayersMethod, Tree
from vergence.core.task import Task


@dataclass(frozen=True)
class LGFedAvg(LayersMethod[Layers]):
    """Train body and head together; average the heads, not the bodies: the reverse of FedPer.

    Args:
        head: the shared parameters (patterns, "fc2.*"); default: the head that the model names,
            otherwise its last layer.
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

    def personal_layers(self, task: Task) -> tuple[str, ...]:
        """Return the names of the body's parameters."""
        return task.parts(*self.head)[0]
