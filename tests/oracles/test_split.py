"""Split learning, one round by hand (oracle O15): y^ = ws wc x, loss (y^ - y)^2 / 2, rate 0.1.

wc = 1 at the clients, ws = 2 at the server; client 1 has (x, y) = (1, 1), client 2 has (2, 1).
Smashed data wc x are 1 and 2; the gradients that come back, ws (y^ - y), are 2 and 6.

    V1       client 1: ws = 2 - .1 * 1 * 1 = 1.9, wc = 1 - .1 * 2 * 1 = .8
             client 2: ws = 2 - .1 * 3 * 2 = 1.4, wc = 1 - .1 * 6 * 2 = -.2;  means 1.65 and .3
    V2       order 1, 2: ws = 1.9; then smashed 2, y^ = 3.8, returned 1.9 * 2.8 = 5.32:
             wc = 1 - .1 * 5.32 * 2 = -.064, mean .368; ws = 1.9 - .1 * 2.8 * 2 = 1.34
    split    client 2 starts from wc = .8: smashed 1.6, y^ = 3.04, e = 2.04:
             wc = .8 - .1 * 1.9 * 2.04 * 2 = .0248, ws = 1.9 - .1 * 2.04 * 1.6 = 1.5736
    average  smashed 1.5, y = 1: ws = 2 - .1 * (3 - 1) * 1.5 = 1.7, wc stays 1
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from tests.engine.toys import STAMP
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.randomness import RandomStream
from vergence.core.stages import Staged
from vergence.core.task import Model
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.methods.fedavg import FedAvg
from vergence.methods.split.smashed_average import SmashedAverage
from vergence.methods.split.split import SplitLearning
from vergence.methods.split.splitfed import SplitFed
from vergence.methods.split.splitfed_v2 import SplitFedV2
from vergence.tasks.toy import ToyTask

LOCAL = LocalTraining(optimizer="sgd", batch=1, lr=0.1, momentum=0.0, weight_decay=0.0, clip=0.0)


@dataclass(frozen=True)
class Factors(Model):
    """ws wc x."""

    def build(self):
        return Product()


class Product(Staged):
    def __init__(self):
        super().__init__()
        self.stages = {"client": ("client",), "server": ("server",)}
        for name, start in (("client", 1.0), ("server", 2.0)):
            layer = nn.Linear(1, 1, bias=False)
            nn.init.constant_(layer.weight, start)
            self.add_module(name, layer)

    def stage(self, name, x, *beside):
        return self.get_submodule(name)(x)


def person(x, y):
    columns = {"x": torch.tensor([[x]]), "y": torch.tensor([y])}
    one = Samples(columns)
    return Splits(one, one, one)


PEOPLE = Federation("two", {"1": person(1.0, 1.0), "2": person(2.0, 1.0)})


def after(method, tmp_path):
    """Hold one round; return (wc, ws)."""
    folder = RunDirectory(tmp_path, STAMP)
    folder.open()
    plan = Plan(rounds=1, evaluate_every=0, workers=1)
    server = run_rounds(
        method, ToyTask(Factors()), federation=PEOPLE, plan=plan, folder=folder
    ).server
    return [float(server.front.flat), float(server.tail.flat)]


def test_v1(tmp_path):
    assert after(SplitFed(local=LOCAL), tmp_path / "a") == pytest.approx([0.3, 1.65], abs=1e-6)


def test_v1_is_fedavg(tmp_path):
    folder = RunDirectory(tmp_path / "whole", STAMP)
    folder.open()
    plan = Plan(rounds=1, evaluate_every=0, workers=1)
    whole = run_rounds(
        FedAvg(local=LOCAL), ToyTask(Factors()), federation=PEOPLE, plan=plan, folder=folder
    ).server.model
    assert whole.flat.tolist() == after(SplitFed(local=LOCAL), tmp_path / "split")


@pytest.mark.parametrize(("order", "expected"), [([0, 1], [0.368, 1.34]), ([1, 0], [0.372, 1.36])])
def test_v2_in_both_orders(tmp_path, monkeypatch, order, expected):
    """Order 2, 1: ws = 1.4; client 1: e = .4, wc = 1 - .1 * 1.4 * .4 = .944, ws = 1.4 - .04.

    Client 2 ends at -.2 as in V1, and (.944 - .2) / 2 = .372.
    """

    class Drawn:
        def permutation(self, n):
            return np.array(order)

    monkeypatch.setattr(RandomStream, "numpy", lambda _: Drawn())
    found = after(SplitFedV2(local=LOCAL), tmp_path)
    assert found == pytest.approx(expected, abs=1e-6)


def test_vanilla(tmp_path):
    assert after(SplitLearning(local=LOCAL), tmp_path) == pytest.approx([0.0248, 1.5736], abs=1e-6)


def test_smashed_average(tmp_path):
    assert after(SmashedAverage(local=LOCAL), tmp_path) == pytest.approx([1.0, 1.7], abs=1e-6)
