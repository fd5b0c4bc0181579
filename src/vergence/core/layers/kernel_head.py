"""A head for ridge regression: random Fourier features for everybody, a kernel for one person.

Used in `methods`, `models` and `training`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vergence.core.randomness import RandomStream
from vergence.errors import ConfigError

WIDTH = 2.0
"""Width of kernels on one person's samples, as chosen on p00 to p02 of MPIIGaze."""


class KernelHead(nn.Module):
    """Linear layer on random Fourier features, plus a kernel expansion on one person's samples.

    y = weight phi(x) + bias + own_weight k(x) + own_bias, with

    - phi(x) = sqrt(2 / features) (cos(F x), sin(F x)), whose products phi(x) . phi(x') approximate
      the Gaussian kernel exp(-width |x - x'|^2). The frequencies F are random constants, the same
      for everybody, and depend on no data.
    - k(x)_i = exp(-own_width |x - centres_i|^2). The centres are inputs of one person's samples.

    All parameters are zero at first. The method `FedRidge` computes them in closed form: weight and
    bias from sums over all clients, and the other parameters, which never leave a client, from the
    client's own samples.

    Args:
        inputs: length of x.
        outputs: length of y.
        features: length of phi(x), an even number.
        width: width parameter of the common kernel, in 1 / (units of x)^2.
        own_centres: the most samples of a person that the expansion takes; 0: no expansion.
        own_width: width parameter of the person's kernel.

    Source: Rahimi, Recht, "Random features for large-scale kernel machines", NIPS 2007,
    Algorithm 1, with sine and cosine of each frequency.
    """

    frequencies: Tensor

    def __init__(
        self,
        inputs: int,
        outputs: int,
        features: int = 2000,
        width: float = 0.5,
        own_centres: int = 0,
        own_width: float = WIDTH,
    ) -> None:
        super().__init__()
        if features < 2 or features % 2:
            raise ConfigError(
                f"a kernel head has an even number of features, a sine and a cosine for each "
                f"frequency; got {features}"
            )
        self.width, self.own_width = width, own_width
        self.weight = nn.Parameter(torch.zeros(outputs, features))
        self.bias = nn.Parameter(torch.zeros(outputs))
        draw = RandomStream("kernel head", inputs, features).torch()
        frequencies = torch.randn(features // 2, inputs, generator=draw) * (2 * width) ** 0.5
        # Not in the state: `Layout.of` refuses buffers there, which an average would mix.
        self.register_buffer("frequencies", frequencies, persistent=False)
        if own_centres:
            self.centres = nn.Parameter(torch.zeros(own_centres, inputs))
            self.own_weight = nn.Parameter(torch.zeros(outputs, own_centres))
            self.own_bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return y `[n, outputs]` for x `[n, inputs]`."""
        y = self.features(x) @ self.weight.T + self.bias
        if not hasattr(self, "centres"):
            return y
        return y + gaussian(x, self.centres, self.own_width) @ self.own_weight.T + self.own_bias

    def features(self, x: Tensor) -> Tensor:
        """Return phi(x) `[n, features]`."""
        phase = x @ self.frequencies.T.to(x.dtype)
        return torch.cat([phase.cos(), phase.sin()], 1) / len(self.frequencies) ** 0.5


def gaussian(a: Tensor, b: Tensor, width: float) -> Tensor:
    """Return exp(-width |a_i - b_j|^2), `[n, m]`, for rows a `[n, d]` and b `[m, d]`."""
    # The expanded square is several times as fast as `cdist`, and exports to ONNX; rounding may
    # take it below zero.
    square = (a * a).sum(1, keepdim=True) - 2 * a @ b.T + (b * b).sum(1)
    return torch.exp(-width * square.clamp(min=0))
