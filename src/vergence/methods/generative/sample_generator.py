"""A generator of made-up samples, trained so that classifiers recognise their class.

No data of people is used: classifiers judge how well a made-up sample shows its class.

Used by `audit.model_extraction`, `methods.generative.ap_fl`, `methods.generative.losses`,
`methods.generative.provider` and `methods.generative.teacher`.
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
from vergence.core.serialization import CPU
from vergence.core.stages import SMASHED, Piece, pieces, reads_side_inputs, stages_of
from vergence.core.tags import LATER
from vergence.core.task import Model, Task
from vergence.errors import ConfigError

NOISE, MEANING, KIND = "noise", "meaning", "class"
"""Columns of the generator's inputs: z, A(y) and y."""
# DFAD has 64 filters; a quarter as many operations suit two cores and pictures of 14 to 32 pixels.
FILTERS, GROUPS = 32, 8
"""Filters of the last hidden convolution, and groups of channels that are normalised together."""
CLASSIFIERS, ALPHA = "classifiers", "alpha"
"""Columns of a training batch: classifiers `[clients, n]`, their weights `[clients, classes]`."""


@dataclass(frozen=True)
class Conditional(Model):
    """Network G(z, A(y)) from noise and the vector of a class name to a sample of the class.

    Attributes:
        noise: entries of z.
        meaning: entries of A(y).
        shape: shape of a sample.
        low: least value of a sample.
        high: greatest value: the last layer is a sigmoid between the two.
        hidden: width of the two layers before.
        conv: convolutions and two up-samplings in place of these layers (DFAD's generator, Fang et
            al., arXiv:1912.11006, with GroupNorm in place of BatchNorm), for samples that are
            images; `hidden` is then not read.
    """

    noise: int
    meaning: int
    shape: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0
    hidden: int = 256
    conv: bool = field(default=False, metadata={LATER: True})

    def build(self) -> nn.Module:
        """Return the network, `[batch, noise + meaning]` to `[batch, values]`.

        Its initial values come from torch's global generator.
        """
        if self.conv:
            return self._convolutions()
        return nn.Sequential(
            nn.Linear(self.noise + self.meaning, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, math.prod(self.shape)),
            nn.Sigmoid(),
        )

    def _convolutions(self) -> nn.Module:
        channels, rows, columns = self.shape
        half, quarter = ((-(-rows // by), -(-columns // by)) for by in (2, 4))
        return nn.Sequential(
            nn.Linear(self.noise + self.meaning, 2 * FILTERS * math.prod(quarter)),
            nn.Unflatten(1, (2 * FILTERS, *quarter)),
            nn.GroupNorm(GROUPS, 2 * FILTERS),
            nn.Upsample(half),
            nn.Conv2d(2 * FILTERS, 2 * FILTERS, 3, padding=1),
            nn.GroupNorm(GROUPS, 2 * FILTERS),
            nn.LeakyReLU(0.2),
            nn.Upsample((rows, columns)),
            nn.Conv2d(2 * FILTERS, FILTERS, 3, padding=1),
            nn.GroupNorm(GROUPS, FILTERS),
            nn.LeakyReLU(0.2),
            nn.Conv2d(FILTERS, channels, 3, padding=1),
            nn.Flatten(),
            nn.Sigmoid(),
        )


@dataclass(frozen=True)
class JudgedTask(Task):
    """Base of objectives on made-up samples, which a frozen classifier judges.

    Args:
        judge: the piece of the network that made-up samples enter.
    """

    judge: Piece = field(kw_only=True)

    def metrics(self, outputs: Tensor, samples: Samples) -> dict[str, float]:
        """Return no metrics: there are no samples to compare with."""
        return {}


@dataclass(frozen=True)
class Imagining(JudgedTask):
    """Objective of a generator: classifiers recognise its samples' classes, and samples differ.

    L = lamda L_cls + (1 - lamda) L_div; L_cls is the mean over the classes y of a batch of
    sum_k alpha[k, y] loss(classifier_k(x), y), L_div `diversity`. Samples are in [low, high], so
    no two are further apart than `largest_distance`, and L_div is in [-largest_distance, 0].

    Attributes:
        judge: the classifiers' network, and the loss of its output.
        lamda: share of the classifiers' loss.
        relative: divide distances by `largest_distance`.

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
        classifier_loss = output.new_zeros(())
        for flat, alpha in zip(batch[CLASSIFIERS], batch[ALPHA].tolist(), strict=True):
            # A classifier without samples of a class has no say in it, and need not be asked.
            asked = {y: at for y, at in rows.items() if alpha[y]}
            if not asked:
                continue
            sizes = [len(at) for at in asked.values()]
            outputs = judge_outputs(self.judge, flat, output[torch.cat([*asked.values()])])
            for (y, at), own in zip(asked.items(), outputs.split(sizes), strict=True):
                labels = self.judge.task.labelled(kinds[at])
                classifier_loss = classifier_loss + alpha[y] * self.judge.loss(own, labels)
        sameness = torch.stack([diversity(output[at]) for at in rows.values()]).mean()
        scale = self.largest_distance if self.relative else 1.0
        return self.lamda * classifier_loss / len(rows) + (1 - self.lamda) * sameness / scale

    @property
    def largest_distance(self) -> float:
        """The largest possible distance between two samples."""
        made = self.network
        assert isinstance(made, Conditional)
        return (made.high - made.low) * math.prod(made.shape) ** 0.5


def diversity(samples: Tensor) -> Tensor:
    """Return minus the mean Euclidean distance of two samples of `[n, ...]`; 0 for one sample.

    Source: the Durham thesis, Equation 3.8.
    """
    n, flat = len(samples), samples.flatten(1)
    if n < 2:
        return flat.sum() * 0.0
    first, second = torch.triu_indices(n, n, 1, device=flat.device)
    # The root of 0 has no gradient: two equal samples would make it NaN.
    return -((flat[first] - flat[second]).square().sum(1).clamp(min=1e-12)).sqrt().mean()


def classifier(task: Task, features: bool = False) -> Piece:
    """Return the piece of a task's network that samples enter: all of it, or its last stage.

    Raises:
        ConfigError: the network has no stages, or takes more than one input.
    """
    whole = Piece(task.network, seed=task.seed, whole=task)
    if features:
        stages = stages_of(task.network)
        whole = pieces(task, stages[-2])[1] if len(stages) > 1 else whole
    if task.side_inputs and reads_side_inputs(whole):
        raise ConfigError(
            f"a generator makes the network's input only, and this network also takes "
            f"{' and '.join(task.side_inputs)}; set model.pose = false, or take another network"
        )
    return whole


def generator_for(
    judge: Piece, noise: int, meaning: int, reach: float | None, conv: bool = False
) -> Conditional:
    """Return a generator of a classifier's inputs, or of features from 0 to `reach`.

    Raises:
        ConfigError: the network does not declare its input range, or its last stage is not
            linear; or a generator of convolutions is to make samples that are no images.
    """
    if conv and (reach is not None or len(judge.task.input_range()[0]) != 3):
        raise ConfigError(
            'generator = "conv" makes images [channels, height, width] only, and these samples are '
            'features or vectors; set generator = "linear"'
        )
    if reach is None:
        return Conditional(noise, meaning, *judge.task.input_range(), conv=conv)
    shape = frozen_classifier(judge)[0].shapes[0]
    if len(shape) != 2:
        raise ConfigError(
            "made-up features need a network whose last stage is a linear layer; let the "
            'generator make inputs (space = "input")'
        )
    return Conditional(noise, meaning, (shape[1],), 0.0, reach)


def labelled_batch(judge: Piece, samples: Tensor, kinds: Tensor) -> Batch:
    """Return made-up samples and their labels as a training batch of a classifier."""
    return {SMASHED: samples, **judge.task.labelled(kinds)}


def judge_outputs(judge: Piece, flat: Tensor, samples: Tensor) -> Tensor:
    """Return the output for samples of a frozen network with the parameters `flat` `[n]`."""
    layout, net = frozen_classifier(judge, samples.device)
    return functional_call(net, {n: layout.view(flat, n) for n in layout.names}, samples)


@lru_cache(maxsize=8)
def frozen_classifier(judge: Piece, device: torch.device = CPU) -> tuple[Layout, nn.Module]:
    """Return the classifier's layout, and its network in evaluation mode without gradients."""
    module = judge.module().eval()
    return Layout.of(module), module.requires_grad_(False).to(device)
