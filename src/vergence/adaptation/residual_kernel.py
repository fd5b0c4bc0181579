"""Corrections of gaze angles in closed form: a Gaussian process on residuals, or own samples alone.

Used by `adaptation.adapted_run`, `adaptation.fine_tuning` and `adaptation.other_people`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vergence.core.layers.kernel_head import WIDTH, gaussian
from vergence.core.params import Params
from vergence.models.personal_eye import TERMS, linear_terms
from vergence.training.ridge import MOST, coefficients_alone

# Samples of each other person, and steps, with which variances are fitted: the time grows with the
# cube of the first.
FITTED_SAMPLES, FITTED_STEPS = 150, 40
# Smallest variance of the noise, in radians squared: a hundredth of a degree, squared.
LEAST_NOISE = 3e-8


@dataclass(frozen=True)
class KernelCorrection:
    """Correction of angles q to q + t(q, x) linear + k(x) coefficients, with the person's crops.

    Here t are the `linear_terms`, and k_i = exp(-WIDTH |x - centre_i|^2). Shapes are `[TERMS, 2]`,
    `[k, inputs]` and `[k, 2]`, all float64.
    """

    linear: Tensor
    centres: Tensor
    coefficients: Tensor

    def __call__(self, predicted: Tensor, inputs: Tensor) -> Tensor:
        """Return corrected angles (pitch, yaw) in radians, `[n, 2]`; `inputs` is `[n, inputs]`."""
        change = linear_terms(predicted, inputs) @ self.linear
        return predicted + change + gaussian(inputs, self.centres, WIDTH) @ self.coefficients

    def params(self, shared: Params) -> Params:
        """Return the parameters of the network `personal_eye` with this correction."""
        inside = {f"shared.{name}": shared[name] for name in shared}
        own = {"linear": self.linear, "centres": self.centres, "coefficients": self.coefficients}
        return Params.named(**{name: value.float() for name, value in own.items()}, **inside)


@dataclass(frozen=True)
class ResidualKernel:
    """A Gaussian process on the residuals true - predicted of a person, for each angle apart.

    Its covariance is the sum of products of the `linear_terms` and of a Gaussian kernel on the
    inputs, each times a variance. So nothing is changed without samples, and a term in which other
    people do not differ is never fitted.

    Attributes:
        variances: rows 1, side, head pose, predicted angles, kernel and noise, `[6, 2]`, radians
            squared.

    Source: Rasmussen and Williams, "Gaussian processes for machine learning", MIT Press 2006,
    Equations 2.25 and 5.8.
    """

    variances: Tensor

    @classmethod
    def of(cls, others: Sequence[tuple[Tensor, Tensor, Tensor]]) -> ResidualKernel:
        """Fit the variances to other people's residuals, by maximal marginal likelihood.

        Every step multiplies each variance by a factor that cannot lower the likelihood.

        Args:
            others: of each person predictions and true angles `[n, 2]`, and inputs `[n, inputs]`.

        Source: Zhou et al. 2019, "MM algorithms for variance components models", Algorithm 1.
        """
        grams, residuals = [], []
        for predicted, true, inputs in others:
            some = torch.linspace(0, len(true) - 1, min(FITTED_SAMPLES, len(true))).long()
            grams.append(_products(predicted[some], inputs[some]))
            residuals.append(true[some] - predicted[some])
        variances = torch.cat(residuals).square().mean(0).expand(TERMS, 2).clone()
        for _ in range(FITTED_STEPS):
            for angle in (0, 1):
                above = below = torch.zeros(TERMS, dtype=torch.float64)
                for gram, residual in zip(grams, residuals, strict=True):
                    inverse = _covariance(gram, variances[:, angle]).inverse()
                    weights = inverse @ residual[:, angle]
                    above = above + gram @ weights @ weights
                    below = below + (gram * inverse).sum((1, 2))
                variances[:, angle] *= (above / below).sqrt()
        return cls(variances)

    def fit(self, predicted: Tensor, true: Tensor, inputs: Tensor) -> KernelCorrection:
        """Return the correction fitted to k samples; see `of` for the shapes."""
        some = torch.linspace(0, len(true) - 1, min(MOST, len(true))).long()
        near, x, residual = predicted[some], inputs[some], true[some] - predicted[some]
        products = _products(near, x)
        weights = torch.stack(
            [
                torch.linalg.solve(_covariance(products, self.variances[:, angle]), column)
                for angle, column in enumerate(residual.unbind(1))
            ],
            1,
        )
        # Linear terms are summed over the samples at once, so that only the kernel keeps them.
        linear = self.variances[[0, 1, 2, 2, 3, 3]] * (linear_terms(near, x).T @ weights)
        return KernelCorrection(linear, x, self.variances[4] * weights)


# Fitted as `ResidualKernel.of` does to the residuals of p00 to p02 of MPIIGaze, each predicted by a
# model of ten others.
DEFAULT = ResidualKernel(
    torch.tensor([[17, 0], [0, 23], [0, 6], [0, 5], [43, 129], [28, 16]], dtype=torch.float64) / 1e4
)
"""The process where a run has no other people whose residuals are known."""


def fit_alone(predicted: Tensor, true: Tensor, inputs: Tensor) -> KernelCorrection:
    """Return kernel ridge regression on k samples alone as a correction; see `ResidualKernel`.

    A slope of -1 takes the prediction away.
    """
    centres, coefficients, mean = coefficients_alone(inputs, true)
    linear = torch.cat([mean[None], predicted.new_zeros(3, 2), -torch.eye(2, dtype=mean.dtype)])
    return KernelCorrection(linear, centres, coefficients)


def _products(predicted: Tensor, inputs: Tensor) -> Tensor:
    """Return the products of each term, the kernel, and the noise, between samples, `[6, n, n]`."""
    terms = linear_terms(predicted, inputs)
    linear = [terms[:, group] @ terms[:, group].T for group in ([0], [1], [2, 3], [4, 5])]
    return torch.stack([*linear, gaussian(inputs, inputs, WIDTH), torch.eye(len(inputs)).double()])


def _covariance(products: Tensor, variances: Tensor) -> Tensor:
    variances = torch.cat([variances[:-1], variances[-1:].clamp(min=LEAST_NOISE)])
    return torch.einsum("t,tij->ij", variances, products)
