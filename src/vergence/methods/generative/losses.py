"""Objectives and distances for learning from a teacher's answers to made-up samples.

The owner has data and a teacher; the provider a generator and a student, and no data. Every piece
here is one network with one loss, trained step by step.

Used by `methods.generative.provider`, `methods.generative.sg_zsl` and
`methods.generative.teacher`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, cdist, nn
from torch.nn import functional

from vergence.core.data import Batch
from vergence.core.objectives import loss_per_sample
from vergence.core.stages import PULL, SMASHED, Piece
from vergence.core.task import Model
from vergence.methods.generative.sample_generator import (
    KIND,
    MEANING,
    NOISE,
    JudgedTask,
    judge_outputs,
)

TEACHER, KNOWN, REAL = "teacher", "known", "real"
"""Columns of an owner's batch: the teacher `[n]`, its classes `[classes]`, real inputs."""
STUDENT, SCORES = "student", "scores"
"""Columns of a provider's batch: the student `[n]`, the teacher's scores of the samples."""
Regulariser = Literal["kl", "mmd", "moments", "none"]


@dataclass(frozen=True)
class FeatureGenerator(Model):
    """Network G(z, A(y)) from noise and the vector of a class name to features, at least 0.

    Attributes:
        noise: entries of z.
        meaning: entries of A(y).
        shape: shape of a sample.
        hidden: width of the one hidden layer.

    Source: the Durham thesis, section 5.4: one hidden layer of 4096, LeakyReLU, ReLU at the end.
    """

    noise: int
    meaning: int
    shape: tuple[int, ...]
    hidden: int = 4096

    def build(self) -> nn.Module:
        """Return the network, `[batch, noise + meaning]` to `[batch, values]`.

        Its initial values come from torch's global generator.
        """
        return nn.Sequential(
            nn.Linear(self.noise + self.meaning, self.hidden),
            nn.LeakyReLU(),
            nn.Linear(self.hidden, math.prod(self.shape)),
            nn.ReLU(),
        )


@dataclass(frozen=True)
class Synthesis(JudgedTask):
    """Objective of the provider's generator: follow a given gradient, or a frozen student.

    A batch holds `noise`, `meaning` and `class`. With `pull` `[batch, *shape]`, the gradient of a
    loss by the samples, the loss is the inner product of `pull` and the samples. With `student` a
    term is added: the distance of the student's output from `scores`; without `scores`, the task's
    loss for the class.
    """

    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return samples `[batch, *shape]`."""
        assert isinstance(self.network, FeatureGenerator)
        made = module(torch.cat([batch[NOISE], batch[MEANING]], 1))
        return made.unflatten(1, self.network.shape)

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the sum of the terms for which the batch has columns."""
        # The gradient of this product by the samples is the pull itself.
        loss = (output * batch[PULL]).sum() if PULL in batch else output.new_zeros(())
        if STUDENT not in batch:
            return loss
        outputs, task = judge_outputs(self.judge, batch[STUDENT], output), self.judge.task
        if SCORES in batch:
            return loss + distance(task.prediction(outputs), batch[SCORES])
        return loss + task.loss(outputs, task.labelled(batch[KIND]))


@dataclass(frozen=True)
class Distillation(Piece):
    """Objective of the student: give samples the same scores as the teacher.

    Source: the Durham thesis, Equation 5.4.
    """

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the mean squared distance from the teacher's scores, summed over classes."""
        return distance(self.task.prediction(output), batch[SCORES])


@dataclass(frozen=True)
class Classification(Piece):
    """Objective of a classifier: predict the class of samples, given as `class`.

    Source: the Durham thesis, Equation 6.6.
    """

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the task's loss."""
        return self.task.loss(output, self.task.labelled(batch[KIND]))


