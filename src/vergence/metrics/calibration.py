"""Correction of predicted gaze angles for one person, from a few samples with known gaze.

Used by `adaptation.adapted_run`, `adaptation.fine_tuning`, `adaptation.other_people`,
`studies.calibration` and `tasks.gaze_angle`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge
from jaxtyping import Float, Int
from numpy.random import Generator
from torch import Tensor

from vergence.core.options import NamedOptions
from vergence.errors import ConfigError
from vergence.metrics.angles import angular_error_deg

Eyes = Literal["together", "apart", "each"]
COUNTS = (0, 1, 5, 9, 20, 50, 100)
"""Calibration samples of the usual curve."""


@dataclass(frozen=True)
class Correction:
    """Correction of angles q to q + offset + (q - centre) slope.

    Shapes are `[*, 2]` for centre and offset, `[*, 2, 2]` for the slope. `eye` `[2]`, where there
    is one, is added for right eyes (side 1) and subtracted for left ones.
    """

    centre: Tensor
    offset: Tensor
    slope: Tensor
    eye: Tensor | None = None

    def __call__(
        self, predicted: Float[Tensor, "*batch n 2"], side: Int[Tensor, " n"] | None = None
    ) -> Float[Tensor, "*batch n 2"]:
        """Return corrected angles (pitch, yaw) in radians."""
        apart = predicted - self.centre.unsqueeze(-2)
        found = predicted + self.offset.unsqueeze(-2) + apart @ self.slope
        return found if self.eye is None or side is None else found + _sign(side, found) * self.eye


@dataclass(frozen=True)
class AngleCorrection(NamedOptions, label="correction"):
    """A `Correction` as settings of an experiment, in radians (pitch, yaw); zeros change nothing.

    Attributes:
        centre: prediction that the slope leaves alone.
        offset: added to every prediction.
        slope: 2 x 2 matrix, row by row; (prediction - centre) times it is added.
        eye: added for right eyes, subtracted for left ones; needs a column `side`.
    """

    centre: tuple[float, float] = (0.0, 0.0)
    offset: tuple[float, float] = (0.0, 0.0)
    slope: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    eye: tuple[float, float] = (0.0, 0.0)

    def __bool__(self) -> bool:
        return any((*self.offset, *self.slope, *self.eye))

    @classmethod
    def of(cls, correction: Correction) -> AngleCorrection:
        """Return one person's correction, whose centre and offset are `[2]`, as settings."""
        eye = torch.zeros(2) if correction.eye is None else correction.eye
        parts = (correction.centre, correction.offset, correction.slope.flatten(), eye)
        return cls(*(tuple(part.tolist()) for part in parts))

    def apply(
        self, predicted: Float[Tensor, "n 2"], side: Int[Tensor, " n"] | None
    ) -> Float[Tensor, "n 2"]:
        """Return corrected angles (pitch, yaw) in radians."""
        centre, offset, eye = map(predicted.new_tensor, (self.centre, self.offset, self.eye))
        slope = predicted.new_tensor(self.slope).view(2, 2)
        return Correction(centre, offset, slope, eye)(predicted, side)


