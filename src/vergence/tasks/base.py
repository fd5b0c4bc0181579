"""Base of tasks whose outputs may depend on a prior of each person's own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor

from vergence.core.data import Batch, Samples, Splits
from vergence.core.task import Task
from vergence.metrics.personal_priors import suited


class PriorTask(Task):
    """Base of tasks with the option `personal_prior`: 0 for none, an amount, or `chosen`."""

    personal_prior: Any

    @property
    def own_prior(self) -> bool:
        """True if outputs depend on a person's own prior."""
        return bool(self.personal_prior)

    @property
    def own_choice(self) -> bool:
        """True if a person's validation data choose how much of the prior is used."""
        return self.personal_prior == "chosen"

    @abstractmethod
    def with_prior(self, output: Tensor, batch: Batch) -> Tensor:
        """Return a network's outputs with the prior of the batch, where one is wanted."""

    def suited(self, splits: Splits, outputs: Callable[[Samples], Tensor]) -> Splits:
        """A person's data with as much of the prior as their validation data choose for a model."""
        if not self.own_choice:
            return splits
        return suited(splits, outputs(splits.val), self.loss_with_prior)

    def loss_with_prior(self, output: Tensor, batch: Batch) -> Tensor:
        """Loss of outputs that have no prior yet, with that of the batch."""
        return self.loss(self.with_prior(output, batch), batch)
