"""Small networks and made-up clients for the tests of solvers."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from vergence.core.data import Samples, SharedRows
from vergence.core.local_training import LocalTraining
from vergence.core.masks import Mask
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.core.task import Model
from vergence.models.lenet import LeNet
from vergence.models.linear import Linear
from vergence.tasks.gaze_angle import GazeAngle
from vergence.tasks.toy import ToyTask

INPUTS = 6


@dataclass(frozen=True)
class Double(Model):
    """Another network in float64, where rounding leaves twelve digits alone."""

    of: Model = Linear(INPUTS)

    def build(self) -> nn.Module:
        return self.of.build().double()


@dataclass(frozen=True)
class Mlp(Model):
    """Two linear layers, one without a bias."""

    hidden: int = 16

    def build(self) -> nn.Module:
        first, last = nn.Linear(INPUTS, self.hidden), nn.Linear(self.hidden, 1, bias=False)
        return nn.Sequential(first, nn.ReLU(), last)


class Banked(ToyTask):
    """The toy task with x looked up in a bank that everybody shares."""

    def forward(self, module, batch):
        return module(batch["frames"]).squeeze(1)


class Peeking(nn.Module):
    """Looks at a value to decide: there is none yet in a stack or a recording."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(INPUTS, 1)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else -self.layer(x)


class Dropping(nn.Module):
    """Draws random numbers while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(INPUTS, 1)

    def forward(self, x):
        return functional.dropout(self.layer(x), 0.5, self.training)


@dataclass(frozen=True)
class Odd(Model):
    """One of the networks above that cannot be stacked."""

    kind: type[nn.Module] = Peeking

    def build(self) -> nn.Module:
        return self.kind()


def numbers(n: int, client: int, dtype=torch.float32) -> Samples:
    """Draw one client's `x` and `y`."""
    generator = torch.Generator().manual_seed(client)
    x = torch.randn(n, INPUTS, generator=generator, dtype=dtype)
    own = torch.randn(INPUTS, generator=generator, dtype=dtype)
    return Samples({"x": x, "y": x @ own})


def eyes(n: int, client: int) -> Samples:
    """Draw one client's eye patches, which show nothing, and gaze."""
    generator = torch.Generator().manual_seed(client)
    image = torch.randint(256, (n, 1, 36, 60), generator=generator, dtype=torch.uint8)
    gaze = 0.3 * torch.randn(n, 2, generator=generator)
    return Samples({"image": image, "gaze": gaze, "pose": gaze.flip(1)})


def banked(n: int, client: int, rows: torch.Tensor) -> Samples:
    """Draw one client's rows of a bank and `y`."""
    generator = torch.Generator().manual_seed(client)
    where = torch.randint(len(rows), (n,), generator=generator)
    y = torch.randn(n, generator=generator)
    return Samples({"ids": where, "y": y}, {"frames": SharedRows(rows, "ids")})


TASKS = {
    "linear": (ToyTask(Linear(INPUTS)), numbers),
    "mlp": (ToyTask(Mlp()), numbers),
    "mlp64": (ToyTask(Double(Mlp())), lambda n, c: numbers(n, c, torch.float64)),
    "lenet": (GazeAngle(LeNet((3, 4))), eyes),
}
LOCALS = {
    "plain": LocalTraining(
        optimizer="sgd", batch=5, lr=0.05, weight_decay=0.0, clip=0.0, momentum=0.0
    ),
    "momentum": LocalTraining(
        optimizer="sgd", batch=5, lr=0.02, weight_decay=1e-2, clip=0.0, nesterov=True
    ),
    "clip": LocalTraining(optimizer="sgd", batch=5, lr=0.05, clip=0.1),
    "adamw": LocalTraining(batch=4, lr=0.01, optimizer="adamw", weight_decay=1e-2, epochs=2),
    "adam": LocalTraining(batch=4, lr=0.01, optimizer="adam", schedule="cosine"),
    "steps": LocalTraining(optimizer="sgd", batch=4, lr=0.02, steps=5),
}
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
"""Where solvers are tested: on a GPU, too, where torch sees one."""
EXTRAS = ("none", "anchor", "trainable", "all")


def asks_of(
    task, make, local: LocalTraining, extra: str, clients: int = 4, n: int = 12
) -> list[Fit]:
    """Return requests of different clients, with whatever `extra` names."""
    start = task.init()
    asks = []
    for client in range(clients):
        generator = torch.Generator().manual_seed(100 + client)
        noise = torch.randn(start.flat.shape, generator=generator, dtype=start.flat.dtype)
        ask = Fit(start, make(n, client), local)
        if extra in ("anchor", "all"):
            ask = replace(ask, anchor=(start.like(start.flat + 0.1 * noise), 0.7))
        if extra in ("trainable", "all"):
            ask = replace(ask, trainable=Mask(noise > 0, start.layout))
        if extra == "all":
            own = start.like(start.flat + 0.01 * noise.flip(0))
            ask = replace(ask, params=own, score_on=make(6, client + 50))
        asks.append(ask)
    return asks


def streams_of(asks: list[Fit]) -> list[RandomStream]:
    """Return a stream for each request."""
    return [RandomStream("test", number) for number in range(len(asks))]


def apart(one: Params, other: Params) -> float:
    """Return the largest difference, relative to the largest entry."""
    return float((one.flat - other.flat).abs().max() / other.flat.abs().max())
