"""FedPer: heads are personal, bodies are averaged."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from vergence.core.method import BodyMethod, Exposure, Layers


@dataclass(frozen=True)
class FedPer(BodyMethod[Layers]):
    """Train body and head together; average the bodies, leave the heads on the clients.

    Args:
        head: the personal parameters (patterns, "fc2.*"); default: the head that the model names,
            otherwise its last layer.
        weights: clients count by their samples, or equally.

    Source: Arivazhagan et al., "Federated learning with personalization layers", arXiv 1912.00818,
    Algorithms 1 and 2.
    """

    head: tuple[str, ...] = ()
    weights: Literal["samples", "equal"] = "samples"

    exposure: ClassVar[Mapping[str, Exposure]] = {"train": Exposure(trees=("body",))}
