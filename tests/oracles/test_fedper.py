"""FedPer, LG-FedAvg and FedBN, two rounds by hand.

Body b = 2 and head h = 1 predict h b x; the loss is (h b x - y)^2 / 2, so with e = h b x - y the
gradients are e h x (body) and e b x (head). Rate 0.1, one step a turn, x = 1, A wants y = 4 and B
y = 0; B has three samples, all alike.

    round 0   A: e = -2, b = 2 + 0.1 * 2 * 1 = 2.2, h = 1 + 0.1 * 2 * 2 = 1.4
              B: e =  2, b = 2 - 0.2 = 1.8,         h = 1 - 0.4 = 0.6

FedPer then has b = (2.2 + 3 * 1.8) / 4 = 1.9 by samples, 2.0 equally. From 1.9:

    round 1   A: e = 1.4 * 1.9 - 4 = -1.34, b = 1.9 + 0.134 * 1.4 = 2.0876,
                 h = 1.4 + 0.134 * 1.9 = 1.6546
              B: e = 0.6 * 1.9 = 1.14, b = 1.9 - 0.114 * 0.6 = 1.8316,
                 h = 0.6 - 0.114 * 1.9 = 0.3834;        b = (2.0876 + 3 * 1.8316) / 4 = 1.8956

LG-FedAvg keeps the bodies 2.2 and 1.8 and has h = (1.4 + 3 * 0.6) / 4 = 0.8:

    round 1   A: e = 0.8 * 2.2 - 4 = -2.24, b = 2.2 + 0.224 * 0.8 = 2.3792,
                 h = 0.8 + 0.224 * 2.2 = 1.2928
              B: e = 0.8 * 1.8 = 1.44, b = 1.8 - 0.144 * 0.8 = 1.6848,
                 h = 0.8 - 0.144 * 1.8 = 0.5408;        h = (1.2928 + 3 * 0.5408) / 4 = 0.7288
"""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.scripts import PLAIN, Numbers, Product, Two, pairs, summed, taught, values
from vergence.core.method import Global
from vergence.core.task import Model
from vergence.errors import ConfigError
from vergence.methods.fedbn import FedBN
from vergence.methods.fedper import FedPer
from vergence.methods.lg_fedavg import LGFedAvg

TASK = Product(Two())
DATA = {"a": pairs((1, 4)), "b": pairs((1, 0), (1, 0), (1, 0))}


def rounds(method, count, task=TASK, data=DATA):
    """Hold so many rounds; return the server, everybody's state, and the replies of the last."""
    server, states, sealed = method.server(task), dict.fromkeys(data, method.client(task)), []
    for at in range(count):
        offered = method.offer(server, "a")
        sealed = []
        for client, samples in data.items():
            states[client], told = taught(method, task, states[client], offered, samples, round=at)
            sealed.append(told)
        server = summed(method, server, sealed, offered)
    return server, states, sealed


def test_fedper_two_rounds():
    method = FedPer(local=PLAIN)
    server, states, _ = rounds(method, 1)
    assert values(server.model) == [1.9]
    assert [values(states[c].params) for c in "ab"] == [[2.2, 1.4], [1.8, 0.6]]
    server, states, sealed = rounds(method, 2)
    assert values(server.model) == [1.8956]
    assert [values(states[c].params) for c in "ab"] == [[2.0876, 1.6546], [1.8316, 0.3834]]
    assert [t.trees["body"].total.layout.names for t in sealed] == [("body.weight",)] * 2
    shown = method.model_on(states["a"], {"body": server.model}, None)
    assert values(shown) == [1.8956, 1.6546]


def test_lg_fedavg_two_rounds():
    method = LGFedAvg(local=PLAIN)
    server, states, _ = rounds(method, 1)
    assert values(server.model) == [0.8]
    server, states, sealed = rounds(method, 2)
    assert values(server.model) == [0.7288]
    assert [values(states[c].params)[0] for c in "ab"] == [2.3792, 1.6848]
    assert [t.trees["head"].total.layout.names for t in sealed] == [("head.weight",)] * 2
    assert values(method.model_on(states["a"], {"head": server.model}, None)) == [2.3792, 0.7288]


