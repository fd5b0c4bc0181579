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
    """Common base of all classifiers: the outputs are unnormalised log-probabilities (scores).

    `labels` names one column: the class of every sample, int64 `[n]`.
    """

    def class_of(self, batch: Batch) -> Tensor:
        """Return the label column: the class of every sample, int64 `[n]`."""
        return batch[self.labels[0]]

    def targets(self, batch: Batch, outputs: int) -> Tensor:
        """Return 1 for the sample's class and 0 for the others, float32 `[n, outputs]`."""
        return functional.one_hot(self.class_of(batch), outputs).float()

    def labelled(self, classes: Tensor, noise: Tensor | None = None) -> Batch:
        """Return a batch whose label column is `classes`; `noise` is not used."""
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
        """Return the logarithms of the probabilities `prediction`, which are scores."""
        # The logarithm of a probability of 0 is infinite, and so is its gradient.
        return prediction.clamp(min=1e-12).log()

    def predicted_class(self, output: Scores) -> Tensor:
        """Return the class with the highest score; of equal scores, the first class."""
        return output.argmax(1)

    def restrict_to_known(self, output: Scores, known: Tensor) -> Scores:
        """Return the scores, with minus infinity for the classes where `known` is 0."""
        return output.masked_fill(known == 0, -torch.inf)
