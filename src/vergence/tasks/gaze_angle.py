"""Gaze angles: the direction in which an eye looks, from its image and the head's pose.

Used in `adaptation`, `api`, `deployment`, `model_tools`, `studies` and `video`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Interval
from jaxtyping import Float
from torch import Tensor, nn

from vergence.console import note
from vergence.core.data import Batch, Samples, Splits, copy_of
from vergence.core.federation import Federation
from vergence.core.options import Share
from vergence.errors import ConfigError, DataError
from vergence.metrics.angles import angular_error_deg, mean_direction
from vergence.metrics.calibration import AngleCorrection
from vergence.metrics.personal_priors import (
    attach_priors,
    offsets,
    prior_of,
    whole_prior,
    with_one_prior,
)
from vergence.models.eye_changes import EyeChanges
from vergence.models.personal_eye import person_inputs
from vergence.tasks.base import PriorTask
from vergence.training.residual_kernel import evidence
from vergence.training.ridge import alone

MEAN, DEVIATION = 0.5, 0.25
"""Mean and deviation by which pixel values in [0, 1] are scaled."""
EDGES = torch.deg2rad(torch.tensor([[-12.0, -8.7, -5.4], [-6.0, 0.0, 6.0]]))
"""Inner edges of a 4 x 4 grid of pitch and yaw: near the quartiles of MPIIGaze's labels."""
CENTRE = EDGES[:, 1]
"""Mean gaze of a person of whom nothing is known."""
# The quartiles of a normal distribution are 1.349 deviations apart.
SPREAD = (EDGES[:, 2] - EDGES[:, 0]) / 1.349
"""Deviation of the gaze of a person of whom nothing is known."""
AMOUNTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Amounts of the own prior from which a person's validation data choose."""

# A little more than pi, which float32 rounds up: the yaw of a gaze straight backwards.
FARTHEST = math.pi + 0.01
"""Largest angle in radians; larger ones are degrees."""
# As above: straight up, down or aside.
SIDEWAYS = math.pi / 2 + 0.01

Angles = Float[Tensor, "samples 2"]


