"""Task and model specifications: what is learned, with which network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vergence.core.params import Params
from vergence.core.site import Batch, Federation, Samples


@dataclass(frozen=True)
class Model(ABC):
    """Options of one network. Its module's name is its name."""

    @abstractmethod
    def build(self) -> nn.Module:
        """Return a fresh module, initialised from torch's current global generator."""

    def prepare(self, federation: Federation) -> Federation:
        """Return the data as this network wants it (frozen features, say); default: as it is."""
        return federation


@dataclass(frozen=True)
class Task(ABC):
    """A learning problem: a network, a loss, metrics with one higher-is-better `score` in [0, 1].

    `seed` fixes the initial parameters, so that every method of a run starts from the same ones.
    """

    network: Model
    seed: int = 0

    headline: ClassVar[str]
    """The metric tables and plots put first."""
    lower_is_better: ClassVar[frozenset[str]] = frozenset()
    """Metrics where less is better; in all others more is better."""

    def module(self) -> nn.Module:
        """Return a fresh network with the initial parameters theta^0 of this seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self.network.build()

    def init(self) -> Params:
        """Return theta^0."""
        return Params.of(self.module())

    @abstractmethod
    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the network's output on a batch."""

    @abstractmethod
    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss over the batch (scalar)."""

    def weigh(self, samples: Samples) -> float:
        """Return how much these samples count in a weighted average; default: their number."""
        return float(len(samples))

    @abstractmethod
    def metrics(self, outputs: Tensor, samples: Samples) -> dict[str, float]:
        """Score outputs (`[samples, ...]`, in sample order) against the samples.

        The result holds `score` in [0, 1], higher is better, and `headline`.
        """

    def evaluate(
        self, outputs: Tensor, samples: Samples, val_outputs: Tensor, val_samples: Samples
    ) -> dict[str, float]:
        """Score test outputs; what must be chosen (a threshold) is chosen on validation data.

        Default: nothing to choose, `metrics` of the test outputs.
        """
        return self.metrics(outputs, samples)

    @property
    def chooses(self) -> bool:
        """Whether `evaluate` is the task's own, and so looks at validation data."""
        return type(self).evaluate is not Task.evaluate

    def score(self, outputs: Tensor, samples: Samples) -> float:
        """Return the one validation score a method may steer by; default `metrics()["score"]`."""
        return self.metrics(outputs, samples)["score"]

    def check(self, federation: Federation) -> None:
        """Refuse data that cannot be scored, before anything is trained; default: take all.

        Raises:
            DataError: names the person and the part.
        """
        return

    def priors(self, federation: Federation) -> Mapping[str, Mapping[str, dict[str, float]]]:
        """Score predictors that need no learning: prior name -> person -> metrics."""
        return {}
