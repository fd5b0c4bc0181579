"""Label inference: reconstructs gaze labels that a U-shaped split network never sends.

There are two attacks, without and with the gradient of the client's last layer:

* `LabelInferenceAttack` is a gaze network trained on shadow people, whose smashed data and gaze are
  known; it then estimates the victim's gaze from smashed data. Too little training cannot make it
  worse than the mean gaze, where it starts.
* `Follower` needs no shadow people. The client is sent t and returns h = dL/dt. If its last layers
  are one linear layer, out = t W' + b, then h = D W with D = dL/d out. D has two numbers per sample
  and h many, so that D = h W^+ exactly. With squared errors, L = mean (out - y)^2 over n samples
  and two angles, D n is out - y, which gives y. With absolute errors D gives the signs of out - y,
  and the loss that the client reports their mean size. The server averages the clients' last
  layers, so it knows W and b at the start of a round. It then repeats the client's steps: the
  gradients, D' t and the sum of D, follow from what it sees, and the optimiser is the plan's.

Used by `audit.identity`.

Source: Li et al., "Label leakage and protection in two-party split learning", ICLR 2022, for the
question; the closed form for regression is written here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from annotated_types import Gt
from torch import Tensor, nn

from vergence.attacks.training import learn
from vergence.core.local_training import LocalTraining, OptimizerState
from vergence.core.options import NamedOptions
from vergence.core.params import Params
from vergence.core.requests import Forward, Step
from vergence.core.stages import PULL, SMASHED, Piece, reads_side_inputs
from vergence.core.task import isolated_randomness
from vergence.errors import ConfigError
from vergence.training.steps import Trainer

Loss = Literal["l1", "mse"]


@dataclass(frozen=True)
class LabelInferenceAttack(NamedOptions, label="reader"):
    """Settings for building and training a network that reads gaze from smashed data.

    Attributes:
        epochs: passes over the shadow people's samples.
        hidden: units of its one hidden layer.
        seed: seed of initial weights and order.
    """

    epochs: Annotated[int, Gt(0)] = 20
    hidden: Annotated[int, Gt(0)] = 64
    seed: int = 0

    def train(self, smashed: Tensor, gaze: Tensor) -> nn.Module:
        """Return a network from smashed data `[samples, ...]` to gaze `[samples, 2]`, radians."""
        flat = smashed.flatten(1)
        with isolated_randomness():
            torch.manual_seed(self.seed)
            network = nn.Sequential(
                nn.Flatten(),
                _Scaled(flat),
                nn.Linear(flat.shape[1], self.hidden),
                nn.ReLU(),
                last := nn.Linear(self.hidden, gaze.shape[1]),
            )
        # Untrained it gives the mean gaze: too little training cannot make it worse than that.
        with torch.no_grad():
            last.weight.zero_()
            last.bias.copy_(gaze.mean(0))

        def loss(rows: Tensor, _: object) -> Tensor:
            return (network(smashed[rows]) - gaze[rows]).abs().mean()

        learn(network, loss, len(gaze), self.epochs, seed=self.seed)
        return network


class _Scaled(nn.Module):
    """A layer that scales every feature to mean 0 and deviation 1 over the training data."""

    def __init__(self, flat: Tensor) -> None:
        super().__init__()
        self.mean, self.scale = flat.mean(0), flat.std(0).clamp(min=1e-6)

    def forward(self, flat: Tensor) -> Tensor:
        return (flat - self.mean) / self.scale


@dataclass
class Follower:
    """A server that repeats the steps of a client's last layer through one round.

    Attributes:
        end: the clients' last layers: one linear layer.
        params: their parameters at the start of the round.
        local: how clients train.
        criterion: the task's loss: `l1` or `mse`, means over samples and angles.
        optimiser: state of the client's optimiser.

    Raises:
        ConfigError: the last layers are more than a linear one, or the loss is another.
    """

    end: Piece
    params: Params
    local: LocalTraining
    criterion: Loss
    optimiser: OptimizerState = field(default_factory=lambda: OptimizerState({}, 0))

    def __post_init__(self) -> None:
        layers = [m for m in self.end.network.build().modules() if isinstance(m, nn.Linear)]
        if len(layers) != 1 or len(self.params.layout.names) != 2:
            raise ConfigError(
                "label inference: the client's last layers must be one linear layer, whose "
                f"gradient can be solved for; these are {', '.join(self.params.layout.names)}"
            )
        if self.criterion not in ("l1", "mse"):
            raise ConfigError(
                f"label inference: criterion must be l1 or mse, got '{self.criterion}'"
            )
        self.params, self.trainer = self.params.copy(), Trainer(self.end)

    def labels(self, t: Tensor, pull: Tensor, loss: float, progress: float = 0.0) -> Tensor:
        """Return the gaze labels of a batch, `[samples, 2]`, and repeat the client's step.

        Args:
            t: features that the client was sent, `[samples, features]`.
            pull: dL/dt of the same shape, which the client returned.
            loss: the mean loss that it reported; used with absolute errors.
            progress: share of the rounds done, for the schedule of the learning rate.
        """
        slopes, batch = self.slopes(pull), {SMASHED: t}
        # Head poses that enter at the last layer never leave the client: the attacker assumes 0.
        if reads_side_inputs(self.end):
            batch |= dict.fromkeys(self.end.task.side_inputs, torch.zeros(len(t), 2))
        output = self.trainer.forward(Forward(self.params, batch, self._itself)).double()
        # mse: dL/d out = 2 (out - y) / (2 n), a mean over n samples and two angles. l1: only the
        # signs follow from it, and every error is taken for the mean one.
        residual = slopes * len(t) if self.criterion == "mse" else slopes.sign() * loss
        batch[PULL] = slopes.float()
        done = self.trainer.step(
            Step(self.params, self.optimiser, batch, self.local, self._itself, SMASHED), progress
        )
        self.params, self.optimiser = done.params, done.optimiser
        return (output - residual).float()

    def slopes(self, pull: Tensor) -> Tensor:
        """Return dL/d out `[samples, 2]`, in float64, from dL/dt `[samples, features]`."""
        # Columns beyond the features' weigh side inputs, for which no gradient is returned.
        weight = next(self.params[n] for n in self.params.layout.names if n.endswith("weight"))
        return pull.double() @ torch.linalg.pinv(weight[:, : pull.shape[1]].double())

    def _itself(self, _: object) -> Piece:
        return self.end