@dataclass(frozen=True)
class GazeAngle(PriorTask):
    """Predict (pitch, yaw) in radians from a grey eye image and the head pose.

    It reads the columns `image` uint8 `[n, 1, H, W]`, `pose` float32 `[n, 2]` and, as the label,
    `gaze` float32 `[n, 2]`, both (pitch, yaw) in radians. Data without head poses need zeros there.

    Attributes:
        criterion: the loss. `l1` and `mse` are means over both angles, in radians; `angular` is
            the mean angle between the two directions, in radians.
        hit_deg: largest error in degrees of a prediction that counts as right in the score.
        personal_prior: how far the network's angles are moved and scaled from `CENTRE` and `SPREAD`
            to a person's own mean and spread, which stay with the person: 0 not at all, 1 wholly.
            With `auto` (formerly `chosen`) the network trains without the prior, and a person's
            validation data choose one of `AMOUNTS` for each model that predicts for the person.
        augment: random changes of the crops in training, see `EyeChanges`.
        prior_in: `training`: the loss sees the moved angles; `prediction`: only predictions do.
        correction: correction of the network's angles for one person, as `vergence adapt` fits it.

    Source: Zhang et al. 2015 (MPIIGaze), whose public code uses `mse`.
    """

    criterion: Literal["l1", "mse", "angular"] = "l1"
    hit_deg: Annotated[float, Interval(gt=0, le=180)] = 5.0
    personal_prior: Share | Literal["auto", "chosen"] = 0.0
    prior_in: Literal["training", "prediction"] = "training"
    augment: EyeChanges = EyeChanges()
    correction: AngleCorrection = AngleCorrection()

    classes: ClassVar[int] = 16
    labels: ClassVar[tuple[str, ...]] = ("gaze",)
    headline: ClassVar[str] = "angle_error_deg"
    lower_is_better: ClassVar[frozenset[str]] = frozenset(
        {"angle_error_deg", "pitch_error_deg", "yaw_error_deg"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tunes_prior and self.correction:
            raise ConfigError(
                "gaze_angle: personal_prior = 'auto' is not for angles with a correction; "
                "set personal_prior to a number, or leave task.correction out"
            )

    @property
    def input_columns(self) -> tuple[str, ...]:  # type: ignore[override]
        """The columns that the network reads: image, head pose, and the eye's side if it asks."""
        return ("image", *self.side_inputs)

    @property
    def side_inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        """The columns that enter the network beside the image."""
        return ("pose", "side") if getattr(self.network, "side", False) else ("pose",)

    def forward(self, module: nn.Module, batch: Batch) -> Angles:
        """Return (pitch, yaw) in radians; `image` is uint8 [B, 1, H, W], `pose` [B, 2] radians.

        Raises:
            ConfigError: images of another type, or a network that returns another shape.
        """
        image, side_inputs = self._pixels(batch)
        if self.augment and module.training:
            image = self.augment.apply(image)
        output = module(image, *side_inputs)
        if tuple(output.shape) != (len(image), 2):
            raise ConfigError(
                f"gaze_angle: {type(module).__name__} returned {list(output.shape)} for "
                f"{len(image)} images; (pitch, yaw) per image, [{len(image)}, 2], is needed"
            )
        moved = self.with_prior(output, batch)
        return self._corrected(moved, batch) if self.correction else moved

    def with_prior(self, output: Angles, batch: Batch) -> Angles:
        """Return the network's angles, moved and scaled as `personal_prior` says.

        Raises:
            ConfigError: samples without a prior.
        """
        if not self.personal_prior:
            return output
        prior = prior_of(batch, "gaze_angle").to(output.dtype)
        centre, spread = CENTRE.to(output), SPREAD.to(output)
        # With `auto` the prior itself is scaled by the amount that validation data chose.
        amount = 1.0 if isinstance(self.personal_prior, str) else self.personal_prior
        mean = centre + amount * (prior[:, 0] - centre)
        scale = (prior[:, 1] / spread) ** amount
        return mean + scale * (output - centre)

    def _corrected(self, output: Angles, batch: Batch) -> Angles:
        if not any(self.correction.eye):
            return self.correction.apply(output, None)
        if "side" not in batch:
            raise ConfigError(
                "gaze_angle: task.correction tells the eyes apart, and these samples have no "
                "column side (0 left, 1 right); add it"
            )
        return self.correction.apply(output, batch["side"])

    def prepare(self, federation: Federation) -> Federation:
        """Add each person's prior (mean and spread of gaze) to their samples, if the task uses it.

        A run calls this once before training.
        """
        if not self.personal_prior:
            return federation

        def made(splits: Splits) -> Tensor:
            centre, spread = CENTRE.double(), SPREAD.double()
            own = offsets(splits.train.columns["gaze"], centre, spread)
            return torch.cat([part_of(own, a) for a in AMOUNTS]) if self.tunes_prior else own

        common = torch.stack([CENTRE, SPREAD])
        through = self.prior_in == "training"
        return attach_priors(federation, made, common, through)

    def prepare_for(self, samples: Samples, owner: Splits | None) -> Samples:
        """Return new samples with their owner's prior; without `owner`, with the common prior.

        Predictions by the models of a finished run call this.
        """
        if not self.personal_prior:
            return samples
        known = owner is not None
        prior = whole_prior(owner.test) if known else torch.stack([CENTRE, SPREAD])
        return with_one_prior(samples, prior)

    def inputs(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the images with pixels of mean 0 and scale 1, and the head poses.

        Raises:
            ConfigError: the task has an option (`personal_prior`, `correction` or `augment`) that
                needs the whole network.
        """
        if self.personal_prior:
            raise ConfigError(
                "gaze_angle: task.personal_prior stands behind the whole network, and a network "
                "that is cut or fed stage by stage has no place for it; leave it out (0), or use "
                "a method that trains the whole network"
            )
        if self.correction:
            raise ConfigError(
                "gaze_angle: task.correction stands behind the whole network, and a network that "
                "is cut or fed stage by stage has no place for it; leave it out"
            )
        if self.augment:
            raise ConfigError(
                "gaze_angle: task.augment changes what a whole network is trained on, and a client "
                "that computes its layers again would see other changes; leave it out, or use a "
                "method that trains the whole network"
            )
        return self._pixels(batch)

    def _pixels(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        image = batch["image"]
        if image.dtype != torch.uint8:
            raise ConfigError(f"gaze_angle: images are {image.dtype}; give uint8, 0 to 255")
        side_inputs = tuple(batch[name].float() for name in self.side_inputs)
        return (image.float() - 255 * MEAN) / (255 * DEVIATION), side_inputs

    def loss(self, output: Angles, batch: Batch) -> Float[Tensor, ""]:
        """Return the mean loss over the batch."""
        gaze = batch["gaze"].to(output.dtype)
        if self.criterion == "l1":
            return (output - gaze).abs().mean()
        if self.criterion == "mse":
            return ((output - gaze) ** 2).mean()
        return torch.deg2rad(angular_error_deg(output, gaze)).mean()

    def targets(self, batch: Batch, outputs: int) -> Tensor:
        """Return the gaze angles in radians, `[batch, 2]`."""
        return batch["gaze"]

    def class_of(self, batch: Batch) -> Tensor:
        """Return the cell of a 4 x 4 grid of gaze angles, 0 to 15."""
        edges = EDGES.to(batch["gaze"].device)
        # `bucketize` warns of columns that are not contiguous.
        pitch, yaw = (
            torch.bucketize(batch["gaze"][:, i].float().contiguous(), edges[i]) for i in (0, 1)
        )
        return 4 * pitch + yaw

    def check(self, federation: Federation) -> None:
        """Refuse angles that are not in radians, sides that are not 0 or 1, and images of 0 and 1.

        A note on stderr says if somebody looks away from the camera.

        Raises:
            DataError: a person's samples have such a number; the message names it and the person.
        """
        # People who are generated on demand are too many to look at, and have radians.
        people = {} if federation.recipe is not None else federation.people
        parts = (
            (f"{federation.name}: {person}", part)
            for person, splits in people.items()
            for part in (splits.train, splits.val, splits.test)
        )
        if away := check_angles(parts):
            note(away)

    def labelled(self, classes: Tensor, noise: Tensor | None = None) -> Batch:
        """Return the centres of the cells as gaze, or with `noise` other places in the cells."""
        edges = EDGES.to(classes.device)
        place = (
            torch.stack([classes // 4, classes % 4], 1)
            - 1
            + (0.5 if noise is None else noise[:, :2])
        )
        return {"gaze": edges[:, 0] + place * (edges[:, 1] - edges[:, 0])}

    def class_names(self) -> tuple[str, ...]:
        """Return the cells by their centres, in degrees."""
        cells = torch.rad2deg(self.labelled(torch.arange(self.classes))["gaze"]).tolist()
        return tuple(f"pitch {pitch:.2f} yaw {yaw:.2f}" for pitch, yaw in cells)

    def input_range(self) -> tuple[tuple[int, ...], float, float]:
        """Return the size of the network's crops; black and white are 2 below and above zero."""
        image = getattr(self.network, "image", None)
        if image is None:
            return super().input_range()
        return tuple(image), -MEAN / DEVIATION, (1 - MEAN) / DEVIATION

    def metrics(self, outputs: Angles, samples: Samples) -> dict[str, float]:
        """Return mean errors in degrees and the share of samples within `hit_deg`, the score.

        The share is named after its limit (`hit5`). The error is the angle between the two
        directions, never a difference of angles; differences are given apart for pitch and yaw.
        """
        predicted, gaze = outputs.double(), samples.columns["gaze"].double()
        error = angular_error_deg(predicted, gaze)
        pitch, yaw = torch.rad2deg((predicted - gaze).abs()).mean(0).tolist()
        hit = float((error <= self.hit_deg).double().mean())
        return {
            "angle_error_deg": float(error.mean()),
            f"hit{self.hit_deg:g}": hit,
            "pitch_error_deg": pitch,
            "yaw_error_deg": yaw,
            "score": hit,
        }

    def per_sample(self, outputs: Angles, samples: Samples) -> Tensor:
        """Return for every sample the error in degrees and a 1 (its weight), `[samples, 2]`."""
        error = angular_error_deg(outputs.double(), samples.columns["gaze"].double())
        return torch.stack([error, torch.ones_like(error)], 1)

    def personal_baseline(self, federation: Federation) -> tuple[str, Mapping[str, Tensor]]:
        """Return the name `personal mean` and, by person, mean training gaze per test sample."""
        return "personal mean", {
            p: mean_direction(s.train.columns["gaze"].double()).expand(len(s.test), 2)
            for p, s in federation.scored_people.items()
        }

    def priors(self, federation: Federation) -> Mapping[str, Mapping[str, dict[str, float]]]:
        """Return the metrics of baselines on everybody's test samples, by baseline and person.

        `mean gaze` is the mean direction of everybody's training samples, `personal mean` that of
        a person's own. `kernel ridge alone` learns from the person's own training samples, in
        closed form.
        """
        people = federation.people
        train = {p: s.train.columns["gaze"].double() for p, s in people.items()}
        everybody = mean_direction(torch.cat(list(train.values())))
        constants = {
            "mean gaze": dict.fromkeys(people, everybody),
            "personal mean": {p: mean_direction(gaze) for p, gaze in train.items()},
        }
        scored = federation.scored_people
        able = (p for p, s in scored.items() if self.has_kernel_inputs(s.train))
        ridge = {p: self._alone(scored[p]) for p in able}
        return ({"kernel ridge alone": ridge} if ridge else {}) | {
            name: {
                p: self.metrics(constant[p].expand(len(s.test), 2), s.test)
                for p, s in scored.items()
            }
            for name, constant in constants.items()
        }

    def has_kernel_inputs(self, samples: Samples) -> bool:
        """Return whether samples have the columns of `kernel_inputs`, which the network reads, too.

        A task of one's own may read others.
        """
        return {"image", "pose"} <= samples.columns.keys() and "pose" in self.side_inputs

    def kernel_inputs(self, samples: Samples) -> Tensor:
        """Return the `person_inputs` of samples, `[n, pixels + 3]`, float64."""
        image, (pose, *_) = self._pixels(copy_of(samples.columns))
        sides = [samples.columns["side"].float()] if "side" in samples.columns else []
        return person_inputs(image, pose, *sides).double()

    def residual_evidence(self, outputs: Angles, samples: Samples) -> Tensor:
        """Return what a person's samples say of variances; see `residual_kernel.evidence`."""
        return evidence(outputs, samples.columns["gaze"], self.kernel_inputs(samples))

    def _alone(self, splits: Splits) -> dict[str, float]:
        train, gaze = self.kernel_inputs(splits.train), splits.train.columns["gaze"]
        return self.metrics(alone(train, gaze, self.kernel_inputs(splits.test)), splits.test)


def check_angles(parts: Iterable[tuple[str, Samples]]) -> str:
    """Refuse angles that are not in radians, images of 0 and 1, and sides that are not 0 or 1.

    Args:
        parts: samples, each after the words with which an error message names them.

    Returns:
        A warning if somebody looks away from the camera, which images of eyes hardly show; else "".

    Raises:
        DataError: pitch of gaze is beyond pi/2, another angle beyond pi, a side is another, or
            images have no more than two grey levels.
    """
    away, farthest = "", SIDEWAYS
    for where, samples in parts:
        for name in ("gaze", "pose"):
            column = samples.columns.get(name)
            if column is None or not len(column):
                continue
            if (largest := float(column.abs().max())) > FARTHEST:
                raise DataError(
                    f"{where}: {name} reaches {largest:.1f}, and angles must be radians (pitch, "
                    "yaw): convert degrees with numpy.deg2rad"
                )
            if name == "pose" or column.shape[1:] != (2,):
                continue
            pitch, yaw = column.abs().amax(0).tolist()
            if pitch > SIDEWAYS:
                raise DataError(
                    f"{where}: pitch of gaze reaches {pitch:.2f}, and straight up is 1.57 radians: "
                    "give (pitch, yaw), and convert degrees with numpy.deg2rad"
                )
            if yaw > farthest:
                farthest = yaw
                away = (
                    f"{where}: yaw of gaze reaches {yaw:.2f}, and beyond 1.57 radians (90 degrees) "
                    "people look away from the camera: check that gaze is (pitch, yaw) in radians"
                )
        image = samples.columns.get("image")
        if image is not None and image.dtype == torch.uint8 and image.any() and image.max() == 1:
            raise DataError(
                f"{where}: images are 0 and 1: give 0 (black) to 255 (white), as numpy.uint8(255 * "
                "image)"
            )
        side = samples.columns.get("side")
        if side is not None and not ((side == 0) | (side == 1)).all():
            other = side[(side != 0) & (side != 1)].flatten()[0]
            raise DataError(
                f"{where}: side is {other:g}, and must be 0 for a left and 1 for a right eye; mend "
                "it, or leave the column out"
            )
    return away


def part_of(own: Float[Tensor, "folds 2 2"], amount: float) -> Float[Tensor, "folds 2 2"]:
    """Return means and deviations that lie between the common ones (amount 0) and `own` (1)."""
    mean = CENTRE + amount * (own[:, 0] - CENTRE)
    return torch.stack([mean, SPREAD * (own[:, 1] / SPREAD) ** amount], 1)
