"""A generator of made-up samples, and its objective: classifiers take them for their class.

Nobody's data is used: a classifier says how well a made-up sample shows its class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vergence.core.data import Batch, Samples
from vergence.core.params import Layout
from vergence.core.stages import SMASHED, Piece, pieces, reading, stages_of
from vergence.core.task import Model, Task
from vergence.errors import ConfigError

NOISE, MEANING, KIND = "noise", "meaning", "class"
"""The columns that made-up samples are made from: z, A(y) and y."""
CLASSIFIERS, ALPHA = "classifiers", "alpha"
"""Columns of the lesson: classifiers `[clients, n]`, their weights `[clients, classes]`."""


@dataclass(frozen=True)
class Conditional(Model):
    """G(z, A(y)): noise and the vector of a class name to a sample of that class.

    Attributes:
        noise: entries of z.
        meaning: entries of A(y).
        shape: of a sample.
        low: least value of a sample.
        high: greatest value: the last layer is a sigmoid between the two.
        hidden: width of the two layers before.
    """

    noise: int
    meaning: int
    shape: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0
    hidden: int = 256

    def build(self) -> nn.Module:
        """Return the network, from `[batch, noise + meaning]` to `[batch, values]`."""
        return nn.Sequential(
            nn.Linear(self.noise + self.meaning, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, math.prod(self.shape)),
            nn.Sigmoid(),
        )


@dataclass(frozen=True)
class JudgedTask(Task):
    """Base of objectives on made-up samples, which a frozen classifier judges.

    Args:
        judge: what made-up samples enter.
    """

    judge: Piece = field(kw_only=True)

    def metrics(self, outputs: Tensor, samples: Samples) -> dict[str, float]:
        """Score nothing: nobody has samples to compare with."""
        return {}


@dataclass(frozen=True)
class Imagining(JudgedTask):
    """Make samples that classifiers take for their class, and that are not all the same.

    L = lamda L_cls + (1 - lamda) L_div; L_cls is the mean over the classes y of a batch of
    sum_k alpha[k, y] loss(classifier_k(x), y), L_div `diversity`. Samples are in [low, high], so
    no two are further apart than `most`, and L_div is in [-most, 0].

    Attributes:
        judge: what a classifier makes of samples, and the loss of it.
        lamda: share of the classifiers' loss.
        relative: distances are divided by `most`.

    Source: the Durham thesis, Equations 3.7 to 3.9.
    """

    lamda: float = 0.5
    relative: bool = True

    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return samples `[batch, *shape]`."""
        made = self.network
        assert isinstance(made, Conditional)
        x = module(torch.cat([batch[NOISE], batch[MEANING]], 1))
        return (made.low + (made.high - made.low) * x).unflatten(1, made.shape)

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return L; classifiers are frozen and in evaluation mode."""
        kinds = batch[KIND]
        rows = {int(y): (kinds == y).nonzero().squeeze(1) for y in kinds.unique()}
        told = output.new_zeros(())
        for flat, alpha in zip(batch[CLASSIFIERS], batch[ALPHA].tolist(), strict=True):
            said = judged(self.judge, flat, output)
            for y, at in rows.items():
                if alpha[y]:
                    labels = self.judge.task.labelled(kinds[at])
                    told = told + alpha[y] * self.judge.loss(said[at], labels)
        apart = torch.stack([diversity(output[at]) for at in rows.values()]).mean()
        apart = apart / self.most if self.relative else apart
        return self.lamda * told / len(rows) + (1 - self.lamda) * apart

    @property
    def most(self) -> float:
        """Largest possible distance between two samples."""
        made = self.network
        assert isinstance(made, Conditional)
        return (made.high - made.low) * math.prod(made.shape) ** 0.5


def diversity(samples: Tensor) -> Tensor:
    """Return less the mean Euclidean distance of two of these samples `[n, ...]`; 0 of one alone.

    Source: the Durham thesis, Equation 3.8.
    """
    n, flat = len(samples), samples.flatten(1)
    if n < 2:
        return flat.sum() * 0.0
    first, second = torch.triu_indices(n, n, 1)
    # The root of nothing has no gradient: two samples that are equal would make it NaN.
    return -((flat[first] - flat[second]).square().sum(1).clamp(min=1e-12)).sqrt().mean()


def classifier(task: Task, features: bool = False) -> Piece:
    """Return the piece of a task's network that samples enter: all of it, or its last stage.

    Raises:
        ConfigError: the network is no row of stages, or something stands beside its input.
    """
    whole = Piece(task.network, seed=task.seed, whole=task)
    if features:
        stages = stages_of(task.network)
        whole = pieces(task, stages[-2])[1] if len(stages) > 1 else whole
    if task.side_inputs and reading(whole):
        raise ConfigError(
            f"what a generator makes enters the network alone, and this one also takes "
            f"{' and '.join(task.side_inputs)}; set model.pose = false, or take another network"
        )
    return whole


def made_for(judge: Piece, noise: int, meaning: int, reach: float | None) -> Conditional:
    """Return a generator of what a classifier takes in: inputs, or features from 0 to `reach`.

    Raises:
        ConfigError: the network does not say what it takes in, or its last stage is not linear.
    """
    if reach is None:
        return Conditional(noise, meaning, *judge.task.input_range())
    shape = frozen(judge)[0].shapes[0]
    if len(shape) != 2:
        raise ConfigError(
            "made-up features need a network whose last stage is a linear layer; let the "
            'generator make inputs (space = "input")'
        )
    return Conditional(noise, meaning, (shape[1],), 0.0, reach)


def labelled(judge: Piece, samples: Tensor, kinds: Tensor) -> Batch:
    """Return made-up samples as a batch that a classifier learns from."""
    return {SMASHED: samples, **judge.task.labelled(kinds)}


def judged(judge: Piece, flat: Tensor, samples: Tensor) -> Tensor:
    """Output of a frozen network with these parameters `[n]` for samples."""
    layout, net = frozen(judge)
    return functional_call(net, {n: layout.view(flat, n) for n in layout.names}, samples)


@lru_cache(maxsize=8)
def frozen(judge: Piece) -> tuple[Layout, nn.Module]:
    """Return the classifier's layout, and its network in evaluation mode, to be called with any."""
    module = judge.module().eval()
    return Layout.of(module), module.requires_grad_(False)