@dataclass(frozen=True)
class Calibration(NamedOptions):
    """Fit a correction of (pitch, yaw) by penalised least squares.

    With residuals r = true - predicted of k samples and x = predicted - their mean, the offset is
    sum(r) / (k + offset_prior) and the slope minimises sum |r - mean(r) - x slope|^2 +
    (slope_prior + ridge k) |slope|^2, so that it shrinks towards no change.

    Attributes:
        offset_prior: that many samples without error are added: shrinkage for small k.
        slope_prior: ridge penalty, radians squared; infinite: an offset alone.
        ridge: ridge penalty per sample, radians squared.

    Source: eyeimages design note, 0.8 and 1.6.
    """

    offset_prior: Annotated[float, Ge(0)] = 0.0
    slope_prior: Annotated[float, Ge(0)] = math.inf
    ridge: Annotated[float, Ge(0)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slope_prior + self.ridge == 0:
            raise ConfigError(
                "calibration: slope_prior or ridge must be above 0, or two samples fix no slope"
            )

    def fit(
        self,
        predicted: Float[Tensor, "*batch k 2"],
        true: Float[Tensor, "*batch k 2"],
        weight: Float[Tensor, "*batch k"] | None = None,
    ) -> Correction:
        """Return the correction fitted to k samples; without samples it changes nothing.

        A weight of 0 leaves a sample out.
        """
        w = torch.ones_like(predicted[..., 0]) if weight is None else weight
        count = w.sum(-1, keepdim=True)
        # Without samples these are sums of nothing divided by 1: no correction, and no NaN.
        among = w.unsqueeze(-1) / count.clamp(min=1).unsqueeze(-1)
        residual = true - predicted
        centre, mean = (among * predicted).sum(-2), (among * residual).sum(-2)
        offset = mean * count / (count + self.offset_prior).clamp(min=1)
        if math.isinf(self.slope_prior):
            return Correction(centre, offset, torch.zeros(*mean.shape, 2, dtype=mean.dtype))
        x = (predicted - centre.unsqueeze(-2)) * w.unsqueeze(-1)
        # Above 0 (see `__post_init__`), so that even one sample gives a matrix with an inverse.
        penalty = (self.slope_prior + self.ridge * count.clamp(min=1)).unsqueeze(-1)
        gram = x.mT @ x + penalty * torch.eye(2, dtype=x.dtype)
        slope = torch.linalg.solve(gram, x.mT @ (residual - mean.unsqueeze(-2)))
        return Correction(centre, offset, slope)


@dataclass(frozen=True)
class FittedCalibration:
    """Correction of (pitch, yaw) whose priors are the spread of other people's own corrections.

    A residual true - predicted is X w + noise, for each angle apart; X has a one (the offset), +1
    for right and -1 for left eyes, and predicted - centre (slopes). With k samples w is the mean of
    its posterior under a normal prior of mean 0: (X'X / noise + 1 / spread)^-1 X'r / noise. So
    nothing is changed without samples, and the more other people differ in a coefficient, the
    faster it is learned.

    Attributes:
        centre: mean prediction for the other people, `[2]` (pitch, yaw) in radians.
        noise: variance of residuals around a person's own correction, `[2]`, radians squared.
        spread: mean square of a coefficient over people, `[4, 2]`: offset, eye, and slopes of both
            angles; a coefficient with spread 0 is never fitted.

    Source: empirical Bayes by moments, Efron & Morris 1973, J. Am. Stat. Assoc. 68(341), 117-130.
    """

    centre: Tensor
    noise: Tensor
    spread: Tensor

    @classmethod
    def of(cls, others: Sequence[Labelled], *terms: Literal["eye", "slopes"]) -> FittedCalibration:
        """Fit the priors to other people's samples, each person's with the offset and these terms.

        Args:
            others: of each person predictions and true angles `[n, 2]`, and sides `[n]`.
            terms: the coefficients that are fitted in addition to the offset.

        Raises:
            ConfigError: fewer than two people, who cannot show how people differ.
        """
        if len(others) < 2:
            raise ConfigError(
                f"calibration: priors are fitted to two other people or more; got {len(others)}"
            )
        # A mean of means: everybody counts once, however many samples they have.
        centre = torch.stack([predicted.mean(0) for predicted, _, _ in others]).mean(0)
        used = [0, *([1] if "eye" in terms else []), *([2, 3] if "slopes" in terms else [])]
        squares, noises = [], []
        for predicted, true, side in others:
            x, residual = _design(predicted - centre, side)[:, used], true - predicted
            # Samples of one eye alone do not separate its coefficient from the offset: no inverse.
            inverse = torch.linalg.pinv(x.mT @ x)
            own = inverse @ x.mT @ residual
            noise = ((residual - x @ own) ** 2).sum(0) / max(len(x) - len(used), 1)
            # What sampling adds to the square of a coefficient is no difference between people.
            squares.append(own**2 - inverse.diagonal()[:, None] * noise)
            noises.append(noise)
        # A variance that is a difference may come out below 0.
        spread = centre.new_zeros(4, 2)
        spread[used] = torch.stack(squares).mean(0).clamp(min=0)
        return cls(centre, torch.stack(noises).mean(0), spread)

    def fit(
        self,
        predicted: Float[Tensor, "k 2"],
        true: Float[Tensor, "k 2"],
        side: Int[Tensor, " k"] | None = None,
    ) -> Correction:
        """Return the correction fitted to k samples; without samples it changes nothing.

        If `side` is None, left and right eyes are corrected alike.
        """
        x, residual = _design(predicted - self.centre, side), true - predicted
        found = []
        for angle in range(2):
            # In units of the prior's deviation a spread of 0 needs no division, and fits 0.
            scale = self.spread[:, angle].sqrt()
            scaled = x * scale
            gram = scaled.mT @ scaled + self.noise[angle] * torch.eye(4, dtype=x.dtype)
            found.append(scale * torch.linalg.solve(gram, scaled.mT @ residual[:, angle]))
        offset, eye, *slope = torch.stack(found, 1)
        return Correction(self.centre, offset, torch.stack(slope), eye)


Labelled = tuple[Float[Tensor, "n 2"], Float[Tensor, "n 2"], Int[Tensor, " n"] | None]
"""A person's predictions, true angles, and sides (0 left, 1 right) where they are known."""


def _design(offsets: Float[Tensor, "n 2"], side: Tensor | None) -> Float[Tensor, "n 4"]:
    ones = torch.ones_like(offsets[:, :1])
    return torch.cat([ones, 0 * ones if side is None else _sign(side, offsets), offsets], 1)


def _sign(side: Tensor, like: Tensor) -> Float[Tensor, "n 1"]:
    return (2 * side - 1).to(like.dtype)[:, None]


KINDS = {
    "offset": Calibration(),
    "shrunk offset": Calibration(offset_prior=3),
    "affine": Calibration(slope_prior=0, ridge=1e-3),
    "shrunk affine": Calibration(offset_prior=3, slope_prior=0.4),
}
"""Ways to correct angles; `offset` and `affine` are those of the eyeimages note, 1.6."""


def orders(n: int, draws: int, rng: Generator) -> Int[Tensor, "draws n"]:
    """Return random orders of n samples; the first k of each are the calibration samples.

    The calibration study draws its samples by them.
    """
    return torch.from_numpy(np.stack([rng.permutation(n) for _ in range(draws)]))


def errors_deg(
    calibration: Calibration,
    predicted: Float[Tensor, "n 2"],
    true: Float[Tensor, "n 2"],
    order: Int[Tensor, "draws n"],
    counts: Sequence[int] = COUNTS,
    side: Int[Tensor, " n"] | None = None,
    eyes: Eyes = "together",
) -> Float[Tensor, "counts draws"]:
    """Return the mean angular error (degrees) of one person over the samples not drawn.

    The calibration study makes its curves of them.

    Args:
        calibration: how to correct.
        predicted: (pitch, yaw) in radians.
        true: likewise.
        order: orders of the samples, one row per draw.
        counts: numbers k of calibration samples.
        side: 0 left, 1 right; needed unless both eyes are calibrated together.
        eyes: one correction for both eyes (`together`), or one per eye: from the k samples that
            happen to be of it (`apart`), or from k samples of each eye (`each`).

    Raises:
        ConfigError: k leaves no sample to test on, or the sides are not known.
    """
    if eyes != "together" and side is None:
        raise ConfigError(
            f"eyes = '{eyes}' needs to know which eye a sample shows; the data does "
            "not say, use eyes = 'together'"
        )
    groups = torch.zeros(len(true), dtype=torch.int64) if eyes == "together" else side
    assert groups is not None
    names = groups.unique().tolist()
    found = []
    for k in counts:
        if k == 0:
            found.append(angular_error_deg(predicted, true).mean().expand(len(order)))
            continue
        rows = _rows_per_group(order, groups, names, k) if eyes == "each" else order[:, :k]
        if rows.shape[1] >= len(true):
            raise ConfigError(f"{k} calibration samples of {len(true)} leave none to test on")
        fixed = predicted.expand(len(order), -1, -1).clone()
        for name in names:
            member = groups == name
            # Draws differ in how many samples are of an eye: weights of 0 keep one shape for all.
            eye = member[rows].to(predicted.dtype)
            fixed[:, member] = calibration.fit(predicted[rows], true[rows], eye)(fixed[:, member])
        left = torch.ones(order.shape, dtype=predicted.dtype).scatter_(1, rows, 0.0)
        found.append((angular_error_deg(fixed, true[None]) * left).sum(1) / left.sum(1))
    return torch.stack(found)


def _rows_per_group(order: Tensor, groups: Tensor, names: Sequence[int], k: int) -> Tensor:
    """Return the first k samples of every group in each order."""
    if k > min(int((groups == name).sum()) for name in names):
        raise ConfigError(f"{k} calibration samples of each eye are more than there are")
    each = [torch.cat([row[groups[row] == name][:k] for name in names]) for row in order]
    return torch.stack(each)
