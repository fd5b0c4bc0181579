"""Models of a few numbers, scripted training, and drivers: how tests hold a conversation."""

from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import ClassVar

import torch
from torch import nn

from vergence.core.aggregation import add_up
from vergence.core.client import ClientContext
from vergence.core.conversation import drive
from vergence.core.data import Samples
from vergence.core.local_training import LocalTraining, OptimizerState
from vergence.core.masks import Mask
from vergence.core.messages import Message, seal
from vergence.core.params import Layout, Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit, FitResult, Request
from vergence.core.task import Model, Task
from vergence.training.sequential import Solver


def layout(n: int, name: str = "weight") -> Layout:
    return Layout((name,), ((n,),))


def params(*values: float) -> Params:
    return Params(torch.tensor(values, dtype=torch.float64), layout(len(values)))


def mask(*values: int) -> Mask:
    return Mask(torch.tensor(values, dtype=torch.bool), layout(len(values)))


@dataclass(frozen=True)
class Numbers:
    """A task whose model is a list of numbers."""

    start: tuple[float, ...]

    def init(self) -> Params:
        return params(*self.start)

    def averaged_statistics(self) -> tuple[str, ...]:
        return ()


def site(round: int, client: str = "a", examples: int = 1):
    """A site whose data nobody looks at."""
    return SimpleNamespace(
        id=client,
        train=[None] * examples,
        val=[None],
        round=round,
        rng=RandomStream("test", client),
        choose=Mask.best,
        task=SimpleNamespace(averaged_statistics=lambda: ()),
    )


def turn(method, state, received: Params, ends, round=0, client="a", examples=1.0, score=0.0):
    """Take one training turn; every fit it asks for ends at the next of `ends`."""
    ends = iter([ends] if isinstance(ends, Params) else ends)
    conversation = method.on_train(
        state, Message("train", {"model": received}, round=round), site(round, client)
    )
    answer = None
    while True:
        try:
            ask = conversation.send(answer)
        except StopIteration as end:
            state, reply = end.value
            return state, seal(reply, round)
        assert isinstance(ask, Fit)
        answer = FitResult(
            next(ends), examples, 1, OptimizerState({}, 0), {"loss": 0.0, "score": score}
        )


def aggregate(method, server, sealed):
    """Hold one round whose cohort replied this."""
    return summed(method, server, sealed, {"model": server.model})


def values(got: Params) -> list[float]:
    return [round(float(v), 6) for v in got.flat]


PLAIN = LocalTraining(optimizer="sgd", batch=100, lr=0.1, momentum=0.0, weight_decay=0.0, clip=0.0)
"""One gradient step per epoch, on all samples at once, and nothing else."""


@dataclass(frozen=True)
class Two(Model):
    """A body weight and a head weight, in float64: head * body * x."""

    body: float = 2.0
    second: float = 1.0

    head: ClassVar[tuple[str, ...]] = ("head.*",)

    def build(self):
        net = nn.Sequential()
        for name, start in (("body", self.body), ("head", self.second)):
            layer = nn.Linear(1, 1, bias=False).double()
            nn.init.constant_(layer.weight, start)
            net.add_module(name, layer)
        return net


class Product(Task):
    """Half the mean squared error of head * body * x from y; class 1 is y above zero."""

    classes = 2
    headline = "error"

    def forward(self, module, batch):
        return module(batch["x"].unsqueeze(1)).squeeze(1)

    def loss(self, output, batch):
        return 0.5 * (output - batch["y"]).square().mean()

    def class_of(self, batch):
        return (batch["y"] > 0).long()

    def metrics(self, outputs, samples):
        error = float((outputs - samples.columns["y"]).square().mean().sqrt())
        return {"error": error, "score": 1 / (1 + error)}


def pairs(*xy: tuple[float, float]) -> Samples:
    """Samples of the product, as (x, y)."""
    table = torch.tensor(xy, dtype=torch.float64)
    return Samples({"x": table[:, 0].contiguous(), "y": table[:, 1].contiguous()})


def taught(method, task, state, trees, data, verb="train", round=0, asked=None, facts=None):
    """Take one turn with a real solver; `asked` collects what the turn asks for."""
    solver, number = Solver(task), count()
    place = ClientContext("a", data, data, task, round, RandomStream("test", round))

    def answer(ask):
        if asked is not None:
            asked.append(ask)
        if isinstance(ask, Fit):
            return solver.fit(ask, RandomStream("t", round, next(number)))
        return solver.compute(ask)

    handler = getattr(method, f"on_{verb}")
    state, reply = drive(handler(state, Message(verb, trees, facts or {}, round), place), answer)
    return state, seal(reply, round)


def summed(method, server, sealed, offered):
    """Hold a round of one request with these replies; `offered` shapes the trees."""
    conversation = method.round(server, [f"c{i}" for i in range(len(sealed))])
    assert isinstance(conversation.send(None), Request)
    try:
        conversation.send(add_up(sealed, offered))
    except StopIteration as end:
        return end.value
    raise AssertionError("one request per round expected")
