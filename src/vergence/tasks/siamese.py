"""SimCLR and BYOL on eye images, which learn that two views show one picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Gt
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from vergence.core.data import Batch, Samples
from vergence.core.naming import registry_name
from vergence.errors import ConfigError
from vergence.metrics.intervals import SHARE, Bounds
from vergence.tasks.base import GlanceTask
from vergence.tasks.cross_encoder import pixels

Views = Float[Tensor, "rows eyes 4 out"]


@dataclass(frozen=True)
class SiameseTask(GlanceTask):
    """Recognise a picture in another view of it, without labels.

    Attributes:
        objective: `simclr` tells a picture's other view from the views of all other pictures of the
            batch (NT-Xent). `byol` predicts the target network's output for the other view, without
            a comparison with other pictures; its model needs `target = true`.
        temperature: temperature of the softmax of `simclr`.

    Source: Chen et al., ICML 2020 (SimCLR), equation 1; Grill et al., NeurIPS 2020 (BYOL),
    equation 2, symmetric.
    """

    objective: Literal["simclr", "byol"] = "simclr"
    temperature: Annotated[float, Gt(0)] = 0.2

    input_columns: ClassVar[tuple[str, ...]] = ("eyes",)
    headline: ClassVar[str] = "match"
    bounds: ClassVar[Mapping[str, Bounds]] = {"match": SHARE}

    def __post_init__(self) -> None:
        super().__post_init__()
        # Only model `siamese` has this option: it tells that model from all others.
        has = getattr(self.network, "target", None)
        if has is None:
            name = registry_name(self.network)
            raise ConfigError(f"task siamese needs model siamese, got '{name}'")
        if has != (self.objective == "byol"):
            raise ConfigError(
                f"task siamese: objective '{self.objective}' needs model siamese with target = "
                f"{str(self.objective == 'byol').lower()}; got {str(has).lower()}"
            )

    def forward(self, module: nn.Module, batch: Batch) -> Views:
        """Return queries of two views of every eye, and keys of both."""
        return module(pixels(batch))

    def loss(self, output: Views, batch: Batch) -> Float[Tensor, ""]:
        """Return the mean loss over pictures and both directions."""
        one, other, key_one, key_other = functional.normalize(output, dim=3).flatten(0, 1).unbind(1)
        # BYOL's target gets no gradient: it follows the network in `SiameseNet.follow`.
        if self.objective == "byol":
            same = (one * key_other.detach()).sum(1) + (other * key_one.detach()).sum(1)
            return (2 - same).mean()
        views = torch.cat([one, other])
        alike = views @ views.T / self.temperature
        # A view is not a candidate for itself.
        own = torch.eye(len(views), dtype=torch.bool, device=views.device)
        partner = torch.arange(len(views), device=views.device).roll(len(one))
        return functional.cross_entropy(alike.masked_fill(own, -torch.inf), partner)

    def metrics(self, outputs: Views, samples: Samples) -> dict[str, float]:
        """Return the share of pictures whose first view is nearest to their own second view.

        Views of all pictures of these samples are compared, by the cosine of query and key. The
        share is also the score.
        """
        query, _, _, key = functional.normalize(outputs.float(), dim=3).flatten(0, 1).unbind(1)
        alike = query @ key.T
        own = alike.diagonal().clone()
        alike.fill_diagonal_(-torch.inf)
        # Strictly nearer: a network that gives everything one code recognises nothing.
        match = float((own > alike.max(1).values).double().mean())
        return {"match": match, "score": match}
