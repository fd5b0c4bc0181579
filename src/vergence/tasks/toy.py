"""Toy regression of y on x, which trains within milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vergence.core.data import Batch, Samples
from vergence.core.federation import Federation
from vergence.core.randomness import RandomStream
from vergence.core.task import Task


@dataclass(frozen=True)
class ToyTask(Task):
    """Predict y from x; batches hold `x` `[n, inputs]` and `y` `[n]`."""

    classes: ClassVar[int] = 2
    input_columns: ClassVar[tuple[str, ...]] = ("x",)
    labels: ClassVar[tuple[str, ...]] = ("y",)
    headline: ClassVar[str] = "error"
    lower_is_better: ClassVar[frozenset[str]] = frozenset({"error"})

    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the predictions `[n]`."""
        return module(batch["x"]).squeeze(1)

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return half the mean squared error."""
        return 0.5 * (output.reshape(batch["y"].shape) - batch["y"]).square().mean()

    def inputs(self, batch: Batch) -> tuple[Tensor, tuple[()]]:
        """Return x; there are no side inputs."""
        return batch["x"], ()

    def targets(self, batch: Batch, outputs: int) -> Tensor:
        """Return y, `[batch, 1]`."""
        return batch["y"].unsqueeze(1)

    def class_of(self, batch: Batch) -> Tensor:
        """Return 1 where y is above zero, else 0."""
        return (batch["y"] > 0).long()

    def predicted_class(self, output: Tensor) -> Tensor:
        """Return 1 where an output is above zero, else 0."""
        return (output.reshape(len(output)) > 0).long()

    def labelled(self, classes: Tensor, noise: Tensor | None = None) -> Batch:
        """Return y = -1 or 1, or with `noise` a y of that sign between 0 and 2 in size."""
        size = 1.0 if noise is None else 2.0 * noise[:, 0]
        return {"y": (2.0 * classes - 1.0) * size}

    def class_names(self) -> tuple[str, ...]:
        """Return the two signs of y."""
        return ("below zero", "above zero")

    # A network without this option has four inputs, as model `linear` by default.
    def input_range(self) -> tuple[tuple[int, ...], float, float]:
        """Return the number of inputs, and a range of three deviations, as inputs are normal."""
        return (getattr(self.network, "inputs", 4),), -3.0, 3.0

    def sequences(self, samples: Samples) -> list[Tensor]:
        """Return the inputs of every sample, one after the other, `[inputs, 1]`."""
        return list(samples.columns["x"].unsqueeze(2))

    def proxies(self, count: int) -> list[Tensor]:
        """Draw synthetic inputs."""
        return [torch.randn(4, 1, generator=RandomStream("proxy", i).torch()) for i in range(count)]

    def metrics(self, outputs: Tensor, samples: Samples) -> dict[str, float]:
        """Return the root mean squared error and, as score, 1 / (1 + error)."""
        error = float((outputs - samples.columns["y"]).square().mean().sqrt())
        return {"error": error, "score": 1 / (1 + error)}

    def priors(self, federation: Federation) -> Mapping[str, Mapping[str, dict[str, float]]]:
        """Return the metrics of everybody's mean training target, by baseline and person."""
        people = federation.people
        mean = torch.cat([s.train.columns["y"] for s in people.values()]).mean()
        rows = {
            p: self.metrics(torch.full((len(s.test),), float(mean)), s.test)
            for p, s in federation.scored_people.items()
        }
        return {"global mean": rows}
