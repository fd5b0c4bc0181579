"""Tasks whose output is a score per class.

Used by `tasks.gaze_zones`, `tasks.images` and `tasks.zero_shot`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from vergence.core.data import Batch
from vergence.core.task import Task

Scores = Float[Tensor, "samples classes"]


@dataclass(frozen=True)
class ClassificationTask(Task):
    """Common part of all classifiers: scores are unnormalised log-probabilities.

    The one column of `labels` is the class, int64 `[n]`.
    """

    def class_of(self, batch: Batch) -> Tensor:
        """Return the labels."""
        return batch[self.labels[0]]

    def labelled(self, classes: Tensor, noise: Tensor | None = None) -> Batch:
        """Return the classes as labels."""
        return {self.labels[0]: classes}

    def loss(self, output: Scores, batch: Batch) -> Float[Tensor, ""]:
        """Return the mean cross-entropy in nats."""
        return functional.cross_entropy(output, self.class_of(batch))

    def imitation(self, output: Scores, teacher: Scores, temperature: float = 1.0) -> Tensor:
        """Return KL(softmax(teacher / temperature) || softmax(output / temperature)), in nats."""
        # Both as logarithms: a probability that rounds to 0 would lose its logarithm.
        target, log_probabilities = ((x / temperature).log_softmax(1) for x in (teacher, output))
        return functional.kl_div(log_probabilities, target, reduction="batchmean", log_target=True)

    def prediction(self, output: Scores) -> Scores:
        """Return the probabilities of the classes."""
        return output.softmax(1)

    def output_of(self, prediction: Scores) -> Scores:
        """Return log-probabilities."""
        # The logarithm of a probability of 0 is infinite, and so is its gradient.
        return prediction.clamp(min=1e-12).log()

    def predicted_class(self, output: Scores) -> Tensor:
        """Return the class that scores highest, the first of several."""
        return output.argmax(1)

    def restrict_to_known(self, output: Scores, known: Tensor) -> Scores:
        """Return the scores, with minus infinity for classes that are not known."""
        return output.masked_fill(known == 0, -torch.inf)
