"""FedAvg, FedProx and friends on one or two numbers.

f1 = x^2 / 2 and f2 = (x - 3)^2, plain gradient steps of 0.1, two of them, from x = 1:
f1: 1 -> 0.9 -> 0.81; f2: 1 -> 1.4 -> 1.72. Mean 1.265 (methods design note, O5).
With FedProx mu = 1 the second step adds mu (x - 1): f1: 0.9 - 0.1 (0.9 - 0.1) = 0.82;
f2: 1.4 - 0.1 (2 (1.4 - 3) + 0.4) = 1.68; mean 1.25.
"""

import pytest
import torch
from torch import nn

from tests.scripts import Numbers, aggregate, params, turn, values
from vergence.core.data import Samples
from vergence.core.local_training import LocalTraining
from vergence.core.method import Global
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.core.task import Model, Task
from vergence.methods.centralised import Centralised
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedavg_ft import FedAvgFT
from vergence.methods.fedprox import FedProx
from vergence.methods.local_only import LocalOnly
from vergence.training.sequential import Solver

PLAIN = LocalTraining(
    optimizer="sgd", steps=2, batch=1, lr=0.1, momentum=0.0, weight_decay=0.0, clip=0.0
)


class OneNumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, _):
        return self.weight


class One(Model):
    def build(self):
        return OneNumber()


class Quadratic(Task):
    headline = "loss"

    def forward(self, module, batch):
        return module(batch["a"])

    def loss(self, output, batch):
        return (batch["a"] * (output - batch["b"]) ** 2).mean()

    def metrics(self, outputs, samples):
        return {"loss": 0.0, "score": 1.0}


F1 = Samples({"a": torch.tensor([0.5]).double(), "b": torch.tensor([0.0]).double()})
F2 = Samples({"a": torch.tensor([1.0]).double(), "b": torch.tensor([3.0]).double()})


def ends(anchor=None):
    solver, start = Solver(Quadratic(One())), params(1.0)
    asks = [Fit(start, data, PLAIN, anchor=anchor and (start, anchor)) for data in (F1, F2)]
    return [solver.fit(ask, RandomStream("t")).params for ask in asks]


def test_o5_fedavg_first_round():
    a, b = ends()
    assert (values(a), values(b)) == ([0.81], [1.72])
    method, server = FedAvg(), Global(params(1.0))
    sealed = [turn(method, method.client(None), server.model, end)[1] for end in (a, b)]
    assert values(aggregate(method, server, sealed).model) == [1.265]


def test_o5_fedprox_first_round():
    a, b = ends(anchor=1.0)
    assert (values(a), values(b)) == ([0.82], [1.68])
    method, server = FedProx(mu=1.0), Global(params(1.0))
    sealed = [turn(method, method.client(None), server.model, end)[1] for end in (a, b)]
    assert values(aggregate(method, server, sealed).model) == [1.25]


@pytest.mark.parametrize(("weights", "expected"), [("samples", 2.5), ("equal", 2.0)])
def test_weights(weights, expected):
    """Ends 1 and 3 with 1000 and 3000 samples: 2.5 by samples, 2 counted equally."""
    method, server = FedAvg(weights=weights), Global(params(0.0))
    sealed = [
        turn(method, method.client(None), server.model, params(end), examples=n)[1]
        for end, n in ((1, 1000.0), (3, 3000.0))
    ]
    assert values(aggregate(method, server, sealed).model) == [expected]


def test_local_only_goes_on_from_its_own_parameters():
    """Two turns: the second fit starts where the first ended, with its optimiser."""
    method = LocalOnly()
    state = method.client(Numbers((0.0,)))
    state, sealed = turn(method, state, params(9.0), params(2.0))
    assert not sealed.trees
    from vergence.core.messages import Message

    ask = method.on_train(state, Message("train"), type("S", (), {"train": F1})).send(None)
    assert values(ask.params) == [2.0]
    assert ask.optimiser == state.optimiser


def test_centralised_keeps_its_optimiser_over_rounds():
    """Momentum 0.5, gradient 1 throughout: 1 + 1.5 + 1.75 in three rounds of one step."""
    task = Quadratic(One())
    solver, state, x = Solver(task), Centralised().client(task), params(10.0)
    local = LocalTraining(
        optimizer="sgd", steps=1, lr=1.0, momentum=0.5, weight_decay=0.0, clip=1.0
    )
    for _ in range(3):
        fitted = solver.fit(Fit(x, F2, local, optimiser=state.optimiser), RandomStream("t"))
        x, state = fitted.params, type(state)(fitted.optimiser)
    assert values(x) == [10 - 1 - 1.5 - 1.75]


def test_fine_tuning_predicts_with_the_received_model_until_the_end():
    method = FedAvgFT(tune_epochs=3)
    state = method.client(None)
    assert values(method.model_on(state, {"model": params(4.0)}, None)) == [4.0]
    from vergence.core.messages import Message

    site = type("S", (), {"train": F1})
    conversation = method.on_tune(state, Message("tune", {"model": params(4.0)}), site)
    assert conversation.send(None).local.epochs == 3
