"""Ditto and pFedMe on one number.

f1 = x^2 / 2 and f2 = (x - 3)^2, plain steps of 0.1, received w = 1 (as
tests/oracles/test_fedavg.py).

Ditto, mu = 1, two steps. The common model goes 1, 0.9, 0.81 on f1 and 1, 1.4, 1.72 on f2, mean
1.265. A's own 3 on f1 has gradient x + (x - 1): 3 - 0.5 = 2.5, 2.5 - 0.4 = 2.1. Pulled towards the
trained 0.81 instead it would be 2.481, 2.0658. B's own 0 on f2 has 2 (x - 3) + (x - 1): 0.7, 1.19.

pFedMe, lamda = 2, w_lr = 0.25, two inner steps a batch, theta = 3 from the last turn, f1:

    batch 1   theta: 3 - 0.1 (3 + 2 (3 - 1)) = 2.3;  2.3 - 0.1 (2.3 + 2 * 1.3) = 1.81
              w = 1 - 0.5 (1 - 1.81) = 1.405
    batch 2   theta: 1.81 - 0.1 (1.81 + 2 * 0.405) = 1.548;
                     1.548 - 0.1 (1.548 + 2 * 0.143) = 1.3646
              w = 1.405 - 0.5 (1.405 - 1.3646) = 1.3848
"""

from dataclasses import replace

import pytest

from tests.oracles.test_fedavg import F1, F2, One, Quadratic
from tests.scripts import PLAIN, aggregate, params, taught, values
from vergence.core.data import Samples
from vergence.core.messages import reply, seal
from vergence.core.method import Global
from vergence.methods.ditto import Ditto
from vergence.methods.ditto import DittoState as Kept
from vergence.methods.pfedme import PFedMe, PFedMeState

TASK = Quadratic(One())
STEPS = replace(PLAIN, epochs=2)
RECEIVED = {"model": params(1.0)}


def test_ditto_trains_the_common_model_and_ones_own_near_the_received_one():
    method = Ditto(local=STEPS, mu=1.0)
    a, said_a = taught(method, TASK, Kept(params(3.0)), RECEIVED, F1)
    b, said_b = taught(method, TASK, Kept(params(0.0)), RECEIVED, F2)
    assert (values(a.params), values(b.params)) == ([2.1], [1.19])
    server = aggregate(method, Global(params(1.0)), [said_a, said_b])
    assert values(server.model) == [1.265]
    assert values(method.model_on(a, {"model": server.model}, None)) == [2.1]


def test_ditto_goes_on_from_its_own_model():
    """Second turn, received 1.265: 2.1 - 0.1 (2.1 + 0.835) = 1.8065; then 1.8065 - 0.1 (1.8065 +
    0.5415) = 1.5717."""
    state, sealed = taught(
        Ditto(local=STEPS, mu=1.0), TASK, Kept(params(2.1)), {"model": params(1.265)}, F1, round=1
    )
    assert values(state.params) == [1.5717]
    assert values(sealed.trees["model"].total) == [-0.24035]  # 1.265 (0.81 - 1): not pulled


def test_ditto_without_a_leash_trains_alone():
    """mu = 0: 3, 2.7, 2.43, whatever is received."""
    method = Ditto(local=STEPS, mu=0.0)
    for received in (1.0, 50.0):
        state, _ = taught(method, TASK, Kept(params(3.0)), {"model": params(received)}, F1)
        assert values(state.params) == [2.43]


@pytest.mark.parametrize(("weights", "expected"), [("samples", 1.4925), ("equal", 1.265)])
def test_ditto_weights(weights, expected):
    """0.81 counts once, 1.72 three times: (0.81 + 5.16) / 4."""
    three = Samples({n: c.repeat(3) for n, c in F2.columns.items()})
    method = Ditto(local=STEPS, weights=weights)
    sealed = [taught(method, TASK, method.client(TASK), RECEIVED, d)[1] for d in (F1, three)]
    assert values(aggregate(method, Global(params(1.0)), sealed).model) == [expected]


PULLED = PFedMe(local=STEPS, lamda=2.0, inner_steps=2, w_lr=0.25)


def test_pfedme_one_batch():
    method = replace(PULLED, local=PLAIN)
    state, sealed = taught(method, TASK, PFedMeState(params(3.0)), RECEIVED, F1)
    assert values(state.params) == [1.81]
    assert values(sealed.trees["model"].total) == [0.405]


def test_pfedme_two_batches():
    state, sealed = taught(PULLED, TASK, PFedMeState(params(3.0)), RECEIVED, F1)
    assert values(state.params) == [1.3646]
    assert values(sealed.trees["model"].total) == [0.3848]
    assert values(PULLED.model_on(state, RECEIVED, None)) == [1.3646]


@pytest.mark.parametrize(("beta", "expected"), [(1.0, 1.2), (2.0, 1.4), (0.5, 1.1)])
def test_pfedme_server(beta, expected):
    """Clients end at w = 1.405 and 0.995, mean 1.2: (1 - beta) 1 + beta 1.2."""
    sealed = [seal(reply(model=params(by)), 0) for by in (0.405, -0.005)]
    server = aggregate(replace(PULLED, beta=beta), Global(params(1.0)), sealed)
    assert values(server.model) == [expected]


def test_pfedme_counts_equally_unless_told():
    three = Samples({n: c.repeat(3) for n, c in F2.columns.items()})
    for weights, weight in (("equal", 1.0), ("samples", 3.0)):
        method = replace(PULLED, weights=weights)
        _, sealed = taught(method, TASK, method.client(TASK), RECEIVED, three)
        assert sealed.trees["model"].weight == weight


def test_pfedme_inner_steps_stay_on_one_batch():
    """Two samples, one a batch, three inner steps each: every fit sees one sample, three times."""
    both, asked = Samples.concatenate([F1, F2]), []
    method = replace(PULLED, local=replace(PLAIN, batch=1), inner_steps=3)
    taught(method, TASK, PFedMeState(params(3.0)), RECEIVED, both, asked=asked)
    assert [(len(a.data), a.local.steps, a.anchor[1]) for a in asked] == [(1, 3, 2.0)] * 2
    assert sorted(float(a.data.columns["b"]) for a in asked) == [0.0, 3.0]


def test_pfedme_keeps_its_momentum_over_batches():
    """Momentum 0.5, one inner step a batch: the second step holds half of the first.

    Batch 1: g = 3 + 2 * 2 = 7, theta = 2.3, w = 1 + 0.5 * 1.3 = 1.65.
    Batch 2: g = 2.3 + 2 * 0.65 = 3.6, with 3.5 of before 7.1: theta = 1.59.
    """
    local = replace(STEPS, momentum=0.5)
    state, _ = taught(
        replace(PULLED, local=local, inner_steps=1), TASK, PFedMeState(params(3.0)), RECEIVED, F1
    )
    assert values(state.params) == [1.59]