@dataclass(frozen=True)
class Verification(Piece):
    """A provider's check of `scores`: losses, and whether they predict the class in `class`."""

    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return losses, and 1 where the scores predict the class, `[samples, 2]`."""
        task, kinds = self.task, batch[KIND]
        output = task.output_of(batch[SCORES])
        right = (task.predicted_class(output) == kinds).float()
        return torch.stack([loss_per_sample(task, output, task.labelled(kinds)), right], 1)


@dataclass(frozen=True)
class NoNetwork(Model):
    """A network without parameters, which returns its input."""

    def build(self) -> nn.Module:
        """Return the identity."""
        return nn.Identity()


@dataclass(frozen=True)
class Guidance(JudgedTask):
    """Objective of an owner on made-up samples: L(T(x), y) + alpha R(x), and its gradient.

    A batch holds `smashed`, the samples. With `teacher` it holds `class` and `known` too, and L is
    the task's loss among the classes that the teacher knows. With `real`, R compares the samples
    with the real inputs in this column.

    Source: the Durham thesis, Equation 5.2.
    """

    alpha: float = 0.0
    regulariser: Literal["kl", "mmd", "moments", "none", "profile", "moments_profile"] = "none"

    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the samples."""
        return module(batch[SMASHED])

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return L + alpha R, or the term for which the batch has columns."""
        # Keeps a gradient, of zeros, where the batch has neither a teacher nor real samples.
        loss = (output * 0.0).sum()
        if TEACHER in batch:
            task, kinds = self.judge.task, batch[KIND]
            scores = task.restrict_to_known(
                judge_outputs(self.judge, batch[TEACHER], output), batch[KNOWN]
            )
            loss = loss + task.loss(scores, task.labelled(kinds))
        if REAL in batch:
            loss = loss + self.alpha * REGULARISERS[self.regulariser](batch[REAL], output)
        return loss


def distance(one: Tensor, other: Tensor) -> Tensor:
    """Return the mean squared Euclidean distance between two batches of outputs."""
    return (one - other).square().flatten(1).sum(1).mean()


def kl(real: Tensor, made: Tensor) -> Tensor:
    """Return KL(real || made) of the softmax over a sample's entries, the mean over rows, in nats.

    `real` has as many rows as `made` `[rows, ...]`.

    Examples:
        >>> real, made = torch.eye(2), torch.tensor([[0.5, 0.5], [0.2, 0.8]])
        >>> round(float(kl(real, made)), 6)
        0.063797
    """
    return kl_to_shares(real.flatten(1).softmax(1), made)


def kl_to_shares(shares: Tensor, made: Tensor) -> Tensor:
    """Return KL(shares || made) of shares `[rows, entries]` that sum to 1 in every row."""
    log_shares = made.flatten(1).log_softmax(1)
    return functional.kl_div(log_shares, shares.expand_as(log_shares), reduction="batchmean")


def mmd(real: Tensor, made: Tensor) -> Tensor:
    """Return the maximum mean discrepancy of two batches `[rows, ...]`, by five Gaussian kernels.

    Entries go through a sigmoid. The kernels' widths are a quarter to four times the mean squared
    distance of two rows. Rows are compared with themselves too (the biased estimate).

    Source: the Durham thesis, section 6.4.5, and the authors' programme; methods.md, O19.
    """
    rows = torch.cat([real, made]).flatten(1).sigmoid()
    # By differences: distances from a matrix product lose digits where rows are alike.
    far, n = cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square(), len(rows)
    # Detached: the width of the kernels is measured, and not an objective.
    width = far.detach().sum() / (n * n - n)
    alike = sum((-far / (width * 2.0**power).clamp(min=1e-12)).exp() for power in range(-2, 3))
    assert isinstance(alike, Tensor)
    m = len(real)
    return alike[:m, :m].mean() + alike[m:, m:].mean() - 2 * alike[:m, m:].mean()


def moments(real: Tensor, made: Tensor) -> Tensor:
    """Return the squared differences of two batches' means and deviations, summed over entries.

    Both batches are `[rows, ...]`; a deviation is the root of an entry's variance over rows.

    Examples:
        >>> real, made = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [5.0]])
        >>> float(moments(real, made))  # means 1 and 3, deviations 1 and 2
        5.0
    """
    return moments_distance(means_and_deviations(real), made)


def moments_distance(real: Tensor, made: Tensor) -> Tensor:
    """Return `moments` of samples from means and deviations `[2, entries]` of real ones."""
    return (means_and_deviations(made) - real).square().sum()


def means_and_deviations(rows: Tensor) -> Tensor:
    """Return the mean and the standard deviation of every entry of a batch, `[2, entries]`."""
    rows = rows.flatten(1)
    mean = rows.mean(0)
    # Not rows.var, which is many times slower across rows. The root of 0 has no gradient: an entry
    # that is the same in every row would make it NaN.
    return torch.stack([mean, (rows - mean).square().mean(0).clamp(min=1e-12).sqrt()])


REGULARISERS = {
    "kl": kl,
    "mmd": mmd,
    "moments": moments,
    "profile": kl_to_shares,
    "moments_profile": moments_distance,
}
"""The functions R by name; a `profile` stands in the place of real samples."""
