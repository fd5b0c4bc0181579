"""Zero-shot task on gaze zones, some of which no client has samples of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vergence.core.classification import Scores
from vergence.core.data import Samples
from vergence.core.federation import Federation
from vergence.data.eye_images import gaze_zones
from vergence.metrics.angles import angular_error_deg
from vergence.tasks.zero_shot import ZeroShot

PLACES = torch.deg2rad(torch.tensor(gaze_zones.PLACES))
"""Centres of the zones, (pitch, yaw) in radians."""


@dataclass(frozen=True)
class GazeZonesTask(ZeroShot):
    """The task `zero_shot` on the zones of data `gaze_zones`, also scored in degrees.

    The error of a predicted zone is the angle between its centre and the true gaze, the column
    `gaze` float32 `[n, 2]`, (pitch, yaw) in radians.
    """

    names: tuple[str, ...] | str = gaze_zones.NAMES
    unseen: tuple[str | int, ...] = gaze_zones.UNSEEN

    scored_columns: ClassVar[tuple[str, ...]] = ("gaze",)
    lower_is_better: ClassVar[frozenset[str]] = frozenset({"unseen_error_deg", "seen_error_deg"})

    def metrics(self, outputs: Scores, samples: Samples) -> dict[str, float]:
        """Return the scores of `zero_shot`, and mean errors in unseen and in seen zones."""
        errors = angular_error_deg(PLACES[outputs.argmax(1)], samples.columns["gaze"])
        return {**super().metrics(outputs, samples), **self.errors(errors, samples)}

    def errors(self, errors: Float[Tensor, " n"], samples: Samples) -> dict[str, float]:
        """Return the mean of errors `[n]` in unseen and in seen zones, if there are samples."""
        # By where people looked, not by the prediction: an error belongs to the true zone.
        hidden = torch.isin(samples.columns["y"], torch.tensor(self.unseen_classes))
        parts = {"unseen_error_deg": errors[hidden], "seen_error_deg": errors[~hidden]}
        return {name: float(part.mean()) for name, part in parts.items() if len(part)}

    def priors(self, federation: Federation) -> Mapping[str, Mapping[str, dict[str, float]]]:
        """Return the metrics of the most frequent zone and of a random zone, as in `zero_shot`."""
        priors = super().priors(federation)
        chance = {
            person: {**scores, **self.errors(_any(splits.test), splits.test)}
            for (person, scores), splits in zip(
                priors["chance"].items(), federation.scored_people.values(), strict=True
            )
        }
        return {**priors, "chance": chance}


def _any(samples: Samples) -> Float[Tensor, " n"]:
    gaze = samples.columns["gaze"]
    return torch.stack([angular_error_deg(at.expand_as(gaze), gaze) for at in PLACES]).mean(0)
