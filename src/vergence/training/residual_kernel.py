"""Corrections of gaze angles in closed form: a Gaussian process on residuals, or own samples alone.

Used in `adaptation`, `experiment`, `studies` and `tasks`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vergence.core.layers.kernel_head import WIDTH, gaussian
from vergence.core.params import Params
from vergence.errors import DataError
from vergence.models.personal_eye import TERMS, linear_terms
from vergence.training.ridge import MOST, coefficients_alone

# Samples of each person from whose residuals variances are fitted. More of them weigh likeness of
# neighbouring frames too much: of p00 to p02, 400 are worse with one to nine samples.
FITTED_SAMPLES = 150
# Variances that are tried, as multiples of the noise's variance: of 1, side, head pose, predicted
# angles, and kernel. Zero takes a term away. The residuals of p00 to p02 of MPIIGaze, under two
# public networks, lie within.
RATIOS = (
    (0.0, 0.1, 0.3, 1.0, 3.0, 10.0),
    (0.0, 0.1, 0.3, 1.0, 3.0, 10.0),
    (0.0, 1.0, 4.0),
    (0.0, 1.0, 4.0, 16.0),
    (0.0, 0.5, 1.0, 2.0, 4.0, 8.0),
)
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
    Equation 2.25.
    """

    variances: Tensor

    @classmethod
    def of(cls, total: Tensor) -> ResidualKernel:
        """Return the process with the largest marginal likelihood, by a sum of people's `evidence`.

        Args:
            total: sum over people, `[3 settings + 1]`.

        Raises:
            DataError: a number is not finite, or there is no sample.
        """
        if not (total.isfinite().all() and total[-1] >= 1):
            raise DataError(
                "residuals of other people must be finite numbers, of one sample or more; got "
                f"{total[-1]:g} samples"
            )
        ratios, count = torch.cartesian_prod(*map(torch.tensor, RATIOS)).double(), total[-1]
        *squares, determinant = total[:-1].reshape(3, -1)
        variances = []
        for square in squares:
            # The noise with the largest likelihood under each setting has a closed form.
            noise = (square / count).clamp(min=LEAST_NOISE)
            best = (count * noise.log() + square / noise + determinant).argmin()
            variances.append(noise[best] * torch.cat([ratios[best], torch.ones(1)]))
        return cls(torch.stack(variances, 1))

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


def evidence(predicted: Tensor, true: Tensor, inputs: Tensor) -> Tensor:
    """Return what one person's residuals say of variances, float64 `[3 settings + 1]`.

    Sums of these over people are all that `ResidualKernel.of` needs. A setting is a choice of one
    number of each line of `RATIOS`, which gives the residuals r of an angle the covariance
    noise * C. There are r C^-1 r for pitch, the same for yaw, log |C|, each for every setting, and
    the number of samples. Of more than `FITTED_SAMPLES` samples, evenly spaced ones are used. All
    numbers are NaN if a predicted angle is NaN or beyond 2 pi: such a model tells nothing.

    Args:
        predicted: predicted angles (pitch, yaw) in radians, `[n, 2]`.
        true: true angles, `[n, 2]`.
        inputs: `person_inputs` of the samples, `[n, inputs]`.

    Source: Rasmussen and Williams, "Gaussian processes for machine learning", MIT Press 2006,
    Equations 5.8 and A.9 to A.10.
    """
    some = torch.linspace(0, len(true) - 1, min(FITTED_SAMPLES, len(true))).long()
    near, x, residual = predicted[some].double(), inputs[some].double(), true[some].double()
    kernel, eye = gaussian(x, x, WIDTH), torch.eye(TERMS, dtype=torch.float64)
    # The linear terms have rank TERMS: only the kernel asks for a factorisation of all samples.
    linear = torch.cartesian_prod(*map(torch.tensor, RATIOS[:-1])).double()
    roots = linear[:, [0, 1, 2, 2, 3, 3]].sqrt()
    sides = torch.cat([linear_terms(near, x), residual - near], 1)
    # Later the factorisation would fail, or rounding errors would be taken for people's errors.
    if not near.abs().max() <= 2 * math.pi:
        return torch.full((3 * len(linear) * len(RATIOS[-1]) + 1,), torch.nan).double()
    squares, determinants = [], []
    for ratio in RATIOS[-1]:
        factor = torch.linalg.cholesky(ratio * kernel + torch.eye(len(x)))
        white = torch.linalg.solve_triangular(factor, sides, upper=False)
        terms, rest = white[:, :TERMS], white[:, TERMS:]
        inner = torch.linalg.cholesky(eye + roots[:, :, None] * (terms.T @ terms) * roots[:, None])
        explained = torch.linalg.solve_triangular(
            inner, roots[:, :, None] * (terms.T @ rest), upper=False
        )
        squares.append(rest.square().sum(0) - explained.square().sum(1))
        logs = inner.diagonal(dim1=1, dim2=2).log().sum(1) + factor.diagonal().log().sum()
        determinants.append(2 * logs)
    # The kernel's number comes last in a setting, as in `torch.cartesian_prod`.
    square, determinant = torch.stack(squares, 1).flatten(0, 1), torch.stack(determinants, 1)
    return torch.cat([*square.T, determinant.flatten(), torch.tensor([float(len(x))])])


# Fitted by maximal marginal likelihood to the residuals of p00 to p02 of MPIIGaze, each predicted
# by a model of ten others.
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
