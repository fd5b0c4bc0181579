"""Objectives and distances for learning from a teacher's answers to made-up samples.

The owner has data and a teacher; the provider a generator and a student, and no data. Every piece
here is one network and one loss, trained step by step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, cdist, nn
from torch.nn import functional

from vergence.core.data import Batch
from vergence.core.objectives import each
from vergence.core.stages import PULL, SMASHED, Piece
from vergence.core.task import Model
from vergence.methods.generative.sample_generator import (
    KIND,
    MEANING,
    NOISE,
    JudgedTask,
    judged,
)

TEACHER, KNOWN, REAL = "teacher", "known", "real"
"""Columns of an owner's batch: the teacher `[n]`, its classes `[classes]`, real inputs."""
STUDENT, SCORES = "student", "scores"
"""Columns of a provider's batch: the student `[n]`, what the teacher said of the samples."""
Apart = Literal["kl", "mmd", "none"]


@dataclass(frozen=True)
class FeatureGenerator(Model):
    """G(z, A(y)): noise and the vector of a class name to what enters a network; never below 0.

    Attributes:
        noise: entries of z.
        meaning: entries of A(y).
        shape: of a sample.
        hidden: width of the one hidden layer.

    Source: the Durham thesis, section 5.4: one hidden layer of 4096, LeakyReLU, ReLU at the end.
    """

    noise: int
    meaning: int
    shape: tuple[int, ...]
    hidden: int = 4096

    def build(self) -> nn.Module:
        """Return the network, from `[batch, noise + meaning]` to `[batch, values]`."""
        return nn.Sequential(
            nn.Linear(self.noise + self.meaning, self.hidden),
            nn.LeakyReLU(),
            nn.Linear(self.hidden, math.prod(self.shape)),
            nn.ReLU(),
        )


@dataclass(frozen=True)
class Synthesis(JudgedTask):
    """Objective of the provider's generator: to follow a pull, or a frozen student's output.

    A batch holds `noise`, `meaning` and `class`. With `pull` `[batch, *shape]`, the gradient of a
    loss by the samples, the loss is the product of both. With `student` it is also the student's:
    its distance from `scores` where they are given, else the task's own loss for the class.
    """

    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return samples `[batch, *shape]`."""
        assert isinstance(self.network, FeatureGenerator)
        made = module(torch.cat([batch[NOISE], batch[MEANING]], 1))
        return made.unflatten(1, self.network.shape)

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the sum of what the batch asks for."""
        loss = (output * batch[PULL]).sum() if PULL in batch else output.new_zeros(())
        if STUDENT not in batch:
            return loss
        said, task = judged(self.judge, batch[STUDENT], output), self.judge.task
        if SCORES in batch:
            return loss + distance(task.prediction(said), batch[SCORES])
        return loss + task.loss(said, task.labelled(batch[KIND]))


@dataclass(frozen=True)
class Distillation(Piece):
    """Objective of the student: to give samples the same scores as the teacher.

    Source: the Durham thesis, Equation 5.4.
    """

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the mean squared distance of what both say, summed over classes."""
        return distance(self.task.prediction(output), batch[SCORES])


@dataclass(frozen=True)
class Classification(Piece):
    """Objective of a classifier: to tell the classes of samples apart, given as `class`.

    Source: the Durham thesis, Equation 6.6.
    """

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the task's loss."""
        return self.task.loss(output, self.task.labelled(batch[KIND]))


@dataclass(frozen=True)
class Verification(Piece):
    """Check of `scores` by a provider: losses, and whether they predict the class in `class`."""

    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return losses and 1 where the class is the one said, `[samples, 2]`."""
        task, kinds = self.task, batch[KIND]
        output = task.output_of(batch[SCORES])
        right = (task.predicted_class(output) == kinds).float()
        return torch.stack([each(task, output, task.labelled(kinds)), right], 1)


@dataclass(frozen=True)
class Nowhere(Model):
    """A network without parameters: what it is given is what it gives."""

    def build(self) -> nn.Module:
        """Return it."""
        return nn.Identity()


@dataclass(frozen=True)
class Guidance(JudgedTask):
    """Objective of an owner on made-up samples: L(T(x), y) + alpha R(x), and its gradient.

    A batch holds `smashed`, the samples. With `teacher` it holds `class` and `known` too, and L is
    the task's loss among the classes that the teacher knows; with `real` R compares with these.

    Source: the Durham thesis, Equation 5.2.
    """

    alpha: float = 0.0
    apart: Literal["kl", "mmd", "none", "profile"] = "none"

    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the samples."""
        return module(batch[SMASHED])

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return L + alpha R, or what of it the batch asks for."""
        loss = (output * 0.0).sum()
        if TEACHER in batch:
            task, kinds = self.judge.task, batch[KIND]
            said = task.among(judged(self.judge, batch[TEACHER], output), batch[KNOWN])
            loss = loss + task.loss(said, task.labelled(kinds))
        if REAL in batch:
            loss = loss + self.alpha * REGULARISERS[self.apart](batch[REAL], output)
        return loss


def distance(one: Tensor, other: Tensor) -> Tensor:
    """Return the mean over samples of the squared Euclidean distance of what is said of them."""
    return (one - other).square().flatten(1).sum(1).mean()


def kl(real: Tensor, made: Tensor) -> Tensor:
    """Return KL(real || made) of the softmax over a sample's entries, the mean over rows, in nats.

    `real` has as many rows as `made` `[rows, ...]`.

    Examples:
        >>> real, made = torch.eye(2), torch.tensor([[0.5, 0.5], [0.2, 0.8]])
        >>> round(float(kl(real, made)), 6)
        0.063797
    """
    return against(real.flatten(1).softmax(1), made)


def against(shares: Tensor, made: Tensor) -> Tensor:
    """Return KL(shares || made) of shares `[rows, entries]` that sum to 1 in every row."""
    found = made.flatten(1).log_softmax(1)
    return functional.kl_div(found, shares.expand_as(found), reduction="batchmean")


def mmd(real: Tensor, made: Tensor) -> Tensor:
    """Return the maximum mean discrepancy of two batches `[rows, ...]`, by five Gaussian kernels.

    Entries go through a sigmoid; a kernel's width is the mean squared distance of two rows, a
    quarter to four times; rows are compared with themselves too (the biased estimate).

    Source: the Durham thesis, section 6.4.5, and the authors' programme; methods.md, O19.
    """
    rows = torch.cat([real, made]).flatten(1).sigmoid()
    far, n = cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square(), len(rows)
    width = far.detach().sum() / (n * n - n)
    alike = sum((-far / (width * 2.0**power).clamp(min=1e-12)).exp() for power in range(-2, 3))
    assert isinstance(alike, Tensor)
    m = len(real)
    return alike[:m, :m].mean() + alike[m:, m:].mean() - 2 * alike[:m, m:].mean()


REGULARISERS = {"kl": kl, "mmd": mmd, "profile": against}
"""R by name; `profile` takes shares in place of real samples."""
