"""Bases of tasks: outputs that may depend on a person's own prior, and pairs of glances.

Used in `tasks`.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor

from vergence.core.data import Batch, Samples, Splits
from vergence.core.federation import Federation
from vergence.core.naming import plural, registry_name
from vergence.core.task import Task
from vergence.errors import DataError
from vergence.metrics.personal_priors import choose_prior_amount


class PriorTask(Task):
    """Base of tasks with the option `personal_prior`: 0 for none, an amount, `auto`, or None."""

    personal_prior: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        # The record keeps the former word: digests of old experiments contain it.
        if self.personal_prior == "chosen":
            warnings.warn('personal_prior = "chosen" is written "auto" now', FutureWarning, 2)

    @property
    def own_prior(self) -> bool:
        """True if outputs depend on a person's own prior."""
        return bool(self.personal_prior)

    @property
    def tunes_prior(self) -> bool:
        """True if a person's validation data choose how much of the prior is used."""
        return self.personal_prior in ("auto", "chosen")

    @abstractmethod
    def with_prior(self, output: Tensor, batch: Batch) -> Tensor:
        """Return a network's outputs with the batch's priors applied, if the task uses priors."""

    def tune_prior(self, splits: Splits, outputs: Callable[[Samples], Tensor]) -> Splits:
        """Return a person's data with the amount of prior that suits their validation data best.

        The engine calls this before a model predicts, never in training. `outputs` computes the
        model's outputs for samples.
        """
        if not self.tunes_prior:
            return splits
        return choose_prior_amount(splits, outputs(splits.val), self.loss_with_prior)

    def loss_with_prior(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the loss of a network's outputs, after the batch's priors are applied to them."""
        return self.loss(self.with_prior(output, batch), batch)


class GlanceTask(Task):
    """Base of tasks that learn from pairs of glances, without labels."""

    def check(self, federation: Federation) -> None:
        """Refuse data in which a person has no two training rows of the same eyes.

        Raises:
            DataError: a column is missing, or somebody has fewer than two such rows.
        """
        name = registry_name(self)
        for person, splits in federation.people.items():
            columns = splits.train.columns
            missing = [column for column in ("eyes", "whose") if column not in columns]
            if missing:
                raise DataError(
                    f"{name}: the data has no column {missing[0]}; use model cross_encoder or "
                    "siamese with federation eye_glances, eye_synthetic, mpiigaze or "
                    "mpiigaze_crops"
                )
            same = columns["whose"].unique(return_counts=True)[1]
            most = int(same.max()) if len(same) else 0
            if most < 2:
                raise DataError(
                    f"{name}: '{person}' has {plural(most, 'glance')} of an eye to train on, a "
                    "swap takes two; leave this person out, or give more samples"
                )
