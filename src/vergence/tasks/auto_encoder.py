"""Auto-encoder, the Cross-Encoder's baseline: it reconstructs every eye from its own codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor, nn

from vergence.core.data import Batch, Samples
from vergence.core.federation import Federation
from vergence.models.cross_encoder import roles
from vergence.tasks.base import GlanceTask
from vergence.tasks.cross_encoder import mean_eyes, pixels, reconstruction_metrics

Flat = Float[Tensor, "rows eyes values"]


@dataclass(frozen=True)
class AutoEncoder(GlanceTask):
    """Reconstruct every eye from its own codes, with the network of the Cross-Encoder.

    Attributes:
        equal: weight of the equal-feature constraint; 0: none. The constraint is the L1 distance
            between the eye codes of two glances of the same eye, and between the gaze codes of the
            two eyes of a glance. It is taken over the pairs whose codes the Cross-Encoder would
            swap. The source states no weight.

    Source: Sun et al., "Cross-Encoder for unsupervised gaze representation learning", ICCV 2021,
    baselines "auto-encoder" and "auto-encoder with EFC"; the thesis's section 4.6.5.
    """

    equal: Annotated[float, Ge(0)] = 0.0

    input_columns: ClassVar[tuple[str, ...]] = ("eyes",)
    labels: ClassVar[tuple[str, ...]] = ("eyes", "whose")
    never_sent: ClassVar[tuple[str, ...]] = ("eyes",)
    headline: ClassVar[str] = "recon_l1"
    lower_is_better: ClassVar[frozenset[str]] = frozenset({"recon_l1"})

    def forward(self, module: nn.Module, batch: Batch) -> Flat:
        """Return the reconstructed pixels, then the codes, for each eye of every row."""
        # One tensor for images and codes, as losses and metrics take a single output.
        codes = module.encode(pixels(batch))  # type: ignore[operator]
        image = module.decode(codes)  # type: ignore[operator]
        return torch.cat([image.flatten(2), codes], 2)

    def loss(self, output: Flat, batch: Batch) -> Float[Tensor, ""]:
        """Return the mean absolute error of pixels in [0, 1], and the constraint."""
        image, codes = _images_and_codes(output, batch)
        loss = (image - pixels(batch)).abs().mean()
        return loss + self.equal * self._unequal(codes, batch["whose"]) if self.equal else loss

    def _unequal(self, codes: Tensor, whose: Tensor) -> Tensor:
        dealt, gaze = roles(whose, codes.shape[1]), self.network.gaze  # type: ignore[attr-defined]
        eye, look = codes[..., :-gaze], codes[..., -gaze:]
        eye_distance = (eye - eye[dealt.giver]).abs().mean((1, 2))
        look_distance = (look - look.flip(1)).abs().mean((1, 2))
        # A batch without pairs of a kind adds 0 and not NaN.
        return sum(
            (
                torch.where(rows, values, 0).sum() / rows.sum().clamp(min=1)
                for values, rows in (
                    (eye_distance, dealt.consistent),
                    (look_distance, dealt.similar),
                )
            ),
            torch.zeros(()),
        )

    def metrics(self, outputs: Flat, samples: Samples) -> dict[str, float]:
        """Return the quality of the reconstructed eyes, as in the Cross-Encoder's task."""
        return reconstruction_metrics(_images_and_codes(outputs, dict(samples.columns))[0], samples)

    def priors(self, federation: Federation) -> Mapping[str, Mapping[str, dict[str, float]]]:
        """Return the metrics of each person's mean training image, by baseline and person."""
        return mean_eyes(federation)


def _images_and_codes(output: Flat, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the images in the shape of `eyes`, and the codes."""
    eyes = batch["eyes"]
    size = eyes[0, 0].numel()
    return output[..., :size].reshape(eyes.shape), output[..., size:]
