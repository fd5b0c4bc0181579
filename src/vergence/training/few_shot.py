"""Few-shot gaze estimators on a frozen code: the small network, and ridge regression.

Used by `studies.few_shot`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from vergence.core.local_training import LocalTraining
from vergence.core.options import NamedOptions
from vergence.core.randomness import RandomStream
from vergence.errors import ConfigError
from vergence.metrics.angles import between_rad, to_vector
from vergence.training.fused_optimizers import SLOTS, stepper

Features = Float[Tensor, "draws shots d"]
Gaze = Float[Tensor, "draws shots 2"]
Reader = Callable[[Tensor], Tensor]
"""Function from features `[n, d]` to gaze vectors `[draws, n, 3]` of length 1, for each draw."""
STRENGTHS = tuple(10.0**power for power in range(-4, 4))


@dataclass(frozen=True)
class Estimator(NamedOptions, label="estimator"):
    """A linear layer, tanh, and a linear layer to a gaze vector, trained on a few samples.

    The loss is L1 on the vector's three values, the optimiser Adam, whose rate is halved every
    `halve` epochs. The estimator has the weights of the last epoch, as there are no validation
    data. Several draws of samples are trained side by side, each as if it were alone.

    Source: eyeimages design note, section 2 (few-shot head of the Cross-Encoder).
    """

    hidden: Annotated[int, Ge(1)] = 12
    epochs: Annotated[int, Ge(1)] = 30
    batch: Annotated[int, Ge(1)] = 4
    lr: Annotated[float, Gt(0)] = 1e-2
    halve: Annotated[int, Ge(1)] = 10

    def fit(self, features: Features, gaze: Gaze, stream: RandomStream) -> Reader:
        """Return the estimators of all draws; `gaze` is (pitch, yaw) in radians.

        Raises:
            ConfigError: shapes of features and gaze do not fit.
        """
        _check(features, gaze)
        draws, shots, width = features.shape
        source, wanted = stream.torch(), to_vector(gaze.float())
        sizes = ((width, self.hidden), (self.hidden, 3))
        weights = [w for size in sizes for w in _layer(draws, *size, source)]
        rate = torch.tensor(self.lr)
        step = adam(weights, rate)
        each = torch.arange(draws)[:, None]
        for epoch in range(self.epochs):
            rate.fill_(self.lr * 0.5 ** (epoch // self.halve))
            order = torch.rand(draws, shots, generator=source).argsort(1)
            for rows in order.split(self.batch, 1):
                error = _vectors(weights, features[each, rows]) - wanted[each, rows]
                step(error.abs().mean((1, 2)).sum())
        trained = [w.detach() for w in weights]
        return lambda codes: functional.normalize(
            _vectors(trained, _check_width(codes, width)), dim=-1
        )


def adam(weights: list[Tensor], rate: Tensor) -> Callable[[Tensor], None]:
    """Return a function that takes a step of Adam on leaf tensors, with the current rate."""
    local = LocalTraining(optimizer="adam", weight_decay=0.0)
    buffers = [[torch.zeros_like(w) for w in weights] for _ in SLOTS["adam"]]
    descend = stepper(weights, buffers, local, rate, torch.zeros(()))

    def step(loss: Tensor) -> None:
        gradients = list(torch.autograd.grad(loss, weights))
        with torch.no_grad():
            descend(gradients)

    return step


def _layer(draws: int, before: int, after: int, source: torch.Generator) -> list[Tensor]:
    """Return weights `[draws, before, after]` and biases, as torch's own linear layer draws them.

    Every draw begins with the same numbers.
    """
    reach = before**-0.5
    weight = reach * (2 * torch.rand(before, after, generator=source) - 1)
    bias = reach * (2 * torch.rand(1, after, generator=source) - 1)
    return [w.repeat(draws, 1, 1).requires_grad_() for w in (weight, bias)]


def _vectors(weights: list[Tensor], features: Tensor) -> Tensor:
    first, one, second, other = weights
    return (features @ first + one).tanh() @ second + other


def ridge(features: Features, gaze: Gaze) -> Reader:
    """Return linear estimators of the gaze vector, with a penalty chosen on the shots alone.

    Features are scaled to mean 0 and deviation 1 over the shots. Of eight penalties, from 1e-4 to
    1e3 per sample, the one with the smallest squared leave-one-out error is chosen.

    Source: Hoerl & Kennard 1970; Allen 1974 (PRESS).
    """
    _check(features, gaze)
    x, y = features.double(), to_vector(gaze.double())
    # A feature that is the same in all shots has no deviation to divide by.
    middle, spread = x.mean(1, keepdim=True), x.std(1, keepdim=True).clamp(min=1e-9)
    centre = y.mean(1, keepdim=True)
    left, values, right = torch.linalg.svd((x - middle) / spread, full_matrices=False)
    target, shots = left.mT @ (y - centre), x.shape[1]
    best, slopes = torch.full((len(x),), torch.inf, dtype=x.dtype), torch.zeros(())
    for strength in STRENGTHS:
        shrunk = values**2 / (values**2 + strength * shots)
        # 1 / shots is the leverage of the mean. In ridge regression a residual over 1 - leverage
        # is exactly the error of a fit without that sample.
        leverage = (left**2 * shrunk[:, None]).sum(2) + 1 / shots
        residual = y - centre - left @ (shrunk[..., None] * target)
        press = (residual / (1 - leverage)[..., None]).square().mean((1, 2))
        slope = right.mT @ ((shrunk / values.clamp(min=1e-12))[..., None] * target)
        slopes = torch.where((press < best)[:, None, None], slope, slopes)
        best = torch.minimum(press, best)
    width = x.shape[2]

    def read(codes: Tensor) -> Tensor:
        scaled = (_check_width(codes, width).double() - middle) / spread
        return functional.normalize(scaled @ slopes + centre, dim=-1)

    return read


def error_deg(vectors: Float[Tensor, "draws n 3"], gaze: Float[Tensor, "n 2"]) -> Tensor:
    """Return the mean angle `[draws]` between gaze vectors and true (pitch, yaw), in degrees.

    Vectors may have any length, and are not converted to angles first.
    """
    true = to_vector(gaze.double()).expand_as(vectors)
    return torch.rad2deg(between_rad(vectors.double(), true)).mean(-1)


def _check(features: Tensor, gaze: Tensor) -> None:
    if features.ndim != 3 or gaze.shape != (*features.shape[:2], 2) or features.shape[1] < 2:
        raise ConfigError(
            f"few-shot: features {list(features.shape)} and gaze {list(gaze.shape)} must be "
            "[draws, shots, d] and [draws, shots, 2], with two shots or more; one eye is one shot"
        )


def _check_width(features: Tensor, width: int) -> Tensor:
    if features.shape[-1] != width:
        raise ConfigError(
            f"few-shot: an estimator of {width} values was given {features.shape[-1]}; give the "
            "codes of left and right eyes as samples, not side by side"
        )
    return features