@pytest.mark.parametrize(("method", "expected"), [(FedPer, 2.0), (LGFedAvg, 1.0)])
def test_counted_equally(method, expected):
    """(2.2 + 1.8) / 2 bodies, (1.4 + 0.6) / 2 heads."""
    server, *_ = rounds(method(local=PLAIN, weights="equal"), 1)
    assert values(server.model) == [expected]


def test_the_head_may_be_named():
    """With the body's weight called the head, FedPer is LG-FedAvg."""
    named = rounds(FedPer(local=PLAIN, head=("body.*",)), 2)
    plain = rounds(LGFedAvg(local=PLAIN), 2)
    assert values(named[0].model) == values(plain[0].model)
    with pytest.raises(ConfigError, match="no parameter is named like 'neck"):
        FedPer(head=("neck.*",)).check(TASK)
    with pytest.raises(ConfigError, match="cannot be split: its body would be empty"):
        FedPer(head=("*",)).check(TASK)


def test_whoever_never_took_part_has_the_first_head():
    method = FedPer()
    shown = method.model_on(method.client(TASK), {"body": TASK.init().only(["body.weight"])}, None)
    assert values(shown) == [2.0, 1.0]


class Normed(Model):
    """x = (1, -1), scaled by a norm's gains g, then w . (g x), w = (2, 1)."""

    def build(self):
        norm = nn.LayerNorm(2, eps=0.0, bias=False).double()
        last = nn.Linear(2, 1, bias=False).double()
        with torch.no_grad():
            last.weight.copy_(torch.tensor([[2.0, 1.0]]))
        return nn.Sequential(norm, last)


class Scaled(Product):
    def forward(self, module, batch):
        return module(batch["x"].unsqueeze(1) * torch.tensor([1.0, -1.0])).squeeze(1)


def test_fedbn_two_rounds():
    """The norm of (1, -1) is itself; y^ = w . (g x), gradients e g x of w and e w x of g.

    Round 0   A: e = 1 - 4 = -3: w = (2, 1) + 0.3 (1, -1) = (2.3, 0.7),
                 g = (1, 1) + 0.3 (2, -1) = (1.6, 0.7)
              B: e = 1: w = (1.9, 1.1), g = (0.8, 1.1);        w = (2.1, 0.9) equally
    Round 1   A: y^ = 2.1 * 1.6 - 0.9 * 0.7 = 2.73, e = -1.27: w = (2.1 + 0.127 * 1.6,
                 0.9 - 0.127 * 0.7) = (2.3032, 0.8111), g = (1.6 + 0.127 * 2.1,
                 0.7 - 0.127 * 0.9) = (1.8667, 0.5857)
    """
    task, method = Scaled(Normed()), FedBN(local=PLAIN, weights="equal")
    method.check(task)
    server, states, _ = rounds(method, 1, task)
    assert values(server.model) == [2.1, 0.9]
    assert values(states["b"].params) == [0.8, 1.1, 1.9, 1.1]
    server, states, sealed = rounds(method, 2, task)
    assert values(states["a"].params) == [1.8667, 0.5857, 2.3032, 0.8111]
    assert {t.trees["shared"].total.layout.names for t in sealed} == {("1.weight",)}
    site = SimpleNamespace(task=task)
    shown = method.model_on(states["a"], {"shared": server.model}, site)
    assert values(shown)[:2] == [1.8667, 0.5857]
    assert values(shown)[2:] == values(server.model)
    assert states["a"].mask.bits.tolist() == [True, True, False, False]


def test_fedbn_refuses_a_network_without_norms():
    with pytest.raises(ConfigError, match="Two has no normalisation layer, so FedBN would be"):
        FedBN().check(TASK)


def test_nobody_replied():
    method = FedPer()
    server = Global(Numbers((1.5,)).init())
    assert values(summed(method, server, [], {"body": server.model}).model) == [1.5]
