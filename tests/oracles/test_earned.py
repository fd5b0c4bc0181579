"""Earned personalisation on one number, plain gradient steps of 0.1, two of them a turn.

The common model is FedAvg's. One's own starts at the candidate of lowest validation loss: with
f2 = (x - 3)^2 as training and validation data, own 2 and model 1, candidates 1, 1.5, 2 have losses
4, 2.25, 1, so it starts at 2 and ends at 2 + 0.2 * 1 = 2.2, + 0.2 * 0.8 = 2.36. The common model
goes 1 -> 1.4 -> 1.72, an update of 0.72.
"""

import pytest
import torch

from tests.oracles.test_fedavg import F1, F2, PLAIN, One, Quadratic
from tests.scripts import params, values
from vergence.core.client import ClientContext
from vergence.core.conversation import drive
from vergence.core.data import Samples
from vergence.core.messages import Message
from vergence.core.randomness import RandomStream
from vergence.methods.earned import Earned, Mixing
from vergence.training.sequential import Solver

TASK = Quadratic(One())
METHOD = Earned(grid=2, local=PLAIN)
MODEL = params(1.0)


def turn(own, train=F2, val=F2, verb="train"):
    solver, stream = Solver(TASK), RandomStream("t")
    site = ClientContext("a", train, val, TASK, 0, stream)

    def answer(ask):
        return solver.fit(ask, stream) if hasattr(ask, "local") else solver.compute(ask)

    handler = getattr(METHOD, f"on_{verb}")
    return drive(handler(Mixing(params(own)), Message(verb, {"model": MODEL}), site), answer)


def test_own_goes_on_from_where_validation_data_says():
    state, sent = turn(2.0)
    assert values(state.params) == [2.36]
    assert state.share == 1.0
    assert values(sent.trees["model"]) == [0.72]  # FedAvg's, whatever one's own model does
    assert sent.weight == 1.0


def test_a_worse_own_model_starts_again_from_the_common_one():
    """Own -5: candidates 1, -2, -5 have losses 4, 25, 64."""
    state, _ = turn(-5.0)
    assert values(state.params) == [1.72]
    assert state.share == 0.0


def test_half_way():
    """Validation data f1 = x^2 / 2 with own -1: candidates 1, 0, -1; the mean is at the minimum."""
    state, _ = turn(-1.0, val=F1)
    assert state.share == 0.5
    assert values(state.params) == [pytest.approx(0 + 0.2 * 3 + 0.2 * 2.4)]


def test_of_equal_losses_the_common_model_wins():
    """Own 5 and model 1 are as far from 3; the mean is better than both, so grid 1 decides."""
    coarse = Earned(grid=1, local=PLAIN)
    solver = Solver(TASK)
    site = ClientContext("a", F2, F2, TASK, 0, RandomStream("t"))
    assert drive(coarse.best(params(5.0), MODEL, site), solver.compute) == 0.0


def test_settling_fine_tunes_as_far_as_it_pays():
    """The best candidate is own, 2; three more steps: 2.2, 2.36, 2.488, better still."""
    state, sent = turn(2.0, verb="settle")
    assert values(state.params) == [2.488]
    assert values(METHOD.model_on(state, {"model": MODEL}, None)) == [2.488]
    assert not sent.trees
    assert not sent.metrics


def test_settling_leaves_a_model_alone_that_fine_tuning_harms():
    """Validation data f1: the common model 1 is best, and f2's steps lead away from its minimum."""
    state, _ = turn(2.0, val=F1, verb="settle")
    assert values(state.params) == [1.0]


def test_settling_half_way():
    """Validation data (x - 2.2)^2: of 2, 2.244 and 2.488 the middle is best."""
    near = Samples({"a": torch.tensor([1.0]).double(), "b": torch.tensor([2.2]).double()})
    state, _ = turn(2.0, val=near, verb="settle")
    assert values(state.params) == [2.244]


def test_prediction_is_the_mix_last_chosen():
    for share, expected in ((0.0, 1.0), (0.5, 1.5), (1.0, 2.0)):
        mix = METHOD.model_on(Mixing(params(2.0), share), {"model": MODEL}, None)
        assert values(mix) == [expected]
    fresh = METHOD.client(TASK)
    assert torch.equal(METHOD.model_on(fresh, {"model": MODEL}, None).flat, MODEL.flat)
