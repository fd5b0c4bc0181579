"""Learning gaze without labels: reconstructing an eye with part of another picture's code.

Used by `studies.few_shot`, `studies.swaps`, `tasks.auto_encoder` and `tasks.siamese`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vergence.core.data import Batch, Samples
from vergence.core.federation import Federation
from vergence.errors import ConfigError
from vergence.models.cross_encoder import roles
from vergence.tasks.base import GlanceTask

WHITE = 255
GREY = 0.25
"""Mean distance from 0.5 of pixels spread evenly over [0, 1], as histogram equalisation makes."""

Eyes = Float[Tensor, "rows eyes 1 height width"]
PerRow = Float[Tensor, " rows"]


@dataclass(frozen=True)
class CrossEncoderTask(GlanceTask):
    """Reconstruct every eye with the eye code of another moment, or the other eye's gaze code.

    Rows with the same `whose` show the same eyes; `eyes` are uint8 `[rows, eyes, 1, H, W]`, not
    mirrored. No label is used. `models.cross_encoder.roles` determines which rows swap codes.

    Source: Sun, Zeng, Shan, Chen, "Cross-Encoder for unsupervised gaze representation learning",
    ICCV 2021; eyeimages design note, section 2.
    """

    input_columns: ClassVar[tuple[str, ...]] = ("eyes", "whose")
    labels: ClassVar[tuple[str, ...]] = ("eyes", "whose")
    side_inputs: ClassVar[tuple[str, ...]] = ("whose",)
    public: ClassVar[tuple[str, ...]] = ("whose",)
    # The pictures are their own labels: a method that sends labels would send the pictures.
    never_sent: ClassVar[tuple[str, ...]] = ("eyes",)
    headline: ClassVar[str] = "recon_l1"
    lower_is_better: ClassVar[frozenset[str]] = frozenset({"recon_l1"})

    def inputs(self, batch: Batch) -> tuple[Tensor, tuple[Tensor]]:
        """Return eyes in [0, 1], and the numbers of their owners."""
        return pixels(batch), (batch["whose"].float(),)

    def forward(self, module: nn.Module, batch: Batch) -> Eyes:
        """Return the eyes reconstructed from swapped codes, in the shape of `eyes`."""
        eyes, side_inputs = self.inputs(batch)
        return module(eyes, *side_inputs)

    def loss(self, output: Eyes, batch: Batch) -> Float[Tensor, ""]:
        """Return the sum of reconstruction and residual terms, for pixels in [0, 1].

        With e = output - image, and |.| the mean of absolute values over pixels and rows, the terms
        are: |e| of left and of right eyes, each for the eye-consistent and for the gaze-similar
        rows (four terms); |e_a - e_b| of eye-consistent pairs (a, b), for left and for right eyes;
        |e_left - e_right| of gaze-similar rows. e_a - e_b is the error of the difference of two
        images. A term without rows is 0.
        """
        eyes = output.shape[1]
        dealt = roles(batch["whose"], eyes)
        e = output - pixels(batch)
        whole, across = _size(e), _size(e - e[dealt.giver])
        total = eyes * (_mean(whole + across, dealt.consistent) + _mean(whole, dealt.similar))
        # The mean of the original's two terms of weight 0.5, one for each frame of a pair.
        if eyes > 1:
            total = total + _mean(_size(e - e.flip(1)), dealt.similar)
        return total

    def metrics(self, outputs: Eyes, samples: Samples) -> dict[str, float]:
        """Return the quality of the reconstructed eyes; pairs are those of the rows in order."""
        return reconstruction_metrics(outputs, samples)

    def priors(self, federation: Federation) -> Mapping[str, Mapping[str, dict[str, float]]]:
        """Return the metrics of each person's mean training image, by baseline and person."""
        return mean_eyes(federation)


def pixels(batch: Batch) -> Eyes:
    """Return the eyes of a batch, uint8, with pixels in [0, 1].

    Raises:
        ConfigError: images of another type or shape.
    """
    eyes = batch["eyes"]
    if eyes.dtype != torch.uint8 or eyes.ndim != 5:
        raise ConfigError(
            f"eyes are {eyes.dtype} {list(eyes.shape)}; give uint8 [rows, eyes, 1, height, width]"
        )
    return eyes.float() / WHITE


def _size(error: Eyes) -> PerRow:
    return error.abs().flatten(1).mean(1)


def _mean(values: PerRow, rows: Tensor) -> Float[Tensor, ""]:
    """Return the mean over the chosen rows, 0 where there are none."""
    return torch.where(rows, values, 0).sum() / rows.sum().clamp(min=1)


def reconstruction_metrics(outputs: Eyes, samples: Samples) -> dict[str, float]:
    """Return the mean absolute error of pixels in [0, 1], and the score made of it.

    The score is 1 - error / 0.25, not below 0: constant grey has an error of 0.25 on an equalised
    patch. It measures how well eyes are reconstructed, not how well codes predict gaze.
    """
    error = float((outputs.double() - pixels(dict(samples.columns)).double()).abs().mean())
    return {"recon_l1": error, "score": max(0.0, 1 - error / GREY)}


def mean_eyes(federation: Federation) -> dict[str, dict[str, dict[str, float]]]:
    """Return the metrics of each person's mean training image, as the baseline `mean image`."""
    people = federation.scored_people
    means = {p: pixels(dict(s.train.columns)).mean(0, keepdim=True) for p, s in people.items()}
    return {
        "mean image": {
            p: reconstruction_metrics(means[p].expand(len(s.test), -1, -1, -1, -1), s.test)
            for p, s in people.items()
        }
    }
