"""Ridge regression in closed form: from sums over clients, and by kernels with leave-one-out.

Used in `methods`, `tasks` and `training`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vergence.core.layers.kernel_head import WIDTH, gaussian

PENALTIES = torch.logspace(-3, 2, 21, dtype=torch.float64)
"""Penalties among which leave-one-out chooses, in units of the kernel."""


PENALTY = 0.1
"""Penalty of the baseline alone, as chosen on p00 to p02 of MPIIGaze."""
MOST = 2500
"""The most samples of a person that the baseline learns from: the time grows with their cube."""
# Rounding errors, relative to what they are errors of: of leave-one-out errors in float64, and of
# products that clients send in float32.
ROUNDING, ROUNDING_SENT = 1e-9, 1e-6


def alone(inputs: Tensor, targets: Tensor, new: Tensor) -> Tensor:
    """Return the predictions of kernel ridge regression on one person's own samples, float64.

    The kernel is Gaussian, with `WIDTH` and `PENALTY`, and predictions tend to the mean target.
    Of more than `MOST` samples, evenly spaced ones are used.

    Args:
        inputs: inputs of the samples, `[n, d]`, of a length of about 1.
        targets: targets of the samples, `[n, outputs]`.
        new: inputs to predict for, `[m, d]`.
    """
    centres, coefficients, mean = coefficients_alone(inputs, targets)
    return gaussian(new.double(), centres, WIDTH) @ coefficients + mean


def coefficients_alone(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the centres, the coefficients and the mean target of `alone`, float64."""
    some = torch.linspace(0, len(inputs) - 1, min(MOST, len(inputs))).long()
    inputs, targets, mean = inputs[some].double(), targets[some], targets.double().mean(0)
    kernel = gaussian(inputs, inputs, WIDTH) + PENALTY * torch.eye(len(inputs))
    return inputs, torch.linalg.solve(kernel, targets.double() - mean), mean


def solve_products(among: Tensor, with_targets: Tensor, penalty: float) -> Tensor:
    """Return ridge regression's coefficients from means of products of samples.

    Args:
        among: mean of v v^T over the samples, `[d + 1, d + 1]`, for rows v that end with a 1.
        with_targets: mean of v y^T, `[d + 1, outputs]`.
        penalty: weight of the squared coefficients beside the mean squared error, in units of the
            mean squared length of the features. The last row, the intercept, is not penalised.

    Returns:
        Coefficients `[d + 1, outputs]`. If `among` is not positive semidefinite, because noise was
        added, its negative eigenvalues count as zero. If a product is not finite, because the sum
        of clients' products was too large for float32, all coefficients are NaN.
    """
    if not (among.isfinite().all() and with_targets.isfinite().all()):
        return torch.full_like(with_targets, torch.nan)
    scale = among.diagonal()[:-1].clamp(min=0).sum()
    penalties = torch.full_like(among.diagonal(), float(penalty * scale))
    penalties[-1] = 0
    whole = among + penalties.diag()
    # A negative eigenvalue of `among` alone is looked for: one that is nearly minus the penalty
    # would leave `whole` positive, and give it an inverse without bound.
    slack = min(float(penalty) / 2, ROUNDING_SENT) * scale * torch.eye(len(among))
    negative = torch.linalg.cholesky_ex(among + slack).info
    factor, failed = torch.linalg.cholesky_ex(whole)
    if not (negative or failed):
        return torch.cholesky_solve(with_targets, factor)
    values, vectors = torch.linalg.eigh(among)
    whole = vectors @ (values.clamp(min=0)[:, None] * vectors.T) + penalties.diag()
    return torch.linalg.lstsq(whole, with_targets).solution


def kernel_ridge(kernel: Tensor, targets: Tensor) -> tuple[Tensor, float]:
    """Return kernel ridge regression's coefficients, penalty chosen by leave-one-out.

    The prediction for a sample is the product of its kernel row with the coefficients. The
    leave-one-out errors have a closed form, e_i = c_i / (K + penalty I)^-1_ii. If no penalty has a
    smaller mean squared error than predicting zero, the coefficients are zero.

    Args:
        kernel: products of the samples, `[n, n]`, float64.
        targets: `[n, outputs]`, float64.

    Returns:
        The coefficients `[n, outputs]` and the mean squared leave-one-out error, per output.

    Source: Allen 1974, Equation 2.5; Rasmussen and Williams, "Gaussian processes for machine
    learning", MIT Press 2006, Equations 5.10 to 5.12.
    """
    values, vectors = torch.linalg.eigh(kernel)
    within = vectors.T @ targets
    best, smallest = torch.zeros_like(targets), float(targets.square().mean())
    for penalty in PENALTIES:
        shrunk = 1 / (values.clamp(min=0) + penalty)
        coefficients = vectors @ (shrunk[:, None] * within)
        errors = coefficients / (vectors.square() @ shrunk)[:, None]
        error = float(errors.square().mean())
        # Without a margin rounding would choose where leaving out a sample leaves nothing of it:
        # of one sample, and of samples that are far from each other.
        if error < (1 - ROUNDING) * smallest:
            best, smallest = coefficients, error
    return best, smallest
